// Effective configuration: per key its value, source, default and explanation.

import { TABLES } from 'virtual:keys';
import type { Key, KeyEntry } from './types';
import { plural } from './units';

export interface Setting {
  /** Full key, such as `memory.size`. */
  key: string;
  name: string;
  /** Example of the notation. */
  example: string;
  defaultValue: string;
  text: string;
  /** Kind of the value: a size, a time, a number of something. */
  unit: string;
  /** Effective value and its source; a summary for a repeated table. */
  value: string;
  source: string;
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
const SOURCES = { default: '', file: 'from the file', command: 'by command' };

/** Moment at which a change takes effect. */
export type TakesEffect = Key['takes_effect'];

/** Requirement of a change. */
export const NEEDS: Record<TakesEffect, string> = {
  restart: 'restart to change',
  reload: 'reload to change',
  renewal: 'reload to change',
  command: 'no restart',
};

const TAKES_EFFECT = {
  command:
    'immediately when set on the volume page or by `hotset volume set`; after a reload (SIGHUP) when set in the file',
  renewal: 'after a reload (SIGHUP); enabling or disabling TLS requires a restart',
  reload: 'after a reload (SIGHUP)',
  restart: 'after a restart',
};

/** Kind of a value, from the notation of the example; the unit of a number follows from the key. */
function unitOf(name: string, example: string): string {
  if (example.startsWith('{')) return 'table';
  if (example.startsWith('[')) return 'list';
  if (/^(true|false)$/.test(example)) return 'true or false';
  if (/\d [KMGT]?i?B"/.test(example)) {
    const isRate = name === 'limit_bytes' || name === 'scrub';
    return `size${isRate ? ' per second' : ''}${example.includes('%"') ? ' or percentage' : ''}`;
  }
  if (/"\d+(us|ms|s|min|h|d)"/.test(example)) return 'time';
  if (/"\d{4}-\d\d-\d\d"/.test(example)) return 'date';
  if (!/^\d/.test(example)) return 'text';
  if (name.endsWith('_iops')) return name.startsWith('burst') ? 'requests' : 'requests per second';
  return name.endsWith('_dwpd') ? 'drive writes per day' : 'number';
}

/** `memory.size`; top-level keys have no table. */
const keyOf = (table: string, name: string) =>
  table.startsWith('[') ? `${table.replaceAll(/[[\]]/g, '')}.${name}` : name;

/** All keys. */
export const KEYS = TABLES.flatMap(({ name, keys }) => keys.map((key) => keyOf(name, key.name)));

/** Effective value of a key; `names` are the entries of a repeated table. */
function effective({ table, key, default: defaultValue, value, source, entries }: Key, names: string[]) {
  if (value !== null) return { value, source: SOURCES[source], isDifferent: value !== defaultValue, entries: [] };
  const notCompared = { source: '', isDifferent: false };
  if (key === 'name') {
    const count = plural(names.length, 'volume');
    return { ...notCompared, value: table === 'volume' ? count : names.join(', '), entries: [] };
  }
  if (defaultValue === REQUIRED) return { ...notCompared, value: 'set per entry', entries };
  const different = entries.filter(({ value }) => value !== defaultValue);
  const summary =
    table === 'qos'
      ? `set in ${plural(different.length, 'rule')}`
      : `${different.length} of ${plural(names.length, table)} ${different.length === 1 ? 'differs' : 'differ'}`;
  const isDifferent = different.length > 0;
  return { source: '', isDifferent, value: isDifferent ? summary : defaultValue, entries: different };
}

/** Settings by table, in the order of the documentation. */
export function settingsOf(keys: Key[]): Table[] {
  const byKey = new Map(keys.map((key) => [key.table === '' ? key.key : `${key.table}.${key.key}`, key]));
  return TABLES.map((table) => ({
    name: table.name,
    settings: table.keys.flatMap(({ name, example, text }) => {
      const key = keyOf(table.name, name);
      const entry = byKey.get(key);
      if (!entry) return [];
      const names = (byKey.get(`${entry.table}.name`)?.entries ?? []).map(({ name }) => name);
      const takesEffect = entry.takes_effect;
      return [
        {
          key,
          name,
          example,
          defaultValue: entry.default,
          text,
          unit: unitOf(name, example),
          ...effective(entry, names),
          takesEffect,
          takesEffectText: TAKES_EFFECT[takesEffect],
          isVolumeKey: entry.table === 'volume',
        },
      ];
    }),
  }));
}
