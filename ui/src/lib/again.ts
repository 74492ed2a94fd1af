// What is asked for again and again while a view shows it, and what went on between two answers.

import { live } from '../feed/live.svelte';
import { between, hitRatio, type Rates } from './rates';
import type { Counters } from './types';

/** Asks at once, and again after each pause as long as anybody sees the tab, until what it returns is called. */
export function again(ask: () => Promise<void>, pauseMs: () => number): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  let isOver = false;
  const next = async () => {
    if (live.isVisible) await ask();
    if (!isOver) timer = setTimeout(() => void next(), pauseMs());
  };
  void next();
  return () => {
    isOver = true;
    clearTimeout(timer);
  };
}

/** One of those that an answer tells of, and what it did since the answer before; null where that says nothing. */
export interface Compared<T> {
  found: T;
  rates: Rates | null;
  hits: number | null;
}

/** Holds each answer against the one before. */
export class Comparison<T extends Counters & { name: string }> {
  /** When the counts of the newest answer were taken. */
  atMs = 0;
  private before = new Map<string, T>();

  /** A longer time between two answers than `gapMsMax` is a gap. */
  constructor(private readonly gapMsMax = Number.POSITIVE_INFINITY) {}

  async look(ask: () => Promise<T[]>): Promise<Compared<T>[]> {
    const asked = Date.now();
    const all = await ask();
    // The counts were taken in between: a first answer is late, while the page still loads.
    const now = (asked + Date.now()) / 2;
    const took = now - this.atMs;
    const compared = all.map((found) => {
      const before = this.before.get(found.name);
      // Counts that fell are those of another life of the daemon, or of fewer volumes.
      const isSame = before !== undefined && before.reads <= found.reads && before.writes <= found.writes;
      const rates = isSame && took <= this.gapMsMax ? between(before, found, now + live.skewMs, took) : null;
      return { found, rates, hits: rates === null ? null : hitRatio(rates.sources) };
    });
    this.before = new Map(all.map((found) => [found.name, found]));
    this.atMs = now;
    return compared;
  }
}
