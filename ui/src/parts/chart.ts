// How charts look: told apart by pattern as well as by colour, for not everybody sees all colours.

import uPlot from 'uplot';
import { colour } from '../lib/theme.svelte';

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

export function optionsOf(
  series: Series[],
  isStacked: boolean,
  unit: (value: number) => string,
  syncKey: string,
  size: { width: number; height: number },
  values: (series: number, at: number) => number | null,
): uPlot.Options {
  return {
    ...size,
    cursor: { sync: { key: syncKey }, drag: { x: false, y: false }, points: { size: 6 } },
    legend: { show: true, live: true },
    scales: { x: { time: true }, y: { range: (_, __, max) => [0, max > 0 ? max * 1.08 : 1] } },
    axes: [
      { ...axis(), space: 70 },
      { ...axis(), size: 74, values: (_, ticks) => ticks.map((tick) => (tick === 0 ? '0' : unit(tick))) },
    ],
    series: [
      { label: 'Time', value: '{HH}:{mm}:{ss}' },
      ...series.map((one, index): uPlot.Series => ({
        label: one.label,
        stroke: colour(one.colour),
        width: isStacked ? 1 : 1.75,
        ...(isStacked ? { fill: fillOf(one.colour) } : {}),
        ...(one.dash === undefined ? {} : { dash: one.dash }),
        points: { show: false },
        // Of a stack the legend tells each part, not the sum that is drawn.
        value: (_plot, _raw, _series, at) => {
          const value = at === null ? null : values(index, at);
          return value === null ? '–' : unit(value);
        },
      })),
    ],
  };
}
