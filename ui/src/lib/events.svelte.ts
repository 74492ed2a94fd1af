// What happened and who did it: asked for page by page, and kept up with by the stream.

import { untrack } from 'svelte';
import { live } from '../feed/live.svelte';
import { again } from './again';
import { api, textOf } from './api';
import type { Event } from './types';

/** The marks of kinds of events, which tell them apart where colours do not. */
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

/** Which events are wanted. */
export interface Wanted {
  subject?: string;
  kind?: string;
  /** Seconds since 1970. */
  since?: number;
  until?: number;
}

const TICK_MS = 1_000;
const RETRY_MS = 5_000;
/** As many as the daemon tells at once. */
const AT_ONCE_MAX = 1_000;

const fits = (event: Event, { subject, kind, until }: Wanted) =>
  (subject === undefined || event.subject === subject) &&
  (kind === undefined || event.kind === kind) &&
  (until === undefined || event.at_unix_ms < until * 1e3);

export class Events {
  /** The newest first. */
  found = $state.raw<Event[]>([]);
  isLoaded = $state(false);
  isBusy = $state(false);
  problem = $state('');
  /** What to ask for what was before; null when that was all. */
  next = $state<number | null>(null);

  private wanted: Wanted = {};
  private key: string | null = null;
  /** The newest event that was told, whether it is wanted or not. */
  private newest = 0;
  private failedMs = 0;
  /** Another question has another turn: what an older one answers is of no use any more. */
  private turn = 0;

  /** `want` is asked what is wanted when that is another `key`: a span that only moves on is no other question. */
  constructor(
    private readonly keyOf: () => string,
    private readonly want: () => Wanted,
    private readonly limit: number,
  ) {}

  /** Keeps up until what it returns is called. */
  follow(): () => void {
    void this.keyOf();
    return again(
      () => untrack(() => this.keepUp()),
      () => TICK_MS,
    );
  }

  /** As many again, of what was before. */
  async more() {
    if (this.next === null) return;
    await this.ask({ before: String(this.next) }, ({ events, next }) => {
      this.add(events);
      this.next = next;
    });
  }

  private async keepUp() {
    if (Date.now() - this.failedMs < RETRY_MS) return;
    const key = this.keyOf();
    const newest = live.status?.events.newest ?? this.newest;
    // Numbers that fell are those of a log that was begun anew.
    if (key !== this.key || !this.isLoaded || newest < this.newest) {
      const isOther = key !== this.key;
      [this.key, this.wanted] = [key, this.want()];
      if (isOther) [this.found, this.isLoaded, this.next] = [[], false, null];
      this.turn += 1;
      await this.ask({}, ({ events, next }) => {
        [this.found, this.next, this.isLoaded] = [events, next, true];
        this.newest = Math.max(newest, events[0]?.number ?? 0);
      });
      return;
    }
    if (newest === this.newest) return;
    const told = live.samples.flatMap(({ events }) => events).filter(({ number }) => number > this.newest);
    const numbers = new Set(told.map(({ number }) => number));
    if (numbers.size >= newest - this.newest) {
      this.add(told.filter((event) => fits(event, this.wanted)));
      this.newest = Math.max(...numbers);
      return;
    }
    // The stream tells a part alone of what came all at once, and nothing of what was while the page was hidden for long.
    await this.ask({ after: String(this.newest), limit: String(AT_ONCE_MAX) }, ({ events, next }) => {
      // More than one answer holds: it begins anew with these, for there would be a hole before them.
      if (next === null) this.add(events);
      else [this.found, this.next] = [events, next];
      this.newest = Math.max(newest, events[0]?.number ?? 0);
    });
  }

  private async ask(part: Record<string, string>, done: (page: { events: Event[]; next: number | null }) => void) {
    const { subject, kind, since, until } = this.wanted;
    const query = new URLSearchParams({ limit: String(this.limit), ...part });
    for (const [name, value] of Object.entries({ subject, kind, since, until })) {
      if (value !== undefined) query.set(name, String(value));
    }
    const turn = this.turn;
    this.isBusy = true;
    try {
      const page = await api.events(query);
      if (turn === this.turn) {
        done(page);
        this.problem = '';
      }
    } catch (error) {
      if (turn === this.turn) [this.problem, this.failedMs] = [textOf(error), Date.now()];
    } finally {
      if (turn === this.turn) this.isBusy = false;
    }
  }

  private add(events: Event[]) {
    if (events.length === 0) return;
    const all = new Map([...this.found, ...events].map((event) => [event.number, event]));
    this.found = [...all.values()].toSorted((a, b) => b.number - a.number);
  }
}
