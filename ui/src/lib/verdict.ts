// One sentence for who has never seen this page: does the cache help?

import { hitRatio, type Rates } from './rates';
import { bytesRate, percent, rate } from './units';

/** Fewer reads a second than this say nothing. */
const QUIET_RATE = 1;

export function verdict(now: Rates | undefined): { text: string; tone: 'good' | 'fair' | 'poor' | 'idle' } {
  if (now === undefined) return { text: 'Waiting for two seconds in a row, to compare them.', tone: 'idle' };
  const ratio = hitRatio(now.sources);
  if (ratio === null || now.reads < QUIET_RATE) {
    return { text: 'Hardly anything is being read now, so there is nothing for the cache to do.', tone: 'idle' };
  }
  const spared = `it spares the array ${rate(now.sources.memory + now.sources.flash)} reads`.replace(
    '/s reads',
    ' reads a second',
  );
  const of = `${percent(ratio)} of what is read comes from the cache`;
  if (ratio >= 0.8) return { text: `Yes, the cache helps: ${of}; ${spared}.`, tone: 'good' };
  if (ratio >= 0.4) return { text: `The cache helps in part: ${of}; ${spared}.`, tone: 'fair' };
  const load = bytesRate(now.backingBytes);
  return { text: `The cache helps little now: only ${of}; the array moves ${load}.`, tone: 'poor' };
}
