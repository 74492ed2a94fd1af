// Events in the time range of the charts: of everything, of one volume and the daemon, or as a predicate selects.

import { Events, type EventFilter } from './events.svelte';
import { timeRange } from './time-range.svelte';
import type { Event } from './types';

/** The newest events of one answer; more would not be distinguishable in a chart. */
const EVENTS_MAX = 1_000;

const isOfDaemon = ({ subject }: Event) => subject === null;

export class ChartEvents {
  private all: Events;
  private own: Events | null;

  constructor(
    volume?: string,
    private readonly isShown: (event: Event) => boolean = volume === undefined ? () => true : isOfDaemon,
  ) {
    const key = () => `${timeRange.range.key} ${timeRange.zoom?.from} ${timeRange.zoom?.to}`;
    const filter = (): EventFilter =>
      timeRange.zoom ? { since: timeRange.zoom.from, until: timeRange.zoom.to } : { since: timeRange.from };
    this.all = new Events(key, filter, EVENTS_MAX);
    // A separate request, so that events of other volumes do not displace those of this volume.
    this.own = volume === undefined ? null : new Events(key, () => ({ ...filter(), subject: volume }), EVENTS_MAX);
  }

  problem = $derived.by(() => this.all.problem || (this.own?.problem ?? ''));

  /** Oldest first. */
  events = $derived.by(() => {
    return [...this.all.events.filter(this.isShown), ...(this.own?.events ?? [])].toSorted(
      (a, b) => a.number - b.number,
    );
  });

  /** Stays current until the returned function is called. */
  follow(): () => void {
    const stops = [this.all.follow(), this.own?.follow()];
    return () => stops.forEach((stop) => stop?.());
  }
}
