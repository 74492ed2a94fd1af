// Rates per second from counters.

import type { Counters, Counts, Sample } from './types';

/** Reads per second by source. */
export interface Sources {
  memory: number;
  flash: number;
  /** From memory, but read ahead from the array: no array read is avoided. */
  prefetched: number;
  array: number;
}

export const NO_READS: Sources = { memory: 0, flash: 0, prefetched: 0, array: 0 };

/** Rates per second between two samples; latencies in microseconds, null without requests. */
export interface Rates {
  /** Unix seconds. */
  at: number;
  sources: Sources;
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
const GAP_MS_MAX = 10_000;
/** Shortest interval: a rate over a few milliseconds is noise. */
const GAP_MS_MIN = 300;

const daemonRun = (sample: Sample) => sample.id.split('-')[0];

/** Applies `compute` to adjacent samples; null across gaps and restarts. */
export function pairwise<T>(
  samples: Sample[],
  compute: (before: Sample, sample: Sample, tookMs: number) => T | null,
): (T | null)[] {
  return samples.slice(1).map((sample, index) => {
    const before = samples[index]!;
    const took = sample.at_unix_ms - before.at_unix_ms;
    const isComparable = daemonRun(before) === daemonRun(sample) && took >= GAP_MS_MIN && took <= GAP_MS_MAX;
    return isComparable ? compute(before, sample, took) : null;
  });
}

/** Reads by source of counters; a partial hit waits for the array. */
export function sourcesOf(of: Record<(typeof SOURCE_COUNTERS)[number], number>): Sources {
  return {
    memory: of.memory_hits,
    flash: of.flash_hits,
    prefetched: of.prefetched_hits,
    array: of.misses + of.partial_hits,
  };
}

/** Rates between two states of the same counters. */
export function between(from: Counters, to: Counters, atMs: number, tookMs: number): Rates {
  // Removing a volume lowers the sums: rates are never negative.
  const rate = (counter: (of: Counters) => number) => Math.max(0, ((counter(to) - counter(from)) / tookMs) * 1e3);
  const quantile = (op: 'read' | 'write', q: number) => quantileOf(from.latency_counts[op], to.latency_counts[op], q);
  return {
    at: atMs / 1e3,
    sources: mapSources((source) => rate((of) => sourcesOf(of)[source])),
    reads: rate((of) => of.reads),
    writes: rate((of) => of.writes),
    readBytes: rate((of) => of.read_bytes),
    writeBytes: rate((of) => of.write_bytes),
    backingReads: rate((of) => of.backing_reads),
    backingWrites: rate((of) => of.backing_writes),
    backingBytes: rate((of) => of.backing_read_bytes + of.backing_write_bytes),
    readP50: quantile('read', 0.5),
    readP99: quantile('read', 0.99),
    writeP50: quantile('write', 0.5),
    writeP99: quantile('write', 0.99),
    dirtyBytes: to.dirty_bytes,
  };
}

/** Quantile of the requests between two states of a histogram, interpolated linearly like Prometheus. */
export function quantileOf(from: Counts, to: Counts, quantile: number): number | null {
  const all = to.all - from.all;
  if (all <= 0) return null;
  const rank = quantile * all;
  let [floor, below] = [0, 0];
  for (const [index, bucket] of to.below.entries()) {
    const count = bucket.count - (from.below[index]?.count ?? 0);
    if (count >= rank) return floor + ((bucket.us - floor) * (rank - below)) / Math.max(1, count - below);
    [floor, below] = [bucket.us, count];
  }
  return floor;
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
  const mean = (of: (rates: Rates) => number) => last.reduce((sum, rates) => sum + of(rates), 0) / last.length;
  return {
    ...newest,
    sources: mapSources((source) => mean((of) => of.sources[source])),
    reads: mean((of) => of.reads),
    writes: mean((of) => of.writes),
    readBytes: mean((of) => of.readBytes),
    writeBytes: mean((of) => of.writeBytes),
    backingReads: mean((of) => of.backingReads),
    backingWrites: mean((of) => of.backingWrites),
    backingBytes: mean((of) => of.backingBytes),
  };
}
