// All datastores, asked for again and again while their view shows them: the stream tells sums over all volumes alone.

import { live } from '../feed/live.svelte';
import { api } from './api';
import { between, hitRatio, type Rates } from './rates';
import type { Datastore } from './types';

/** A datastore, and what its volumes did between the last two answers; before the second one nothing is known. */
export interface Row {
  datastore: Datastore;
  rates: Rates | null;
  hits: number | null;
}

const PAUSE_MS = 2_000;
/** Ten minutes. */
const LOOKS_KEPT = 300;
/** A longer pause is a gap: the page was hidden, or the daemon away. */
const GAP_MS_MAX = 10_000;

class Datastores {
  /** The newest answer last. */
  looks = $state.raw<{ at: number; rows: Row[] }[]>([]);
  problem = $state('');
  rows = $derived(this.looks.at(-1)?.rows ?? []);
  private before = new Map<string, Datastore>();
  private atMs = 0;

  /** Asks until what it returns is called. */
  watch(): () => void {
    let timer: ReturnType<typeof setTimeout> | undefined;
    let isOver = false;
    const again = async () => {
      if (live.isVisible) await this.ask();
      if (!isOver) timer = setTimeout(() => void again(), PAUSE_MS);
    };
    void again();
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }

  private async ask() {
    try {
      const asked = Date.now();
      const found = await api.datastores();
      // The counts were taken in between: a first answer is late, while the page still loads.
      const now = (asked + Date.now()) / 2;
      const took = now - this.atMs;
      const rows = found.map((datastore) => {
        const before = this.before.get(datastore.name);
        // Counts that fell are those of another life of the daemon, or of fewer volumes.
        const isSame = before !== undefined && before.reads <= datastore.reads && before.writes <= datastore.writes;
        const rates = isSame && took <= GAP_MS_MAX ? between(before, datastore, now, took) : null;
        return { datastore, rates, hits: rates === null ? null : hitRatio(rates.sources) };
      });
      this.before = new Map(found.map((datastore) => [datastore.name, datastore]));
      this.atMs = now;
      this.looks = [...this.looks, { at: now / 1e3, rows }].slice(-LOOKS_KEPT);
      this.problem = '';
    } catch (error) {
      // What is shown stays, and the badge says how old everything is.
      this.problem = error instanceof Error ? error.message : String(error);
    }
  }
}

export const datastores = new Datastores();

export const datastoreName = (name: string) => (name === '' ? 'without a datastore' : name);
