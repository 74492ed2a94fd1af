// The subject of an alert or event as a link to the view that shows it.

import { linkTo, poolLink } from './route.svelte';
import type { Alert, Event } from './types';

export type SubjectKind = Alert['kind'] | Event['kind'];

/** Kinds of alerts that concern the flash cache, for any subject. */
const OF_FLASH: SubjectKind[] = [
  'flash-data-lost',
  'no-copy',
  'flash-unused',
  'flash-degraded',
  'drive-failing',
  'single-copy',
  'endurance',
  'flash-unclaimed',
  'flash-unlisted',
  'pages-dropped',
];

/** An alert of kind `other` with the subject `flash` concerns the flash cache as a whole. */
const isWholeFlash = (kind: SubjectKind, subject: string | null) => kind === 'other' && subject === 'flash';
/** Names of volumes contain none of these characters; paths, `number 3` and `core 0` do. */
const isVolume = (subject: string) => !/[ /[\]]/.test(subject);
const isDevice = (subject: string | null) => subject !== null && /^\/|^number \d/.test(subject);

export const isOfFlash = ({ kind, subject }: { kind: SubjectKind; subject: string | null }) =>
  kind === 'device' || OF_FLASH.includes(kind) || isWholeFlash(kind, subject) || isDevice(subject);

export interface SubjectLink {
  text: string;
  /** Undefined where no view shows the subject. */
  href?: string;
  isVolume: boolean;
}

export function subjectLinkOf(kind: SubjectKind, subject: string | null): SubjectLink {
  if (subject !== null && isVolume(subject) && kind !== 'device' && !isWholeFlash(kind, subject)) {
    return { text: subject, href: linkTo(subject), isVolume: true };
  }
  if (isOfFlash({ kind, subject })) {
    // Events name a device without a path by its number.
    return { text: subject?.replace(/^number /, 'device ') ?? 'flash', href: '#/flash', isVolume: false };
  }
  const pool = subject?.match(/^pool (\S+)$/)?.[1];
  if (pool !== undefined) return { text: subject!, href: poolLink(pool), isVolume: false };
  return { text: subject ?? 'the daemon', isVolume: false };
}
