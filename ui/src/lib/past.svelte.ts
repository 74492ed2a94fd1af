// What a view's charts show: what the history knows of the span, and what came live since.

import { untrack } from 'svelte';
import { again } from './again';
import { api, pastOf, textOf, type Subject } from './api';
import { Happened } from './happened.svelte';
import { joined, pointsOf, type Source } from './points';
import { span } from './span.svelte';
import type { Event, History } from './types';

const TICK_MS = 1_000;
/** Time until long steps are asked for again: not each second, for what they show moves slowly. */
const REFRESH_MS = { min: 5_000, max: 60_000 };
/** How often the history is asked for the seconds before what came live; it may be a second behind. */
const TRIES = 3;

export class Past<T extends { at: number }> {
  problem = $state('');
  /** Events that its charts are marked with. */
  readonly happened: Happened;
  private report = $state.raw<History>();
  live = $derived.by(() => this.source.live());
  private past = $derived.by(() => (this.report ? pointsOf(this.report, this.source) : []));
  /** Seconds that a point stands for. The history may know it less finely than is asked for. */
  step = $derived(this.report?.step_seconds ?? 1);
  points = $derived(joined(this.past, this.step, this.live, span.from, span.to));

  /** What the report answers, when it was asked for, and what it cannot tell yet. */
  private asked = { path: '', atMs: 0, opening: 0, tries: 0 };

  /** With the events that are `marked`; of a volume, with its own and those of the daemon as a whole. */
  constructor(
    private readonly source: Source<T>,
    private readonly subject: Subject = {},
    marked?: (event: Event) => boolean,
  ) {
    this.happened = new Happened(subject.volume, marked);
  }

  /** Asks as long as it has to, until what it returns is called; another span is another question. */
  follow(): () => void {
    void [span.range, span.zoom];
    const ends = [
      again(
        () => untrack(() => this.ask()),
        () => TICK_MS,
      ),
      this.happened.follow(),
    ];
    return () => ends.forEach((end) => end());
  }

  /** Where the figures of these names are found. */
  path(names: string[]): string {
    const when: Record<string, string> = span.zoom
      ? { from: String(span.zoom.from), to: String(span.zoom.to) }
      : { from: `-${span.range.key}` };
    return pastOf(this.subject, { ...when, step: `${span.step}s`, series: names.join(',') });
  }

  private async ask() {
    const path = this.path(this.source.figures);
    const opening = this.opening();
    if (path === this.asked.path && !this.isDue(opening)) return;
    const tries = path === this.asked.path && opening === this.asked.opening ? this.asked.tries + 1 : 1;
    const asked = { path, atMs: Date.now(), opening, tries };
    this.asked = asked;
    try {
      const report = await api.history(path);
      // Meanwhile another span may have been chosen.
      if (this.asked === asked) [this.report, this.problem] = [report, ''];
    } catch (error) {
      if (this.asked === asked) this.problem = textOf(error);
    }
  }

  /** The newest second at which live figures began, after a pause or with the page: what came before has to come from the history. */
  private opening(): number {
    const begin = this.live.findLastIndex((figures) => figures === null);
    const first = this.live[begin + 1];
    return first ? Math.floor(first.at) - 1 : 0;
  }

  /** Whether there is anything new to be had. */
  private isDue(opening: number): boolean {
    const since = Date.now() - this.asked.atMs;
    const known = this.report?.at_unix_seconds.at(-1) ?? 0;
    if (this.problem) return since >= REFRESH_MS.min;
    if (span.zoom && known + this.step >= span.zoom.to) return false;
    // Of a part that is over there may be nothing at its end.
    if (span.zoom && this.asked.atMs / 1e3 > span.zoom.to + REFRESH_MS.min / 1e3) return false;
    if (this.step === 1 && !span.zoom) {
      return opening > known && (opening !== this.asked.opening || this.asked.tries < TRIES);
    }
    return since >= Math.min(Math.max(this.step * 1e3, REFRESH_MS.min), REFRESH_MS.max);
  }
}
