// The hosts of the fleet, polled while their view is shown.

import { api, textOf } from './api';
import { poll } from './polling';
import type { FleetHost } from './types';

/** Each answer makes the daemon ask all other hosts, up to 5 s each. */
const POLL_INTERVAL_MS = 10_000;

export class FleetHosts {
  /** Undefined until the first answer. This host is the first one. */
  hosts = $state.raw<FleetHost[]>();
  problem = $state('');
  private requests = 0;
  private newestAnswer = 0;

  /** Polls until the returned function is called. */
  watch(): () => void {
    return poll(
      () => this.load(),
      () => POLL_INTERVAL_MS,
    );
  }

  async load(): Promise<void> {
    const request = ++this.requests;
    try {
      const hosts = await api.fleetHosts();
      // A request before a change may be answered after the request that follows it.
      if (request < this.newestAnswer) return;
      [this.newestAnswer, this.hosts, this.problem] = [request, hosts, ''];
    } catch (error) {
      // The last answer stays.
      if (request > this.newestAnswer) this.problem = textOf(error);
    }
  }
}
