// The log-in of this browser, and the log-in dialog that a refused action waits for.

import { live } from '../feed/live.svelte';
import { api, ApiError, textOf } from './api';
import type { LoggedIn } from './types';

const KEY = 'hotset-session';
/** Lifetime of a session of the daemon. */
const SESSION_MS = 12 * 3_600_000;
/** Inaccuracy of the daemon's start by the browser's clock. */
const SLACK_MS = 1_000;

/** A log-in, with its time by the browser's clock. A log-in by link has neither name nor role. */
type Known = Partial<LoggedIn> & { atMs: number };

function stored(): Known | null {
  try {
    return JSON.parse(localStorage.getItem(KEY) ?? 'null');
  } catch {
    return null;
  }
}

/** A browser that refuses to store shows the user until the page is reloaded. */
function store(known: Known | null) {
  try {
    if (known === null) localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, JSON.stringify(known));
  } catch {
    // The session itself is a cookie.
  }
}

/** The only redirect to the page is that of a log-in link. */
function isFromLink(): boolean {
  const [navigation] = performance.getEntriesByType('navigation') as PerformanceNavigationTiming[];
  return (navigation?.redirectCount ?? 0) > 0;
}

class Session {
  /** The cookie is hidden from scripts and no route names its session, so the page records the log-in. */
  private known = $state.raw(stored());
  /** Why the dialog is open; null while it is closed. */
  reason = $state<string | null>(null);
  /** Why a log-out failed. */
  problem = $state('');
  private answer: (isLoggedIn: boolean) => void = () => {};

  /** Null when the session has expired, or ended with an earlier run of the daemon. */
  user = $derived.by(() => {
    const { known } = this;
    if (known === null || live.state === 'locked' || live.now > known.atMs + SESSION_MS) return null;
    const { newest } = live;
    const startedMs = newest === undefined ? 0 : newest.at_unix_ms - live.skewMs - newest.status.uptime_ms;
    return startedMs <= known.atMs + SLACK_MS ? known : null;
  });

  constructor() {
    if (isFromLink() && this.known === null) this.record({});
    // Another tab has logged in or out.
    window.addEventListener('storage', ({ key }) => {
      if (key === KEY) this.known = stored();
    });
  }

  /** Opens the dialog. Resolves to true after a log-in, to false when the dialog is closed without one. */
  ask(reason: string): Promise<boolean> {
    this.close(false);
    this.reason = reason;
    return new Promise((answer) => (this.answer = answer));
  }

  close(isLoggedIn: boolean) {
    this.reason = null;
    this.answer(isLoggedIn);
    this.answer = () => {};
  }

  async logIn(token: string) {
    this.record(await api.login(token));
    this.close(true);
  }

  async logOut() {
    try {
      await api.logout();
      this.forget();
    } catch (error) {
      if (error instanceof ApiError && error.status === 401) this.forget();
      else this.problem = `Log-out failed: ${textOf(error)}`;
    }
  }

  /** The daemon does not know the session. */
  forget() {
    [this.known, this.problem] = [null, ''];
    store(null);
  }

  private record(user: Partial<LoggedIn>) {
    [this.known, this.problem] = [{ ...user, atMs: Date.now() }, ''];
    store(this.known);
  }
}

export const session = new Session();
