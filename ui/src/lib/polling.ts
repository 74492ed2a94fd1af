// Periodic requests while a view is shown, and rates between two answers.

import { live } from '../feed/live.svelte';
import { between, hitRatio, type Rates } from './rates';
import type { Counters } from './types';

/** Requests at once and after each pause while the tab is visible. Returns a function that stops it. */
export function poll(load: () => Promise<void>, pauseMs: () => number): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  let isOver = false;
  const next = async () => {
    if (live.isVisible) await load();
    if (!isOver) timer = setTimeout(() => void next(), pauseMs());
  };
  void next();
  return () => {
    isOver = true;
    clearTimeout(timer);
  };
}

/** An item of an answer with its rates since the previous answer; null while there is none to compare with. */
export interface Sampled<T> {
  found: T;
  rates: Rates | null;
  hits: number | null;
}

/** Computes rates from successive answers. */
export class RateSampler<T extends Counters & { name: string }> {
  /** Time of the newest counters. */
  atMs = 0;
  private before = new Map<string, T>();

  /** More than `gapMsMax` between two answers is a gap without rates. */
  constructor(private readonly gapMsMax = Number.POSITIVE_INFINITY) {}

  async sample(load: () => Promise<T[]>): Promise<Sampled<T>[]> {
    const requestedMs = Date.now();
    const all = await load();
    // The counters were taken between request and answer; the first answer is slow while the page loads.
    const now = (requestedMs + Date.now()) / 2;
    const took = now - this.atMs;
    const compared = all.map((found) => {
      const before = this.before.get(found.name);
      // Counters that fell belong to a restarted daemon or to fewer volumes.
      const isSame = before !== undefined && before.reads <= found.reads && before.writes <= found.writes;
      const rates = isSame && took <= this.gapMsMax ? between(before, found, now + live.skewMs, took) : null;
      return { found, rates, hits: rates === null ? null : hitRatio(rates.sources) };
    });
    this.before = new Map(all.map((found) => [found.name, found]));
    this.atMs = now;
    return compared;
  }
}
