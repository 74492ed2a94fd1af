// Everything on the page that has an address of its own, and how it is found by a few letters.

import { linkTo } from './route.svelte';
import { KEYS } from './settings';
import type { Volume } from './types';

export const VIEWS = [
  { view: 'overview', href: '#/', label: 'Overview' },
  { view: 'volumes', href: '#/volumes', label: 'Volumes' },
  { view: 'datastores', href: '#/datastores', label: 'Datastores' },
  { view: 'flash', href: '#/flash', label: 'Flash' },
  { view: 'initiators', href: '#/initiators', label: 'Initiators' },
  { view: 'advice', href: '#/advice', label: 'Advice' },
  { view: 'events', href: '#/events', label: 'Events' },
  { view: 'settings', href: '#/settings', label: 'Settings' },
];

export interface Place {
  label: string;
  kind: 'view' | 'volume' | 'datastore' | 'setting';
  href: string;
}

/** Without letters there is no choice among a thousand: then these alone. */
const OF_VIEWS = VIEWS.map(({ label, href }): Place => ({ label, kind: 'view', href }));
const OF_SETTINGS = KEYS.map((key): Place => ({ label: key, kind: 'setting', href: `#/settings?filter=${key}` }));

const ofDatastore = (name: string): Place => ({
  label: name,
  kind: 'datastore',
  href: `#/volumes?filter=${encodeURIComponent(name)}`,
});

/** At most so many of the places that have all words of a text in their name or kind: first those whose name begins with it. */
export function placesLike(text: string, volumes: Pick<Volume, 'name' | 'datastore'>[], most: number): Place[] {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return OF_VIEWS;
  const names = volumes.map(({ name }): Place => ({ label: name, kind: 'volume', href: linkTo(name) }));
  const datastores = [...new Set(volumes.map(({ datastore }) => datastore).filter(Boolean))].map(ofDatastore);
  const found = [...OF_VIEWS, ...names, ...datastores, ...OF_SETTINGS].filter(({ label, kind }) => {
    const told = `${label} ${kind}`.toLowerCase();
    return words.every((word) => told.includes(word));
  });
  const rank = ({ label }: Place) => Number(!label.toLowerCase().startsWith(words[0]!));
  return found.toSorted((a, b) => rank(a) - rank(b)).slice(0, most);
}
