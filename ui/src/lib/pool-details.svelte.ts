// Details of one pool that the stream leaves out: its volumes, and the moves that have not ended.

import { api, textOf } from './api';
import { poll } from './polling';
import type { PoolQueue, PoolVolume } from './types';

/** The list of volumes costs the daemon time by the number of slices. */
const VOLUMES_INTERVAL_MS = 10_000;
const MOVES_INTERVAL_MS = 2_000;

export class PoolDetails {
  /** Undefined until the first answer. */
  volumes = $state.raw<PoolVolume[]>();
  moves = $state.raw<PoolQueue>();
  problem = $state('');

  constructor(private readonly name: string) {}

  /** Polls until the returned function is called. */
  watch(): () => void {
    const stops = [
      poll(
        () => this.loadVolumes(),
        () => VOLUMES_INTERVAL_MS,
      ),
      poll(
        () => this.load(async () => (this.moves = await api.poolMoves(this.name))),
        () => MOVES_INTERVAL_MS,
      ),
    ];
    return () => stops.forEach((stop) => stop());
  }

  loadVolumes(): Promise<void> {
    return this.load(async () => (this.volumes = (await api.pool(this.name)).volumes));
  }

  private async load(request: () => Promise<unknown>) {
    try {
      await request();
      this.problem = '';
    } catch (error) {
      // The last figures stay.
      this.problem = textOf(error);
    }
  }
}
