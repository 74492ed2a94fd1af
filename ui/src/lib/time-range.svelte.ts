// Time range of a view's charts: a relative range up to now, or a fixed range that the user zoomed to.

import { live } from '../feed/live.svelte';
import { route } from './route.svelte';

/** Keys as in the history's `from`. */
export const RANGES = [
  { key: '1min', label: '1 min', seconds: 60 },
  { key: '10min', label: '10 min', seconds: 600 },
  { key: '1h', label: '1 h', seconds: 3_600 },
  { key: '6h', label: '6 h', seconds: 21_600 },
  { key: '24h', label: '24 h', seconds: 86_400 },
  { key: '7d', label: '7 d', seconds: 604_800 },
  { key: '30d', label: '30 d', seconds: 2_592_000 },
  { key: '365d', label: '1 y', seconds: 31_536_000 },
];
const DEFAULT_RANGE = RANGES[1]!;
/** Shortest zoom. */
const ZOOM_SECONDS_MIN = 5;
/** Zoom steps kept in the address. */
const ZOOMS_MAX = 12;
/** Approximate limit of points per chart: a chart has few more pixels. */
const POINTS_MAX = 600;
/** Seconds per point. */
const STEPS = [
  1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1_200, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400, 172_800,
];

/** Unix seconds; `to` is exclusive. */
export interface Interval {
  from: number;
  to: number;
}

/** Nested zooms from the address: `1795348800-1795352400_1795350000-1795350600`. */
function parse(text: string): Interval[] {
  return text
    .split('_')
    .map((zoom) => zoom.split('-').map(Number))
    .filter(([from, to]) => Number.isInteger(from) && Number.isInteger(to) && to! - from! >= ZOOM_SECONDS_MIN)
    .map(([from, to]) => ({ from: from!, to: to! }));
}

/** Seconds per point for a range of this length. */
export const stepOf = (seconds: number) => STEPS.find((step) => seconds / step <= POINTS_MAX) ?? STEPS.at(-1)!;

class TimeRange {
  range = $derived(RANGES.find(({ key }) => key === route.query.get('range')) ?? DEFAULT_RANGE);
  /** Nested zooms, outermost first. */
  zooms = $derived(parse(route.query.get('zoom') ?? ''));
  zoom = $derived(this.zooms.at(-1));
  /** Second of the newest sample; not updated while the tab is hidden. */
  now = $derived(Math.floor((live.newest?.at_unix_ms ?? live.now) / 1e3));
  to = $derived(this.zoom?.to ?? this.now + 1);
  from = $derived(this.zoom?.from ?? this.to - this.range.seconds);
  seconds = $derived(this.zoom ? this.zoom.to - this.zoom.from : this.range.seconds);
  step = $derived(stepOf(this.seconds));

  choose(range: string) {
    route.set({ range: range === DEFAULT_RANGE.key ? '' : range, zoom: '' }, true);
  }

  /** Shows a fixed range. */
  zoomTo(from: number, to: number) {
    const zoom = this.bounded(Math.floor(from), Math.ceil(to));
    this.setZooms([...this.zooms, zoom]);
  }

  /** Zooms to the middle half. */
  zoomToMiddle() {
    this.zoomTo(this.from + this.seconds / 4, this.to - this.seconds / 4);
  }

  /** Moves by half of the range. It replaces the current zoom step. */
  shift(direction: -1 | 1) {
    const offset = direction * Math.ceil(this.seconds / 2);
    const zoom = this.bounded(this.from + offset, this.to + offset);
    this.setZooms([...this.zooms.slice(0, -1), zoom]);
  }

  zoomOut() {
    if (this.zooms.length > 0) this.setZooms(this.zooms.slice(0, -1));
  }

  /** The interval, lengthened to `ZOOM_SECONDS_MIN` and moved out of the future. */
  private bounded(from: number, to: number): Interval {
    const length = Math.max(ZOOM_SECONDS_MIN, to - from);
    const end = Math.min(Math.max(to, from + length), this.now + 1);
    return { from: end - length, to: end };
  }

  private setZooms(zooms: Interval[]) {
    const text = zooms.slice(-ZOOMS_MAX).map(({ from, to }) => `${from}-${to}`);
    route.set({ zoom: text.join('_') }, true);
  }
}

export const timeRange = new TimeRange();
