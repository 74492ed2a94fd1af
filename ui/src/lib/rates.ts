// Rates per second from counters.

import type { Counters, Counts, LatencyCounts, Sample } from './types';

/** Reads per second by source. */
export interface Sources {
  memory: number;
  flash: number;
  /** From memory, but read ahead from the array: no array read is avoided. */
  prefetched: number;
  array: number;
}

export const NO_READS: Sources = { memory: 0, flash: 0, prefetched: 0, array: 0 };

/** Parts of a latency: 99th percentiles of service time, and of the time for which limits or shares held requests. */
export interface LatencyParts {
  service: number;
  held: number;
}

/** Rates per second between two samples; latencies in microseconds as clients see them, null without requests. */
export interface Rates {
  /** Unix seconds. */
  at: number;
  sources: Sources;
  /** Bytes per second by source; unknown in the history. */
  sourceBytes?: Sources;
  reads: number;
  writes: number;
  readBytes: number;
  writeBytes: number;
  backingReads: number;
  backingWrites: number;
  backingBytes: number;
  readP50: number | null;
  readP99: number | null;
  writeP50: number | null;
  writeP99: number | null;
  /** Only if a read was held; unknown in the history. */
  readParts?: LatencyParts | null;
  writeParts?: LatencyParts | null;
  dirtyBytes: number;
}

/** Counters that `sourcesOf` reads. */
export const SOURCE_COUNTERS = ['memory_hits', 'flash_hits', 'prefetched_hits', 'partial_hits', 'misses'] as const;

const mapSources = (value: (source: keyof Sources) => number): Sources => ({
  memory: value('memory'),
  flash: value('flash'),
  prefetched: value('prefetched'),
  array: value('array'),
});

/** Reads from all sources. */
export const totalOf = ({ memory, flash, prefetched, array }: Sources) => memory + flash + prefetched + array;

/** Longest interval between two samples that gives a rate; a longer one is a gap. */
const INTERVAL_MS_MAX = 10_000;
/** Shortest interval: a rate over a few milliseconds is noise. */
const INTERVAL_MS_MIN = 300;

const daemonRun = (sample: Sample) => sample.id.split('-')[0];

/** Applies `compute` to adjacent samples; null across gaps and restarts. */
export function pairwise<T>(
  samples: Sample[],
  compute: (before: Sample, sample: Sample, elapsedMs: number) => T | null,
): (T | null)[] {
  return samples.slice(1).map((sample, index) => {
    const before = samples[index]!;
    const elapsedMs = sample.at_unix_ms - before.at_unix_ms;
    const isComparable =
      daemonRun(before) === daemonRun(sample) && elapsedMs >= INTERVAL_MS_MIN && elapsedMs <= INTERVAL_MS_MAX;
    return isComparable ? compute(before, sample, elapsedMs) : null;
  });
}

/** Reads by source of counters; a partial hit waits for the array. */
export function sourcesOf(counters: Record<(typeof SOURCE_COUNTERS)[number], number>): Sources {
  return {
    memory: counters.memory_hits,
    flash: counters.flash_hits,
    prefetched: counters.prefetched_hits,
    array: counters.misses + counters.partial_hits,
  };
}

/** Bytes read by source. */
export function sourceBytesOf({ source_bytes: bytes }: Pick<Counters, 'source_bytes'>): Sources {
  return { memory: bytes.memory, flash: bytes.flash, prefetched: bytes.prefetched, array: bytes.backing };
}

/** Rates between two states of the same counters. */
export function between(from: Counters, to: Counters, atMs: number, elapsedMs: number): Rates {
  // Removing a volume lowers the sums: rates are never negative.
  const rate = (value: (counters: Counters) => number) => Math.max(0, ((value(to) - value(from)) / elapsedMs) * 1e3);
  const quantile = (op: 'read' | 'write', q: number) => quantileOf(from.latency_counts[op], to.latency_counts[op], q);
  return {
    at: atMs / 1e3,
    sources: mapSources((source) => rate((counters) => sourcesOf(counters)[source])),
    sourceBytes: mapSources((source) => rate((counters) => sourceBytesOf(counters)[source])),
    reads: rate(({ reads }) => reads),
    writes: rate(({ writes }) => writes),
    readBytes: rate(({ read_bytes }) => read_bytes),
    writeBytes: rate(({ write_bytes }) => write_bytes),
    backingReads: rate(({ backing_reads }) => backing_reads),
    backingWrites: rate(({ backing_writes }) => backing_writes),
    backingBytes: rate(({ backing_read_bytes, backing_write_bytes }) => backing_read_bytes + backing_write_bytes),
    readP50: quantile('read', 0.5),
    readP99: quantile('read', 0.99),
    writeP50: quantile('write', 0.5),
    writeP99: quantile('write', 0.99),
    readParts: partsOf(from.latency_counts, to.latency_counts, 'read'),
    writeParts: partsOf(from.latency_counts, to.latency_counts, 'write'),
    dirtyBytes: to.dirty_bytes,
  };
}

/** Requests up to a bound of a histogram, which leaves out bounds of empty buckets. */
function countBelow(counts: Counts, us: number): number {
  return counts.below.findLast((bucket) => bucket.us <= us)?.count ?? 0;
}

/**
 * Quantile of the requests between two states of a histogram. The same as `percentile_us` of the daemon: interpolated
 * linearly within a bucket; in the first bucket its upper bound, in the last one its lower bound.
 */
export function quantileOf(from: Counts, to: Counts, quantile: number): number | null {
  const all = to.all - from.all;
  if (all <= 0) return null;
  const rank = Math.max(1, Math.ceil(quantile * all));
  const bounds = [...new Set([...from.below, ...to.below].map(({ us }) => us))].sort((a, b) => a - b);
  let [floor, below] = [0, 0];
  for (const us of bounds) {
    const count = countBelow(to, us) - countBelow(from, us);
    if (count >= rank) return floor === 0 ? us : floor + ((us - floor) * (rank - below)) / (count - below);
    [floor, below] = [us, count];
  }
  return floor;
}

/** Service and held time between two states; null if nothing was held for a measurable time. */
function partsOf(from: LatencyCounts, to: LatencyCounts, op: 'read' | 'write'): LatencyParts | null {
  const [service, held] = [to[`${op}_service`], to[`${op}_held`]];
  if (!service || !held) return null;
  const before = from[op].all;
  // Before the first held request the daemon reports neither service nor held time.
  const notHeld = { below: held.below.slice(0, 1).map(({ us }) => ({ us, count: before })), all: before, sum_us: 0 };
  const heldBefore = from[`${op}_held`] ?? notHeld;
  const first = held.below[0]?.us ?? 0;
  const isHeld = held.all - heldBefore.all > countBelow(held, first) - countBelow(heldBefore, first);
  const [heldP99, serviceP99] = [
    quantileOf(heldBefore, held, 0.99),
    quantileOf(from[`${op}_service`] ?? from[op], service, 0.99),
  ];
  return isHeld && heldP99 !== null && serviceP99 !== null ? { service: serviceP99, held: heldP99 } : null;
}

/** Hit ratio; null without reads. A prefetched read is no hit, because the array has read its data. */
export function hitRatio(sources: Sources): number | null {
  const all = totalOf(sources);
  return all > 0 ? (sources.memory + sources.flash) / all : null;
}

/** Mean of the last `count` rates: figures that change every second are hard to read. */
export function recent(rates: (Rates | null)[], count: number): Rates | undefined {
  const last = rates.slice(-count).filter((rates) => rates !== null);
  const newest = last.at(-1);
  if (newest === undefined) return undefined;
  const mean = (value: (rates: Rates) => number) => last.reduce((sum, rates) => sum + value(rates), 0) / last.length;
  return {
    ...newest,
    sources: mapSources((source) => mean(({ sources }) => sources[source])),
    sourceBytes: mapSources((source) => mean(({ sourceBytes }) => sourceBytes?.[source] ?? 0)),
    reads: mean(({ reads }) => reads),
    writes: mean(({ writes }) => writes),
    readBytes: mean(({ readBytes }) => readBytes),
    writeBytes: mean(({ writeBytes }) => writeBytes),
    backingReads: mean(({ backingReads }) => backingReads),
    backingWrites: mean(({ backingWrites }) => backingWrites),
    backingBytes: mean(({ backingBytes }) => backingBytes),
  };
}
