// Event annotations of a chart: dashed lines with a mark whose shape shows the kind.

import type uPlot from 'uplot';
import { markOf, type Mark } from '../lib/events.svelte';
import { colour } from '../lib/theme.svelte';
import type { Event } from '../lib/types';

/** Events that share a line because they are close together. */
export interface EventGroup {
  /** Unix seconds. */
  at: number;
  events: Event[];
  /** Mark of the most important event. */
  mark: Mark;
}

/** Marks, most important first. */
const MARKS: Mark[] = ['triangle', 'square', 'diamond', 'circle'];
/** Half of a mark's width; as the constants below in CSS pixels. */
const RADIUS = 5;
const [DASH, GAP] = [3, 3];
export const GROUP_PIXELS = 2 * RADIUS;

/** Groups events (oldest first) that are less than `distance` seconds from the first of the group. */
export function groupEvents(events: Event[], distance: number): EventGroup[] {
  const groups: Event[][] = [];
  for (const event of events) {
    const group = groups.at(-1);
    if (group && event.at_unix_ms - group[0]!.at_unix_ms < distance * 1e3) group.push(event);
    else groups.push([event]);
  }
  return groups.map((events) => {
    const marks = events.map(({ kind }) => markOf(kind));
    return { at: events[0]!.at_unix_ms / 1e3, events, mark: MARKS.find((mark) => marks.includes(mark))! };
  });
}

/** Adds the outline of a mark to the path. */
function outline(context: CanvasRenderingContext2D, mark: Mark, x: number, y: number, radius: number) {
  context.beginPath();
  if (mark === 'circle') context.arc(x, y, radius, 0, 7);
  if (mark === 'square') context.rect(x - radius * 0.85, y - radius * 0.85, radius * 1.7, radius * 1.7);
  if (mark === 'triangle' || mark === 'diamond') {
    const corners =
      mark === 'triangle'
        ? [[0, -radius] as const, [radius, radius] as const, [-radius, radius] as const]
        : [[0, -radius] as const, [radius, 0] as const, [0, radius] as const, [-radius, 0] as const];
    for (const [right, down] of corners) context.lineTo(x + right, y + down);
    context.closePath();
  }
}

/** Draws a dashed line with its mark for each group. */
export function drawMarks(plot: uPlot, marks: EventGroup[]) {
  if (marks.length === 0) return;
  const { ctx, bbox } = plot;
  const scale = devicePixelRatio;
  const lineWidth = Math.max(1, Math.round(scale));
  ctx.save();
  ctx.fillStyle = colour('event');
  ctx.strokeStyle = colour('surface');
  ctx.lineWidth = scale;
  for (const { at, mark } of marks) {
    // Whole pixels keep thin lines sharp.
    const x = Math.round(plot.valToPos(at, 'x', true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    for (let y = 0; y < bbox.height; y += (DASH + GAP) * scale) {
      ctx.fillRect(x, Math.round(bbox.top + y), lineWidth, Math.round(Math.min(DASH * scale, bbox.height - y)));
    }
    outline(ctx, mark, x + lineWidth / 2, bbox.top + RADIUS * scale, RADIUS * scale);
    ctx.fill();
    ctx.stroke();
  }
  ctx.restore();
}
