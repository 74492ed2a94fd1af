// Comparison of a time range with the range of equal length before it.

import { api, historyPath, type Scope } from './api';
import { FIGURES } from './loads';
import { quantileOf } from './rates';
import { stepOf, type Interval } from './time-range.svelte';
import type { Counts, History, HistoryLatency } from './types';
import { bytes, bytesRate, latency, rate } from './units';

/** A figure, or a volume's requests, before and after; null where unknown. */
export interface Change {
  label: string;
  before: number | null;
  after: number | null;
  unit: (value: number) => string;
}

/** Concurrent history requests: the daemon has other work. */
const CONCURRENT_REQUESTS_MAX = 4;
const NOTHING: Counts = { below: [], all: 0, sum_us: 0 };

interface Figure {
  label: string;
  unit: (value: number) => string;
  /** Added to both values before the ratio, so that changes near zero do not dominate. */
  offset: number;
  of: (report: History, steps: number[]) => number | null;
}

/** Mean over steps, weighted by the seconds that each covers. */
function mean(names: string[]): Figure['of'] {
  return (report, steps) => {
    const seen = steps.reduce((sum, at) => sum + report.covered_seconds[at]!, 0);
    if (seen === 0) return null;
    const all = names.flatMap((name) =>
      steps.map((at) => report.series[name]!.mean[at]! * report.covered_seconds[at]!),
    );
    return all.reduce((sum, part) => sum + part, 0) / seen;
  };
}

/** The 99th percentile of all requests of these steps: percentiles are never averaged. */
function p99(op: 'read' | 'write'): Figure['of'] {
  return (report, steps) => {
    const figures: HistoryLatency | undefined = report.latency[op];
    if (figures === undefined) return null;
    const counts = steps.map((at) => figures.counts[at]!);
    const upTo = (end: number) =>
      counts.reduce((sum, of) => sum + of.slice(0, end).reduce((all, count) => all + count, 0), 0);
    const below = figures.bounds_us.map((us, index) => ({ us, count: upTo(index + 1) }));
    return quantileOf(NOTHING, { below, all: upTo(figures.bounds_us.length + 1), sum_us: 0 }, 0.99);
  };
}

const KIB = 1024;
const COMPARED_FIGURES: Figure[] = [
  { label: 'Reads', unit: rate, offset: 1, of: mean(['reads']) },
  { label: 'Writes', unit: rate, offset: 1, of: mean(['writes']) },
  { label: 'Read throughput', unit: bytesRate, offset: 64 * KIB, of: mean(['read_bytes']) },
  { label: 'Write throughput', unit: bytesRate, offset: 64 * KIB, of: mean(['write_bytes']) },
  { label: 'Reads from memory', unit: rate, offset: 1, of: mean(['memory_hits']) },
  { label: 'Reads from flash', unit: rate, offset: 1, of: mean(['flash_hits']) },
  { label: 'Prefetched reads', unit: rate, offset: 1, of: mean(['prefetched_hits']) },
  { label: 'Reads from the array', unit: rate, offset: 1, of: mean(['misses', 'partial_hits']) },
  { label: 'Array requests', unit: rate, offset: 1, of: mean(['backing_reads', 'backing_writes']) },
  { label: 'Dirty data', unit: bytes, offset: 1024 * KIB, of: mean(['dirty_bytes']) },
  { label: 'Read latency, p99', unit: latency, offset: 100, of: p99('read') },
  { label: 'Write latency, p99', unit: latency, offset: 100, of: p99('write') },
];

/** History of the range and of the range before it, with the indices of the steps of each. */
async function historyOfBothRanges(scope: Scope, { from, to }: Interval, names: string[]) {
  const length = to - from;
  const query = {
    from: String(from - length),
    to: String(to),
    step: `${stepOf(2 * length)}s`,
    series: names.join(','),
  };
  const report = await api.history(historyPath(scope, query));
  const steps = report.at_unix_seconds.map((at, index) => ({ at, index }));
  return {
    report,
    before: steps.filter(({ at }) => at >= from - length && at < from).map(({ index }) => index),
    after: steps.filter(({ at }) => at >= from).map(({ index }) => index),
  };
}

/** Size of a change in doublings or halvings, damped near zero by `offset`. */
function doublings({ before, after, offset }: Change & { offset: number }): number {
  return Math.abs(Math.log2(((after ?? 0) + offset) / ((before ?? 0) + offset)));
}

/** The figures of a scope, the largest relative change first. */
export async function figuresThatChanged(scope: Scope, range: Interval): Promise<Change[]> {
  const { report, before, after } = await historyOfBothRanges(scope, range, FIGURES);
  return COMPARED_FIGURES.map(({ label, unit, offset, of }) => ({
    label,
    unit,
    offset,
    before: of(report, before),
    after: of(report, after),
  })).toSorted((a, b) => doublings(b) - doublings(a));
}

/** Request rates of volumes, the largest absolute change first. */
export async function volumesThatChanged(names: string[], range: Interval): Promise<Change[]> {
  const waiting = [...names];
  const changes: Change[] = [];
  const of = mean(['reads', 'writes']);
  const loadWaiting = async () => {
    for (let name = waiting.pop(); name !== undefined; name = waiting.pop()) {
      // Volumes without history are left out.
      const found = await historyOfBothRanges({ volume: name }, range, ['reads', 'writes']).catch(() => null);
      if (found === null) continue;
      const [before, after] = [of(found.report, found.before), of(found.report, found.after)];
      changes.push({ label: name, unit: rate, before, after });
    }
  };
  await Promise.all(Array.from({ length: CONCURRENT_REQUESTS_MAX }, loadWaiting));
  const difference = ({ before, after }: Change) => Math.abs((after ?? 0) - (before ?? 0));
  return changes.toSorted((a, b) => difference(b) - difference(a));
}
