// What the removal of a flash device does to the clean pages.

import type { Flash, FlashDevice } from './types';

/** Why a removal drops clean pages, and how many; `pages` is null while they are not counted. */
export type PageLoss =
  | { reason: 'none' }
  | { reason: 'no-room'; pages: number }
  | { reason: 'log-take-over'; pages: number | null; successor: number };

/** The clean pages that the removal of a device drops. */
export function pageLoss(flash: Flash, removed: FlashDevice): PageLoss {
  const { pages_lost_if_removed: pages, log_successor: successor } = removed;
  if (successor !== null) return { reason: 'log-take-over', pages: flash.pages.loaded ? pages : null, successor };
  return pages === 0 ? { reason: 'none' } : { reason: 'no-room', pages };
}
