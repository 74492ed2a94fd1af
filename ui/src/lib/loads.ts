// What clients ask for and how long they wait, over time: of all volumes together, of a datastore's, or of one.

import { live } from '../feed/live.svelte';
import { datastores } from './datastores.svelte';
import type { Kind, Source } from './points';
import { between, neighbours, type Rates } from './rates';
import type { Counters, History, PastLatency, Sample } from './types';

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

function told(report: History, index: number, kind: Kind): Rates {
  const { read, write } = report.latency;
  const of = (name: string) => report.series[name]?.[kind][index] ?? 0;
  const quantile = (latency: PastLatency | undefined, key: 'p50_us' | 'p99_us') =>
    kind === 'mean' ? (latency?.[key][index] ?? null) : ends(latency, index)[kind === 'min' ? 'least' : 'most'];
  return {
    at: report.at_unix_seconds[index]!,
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
}

/** Of what `of` finds in samples. */
export const loads = (of: (sample: Sample) => Counters | undefined): Source<Rates> => ({
  figures: FIGURES,
  told,
  live: () =>
    neighbours(
      live.samples.filter((sample) => of(sample) !== undefined),
      (before, sample, tookMs) => between(of(before)!, of(sample)!, sample.at_unix_ms, tookMs),
    ),
});

/** Of a datastore, as often as their view looks at them. */
export const loadsOf = (datastore: string): Source<Rates> => ({
  figures: FIGURES,
  told,
  live: () => datastores.looks.map(({ rows }) => rows.find((row) => row.datastore.name === datastore)?.rates ?? null),
});
