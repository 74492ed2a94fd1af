// The log-in of this browser, and the log-in dialog that a refused action waits for.

import { live } from '../feed/live.svelte';
import { api, ApiError, textOf } from './api';
import { route } from './route.svelte';
import type { LoggedIn } from './types';

const STORAGE_KEY = 'hotset-session';
/** Lifetime of a session of the daemon. */
const SESSION_MS = 12 * 3_600_000;
/** Inaccuracy of the daemon's start by the browser's clock. */
const SLACK_MS = 1_000;

/** A log-in, with its time by the browser's clock. A log-in by link has neither name nor role. */
type LoginRecord = Partial<LoggedIn> & { atMs: number };

function stored(): LoginRecord | null {
  try {
    return JSON.parse(localStorage.getItem(STORAGE_KEY) ?? 'null');
  } catch {
    return null;
  }
}

/** If the browser refuses to store it, the user is shown only until the page is reloaded. */
function store(login: LoginRecord | null) {
  try {
    if (login === null) localStorage.removeItem(STORAGE_KEY);
    else localStorage.setItem(STORAGE_KEY, JSON.stringify(login));
  } catch {
    // The session itself is a cookie.
  }
}

/**
 * True after a log-in link: it redirects to the page with this parameter, and the log-in of a proxy without it. Removes
 * the parameter, so that a bookmark of the page has none.
 */
function takeLinkMark(): boolean {
  if (route.query.get('login') !== 'link') return false;
  route.set({ login: '' });
  const [navigation] = performance.getEntriesByType('navigation') as PerformanceNavigationTiming[];
  return (navigation?.redirectCount ?? 0) > 0;
}

class Session {
  /** The cookie is hidden from scripts and no route names its session, so the page records the log-in. */
  private login = $state.raw(stored());
  /** Reason for the open dialog; null while it is closed. */
  reason = $state<string | null>(null);
  /** Cause of a failed log-out. */
  problem = $state('');
  private resolve: (isLoggedIn: boolean) => void = () => {};

  /** Null when the session has expired or ended with an earlier daemon, and while a proxy asks for its own log-in. */
  user = $derived.by(() => {
    const { login } = this;
    if (login === null || ['locked', 'proxy-login'].includes(live.state) || live.now > login.atMs + SESSION_MS)
      return null;
    const { newest } = live;
    const startedMs = newest === undefined ? 0 : newest.at_unix_ms - live.skewMs - newest.status.uptime_ms;
    return startedMs <= login.atMs + SLACK_MS ? login : null;
  });

  constructor() {
    if (takeLinkMark()) this.record({});
    // Another tab has logged in or out.
    window.addEventListener('storage', ({ key }) => {
      if (key === STORAGE_KEY) this.login = stored();
    });
  }

  /** Opens the dialog. Resolves to true after a log-in, to false when the dialog is closed without one. */
  ask(reason: string): Promise<boolean> {
    this.close(false);
    this.reason = reason;
    return new Promise((resolve) => (this.resolve = resolve));
  }

  /** Closes the dialog and answers `ask`. */
  close(isLoggedIn: boolean) {
    this.reason = null;
    this.resolve(isLoggedIn);
    this.resolve = () => {};
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

  /** Forgets a session that the daemon does not know. */
  forget() {
    [this.login, this.problem] = [null, ''];
    store(null);
  }

  private record(user: Partial<LoggedIn>) {
    [this.login, this.problem] = [{ ...user, atMs: Date.now() }, ''];
    store(this.login);
  }
}

export const session = new Session();
