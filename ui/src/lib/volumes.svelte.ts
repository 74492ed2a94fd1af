// All volumes, polled while a view shows them: the stream has details only of subscribed volumes.

import { poll, RateSampler } from './polling';
import { api, textOf } from './api';
import type { Rates } from './rates';
import type { Volume } from './types';

/** A volume and its rates between the last two answers; null before the second one. */
export interface Row {
  volume: Volume;
  rates: Rates | null;
  hitRatio: number | null;
}

/** A thousand volumes are megabytes: many volumes are polled less often. */
const pollIntervalMs = (count: number) => (count > 200 ? 5_000 : 2_000);

/** True if the volume has a limit of requests or bytes per second. */
export const isLimited = ({ qos }: Pick<Volume, 'qos'>) => qos.limit_iops > 0 || qos.limit_bytes > 0;

class Volumes {
  rows = $state.raw<Row[]>([]);
  isLoaded = $state(false);
  problem = $state('');
  private sampler = new RateSampler<Volume>();

  /** Polls until the returned function is called. */
  watch(): () => void {
    return poll(
      () => this.load(),
      () => (this.rows.some((row) => row.rates) ? pollIntervalMs(this.rows.length) : 1_000),
    );
  }

  private async load() {
    try {
      const sampled = await this.sampler.sample(api.volumes);
      this.rows = sampled.map(({ item, ...rest }) => ({ volume: item, ...rest }));
      this.isLoaded = true;
      this.problem = '';
    } catch (error) {
      // The last figures stay; the badge shows their age.
      this.problem = textOf(error);
    }
  }
}

export const volumes = new Volumes();
