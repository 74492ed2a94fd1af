// Request rates and latency over time: of all volumes, of a datastore, or of one volume.

import { live } from '../feed/live.svelte';
import { datastores } from './datastores.svelte';
import type { Kind, Source } from './points';
import { between, pairwise, SOURCE_COUNTERS, type Rates } from './rates';
import type { Counters, History, HistoryLatency, Sample } from './types';

/** History series that `Rates` is computed from. */
export const FIGURES = [
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

/** Bounds of the buckets of the fastest and the slowest request; null without requests. */
function extremes(latency: HistoryLatency | undefined, at: number): { min: number | null; max: number | null } {
  const counts = latency?.counts[at] ?? [];
  const [first, last] = [counts.findIndex((count) => count > 0), counts.findLastIndex((count) => count > 0)];
  const bounds = latency?.bounds_us ?? [];
  // The last bucket has no upper bound.
  return {
    // Below the first bound nothing more is known.
    min: first < 0 ? null : bounds[Math.max(0, first - 1)]!,
    max: last < 0 ? null : bounds[Math.min(last, bounds.length - 1)]!,
  };
}

function fromHistory(report: History, index: number, kind: Kind): Rates {
  const { read, write } = report.latency;
  const of = (name: string) => report.series[name]?.[kind][index] ?? 0;
  const quantile = (latency: HistoryLatency | undefined, key: 'p50_us' | 'p99_us') =>
    kind === 'mean' ? (latency?.[key][index] ?? null) : extremes(latency, index)[kind === 'min' ? 'min' : 'max'];
  return {
    at: report.at_unix_seconds[index]!,
    // Minimum and maximum of a sum are unknown; the sums of the parts' own bound them.
    sources: {
      memory: of('memory_hits'),
      flash: of('flash_hits'),
      prefetched: of('prefetched_hits'),
      array: of('misses') + of('partial_hits'),
    },
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
}

/** Rates of the counters that `of` selects from each sample. */
export const loads = (of: (sample: Sample) => Counters | undefined): Source<Rates> => ({
  figures: FIGURES,
  fromHistory,
  live: () =>
    pairwise(
      live.samples.filter((sample) => of(sample) !== undefined),
      (before, sample, tookMs) => between(of(before)!, of(sample)!, sample.at_unix_ms, tookMs),
    ),
});

/** Rates of a datastore, at the polling interval of its view. */
export const loadsOf = (datastore: string): Source<Rates> => ({
  figures: FIGURES,
  fromHistory,
  live: () => datastores.samples.map(({ rows }) => rows.find((row) => row.datastore.name === datastore)?.rates ?? null),
});
