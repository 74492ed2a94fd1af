// From counters to what happened in a second.

import type { Counters, Counts, Sample } from './types';

/** Reads by where they came from, a second each. */
export interface Sources {
  memory: number;
  flash: number;
  array: number;
}

/** What went on between two samples, a second each; times in microseconds, null where nothing was asked. */
export interface Rates {
  /** Unix time in seconds, as charts have it. */
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

/** Longest time between two samples of which a rate is still told; past it the charts have a gap. */
const GAP_MS_MAX = 10_000;
/** Shortest one: the first two samples may lie closer together, and a rate over milliseconds is noise. */
const GAP_MS_MIN = 300;

const life = (sample: Sample) => sample.id.split('-')[0];

/** What is found between neighbouring samples; null where they say nothing of the time between. */
export function neighbours<T>(
  samples: Sample[],
  found: (before: Sample, sample: Sample, tookMs: number) => T | null,
): (T | null)[] {
  return samples.slice(1).map((sample, index) => {
    const before = samples[index]!;
    const took = sample.at_unix_ms - before.at_unix_ms;
    const isTold = life(before) === life(sample) && took >= GAP_MS_MIN && took <= GAP_MS_MAX;
    return isTold ? found(before, sample, took) : null;
  });
}

/** What went on between two states of the same counters. */
export function between(from: Counters, to: Counters, atMs: number, tookMs: number): Rates {
  // A volume that is removed takes its counts out of the sums: no rate is below zero.
  const rate = (counter: (of: Counters) => number) => Math.max(0, ((counter(to) - counter(from)) / tookMs) * 1e3);
  const quantile = (op: 'read' | 'write', q: number) => quantileOf(from.latency_counts[op], to.latency_counts[op], q);
  return {
    at: atMs / 1e3,
    sources: {
      memory: rate((of) => of.memory_hits),
      flash: rate((of) => of.flash_hits),
      // A read that a cache served in part had to wait for the array.
      array: rate((of) => of.misses + of.partial_hits),
    },
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

/** A quantile of the requests between two states of a histogram, straight inside its bucket, as Prometheus does it. */
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

/** Share of reads that no array had to serve; null where nothing was read. */
export function hitRatio({ memory, flash, array }: Sources): number | null {
  const all = memory + flash + array;
  return all > 0 ? (memory + flash) / all : null;
}

/** The mean of the last so many rates: what stands in figures, so that they can be read. */
export function recent(rates: (Rates | null)[], count: number): Rates | undefined {
  const last = rates.slice(-count).filter((rates) => rates !== null);
  const newest = last.at(-1);
  if (newest === undefined) return undefined;
  const mean = (of: (rates: Rates) => number) => last.reduce((sum, rates) => sum + of(rates), 0) / last.length;
  return {
    ...newest,
    sources: {
      memory: mean((of) => of.sources.memory),
      flash: mean((of) => of.sources.flash),
      array: mean((of) => of.sources.array),
    },
    reads: mean((of) => of.reads),
    writes: mean((of) => of.writes),
    readBytes: mean((of) => of.readBytes),
    writeBytes: mean((of) => of.writeBytes),
    backingReads: mean((of) => of.backingReads),
    backingWrites: mean((of) => of.backingWrites),
    backingBytes: mean((of) => of.backingBytes),
  };
}
