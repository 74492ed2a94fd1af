// Flash figures: bytes written by cause, fill, and expected end of rated life.

import { live } from '../feed/live.svelte';
import type { Source } from './points';
import { pairwise } from './rates';
import type { Flash, FlashDevice, Sample } from './types';

/** Bytes of a clean page. */
export const PAGE_BYTES = 65_536;

/** Bytes written per second to all devices by cause, and their fill. */
export interface FlashFigures {
  /** Unix seconds. */
  at: number;
  writtenBytes: number;
  promotionBytes: number;
  dirtyBytes: number;
  mapBytes: number;
  pages: number;
  freeSegments: number;
}

const sum = (flash: Flash, value: (device: FlashDevice) => number) =>
  flash.devices.reduce((all, device) => all + value(device), 0);

/** The time of the last answer of the flash log's core; null if that is before the page's first sample. */
export const lastAnswerMs = () =>
  live.samples.findLast(({ status: { flash } }) => flash === null || !flash.silent)?.at_unix_ms ?? null;

function between({ status: { flash: from } }: Sample, sample: Sample, elapsedMs: number): FlashFigures | null {
  const to = sample.status.flash;
  if (!from || !to || from.silent || to.silent) return null;
  // Removing a device lowers the sums: rates are never negative.
  const rate = (value: (device: FlashDevice) => number) =>
    Math.max(0, ((sum(to, value) - sum(from, value)) / elapsedMs) * 1e3);
  return {
    at: sample.at_unix_ms / 1e3,
    writtenBytes: rate((device) => device.promotion_bytes + device.log_bytes + device.journal_bytes),
    promotionBytes: rate((device) => device.promotion_bytes),
    dirtyBytes: rate((device) => device.log_bytes),
    mapBytes: rate((device) => device.journal_bytes),
    pages: to.pages.pages,
    freeSegments: to.free_segments,
  };
}

export const FLASH: Source<FlashFigures> = {
  series: [
    'flash_device_bytes',
    'flash_promotion_bytes',
    'flash_log_bytes',
    'flash_journal_bytes',
    'flash_pages',
    'flash_log_free_segments',
    'flash_devices_in_service',
  ],
  fromHistory: (report, index, aggregate) => {
    const valueOf = (name: string) => report.series[name]?.[aggregate][index] ?? 0;
    // History from before the log was opened has 0 for all of its figures.
    const levels = ['flash_pages', 'flash_log_free_segments', 'flash_devices_in_service'];
    if (levels.every((name) => valueOf(name) === 0)) return null;
    return {
      at: report.at_unix_seconds[index]!,
      writtenBytes: valueOf('flash_device_bytes'),
      promotionBytes: valueOf('flash_promotion_bytes'),
      dirtyBytes: valueOf('flash_log_bytes'),
      mapBytes: valueOf('flash_journal_bytes'),
      pages: valueOf('flash_pages'),
      freeSegments: valueOf('flash_log_free_segments'),
    };
  },
  live: () => pairwise(live.samples, between),
};

/** Path of a device, or its number where it is missing. */
export const deviceName = ({ device, number }: FlashDevice) => (device === '' ? `device ${number}` : device);

/** State of a device in words. */
export const deviceState = ({ state }: FlashDevice) => state.replaceAll('-', ' ');

/** Date at which the rated writes are used up at the mean rate so far. */
export function wearOutDate({ endurance_left_days: days }: FlashDevice, nowMs: number): string {
  if (days === null) return '–';
  if (days > 365 * 20) return '> 20 years';
  return new Date(nowMs + days * 86_400_000).toLocaleDateString();
}
