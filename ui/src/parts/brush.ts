// Selection of a time range on a chart, by mouse or keyboard.

import type uPlot from 'uplot';

/** Reactions to a selection. */
export interface ZoomHandlers {
  zoomTo: (from: number, to: number) => void;
  zoomOut: () => void;
}

const NONE = { left: 0, top: 0, width: 0, height: 0 };

/** Adds selection by mouse to the options of a chart. */
export function brushable(options: uPlot.Options, { zoomTo, zoomOut }: ZoomHandlers): uPlot.Options {
  const marked = (plot: uPlot) => {
    const { left, width } = plot.select;
    plot.setSelect(NONE, false);
    if (width > 0) zoomTo(plot.posToVal(left, 'x'), plot.posToVal(left + width, 'x'));
  };
  return {
    ...options,
    cursor: {
      ...options.cursor,
      bind: {
        dblclick: () => () => {
          zoomOut();
          return null;
        },
      },
    },
    hooks: { ...options.hooks, setSelect: [marked] },
  };
}

/** Keyboard control: arrows move the cursor, with Shift they select; Enter zooms in, Escape clears or zooms out, E jumps to events. */
export class Keys {
  /** Start of the selection in Unix seconds, because the chart may move meanwhile. */
  private anchor: number | null = null;

  constructor(
    private readonly plot: () => uPlot | undefined,
    private readonly handlers: ZoomHandlers,
    /** Times of events in Unix seconds, oldest first. */
    private readonly events: () => number[],
  ) {}

  /** Returns whether the key was handled. */
  press({ key, shiftKey, ctrlKey, altKey, metaKey }: KeyboardEvent): boolean {
    const plot = this.plot();
    const at = plot?.data[0] ?? [];
    if (plot === undefined || at.length === 0) return false;
    const here = plot.cursor.idx ?? at.length - 1;
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20 }[key];
    if (step !== undefined) {
      const next = at[Math.min(at.length - 1, Math.max(0, here + step))]!;
      this.anchor = shiftKey ? (this.anchor ?? at[here]!) : null;
      const left = (seconds: number) => plot.valToPos(seconds, 'x');
      this.moveTo(plot, next);
      const [from, to] = this.selection(next);
      plot.setSelect({ left: left(from), top: 0, width: left(to) - left(from), height: plot.over.clientHeight }, false);
      return true;
    }
    if (key.toLowerCase() === 'e' && !ctrlKey && !altKey && !metaKey) {
      this.toEvent(plot, shiftKey);
      return true;
    }
    if (key === 'Enter' && this.anchor !== null) {
      const [from, to] = this.selection(at[here]!);
      this.clear(plot);
      if (to > from) this.handlers.zoomTo(from, to);
      return true;
    }
    if (key !== 'Escape') return false;
    if (this.anchor === null) this.handlers.zoomOut();
    this.clear(plot);
    return true;
  }

  private moveTo(plot: uPlot, seconds: number) {
    // The third argument, missing in the types, publishes to the other charts.
    const setCursor = plot.setCursor as (to: { left: number; top: number }, fire: boolean, publish: boolean) => void;
    setCursor({ left: plot.valToPos(seconds, 'x'), top: plot.over.clientHeight / 2 }, true, true);
  }

  /** Moves to the previous or next event; starts at an end without a cursor. */
  private toEvent(plot: uPlot, isForward: boolean) {
    const width = plot.over.clientWidth;
    const left = plot.cursor.left ?? -1;
    const here = left < 0 ? (isForward ? -1 : width + 1) : left;
    // Events within one pixel of the cursor count as reached.
    const visible = this.events().filter((at) => plot.valToPos(at, 'x') >= 0 && plot.valToPos(at, 'x') <= width);
    const next = isForward
      ? visible.find((at) => plot.valToPos(at, 'x') > here + 1)
      : visible.findLast((at) => plot.valToPos(at, 'x') < here - 1);
    if (next !== undefined) this.moveTo(plot, next);
  }

  private selection(here: number): [number, number] {
    const anchor = this.anchor ?? here;
    return [Math.min(anchor, here), Math.max(anchor, here)];
  }

  private clear(plot: uPlot) {
    this.anchor = null;
    plot.setSelect(NONE, false);
  }
}
