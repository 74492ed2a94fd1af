// The volume page, in Chromium on a daemon under load.

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { after, before, test } from 'node:test';
import { promisify } from 'node:util';
import { logIn, openPage, waitForBadge } from './browser.js';
import { startFixture, stopFixture, skip, until } from './daemon.js';

let daemon, browser;

before(async () => {
  ({ daemon, browser } = await startFixture(1));
  daemon?.load(600);
});
after(() => stopFixture({ daemon, browser }));

const open = (t, view) => openPage({ daemon, browser, t }, view);
const percentOf = (text) => Number.parseFloat(text.match(/([\d.]+) %/)?.[1] ?? (/< 1 %/.test(text) ? '0' : 'NaN'));

test('the trial-size slider estimates the miss ratio, and a link restores it', { skip }, async (t) => {
  const curve = await until('a curve that falls', async () => {
    const reported = await daemon.json('volumes/database/miss-ratio-curve');
    const { points } = reported.memory;
    return points.length > 10 && points.at(-1).miss_ratio < points[0].miss_ratio - 0.3 && reported;
  });
  const { points } = curve.memory;
  // The load continues: fix the answer.
  const openFixed = async (hash) => {
    const page = await open(t, '#/events');
    await page.route('**/miss-ratio-curve', (route) => route.fulfill({ json: curve }));
    await page.goto(daemon.url + hash);
    await waitForBadge(page, 'live');
    return page;
  };
  const page = await openFixed('#/volumes/database/sizing');
  const memory = page.locator('[data-curve=memory]');
  const slider = memory.getByLabel('Trial size');
  await slider.waitFor();
  const estimateText = async () => (await memory.getByRole('status').innerText()).trim();
  const trialSize = async () => Number(await memory.locator('[data-trial]').getAttribute('data-trial'));
  const markPosition = async () => Number(await memory.locator('rect').getAttribute('x'));
  await slider.focus();
  const assertEstimate = async ({ size_bytes, miss_ratio }) => {
    await until(`${size_bytes} bytes`, async () => (await trialSize()) === size_bytes);
    assert.ok(
      Math.abs(percentOf(await estimateText()) - miss_ratio * 100) <= 1,
      `${await estimateText()}, and not ${miss_ratio}`,
    );
  };
  await slider.press('Home');
  await assertEstimate(points[0]);
  const left = await markPosition();
  await slider.press('End');
  await assertEstimate(points.at(-1));
  assert.ok((await markPosition()) > left + 100, 'the mark did not move');
  await slider.press('Home');
  // Values between points are interpolated.
  for (let step = 0; step < 60; step++) await slider.press('ArrowRight');
  const size = await trialSize();
  const [below, above] = [
    points.findLast((point) => point.size_bytes <= size),
    points.find((point) => point.size_bytes >= size),
  ];
  const missPercent = percentOf(await estimateText());
  assert.ok(
    missPercent <= below.miss_ratio * 100 + 1 && missPercent >= above.miss_ratio * 100 - 1,
    `${missPercent} at ${size}`,
  );
  assert.equal(await slider.getAttribute('aria-valuetext'), await estimateText());
  const other = await openFixed(new URL(page.url()).hash);
  const shown = other.locator('[data-curve=memory] [data-trial]');
  await shown.waitFor();
  assert.equal(Number(await shown.getAttribute('data-trial')), size);
  assert.deepEqual([...page.errors, ...other.errors], []);
});

test('cache quotas change after a login, and invalid values are refused', { skip }, async (t) => {
  const page = await open(t, '#/volumes/mail/controls');
  await waitForBadge(page, 'live');
  const form = (key) => page.locator(`[data-setting-form=${key}]`);
  const field = (key, name) => form(key).getByLabel(name);
  const change = (key) => form(key).getByRole('button', { name: 'Apply' });
  await form('memory').waitFor();
  assert.ok(await change('memory').isDisabled(), 'nothing was typed');
  await field('memory', 'Maximum').fill('50%');
  await change('memory').click();
  await page.getByRole('dialog', { name: 'Log in' }).waitFor();
  assert.equal((await daemon.json('volumes/mail')).memory.max, 'none');
  await logIn(page, daemon, 'shares', 'operate');
  await page.waitForSelector('text=Memory: done.');
  const settings = async () => {
    const { memory, flash } = await daemon.json('volumes/mail');
    return [memory.min, memory.max, flash.min, flash.max];
  };
  assert.deepEqual(await settings(), ['0', '50%', '0', 'none']);
  await until('the effective value', async () => (await page.textContent('[data-current=memory_max]')) === '50%');
  assert.equal(await field('memory', 'Maximum').inputValue(), '');
  await field('flash', 'Guaranteed minimum').fill('64 MiB');
  await field('flash', 'Maximum').fill('20%');
  await change('flash').click();
  await page.waitForSelector('text=Flash: done.');
  assert.deepEqual(await settings(), ['0', '50%', '64 MiB', '20%']);
  await field('memory', 'Guaranteed minimum').fill('lots');
  await change('memory').click();
  await page.waitForSelector('[data-controls] [role=alert]:has-text("lots")');
  assert.deepEqual(await settings(), ['0', '50%', '64 MiB', '20%']);
  // The refusals are the only console errors.
  assert.deepEqual(
    page.errors.map((error) => error.match(/\b4\d\d\b/)?.[0]),
    ['401', '400'],
  );
});

test('QoS settings change after a login, and invalid values are refused', { skip }, async (t) => {
  const page = await open(t, '#/volumes/mail/qos');
  await waitForBadge(page, 'live');
  const group = (key) => page.locator(`[data-setting-form=${key}]`);
  const change = async (key, values, label) => {
    for (const [name, value] of Object.entries(values)) await group(key).getByLabel(name).fill(value);
    await group(key).getByRole('button', { name: 'Apply' }).click();
    if (label) await page.waitForSelector(`text=${label}: done.`);
  };
  await group('shares').waitFor();
  await change('shares', { Shares: 'high' });
  await page.getByRole('dialog', { name: 'Log in' }).waitFor();
  const settings = async () => {
    const { shares, limit_iops, burst_iops, limit_bytes, reservation_iops } = (await daemon.json('volumes/mail')).qos;
    return [shares, limit_iops, burst_iops, limit_bytes, reservation_iops];
  };
  assert.deepEqual(await settings(), [1000, 0, 0, 0, 0]);
  await logIn(page, daemon, 'qos', 'operate');
  await page.waitForSelector('text=Shares and reservation: done.');
  await change('limit-iops', { Limit: '500', Burst: '50' }, 'Request limit');
  await change('limit-bytes', { Limit: '20 MB' }, 'Throughput limit');
  assert.deepEqual(await settings(), [2000, 500, 50, 20_000_000, 0]);
  await until('the effective value', async () => (await page.textContent('[data-current=limit_iops]')) === '500/s');
  // Without a datastore a reservation is refused.
  await change('shares', { Reservation: '300' });
  await page.waitForSelector('[data-controls] [role=alert]:has-text("without a datastore")');
  assert.deepEqual(await settings(), [2000, 500, 50, 20_000_000, 0]);
  await daemon.command('volume', 'set', 'mail', 'shares=normal', 'limit_iops=0', 'limit_bytes=0', 'burst_iops=0');
  // The refusals are the only console errors.
  assert.deepEqual(
    page.errors.map((error) => error.match(/\b4\d\d\b/)?.[0]),
    ['401', '400'],
  );
});

test('ranges are pinned after a login, and invalid ranges are refused', { skip }, async (t) => {
  const page = await open(t, '#/volumes/mail/controls');
  await waitForBadge(page, 'live');
  const pins = page.locator('[data-pins]');
  await pins.waitFor();
  const text = async () => (await pins.innerText()).replaceAll(/\s+/g, ' ');
  const waitForText = (part) => until(part, async () => (await text()).includes(part), 60_000);
  const waitForRanges = (count) =>
    until(`${count} ranges`, async () => (await pins.getAttribute('data-pins')) === String(count));
  const enter = async (from, to) => {
    await pins.getByLabel('From').fill(from);
    await pins.getByLabel('To', { exact: true }).fill(to);
  };
  const click = (name) => pins.getByRole('button', { name, exact: true }).click();
  await waitForText('No pinned ranges.');
  await waitForText('Pin loads 2 GiB (32,768 pages of 64 KiB) into flash in the background and keeps it there. Only ');
  await enter('64 MiB', '66 MiB');
  await waitForText('Pin loads 2 MiB (32 pages of 64 KiB) into flash in the background and keeps it there. Unpin');
  await waitForText('The same by command: hotset volume pin mail "64 MiB..66 MiB"');
  await click('Pin');
  await page.getByRole('dialog', { name: 'Log in' }).waitFor();
  await waitForRanges(0);
  await logIn(page, daemon, 'pins', 'operate');
  await page.waitForSelector('text=Pin: done.');
  await waitForRanges(1);
  const pinned = async () => (await daemon.json('status')).overrides.find(({ key }) => key === 'pinned')?.value;
  assert.equal(await pinned(), `${64 << 20}..${66 << 20}`);
  assert.deepEqual((await pins.locator('td').allInnerTexts()).slice(0, 3), ['64 MiB', '66 MiB', '2 MiB']);
  await waitForText('32 of 32 pages on flash.');
  // Changes by command appear.
  await daemon.command('volume', 'pin', 'mail', '1GiB..1025MiB');
  await waitForRanges(2);
  await enter('lots', '');
  await waitForText('“lots” is not a valid size');
  assert.ok(await pins.getByRole('button', { name: 'Pin', exact: true }).isDisabled());
  await enter('3 GiB', '');
  await waitForText('The end must be greater than the start.');
  await click('Pin');
  await page.waitForSelector('[data-pins] [role=alert]:has-text("which has 2147483648 bytes")');
  await click('Unpin 64 MiB to 66 MiB');
  await waitForRanges(1);
  await enter('', '');
  await click('Unpin');
  await waitForRanges(0);
  assert.equal(await pinned(), undefined);
  // The refusals are the only console errors.
  assert.deepEqual(
    page.errors.map((error) => error.match(/\b4\d\d\b/)?.[0]),
    ['401', '400'],
  );
});

test('the heat map matches the API as map, summary, table and export', { skip }, async (t) => {
  await daemon.burst('mail');
  await daemon.burst('mail', ['--rw=randwrite', '--rate_iops=100', '--offset=1g']);
  const reported = await daemon.json('volumes/mail/heat');
  const sum = (kind, part) => reported.rows.reduce((total, row) => total + row[kind][part], 0);
  const [reads, writes] = [sum('reads', 0), sum('writes', 32)];
  assert.ok(reads > 1_000 && writes > 10, `${reads} reads, ${writes} writes`);
  const page = await open(t, '#/volumes/mail/io');
  await waitForBadge(page, 'live');
  const heat = page.locator('[data-heat]');
  const waitForCount = (expected) =>
    until(`${expected} requests`, async () => Number(await heat.getAttribute('data-heat')) === expected);
  const drawnRuns = () => heat.locator('.map rect[class^=step-]').count();
  const text = async () => (await heat.innerText()).replaceAll(/\s+/g, ' ');
  await waitForCount(reads + writes);
  assert.match(await text(), /in 1 of 64 parts of 32 MiB. Hottest part: 0 B to 32 MiB\./);
  const number = (value) => value.toLocaleString('en');
  assert.deepEqual(await heat.locator('tbody tr').allInnerTexts(), [
    `0 B\t32 MiB\t${number(reads)}\t0`,
    `1 GiB\t1.03 GiB\t0\t${number(writes)}`,
  ]);
  const minutes = (kind, part) => reported.rows.filter((row) => row[kind][part] > 0).length;
  assert.equal(await drawnRuns(), minutes('reads', 0) + minutes('writes', 32));
  // The legend lists ranges; the deepest colour is the highest.
  const max = Math.max(...reported.rows.map((row) => row.reads[0]));
  assert.ok((await heat.locator('.keys li').last().innerText()).trim() === `${number(Math.ceil(max / 4))} or more`);
  assert.equal(
    await heat.locator('.map .step-5').count(),
    reported.rows.filter((row) => row.reads[0] >= max / 4).length,
  );
  // Arrow keys move by minute; the reads are among the newest ones.
  await heat.locator('.map').focus();
  const cellTexts = [];
  for (let step = 0; step < 5; step++) {
    await page.keyboard.press('ArrowLeft');
    cellTexts.push(await heat.getByRole('status').innerText());
  }
  await heat.locator('.map').hover({ position: { x: 300, y: 20 } });
  await until('another cell', async () =>
    /, 1\.\d+ GiB to .* 0 reads/.test(await heat.getByRole('status').innerText()),
  );
  const shownReads = cellTexts.map((cellText) => cellText.match(/0 B to 32 MiB: ([\d,]+) reads/)?.[1]);
  const expectedReads = reported.rows.filter((row) => row.reads[0] > 0).map((row) => number(row.reads[0]));
  assert.ok(
    expectedReads.some((count) => shownReads.includes(count)),
    `${shownReads} and not ${expectedReads}`,
  );
  // The selected kind is in the address.
  await heat.getByRole('combobox', { name: /^Requests/ }).selectOption('writes');
  await waitForCount(writes);
  assert.equal(await drawnRuns(), minutes('writes', 32));
  assert.ok(page.url().includes('heat=writes'), page.url());
  await page.reload();
  await waitForCount(writes);
  await heat.getByText('Export').click();
  const button = heat.getByRole('button', { name: 'CSV' });
  const [download] = await Promise.all([page.waitForEvent('download'), button.click()]);
  const [header, ...lines] = String(await readFile(await download.path()))
    .trim()
    .split('\n')
    .map((line) => line.split(','));
  assert.deepEqual(header, ['time', 'at_unix_seconds', 'from_bytes', 'to_bytes', 'reads', 'writes']);
  const columnSum = (index) => lines.reduce((total, line) => total + Number(line[index]), 0);
  assert.deepEqual([columnSum(4), columnSum(5)], [reads, writes]);
  const { stdout } = await promisify(execFile)('sh', ['-c', await heat.locator('.curl').inputValue()]);
  assert.deepEqual(JSON.parse(stdout).rows.at(-1).writes, reported.rows.at(-1).writes);
  // An idle volume has an empty map.
  await page.goto(`${daemon.url}#/volumes/volume-0000/io`);
  await until('no request', async () => (await text()).includes('No reads and writes in the last hour.'));
  assert.equal(await drawnRuns(), 0);
  assert.deepEqual(page.errors, []);
});

test('sections have addresses that the back button and keyboard reach', { skip }, async (t) => {
  const page = await open(t, '#/volumes/database?range=1h');
  await waitForBadge(page, 'live');
  const sections = page.getByRole('navigation', { name: 'Sections of database' });
  const waitForSection = (key) => until(`section ${key}`, () => page.locator(`[data-section="${key}"]`).count());
  const current = () => sections.locator('[aria-current=page]').innerText();
  await waitForSection('');
  const links = await sections.getByRole('link').all();
  assert.equal(links.length, 5);
  await sections.getByRole('link', { name: 'Summary' }).focus();
  for (const key of ['sizing', 'io', 'qos', 'controls']) {
    await page.keyboard.press('Tab');
    await page.keyboard.press('Enter');
    await waitForSection(key);
    assert.ok(page.url().endsWith(`#/volumes/database/${key}?range=1h`), page.url());
    assert.equal(await page.locator('h1').innerText(), 'database');
  }
  assert.equal(await current(), 'Controls');
  await page.goBack();
  await waitForSection('qos');
  assert.equal(await current(), 'QoS');
  await page.reload();
  await waitForSection('qos');
  for (const width of [390, 1440]) {
    await page.setViewportSize({ width, height: 900 });
    assert.ok(await sections.getByRole('link', { name: 'Controls' }).isVisible(), `${width}`);
  }
  await page.goto(`${daemon.url}#/volumes/database/nonsense`);
  await page.getByText('Section not found.').waitFor();
  assert.deepEqual(page.errors, []);
});

test('a limited volume has a badge in its heading and in the table', { skip }, async (t) => {
  await daemon.command('volume', 'set', 'database', 'limit_iops=200');
  t.after(() => daemon.command('volume', 'set', 'database', 'limit_iops=0'));
  const page = await open(t, '#/volumes/database');
  const tag = page.locator('.heading .limited');
  await tag.waitFor();
  assert.equal(await tag.innerText(), 'limited');
  if (process.env.SCREENSHOT) await page.screenshot({ path: `${process.env.SCREENSHOT}/volume.png` });
  await tag.click();
  assert.ok(page.url().includes('#/volumes/database/qos'), page.url());
  await page.goto(`${daemon.url}#/volumes`);
  const row = page.locator('tbody tr', { hasText: 'database' });
  await row.locator('.limited').waitFor();
  if (process.env.SCREENSHOT) await page.screenshot({ path: `${process.env.SCREENSHOT}/volumes.png` });
  assert.equal(await page.locator('tbody tr .limited').count(), 1);
  assert.deepEqual(page.errors, []);
});
