// What alerts and events are about, and where the page shows that.

import { linkTo } from './route.svelte';
import type { Alert, Event } from './types';

/** Kinds of alerts that are about flash, whatever their subject is. */
const OF_FLASH = [
  'flash-data-lost',
  'no-copy',
  'flash-unused',
  'flash-degraded',
  'drive-failing',
  'single-copy',
  'endurance',
  'flash-unclaimed',
  'pages-dropped',
];

/** What has no name of its own in an alert that no other kind tells. */
const isFlashAlone = (kind: string, subject: string | null) => kind === 'other' && subject === 'flash';
/** A volume's name has none of these; a path, `number 3` and `core 0` have one. */
const isVolume = (subject: string) => !/[ /[\]]/.test(subject);
const isDevice = (subject: string | null) => subject !== null && /^\/|^number \d/.test(subject);

export const isOfFlash = ({ kind, subject }: Pick<Alert | Event, 'kind' | 'subject'>) =>
  kind === 'device' || OF_FLASH.includes(kind) || isFlashAlone(kind, subject) || isDevice(subject);

export interface About {
  text: string;
  /** Where it is shown; undefined where it has no view. */
  href?: string;
  isVolume: boolean;
}

/** Of an alert's or an event's kind and subject. */
export function aboutOf(kind: string, subject: string | null): About {
  if (subject !== null && isVolume(subject) && kind !== 'device' && !isFlashAlone(kind, subject)) {
    return { text: subject, href: linkTo(subject), isVolume: true };
  }
  if (isOfFlash({ kind, subject })) {
    return { text: subject ?? 'flash', href: '#/flash', isVolume: false };
  }
  return { text: subject ?? 'the daemon', isVolume: false };
}
