// Health of the daemon: the highest severity of its active alerts, or the lost connection. Derived only here.

import type { StreamState } from '../feed/feed';
import type { Alert, Severity } from './types';
import { plural } from './units';

/** Marks beside words: colour alone is not accessible. */
export const MARKS: Record<Severity, string> = { critical: '✖', warning: '▲', info: '●' };

export type Connection = 'connecting' | StreamState;

export interface Health {
  level: 'ok' | 'warning' | 'critical' | 'lost' | 'unknown';
  mark: string;
  text: string;
}

/** `alerts` are undefined before the first data. */
export function healthOf(connection: Connection, alerts: Alert[] | undefined): Health {
  if (connection === 'locked') return { level: 'unknown', mark: '○', text: 'Log-in required' };
  if (connection === 'proxy-login') return { level: 'lost', mark: '○', text: 'Proxy log-in required' };
  if (connection === 'lost') return { level: 'lost', mark: '○', text: 'Not connected' };
  if (alerts === undefined) return { level: 'unknown', mark: '○', text: 'Connecting' };
  for (const [level, name] of [
    ['critical', 'Critical'],
    ['warning', 'Warning'],
  ] as const) {
    if (alerts.some(({ severity }) => severity === level)) {
      // Information is no problem: it is listed, but not counted.
      const count = alerts.filter(({ severity }) => severity !== 'info').length;
      // A silenced alert is as severe as before, so the badge counts it, and says so.
      const silenced = alerts.filter(({ severity, silenced }) => severity !== 'info' && silenced !== null).length;
      const note = silenced === 0 ? '' : ` (${silenced} silenced)`;
      return { level, mark: MARKS[level], text: `${name}, ${plural(count, 'alert')}${note}` };
    }
  }
  return { level: 'ok', mark: '✔', text: 'OK' };
}
