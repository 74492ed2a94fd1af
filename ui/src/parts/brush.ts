// Selection of a time range on a chart, by mouse or keyboard.

import type uPlot from 'uplot';

/** Called to zoom in to a selection and to zoom out. */
export interface ZoomHandlers {
  zoomTo: (from: number, to: number) => void;
  zoomOut: () => void;
}

const NO_SELECTION = { left: 0, top: 0, width: 0, height: 0 };

/** Adds selection by mouse to the options of a chart. */
export function brushable(options: uPlot.Options, { zoomTo, zoomOut }: ZoomHandlers): uPlot.Options {
  const zoomToSelection = (plot: uPlot) => {
    const { left, width } = plot.select;
    plot.setSelect(NO_SELECTION, false);
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
    hooks: { ...options.hooks, setSelect: [zoomToSelection] },
  };
}

/**
 * Keyboard control: arrows move the cursor, with Shift they select; Enter zooms in, Escape clears or zooms out, E moves
 * to an event.
 */
export class KeyboardControl {
  /** Start of the selection in Unix seconds, because the chart may move meanwhile. */
  private anchor: number | null = null;

  constructor(
    private readonly plot: () => uPlot | undefined,
    private readonly handlers: ZoomHandlers,
    /** Times of events in Unix seconds, oldest first. */
    private readonly events: () => number[],
  ) {}

  /** True if the key was handled. */
  handleKey({ key, shiftKey, ctrlKey, altKey, metaKey }: KeyboardEvent): boolean {
    const plot = this.plot();
    const times = plot?.data[0] ?? [];
    if (plot === undefined || times.length === 0) return false;
    const cursorIndex = plot.cursor.idx ?? times.length - 1;
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20 }[key];
    if (step !== undefined) {
      const next = times[Math.min(times.length - 1, Math.max(0, cursorIndex + step))]!;
      this.anchor = shiftKey ? (this.anchor ?? times[cursorIndex]!) : null;
      const left = (seconds: number) => plot.valToPos(seconds, 'x');
      this.moveTo(plot, next);
      const [from, to] = this.selection(next);
      plot.setSelect({ left: left(from), top: 0, width: left(to) - left(from), height: plot.over.clientHeight }, false);
      return true;
    }
    if (key.toLowerCase() === 'e' && !ctrlKey && !altKey && !metaKey) {
      this.moveToEvent(plot, shiftKey);
      return true;
    }
    if (key === 'Enter' && this.anchor !== null) {
      const [from, to] = this.selection(times[cursorIndex]!);
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

  /** Moves the cursor to the previous or next event; without a cursor to the last or the first one. */
  private moveToEvent(plot: uPlot, isForward: boolean) {
    const width = plot.over.clientWidth;
    const left = plot.cursor.left ?? -1;
    const cursorLeft = left < 0 ? (isForward ? -1 : width + 1) : left;
    // Events within one pixel of the cursor count as reached.
    const visible = this.events().filter((time) => plot.valToPos(time, 'x') >= 0 && plot.valToPos(time, 'x') <= width);
    const next = isForward
      ? visible.find((time) => plot.valToPos(time, 'x') > cursorLeft + 1)
      : visible.findLast((time) => plot.valToPos(time, 'x') < cursorLeft - 1);
    if (next !== undefined) this.moveTo(plot, next);
  }

  /** Selected range, in order, with the cursor at this time. */
  private selection(cursorTime: number): [number, number] {
    const anchor = this.anchor ?? cursorTime;
    return [Math.min(anchor, cursorTime), Math.max(anchor, cursorTime)];
  }

  private clear(plot: uPlot) {
    this.anchor = null;
    plot.setSelect(NO_SELECTION, false);
  }
}
