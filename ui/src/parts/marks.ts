// Event annotations of a chart: dashed lines with a mark whose shape shows the kind.

import type uPlot from 'uplot';
import { markOf, type Mark } from '../lib/events.svelte';
import { colour } from '../lib/theme.svelte';
import type { Event } from '../lib/types';

/** Events that share a line because they are close together. */
export interface Marked {
  /** Unix seconds. */
  at: number;
  events: Event[];
  /** Mark of the most important event. */
  mark: Mark;
}

const BY_WEIGHT: Mark[] = ['triangle', 'square', 'diamond', 'circle'];
/** Half of a mark's width; like the following in CSS pixels. */
const RADIUS = 5;
const [DASH, GAP] = [3, 3];
export const GROUP_PIXELS = 2 * RADIUS;

/** Groups events (oldest first) that are less than `apart` seconds from the first of the group. */
export function grouped(events: Event[], apart: number): Marked[] {
  const groups: Event[][] = [];
  for (const event of events) {
    const group = groups.at(-1);
    if (group && event.at_unix_ms - group[0]!.at_unix_ms < apart * 1e3) group.push(event);
    else groups.push([event]);
  }
  return groups.map((events) => {
    const marks = events.map(({ kind }) => markOf(kind));
    return { at: events[0]!.at_unix_ms / 1e3, events, mark: BY_WEIGHT.find((mark) => marks.includes(mark))! };
  });
}

function shape(pen: CanvasRenderingContext2D, mark: Mark, x: number, y: number, r: number) {
  pen.beginPath();
  if (mark === 'circle') pen.arc(x, y, r, 0, 7);
  if (mark === 'square') pen.rect(x - r * 0.85, y - r * 0.85, r * 1.7, r * 1.7);
  if (mark === 'triangle' || mark === 'diamond') {
    const corners =
      mark === 'triangle'
        ? [[0, -r] as const, [r, r] as const, [-r, r] as const]
        : [[0, -r] as const, [r, 0] as const, [0, r] as const, [-r, 0] as const];
    for (const [right, down] of corners) pen.lineTo(x + right, y + down);
    pen.closePath();
  }
}

export function drawMarks(plot: uPlot, marks: Marked[]) {
  if (marks.length === 0) return;
  const { ctx, bbox } = plot;
  const scale = devicePixelRatio;
  const thin = Math.max(1, Math.round(scale));
  ctx.save();
  ctx.fillStyle = colour('event');
  ctx.strokeStyle = colour('surface');
  ctx.lineWidth = scale;
  for (const { at, mark } of marks) {
    // Whole pixels keep thin lines sharp.
    const x = Math.round(plot.valToPos(at, 'x', true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    for (let y = 0; y < bbox.height; y += (DASH + GAP) * scale) {
      ctx.fillRect(x, Math.round(bbox.top + y), thin, Math.round(Math.min(DASH * scale, bbox.height - y)));
    }
    shape(ctx, mark, x + thin / 2, bbox.top + RADIUS * scale, RADIUS * scale);
    ctx.fill();
    ctx.stroke();
  }
  ctx.restore();
}
