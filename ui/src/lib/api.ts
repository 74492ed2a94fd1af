// Client of the daemon's API. Addresses are relative, so a proxy can serve the console under any path.

import type {
  AdvicePage,
  Alert,
  ChannelTest,
  Configuration,
  Datastore,
  EventsPage,
  Flash,
  FleetHost,
  Heat,
  History,
  Job,
  LoggedIn,
  MissRatioCurve,
  NewVolume,
  Pool,
  PoolCells,
  PoolPlan,
  PoolQueue,
  Resize,
  Revocation,
  Role,
  Said,
  Silence,
  SlowRequest,
  Snapshots,
  Token,
  TokenCreated,
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

/** Shown where a proxy answers in place of the daemon. */
export const PROXY_LOGIN = 'A proxy in front of Hotset asks for its own log-in: reload the page.';

/**
 * True if an answer is not the daemon's but the log-in of a proxy: a redirect, which the API never sends, or a success or
 * refusal without the content type of the API. An error of a gateway, such as 502, is none.
 */
export function isProxyLogin(response: Response, contentType: RegExp): boolean {
  if (response.type === 'opaqueredirect' || response.redirected) return true;
  const isExpected = response.status === 204 || contentType.test(response.headers.get('Content-Type') ?? '');
  return !isExpected && (response.ok || [401, 403].includes(response.status));
}

/** Message of an error. */
export const textOf = (error: unknown) => (error instanceof Error ? error.message : String(error));

async function request<T>(method: string, path: string, body?: unknown): Promise<T> {
  const init: RequestInit = { method, cache: 'no-store', redirect: 'manual' };
  if (body !== undefined) {
    init.headers = { 'Content-Type': 'application/json' };
    init.body = JSON.stringify(body);
  }
  const unreachable = () => new ApiError(0, 'The daemon cannot be reached.');
  const response = await fetch(`api/v1/${path}`, init).catch(() => Promise.reject(unreachable()));
  if (isProxyLogin(response, /^application\/(problem\+)?json\b/)) throw new ApiError(0, PROXY_LOGIN);
  const content = response.status === 204 ? null : await response.json().catch(() => null);
  if (!response.ok)
    throw new ApiError(response.status, content?.detail ?? `The daemon answered with status ${response.status}.`);
  return content as T;
}

const volumePath = (name: string) => `volumes/${encodeURIComponent(name)}`;
const snapshotPath = (name: string, snapshot: string) =>
  `${volumePath(name)}/snapshots/${encodeURIComponent(snapshot)}`;
const poolPath = (name: string) => `pools/${encodeURIComponent(name)}`;
const alertPath = (id: string) => `alerts/${encodeURIComponent(id)}`;

export const api = {
  /** All volumes, a thousand per request. */
  async volumes(): Promise<Volume[]> {
    const volumes: Volume[] = [];
    for (let after = ''; ;) {
      const page = await request<VolumesPage>('GET', `volumes?limit=1000${after}`);
      volumes.push(...page.volumes);
      if (page.next === null) return volumes;
      after = `&after=${encodeURIComponent(page.next)}`;
    }
  },
  volume: (name: string) => request<Volume>('GET', volumePath(name)),
  curve: (name: string) => request<MissRatioCurve>('GET', `${volumePath(name)}/miss-ratio-curve`),
  /** Sizing advice with the given assumptions, a hundred volumes per request. */
  async *advice(assumptions: Record<string, string>): AsyncGenerator<AdvicePage> {
    const query = new URLSearchParams({ limit: '100', ...assumptions });
    for (;;) {
      const page = await request<AdvicePage>('GET', `advice?${query}`);
      yield page;
      if (page.next === null) return;
      query.set('after', page.next);
    }
  },
  volumeAdvice: (name: string) => request<AdvicePage>('GET', `advice?volume=${encodeURIComponent(name)}`),
  heat: (name: string) => request<Heat>('GET', `${volumePath(name)}/heat`),
  slow: (name: string) => request<SlowRequest[]>('GET', `${volumePath(name)}/slow`),
  /** `path` comes from `historyPath`. */
  history: (path: string) => request<History>('GET', path),
  events: (query: URLSearchParams) => request<EventsPage>('GET', `events?${query}`),
  /** Pauses, freezes, resumes, pins or unpins. */
  control: (name: string, action: string, body?: unknown) =>
    request<Volume>('POST', `${volumePath(name)}/${action}`, body),
  /** Starts a flush job; the stream reports its progress and result. */
  flush: (name: string) => request<Job>('POST', `${volumePath(name)}/flush`, { wait: false }),
  /** Keys and values as in the configuration file. */
  setVolume: (name: string, settings: Record<string, string | boolean>) =>
    request<Volume>('PATCH', volumePath(name), settings),
  /** Adds a volume, which stays across restarts. */
  addVolume: (volume: NewVolume) => request<Volume>('POST', 'volumes', volume),
  /** Changes the size; answers when that is complete. */
  resize: (name: string, size: Resize) => request<Volume>('POST', `${volumePath(name)}/resize`, size),
  /** Destages and removes a volume; answers when that is complete. */
  removeVolume: (name: string) => request<null>('DELETE', volumePath(name)),
  /** Snapshots of a volume on a pool, the oldest first. */
  snapshots: (name: string) => request<Snapshots>('GET', `${volumePath(name)}/snapshots`),
  /** Destages a volume and takes a snapshot; answers when that is complete. */
  createSnapshot: (name: string, snapshot: string) =>
    request<Snapshots>('POST', `${volumePath(name)}/snapshots`, { name: snapshot }),
  /** Returns a volume to a snapshot; `isForced` disconnects its clients. Answers when it is served again. */
  rollBack: (name: string, snapshot: string, isForced: boolean) =>
    request<Snapshots>('POST', `${snapshotPath(name, snapshot)}/rollback`, { force: isForced }),
  /** Creates a volume of the same pool, which is not served until it is added. */
  cloneSnapshot: (name: string, snapshot: string, volume: string) =>
    request<Snapshots>('POST', `${snapshotPath(name, snapshot)}/clone`, { volume }),
  deleteSnapshot: (name: string, snapshot: string) => request<Snapshots>('DELETE', snapshotPath(name, snapshot)),
  configuration: () => request<Configuration>('GET', 'configuration'),
  datastores: () => request<Datastore[]>('GET', 'datastores'),
  /** Adds a device, or replaces one; answers when that is complete. */
  addDevice: (path: string, force: boolean, replace?: string) =>
    request<Flash>('POST', 'flash', { path, force, ...(replace === undefined ? {} : { replace }) }),
  removeDevice: (id: string) => request<Flash>('DELETE', `flash/${encodeURIComponent(id)}`),
  pool: (name: string) => request<Pool>('GET', poolPath(name)),
  /** Moves of slices that have not ended. */
  poolMoves: (name: string) => request<PoolQueue>('GET', `${poolPath(name)}/moves`),
  /** The moves that the pool would make now; nothing moves. */
  poolPlan: (name: string) => request<PoolPlan>('GET', `${poolPath(name)}/plan`),
  /** Slices of a volume of a pool, in a bounded number of cells. */
  poolCells: (name: string, volume: string) =>
    request<PoolCells>('GET', `${poolPath(name)}/volumes/${encodeURIComponent(volume)}/cells`),
  /** Plans and moves slices now; answers when the moves begin. */
  relocatePool: (name: string) => request<PoolPlan>('POST', `${poolPath(name)}/relocate`),
  /** Changes the tier policy of a volume of a pool. */
  setTierPolicy: (name: string, volume: string, policy: string) =>
    request<Pool>('PATCH', `${poolPath(name)}/volumes/${encodeURIComponent(volume)}`, { tier_policy: policy }),
  pausePool: (name: string) => request<Pool>('POST', `${poolPath(name)}/pause`),
  resumePool: (name: string) => request<Pool>('POST', `${poolPath(name)}/resume`),
  addPoolDevice: (name: string, tier: string, path: string, force: boolean) =>
    request<Pool>('POST', `${poolPath(name)}/devices`, { tier, path, force }),
  /** Starts or cancels a drain, which is a job; `device` is the number of its group. */
  drainPoolDevice: (name: string, device: string, cancel: boolean) =>
    request<Pool>('POST', `${poolPath(name)}/drain`, { device, cancel }),
  /** All hosts of the fleet, this one first; answers when the others have answered or 5 s have passed. */
  fleetHosts: () => request<FleetHost[]>('GET', 'fleet/hosts'),
  /** Releases the image of a volume for the host `to`; empty for any. Answers when that host serves it, or after 30 s. */
  moveVolume: (name: string, to: string) =>
    request<Volume>('POST', `${volumePath(name)}/move`, to === '' ? {} : { to }),
  /** Takes a volume on standby over; `from` has to be its owner, unless that is empty. Answers when it is served. */
  takeOverVolume: (name: string, from: string, isFenced: boolean) =>
    request<Volume>('POST', `${volumePath(name)}/take-over`, { ...(from === '' ? {} : { from }), fenced: isFenced }),
  /** Moves all volumes away from this host; answers when that is complete. */
  drainHost: () => request<Said>('POST', 'fleet/drain'),
  cancelJob: (id: string) => request<null>('DELETE', `jobs/${encodeURIComponent(id)}`),
  acknowledgeAlert: (id: string) => request<Alert>('POST', `${alertPath(id)}/acknowledge`),
  silenceAlert: (id: string, seconds: number, reason: string) =>
    request<Silence>('POST', `${alertPath(id)}/silence`, { seconds, reason: reason === '' ? null : reason }),
  unsilenceAlert: (id: string) => request<null>('DELETE', `${alertPath(id)}/silence`),
  /** Sends a test through each alert channel; answers when each has answered. */
  testAlerts: () => request<ChannelTest[]>('POST', 'alerts/test'),
  /** Tokens without their secrets; only for administrators. */
  tokens: () => request<Token[]>('GET', 'tokens'),
  /** Creates a token; only this answer has its secret. */
  createToken: (name: string, role: Role) => request<TokenCreated>('POST', 'tokens', { name, role }),
  /** Revokes a token and ends its sessions. */
  revokeToken: (name: string) => request<Revocation>('DELETE', `tokens/${encodeURIComponent(name)}`),
  login: (token: string) => request<LoggedIn>('POST', 'login', { token }),
  logout: () => request<null>('POST', 'logout'),
};

/** The scope of history figures: a volume, a datastore, a pool, or everything. */
export interface Scope {
  volume?: string;
  /** Empty for volumes without a datastore. */
  datastore?: string;
  pool?: string;
}

/** Path and query of a history request, as a script would send it. */
export function historyPath({ volume, datastore, pool }: Scope, query: Record<string, string>): string {
  const parameters: Record<string, string> = {
    ...(datastore === undefined ? {} : { datastore }),
    ...(pool === undefined ? {} : { pool }),
    ...query,
  };
  // Commas stay readable.
  const text = new URLSearchParams(parameters).toString().replaceAll('%2C', ',');
  return `${volume === undefined ? '' : `${volumePath(volume)}/`}history?${text}`;
}
