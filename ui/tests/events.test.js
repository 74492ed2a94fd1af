// Alerts and events, in Chromium on a daemon.

import assert from 'node:assert/strict';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { openPage, waitForBadge } from './browser.js';
import { Daemon, startFixture, stopFixture, skip, until } from './daemon.js';

let daemon, browser;

before(async () => ({ daemon, browser } = await startFixture(1)));
after(() => stopFixture({ daemon, browser }));

/** Asserts that an alert on the page has all fields of the API's. */
async function assertMatchesApi(daemon, page, kind, mark) {
  const reported = (await daemon.json('alerts')).find((entry) => entry.kind === kind);
  const alert = page.locator(`[data-alert=${kind}]`);
  const normalize = (text) => text.replaceAll(/\s+/g, ' ');
  const text = normalize(await alert.innerText());
  const remedy = reported.remedy.replaceAll('`', '').replace('NAME', reported.subject);
  for (const part of [mark, kind, reported.subject ?? 'flash', reported.cause, reported.effect, remedy]) {
    assert.ok(text.includes(normalize(part)), `${part} is not in: ${text}`);
  }
  assert.equal(Date.parse(await alert.locator('time').getAttribute('datetime')), reported.since_unix_ms);
}

const open = (t, view, options) => openPage({ daemon, browser, t }, view, options);

test('an alert shows severity, subject, time, cause, effect and remedy', { skip }, async (t) => {
  await daemon.command('volume', 'pause', 'mail');
  const page = await open(t);
  await waitForBadge(page, 'live');
  const alert = (kind) => page.locator(`[data-alert=${kind}]`);
  await alert('cache-paused').waitFor();
  await assertMatchesApi(daemon, page, 'cache-paused', '● info');
  // The link leads to the volume, which shows only its own alerts.
  await alert('cache-paused').getByRole('link', { name: 'mail' }).click();
  await page.waitForSelector('h1:text-is("mail")');
  await alert('cache-paused').waitFor();
  assert.equal(await page.locator('[data-alert]').count(), 1);
  await page.goto(`${daemon.url}#/flash`);
  await page.waitForSelector('tr[data-device]');
  assert.equal(await page.locator('[data-alert]').count(), 0);
  await page.goto(`${daemon.url}#/volumes/mail`);
  await alert('cache-paused').waitFor();
  await daemon.command('volume', 'resume', 'mail');
  await until('no alert', async () => (await page.locator('[data-alert]').count()) === 0);
  assert.deepEqual(page.errors, []);
});

test('a flash alert is shown on the flash view and links to it', { skip }, async (t) => {
  // Without one of its devices the flash cache is not used, and volumes with data there are refused.
  const daemon = await Daemon.start();
  t.after(() => daemon.stop());
  await daemon.kill();
  await rm(join(daemon.folder, 'flash-1'));
  await daemon.serve();
  const page = await openPage({ daemon, browser, t });
  const alert = page.locator('[data-alert=flash-unused]');
  await alert.waitFor();
  await assertMatchesApi(daemon, page, 'flash-unused', '✖ critical');
  assert.equal(await page.locator('[data-alert=volume-refused]').count(), 3);
  await alert.getByRole('link', { name: 'flash' }).click();
  await page.waitForSelector('h1:text-is("Flash")');
  await alert.waitFor();
  assert.equal(await page.locator('[data-alert=volume-refused]').count(), 0);
  assert.deepEqual(page.errors, []);
});

const rows = (page) =>
  page.locator('[data-event]').evaluateAll((items) => items.map((item) => ({ ...item.dataset, text: item.innerText })));
const numbers = async (page) => (await rows(page)).map(({ event }) => Number(event));

test('events arrive live with their actor, and a link restores filters', { skip }, async (t) => {
  const page = await open(t, '', { timezoneId: 'Asia/Tokyo', locale: 'en-GB' });
  await waitForBadge(page, 'live');
  await page.getByRole('navigation').getByRole('link', { name: 'Events' }).click();
  await page.waitForSelector('[data-event]');
  const before = await rows(page);
  assert.deepEqual(
    before.map(({ event }) => Number(event)),
    (await daemon.json('events')).events.map(({ number }) => number),
  );
  await daemon.command('volume', 'set', 'desktops', 'policy=write-around');
  const first = () => page.locator('[data-event]').first();
  await until('the change', async () => (await first().innerText()).includes('set policy=write-around'));
  const [change] = (await daemon.json('events?subject=desktops&kind=change')).events;
  const text = (await first().innerText()).replaceAll(/\s+/g, ' ');
  for (const part of ['◆ change', 'desktops', `by ${change.actor}`]) assert.ok(text.includes(part), `${part}: ${text}`);
  const tokyoTime = new Date(change.at_unix_ms).toLocaleTimeString('en-GB', { timeZone: 'Asia/Tokyo' });
  assert.ok(text.includes(tokyoTime), `${tokyoTime}: ${text}`);
  await page.getByLabel('Kind').selectOption('change');
  await page.getByLabel('Subject').fill('desktops');
  await page.getByLabel('Subject').press('Enter');
  await until('one event', async () => (await rows(page)).length === 1);
  const other = await open(t, new URL(page.url()).hash);
  await other.waitForSelector('[data-event]');
  assert.deepEqual(await numbers(other), [change.number]);
  // The filter applies to live events.
  await daemon.command('volume', 'set', 'mail', 'policy=write-around');
  await daemon.command('volume', 'set', 'desktops', 'policy=write-back');
  await until('another event', async () => (await rows(other)).length > 1);
  assert.ok((await rows(other)).every((row) => row.kind === 'change' && row.text.includes('desktops')));
  await other.getByLabel('Subject').fill('nobody');
  await other.getByLabel('Subject').press('Enter');
  await other.waitForSelector('.empty:has-text("about “nobody”")');
  await other.goBack();
  await until('the previous filter', async () => (await rows(other)).length > 1);
  await other.locator('[data-event] a').first().click();
  await other.waitForSelector('h1:text-is("desktops")');
  assert.deepEqual([...page.errors, ...other.errors], []);
});

test('older events load by pages, and bursts lose none', { skip }, async (t) => {
  const page = await open(t, '#/events?subject=volume-0000');
  await waitForBadge(page, 'live');
  // More than a sample of the stream and than a page.
  const token = await daemon.command('token', 'create', 'many', '--role', 'operate');
  const headers = { Authorization: `Bearer ${token}` };
  for (let round = 0; round < 110; round++) {
    await fetch(`${daemon.url}api/v1/volumes/volume-0000/flush`, { method: 'POST', headers });
  }
  const expected = (await daemon.json('events?subject=volume-0000&limit=1000')).events.map(({ number }) => number);
  assert.ok(expected.length >= 110);
  await until('all events, live', async () => String(await numbers(page)) === String(expected));
  assert.match((await rows(page))[0].text, /by token many/);
  await page.reload();
  await page.waitForSelector('[data-event]');
  assert.deepEqual(await numbers(page), expected.slice(0, 100));
  // By keyboard.
  await page.getByRole('button', { name: 'Load older events' }).focus();
  await page.keyboard.press('Enter');
  await until('all events, by pages', async () => String(await numbers(page)) === String(expected));
  await page.waitForSelector('text=No older events.');
  assert.deepEqual(page.errors, []);
});

test('an unreachable event list is reported and recovers', { skip }, async (t) => {
  const page = await open(t, '#/volumes');
  await waitForBadge(page, 'live');
  const pattern = '**/api/v1/events?*';
  // Chromium may stall the first request after a route is installed: reload, so that it is another one.
  await page.route(pattern, (route) => route.abort());
  await page.reload();
  await waitForBadge(page, 'live');
  await page.getByRole('navigation').getByRole('link', { name: 'Events' }).click();
  await page.waitForSelector('[role=alert]:has-text("cannot be reached")');
  await page.unroute(pattern);
  await page.waitForSelector('[data-event]');
  assert.equal(await page.locator('[role=alert]').count(), 0);
});
