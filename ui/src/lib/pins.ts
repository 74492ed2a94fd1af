// Pinned ranges of a volume, as the status lists them among overrides: `0..65536,131072..196608`.

import { bytes } from './units';
import type { Override } from './types';

export interface Range {
  fromBytes: number;
  /** Exclusive. */
  toBytes: number;
}

export function rangesOf(text: string): Range[] {
  return text
    .split(',')
    .map((range) => range.split('..').map(Number))
    .filter(([from, to]) => Number.isFinite(from) && Number.isFinite(to))
    .map(([from, to]) => ({ fromBytes: from!, toBytes: to! }));
}

/** The value of an override for display. */
export const overrideText = ({ key, value }: Override) =>
  key === 'pinned'
    ? rangesOf(value)
        .map(({ fromBytes, toBytes }) => `${bytes(fromBytes)} to ${bytes(toBytes)}`)
        .join(', ')
    : value;
