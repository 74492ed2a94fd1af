// All volumes, asked for again and again while a view shows them: the stream tells in full only those that a page names.

import { live } from '../feed/live.svelte';
import { api } from './api';
import { between, hitRatio, type Rates } from './rates';
import type { Volume } from './types';

/** A volume and what it did between the last two answers; before the second one, nothing is known. */
export interface Row {
  volume: Volume;
  rates: Rates | null;
  hits: number | null;
}

/** A thousand volumes are megabytes: those are asked for less often. */
const pauseMs = (count: number) => (count > 200 ? 5_000 : 2_000);

class Volumes {
  rows = $state.raw<Row[]>([]);
  isLoaded = $state(false);
  problem = $state('');
  private before = new Map<string, Volume>();
  private atMs = 0;

  /** Asks until what it returns is called. */
  watch(): () => void {
    let timer: ReturnType<typeof setTimeout> | undefined;
    let isOver = false;
    const again = async () => {
      if (live.isVisible) await this.ask();
      if (!isOver)
        timer = setTimeout(() => void again(), this.rows.some((row) => row.rates) ? pauseMs(this.rows.length) : 1_000);
    };
    void again();
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }

  private async ask() {
    try {
      const found = await api.volumes();
      const now = Date.now();
      this.rows = found.map((volume) => {
        const before = this.before.get(volume.name);
        const isSame = before !== undefined && before.reads <= volume.reads && before.writes <= volume.writes;
        const rates = isSame ? between(before, volume, now, now - this.atMs) : null;
        return { volume, rates, hits: rates === null ? null : hitRatio(rates.sources) };
      });
      this.before = new Map(found.map((volume) => [volume.name, volume]));
      this.atMs = now;
      this.isLoaded = true;
      this.problem = '';
    } catch (error) {
      // What is shown stays, and the badge says how old everything is.
      this.problem = error instanceof Error ? error.message : String(error);
    }
  }
}

export const volumes = new Volumes();
