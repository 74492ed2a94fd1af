// How charts look: told apart by pattern as well as by colour, for not everybody sees all colours.

import uPlot from 'uplot';
import { colour } from '../lib/theme.svelte';
import { bytes, bytesRate } from '../lib/units';

export interface Series {
  label: string;
  /** Name of a colour in the style sheet, and of the pattern that goes with it. */
  colour: 'memory' | 'flash' | 'array' | 'ink';
  dash?: number[];
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

/** Sums from the last series upwards, so that each area stands on the next. */
export function stacked(rows: (number | null)[][]): (number | null)[][] {
  const sums: (number | null)[][] = [];
  for (const row of rows.toReversed()) {
    const below = sums[0];
    sums.unshift(row.map((value, at) => (value === null ? null : value + (below?.[at] ?? 0))));
  }
  return sums;
}

const axis = (): uPlot.Axis => ({
  stroke: colour('muted'),
  grid: { stroke: colour('line'), width: 1 },
  ticks: { stroke: colour('line'), width: 1, size: 4 },
  font: '11px system-ui, sans-serif',
});

/** Steps of a scale of bytes are powers of two. */
const BINARY = Array.from({ length: 50 }, (_, power) => 2 ** power);
const clock = (seconds: number) => new Date(seconds * 1e3).toLocaleTimeString();

/** The legend tells what is under the cursor, and without one the newest. */
function shownAt(plot: uPlot, at: number | null, show: (at: number) => string): string {
  const found = at ?? plot.data[0].length - 1;
  return found < 0 ? '–' : show(found);
}

export function optionsOf(
  series: Series[],
  isStacked: boolean,
  isLogarithmic: boolean,
  unit: (value: number) => string,
  syncKey: string,
  size: { width: number; height: number },
  values: (series: number, at: number) => number | null,
): uPlot.Options {
  return {
    ...size,
    cursor: { sync: { key: syncKey }, drag: { x: false, y: false }, points: { size: 6 } },
    legend: { show: true, live: true },
    scales: {
      x: { time: true },
      // Logarithms have no zero; what is shown of them begins at a microsecond.
      y: isLogarithmic
        ? { distr: 3, range: (_, __, max) => [1, Math.max(10, 10 ** Math.ceil(Math.log10(max || 10)))] }
        : { range: (_, __, max) => [0, max > 0 ? max * 1.08 : 1] },
    },
    axes: [
      { ...axis(), space: 90, values: (_, ticks) => ticks.map(clock) },
      {
        ...axis(),
        size: 74,
        ...(unit === bytes || unit === bytesRate ? { incrs: BINARY } : {}),
        // On a logarithmic scale null stands where a number would be too close to the next.
        values: (_, ticks) => ticks.map((tick) => (tick === null ? '' : tick === 0 ? '0' : unit(tick))),
      },
    ],
    series: [
      { label: 'At', value: (plot, _, __, at) => shownAt(plot, at, (found) => clock(plot.data[0][found] ?? 0)) },
      ...series.map((one, index): uPlot.Series => ({
        label: one.label,
        stroke: colour(one.colour),
        width: isStacked ? 1 : 1.75,
        ...(isStacked ? { fill: fillOf(one.colour) } : {}),
        ...(one.dash === undefined ? {} : { dash: one.dash }),
        points: { show: false },
        // Of a stack the legend tells each part, not the sum that is drawn.
        value: (plot, _, __, at) =>
          shownAt(plot, at, (found) => {
            const value = values(index, found);
            return value === null ? '–' : unit(value);
          }),
      })),
    ],
  };
}
