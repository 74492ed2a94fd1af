// Summary of the cache's effect in one sentence.

import { hitRatio, type Rates } from './rates';
import { bytesRate, percent, rate } from './units';

/** Below this read rate there is no summary. */
const QUIET_RATE = 1;

export function verdict(now: Rates | undefined): { text: string; tone: 'good' | 'fair' | 'poor' | 'idle' } {
  if (now === undefined) return { text: 'Waiting for data…', tone: 'idle' };
  const ratio = hitRatio(now.sources);
  if (ratio === null || now.reads < QUIET_RATE) {
    return { text: 'Idle: almost no reads at the moment.', tone: 'idle' };
  }
  const hitText = `hit ratio ${percent(ratio)}`;
  const avoided = `array reads avoided: ${rate(now.sources.memory + now.sources.flash)}`;
  if (ratio >= 0.8) return { text: `The cache is effective: ${hitText}, ${avoided}.`, tone: 'good' };
  if (ratio >= 0.4) return { text: `The cache is partly effective: ${hitText}, ${avoided}.`, tone: 'fair' };
  return {
    text: `The cache has little effect: ${hitText}, array throughput ${bytesRate(now.backingBytes)}.`,
    tone: 'poor',
  };
}
