// Alerts and events in a real Chromium, as a real daemon raises and tells them.

import assert from 'node:assert/strict';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { badge, openPage } from './browser.js';
import { BROWSER, Daemon, hasBrowser, launch, until } from './daemon.js';

const skip = hasBrowser ? false : `there is no ${BROWSER}: apt-get install chromium`;
let daemon, browser;

before(async () => {
  if (skip) return;
  daemon = await Daemon.start(1);
  browser = await launch();
});
after(async () => {
  await browser?.close();
  await daemon?.stop();
});

/** The page tells all that the API tells of an alert. */
async function saysAll(daemon, page, kind, mark) {
  const told = (await daemon.json('alerts')).find((one) => one.kind === kind);
  const alert = page.locator(`[data-alert=${kind}]`);
  const plain = (text) => text.replaceAll(/\s+/g, ' ');
  const text = plain(await alert.innerText());
  const remedy = told.remedy.replaceAll('`', '').replace('NAME', told.subject);
  for (const part of [mark, kind, told.subject ?? 'flash', told.cause, told.effect, remedy]) {
    assert.ok(text.includes(plain(part)), `${part} is not in: ${text}`);
  }
  assert.equal(Date.parse(await alert.locator('time').getAttribute('datetime')), told.since_unix_ms);
}

const open = (t, view, options) => openPage({ daemon, browser, t }, view, options);

test('an alert says how bad it is, about what, since when, why, what follows and what to do', { skip }, async (t) => {
  await daemon.command('volume', 'pause', 'mail');
  const page = await open(t);
  await badge(page, 'live');
  const alert = (kind) => page.locator(`[data-alert=${kind}]`);
  await alert('cache-paused').waitFor();
  await saysAll(daemon, page, 'cache-paused', '● info');
  // It leads to its volume, which shows its own alerts alone.
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

test('an alert of flash stands on its view, and leads to it', { skip }, async (t) => {
  // Without one of its devices there is no flash cache, and what may lie there alone is not served.
  const daemon = await Daemon.start();
  t.after(() => daemon.stop());
  await daemon.kill();
  await rm(join(daemon.folder, 'flash-1'));
  await daemon.serve();
  const page = await openPage({ daemon, browser, t });
  const alert = page.locator('[data-alert=flash-unused]');
  await alert.waitFor();
  await saysAll(daemon, page, 'flash-unused', '✖ critical');
  assert.equal(await page.locator('[data-alert=volume-refused]').count(), 3);
  await alert.getByRole('link', { name: 'flash' }).click();
  await page.waitForSelector('h1:text-is("Flash")');
  await alert.waitFor();
  assert.equal(await page.locator('[data-alert=volume-refused]').count(), 0);
  assert.deepEqual(page.errors, []);
});
