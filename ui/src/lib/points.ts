// From the history's columns, and from what came live since, to the points that charts show.

import type { History } from './types';

/** A step of time. What the least and the busiest of its seconds had is only known of longer ones. */
export interface Point<T> {
  /** When it begins, in seconds since 1970. */
  at: number;
  mean: T | null;
  least: T | null;
  most: T | null;
}

/** A pause of the live figures that is a gap. */
const LIVE_GAP_SECONDS = 10;

/** The kinds of a step's figures: over its seconds, in the least and in the most of them. */
export type Kind = 'mean' | 'min' | 'max';

/** Where figures over time come from. */
export interface Source<T> {
  /** What the history calls what they are made of. */
  figures: string[];
  /** One of the history's steps. */
  told: (report: History, index: number, kind: Kind) => T;
  /** What came live, the newest last; null where nothing is known of the time since the one before. */
  live: () => (T | null)[];
}

/** The history's steps as points. */
export function pointsOf<T>(report: History, { told }: Source<T>): Point<T>[] {
  const isLong = report.step_seconds > 1;
  return report.at_unix_seconds.map((at, index) => ({
    at,
    mean: told(report, index, 'mean'),
    least: isLong ? told(report, index, 'min') : null,
    most: isLong ? told(report, index, 'max') : null,
  }));
}

/** Points of the history and, where those are seconds, live ones; a point without figures breaks the line where nothing is known. */
export function joined<T extends { at: number }>(
  past: Point<T>[],
  step: number,
  live: (T | null)[],
  from: number,
  to: number,
): Point<T>[] {
  const known = new Map(past.map((point) => [point.at, point]));
  if (step === 1) {
    for (const mean of live) {
      if (mean === null) continue;
      const at = Math.floor(mean.at);
      known.set(at, { at, mean, least: null, most: null });
    }
  }
  // The one that it begins in, too, so that lines run to the edge.
  const shown = [...known.values()].filter(({ at }) => at > from - step && at < to);
  shown.sort((a, b) => a.at - b.at);
  const gap = step === 1 ? LIVE_GAP_SECONDS : step;
  return shown.flatMap((point, index) => {
    const before = shown[index - 1];
    if (before === undefined || point.at - before.at <= gap) return [point];
    return [{ at: before.at + step, mean: null, least: null, most: null }, point];
  });
}
