// The shared worker: holds the one feed of all tabs.

import { Feed, type Wish } from './feed';

declare const self: SharedWorkerGlobalScope;

// Named for the address of the page, to which the API's are relative.
const feed = new Feed(self.name);

self.onconnect = ({ ports }) => {
  for (const port of ports) {
    const { wish, leave } = feed.join((word) => port.postMessage(word));
    // A tab that goes says so; nothing else tells a worker.
    port.onmessage = ({ data }: MessageEvent<Wish | 'leave'>) => (data === 'leave' ? leave() : wish(data));
  }
};
