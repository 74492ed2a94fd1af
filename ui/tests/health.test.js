// The health badge in the header, in Chromium on a daemon and on prepared samples.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { axeFindings, openPage, recordHealth, replaceStream, waitForBadge } from './browser.js';
import { startFixture, stopFixture, skip, until } from './daemon.js';

let daemon, browser;

before(async () => ({ daemon, browser } = await startFixture()));
after(() => stopFixture({ daemon, browser }));

const open = (t, view, options) => openPage({ daemon, browser, t }, view, options);
const health = (page) => page.locator('header [data-health]');
const waitForLevel = (page, level) =>
  until(level, async () => (await health(page).getAttribute('data-health')) === level);
const text = async (locator) => (await locator.innerText()).replaceAll(/\s+/g, ' ');
const width = (page) => page.evaluate(() => document.documentElement.scrollWidth);

test('the badge is on every view, and lists the alerts', { skip }, async (t) => {
  await daemon.command('volume', 'pause', 'mail');
  const page = await open(t, '#/settings');
  await waitForBadge(page, 'live');
  await waitForLevel(page, 'ok');
  assert.match(await text(health(page)), /✔ Health: OK/);
  for (const link of await page.locator('nav a').all()) {
    await link.click();
    assert.ok(await health(page).isVisible(), await link.innerText());
  }
  // Information is listed, but is no problem.
  await health(page).click();
  const dialog = page.getByRole('dialog', { name: 'Health' });
  const alert = dialog.locator('[data-alert=cache-paused]');
  await alert.waitFor();
  for (const part of ['● info', 'Cause', 'Effect', 'Remedy', 'hotset volume resume mail']) {
    assert.ok((await text(alert)).includes(part), `${part} is not in: ${await text(alert)}`);
  }
  await alert.getByRole('link', { name: 'mail' }).click();
  await page.waitForSelector('h1:text-is("mail")');
  await until('no dialog', async () => (await dialog.count()) === 0);
  await daemon.command('volume', 'resume', 'mail');
  await health(page).click();
  await dialog.getByText('No active alerts.').waitFor();
  await page.keyboard.press('Escape');
  await until('no dialog', async () => (await dialog.count()) === 0);
  assert.deepEqual(page.errors, []);
});

test('the badge shows the highest severity, and its dialog passes axe', { skip }, async (t) => {
  const status = await daemon.json('status');
  const alert = {
    cause: 'A cause.',
    effect: 'An effect.',
    remedy: 'A remedy.',
    since_unix_ms: Date.now(),
    acknowledged: null,
    silenced: null,
  };
  const alerts = [
    { ...alert, kind: 'endurance', subject: '/dev/nvme0n1', severity: 'warning' },
    { ...alert, kind: 'cache-paused', subject: 'mail', severity: 'info' },
  ];
  const sample = (active_alerts) => ({
    at_unix_ms: Date.now(),
    status: { ...status, active_alerts },
    totals: {},
    events: [],
    volumes: {},
  });
  for (const colorScheme of ['light', 'dark']) {
    const page = await open(t, '#/events', { colorScheme, viewport: { width: 390, height: 800 } });
    await waitForBadge(page, 'live');
    const badgeTexts = await recordHealth(page);
    await replaceStream(page, sample(alerts));
    await until('the warning', () => badgeTexts.some((badgeText) => badgeText.includes('▲ Health: Warning, 1 alert')));
    await page.unroute('**/api/v1/stream?*');
    const critical = { ...alert, kind: 'no-copy', subject: null, severity: 'critical' };
    await replaceStream(page, sample([critical, ...alerts]));
    await until('the critical alert', () =>
      badgeTexts.some((badgeText) => badgeText.includes('✖ Health: Critical, 2 alerts')),
    );
    await waitForLevel(page, 'lost');
    await health(page).click();
    const dialog = page.getByRole('dialog', { name: 'Health' });
    await dialog.getByText('Last known alerts').waitFor();
    assert.equal(await dialog.locator('[data-alert]').count(), 3);
    assert.deepEqual(await axeFindings(page, 'dialog'), [], colorScheme);
    assert.ok((await width(page)) <= 390, `it is ${await width(page)} pixels wide`);
  }
});

test('a lost connection is shown until the daemon answers again', { skip }, async (t) => {
  const page = await open(t, '#/volumes');
  await waitForBadge(page, 'live');
  await daemon.kill();
  await waitForLevel(page, 'lost');
  assert.match(await text(health(page)), /Not connected/);
  await health(page).click();
  await page.getByRole('dialog', { name: 'Health' }).getByText('systemctl status hotset').waitFor();
  await daemon.serve();
  // The kill may have lost unflushed writes, which is an alert.
  await waitForLevel(page, 'warning');
  const dialog = page.getByRole('dialog', { name: 'Health' });
  await dialog.getByText('unflushed writes of its last daemon may be lost').first().waitFor();
});
