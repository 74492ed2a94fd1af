// Log-in and log-out, in Chromium on a daemon.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { axeFindings, logIn, openPage, waitForBadge } from './browser.js';
import { startFixture, stopFixture, skip, until } from './daemon.js';
import { serveLoginProxy } from './front.js';

let daemon, browser;

before(async () => ({ daemon, browser } = await startFixture()));
after(() => stopFixture({ daemon, browser }));

const open = (t, view, options) => openPage({ daemon, browser, t }, view, options);
const dialogOf = (page) => page.getByRole('dialog', { name: 'Log in' });
const user = (page) => page.locator('header [data-user]');
const state = async () => (await daemon.json('volumes/mail')).state;
/** True if the focus is inside the dialog. */
const isFocusInside = (page) => page.evaluate(() => document.activeElement?.closest('dialog[open]') !== null);

test('a refused action opens the log-in dialog and continues after it', { skip }, async (t) => {
  const page = await open(t, '#/volumes/mail/controls');
  await waitForBadge(page, 'live');
  const pause = page.getByRole('button', { name: 'Pause' });
  await pause.click();
  const dialog = dialogOf(page);
  await dialog.getByText('“Pause” requires a log-in.').waitFor();
  assert.ok(await dialog.getByLabel('Token').evaluate((field) => field === document.activeElement));
  // The focus stays in the dialog; shortcuts of the page are disabled.
  for (let step = 0; step < 6; step++) {
    await page.keyboard.press('Tab');
    assert.ok((await isFocusInside(page)) || (await page.evaluate(() => document.activeElement === document.body)));
  }
  await dialog.getByRole('heading').click();
  await page.keyboard.press('?');
  assert.equal(await page.getByRole('dialog', { name: 'Keyboard shortcuts' }).count(), 0);
  // Escape cancels the action, and the button has the focus again.
  await page.keyboard.press('Escape');
  await page.waitForSelector('[role=alert]:has-text("Pause: not done, because you are not logged in.")');
  await until('the focus', () => pause.evaluate((button) => button === document.activeElement));
  assert.equal(await state(), 'active');
  await pause.click();
  await dialog.getByLabel('Token').fill('wrong');
  await dialog.getByRole('button', { name: 'Log in' }).click();
  await dialog.getByRole('alert').getByText('unknown token').waitFor();
  await logIn(page, daemon, 'pauser', 'operate');
  await page.waitForSelector('text=Pause: done.');
  assert.equal(await state(), 'paused');
  await page.getByRole('button', { name: 'Resume' }).click();
  await page.waitForSelector('text=Resume: done.');
  assert.ok(page.url().endsWith('#/volumes/mail/controls'), page.url());
});

test('the header shows the user, also after a reload, and logs out', { skip }, async (t) => {
  const page = await open(t, '#/volumes/mail/controls');
  await waitForBadge(page, 'live');
  await user(page).getByRole('button', { name: 'Log in' }).click();
  await logIn(page, daemon, 'header', 'operate');
  const waitForUser = (text) => until(text, async () => (await user(page).innerText()).includes(text));
  await waitForUser('header (operate)');
  const other = await page.context().newPage();
  await other.goto(daemon.url);
  await until('the user in another tab', async () => /header \(operate\)/.test(await user(other).innerText()));
  await page.reload();
  await waitForUser('header (operate)');
  await user(page).getByRole('button', { name: 'Log out' }).click();
  await waitForUser('Log in');
  await until('no user in another tab', async () => /Log in/.test(await user(other).innerText()));
  assert.deepEqual(page.errors, []);
  // A revoked token ends its session: the next action asks again.
  await user(page).getByRole('button', { name: 'Log in' }).click();
  await logIn(page, daemon, 'revoked', 'operate');
  await waitForUser('revoked (operate)');
  await daemon.command('token', 'revoke', 'revoked');
  await page.getByRole('button', { name: 'Freeze' }).click();
  await dialogOf(page).waitFor();
  await page.keyboard.press('Escape');
  await waitForUser('Log in');
  assert.equal(await state(), 'active');
});

test('a log-in link logs the browser in until the daemon restarts', { skip }, async (t) => {
  const page = await open(t);
  const link = new URL((await daemon.command('token', 'link', '--role', 'operate')).match(/http\S+/)[0]);
  await page.goto(`${daemon.url}login${link.search}`);
  await until('the log-in', async () => (await user(page).innerText()).includes('Logged in by link'));
  await page.goto(`${daemon.url}#/volumes/mail/controls`);
  await page.getByRole('button', { name: 'Freeze' }).click();
  await page.waitForSelector('text=Freeze: done.');
  await page.getByRole('button', { name: 'Resume' }).click();
  await page.waitForSelector('text=Resume: done.');
  assert.deepEqual(page.errors, []);
  await new Promise((resolve) => setTimeout(resolve, 1_500));
  await daemon.kill();
  await daemon.serve();
  await waitForBadge(page, 'live');
  await until('the log-in button', () => user(page).getByRole('button', { name: 'Log in' }).count());
});

test('the log-in of a proxy is no log-in of the daemon', { skip }, async (t) => {
  let isLocked = false;
  const proxy = await serveLoginProxy(daemon.url, () => isLocked);
  t.after(() => {
    proxy.closeAllConnections();
    proxy.close();
  });
  const url = `http://127.0.0.1:${proxy.address().port}/`;
  // The proxy redirects to the page, as a log-in link does.
  const page = await openPage({ daemon: { url }, browser, t }, 'entry');
  await waitForBadge(page, 'live');
  assert.doesNotMatch(await user(page).innerText(), /Logged in/);
  isLocked = true;
  const notice = 'A proxy in front of Hotset asks for its own log-in: reload the page.';
  await user(page).getByRole('button', { name: 'Log in' }).click();
  await dialogOf(page).getByLabel('Token').fill('token');
  await dialogOf(page).getByRole('button', { name: 'Log in' }).click();
  await dialogOf(page).getByRole('alert').getByText(notice).waitFor();
  assert.doesNotMatch(await user(page).innerText(), /Logged in/);
  await page.reload();
  await page.locator('main > [role=alert]').getByText(notice).waitFor();
  assert.match(await page.locator('header [data-badge]').innerText(), /proxy log-in required/);
  isLocked = false;
  await waitForBadge(page, 'live');
  await until('no notice of the proxy', async () => !(await page.getByText(notice).count()));
});

test('the log-in dialog passes axe and fits 390 pixels, light and dark', { skip }, async (t) => {
  for (const colorScheme of ['light', 'dark']) {
    const page = await open(t, '#/events', { colorScheme, viewport: { width: 390, height: 800 } });
    await waitForBadge(page, 'live');
    await user(page).getByRole('button', { name: 'Log in' }).click();
    await dialogOf(page).waitFor();
    assert.deepEqual(await axeFindings(page), [], colorScheme);
    const { x, width } = await dialogOf(page).boundingBox();
    assert.ok(x >= 0 && x + width <= 390, `from ${x}, ${width} wide`);
    assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= 390);
  }
});

test('a page that requires a token shows the log-in, and then the view', { skip }, async (t) => {
  const context = await browser.newContext({ extraHTTPHeaders: { 'X-Forwarded-For': '10.0.0.7' } });
  t.after(() => context.close());
  const page = await context.newPage();
  // The headers are added only to requests of the tab, not to those of a worker.
  await page.addInitScript(() => delete window.SharedWorker);
  await page.goto(`${daemon.url}#/events`);
  const form = page.locator('main');
  await form.getByText('Access from this address requires a token.').waitFor();
  assert.match(await page.locator('header [data-health]').innerText(), /Log-in required/);
  await form.getByLabel('Token').fill(await daemon.command('token', 'create', 'remote', '--role', 'read'));
  await form.getByRole('button', { name: 'Log in' }).click();
  await waitForBadge(page, 'live');
  await page.waitForSelector('[data-event]');
  await until('the user', async () => (await user(page).innerText()).includes('remote (read)'));
});
