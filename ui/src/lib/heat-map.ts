// Heat map of a volume: minutes on the x axis, addresses on the y axis, requests as colour.

import type { Heat } from './types';

/** Kinds of requests to count. */
export const KINDS = [
  { key: '', label: 'reads and writes', noun: 'request' },
  { key: 'reads', label: 'reads', noun: 'read' },
  { key: 'writes', label: 'writes', noun: 'write' },
] as const;
export type Kind = (typeof KINDS)[number]['key'];

/** Colour steps; the lower bound of each is a quarter of the next one's. */
export const STEPS = 5;
const STEP_RATIO = 4;
/** Least ratio of all requests that the hottest parts of the summary account for. */
const SUMMARY_RATIO = 0.8;

/** Adjacent parts of the volume with the same colour in one minute. */
export interface Run {
  column: number;
  /** First part. */
  from: number;
  /** One past the last part. */
  to: number;
  /** From 1 (palest) to `STEPS`. */
  step: number;
}

/** Address range of the volume, with its requests. */
export interface Part {
  from: number;
  to: number;
  reads: number;
  writes: number;
}

export class HeatMap {
  /** Number of parts of the volume. */
  readonly parts: number;
  /** Start of each column, Unix seconds. */
  readonly columnStarts: number[];
  private readonly rows: (Heat['rows'][number] | undefined)[];
  /** Lower bound of each colour step, palest first; empty without requests. */
  readonly lowerBounds: number[];

  /** Covers the retained minutes up to `now`, Unix seconds. */
  constructor(
    private readonly heat: Heat,
    private readonly kind: Kind,
    now: number,
  ) {
    const { step_seconds: step, keep_seconds: seconds, rows } = heat;
    this.parts = Math.max(1, Math.ceil(heat.size_bytes / heat.part_bytes));
    // All minutes start at about the same second.
    const phase = rows.at(-1)?.at_unix_seconds ?? now;
    const newest = phase + step * Math.max(0, Math.floor((now - phase) / step));
    const columns = seconds / step;
    this.columnStarts = Array.from({ length: columns }, (_, column) => newest - step * (columns - 1 - column));
    this.rows = this.columnStarts.map((start) => rows.find((row) => Math.abs(row.at_unix_seconds - start) < step / 2));
    const countMax = Math.max(0, ...this.rows.flatMap((_, column) => this.column(column)));
    const lowerBounds = Array.from({ length: STEPS }, (_, step) => Math.ceil(countMax / STEP_RATIO ** (STEPS - step)));
    this.lowerBounds = countMax === 0 ? [] : [...new Set([1, ...lowerBounds.slice(1)])];
  }

  /** Requests to a part in a minute. */
  cell(column: number, part: number): Part {
    const { part_bytes: bytes, size_bytes: size } = this.heat;
    const row = this.rows[column];
    return {
      from: part * bytes,
      to: Math.min(size, (part + 1) * bytes),
      reads: row?.reads[part] ?? 0,
      writes: row?.writes[part] ?? 0,
    };
  }

  /** Requests of the selected kind. */
  count({ reads, writes }: Part): number {
    return (this.kind === 'writes' ? 0 : reads) + (this.kind === 'reads' ? 0 : writes);
  }

  /** Requests per part in a minute. */
  private column(column: number): number[] {
    return Array.from({ length: this.parts }, (_, part) => this.count(this.cell(column, part)));
  }

  /** Colour step of a count; 0 without requests. */
  private stepOf(count: number): number {
    const reached = this.lowerBounds.filter((bound) => count >= bound).length;
    return reached === 0 ? 0 : reached + STEPS - this.lowerBounds.length;
  }

  /** All runs with requests. */
  runs(): Run[] {
    return this.columnStarts.flatMap((_, column) => {
      const runs: Run[] = [];
      for (const [part, count] of this.column(column).entries()) {
        const step = this.stepOf(count);
        const last = runs.at(-1);
        if (last?.step === step) last.to = part + 1;
        else runs.push({ column, from: part, to: part + 1, step });
      }
      return runs.filter(({ step }) => step > 0);
    });
  }

  /** Requests per part over all minutes, hottest first. */
  hottest(): Part[] {
    const parts = Array.from({ length: this.parts }, (_, part) =>
      this.columnStarts
        .map((_, column) => this.cell(column, part))
        .reduce((sum, { reads, writes, ...rest }) => ({
          ...rest,
          reads: sum.reads + reads,
          writes: sum.writes + writes,
        })),
    );
    return parts.filter((part) => this.count(part) > 0).toSorted((a, b) => this.count(b) - this.count(a));
  }

  /** All requests, and the number of hottest parts that received `ratio` of them. */
  summary(): { all: number; hotParts: number; ratio: number } {
    const counts = this.hottest().map((part) => this.count(part));
    const all = counts.reduce((sum, count) => sum + count, 0);
    let [hotParts, covered] = [0, 0];
    while (covered < all * SUMMARY_RATIO) covered += counts[hotParts++]!;
    return { all, hotParts, ratio: all > 0 ? covered / all : 0 };
  }

  /** One line per part and minute with requests. */
  csv(): string {
    const lines = ['time,at_unix_seconds,from_bytes,to_bytes,reads,writes'];
    for (const [column, seconds] of this.columnStarts.entries()) {
      for (let part = 0; part < this.parts; part++) {
        const { from, to, reads, writes } = this.cell(column, part);
        if (reads + writes === 0) continue;
        lines.push([new Date(seconds * 1e3).toISOString(), seconds, from, to, reads, writes].join(','));
      }
    }
    return `${lines.join('\n')}\n`;
  }
}
