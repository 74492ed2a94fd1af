// Periodic requests while a view is shown, and rates between two answers.

import { live } from '../feed/live.svelte';
import { between, hitRatio, type Rates } from './rates';
import type { Counters } from './types';

/** Calls `load` at once and after each pause while the tab is visible. The returned function stops polling. */
export function poll(load: () => Promise<void>, pauseMs: () => number): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  let isStopped = false;
  const next = async () => {
    if (live.isVisible) await load();
    if (!isStopped) timer = setTimeout(() => void next(), pauseMs());
  };
  void next();
  return () => {
    isStopped = true;
    clearTimeout(timer);
  };
}

/** An item of an answer with its rates since the previous answer; null while there is none to compare with. */
export interface Sampled<T> {
  item: T;
  rates: Rates | null;
  hitRatio: number | null;
}

/** Computes rates from successive answers. */
export class RateSampler<T extends Counters & { name: string }> {
  /** Time of the newest counters. */
  atMs = 0;
  private previous = new Map<string, T>();

  /** More than `gapMsMax` between two answers is a gap without rates. */
  constructor(private readonly gapMsMax = Number.POSITIVE_INFINITY) {}

  async sample(load: () => Promise<T[]>): Promise<Sampled<T>[]> {
    const requestedMs = Date.now();
    const items = await load();
    // The counters were taken between request and answer; the first answer is slow while the page loads.
    const sampledMs = (requestedMs + Date.now()) / 2;
    const elapsedMs = sampledMs - this.atMs;
    const sampled = items.map((item) => {
      const previous = this.previous.get(item.name);
      // Counters that fell belong to a restarted daemon or to fewer volumes.
      const isSame = previous !== undefined && previous.reads <= item.reads && previous.writes <= item.writes;
      const rates =
        isSame && elapsedMs <= this.gapMsMax ? between(previous, item, sampledMs + live.skewMs, elapsedMs) : null;
      return { item, rates, hitRatio: rates === null ? null : hitRatio(rates.sources) };
    });
    this.previous = new Map(items.map((item) => [item.name, item]));
    this.atMs = sampledMs;
    return sampled;
  }
}
