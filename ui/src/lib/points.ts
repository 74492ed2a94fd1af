// Chart points from the series of the history and from the live samples after it.

import type { History } from './types';

/** One step of a chart. Minimum and maximum exist only for steps longer than a second. */
export interface Point<T> {
  /** Start, Unix seconds. */
  at: number;
  mean: T | null;
  min: T | null;
  max: T | null;
}

/** A longer pause between live samples is a gap. */
const LIVE_GAP_SECONDS = 10;

/** Aggregate over the seconds of a step. */
export type Aggregate = 'mean' | 'min' | 'max';

/** Source of figures over time. */
export interface Source<T> {
  /** Names of the history series. */
  series: string[];
  /** Figures of one step of the history; null where it has none. */
  fromHistory: (report: History, index: number, aggregate: Aggregate) => T | null;
  /** Live samples, oldest first; null marks a gap. */
  live: () => (T | null)[];
}

/** Points of the history. */
export function pointsOf<T>(report: History, { fromHistory }: Source<T>): Point<T>[] {
  const isLong = report.step_seconds > 1;
  return report.at_unix_seconds.map((at, index) => ({
    at,
    mean: fromHistory(report, index, 'mean'),
    min: isLong ? fromHistory(report, index, 'min') : null,
    max: isLong ? fromHistory(report, index, 'max') : null,
  }));
}

/** Merges live samples into one-second points of the history. A point without figures breaks the line at a gap. */
export function mergeLive<T extends { at: number }>(
  data: Point<T>[],
  step: number,
  live: (T | null)[],
  from: number,
  to: number,
): Point<T>[] {
  const points = new Map(data.map((point) => [point.at, point]));
  if (step === 1) {
    for (const mean of live) {
      if (mean === null) continue;
      const at = Math.floor(mean.at);
      points.set(at, { at, mean, min: null, max: null });
    }
  }
  // Includes the step that contains `from`, so lines reach the edge.
  const shown = [...points.values()].filter(({ at }) => at > from - step && at < to);
  shown.sort((a, b) => a.at - b.at);
  const gap = step === 1 ? LIVE_GAP_SECONDS : step;
  return shown.flatMap((point, index) => {
    const previous = shown[index - 1];
    if (previous === undefined || point.at - previous.at <= gap) return [point];
    return [{ at: previous.at + step, mean: null, min: null, max: null }, point];
  });
}
