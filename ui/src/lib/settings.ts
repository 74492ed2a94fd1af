// Effective configuration: per key its value, source, default and explanation.

import { TABLES } from 'virtual:keys';
import type { Key, KeyEntry } from './types';
import { plural } from './units';

export interface Setting {
  /** `memory.size` */
  key: string;
  name: string;
  /** Example of the notation. */
  form: string;
  /** Default. */
  without: string;
  text: string;
  /** What a value is: a size, a time, a number of something. */
  unit: string;
  /** Effective value and its source; a summary for a repeated table. */
  value: string;
  from: string;
  isDifferent: boolean;
  /** Entries of a repeated table that differ from the default. */
  entries: KeyEntry[];
  /** When a change of the file takes effect: in short, and with the way to do it. */
  takesEffect: TakesEffect;
  takesEffectText: string;
  isVolumeKey: boolean;
}

export interface Table {
  /** `[memory]` */
  name: string;
  settings: Setting[];
}

/** Shown in place of the default of a mandatory key. */
const REQUIRED = 'required';
const FROM = { default: '', file: 'from the file', command: 'by command' };

/** Key of the marks of a setting. */
export type TakesEffect = Key['takes_effect'];

/** What a change needs. */
export const NEEDS: Record<TakesEffect, string> = {
  restart: 'needs a restart',
  reload: 'needs a reload',
  renewal: 'needs a reload',
  command: 'no restart',
};

const TAKES_EFFECT = {
  command:
    'immediately when set on the volume page or by `hotset volume set`; after a reload (SIGHUP) when set in the file',
  renewal: 'after a reload (SIGHUP); enabling or disabling TLS requires a restart',
  reload: 'after a reload (SIGHUP)',
  restart: 'after a restart',
};

/** What a value is, by the notation of the example; the unit of a number is that of its name. */
function unitOf(name: string, form: string): string {
  if (form.startsWith('{')) return 'table';
  if (form.startsWith('[')) return 'list';
  if (/^(true|false)$/.test(form)) return 'true or false';
  if (/\d [KMGT]?i?B"/.test(form)) {
    const isRate = name === 'limit_bytes' || name === 'scrub';
    return `size${isRate ? ' per second' : ''}${form.includes('%"') ? ' or percentage' : ''}`;
  }
  if (/"\d+(us|ms|s|min|h|d)"/.test(form)) return 'time';
  if (/"\d{4}-\d\d-\d\d"/.test(form)) return 'date';
  if (!/^\d/.test(form)) return 'text';
  if (name.endsWith('_iops')) return name.startsWith('burst') ? 'requests' : 'requests per second';
  return name.endsWith('_dwpd') ? 'drive writes per day' : 'number';
}

/** `memory.size`; top-level keys have no table. */
const keyOf = (table: string, name: string) =>
  table.startsWith('[') ? `${table.replaceAll(/[[\]]/g, '')}.${name}` : name;

/** All keys. */
export const KEYS = TABLES.flatMap(({ name, keys }) => keys.map((key) => keyOf(name, key.name)));

/** Effective value of a key; `names` are the entries of a repeated table. */
function effective({ table, key, default: without, value, source, entries }: Key, names: string[]) {
  if (value !== null) return { value, from: FROM[source], isDifferent: value !== without, entries: [] };
  const alike = { from: '', isDifferent: false };
  if (key === 'name') {
    const count = plural(names.length, 'volume');
    return { ...alike, value: table === 'volume' ? count : names.join(', '), entries: [] };
  }
  if (without === REQUIRED) return { ...alike, value: 'set per entry', entries };
  const different = entries.filter(({ value }) => value !== without);
  const count =
    table === 'qos'
      ? `set in ${plural(different.length, 'rule')}`
      : `${different.length} of ${plural(names.length, table)} ${different.length === 1 ? 'differs' : 'differ'}`;
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
      const entry = known.get(key);
      if (!entry) return [];
      const names = (known.get(`${entry.table}.name`)?.entries ?? []).map(({ name }) => name);
      const takesEffect = entry.takes_effect;
      return [
        {
          key,
          name,
          form,
          without: entry.default,
          text,
          unit: unitOf(name, form),
          ...effective(entry, names),
          takesEffect,
          takesEffectText: TAKES_EFFECT[takesEffect],
          isVolumeKey: entry.table === 'volume',
        },
      ];
    }),
  }));
}
