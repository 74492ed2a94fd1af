// What changed in a part of time against as much time before it.

import { api, pastOf, type Subject } from './api';
import { FIGURES } from './loads';
import { quantileOf } from './rates';
import { stepOf, type Part } from './span.svelte';
import type { Counts, History, PastLatency } from './types';
import { bytes, bytesRate, rate, time } from './units';

/** A figure, or a volume's requests, before and then; null where nothing is known. */
export interface Change {
  label: string;
  before: number | null;
  after: number | null;
  unit: (value: number) => string;
}

/** Volumes that are asked for, so many at once: who is asked has other things to do. */
const AT_ONCE = 4;
const NOTHING: Counts = { below: [], all: 0, sum_us: 0 };

interface Figure {
  label: string;
  unit: (value: number) => string;
  /** A difference smaller than this is none. */
  least: number;
  of: (report: History, steps: number[]) => number | null;
}

/** The mean over these steps, each as long as it was seen. */
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

/** A quantile of all requests of these steps: percentiles are never averaged. */
function slow(op: 'read' | 'write'): Figure['of'] {
  return (report, steps) => {
    const latency: PastLatency | undefined = report.latency[op];
    if (latency === undefined) return null;
    const counts = steps.map((at) => latency.counts[at]!);
    const upTo = (end: number) =>
      counts.reduce((sum, of) => sum + of.slice(0, end).reduce((all, count) => all + count, 0), 0);
    const below = latency.bounds_us.map((us, index) => ({ us, count: upTo(index + 1) }));
    return quantileOf(NOTHING, { below, all: upTo(latency.bounds_us.length + 1), sum_us: 0 }, 0.99);
  };
}

const KIB = 1024;
const KNOWN: Figure[] = [
  { label: 'Reads', unit: rate, least: 1, of: mean(['reads']) },
  { label: 'Writes', unit: rate, least: 1, of: mean(['writes']) },
  { label: 'Read', unit: bytesRate, least: 64 * KIB, of: mean(['read_bytes']) },
  { label: 'Written', unit: bytesRate, least: 64 * KIB, of: mean(['write_bytes']) },
  { label: 'Reads from memory', unit: rate, least: 1, of: mean(['memory_hits']) },
  { label: 'Reads from flash', unit: rate, least: 1, of: mean(['flash_hits']) },
  { label: 'Reads from the array', unit: rate, least: 1, of: mean(['misses', 'partial_hits']) },
  { label: 'Requests to the array', unit: rate, least: 1, of: mean(['backing_reads', 'backing_writes']) },
  { label: 'Not yet on the array', unit: bytes, least: 1024 * KIB, of: mean(['dirty_bytes']) },
  { label: 'Read latency, p99', unit: time, least: 100, of: slow('read') },
  { label: 'Write latency, p99', unit: time, least: 100, of: slow('write') },
];

/** The part and as much before it, with its steps in both. */
async function halves(subject: Subject, { from, to }: Part, names: string[]) {
  const length = to - from;
  const query = {
    from: String(from - length),
    to: String(to),
    step: `${stepOf(2 * length)}s`,
    series: names.join(','),
  };
  const report = await api.history(pastOf(subject, query));
  const steps = report.at_unix_seconds.map((at, index) => ({ at, index }));
  return {
    report,
    before: steps.filter(({ at }) => at >= from - length && at < from).map(({ index }) => index),
    after: steps.filter(({ at }) => at >= from).map(({ index }) => index),
  };
}

/** By how many doublings or halvings; what was next to nothing and still is has not changed. */
function doublings({ before, after, least }: Change & { least: number }): number {
  return Math.abs(Math.log2(((after ?? 0) + least) / ((before ?? 0) + least)));
}

/** What all together, a datastore or a volume did otherwise than before: what changed most first. */
export async function figuresThatChanged(subject: Subject, part: Part): Promise<Change[]> {
  const { report, before, after } = await halves(subject, part, FIGURES);
  return KNOWN.map(({ label, unit, least, of }) => ({
    label,
    unit,
    least,
    before: of(report, before),
    after: of(report, after),
  })).toSorted((a, b) => doublings(b) - doublings(a));
}

/** Whose requests became more or fewer by how many a second: the largest difference first. */
export async function volumesThatChanged(names: string[], part: Part): Promise<Change[]> {
  const waiting = [...names];
  const found: Change[] = [];
  const of = mean(['reads', 'writes']);
  const ask = async () => {
    for (let name = waiting.pop(); name !== undefined; name = waiting.pop()) {
      // One that is gone meanwhile, or that the history has never seen, is left out.
      const told = await halves({ volume: name }, part, ['reads', 'writes']).catch(() => null);
      if (told === null) continue;
      const [before, after] = [of(told.report, told.before), of(told.report, told.after)];
      found.push({ label: name, unit: rate, before, after });
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, ask));
  const difference = ({ before, after }: Change) => Math.abs((after ?? 0) - (before ?? 0));
  return found.toSorted((a, b) => difference(b) - difference(a));
}
