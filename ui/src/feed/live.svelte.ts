// Live samples of the daemon in this tab, and their age.

import type { Sample, Status } from '../lib/types';
import { Feed, SAMPLES_KEPT, type FeedMessage, type StreamState, type Subscription } from './feed';

class Live {
  samples = $state.raw<Sample[]>([]);
  state = $state<'connecting' | StreamState>('connecting');
  isVisible = $state(document.visibilityState === 'visible');
  /** The browser's clock, updated once a second. */
  now = $state(Date.now());
  /** Arrival of the newest sample by the browser's clock. */
  private receivedMs = $state(Date.now());

  newest = $derived(this.samples.at(-1));
  status: Status | undefined = $derived(this.newest?.status);
  /** How far the daemon's clock is ahead of the browser's. */
  skewMs = $derived(this.newest ? this.newest.at_unix_ms - this.receivedMs : 0);
  /** Age of the newest sample. */
  sampleAgeMs = $derived(Math.max(0, this.now - this.receivedMs));
  /** The figures shown are out of date. */
  isStale = $derived(
    this.state === 'lost' || this.state === 'proxy-login' || (this.samples.length > 0 && this.sampleAgeMs > 4_000),
  );

  private send: (subscription: Subscription) => void = () => {};
  private volumes: string[] = [];

  /** Opens the feed; called once. */
  start() {
    const base = new URL('./', document.baseURI.split('#')[0]);
    const receive = (message: FeedMessage) => this.receive(message);
    if (typeof SharedWorker === 'undefined') {
      this.send = new Feed(base.href).join(receive).subscribe;
    } else {
      const worker = new SharedWorker(new URL('./worker.ts', import.meta.url), { type: 'module', name: base.href });
      worker.port.onmessage = ({ data }: MessageEvent<FeedMessage>) => receive(data);
      this.send = (subscription) => worker.port.postMessage(subscription);
      window.addEventListener('pagehide', () => worker.port.postMessage('leave'));
      // Reload when restored from the back-forward cache.
      window.addEventListener('pageshow', (event) => event.persisted && window.location.reload());
    }
    document.addEventListener('visibilitychange', () => {
      this.isVisible = document.visibilityState === 'visible';
      this.subscribe();
    });
    setInterval(() => (this.now = Date.now()), 1_000);
    this.subscribe();
  }

  /** Subscribes to details of these volumes. */
  watch(volumes: string[]) {
    this.volumes = volumes;
    this.subscribe();
  }

  private subscribe() {
    this.send({ visible: this.isVisible, volumes: this.volumes });
  }

  private receive(message: FeedMessage) {
    if (message.kind === 'state') {
      this.state = message.state;
      return;
    }
    this.receivedMs = this.now = Date.now();
    this.state = 'live';
    this.samples = [...this.samples, ...message.samples].slice(-SAMPLES_KEPT);
  }
}

export const live = new Live();
