// What is written to flash, a second, by cause; and what of a device's rated life is left.

import { tookMs } from './rates';
import type { Flash, FlashDevice, Sample } from './types';

/** Bytes a second, of all devices together. */
export interface Writes {
  promotion: number;
  dirty: number;
  journal: number;
}

const sum = (flash: Flash, of: (device: FlashDevice) => number) =>
  flash.devices.reduce((all, device) => all + of(device), 0);

/** Between neighbouring samples; null where they say nothing of the time between. */
export function writesOf(samples: Sample[]): (Writes | null)[] {
  return samples.slice(1).map((sample, index) => {
    const before = samples[index]!;
    const [from, to, took] = [before.status.flash, sample.status.flash, tookMs(before, sample)];
    if (!from || !to || took === null) return null;
    // A device that goes takes its counts along: no rate is below zero.
    const rate = (of: (device: FlashDevice) => number) => Math.max(0, ((sum(to, of) - sum(from, of)) / took) * 1e3);
    return {
      promotion: rate((device) => device.promotion_bytes),
      dirty: rate((device) => device.log_bytes),
      journal: rate((device) => device.journal_bytes),
    };
  });
}

/** What to call a device by: its path, and its number where it is not there. */
export const deviceName = ({ device, number }: FlashDevice) => (device === '' ? `number ${number}` : device);

/** When its rated writes are used up at the mean pace so far. */
export function spentAt({ endurance_left_days: days }: FlashDevice, nowMs: number): string {
  if (days === null) return '–';
  // Whoever writes next to nothing is told that, not a date in another century.
  if (days > 365 * 20) return 'in more than 20 years';
  return new Date(nowMs + days * 86_400_000).toLocaleDateString();
}
