// Which time the charts of a view show: the last so many minutes, or a part that somebody marked, which stays until they step back.

import { live } from '../feed/live.svelte';
import { route } from './route.svelte';

/** Named as the history's `from` has them. */
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
const USUAL = RANGES[1]!;
/** Fewer seconds are no chart. */
const SECONDS_MIN = 5;
/** How often one can zoom in and step back; the address holds every step. */
const ZOOMS_MAX = 12;
/** Points that a chart shows at most, about: more than pixels are in it would be lost. */
const POINTS_MAX = 600;
/** Seconds from one point to the next, as clocks have them. */
const STEPS = [
  1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1_200, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400, 172_800,
];

export interface Part {
  from: number;
  to: number;
}

/** Parts as the address has them: `1795348800-1795352400_1795350000-1795350600`, each inside the one before. */
function parse(text: string): Part[] {
  return text
    .split('_')
    .map((part) => part.split('-').map(Number))
    .filter(([from, to]) => Number.isInteger(from) && Number.isInteger(to) && to! - from! >= SECONDS_MIN)
    .map(([from, to]) => ({ from: from!, to: to! }));
}

/** Seconds from one point to the next that suit so much time. */
export const stepOf = (seconds: number) => STEPS.find((step) => seconds / step <= POINTS_MAX) ?? STEPS.at(-1)!;

class Span {
  range = $derived(RANGES.find(({ key }) => key === route.query.get('range')) ?? USUAL);
  /** What was zoomed into, one in the other. */
  zooms = $derived(parse(route.query.get('zoom') ?? ''));
  zoom = $derived(this.zooms.at(-1));
  /** The newest second of which anything is known; while nobody looks it stands still. */
  now = $derived(Math.floor((live.newest?.at_unix_ms ?? live.now) / 1e3));
  to = $derived(this.zoom?.to ?? this.now + 1);
  from = $derived(this.zoom?.from ?? this.to - this.range.seconds);
  seconds = $derived(this.zoom ? this.zoom.to - this.zoom.from : this.range.seconds);
  step = $derived(stepOf(this.seconds));

  choose(range: string) {
    route.set({ range: range === USUAL.key ? '' : range, zoom: '' }, true);
  }

  /** Shows a part, which stays as it is whatever comes in. */
  into(from: number, to: number) {
    const part = this.bounded(Math.floor(from), Math.ceil(to));
    this.put([...this.zooms, part]);
  }

  /** The middle half. */
  closer() {
    this.into(this.from + this.seconds / 4, this.to - this.seconds / 4);
  }

  /** By half of what is shown, earlier below zero; that is no step to go back. */
  move(direction: -1 | 1) {
    const by = direction * Math.ceil(this.seconds / 2);
    const part = this.bounded(this.from + by, this.to + by);
    this.put([...this.zooms.slice(0, -1), part]);
  }

  back() {
    if (this.zooms.length > 0) this.put(this.zooms.slice(0, -1));
  }

  /** As wide, or as wide as can be seen, and not in the future. */
  private bounded(from: number, to: number): Part {
    const wide = Math.max(SECONDS_MIN, to - from);
    const end = Math.min(Math.max(to, from + wide), this.now + 1);
    return { from: end - wide, to: end };
  }

  private put(zooms: Part[]) {
    const text = zooms.slice(-ZOOMS_MAX).map(({ from, to }) => `${from}-${to}`);
    route.set({ zoom: text.join('_') }, true);
  }
}

export const span = new Span();
