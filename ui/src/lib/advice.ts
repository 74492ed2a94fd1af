// What more memory or flash would bring a volume beside what it has: curves say what a size hits, and what the other kind hits anyway is no gain.

import type { AdviceAssumptions, AdviceSide, VolumeAdvice } from './types';

export type Kind = 'memory' | 'flash';

/** A size, and what it would do in place of today's. */
export interface Gain {
  sizeBytes: number;
  moreBytes: number;
  /** Requests that memory or flash serve whole then, of all. */
  hits: number;
  /** Mean latency of a request. */
  latencyUs: number;
  /** Requests a second that the array gets no more; null where nothing is known of times. */
  spared: number | null;
}

/** What a volume could have more of. */
export interface Offer {
  volume: string;
  kind: Kind;
  todayBytes: number;
  /** Reads that today's served whole since the daemon's start, as they were counted. */
  counted: number;
  /** As the curves have it, which gains are held against. */
  todayHits: number;
  todayLatencyUs: number;
  /** The knee, or the first step where that is passed already or there is none. */
  worth: Gain;
  isKnee: boolean;
  /** Further ones, by growing size. */
  steps: Gain[];
}

/** Fewer requests draw no curve that could be relied upon. */
export const REQUESTS_MIN = 1_000;
/** Steps that are told are so much larger than the one before, and so much better; and whoever waits is helped by as much. */
const LARGER = 1.25;
const BETTER = 0.01;

/** What a size hits, straight from step to step. */
function hitsOf({ steps }: AdviceSide, size: number): number {
  const at = steps.findIndex(({ size_bytes }) => size_bytes >= size);
  if (at < 0) return steps.at(-1)?.hit_ratio ?? 0;
  const [below, above] = [steps[at - 1] ?? { size_bytes: 0, hit_ratio: 0 }, steps[at]!];
  const part = (size - below.size_bytes) / (above.size_bytes - below.size_bytes);
  return below.hit_ratio + part * (above.hit_ratio - below.hit_ratio);
}

/** Why nothing can be said of a volume; null where something can. */
export function nothingOf({ nothing, requests, memory, flash }: VolumeAdvice): string | null {
  if (nothing !== null) return nothing;
  if (requests < REQUESTS_MIN) {
    return `${requests.toLocaleString('en')} requests are too few to judge by; ${REQUESTS_MIN.toLocaleString('en')} are needed at least`;
  }
  return memory.steps.length + flash.steps.length === 0 ? 'it has drawn no curve yet' : null;
}

/** What more of each kind would bring; a kind of which no further size brings anything is left out. */
export function offersOf(advice: VolumeAdvice, assumed: AdviceAssumptions): Offer[] {
  const { memory_latency_us: ofMemory, flash_latency_us: ofFlash, array_latency_us: ofArray } = assumed;
  const has = { memory: advice.memory.today?.size_bytes ?? 0, flash: advice.flash.today?.size_bytes ?? 0 };
  const now = { memory: hitsOf(advice.memory, has.memory), flash: hitsOf(advice.flash, has.flash) };
  // What memory hits is asked of nobody else; flash hits what its own curve says, memory's part of it included.
  const together = ({ memory, flash }: typeof now) => Math.max(memory, flash);
  const latency = (hits: typeof now) =>
    hits.memory * ofMemory + (together(hits) - hits.memory) * ofFlash + (1 - together(hits)) * ofArray;

  return (['memory', 'flash'] as const).flatMap((kind): Offer[] => {
    const side = advice[kind];
    const gain = (sizeBytes: number, hitRatio: number): Gain => {
      const then = { ...now, [kind]: Math.max(now[kind], hitRatio) };
      return {
        sizeBytes,
        moreBytes: sizeBytes - has[kind],
        hits: together(then),
        latencyUs: latency(then),
        spared: advice.requests_per_s === null ? null : advice.requests_per_s * (together(then) - together(now)),
      };
    };
    const steps: Gain[] = [];
    let [size, hits] = [has[kind], now[kind]];
    for (const step of side.steps) {
      const isTold = step.size_bytes >= size * LARGER && step.hit_ratio >= hits + BETTER;
      if (!isTold && !(step.size_bytes === side.knee_bytes && step.size_bytes > has[kind])) continue;
      steps.push(gain(step.size_bytes, step.hit_ratio));
      [size, hits] = [step.size_bytes, step.hit_ratio];
    }
    const useful = steps.filter(({ latencyUs }) => latencyUs < latency(now) * (1 - BETTER));
    const knee = useful.find(({ sizeBytes }) => sizeBytes === side.knee_bytes);
    const worth = knee ?? useful[0];
    if (worth === undefined) return [];
    return [
      {
        volume: advice.volume,
        kind,
        todayBytes: has[kind],
        counted: side.today?.hit_ratio ?? 0,
        todayHits: together(now),
        todayLatencyUs: latency(now),
        worth,
        isKnee: knee !== undefined,
        steps: useful,
      },
    ];
  });
}

export const sparedPerGib = ({ worth }: Offer) => (worth.spared ?? 0) / (worth.moreBytes / 2 ** 30);
