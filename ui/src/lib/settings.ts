// What the daemon runs with: of each key of the configuration what its status and its volumes tell, beside what would hold without it.

import { TABLES } from 'virtual:keys';
import { deviceName } from './flash';
import type { Status, Volume } from './types';
import { bytes } from './units';

/** A value that is not what holds without its key, and of which volume, where volumes have it. */
export interface Different {
  volume?: string;
  value: string;
}

export interface Setting {
  /** `memory.size` */
  key: string;
  name: string;
  /** How it is written, by example. */
  form: string;
  /** What holds without it. */
  without: string;
  text: string;
  /** What holds in the words of the file; null where nothing tells it. */
  value: string | null;
  different: Different[];
  /** When a change in the file takes effect. */
  takesEffect: string;
}

export interface Table {
  /** `[memory]` */
  name: string;
  settings: Setting[];
}

/** What the status tells of the daemon's own keys; null where it does not know. */
const TOLD: Record<string, (status: Status) => string | null> = {
  'memory.size': ({ memory_bytes }) => bytes(memory_bytes),
  'flash.devices': ({ flash }) => flash?.devices.map(deviceName).join(', ') ?? '',
  'flash.allow_single_copy': ({ flash }) => (flash ? String(flash.allow_single_copy) : null),
  'api.listen': ({ api }) => api,
  'history.size': ({ history }) => (history ? bytes(history.limit_bytes) : '0'),
  'alerts.webhook': ({ webhook }) => webhook?.to ?? '',
  'nbd.listen': ({ listen }) => listen.join(', '),
};

/** What volumes tell of theirs. Of one that is refused its shares are not known. */
const OF_VOLUMES: Record<string, (volume: Volume) => string> = {
  'volume.policy': ({ policy }) => policy,
  'volume.datastore': ({ datastore }) => datastore,
  'volume.labels': ({ labels }) =>
    Object.entries(labels)
      .map(([name, value]) => `${name} = ${value}`)
      .join(', '),
  'volume.read_only': ({ read_only }) => String(read_only),
  'volume.memory_min': ({ memory }) => memory.min || '0',
  'volume.memory_max': ({ memory }) => memory.max,
  'volume.flash_min': ({ flash }) => flash.min || '0',
  'volume.flash_max': ({ flash }) => flash.max,
};

/** What has no default to be held against. */
const OF_ALL: Record<string, (volumes: Volume[]) => string> = {
  'volume.name': (volumes) => `${volumes.length.toLocaleString('en')} volumes`,
  'datastore.name': (volumes) => [...new Set(volumes.map(({ datastore }) => datastore).filter(Boolean))].join(', '),
};

const AT_ONCE = ['volume.policy', 'volume.memory_min', 'volume.memory_max', 'volume.flash_min', 'volume.flash_max'];
const RELOADED = ['volume.name', 'volume.datastore', 'volume.labels', 'datastore.name'];
const RENEWED = ['api.tls_certificate', 'api.tls_key'];

function takesEffect(key: string): string {
  if (AT_ONCE.includes(key)) {
    return 'at once in the view of the volume and by `hotset volume set`, and from the file when it is read again (SIGHUP)';
  }
  if (RENEWED.includes(key))
    return 'when the file is read again (SIGHUP); TLS itself is turned on and off by a restart';
  return RELOADED.includes(key) ? 'when the file is read again (SIGHUP)' : 'after a restart';
}

/** Without the marks of the file, and nothing where there is nothing. */
function bare(written: string): string {
  const text = written.replaceAll(/["[\]{}]/g, '').trim();
  return text === 'none' ? '' : text;
}

/** `memory.size`; what stands at the top of the file has no table. */
const keyOf = (table: string, name: string) => (table.startsWith('[') ? `${bare(table)}.${name}` : name);

/** All of them. */
export const KEYS = TABLES.flatMap(({ name, keys }) => keys.map((key) => keyOf(name, key.name)));

/** What tells a key, and where that is not what holds without it. */
function found(
  key: string,
  without: string,
  status: Status,
  volumes: Volume[] | null,
): Pick<Setting, 'value' | 'different'> {
  const usual = bare(without);
  const [of, ofAll] = [OF_VOLUMES[key], OF_ALL[key]];
  if (ofAll && volumes) return { value: ofAll(volumes), different: [] };
  if (of && volumes) {
    const all = volumes.map((volume) => ({ volume: volume.name, value: bare(of(volume)) }));
    const different = all.filter(({ value }) => value !== usual);
    const value = different.length === 0 ? usual : `${different.length} of ${all.length} volumes differ`;
    return { value, different };
  }
  const value = TOLD[key]?.(status) ?? null;
  return { value, different: value === null || bare(value) === usual ? [] : [{ value }] };
}

/** All keys, as the documentation has them; null while nothing is known of volumes. */
export function settingsOf(status: Status, volumes: Volume[] | null): Table[] {
  return TABLES.map((table) => ({
    name: table.name,
    settings: table.keys.map(({ name, form, without, text }) => {
      const key = keyOf(table.name, name);
      const told = found(key, without, status, volumes);
      return { key, name, form, without: bare(without) || 'none', text, ...told, takesEffect: takesEffect(key) };
    }),
  }));
}
