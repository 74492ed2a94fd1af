// Screenshots of all views: `npm run screenshots -- FOLDER`, with HOTSET_BIN.

import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Daemon, launch, poolDevices, poolTables, until } from './daemon.js';

const folder = process.argv[2];
if (!folder) throw new Error('usage: screenshots FOLDER');
await mkdir(folder, { recursive: true });
const views = {
  overview: '#/?range=1min',
  volumes: '#/volumes?sort=requests&down=1',
  volume: '#/volumes/database?range=1min',
  'volume-sizing': '#/volumes/database/sizing',
  'volume-io': '#/volumes/database/io',
  'volume-qos': '#/volumes/database/qos',
  'volume-controls': '#/volumes/database/controls',
  'volume-snapshots': '#/volumes/web01/snapshots',
  datastores: '#/datastores?range=1min',
  flash: '#/flash?range=1min',
  pools: '#/pools?range=1min',
  fleet: '#/fleet',
  initiators: '#/initiators',
  advice: '#/advice',
  events: '#/events',
  settings: '#/settings',
};

const devices = await mkdtemp(join(process.env.HOTSET_E2E_DIR ?? tmpdir(), 'hotset-pool-'));
const daemon = await Daemon.start(12, poolTables(await poolDevices(devices)));
const browser = await launch();
try {
  await daemon.createPool();
  await daemon.command('snapshot', 'create', 'web01', 'before-update');
  daemon.load(600);
  for (const colorScheme of ['light', 'dark']) {
    for (const width of [1440, 1024, 390]) {
      const context = await browser.newContext({ viewport: { width, height: 900 }, colorScheme });
      const pages = await Promise.all(
        Object.entries(views).map(async ([name, view]) => {
          const page = await context.newPage();
          await page.goto(daemon.url + view);
          return [name, page];
        }),
      );
      // Charts need some history.
      await new Promise((resolve) => setTimeout(resolve, Number(process.env.HOTSET_WARMUP_MS ?? 30_000)));
      for (const [name, page] of pages) {
        await until(`${name} live`, () => page.locator('[data-badge=live]').count());
        await page.screenshot({ path: join(folder, `${name}-${colorScheme}-${width}.png`), fullPage: true });
      }
      await context.close();
    }
  }
} finally {
  await browser.close();
  await daemon.stop();
  await rm(devices, { recursive: true });
}
