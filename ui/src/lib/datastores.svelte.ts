// All datastores, polled while their view is shown: the stream only has sums over all volumes.

import { poll, RateSampler } from './polling';
import { api, textOf } from './api';
import type { Rates } from './rates';
import type { Datastore } from './types';

/** A datastore and the rates of its volumes between the last two answers; null before the second one. */
export interface Row {
  datastore: Datastore;
  rates: Rates | null;
  hitRatio: number | null;
}

const POLL_INTERVAL_MS = 2_000;
/** Samples of ten minutes. */
const SAMPLES_KEPT = 300;
/** A longer pause is a gap: the page was hidden or the daemon unreachable. */
const GAP_MS_MAX = 10_000;

class Datastores {
  /** Oldest first. */
  samples = $state.raw<{ rows: Row[] }[]>([]);
  problem = $state('');
  /** Without flash, which has a view of its own. */
  rows = $derived((this.samples.at(-1)?.rows ?? []).filter(({ datastore }) => !datastore.is_flash));
  flash = $derived(this.samples.at(-1)?.rows.find(({ datastore }) => datastore.is_flash)?.datastore);
  private sampler = new RateSampler<Datastore>(GAP_MS_MAX);

  /** Polls until the returned function is called. */
  watch(): () => void {
    return poll(
      () => this.load(),
      () => POLL_INTERVAL_MS,
    );
  }

  private async load() {
    try {
      const sampled = await this.sampler.sample(api.datastores);
      const rows = sampled.map(({ item, ...rest }) => ({ datastore: item, ...rest }));
      this.samples = [...this.samples, { rows }].slice(-SAMPLES_KEPT);
      this.problem = '';
    } catch (error) {
      // The last figures stay; the badge shows their age.
      this.problem = textOf(error);
    }
  }
}

export const datastores = new Datastores();

export const datastoreName = (name: string) => (name === '' ? 'no datastore' : name);
