// Comparison of a time range with the range of equal length before it.

import { api, historyPath, type Scope } from './api';
import { SERIES } from './loads';
import { quantileOf } from './rates';
import { stepOf, type Interval } from './time-range.svelte';
import type { Counts, History, HistoryLatency } from './types';
import { bytes, bytesRate, latency, rate } from './units';

/** A figure, or the request rate of a volume, in both ranges; null where unknown. */
export interface Change {
  label: string;
  before: number | null;
  after: number | null;
  formatValue: (value: number) => string;
}

/** Limit of concurrent history requests, which leaves the daemon time for other work. */
const CONCURRENT_REQUESTS_MAX = 4;
const NO_REQUESTS: Counts = { below: [], all: 0, sum_us: 0 };

interface Figure {
  label: string;
  formatValue: (value: number) => string;
  /** Added to both values before the ratio, so that changes near zero do not dominate. */
  offset: number;
  evaluate: (report: History, steps: number[]) => number | null;
}

/** Sum of the means of these series over steps, weighted by the seconds that each step covers. */
function mean(names: string[]): Figure['evaluate'] {
  return (report, steps) => {
    const coveredSeconds = steps.reduce((sum, step) => sum + report.covered_seconds[step]!, 0);
    if (coveredSeconds === 0) return null;
    const weighted = names.flatMap((name) =>
      steps.map((step) => report.series[name]!.mean[step]! * report.covered_seconds[step]!),
    );
    return weighted.reduce((sum, value) => sum + value, 0) / coveredSeconds;
  };
}

/** The 99th percentile of all requests of these steps: percentiles are never averaged. */
function p99(op: 'read' | 'write'): Figure['evaluate'] {
  return (report, steps) => {
    const figures: HistoryLatency | undefined = report.latency[op];
    if (figures === undefined) return null;
    const histograms = steps.map((step) => figures.counts[step]!);
    const sumBuckets = (end: number) =>
      histograms.reduce((sum, counts) => sum + counts.slice(0, end).reduce((all, count) => all + count, 0), 0);
    const below = figures.bounds_us.map((us, index) => ({ us, count: sumBuckets(index + 1) }));
    return quantileOf(NO_REQUESTS, { below, all: sumBuckets(figures.bounds_us.length + 1), sum_us: 0 }, 0.99);
  };
}

const KIB = 1024;
const COMPARED_FIGURES: Figure[] = [
  { label: 'Reads', formatValue: rate, offset: 1, evaluate: mean(['reads']) },
  { label: 'Writes', formatValue: rate, offset: 1, evaluate: mean(['writes']) },
  { label: 'Read throughput', formatValue: bytesRate, offset: 64 * KIB, evaluate: mean(['read_bytes']) },
  { label: 'Write throughput', formatValue: bytesRate, offset: 64 * KIB, evaluate: mean(['write_bytes']) },
  { label: 'Reads from memory', formatValue: rate, offset: 1, evaluate: mean(['memory_hits']) },
  { label: 'Reads from flash', formatValue: rate, offset: 1, evaluate: mean(['flash_hits']) },
  { label: 'Prefetched reads', formatValue: rate, offset: 1, evaluate: mean(['prefetched_hits']) },
  { label: 'Reads from the array', formatValue: rate, offset: 1, evaluate: mean(['misses', 'partial_hits']) },
  { label: 'Array requests', formatValue: rate, offset: 1, evaluate: mean(['backing_reads', 'backing_writes']) },
  { label: 'Dirty data', formatValue: bytes, offset: 1024 * KIB, evaluate: mean(['dirty_bytes']) },
  { label: 'Read latency, p99', formatValue: latency, offset: 100, evaluate: p99('read') },
  { label: 'Write latency, p99', formatValue: latency, offset: 100, evaluate: p99('write') },
];

/** History of the range and of the range before it, with the indices of the steps in each. */
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

/** False if both values are zero or unknown. */
const isActive = ({ before, after }: Change) => Boolean(before || after);

/** Size of a change in doublings or halvings, damped near zero by `offset`. */
function doublings({ before, after, offset }: Change & { offset: number }): number {
  return Math.abs(Math.log2(((after ?? 0) + offset) / ((before ?? 0) + offset)));
}

/** The figures of a scope, the largest relative change first. */
export async function compareFigures(scope: Scope, range: Interval): Promise<Change[]> {
  const { report, before, after } = await historyOfBothRanges(scope, range, SERIES);
  return COMPARED_FIGURES.map(({ label, formatValue, offset, evaluate }) => ({
    label,
    formatValue,
    offset,
    before: evaluate(report, before),
    after: evaluate(report, after),
  }))
    .filter(isActive)
    .toSorted((a, b) => doublings(b) - doublings(a));
}

/** Request rates of active volumes, the largest absolute change first. */
export async function compareVolumes(names: string[], range: Interval): Promise<Change[]> {
  const waiting = [...names];
  const changes: Change[] = [];
  const requestRate = mean(['reads', 'writes']);
  const loadWaiting = async () => {
    for (let name = waiting.pop(); name !== undefined; name = waiting.pop()) {
      // Volumes without history are left out.
      const history = await historyOfBothRanges({ volume: name }, range, ['reads', 'writes']).catch(() => null);
      if (history === null) continue;
      const [before, after] = [requestRate(history.report, history.before), requestRate(history.report, history.after)];
      changes.push({ label: name, formatValue: rate, before, after });
    }
  };
  await Promise.all(Array.from({ length: CONCURRENT_REQUESTS_MAX }, loadWaiting));
  const difference = ({ before, after }: Change) => Math.abs((after ?? 0) - (before ?? 0));
  return changes.filter(isActive).toSorted((a, b) => difference(b) - difference(a));
}
