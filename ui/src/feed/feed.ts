// One connection to the daemon's event stream, shared by all tabs of a browser. Browsers limit a host to six connections over
// plain HTTP, which a stream per tab would exhaust. EventSource reports no status and cannot choose where to resume; fetch can.

import { isProxyLogin } from '../lib/api';
import type { Sample } from '../lib/types';

/** The stream ended, requires a token, or is answered by the log-in of a proxy. */
export type StreamState = 'live' | 'lost' | 'locked' | 'proxy-login';

/** Message to a tab. */
export type FeedMessage = { kind: 'samples'; samples: Sample[] } | { kind: 'state'; state: StreamState };

/** Subscription of a tab: its visibility, and the volumes that it shows. */
export interface Subscription {
  visible: boolean;
  volumes: string[];
}

/** Samples kept for tabs that open or become visible: as many as charts show. */
export const SAMPLES_KEPT = 600;
/** The stream sends once a second; after this silence it counts as dead. */
const SILENCE_MS_MAX = 5_000;
const RETRY_MS = 1_000;

class Subscriber {
  visible = false;
  volumes: string[] = [];
  /** Id of the newest sample sent to the tab. */
  lastSentId = '';
  constructor(readonly send: (message: FeedMessage) => void) {}
}

/** The stream, and the tabs that receive its samples. */
export class Feed {
  private subscribers = new Set<Subscriber>();
  private samples: Sample[] = [];
  private state: StreamState | null = null;
  /** Aborts the current stream. */
  private controller: AbortController | null = null;
  /** Path of the current stream; empty without visible tabs. */
  private path = '';
  private retry: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly base: string) {}

  /** Registers a tab. Returns functions that change its subscription and remove it. */
  join(send: (message: FeedMessage) => void): { subscribe: (subscription: Subscription) => void; leave: () => void } {
    const subscriber = new Subscriber(send);
    this.subscribers.add(subscriber);
    return {
      subscribe: (subscription) => {
        subscriber.visible = subscription.visible;
        subscriber.volumes = subscription.volumes;
        if (subscription.visible) this.catchUp(subscriber);
        this.update();
      },
      leave: () => {
        this.subscribers.delete(subscriber);
        this.update();
      },
    };
  }

  private catchUp(subscriber: Subscriber) {
    // A tab that was hidden for longer than samples are kept receives all that are kept.
    const index = this.samples.findIndex((sample) => sample.id === subscriber.lastSentId);
    const missed = this.samples.slice(index + 1);
    subscriber.lastSentId = this.samples.at(-1)?.id ?? subscriber.lastSentId;
    if (missed.length > 0) subscriber.send({ kind: 'samples', samples: missed });
    if (this.state !== null) subscriber.send({ kind: 'state', state: this.state });
  }

  /** Opens, closes or changes the stream to match the visible tabs. */
  private update() {
    const visible = [...this.subscribers].filter((subscriber) => subscriber.visible);
    const volumes = [...new Set(visible.flatMap((subscriber) => subscriber.volumes))].sort();
    const path = visible.length === 0 ? '' : `api/v1/stream?volumes=${volumes.map(encodeURIComponent).join(',')}`;
    if (path === this.path) return;
    this.path = path;
    this.controller?.abort();
    this.controller = null;
    clearTimeout(this.retry);
    if (path !== '') void this.read(path);
  }

  private async read(path: string) {
    const controller = new AbortController();
    this.controller = controller;
    let timeout: ReturnType<typeof setTimeout> | undefined;
    const resetTimeout = () => {
      clearTimeout(timeout);
      timeout = setTimeout(() => controller.abort(), SILENCE_MS_MAX);
    };
    let endState: StreamState = 'lost';
    try {
      resetTimeout();
      const last = this.samples.at(-1)?.id;
      const headers: Record<string, string> = last === undefined ? {} : { 'Last-Event-ID': last };
      const response = await fetch(new URL(path, this.base), {
        headers,
        cache: 'no-store',
        redirect: 'manual',
        signal: controller.signal,
      });
      if (isProxyLogin(response, /^(text\/event-stream|application\/problem\+json)\b/)) endState = 'proxy-login';
      else if (response.status === 401) endState = 'locked';
      else if (response.ok && response.body !== null) {
        const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
        let incomplete = '';
        for (let chunk = await reader.read(); !chunk.done; chunk = await reader.read()) {
          if (this.controller !== controller) return;
          resetTimeout();
          const events = (incomplete + chunk.value).split('\n\n');
          incomplete = events.pop() ?? '';
          this.addSamples(events.map(parse).filter((sample) => sample !== null));
        }
      }
    } catch {
      // Refused, interrupted or silent: reported as lost and retried below.
    } finally {
      clearTimeout(timeout);
    }
    if (this.controller !== controller) return;
    this.controller = null;
    this.setState(endState);
    this.retry = setTimeout(() => void this.read(path), RETRY_MS);
  }

  private addSamples(samples: Sample[]) {
    if (samples.length === 0) return;
    this.samples = [...this.samples, ...samples].slice(-SAMPLES_KEPT);
    this.state = 'live';
    for (const subscriber of this.subscribers) if (subscriber.visible) this.catchUp(subscriber);
  }

  private setState(state: StreamState) {
    this.state = state;
    for (const subscriber of this.subscribers) if (subscriber.visible) subscriber.send({ kind: 'state', state });
  }
}

/** Parses an event of the stream; null if it is no sample. */
function parse(event: string): Sample | null {
  const [id, data] = ['id: ', 'data: '].map((field) => {
    const line = event.split('\n').find((line) => line.startsWith(field));
    return line?.slice(field.length);
  });
  return id === undefined || data === undefined ? null : { ...JSON.parse(data), id };
}
