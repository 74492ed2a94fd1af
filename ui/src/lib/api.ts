// Client of the daemon's API. Addresses are relative, so a proxy can serve the console under any path.

import type {
  AdvicePage,
  Alert,
  ChannelTest,
  Configuration,
  Datastore,
  EventsPage,
  Flash,
  Heat,
  History,
  Job,
  LoggedIn,
  MissRatioCurve,
  NewVolume,
  Resize,
  Silence,
  SlowRequest,
  Volume,
  VolumesPage,
} from './types';

export class ApiError extends Error {
  constructor(
    readonly status: number,
    text: string,
  ) {
    super(text);
  }
}

/** The message of an error. */
export const textOf = (error: unknown) => (error instanceof Error ? error.message : String(error));

async function request<T>(method: string, path: string, body?: unknown): Promise<T> {
  const init: RequestInit = { method, cache: 'no-store' };
  if (body !== undefined) {
    init.headers = { 'Content-Type': 'application/json' };
    init.body = JSON.stringify(body);
  }
  const unreachable = () => new ApiError(0, 'The daemon cannot be reached.');
  const answer = await fetch(`api/v1/${path}`, init).catch(() => Promise.reject(unreachable()));
  const content = answer.status === 204 ? null : await answer.json().catch(() => null);
  if (!answer.ok)
    throw new ApiError(answer.status, content?.detail ?? `The daemon answered with status ${answer.status}.`);
  return content as T;
}

const named = (name: string) => `volumes/${encodeURIComponent(name)}`;
const alert = (id: string) => `alerts/${encodeURIComponent(id)}`;

export const api = {
  /** All volumes, a thousand per request. */
  async volumes(): Promise<Volume[]> {
    const all: Volume[] = [];
    for (let after = ''; ;) {
      const page = await request<VolumesPage>('GET', `volumes?limit=1000${after}`);
      all.push(...page.volumes);
      if (page.next === null) return all;
      after = `&after=${encodeURIComponent(page.next)}`;
    }
  },
  volume: (name: string) => request<Volume>('GET', named(name)),
  curve: (name: string) => request<MissRatioCurve>('GET', `${named(name)}/miss-ratio-curve`),
  /** Sizing advice with the given assumptions, a hundred volumes per request. */
  async *advice(assumed: Record<string, string>): AsyncGenerator<AdvicePage> {
    const query = new URLSearchParams({ limit: '100', ...assumed });
    for (;;) {
      const page = await request<AdvicePage>('GET', `advice?${query}`);
      yield page;
      if (page.next === null) return;
      query.set('after', page.next);
    }
  },
  volumeAdvice: (name: string) => request<AdvicePage>('GET', `advice?volume=${encodeURIComponent(name)}`),
  heat: (name: string) => request<Heat>('GET', `${named(name)}/heat`),
  slow: (name: string) => request<SlowRequest[]>('GET', `${named(name)}/slow`),
  /** `path` comes from `historyPath`. */
  history: (path: string) => request<History>('GET', path),
  events: (query: URLSearchParams) => request<EventsPage>('GET', `events?${query}`),
  act: (name: string, action: string, how?: unknown) => request<Volume>('POST', `${named(name)}/${action}`, how),
  /** Starts a flush job; the stream reports its progress and result. */
  flush: (name: string) => request<Job>('POST', `${named(name)}/flush`, { wait: false }),
  /** Keys and values as in the configuration file. */
  set: (name: string, settings: Record<string, string | boolean>) => request<Volume>('PATCH', named(name), settings),
  /** Adds a volume, which stays across restarts. */
  addVolume: (volume: NewVolume) => request<Volume>('POST', 'volumes', volume),
  /** Changes the size; answers when that is complete. */
  resize: (name: string, how: Resize) => request<Volume>('POST', `${named(name)}/resize`, how),
  /** Destages and removes a volume; answers when that is complete. */
  removeVolume: (name: string) => request<null>('DELETE', named(name)),
  configuration: () => request<Configuration>('GET', 'configuration'),
  datastores: () => request<Datastore[]>('GET', 'datastores'),
  /** Adds a device, or replaces one; answers when that is complete. */
  addDevice: (path: string, force: boolean, replace?: string) =>
    request<Flash>('POST', 'flash', { path, force, ...(replace === undefined ? {} : { replace }) }),
  removeDevice: (id: string) => request<Flash>('DELETE', `flash/${encodeURIComponent(id)}`),
  cancelJob: (id: string) => request<null>('DELETE', `jobs/${encodeURIComponent(id)}`),
  acknowledgeAlert: (id: string) => request<Alert>('POST', `${alert(id)}/acknowledge`),
  silenceAlert: (id: string, seconds: number, reason: string) =>
    request<Silence>('POST', `${alert(id)}/silence`, { seconds, reason: reason === '' ? null : reason }),
  unsilenceAlert: (id: string) => request<null>('DELETE', `${alert(id)}/silence`),
  /** Sends a test through each alert channel; answers when each has answered. */
  testAlerts: () => request<ChannelTest[]>('POST', 'alerts/test'),
  login: (token: string) => request<LoggedIn>('POST', 'login', { token }),
  logout: () => request<null>('POST', 'logout'),
};

/** The scope of history figures: a volume, a datastore, or everything. */
export interface Scope {
  volume?: string;
  /** Empty for volumes without a datastore. */
  datastore?: string;
}

/** Path and query of a history request, as a script would send it. */
export function historyPath({ volume, datastore }: Scope, query: Record<string, string>): string {
  const whole: Record<string, string> = datastore === undefined ? query : { datastore, ...query };
  // Commas stay readable.
  const text = new URLSearchParams(whole).toString().replaceAll('%2C', ',');
  return `${volume === undefined ? '' : `${named(volume)}/`}history?${text}`;
}
