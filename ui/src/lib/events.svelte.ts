// The event log: loaded page by page and kept current by the stream.

import { untrack } from 'svelte';
import { live } from '../feed/live.svelte';
import { poll } from './polling';
import { api, textOf } from './api';
import type { Event } from './types';

/** Marks by kind of event: shapes, because colour alone is not accessible. */
const MARKS: Record<string, Mark> = {
  change: 'diamond',
  alert: 'triangle',
  daemon: 'circle',
  device: 'square',
  state: 'square',
  policy: 'square',
  limit: 'square',
};
export const KINDS = Object.keys(MARKS);
export type Mark = 'diamond' | 'triangle' | 'circle' | 'square';
export const SIGNS: Record<Mark, string> = { diamond: '◆', triangle: '▲', circle: '●', square: '■' };
export const markOf = (kind: string): Mark => MARKS[kind] ?? 'square';

/** Filter of events. */
export interface EventFilter {
  subject?: string;
  kind?: string;
  /** Seconds since 1970. */
  since?: number;
  until?: number;
}

const TICK_MS = 1_000;
const RETRY_MS = 5_000;
/** Maximum number of events in an answer of the daemon. */
const ANSWER_EVENTS_MAX = 1_000;

const matches = (event: Event, { subject, kind, until }: EventFilter) =>
  (subject === undefined || event.subject === subject) &&
  (kind === undefined || event.kind === kind) &&
  (until === undefined || event.at_unix_ms < until * 1e3);

export class Events {
  /** Newest first. */
  events = $state.raw<Event[]>([]);
  isLoaded = $state(false);
  isBusy = $state(false);
  problem = $state('');
  /** Continuation of the listing towards older events; null at the end. */
  next = $state<number | null>(null);

  private filter: EventFilter = {};
  private key: string | null = null;
  /** The newest event number seen, whether it passed the filter or not. */
  private newest = 0;
  private failedMs = 0;
  /** Incremented at each new listing: answers to earlier requests are discarded. */
  private generation = 0;

  /** `makeFilter` is called when the key changes: a time range that merely advances is the same query. */
  constructor(
    private readonly keyOf: () => string,
    private readonly makeFilter: () => EventFilter,
    private readonly limit: number,
  ) {}

  /** Stays current until the returned function is called. */
  follow(): () => void {
    // Read here so that the calling effect runs again when the key changes.
    void this.keyOf();
    return poll(
      () => untrack(() => this.update()),
      () => TICK_MS,
    );
  }

  /** Loads the next page of older events. */
  async loadOlder() {
    if (this.next === null) return;
    await this.load({ before: String(this.next) }, ({ events, next }) => {
      this.add(events);
      this.next = next;
    });
  }

  private async update() {
    if (Date.now() - this.failedMs < RETRY_MS) return;
    const key = this.keyOf();
    const newest = live.status?.events.newest ?? this.newest;
    // A lower newest number means a new log.
    if (key !== this.key || !this.isLoaded || newest < this.newest) {
      const isNewFilter = key !== this.key;
      [this.key, this.filter] = [key, this.makeFilter()];
      if (isNewFilter) [this.events, this.isLoaded, this.next] = [[], false, null];
      this.generation += 1;
      await this.load({}, ({ events, next }) => {
        [this.events, this.next, this.isLoaded] = [events, next, true];
        this.newest = Math.max(newest, events[0]?.number ?? 0);
      });
      return;
    }
    if (newest === this.newest) return;
    const streamed = live.samples.flatMap(({ events }) => events).filter(({ number }) => number > this.newest);
    const numbers = new Set(streamed.map(({ number }) => number));
    if (numbers.size >= newest - this.newest) {
      this.add(streamed.filter((event) => matches(event, this.filter)));
      this.newest = Math.max(...numbers);
      return;
    }
    // The stream truncates bursts, and omits events that occurred while the page was hidden.
    await this.load({ after: String(this.newest), limit: String(ANSWER_EVENTS_MAX) }, ({ events, next }) => {
      // More events than one answer holds: restart the list, else it would have a gap.
      if (next === null) this.add(events);
      else [this.events, this.next] = [events, next];
      this.newest = Math.max(newest, events[0]?.number ?? 0);
    });
  }

  private async load(
    parameters: Record<string, string>,
    apply: (page: { events: Event[]; next: number | null }) => void,
  ) {
    const { subject, kind, since, until } = this.filter;
    const query = new URLSearchParams({ limit: String(this.limit), ...parameters });
    for (const [name, value] of Object.entries({ subject, kind, since, until })) {
      if (value !== undefined) query.set(name, String(value));
    }
    const generation = this.generation;
    this.isBusy = true;
    try {
      const page = await api.events(query);
      if (generation === this.generation) {
        apply(page);
        this.problem = '';
      }
    } catch (error) {
      if (generation === this.generation) [this.problem, this.failedMs] = [textOf(error), Date.now()];
    } finally {
      if (generation === this.generation) this.isBusy = false;
    }
  }

  private add(events: Event[]) {
    if (events.length === 0) return;
    const all = new Map([...this.events, ...events].map((event) => [event.number, event]));
    this.events = [...all.values()].toSorted((a, b) => b.number - a.number);
  }
}
