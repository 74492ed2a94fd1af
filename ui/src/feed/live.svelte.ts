// What this tab knows of the daemon, live: samples, and how fresh they are.

import type { Sample, Status } from '../lib/types';
import { Feed, SAMPLES_KEPT, type Wish, type Word } from './feed';

class Live {
  samples = $state.raw<Sample[]>([]);
  state = $state<'connecting' | 'live' | 'lost' | 'locked'>('connecting');
  isVisible = $state(document.visibilityState === 'visible');
  /** The viewer's clock, once a second; what is late is late by it. */
  now = $state(Date.now());
  /** When the newest sample came, by the viewer's clock: the daemon's may differ. */
  private heard = $state(Date.now());

  newest = $derived(this.samples.at(-1));
  status: Status | undefined = $derived(this.newest?.status);
  /** By how much the daemon's clock is ahead of the viewer's. */
  skewMs = $derived(this.newest ? this.newest.at_unix_ms - this.heard : 0);
  lateMs = $derived(Math.max(0, this.now - this.heard));
  /** What is on the screen is old. */
  isStale = $derived(this.state === 'lost' || (this.samples.length > 0 && this.lateMs > 4_000));

  private send: (wish: Wish) => void = () => {};
  private volumes: string[] = [];

  /** Begins to follow; once. */
  begin() {
    const base = new URL('./', document.baseURI.split('#')[0]);
    const take = (word: Word) => this.take(word);
    if (typeof SharedWorker === 'undefined') {
      this.send = new Feed(base.href).join(take).wish;
    } else {
      const worker = new SharedWorker(new URL('./worker.ts', import.meta.url), { type: 'module', name: base.href });
      worker.port.onmessage = ({ data }: MessageEvent<Word>) => take(data);
      this.send = (wish) => worker.port.postMessage(wish);
      window.addEventListener('pagehide', () => worker.port.postMessage('leave'));
      // Out of the browser's back-forward cache it begins anew.
      window.addEventListener('pageshow', (event) => event.persisted && window.location.reload());
    }
    document.addEventListener('visibilitychange', () => {
      this.isVisible = document.visibilityState === 'visible';
      this.wish();
    });
    setInterval(() => (this.now = Date.now()), 1_000);
    this.wish();
  }

  /** These volumes are shown. */
  show(volumes: string[]) {
    this.volumes = volumes;
    this.wish();
  }

  private wish() {
    this.send({ visible: this.isVisible, volumes: this.volumes });
  }

  private take(word: Word) {
    if (word.kind === 'state') {
      this.state = word.state;
      return;
    }
    this.heard = this.now = Date.now();
    this.state = 'live';
    this.samples = [...this.samples, ...word.samples].slice(-SAMPLES_KEPT);
  }
}

export const live = new Live();
