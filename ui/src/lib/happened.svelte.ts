// What happened in the time that charts show: of all, of a part of it, or of a volume and of the daemon as a whole.

import { Events, type Wanted } from './events.svelte';
import { span } from './span.svelte';
import type { Event } from './types';

/** As many as the daemon tells at once, the newest; more could not be told apart in a chart. */
const MARKED_MAX = 1_000;

const isOfWhole = ({ subject }: Event) => subject === null;

export class Happened {
  private all: Events;
  private own: Events | null;

  constructor(
    volume?: string,
    private readonly marked: (event: Event) => boolean = volume === undefined ? () => true : isOfWhole,
  ) {
    const key = () => `${span.range.key} ${span.zoom?.from} ${span.zoom?.to}`;
    const part = (): Wanted => (span.zoom ? { since: span.zoom.from, until: span.zoom.to } : { since: span.from });
    this.all = new Events(key, part, MARKED_MAX);
    // Asked for by itself: others' events do not crowd it out.
    this.own = volume === undefined ? null : new Events(key, () => ({ ...part(), subject: volume }), MARKED_MAX);
  }

  problem = $derived.by(() => this.all.problem || (this.own?.problem ?? ''));

  /** The oldest first. */
  events = $derived.by(() => {
    return [...this.all.found.filter(this.marked), ...(this.own?.found ?? [])].toSorted((a, b) => a.number - b.number);
  });

  /** Keeps up until what it returns is called. */
  follow(): () => void {
    const ends = [this.all.follow(), this.own?.follow()];
    return () => ends.forEach((end) => end?.());
  }
}
