// Ranges of a volume that are pinned to flash, as the daemon's status tells them among what was changed by command: `0..65536,131072..196608`.

import { bytes } from './units';
import type { Override } from './types';

export interface Range {
  fromBytes: number;
  /** Behind the last. */
  toBytes: number;
}

export function rangesOf(text: string): Range[] {
  return text
    .split(',')
    .map((range) => range.split('..').map(Number))
    .filter(([from, to]) => Number.isFinite(from) && Number.isFinite(to))
    .map(([from, to]) => ({ fromBytes: from!, toBytes: to! }));
}

/** What holds, as people read it. */
export const shownOf = ({ key, value }: Override) =>
  key === 'pinned'
    ? rangesOf(value)
        .map(({ fromBytes, toBytes }) => `${bytes(fromBytes)} to ${bytes(toBytes)}`)
        .join(', ')
    : value;
