// What tests of the page do with a browser.

import { readFile } from 'node:fs/promises';

const AXE = new URL('../node_modules/axe-core/axe.min.js', import.meta.url);

/** What axe calls serious or critical of what is shown, or of a part of it. */
export async function graveFindings(page, within = 'html') {
  await page.evaluate(await readFile(AXE, 'utf8'));
  // A thousand rows are judged by their first: rules look at each alike.
  const { violations } = await page.evaluate(
    (include) =>
      window.axe.run({ include, exclude: [['.wide tbody tr:nth-child(n+20)']] }, { resultTypes: ['violations'] }),
    within,
  );
  const grave = violations.filter(({ impact }) => impact === 'serious' || impact === 'critical');
  return grave.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html).slice(0, 3)}`);
}

/** The page in a browser of its own, which has to run without an error. */
export async function openPage({ daemon, browser, t }, view = '', options = {}) {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, ...options });
  t?.after(() => context.close());
  const page = await context.newPage();
  page.errors = [];
  page.on('pageerror', (error) => page.errors.push(String(error)));
  page.on('console', (message) => {
    if (message.type() === 'error') page.errors.push(message.text());
  });
  await page.goto(daemon.url + view);
  return page;
}

/** What every sample of the page holds instead of the daemon's own, from its next load on. */
export async function tellInstead(page, sample) {
  // Without shared workers each tab reads by itself, and what it reads can be another's.
  await page.addInitScript(() => delete window.SharedWorker);
  await page.route('**/api/v1/stream?*', (route) =>
    route.fulfill({ contentType: 'text/event-stream', body: `id: 1-1\ndata: ${JSON.stringify(sample)}\n\n` }),
  );
  await page.reload();
}

export const badge = (page, kind) => page.waitForSelector(`[data-badge=${kind}]`, { timeout: 15_000 });

/** What a tab behind another is told; Playwright's own stay visible. */
export const setVisible = (page, isVisible) =>
  page.evaluate(
    (state) => {
      Object.defineProperty(document, 'visibilityState', { value: state, configurable: true });
      document.dispatchEvent(new Event('visibilitychange'));
    },
    isVisible ? 'visible' : 'hidden',
  );
