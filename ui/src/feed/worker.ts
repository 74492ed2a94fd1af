// Shared worker with the feed of all tabs.

import { Feed, type Subscription } from './feed';

declare const self: SharedWorkerGlobalScope;

// Its name is the address of the page, to which API addresses are relative.
const feed = new Feed(self.name);

self.onconnect = ({ ports }) => {
  for (const port of ports) {
    const { subscribe, leave } = feed.join((message) => port.postMessage(message));
    // Tabs announce that they close: a worker has no other way to notice.
    port.onmessage = ({ data }: MessageEvent<Subscription | 'leave'>) => (data === 'leave' ? leave() : subscribe(data));
  }
};
