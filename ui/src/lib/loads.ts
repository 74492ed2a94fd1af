// Request rates and latency over time: of all volumes, of a datastore, or of one volume.

import { live } from '../feed/live.svelte';
import { datastores } from './datastores.svelte';
import type { Aggregate, Source } from './points';
import { between, pairwise, SOURCE_COUNTERS, type Rates } from './rates';
import type { Counters, History, HistoryLatency, Sample } from './types';

/** History series that `Rates` is computed from. */
export const SERIES = [
  'reads',
  'writes',
  'read_bytes',
  'write_bytes',
  ...SOURCE_COUNTERS,
  'backing_reads',
  'backing_writes',
  'backing_read_bytes',
  'backing_write_bytes',
  'dirty_bytes',
  'read_latency',
  'write_latency',
];

/** Bounds of the buckets of the fastest and the slowest request of a step; null without requests. */
function extremes(latency: HistoryLatency | undefined, step: number): { min: number | null; max: number | null } {
  const counts = latency?.counts[step] ?? [];
  const [first, last] = [counts.findIndex((count) => count > 0), counts.findLastIndex((count) => count > 0)];
  const bounds = latency?.bounds_us ?? [];
  // The last bucket has no upper bound.
  return {
    // Below the first bound nothing more is known.
    min: first < 0 ? null : bounds[Math.max(0, first - 1)]!,
    max: last < 0 ? null : bounds[Math.min(last, bounds.length - 1)]!,
  };
}

function fromHistory(report: History, index: number, aggregate: Aggregate): Rates {
  const { read, write } = report.latency;
  const valueOf = (name: string) => report.series[name]?.[aggregate][index] ?? 0;
  const quantile = (latency: HistoryLatency | undefined, key: 'p50_us' | 'p99_us') =>
    aggregate === 'mean'
      ? (latency?.[key][index] ?? null)
      : extremes(latency, index)[aggregate === 'min' ? 'min' : 'max'];
  return {
    at: report.at_unix_seconds[index]!,
    // Minimum and maximum of a sum are unknown; the sums of the minima and of the maxima bound them.
    sources: {
      memory: valueOf('memory_hits'),
      flash: valueOf('flash_hits'),
      prefetched: valueOf('prefetched_hits'),
      array: valueOf('misses') + valueOf('partial_hits'),
    },
    reads: valueOf('reads'),
    writes: valueOf('writes'),
    readBytes: valueOf('read_bytes'),
    writeBytes: valueOf('write_bytes'),
    backingReads: valueOf('backing_reads'),
    backingWrites: valueOf('backing_writes'),
    backingBytes: valueOf('backing_read_bytes') + valueOf('backing_write_bytes'),
    readP50: quantile(read, 'p50_us'),
    readP99: quantile(read, 'p99_us'),
    writeP50: quantile(write, 'p50_us'),
    writeP99: quantile(write, 'p99_us'),
    dirtyBytes: valueOf('dirty_bytes'),
  };
}

/** Rates of the counters that `select` takes from each sample. */
export const loads = (select: (sample: Sample) => Counters | undefined): Source<Rates> => ({
  series: SERIES,
  fromHistory,
  live: () =>
    pairwise(
      live.samples.filter((sample) => select(sample) !== undefined),
      (before, sample, elapsedMs) => between(select(before)!, select(sample)!, sample.at_unix_ms, elapsedMs),
    ),
});

/** Rates of a datastore, at the polling interval of its view. */
export const loadsOf = (datastore: string): Source<Rates> => ({
  series: SERIES,
  fromHistory,
  live: () => datastores.samples.map(({ rows }) => rows.find((row) => row.datastore.name === datastore)?.rates ?? null),
});
