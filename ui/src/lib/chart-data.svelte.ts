// Data of a view's charts: the history of the time range, and the live samples after it.

import { untrack } from 'svelte';
import { poll } from './polling';
import { api, historyPath, textOf, type Scope } from './api';
import { ChartEvents } from './chart-events.svelte';
import { mergeLive, pointsOf, type Source } from './points';
import { timeRange } from './time-range.svelte';
import type { Event, History } from './types';

const TICK_MS = 1_000;
/** Refresh interval of long steps, which change slowly. */
const REFRESH_MS = { min: 5_000, max: 60_000 };
/** Attempts to load the seconds before the first live sample: the history may lag by a second. */
const ATTEMPTS_MAX = 3;

export class ChartData<T extends { at: number }> {
  problem = $state('');
  /** Events marked on the charts. */
  readonly events: ChartEvents;
  private report = $state.raw<History>();
  live = $derived.by(() => this.source.live());
  private history = $derived.by(() => (this.report ? pointsOf(this.report, this.source) : []));
  /** Seconds per point. The history may be coarser than requested. */
  step = $derived(this.report?.step_seconds ?? 1);
  points = $derived(mergeLive(this.history, this.step, this.live, timeRange.from, timeRange.to));

  /** The newest request: its path, its time, and the start of the live samples at that time. */
  private requested = { path: '', atMs: 0, liveStart: 0, attempts: 0 };

  /** `isShown` selects events; by default the charts of a volume show its events and those of the daemon. */
  constructor(
    private readonly source: Source<T>,
    private readonly scope: Scope = {},
    isShown?: (event: Event) => boolean,
  ) {
    this.events = new ChartEvents(scope.volume, isShown);
  }

  /** Polls for missing history; the returned function stops polling. */
  follow(): () => void {
    // Read here so that the calling effect runs again when they change.
    void [timeRange.range, timeRange.zoom];
    const stops = [
      poll(
        () => untrack(() => this.load()),
        () => TICK_MS,
      ),
      this.events.follow(),
    ];
    return () => stops.forEach((stop) => stop());
  }

  /** Path of a history request for these series. */
  path(names: string[]): string {
    const interval: Record<string, string> = timeRange.zoom
      ? { from: String(timeRange.zoom.from), to: String(timeRange.zoom.to) }
      : { from: `-${timeRange.range.key}` };
    return historyPath(this.scope, { ...interval, step: `${timeRange.step}s`, series: names.join(',') });
  }

  private async load() {
    const path = this.path(this.source.series);
    const liveStart = this.liveStart();
    if (path === this.requested.path && !this.isDue(liveStart)) return;
    const isRetry = path === this.requested.path && liveStart === this.requested.liveStart;
    const attempts = isRetry ? this.requested.attempts + 1 : 1;
    const request = { path, atMs: Date.now(), liveStart, attempts };
    this.requested = request;
    try {
      const report = await api.history(path);
      // Discard the answer if the time range changed meanwhile.
      if (this.requested === request) [this.report, this.problem] = [report, ''];
    } catch (error) {
      if (this.requested === request) this.problem = textOf(error);
    }
  }

  /** Start of the uninterrupted live samples: earlier points come from the history. */
  private liveStart(): number {
    const lastGap = this.live.findLastIndex((figures) => figures === null);
    const first = this.live[lastGap + 1];
    return first ? Math.floor(first.at) - 1 : 0;
  }

  /** True when the history must be requested again. */
  private isDue(liveStart: number): boolean {
    const elapsedMs = Date.now() - this.requested.atMs;
    const newestPoint = this.report?.at_unix_seconds.at(-1) ?? 0;
    if (this.problem) return elapsedMs >= REFRESH_MS.min;
    if (timeRange.zoom && newestPoint + this.step >= timeRange.zoom.to) return false;
    // A past range may have no data at its end.
    if (timeRange.zoom && this.requested.atMs / 1e3 > timeRange.zoom.to + REFRESH_MS.min / 1e3) return false;
    if (this.step === 1 && !timeRange.zoom) {
      return (
        liveStart > newestPoint && (liveStart !== this.requested.liveStart || this.requested.attempts < ATTEMPTS_MAX)
      );
    }
    return elapsedMs >= Math.min(Math.max(this.step * 1e3, REFRESH_MS.min), REFRESH_MS.max);
  }
}
