// Map of a volume's slices: cells in the order of their addresses, in rows; their load or their tier as colour.

import { STEPS } from './heat-map';
import type { PoolCells } from './types';

/** Each colour step begins at a quarter of the next one's load. */
const STEP_RATIO = 4;

/** Meanings of the colour. */
export const SHOWN = [
  { key: '', label: 'load' },
  { key: 'tier', label: 'tier' },
] as const;
export type Shown = (typeof SHOWN)[number]['key'];

/** Consecutive slices of a volume. */
export interface Cell {
  from: number;
  to: number;
  /** Allocated bytes in each tier. */
  tierBytes: number[];
  /** Disk time for each hour, in milliseconds. */
  ms: number;
  /** Colour step of the load, from 1 (palest) to `STEPS`; 0 without load. */
  step: number;
  /** The tier with most of its bytes; null if nothing is allocated. */
  tier: number | null;
}

export class SliceMap {
  readonly cells: Cell[];
  /** Least load of each colour step in milliseconds an hour, palest first; empty without load. */
  readonly lowerBounds: number[];

  constructor(map: PoolCells, sizeBytes: number) {
    const loads = map.us_per_hour.map((us) => us / 1e3);
    const max = Math.max(0, ...loads);
    this.lowerBounds = max === 0 ? [] : Array.from({ length: STEPS }, (_, step) => max / STEP_RATIO ** (STEPS - step));
    this.cells = loads.map((ms, index): Cell => {
      const tierBytes = map.tier_bytes[index]!;
      const allocated = Math.max(...tierBytes);
      return {
        from: index * map.cell_bytes,
        to: Math.min(sizeBytes, (index + 1) * map.cell_bytes),
        tierBytes,
        ms,
        // The palest step has all lower loads.
        step: ms === 0 ? 0 : Math.max(1, this.lowerBounds.filter((bound) => ms >= bound).length),
        tier: allocated > 0 ? tierBytes.indexOf(allocated) : null,
      };
    });
  }

  /** Load of all cells, in milliseconds an hour. */
  get total(): number {
    return this.cells.reduce((sum, { ms }) => sum + ms, 0);
  }

  /** Columns of a map of this width whose cells are at least so wide: few rows, and no more columns than cells. */
  columns(width: number, cellPixels: number): number {
    return Math.max(1, Math.min(this.cells.length, Math.floor(width / cellPixels)));
  }
}
