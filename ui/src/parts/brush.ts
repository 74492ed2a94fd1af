// Marking a part of a chart to zoom into, with the mouse or with keys alone.

import type uPlot from 'uplot';

/** What is done with what was marked. */
export interface Brushed {
  into: (from: number, to: number) => void;
  back: () => void;
}

const NONE = { left: 0, top: 0, width: 0, height: 0 };

/** Lets the mouse mark a part of the chart that these options make. */
export function brushable(options: uPlot.Options, { into, back }: Brushed): uPlot.Options {
  const marked = (plot: uPlot) => {
    const { left, width } = plot.select;
    plot.setSelect(NONE, false);
    if (width > 0) into(plot.posToVal(left, 'x'), plot.posToVal(left + width, 'x'));
  };
  return {
    ...options,
    cursor: {
      ...options.cursor,
      bind: {
        dblclick: () => () => {
          back();
          return null;
        },
      },
    },
    hooks: { ...options.hooks, setSelect: [marked] },
  };
}

/** Keys on a chart: arrows move the cursor, with Shift they mark, Enter zooms in, Escape forgets what is marked or steps back; E moves to the event before. */
export class Keys {
  /** Where marking began, in seconds since 1970: what is shown may move meanwhile. */
  private mark: number | null = null;

  constructor(
    private readonly plot: () => uPlot | undefined,
    private readonly brushed: Brushed,
    /** When events were, in seconds since 1970, the oldest first. */
    private readonly events: () => number[],
  ) {}

  /** True where the key was one of these. */
  press({ key, shiftKey, ctrlKey, altKey, metaKey }: KeyboardEvent): boolean {
    const plot = this.plot();
    const at = plot?.data[0] ?? [];
    if (plot === undefined || at.length === 0) return false;
    const here = plot.cursor.idx ?? at.length - 1;
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20 }[key];
    if (step !== undefined) {
      const next = at[Math.min(at.length - 1, Math.max(0, here + step))]!;
      this.mark = shiftKey ? (this.mark ?? at[here]!) : null;
      const left = (seconds: number) => plot.valToPos(seconds, 'x');
      this.moveTo(plot, next);
      const [from, to] = this.marked(next);
      plot.setSelect({ left: left(from), top: 0, width: left(to) - left(from), height: plot.over.clientHeight }, false);
      return true;
    }
    if (key.toLowerCase() === 'e' && !ctrlKey && !altKey && !metaKey) {
      this.toEvent(plot, shiftKey);
      return true;
    }
    if (key === 'Enter' && this.mark !== null) {
      const [from, to] = this.marked(at[here]!);
      this.forget(plot);
      if (to > from) this.brushed.into(from, to);
      return true;
    }
    if (key !== 'Escape') return false;
    if (this.mark === null) this.brushed.back();
    this.forget(plot);
    return true;
  }

  private moveTo(plot: uPlot, seconds: number) {
    // The third argument, which its types lack, tells the other charts.
    const setCursor = plot.setCursor as (to: { left: number; top: number }, fire: boolean, tell: boolean) => void;
    setCursor({ left: plot.valToPos(seconds, 'x'), top: plot.over.clientHeight / 2 }, true, true);
  }

  /** To the event before the cursor, or behind it; from the end on where there is no cursor. */
  private toEvent(plot: uPlot, isBehind: boolean) {
    const width = plot.over.clientWidth;
    const left = plot.cursor.left ?? -1;
    const here = left < 0 ? (isBehind ? -1 : width + 1) : left;
    // A pixel is nearer than anybody sees.
    const inSight = this.events().filter((at) => plot.valToPos(at, 'x') >= 0 && plot.valToPos(at, 'x') <= width);
    const next = isBehind
      ? inSight.find((at) => plot.valToPos(at, 'x') > here + 1)
      : inSight.findLast((at) => plot.valToPos(at, 'x') < here - 1);
    if (next !== undefined) this.moveTo(plot, next);
  }

  private marked(here: number): [number, number] {
    const mark = this.mark ?? here;
    return [Math.min(mark, here), Math.max(mark, here)];
  }

  private forget(plot: uPlot) {
    this.mark = null;
    plot.setSelect(NONE, false);
  }
}
