// Write policies with their effect.

export const POLICIES: Record<string, string> = {
  'write-back':
    'Writes are acknowledged from the cache; a flush is acknowledged when the data is durable on flash or on the array.',
  'write-through': 'Writes are acknowledged by the array and stay cached for reads.',
  'write-around': 'Writes go to the array only; reads fill the cache.',
  none: 'No caching.',
  'write-back-volatile': 'Flushes are acknowledged from memory: a crash loses the newest writes.',
};
