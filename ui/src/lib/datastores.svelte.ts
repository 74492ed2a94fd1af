// All datastores, asked for again and again while their view shows them: the stream tells sums over all volumes alone.

import { again, Comparison } from './again';
import { api, textOf } from './api';
import type { Rates } from './rates';
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
  looks = $state.raw<{ rows: Row[] }[]>([]);
  problem = $state('');
  /** Flash is shared by all, and has a view of its own. */
  rows = $derived((this.looks.at(-1)?.rows ?? []).filter(({ datastore }) => !datastore.is_flash));
  flash = $derived(this.looks.at(-1)?.rows.find(({ datastore }) => datastore.is_flash)?.datastore);
  private comparison = new Comparison<Datastore>(GAP_MS_MAX);

  /** Asks until what it returns is called. */
  watch(): () => void {
    return again(
      () => this.ask(),
      () => PAUSE_MS,
    );
  }

  private async ask() {
    try {
      const compared = await this.comparison.look(api.datastores);
      const rows = compared.map(({ found, ...rest }) => ({ datastore: found, ...rest }));
      this.looks = [...this.looks, { rows }].slice(-LOOKS_KEPT);
      this.problem = '';
    } catch (error) {
      // What is shown stays, and the badge says how old everything is.
      this.problem = textOf(error);
    }
  }
}

export const datastores = new Datastores();

export const datastoreName = (name: string) => (name === '' ? 'without a datastore' : name);
