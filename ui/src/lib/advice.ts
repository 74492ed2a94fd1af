// Sizing advice: the gain of more memory or flash for a volume, from its miss-ratio curves.
// Hits that the other tier serves already are no gain.

import type { AdviceAssumptions, AdviceSide, VolumeAdvice } from './types';
import { plural } from './units';

export type Kind = 'memory' | 'flash';

/** A cache size with its expected effect in place of the current size. */
export interface Gain {
  sizeBytes: number;
  moreBytes: number;
  /** Hit ratio of memory and flash together. */
  hits: number;
  /** Mean request latency. */
  latencyUs: number;
  /** Array requests avoided per second; null where the request rate is unknown. */
  avoided: number | null;
}

/** A larger size of one tier that is worth having for one volume. */
export interface Recommendation {
  volume: string;
  kind: Kind;
  currentBytes: number;
  /** Measured hit ratio of the current size since the daemon's start. */
  measuredHits: number;
  /** Hit ratio by the curves: the baseline of all gains. */
  currentHits: number;
  currentLatencyUs: number;
  /** The knee of the curve, or the first step where there is none above the current size. */
  target: Gain;
  isKnee: boolean;
  /** All useful sizes, ascending. */
  steps: Gain[];
}

/** Below this a curve is not reliable. */
export const REQUESTS_MIN = 1_000;
/** Least relative growth of size, and least gain of hit ratio and of latency, from one step to the next. */
const SIZE_FACTOR_MIN = 1.25;
const GAIN_MIN = 0.01;

/** Hit ratio of a size, interpolated linearly between steps. */
function hitRatioAt({ steps }: AdviceSide, size: number): number {
  const at = steps.findIndex(({ size_bytes }) => size_bytes >= size);
  if (at < 0) return steps.at(-1)?.hit_ratio ?? 0;
  const [below, above] = [steps[at - 1] ?? { size_bytes: 0, hit_ratio: 0 }, steps[at]!];
  const part = (size - below.size_bytes) / (above.size_bytes - below.size_bytes);
  return below.hit_ratio + part * (above.hit_ratio - below.hit_ratio);
}

/** Why a volume has no estimate yet; null where it has one. */
export function unavailableReason({ nothing, requests, memory, flash }: VolumeAdvice): string | null {
  if (nothing !== null) return nothing;
  if (requests < REQUESTS_MIN) {
    return `${plural(requests, 'request')} observed, at least ${REQUESTS_MIN.toLocaleString('en')} required`;
  }
  return memory.steps.length + flash.steps.length === 0 ? 'no miss-ratio curve yet' : null;
}

/** At most one recommendation per tier; none where no larger size helps. */
export function recommendationsOf(advice: VolumeAdvice, assumed: AdviceAssumptions): Recommendation[] {
  const { memory_latency_us: ofMemory, flash_latency_us: ofFlash, array_latency_us: ofArray } = assumed;
  const has = { memory: advice.memory.today?.size_bytes ?? 0, flash: advice.flash.today?.size_bytes ?? 0 };
  const now = { memory: hitRatioAt(advice.memory, has.memory), flash: hitRatioAt(advice.flash, has.flash) };
  // The curve of flash includes the hits that memory serves first.
  const together = ({ memory, flash }: typeof now) => Math.max(memory, flash);
  const latency = (hits: typeof now) =>
    hits.memory * ofMemory + (together(hits) - hits.memory) * ofFlash + (1 - together(hits)) * ofArray;

  return (['memory', 'flash'] as const).flatMap((kind): Recommendation[] => {
    const side = advice[kind];
    const gain = (sizeBytes: number, hitRatio: number): Gain => {
      const then = { ...now, [kind]: Math.max(now[kind], hitRatio) };
      return {
        sizeBytes,
        moreBytes: sizeBytes - has[kind],
        hits: together(then),
        latencyUs: latency(then),
        avoided: advice.requests_per_s === null ? null : advice.requests_per_s * (together(then) - together(now)),
      };
    };
    const steps: Gain[] = [];
    let [size, hits] = [has[kind], now[kind]];
    for (const step of side.steps) {
      const isNotable = step.size_bytes >= size * SIZE_FACTOR_MIN && step.hit_ratio >= hits + GAIN_MIN;
      if (!isNotable && !(step.size_bytes === side.knee_bytes && step.size_bytes > has[kind])) continue;
      steps.push(gain(step.size_bytes, step.hit_ratio));
      [size, hits] = [step.size_bytes, step.hit_ratio];
    }
    const useful = steps.filter(({ latencyUs }) => latencyUs < latency(now) * (1 - GAIN_MIN));
    const knee = useful.find(({ sizeBytes }) => sizeBytes === side.knee_bytes);
    const target = knee ?? useful[0];
    if (target === undefined) return [];
    return [
      {
        volume: advice.volume,
        kind,
        currentBytes: has[kind],
        measuredHits: side.today?.hit_ratio ?? 0,
        currentHits: together(now),
        currentLatencyUs: latency(now),
        target,
        isKnee: knee !== undefined,
        steps: useful,
      },
    ];
  });
}

export const avoidedPerGib = ({ target }: Recommendation) => (target.avoided ?? 0) / (target.moreBytes / 2 ** 30);
