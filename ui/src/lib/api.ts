// Asking the daemon. Addresses are relative, so that a proxy may serve the page under a path.

import type {
  AdvicePage,
  Datastore,
  Event,
  Flash,
  Heat,
  History,
  Job,
  Key,
  MissRatioCurve,
  SlowRequest,
  Volume,
} from './types';

export class Refused extends Error {
  constructor(
    readonly status: number,
    text: string,
  ) {
    super(text);
  }
}

/** What to show of something that went wrong. */
export const textOf = (error: unknown) => (error instanceof Error ? error.message : String(error));

async function ask<T>(method: string, path: string, body?: unknown): Promise<T> {
  const init: RequestInit = { method, cache: 'no-store' };
  if (body !== undefined) {
    init.headers = { 'Content-Type': 'application/json' };
    init.body = JSON.stringify(body);
  }
  const unreachable = () => new Refused(0, 'The daemon cannot be reached.');
  const answer = await fetch(`api/v1/${path}`, init).catch(() => Promise.reject(unreachable()));
  const told = answer.status === 204 ? null : await answer.json().catch(() => null);
  if (!answer.ok) throw new Refused(answer.status, told?.detail ?? `The daemon answered ${answer.status}.`);
  return told as T;
}

const named = (name: string) => `volumes/${encodeURIComponent(name)}`;

export const api = {
  /** All volumes; they come a thousand at a time. */
  async volumes(): Promise<Volume[]> {
    const all: Volume[] = [];
    for (let after = ''; ;) {
      const page = await ask<{ volumes: Volume[]; next?: string | null }>('GET', `volumes?limit=1000${after}`);
      all.push(...page.volumes);
      if (!page.next) return all;
      after = `&after=${encodeURIComponent(page.next)}`;
    }
  },
  volume: (name: string) => ask<Volume>('GET', named(name)),
  curve: (name: string) => ask<MissRatioCurve>('GET', `${named(name)}/miss-ratio-curve`),
  /** What sizes would bring, with what is assumed otherwise than usual; volumes come a hundred at a time. */
  async *advice(assumed: Record<string, string>): AsyncGenerator<AdvicePage> {
    const query = new URLSearchParams({ limit: '100', ...assumed });
    for (;;) {
      const page = await ask<AdvicePage>('GET', `advice?${query}`);
      yield page;
      if (page.next === null) return;
      query.set('after', page.next);
    }
  },
  heat: (name: string) => ask<Heat>('GET', `${named(name)}/heat`),
  slow: (name: string) => ask<SlowRequest[]>('GET', `${named(name)}/slow`),
  /** What `pastOf` names. */
  history: (path: string) => ask<History>('GET', path),
  events: (query: URLSearchParams) => ask<{ events: Event[]; next: number | null }>('GET', `events?${query}`),
  act: (name: string, action: string, how?: unknown) => ask<Volume>('POST', `${named(name)}/${action}`, how),
  /** Begins one; the stream tells how far it is and how it ends. */
  flush: (name: string) => ask<Job>('POST', `${named(name)}/flush`, { wait: false }),
  /** Keys and values as the configuration has them. */
  set: (name: string, settings: Record<string, string>) => ask<Volume>('PATCH', named(name), settings),
  configuration: () => ask<{ file: string; keys: Key[] }>('GET', 'configuration'),
  datastores: () => ask<Datastore[]>('GET', 'datastores'),
  /** One more device, or one in another one's place; both answer when that is done. */
  addDevice: (path: string, force: boolean, replace?: string) =>
    ask<Flash>('POST', 'flash', { path, force, ...(replace === undefined ? {} : { replace }) }),
  removeDevice: (id: string) => ask<Flash>('DELETE', `flash/${encodeURIComponent(id)}`),
  cancelJob: (id: string) => ask<null>('DELETE', `jobs/${encodeURIComponent(id)}`),
  login: (token: string) => ask<{ name: string; role: string }>('POST', 'login', { token }),
  logout: () => ask<null>('POST', 'logout'),
};

/** Whose figures; without a name those of all together. */
export interface Subject {
  volume?: string;
  /** Empty for volumes without one. */
  datastore?: string;
}

/** The address of figures over time, as a script would ask for them. */
export function pastOf({ volume, datastore }: Subject, query: Record<string, string>): string {
  const whole: Record<string, string> = datastore === undefined ? query : { datastore, ...query };
  // Commas may stay: whoever reads it sees a list.
  const text = new URLSearchParams(whole).toString().replaceAll('%2C', ',');
  return `${volume === undefined ? '' : `${named(volume)}/`}history?${text}`;
}
