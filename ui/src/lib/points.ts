// From the history's columns, and from what came live since, to the points that charts show.

import type { Rates } from './rates';
import type { History, PastLatency } from './types';

/** A step of time. What the least and the busiest of its seconds had is only known of longer ones. */
export interface Point {
  /** When it begins, in seconds since 1970. */
  at: number;
  mean: Rates | null;
  least: Rates | null;
  most: Rates | null;
}

/** A pause of the live figures that is a gap. */
const LIVE_GAP_SECONDS = 10;

/** What is asked of the history: all that rates are made of. */
export const FIGURES = [
  'reads',
  'writes',
  'read_bytes',
  'write_bytes',
  'memory_hits',
  'flash_hits',
  'partial_hits',
  'misses',
  'backing_reads',
  'backing_writes',
  'backing_read_bytes',
  'backing_write_bytes',
  'dirty_bytes',
  'read_latency',
  'write_latency',
];

/** The ends of the buckets that the fastest and the slowest request fell into; null without requests. */
function ends(latency: PastLatency | undefined, at: number): { least: number | null; most: number | null } {
  const counts = latency?.counts[at] ?? [];
  const [first, last] = [counts.findIndex((count) => count > 0), counts.findLastIndex((count) => count > 0)];
  const bounds = latency?.bounds_us ?? [];
  // The last bucket is open: it tells that something took longer than the one before.
  return {
    least: first < 0 ? null : (bounds[first - 1] ?? 1),
    most: last < 0 ? null : bounds[Math.min(last, bounds.length - 1)]!,
  };
}

/** The history's steps as points. */
export function pointsOf(report: History): Point[] {
  const { read, write } = report.latency;
  return report.at_unix_seconds.map((start, at) => {
    const rates = (kind: 'mean' | 'min' | 'max'): Rates => {
      const of = (name: string) => report.series[name]?.[kind][at] ?? 0;
      const quantile = (latency: PastLatency | undefined, key: 'p50_us' | 'p99_us') =>
        kind === 'mean' ? (latency?.[key][at] ?? null) : ends(latency, at)[kind === 'min' ? 'least' : 'most'];
      return {
        at: start,
        // The least and the most of a sum are not told: these are at most as far apart as the figures' own.
        sources: { memory: of('memory_hits'), flash: of('flash_hits'), array: of('misses') + of('partial_hits') },
        reads: of('reads'),
        writes: of('writes'),
        readBytes: of('read_bytes'),
        writeBytes: of('write_bytes'),
        backingReads: of('backing_reads'),
        backingWrites: of('backing_writes'),
        backingBytes: of('backing_read_bytes') + of('backing_write_bytes'),
        readP50: quantile(read, 'p50_us'),
        readP99: quantile(read, 'p99_us'),
        writeP50: quantile(write, 'p50_us'),
        writeP99: quantile(write, 'p99_us'),
        dirtyBytes: of('dirty_bytes'),
      };
    };
    const isLong = report.step_seconds > 1;
    return { at: start, mean: rates('mean'), least: isLong ? rates('min') : null, most: isLong ? rates('max') : null };
  });
}

/** Points of the history and, where those are seconds, live ones; a point without figures breaks the line where nothing is known. */
export function joined(past: Point[], step: number, rates: (Rates | null)[], from: number, to: number): Point[] {
  const known = new Map(past.map((point) => [point.at, point]));
  if (step === 1) {
    for (const mean of rates) {
      if (mean === null) continue;
      const at = Math.floor(mean.at);
      known.set(at, { at, mean, least: null, most: null });
    }
  }
  // The one that it begins in, too, so that lines run to the edge.
  const shown = [...known.values()].filter(({ at }) => at > from - step && at < to);
  shown.sort((a, b) => a.at - b.at);
  const gap = step === 1 ? LIVE_GAP_SECONDS : step;
  return shown.flatMap((point, index) => {
    const before = shown[index - 1];
    if (before === undefined || point.at - before.at <= gap) return [point];
    return [{ at: before.at + step, mean: null, least: null, most: null }, point];
  });
}
