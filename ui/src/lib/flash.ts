// What is written to flash, a second, and what lies there; and what of a device's rated life is left.

import type { Source } from './points';
import { neighbours } from './rates';
import type { Flash, FlashDevice, Sample } from './types';

/** Bytes a second, of all devices together. */
export interface Writes {
  promotion: number;
  dirty: number;
  journal: number;
}

/** What the history knows of flash: what was written for all causes together, and what was free or taken. */
export interface FlashFigures {
  /** Unix time in seconds. */
  at: number;
  /** Bytes a second, to all devices. */
  writtenBytes: number;
  pages: number;
  freeSegments: number;
}

const sum = (flash: Flash, of: (device: FlashDevice) => number) =>
  flash.devices.reduce((all, device) => all + of(device), 0);

function writesBetween(before: Sample, sample: Sample, tookMs: number): Writes | null {
  const [from, to] = [before.status.flash, sample.status.flash];
  if (!from || !to) return null;
  // A device that goes takes its counts along: no rate is below zero.
  const rate = (of: (device: FlashDevice) => number) => Math.max(0, ((sum(to, of) - sum(from, of)) / tookMs) * 1e3);
  return {
    promotion: rate((device) => device.promotion_bytes),
    dirty: rate((device) => device.log_bytes),
    journal: rate((device) => device.journal_bytes),
  };
}

/** Between neighbouring samples; null where they say nothing of the time between. */
export const writesOf = (samples: Sample[]) => neighbours(samples, writesBetween);

export const FLASH: Source<FlashFigures> = {
  figures: ['flash_device_bytes', 'flash_pages', 'flash_log_free_segments'],
  told: (report, index, kind) => {
    const of = (name: string) => report.series[name]?.[kind][index] ?? 0;
    return {
      at: report.at_unix_seconds[index]!,
      writtenBytes: of('flash_device_bytes'),
      pages: of('flash_pages'),
      freeSegments: of('flash_log_free_segments'),
    };
  },
  isIn: ({ status }) => status.flash !== null,
  between: (before, sample, tookMs) => {
    const writes = writesBetween(before, sample, tookMs);
    const flash = sample.status.flash;
    if (!writes || !flash) return null;
    return {
      at: sample.at_unix_ms / 1e3,
      writtenBytes: writes.promotion + writes.dirty + writes.journal,
      pages: flash.pages.pages,
      freeSegments: flash.free_segments,
    };
  },
};

/** What to call a device by: its path, and its number where it is not there. */
export const deviceName = ({ device, number }: FlashDevice) => (device === '' ? `number ${number}` : device);

/** When its rated writes are used up at the mean pace so far. */
export function spentAt({ endurance_left_days: days }: FlashDevice, nowMs: number): string {
  if (days === null) return '–';
  // Whoever writes next to nothing is told that, not a date in another century.
  if (days > 365 * 20) return 'in more than 20 years';
  return new Date(nowMs + days * 86_400_000).toLocaleDateString();
}
