// The view of pools, in Chromium on a daemon with a pool of files.

import assert from 'node:assert/strict';
import { truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { axeFindings, logIn, openPage, replaceStream, waitForBadge } from './browser.js';
import { startPoolFixture, stopFixture, skip, until } from './daemon.js';

let daemon, browser, folder;

before(async () => {
  ({ daemon, browser, folder } = await startPoolFixture());
});
after(() => stopFixture({ daemon, browser, folder }));

const open = (t, view, options) => openPage({ daemon, browser, t }, view, options);
const text = async (locator) => (await locator.innerText()).replaceAll(/\s+/g, ' ');
const waitForText = (locator, part) => until(part, async () => (await text(locator)).includes(part));

test('tiers, devices and volumes of the pool are shown', { skip }, async (t) => {
  const page = await open(t, '#/pools');
  await waitForBadge(page, 'live');
  await page.waitForSelector('[data-pool=tank]');
  const tiers = page.locator('[data-tiers]');
  for (const part of ['ssd', 'sas', 'disk-0', 'disk-2', 'in service', 'by the configuration']) {
    await waitForText(tiers, part);
  }
  const volume = page.locator('[data-pool-volume=web01]');
  await waitForText(volume, 'of 256 MiB allocated');
  await page.waitForSelector('[data-slices=web01] svg rect');
  // The selected cell says where its bytes are.
  const map = page.locator('[data-slices=web01]');
  await map.getByRole('group').focus();
  await page.keyboard.press('ArrowRight');
  await waitForText(map, 'of disk time an hour.');
  await map.getByLabel('Colour').selectOption('tier');
  await until('the address', () => page.url().includes('cells=tier'));
  assert.deepEqual(page.errors, []);
});

test('moves are planned, paused and resumed', { skip }, async (t) => {
  const page = await open(t, '#/pools?of=tank');
  await waitForBadge(page, 'live');
  const moves = page.locator('[data-moves]');
  await moves.getByRole('button', { name: 'Show the plan' }).click();
  const plan = page.locator('[data-plan]');
  for (const part of ['Slices by load', 'Expected load', 'Of the allocated slices']) await waitForText(plan, part);
  await moves.getByRole('button', { name: 'Pause moves' }).click();
  await logIn(page, daemon, 'pauser', 'operate');
  await waitForText(moves, 'Pause: done.');
  await page.waitForSelector('[data-moves=paused]');
  assert.ok(await moves.getByRole('button', { name: 'Relocate now' }).isDisabled());
  await moves.getByRole('button', { name: 'Resume moves' }).click();
  await waitForText(moves, 'Resume: done.');
  assert.notEqual((await daemon.json('pools/tank')).relocation.state, 'paused');
});

test('a device is added, drained and returned to service', { skip }, async (t) => {
  const page = await open(t, '#/pools?of=tank');
  await waitForBadge(page, 'live');
  await page.getByRole('button', { name: 'Log in' }).click();
  await logIn(page, daemon, 'device-keeper', 'administer');
  const devices = page.locator('[data-pool-devices]');
  const path = join(folder, 'disk-9');
  await writeFile(path, '');
  await truncate(path, 128 << 20);
  await devices.getByLabel('Device').fill(path);
  await devices.getByLabel('Tier').selectOption('sas');
  await devices.getByRole('button', { name: 'Add', exact: true }).click();
  await waitForText(devices, 'Add: done.');
  await waitForText(page.locator('[data-tiers]'), 'disk-9');
  // Paused moves keep the drain from ending.
  await daemon.command('pool', 'pause', 'tank');
  await devices.getByLabel('Drain').selectOption(path);
  const drain = devices.getByRole('button', { name: 'Drain', exact: true });
  assert.ok(await drain.isDisabled(), 'it is not confirmed');
  await devices.getByLabel('to confirm').fill(path);
  await drain.click();
  await waitForText(devices, 'it is a job');
  await waitForText(page.locator('[data-tiers]'), 'draining');
  await devices.getByRole('button', { name: 'Cancel the drain' }).click();
  await until('the device in service', async () => {
    const pool = await daemon.json('pools/tank');
    return pool.tiers[1].groups.every(({ state }) => state !== 'draining');
  });
  await daemon.command('pool', 'resume', 'tank');
});

test('a volume is added on a tier of the pool, with all its space', { skip }, async (t) => {
  const page = await open(t, '#/volumes');
  await waitForBadge(page, 'live');
  await page.getByRole('button', { name: 'Log in' }).click();
  await logIn(page, daemon, 'adder', 'administer');
  await page.getByRole('button', { name: 'Add volume' }).click();
  const dialog = page.getByRole('dialog', { name: 'Add volume' });
  await dialog.getByLabel('Name').fill('bulk');
  await dialog.getByLabel('Backing').fill('/dev/sdb');
  assert.equal(await dialog.getByLabel('Provisioning').count(), 0, 'only a pool has tiers');
  await dialog.getByLabel('Backing').fill('pool://tank');
  await dialog.getByLabel('Size').fill('16 MiB');
  const tiers = await dialog.getByLabel('Tier policy').locator('option').allInnerTexts();
  assert.deepEqual(tiers, ['auto', 'start-high', 'highest', 'lowest', 'ssd', 'sas']);
  await dialog.getByLabel('Tier policy').selectOption('sas');
  await dialog.getByLabel('Provisioning').selectOption('thick');
  await dialog.getByRole('button', { name: 'Add', exact: true }).click();
  await until('the page of the volume', () => page.url().includes('#/volumes/bulk'));
  const { volumes } = await daemon.json('pools/tank');
  assert.deepEqual(volumes.find(({ name }) => name === 'bulk').tier_bytes, [0, 16 << 20]);
  await page.goto(page.url().replace(/#.*/, '#/pools?of=tank'));
  await page.getByLabel('Tier policy of bulk').selectOption('ssd');
  await until('the new policy', async () => {
    const { volumes } = await daemon.json('pools/tank');
    return volumes.find(({ name }) => name === 'bulk').tier_policy === 'ssd';
  });
  // The other tests show the map of the largest volume.
  await daemon.command('volume', 'remove', 'bulk');
  await daemon.command('pool', 'delete-volume', 'tank', 'bulk', '--yes');
  assert.deepEqual(page.errors, []);
});

test('a fill that nears its end has a mark and a date', { skip }, async (t) => {
  const page = await open(t, '#/pools?of=tank');
  await waitForBadge(page, 'live');
  const { id, ...sample } = await page.evaluate(async () => {
    const response = await fetch('api/v1/status');
    return { id: '1-1', at_unix_ms: Date.now(), status: await response.json(), totals: {}, events: [], volumes: {} };
  });
  const pool = sample.status.pools[0];
  for (const group of pool.tiers.flatMap(({ groups }) => groups)) group.free_bytes = Math.round(group.size_bytes * 0.1);
  pool.full_at_unix_seconds = Date.UTC(2031, 4, 17, 12) / 1e3;
  await replaceStream(page, { ...sample, id });
  await page.waitForSelector('[data-fill=nearly-full]');
  await waitForText(page.locator('[data-figure=full]'), '2031');
});

test('a daemon without pools shows the way to one', { skip }, async (t) => {
  const page = await open(t, '#/pools');
  await waitForBadge(page, 'live');
  const status = await page.evaluate(async () => (await fetch('api/v1/status')).json());
  const sample = { at_unix_ms: Date.now(), status: { ...status, pools: [] }, totals: {}, events: [], volumes: {} };
  await replaceStream(page, { ...sample, id: '1-1' });
  await waitForText(page.locator('main'), 'hotset pool create NAME');
});

test('the view passes axe and fits 390 pixels, in light and dark', { skip }, async (t) => {
  for (const colorScheme of ['light', 'dark']) {
    const page = await open(t, '#/pools?of=tank', { colorScheme, viewport: { width: 390, height: 800 } });
    await waitForBadge(page, 'live');
    await page.waitForSelector('[data-slices=web01] svg rect');
    await page.getByRole('button', { name: 'Show the plan' }).click();
    await page.waitForSelector('[data-plan]');
    assert.deepEqual(await axeFindings(page), [], colorScheme);
    const overflow = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
    assert.ok(overflow <= 0, `the page scrolls by ${overflow} pixels`);
  }
});
