// Browser helpers of the console's tests.

import { readFile } from 'node:fs/promises';

const AXE = new URL('../node_modules/axe-core/axe.min.js', import.meta.url);

/** Serious and critical axe findings within an element. */
export async function axeFindings(page, selector = 'html') {
  await page.evaluate(await readFile(AXE, 'utf8'));
  // The first rows stand for the rest of a long table.
  const { violations } = await page.evaluate(
    (include) =>
      window.axe.run({ include, exclude: [['.wide tbody tr:nth-child(n+20)']] }, { resultTypes: ['violations'] }),
    selector,
  );
  const serious = violations.filter(({ impact }) => impact === 'serious' || impact === 'critical');
  return serious.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html).slice(0, 3)}`);
}

/** Opens the console in a separate browser context and collects its errors. */
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

/** Logs in at the dialog that a refused action has opened; the action continues. */
export async function logIn(page, daemon, name, role) {
  const dialog = page.getByRole('dialog', { name: 'Log in' });
  await dialog.getByLabel('Token').fill(await daemon.command('token', 'create', name, '--role', role));
  await dialog.getByRole('button', { name: 'Log in' }).click();
  await dialog.waitFor({ state: 'detached' });
}

/** Replaces the daemon's samples by `samples` from the next load on. */
export async function replaceStream(page, ...samples) {
  // Without shared workers the tab reads the stream itself, so the route applies.
  await page.addInitScript(() => delete window.SharedWorker);
  const events = samples.map((sample, index) => `id: 1-${index + 1}\ndata: ${JSON.stringify(sample)}\n\n`);
  await page.route('**/api/v1/stream?*', (route) =>
    route.fulfill({ contentType: 'text/event-stream', body: events.join('') }),
  );
  await page.reload();
}

/**
 * Records the texts of the health badge from the next load on. A prepared stream ends at once, and the badge shows its
 * alerts only until the page notices.
 */
export async function recordHealth(page) {
  const texts = [];
  await page.exposeFunction('record', (text) => texts.push(text));
  await page.addInitScript(() =>
    new MutationObserver(() => {
      const text = document.querySelector('[data-health]')?.textContent.replaceAll(/\s+/g, ' ').trim();
      if (text) window.record(text);
    }).observe(document, { subtree: true, childList: true, characterData: true, attributes: true }),
  );
  return texts;
}

/** Waits until the connection badge is of this kind. */
export const waitForBadge = (page, kind) => page.waitForSelector(`[data-badge=${kind}]`, { timeout: 60_000 });

/** Simulates tab visibility; Playwright's tabs stay visible. */
export const setVisible = (page, isVisible) =>
  page.evaluate(
    (state) => {
      Object.defineProperty(document, 'visibilityState', { value: state, configurable: true });
      document.dispatchEvent(new Event('visibilitychange'));
    },
    isVisible ? 'visible' : 'hidden',
  );
