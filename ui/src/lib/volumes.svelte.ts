// All volumes, asked for again and again while a view shows them: the stream tells in full only those that a page names.

import { again, Comparison } from './again';
import { api, textOf } from './api';
import type { Rates } from './rates';
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
  private comparison = new Comparison<Volume>();

  /** Asks until what it returns is called. */
  watch(): () => void {
    return again(
      () => this.ask(),
      () => (this.rows.some((row) => row.rates) ? pauseMs(this.rows.length) : 1_000),
    );
  }

  private async ask() {
    try {
      const compared = await this.comparison.look(api.volumes);
      this.rows = compared.map(({ found, ...rest }) => ({ volume: found, ...rest }));
      this.isLoaded = true;
      this.problem = '';
    } catch (error) {
      // What is shown stays, and the badge says how old everything is.
      this.problem = textOf(error);
    }
  }
}

export const volumes = new Volumes();
