// What the daemon runs with: of each key of the configuration what holds, where that comes from, and what would hold without it.

import { TABLES } from 'virtual:keys';
import type { Key, KeyEntry } from './types';

export interface Setting {
  /** `memory.size` */
  key: string;
  name: string;
  /** How it is written, by example. */
  form: string;
  /** What holds without it. */
  without: string;
  text: string;
  /** What holds, and where that comes from; of a repeated table in a few words. */
  value: string;
  from: string;
  isDifferent: boolean;
  /** Of a repeated table, what has another value than the default, or one of its own. */
  entries: KeyEntry[];
  /** When a change in the file takes effect. */
  takesEffect: string;
}

export interface Table {
  /** `[memory]` */
  name: string;
  settings: Setting[];
}

/** A default that is none: each has a value of its own. */
const REQUIRED = 'required';
const FROM = { default: '', file: 'from the file', command: 'by command' };

const TAKES_EFFECT = {
  command:
    'at once in the view of the volume and by `hotset volume set`, and from the file when it is read again (SIGHUP)',
  renewal: 'when the file is read again (SIGHUP); TLS itself is turned on and off by a restart',
  reload: 'when the file is read again (SIGHUP)',
  restart: 'after a restart',
};

/** `memory.size`; what stands at the top of the file has no table. */
const keyOf = (table: string, name: string) =>
  table.startsWith('[') ? `${table.replaceAll(/[[\]]/g, '')}.${name}` : name;

/** All of them. */
export const KEYS = TABLES.flatMap(({ name, keys }) => keys.map((key) => keyOf(name, key.name)));

/** What holds of a key; `names` are those of its table, if that is repeated. */
function found({ table, key, default: without, value, source, entries }: Key, names: string[]) {
  if (value !== null) return { value, from: FROM[source], isDifferent: value !== without, entries: [] };
  const alike = { from: '', isDifferent: false };
  if (key === 'name') {
    const count = `${names.length.toLocaleString('en')} volumes`;
    return { ...alike, value: table === 'volume' ? count : names.join(', '), entries: [] };
  }
  if (without === REQUIRED) return { ...alike, value: 'each has its own', entries };
  const different = entries.filter(({ value }) => value !== without);
  const count =
    table === 'qos' ? `given by ${different.length}` : `${different.length} of ${names.length} ${table}s differ`;
  const isDifferent = different.length > 0;
  return { from: '', isDifferent, value: isDifferent ? count : without, entries: different };
}

/** All keys, in the order of the documentation. */
export function settingsOf(keys: Key[]): Table[] {
  const known = new Map(keys.map((key) => [key.table === '' ? key.key : `${key.table}.${key.key}`, key]));
  return TABLES.map((table) => ({
    name: table.name,
    settings: table.keys.flatMap(({ name, form, text }) => {
      const key = keyOf(table.name, name);
      const told = known.get(key);
      if (!told) return [];
      const names = (known.get(`${told.table}.name`)?.entries ?? []).map(({ name }) => name);
      const takesEffect = TAKES_EFFECT[told.takes_effect];
      return [{ key, name, form, without: told.default, text, ...found(told, names), takesEffect }];
    }),
  }));
}
