// Views, volumes, datastores and settings as navigation destinations, with a search over them.

import { linkTo } from './route.svelte';
import { KEYS } from './settings';
import type { Volume } from './types';

export const VIEWS = [
  { view: 'overview', href: '#/', label: 'Overview' },
  { view: 'volumes', href: '#/volumes', label: 'Volumes' },
  { view: 'datastores', href: '#/datastores', label: 'Datastores' },
  { view: 'flash', href: '#/flash', label: 'Flash' },
  { view: 'pools', href: '#/pools', label: 'Pools' },
  { view: 'fleet', href: '#/fleet', label: 'Fleet' },
  { view: 'initiators', href: '#/initiators', label: 'Initiators' },
  { view: 'advice', href: '#/advice', label: 'Advice' },
  { view: 'events', href: '#/events', label: 'Events' },
  { view: 'settings', href: '#/settings', label: 'Settings' },
];

export interface Destination {
  label: string;
  kind: 'view' | 'volume' | 'datastore' | 'setting';
  href: string;
}

/** The only results of an empty search. */
const VIEW_DESTINATIONS = VIEWS.map(({ label, href }): Destination => ({ label, kind: 'view', href }));
const SETTING_DESTINATIONS = KEYS.map((key): Destination => ({
  label: key,
  kind: 'setting',
  href: `#/settings?filter=${key}`,
}));

const ofDatastore = (name: string): Destination => ({
  label: name,
  kind: 'datastore',
  href: `#/volumes?filter=${encodeURIComponent(name)}`,
});

/** Destinations whose name or kind contains all words of `text`, at most `limit`; prefix matches first. */
export function searchDestinations(
  text: string,
  volumes: Pick<Volume, 'name' | 'datastore'>[],
  limit: number,
): Destination[] {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return VIEW_DESTINATIONS;
  const names = volumes.map(({ name }): Destination => ({ label: name, kind: 'volume', href: linkTo(name) }));
  const datastores = [...new Set(volumes.map(({ datastore }) => datastore).filter(Boolean))].map(ofDatastore);
  const matches = [...VIEW_DESTINATIONS, ...names, ...datastores, ...SETTING_DESTINATIONS].filter(({ label, kind }) => {
    const haystack = `${label} ${kind}`.toLowerCase();
    return words.every((word) => haystack.includes(word));
  });
  const rank = ({ label }: Destination) => Number(!label.toLowerCase().startsWith(words[0]!));
  return matches.toSorted((a, b) => rank(a) - rank(b)).slice(0, limit);
}
