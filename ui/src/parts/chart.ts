// Options of uPlot charts. Series differ by pattern as well as by colour, for accessibility.

import uPlot from 'uplot';
import { colour } from '../lib/theme.svelte';
import { bytes, bytesRate, count, latency, rate, time } from '../lib/units';
import { drawMarks, type EventGroup } from './marks';

export interface Series {
  label: string;
  /** Colour of the style sheet, with its pattern. */
  colour: 'memory' | 'flash' | 'prefetched' | 'array' | 'ink';
  dash?: number[];
}

/** Form of a title or label for addresses and file names. */
export const slug = (text: string) => text.toLowerCase().replaceAll(/[^a-z0-9]+/g, '-');

/** Minimum and maximum per step, drawn behind the lines: a mean alone would hide spikes. */
export interface Band {
  colour: Series['colour'];
  min: (number | null)[];
  max: (number | null)[];
}

/** Functions whose values each redraw reads. */
export interface Drawing {
  /** Visible time range. */
  window: () => [number, number];
  bands: () => Band[];
  /** Seconds per point. */
  step: () => number;
  marks: () => EventGroup[];
}

/**
 * Fill of an area: memory solid, flash striped, prefetched with vertical lines, array dotted, like the swatches of the
 * legend in CSS.
 */
export function fillOf(name: Series['colour']): CanvasPattern | string {
  const size = 8 * devicePixelRatio;
  const tile = document.createElement('canvas');
  [tile.width, tile.height] = [size, size];
  const context = tile.getContext('2d');
  if (context === null) return colour(name);
  context.fillStyle = colour(name);
  context.fillRect(0, 0, size, size);
  context.fillStyle = context.strokeStyle = colour('surface');
  context.globalAlpha = 0.55;
  context.lineWidth = size / 5;
  if (name === 'flash') {
    context.beginPath();
    for (const shift of [-size, 0, size]) {
      context.moveTo(shift - 1, size + 1);
      context.lineTo(shift + size + 1, -1);
    }
    context.stroke();
  }
  if (name === 'prefetched') {
    context.fillRect(0, 0, size / 3, size);
  }
  if (name === 'array') {
    context.beginPath();
    context.arc(size / 2, size / 2, size / 5, 0, 7);
    context.fill();
  }
  return context.createPattern(tile, 'repeat') ?? colour(name);
}

/** Cumulative sums from the last series upwards; hidden series have no height. */
export function stacked(rows: (number | null)[][], isShown: boolean[]): (number | null)[][] {
  const sums: (number | null)[][] = [];
  for (const [index, row] of [...rows.entries()].toReversed()) {
    const below = sums[0];
    const height = isShown[index] ? 1 : 0;
    sums.unshift(row.map((value, point) => (value === null ? null : value * height + (below?.[point] ?? 0))));
  }
  return sums;
}

const axis = (): uPlot.Axis => ({
  stroke: colour('muted'),
  grid: { stroke: colour('line'), width: 1 },
  ticks: { stroke: colour('line'), width: 1, size: 4 },
  font: '11px system-ui, sans-serif',
});

/** Room for the half of a time label that may be past the right edge of the plot, in pixels. */
const LABEL_OVERHANG = 40;
/** Height of the time axis, in pixels. */
const TIME_AXIS_HEIGHT = 36;
/** Minimum height between labels of a logarithmic axis, in pixels. */
const DECADE_HEIGHT_MIN = 14;

const isDecade = (value: number) => Number.isInteger(Math.log10(value));

/** Labels of a logarithmic axis: powers of ten, only every second or third where all would be too close. */
function decadeLabels(ticks: (number | null)[], height: number, format: (value: number) => string): string[] {
  const decades = ticks.filter((tick) => tick !== null && isDecade(tick));
  const every = Math.max(1, Math.ceil((DECADE_HEIGHT_MIN * (decades.length - 1)) / height));
  return ticks.map((tick) => {
    const index = decades.indexOf(tick);
    return tick !== null && index >= 0 && index % every === 0 ? format(tick) : '';
  });
}

/** Grid lines only at powers of ten. */
function decadeGrid(): Pick<uPlot.Axis, 'grid' | 'ticks'> {
  const filter = (_: uPlot, values: number[]) => values.map((value) => (isDecade(value) ? value : null));
  const { grid, ticks } = axis();
  return { grid: { ...grid, filter }, ticks: { ...ticks, filter } };
}

/** Axis increments of bytes: powers of two. */
const BYTE_INCREMENTS = Array.from({ length: 50 }, (_, power) => 2 ** power);
/** Axis increments of counts: whole numbers. */
const COUNT_INCREMENTS = Array.from({ length: 15 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();
/** Axis increments of rates: as precise as their labels. */
const RATE_INCREMENTS = [0.1, 0.2, 0.5, ...COUNT_INCREMENTS];
const DAY_SECONDS = 86_400;

/** Axis label of a time, as precise as the increment. */
function tickLabel(seconds: number, step: number): string {
  const time = new Date(seconds * 1e3);
  const isMidnight = time.getHours() === 0 && time.getMinutes() === 0;
  if (step >= DAY_SECONDS || (step >= 3_600 && isMidnight)) {
    return time.toLocaleDateString(undefined, { month: 'short', day: 'numeric' });
  }
  return step >= 60
    ? time.toLocaleTimeString(undefined, { hour: 'numeric', minute: '2-digit' })
    : time.toLocaleTimeString();
}

/** Draws the bands, one step wide each. */
function drawBands(plot: uPlot, drawing: Drawing) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.globalAlpha = 0.35;
  const minWidth = Math.round(2 * devicePixelRatio);
  for (const { colour: name, min, max } of drawing.bands()) {
    ctx.fillStyle = colour(name);
    for (const [index, start] of plot.data[0].entries()) {
      const [low, high] = [min[index], max[index]];
      if (low == null || high == null) continue;
      // Whole pixels: neighbours touch, and each is wide enough to see.
      const x = (seconds: number) => Math.round(plot.valToPos(seconds, 'x', true));
      const left = Math.min(x(start), bbox.left + bbox.width - minWidth);
      const right = Math.max(x(start + drawing.step()), left + minWidth);
      const [top, bottom] = [plot.valToPos(high, 'y', true), plot.valToPos(low, 'y', true)];
      ctx.fillRect(left, top, right - left, Math.max(1, bottom - top));
    }
  }
  ctx.restore();
}

/** Highest visible value, including bands. */
function highest(plot: uPlot, max: number | null, drawing: Drawing): number {
  const [from, to] = drawing.window();
  let result = max ?? 0;
  for (const { max } of drawing.bands()) {
    for (const [index, start] of plot.data[0].entries()) {
      if (start + drawing.step() > from && start <= to) result = Math.max(result, max[index] ?? 0);
    }
  }
  return result;
}

/** Indices of points without a neighbour, which need a dot. */
function isolated(plot: uPlot, series: number): number[] {
  const values = plot.data[series] ?? [];
  const isMissing = (index: number) => values[index] == null;
  return [...values.keys()].filter((index) => !isMissing(index) && isMissing(index - 1) && isMissing(index + 1));
}

/** Options of a chart; `formatValue` formats values of the y axis. */
export function optionsOf(
  series: Series[],
  isStacked: boolean,
  isLogarithmic: boolean,
  formatValue: (value: number) => string,
  size: { width: number; height: number },
  drawing: Drawing,
): uPlot.Options {
  // Ticks of a latency axis are plain times, also outside the bounds of the latency histogram.
  const formatTick = formatValue === latency ? time : formatValue;
  return {
    ...size,
    padding: [null, LABEL_OVERHANG, null, null],
    cursor: {
      // The cursor is shared by all charts of a view; a selection is not.
      sync: { key: 'view', setSeries: false, filters: { pub: (type) => type === 'mousemove' } },
      drag: { x: true, y: false, setScale: false, dist: 4 },
      points: { size: 6 },
    },
    legend: { show: false },
    scales: {
      x: { time: true, range: () => drawing.window() },
      // The logarithmic scale starts at one microsecond.
      y: isLogarithmic
        ? {
            distr: 3,
            range: (plot, _, max) => [1, 10 ** Math.max(1, Math.ceil(Math.log10(highest(plot, max, drawing) || 10)))],
          }
        : { range: (plot, _, max) => [0, highest(plot, max, drawing) * 1.08 || 1] },
    },
    axes: [
      {
        ...axis(),
        size: TIME_AXIS_HEIGHT,
        space: 90,
        values: (_, ticks, __, ___, step) => ticks.map((tick) => tickLabel(tick, step)),
      },
      {
        ...axis(),
        size: 74,
        ...(formatValue === bytes || formatValue === bytesRate
          ? { incrs: BYTE_INCREMENTS }
          : formatValue === count
            ? { incrs: COUNT_INCREMENTS }
            : formatValue === rate
              ? { incrs: RATE_INCREMENTS }
              : {}),
        ...(isLogarithmic ? decadeGrid() : {}),
        // uPlot passes null for labels that would overlap on a logarithmic scale.
        values: (plot, ticks) =>
          isLogarithmic
            ? decadeLabels(ticks, plot.height - 1.5 * TIME_AXIS_HEIGHT, formatTick)
            : ticks.map((tick) => (tick === 0 ? '0' : formatTick(tick))),
      },
    ],
    series: [
      {},
      ...series.map((line): uPlot.Series => ({
        label: line.label,
        stroke: colour(line.colour),
        width: isStacked ? 1 : 1.75,
        ...(isStacked ? { fill: fillOf(line.colour) } : {}),
        ...(line.dash === undefined ? {} : { dash: line.dash }),
        points: { show: true, size: 5, filter: (plot, index) => isolated(plot, index) },
      })),
    ],
    hooks: { drawAxes: [(plot) => drawBands(plot, drawing)], draw: [(plot) => drawMarks(plot, drawing.marks())] },
  };
}
