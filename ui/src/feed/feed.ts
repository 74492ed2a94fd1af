// One connection to the daemon's event stream, shared by all tabs of a browser. Browsers limit a host to six connections over
// plain HTTP, which a stream per tab would exhaust. EventSource reports no status and cannot choose where to resume; fetch can.

import type { Sample } from '../lib/types';

/** Message to a tab. */
export type FeedMessage = { kind: 'samples'; samples: Sample[] } | { kind: 'state'; state: 'live' | 'lost' | 'locked' };

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
  seen = '';
  constructor(readonly send: (word: FeedMessage) => void) {}
}

export class Feed {
  private subscribers = new Set<Subscriber>();
  private samples: Sample[] = [];
  private state: 'live' | 'lost' | 'locked' | null = null;
  /** Aborts the current stream. */
  private reading: AbortController | null = null;
  private path = '';
  private retry: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly base: string) {}

  /** Registers a tab. Returns functions that change its subscription and remove it. */
  join(send: (word: FeedMessage) => void): { subscribe: (subscribe: Subscription) => void; leave: () => void } {
    const subscriber = new Subscriber(send);
    this.subscribers.add(subscriber);
    return {
      subscribe: (subscribe) => {
        subscriber.visible = subscribe.visible;
        subscriber.volumes = subscribe.volumes;
        if (subscribe.visible) this.catchUp(subscriber);
        this.update();
      },
      leave: () => {
        this.subscribers.delete(subscriber);
        this.update();
      },
    };
  }

  private catchUp(subscriber: Subscriber) {
    // A tab hidden for longer than samples are kept restarts with all of them.
    const at = this.samples.findIndex((sample) => sample.id === subscriber.seen);
    const missed = this.samples.slice(at + 1);
    subscriber.seen = this.samples.at(-1)?.id ?? subscriber.seen;
    if (missed.length > 0) subscriber.send({ kind: 'samples', samples: missed });
    if (this.state !== null) subscriber.send({ kind: 'state', state: this.state });
  }

  /** Opens, closes or changes the stream to match the visible tabs. */
  private update() {
    const visible = [...this.subscribers].filter((subscriber) => subscriber.visible);
    const volumes = [...new Set(visible.flatMap((subscriber) => subscriber.volumes))].sort();
    const wanted = visible.length === 0 ? '' : `api/v1/stream?volumes=${volumes.map(encodeURIComponent).join(',')}`;
    if (wanted === this.path) return;
    this.path = wanted;
    this.reading?.abort();
    this.reading = null;
    clearTimeout(this.retry);
    if (wanted !== '') void this.read(wanted);
  }

  private async read(path: string) {
    const reading = new AbortController();
    this.reading = reading;
    let silence: ReturnType<typeof setTimeout> | undefined;
    const resetTimeout = () => {
      clearTimeout(silence);
      silence = setTimeout(() => reading.abort(), SILENCE_MS_MAX);
    };
    let isLocked = false;
    try {
      resetTimeout();
      const last = this.samples.at(-1)?.id;
      const headers: Record<string, string> = last === undefined ? {} : { 'Last-Event-ID': last };
      const answer = await fetch(new URL(path, this.base), { headers, cache: 'no-store', signal: reading.signal });
      isLocked = answer.status === 401;
      if (answer.ok && answer.body !== null) {
        const texts = answer.body.pipeThrough(new TextDecoderStream()).getReader();
        let rest = '';
        for (let part = await texts.read(); !part.done; part = await texts.read()) {
          if (this.reading !== reading) return;
          resetTimeout();
          const events = (rest + part.value).split('\n\n');
          rest = events.pop() ?? '';
          this.take(events.map(parse).filter((sample) => sample !== null));
        }
      }
    } catch {
      // Refused, interrupted or silent: reported as lost and retried below.
    } finally {
      clearTimeout(silence);
    }
    if (this.reading !== reading) return;
    this.reading = null;
    this.setState(isLocked ? 'locked' : 'lost');
    this.retry = setTimeout(() => void this.read(path), RETRY_MS);
  }

  private take(samples: Sample[]) {
    if (samples.length === 0) return;
    this.samples = [...this.samples, ...samples].slice(-SAMPLES_KEPT);
    this.state = 'live';
    for (const subscriber of this.subscribers) if (subscriber.visible) this.catchUp(subscriber);
  }

  private setState(state: 'live' | 'lost' | 'locked') {
    this.state = state;
    for (const subscriber of this.subscribers) if (subscriber.visible) subscriber.send({ kind: 'state', state });
  }
}

function parse(event: string): Sample | null {
  const [id, data] = ['id: ', 'data: '].map((field) => {
    const line = event.split('\n').find((line) => line.startsWith(field));
    return line?.slice(field.length);
  });
  return id === undefined || data === undefined ? null : { ...JSON.parse(data), id };
}
