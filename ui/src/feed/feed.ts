// The one connection to the daemon's stream that all tabs of a browser share. A browser gives a host six connections over plain HTTP; a stream
// a tab would use them up. It is read with fetch and not with EventSource, which tells no status and cannot go on after an event of its own choice.

import type { Sample } from '../lib/types';

/** What a tab is told. `since` is when the daemon was last heard of. */
export type Word = { kind: 'samples'; samples: Sample[] } | { kind: 'state'; state: 'live' | 'lost' | 'locked' };

/** What a tab says: which volumes it shows, and whether anybody sees it. */
export interface Wish {
  visible: boolean;
  volumes: string[];
}

/** Samples kept for tabs that open or come back: as many as the page's charts show. */
export const SAMPLES_KEPT = 600;
/** A stream that is silent for so long is dead: it speaks once a second. */
const SILENCE_MS_MAX = 5_000;
const RETRY_MS = 1_000;

class Follower {
  visible = false;
  volumes: string[] = [];
  /** Id of the newest sample that it was sent. */
  seen = '';
  constructor(readonly say: (word: Word) => void) {}
}

export class Feed {
  private followers = new Set<Follower>();
  private samples: Sample[] = [];
  private state: 'live' | 'lost' | 'locked' | null = null;
  /** Ends the stream that is being read. */
  private reading: AbortController | null = null;
  private asked = '';
  private retry: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly base: string) {}

  /** A tab joins. What it gets back is how it says what it wants, and how it leaves. */
  join(say: (word: Word) => void): { wish: (wish: Wish) => void; leave: () => void } {
    const follower = new Follower(say);
    this.followers.add(follower);
    return {
      wish: (wish) => {
        follower.visible = wish.visible;
        follower.volumes = wish.volumes;
        if (wish.visible) this.catchUp(follower);
        this.follow();
      },
      leave: () => {
        this.followers.delete(follower);
        this.follow();
      },
    };
  }

  private catchUp(follower: Follower) {
    // A page that was left alone for longer than is kept begins anew.
    const at = this.samples.findIndex((sample) => sample.id === follower.seen);
    const missed = this.samples.slice(at + 1);
    follower.seen = this.samples.at(-1)?.id ?? follower.seen;
    if (missed.length > 0) follower.say({ kind: 'samples', samples: missed });
    if (this.state !== null) follower.say({ kind: 'state', state: this.state });
  }

  /** Begins, ends or changes the stream, so that it is what visible tabs want. */
  private follow() {
    const visible = [...this.followers].filter((follower) => follower.visible);
    const volumes = [...new Set(visible.flatMap((follower) => follower.volumes))].sort();
    const wanted = visible.length === 0 ? '' : `api/v1/stream?volumes=${volumes.map(encodeURIComponent).join(',')}`;
    if (wanted === this.asked) return;
    this.asked = wanted;
    this.reading?.abort();
    this.reading = null;
    clearTimeout(this.retry);
    if (wanted !== '') void this.read(wanted);
  }

  private async read(path: string) {
    const reading = new AbortController();
    this.reading = reading;
    let silence: ReturnType<typeof setTimeout> | undefined;
    const heard = () => {
      clearTimeout(silence);
      silence = setTimeout(() => reading.abort(), SILENCE_MS_MAX);
    };
    let isLocked = false;
    try {
      heard();
      const last = this.samples.at(-1)?.id;
      const headers: Record<string, string> = last === undefined ? {} : { 'Last-Event-ID': last };
      const answer = await fetch(new URL(path, this.base), { headers, cache: 'no-store', signal: reading.signal });
      isLocked = answer.status === 401;
      if (answer.ok && answer.body !== null) {
        const texts = answer.body.pipeThrough(new TextDecoderStream()).getReader();
        let rest = '';
        for (let part = await texts.read(); !part.done; part = await texts.read()) {
          if (this.reading !== reading) return;
          heard();
          const events = (rest + part.value).split('\n\n');
          rest = events.pop() ?? '';
          this.take(events.map(parse).filter((sample) => sample !== null));
        }
      }
    } catch {
      // Refused, broken off or silent: tried again below, and told as lost.
    } finally {
      clearTimeout(silence);
    }
    if (this.reading !== reading) return;
    this.reading = null;
    this.tell(isLocked ? 'locked' : 'lost');
    this.retry = setTimeout(() => void this.read(path), RETRY_MS);
  }

  private take(samples: Sample[]) {
    if (samples.length === 0) return;
    this.samples = [...this.samples, ...samples].slice(-SAMPLES_KEPT);
    this.state = 'live';
    for (const follower of this.followers) if (follower.visible) this.catchUp(follower);
  }

  private tell(state: 'live' | 'lost' | 'locked') {
    this.state = state;
    for (const follower of this.followers) if (follower.visible) follower.say({ kind: 'state', state });
  }
}

function parse(event: string): Sample | null {
  const [id, data] = ['id: ', 'data: '].map((field) => {
    const line = event.split('\n').find((line) => line.startsWith(field));
    return line?.slice(field.length);
  });
  return id === undefined || data === undefined ? null : { ...JSON.parse(data), id };
}
