// How charts look: told apart by pattern as well as by colour, for not everybody sees all colours.

import uPlot from 'uplot';
import { colour } from '../lib/theme.svelte';
import { bytes, bytesRate, count } from '../lib/units';
import { drawMarks, type Marked } from './marks';

export interface Series {
  label: string;
  /** Name of a colour in the style sheet, and of the pattern that goes with it. */
  colour: 'memory' | 'flash' | 'array' | 'ink';
  dash?: number[];
}

/** A title or a label, as addresses and names of files have it. */
export const slug = (text: string) => text.toLowerCase().replaceAll(/[^a-z0-9]+/g, '-');

/** What lay between the least and the most in each step, drawn behind the lines: else a spike would vanish in the mean of a long step. */
export interface Band {
  colour: Series['colour'];
  least: (number | null)[];
  most: (number | null)[];
}

/** What a chart draws, asked for whenever it does. */
export interface Drawing {
  /** From when to when. */
  window: () => [number, number];
  bands: () => Band[];
  /** Seconds that a point stands for. */
  step: () => number;
  marks: () => Marked[];
}

/** The fill of an area: memory whole, flash in stripes, the array dotted. The legend's swatches are the same in CSS. */
export function fillOf(name: Series['colour']): CanvasPattern | string {
  const size = 8 * devicePixelRatio;
  const tile = document.createElement('canvas');
  [tile.width, tile.height] = [size, size];
  const pen = tile.getContext('2d');
  if (pen === null) return colour(name);
  pen.fillStyle = colour(name);
  pen.fillRect(0, 0, size, size);
  pen.fillStyle = pen.strokeStyle = colour('surface');
  pen.globalAlpha = 0.55;
  pen.lineWidth = size / 5;
  if (name === 'flash') {
    pen.beginPath();
    for (const shift of [-size, 0, size]) {
      pen.moveTo(shift - 1, size + 1);
      pen.lineTo(shift + size + 1, -1);
    }
    pen.stroke();
  }
  if (name === 'array') {
    pen.beginPath();
    pen.arc(size / 2, size / 2, size / 5, 0, 7);
    pen.fill();
  }
  return pen.createPattern(tile, 'repeat') ?? colour(name);
}

/** Sums from the last series upwards, so that each area stands on the next; what is not shown has no height. */
export function stacked(rows: (number | null)[][], isShown: boolean[]): (number | null)[][] {
  const sums: (number | null)[][] = [];
  for (const [index, row] of [...rows.entries()].toReversed()) {
    const below = sums[0];
    const height = isShown[index] ? 1 : 0;
    sums.unshift(row.map((value, at) => (value === null ? null : value * height + (below?.[at] ?? 0))));
  }
  return sums;
}

const axis = (): uPlot.Axis => ({
  stroke: colour('muted'),
  grid: { stroke: colour('line'), width: 1 },
  ticks: { stroke: colour('line'), width: 1, size: 4 },
  font: '11px system-ui, sans-serif',
});

/** Lines at powers of ten alone: the nine between two of them say nothing that a number does not. */
function tensOf(): Pick<uPlot.Axis, 'grid' | 'ticks'> {
  const filter = (_: uPlot, values: number[]) =>
    values.map((value) => (Number.isInteger(Math.log10(value)) ? value : null));
  const { grid, ticks } = axis();
  return { grid: { ...grid, filter }, ticks: { ...ticks, filter } };
}

/** Steps of a scale of bytes are powers of two. */
const BINARY = Array.from({ length: 50 }, (_, power) => 2 ** power);
/** Those of what is counted are whole. */
const WHOLE = Array.from({ length: 15 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();
const DAY = 86_400;

/** A time on an axis: as fine as its steps are. */
function tickOf(seconds: number, step: number): string {
  const time = new Date(seconds * 1e3);
  const isMidnight = time.getHours() === 0 && time.getMinutes() === 0;
  if (step >= DAY || (step >= 3_600 && isMidnight)) {
    return time.toLocaleDateString(undefined, { month: 'short', day: 'numeric' });
  }
  return step >= 60
    ? time.toLocaleTimeString(undefined, { hour: '2-digit', minute: '2-digit' })
    : time.toLocaleTimeString();
}

/** The bands, a step wide each; one that stands alone is seen, too. */
function drawBands(plot: uPlot, drawing: Drawing) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.globalAlpha = 0.35;
  const thin = Math.round(2 * devicePixelRatio);
  for (const { colour: name, least, most } of drawing.bands()) {
    ctx.fillStyle = colour(name);
    for (const [index, at] of plot.data[0].entries()) {
      const [low, high] = [least[index], most[index]];
      if (low == null || high == null) continue;
      // Whole pixels: neighbours touch, and none is too thin to be seen, not even the newest at the edge.
      const x = (seconds: number) => Math.round(plot.valToPos(seconds, 'x', true));
      const left = Math.min(x(at), bbox.left + bbox.width - thin);
      const right = Math.max(x(at + drawing.step()), left + thin);
      const [top, bottom] = [plot.valToPos(high, 'y', true), plot.valToPos(low, 'y', true)];
      ctx.fillRect(left, top, right - left, Math.max(1, bottom - top));
    }
  }
  ctx.restore();
}

/** The highest that is in sight, bands included. */
function highest(plot: uPlot, max: number | null, drawing: Drawing): number {
  const [from, to] = drawing.window();
  let found = max ?? 0;
  for (const { most } of drawing.bands()) {
    for (const [index, at] of plot.data[0].entries()) {
      if (at + drawing.step() > from && at <= to) found = Math.max(found, most[index] ?? 0);
    }
  }
  return found;
}

/** Points that no line leads to. */
function alone(plot: uPlot, series: number): number[] {
  const values = plot.data[series] ?? [];
  const isNone = (index: number) => values[index] == null;
  return [...values.keys()].filter((index) => !isNone(index) && isNone(index - 1) && isNone(index + 1));
}

export function optionsOf(
  series: Series[],
  isStacked: boolean,
  isLogarithmic: boolean,
  unit: (value: number) => string,
  size: { width: number; height: number },
  drawing: Drawing,
): uPlot.Options {
  return {
    ...size,
    cursor: {
      // All charts of a view have one cursor; what is marked in one is no business of the others until they all show it.
      sync: { key: 'view', setSeries: false, filters: { pub: (type) => type === 'mousemove' } },
      drag: { x: true, y: false, setScale: false, dist: 4 },
      points: { size: 6 },
    },
    legend: { show: false },
    scales: {
      x: { time: true, range: () => drawing.window() },
      // Logarithms have no zero; what is shown of them begins at a microsecond.
      y: isLogarithmic
        ? {
            distr: 3,
            range: (plot, _, max) => [1, 10 ** Math.max(1, Math.ceil(Math.log10(highest(plot, max, drawing) || 10)))],
          }
        : { range: (plot, _, max) => [0, highest(plot, max, drawing) * 1.08 || 1] },
    },
    axes: [
      { ...axis(), size: 36, space: 90, values: (_, ticks, __, ___, step) => ticks.map((tick) => tickOf(tick, step)) },
      {
        ...axis(),
        size: 74,
        ...(unit === bytes || unit === bytesRate ? { incrs: BINARY } : unit === count ? { incrs: WHOLE } : {}),
        ...(isLogarithmic ? tensOf() : {}),
        // On a logarithmic scale null stands where a number would be too close to the next.
        values: (_, ticks) => ticks.map((tick) => (tick === null ? '' : tick === 0 ? '0' : unit(tick))),
      },
    ],
    series: [
      {},
      ...series.map((one): uPlot.Series => ({
        label: one.label,
        stroke: colour(one.colour),
        width: isStacked ? 1 : 1.75,
        ...(isStacked ? { fill: fillOf(one.colour) } : {}),
        ...(one.dash === undefined ? {} : { dash: one.dash }),
        points: { show: true, size: 5, filter: (plot, index) => alone(plot, index) },
      })),
    ],
    hooks: { drawAxes: [(plot) => drawBands(plot, drawing)], draw: [(plot) => drawMarks(plot, drawing.marks())] },
  };
}
