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
  const told = await until('a curve that falls', async () => {
    const curve = await daemon.json('volumes/database/miss-ratio-curve');
    const { points } = curve.memory;
    return points.length > 10 && points.at(-1).miss_ratio < points[0].miss_ratio - 0.3 && curve;
  });
  const { points } = told.memory;
  // The load continues: fix the answer.
  const openFixed = async (hash) => {
    const page = await open(t, '#/events');
    await page.route('**/miss-ratio-curve', (route) => route.fulfill({ json: told }));
    await page.goto(daemon.url + hash);
    await waitForBadge(page, 'live');
    return page;
  };
  const page = await openFixed('#/volumes/database/sizing');
  const memory = page.locator('[data-curve=memory]');
  const slider = memory.getByLabel('Trial size');
  await slider.waitFor();
  const said = async () => (await memory.getByRole('status').innerText()).trim();
  const tried = async () => Number(await memory.locator('[data-trial]').getAttribute('data-trial'));
  const marked = async () => Number(await memory.locator('rect').getAttribute('x'));
  await slider.focus();
  const isSaid = async ({ size_bytes, miss_ratio }) => {
    await until(`${size_bytes} bytes`, async () => (await tried()) === size_bytes);
    assert.ok(Math.abs(percentOf(await said()) - miss_ratio * 100) <= 1, `${await said()}, and not ${miss_ratio}`);
  };
  await slider.press('Home');
  await isSaid(points[0]);
  const left = await marked();
  await slider.press('End');
  await isSaid(points.at(-1));
  assert.ok((await marked()) > left + 100, 'the mark stays where it was');
  await slider.press('Home');
  // Values between points are interpolated.
  for (let step = 0; step < 60; step++) await slider.press('ArrowRight');
  const chosen = await tried();
  const [below, above] = [
    points.findLast((of) => of.size_bytes <= chosen),
    points.find((of) => of.size_bytes >= chosen),
  ];
  const missed = percentOf(await said());
  assert.ok(missed <= below.miss_ratio * 100 + 1 && missed >= above.miss_ratio * 100 - 1, `${missed} at ${chosen}`);
  assert.equal(await slider.getAttribute('aria-valuetext'), await said());
  const other = await openFixed(new URL(page.url()).hash);
  const shown = other.locator('[data-curve=memory] [data-trial]');
  await shown.waitFor();
  assert.equal(Number(await shown.getAttribute('data-trial')), chosen);
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
  const told = async () => {
    const { memory, flash } = await daemon.json('volumes/mail');
    return [memory.min, memory.max, flash.min, flash.max];
  };
  assert.deepEqual(await told(), ['0', '50%', '0', 'none']);
  await until('what holds', async () => (await page.textContent('[data-current=memory_max]')) === '50%');
  assert.equal(await field('memory', 'Maximum').inputValue(), '');
  await field('flash', 'Guaranteed minimum').fill('64 MiB');
  await field('flash', 'Maximum').fill('20%');
  await change('flash').click();
  await page.waitForSelector('text=Flash: done.');
  assert.deepEqual(await told(), ['0', '50%', '64 MiB', '20%']);
  await field('memory', 'Guaranteed minimum').fill('lots');
  await change('memory').click();
  await page.waitForSelector('[data-controls] [role=alert]:has-text("lots")');
  assert.deepEqual(await told(), ['0', '50%', '64 MiB', '20%']);
  // The refusals are the only console errors.
  assert.deepEqual(
    page.errors.map((error) => error.match(/\b4\d\d\b/)?.[0]),
    ['401', '400'],
  );
});

test('limits, shares and reservation change after a login, and invalid values are refused', { skip }, async (t) => {
  const page = await open(t, '#/volumes/mail/qos');
  await waitForBadge(page, 'live');
  const group = (key) => page.locator(`[data-setting-form=${key}]`);
  const change = async (key, values, said) => {
    for (const [name, value] of Object.entries(values)) await group(key).getByLabel(name).fill(value);
    await group(key).getByRole('button', { name: 'Apply' }).click();
    if (said) await page.waitForSelector(`text=${said}: done.`);
  };
  await group('shares').waitFor();
  await change('shares', { Shares: 'high' });
  await page.getByRole('dialog', { name: 'Log in' }).waitFor();
  const told = async () => {
    const { shares, limit_iops, burst_iops, limit_bytes, reservation_iops } = (await daemon.json('volumes/mail')).qos;
    return [shares, limit_iops, burst_iops, limit_bytes, reservation_iops];
  };
  assert.deepEqual(await told(), [1000, 0, 0, 0, 0]);
  await logIn(page, daemon, 'qos', 'operate');
  await page.waitForSelector('text=Shares and reservation: done.');
  await change('limit-iops', { Limit: '500', Burst: '50' }, 'Request limit');
  await change('limit-bytes', { Limit: '20 MB' }, 'Throughput limit');
  assert.deepEqual(await told(), [2000, 500, 50, 20_000_000, 0]);
  await until('what holds', async () => (await page.textContent('[data-current=limit_iops]')) === '500/s');
  // Without a datastore a reservation is refused.
  await change('shares', { Reservation: '300' });
  await page.waitForSelector('[data-controls] [role=alert]:has-text("without a datastore")');
  assert.deepEqual(await told(), [2000, 500, 50, 20_000_000, 0]);
  await daemon.command('volume', 'set', 'mail', 'shares=normal', 'limit_iops=0', 'limit_bytes=0', 'burst_iops=0');
  // The refusals are the only console errors.
  assert.deepEqual(
    page.errors.map((error) => error.match(/\b4\d\d\b/)?.[0]),
    ['401', '400'],
  );
});

test('ranges are pinned and unpinned after a login, and invalid ranges are refused', { skip }, async (t) => {
  const page = await open(t, '#/volumes/mail/controls');
  await waitForBadge(page, 'live');
  const pins = page.locator('[data-pins]');
  await pins.waitFor();
  const text = async () => (await pins.innerText()).replaceAll(/\s+/g, ' ');
  const says = (part) => until(part, async () => (await text()).includes(part), 60_000);
  const has = (count) => until(`${count} ranges`, async () => (await pins.getAttribute('data-pins')) === String(count));
  const type = async (from, to) => {
    await pins.getByLabel('From').fill(from);
    await pins.getByLabel('To', { exact: true }).fill(to);
  };
  const press = (name) => pins.getByRole('button', { name, exact: true }).click();
  await says('No pinned ranges.');
  await says('Pin loads 2 GiB (32,768 pages of 64 KiB) into flash in the background and keeps it there. Only ');
  await type('64 MiB', '66 MiB');
  await says('Pin loads 2 MiB (32 pages of 64 KiB) into flash in the background and keeps it there. Unpin');
  await press('Pin');
  await page.getByRole('dialog', { name: 'Log in' }).waitFor();
  await has(0);
  await logIn(page, daemon, 'pins', 'operate');
  await page.waitForSelector('text=Pin: done.');
  await has(1);
  const pinned = async () => (await daemon.json('status')).overrides.find(({ key }) => key === 'pinned')?.value;
  assert.equal(await pinned(), `${64 << 20}..${66 << 20}`);
  assert.deepEqual((await pins.locator('td').allInnerTexts()).slice(0, 3), ['64 MiB', '66 MiB', '2 MiB']);
  await says('32 of 32 pages on flash.');
  // Changes by command appear.
  await daemon.command('volume', 'pin', 'mail', '1GiB..1025MiB');
  await has(2);
  await type('lots', '');
  await says('“lots” is not a valid size');
  assert.ok(await pins.getByRole('button', { name: 'Pin', exact: true }).isDisabled());
  await type('3 GiB', '');
  await says('The end must be greater than the start.');
  await press('Pin');
  await page.waitForSelector('[data-pins] [role=alert]:has-text("which has 2147483648 bytes")');
  await press('Unpin 64 MiB to 66 MiB');
  await has(1);
  await type('', '');
  await press('Unpin');
  await has(0);
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
  const told = await daemon.json('volumes/mail/heat');
  const sum = (what, part) => told.rows.reduce((all, row) => all + row[what][part], 0);
  const [reads, writes] = [sum('reads', 0), sum('writes', 32)];
  assert.ok(reads > 1_000 && writes > 10, `${reads} reads, ${writes} writes`);
  const page = await open(t, '#/volumes/mail/io');
  await waitForBadge(page, 'live');
  const heat = page.locator('[data-heat]');
  const counted = (wanted) =>
    until(`${wanted} requests`, async () => Number(await heat.getAttribute('data-heat')) === wanted);
  const drawn = () => heat.locator('.map rect[class^=step-]').count();
  const text = async () => (await heat.innerText()).replaceAll(/\s+/g, ' ');
  await counted(reads + writes);
  assert.match(await text(), /in 1 of 64 parts of 32 MiB. Hottest part: 0 B to 32 MiB\./);
  const number = (value) => value.toLocaleString('en');
  assert.deepEqual(await heat.locator('tbody tr').allInnerTexts(), [
    `0 B\t32 MiB\t${number(reads)}\t0`,
    `1 GiB\t1.03 GiB\t0\t${number(writes)}`,
  ]);
  const minutes = (what, part) => told.rows.filter((row) => row[what][part] > 0).length;
  assert.equal(await drawn(), minutes('reads', 0) + minutes('writes', 32));
  // The legend lists ranges; the deepest colour is the highest.
  const most = Math.max(...told.rows.map((row) => row.reads[0]));
  assert.ok((await heat.locator('.keys li').last().innerText()).trim() === `${number(Math.ceil(most / 4))} or more`);
  assert.equal(await heat.locator('.map .step-5').count(), told.rows.filter((row) => row.reads[0] >= most / 4).length);
  // Arrow keys move by minute; the reads are among the newest ones.
  await heat.locator('.map').focus();
  const under = [];
  for (let moved = 0; moved < 5; moved++) {
    await page.keyboard.press('ArrowLeft');
    under.push(await heat.getByRole('status').innerText());
  }
  await heat.locator('.map').hover({ position: { x: 300, y: 20 } });
  await until('another cell', async () =>
    /, 1\.\d+ GiB to .* 0 reads/.test(await heat.getByRole('status').innerText()),
  );
  const seen = under.map((said) => said.match(/0 B to 32 MiB: ([\d,]+) reads/)?.[1]);
  const rows = told.rows.filter((row) => row.reads[0] > 0).map((row) => number(row.reads[0]));
  assert.ok(
    rows.some((count) => seen.includes(count)),
    `${seen} and not ${rows}`,
  );
  // The selected kind is in the address.
  await heat.getByRole('combobox', { name: /^Requests/ }).selectOption('writes');
  await counted(writes);
  assert.equal(await drawn(), minutes('writes', 32));
  assert.ok(page.url().includes('heat=writes'), page.url());
  await page.reload();
  await counted(writes);
  await heat.getByText('Export').click();
  const button = heat.getByRole('button', { name: 'CSV' });
  const [download] = await Promise.all([page.waitForEvent('download'), button.click()]);
  const [head, ...lines] = String(await readFile(await download.path()))
    .trim()
    .split('\n')
    .map((line) => line.split(','));
  assert.deepEqual(head, ['time', 'at_unix_seconds', 'from_bytes', 'to_bytes', 'reads', 'writes']);
  const column = (at) => lines.reduce((all, line) => all + Number(line[at]), 0);
  assert.deepEqual([column(4), column(5)], [reads, writes]);
  const { stdout } = await promisify(execFile)('sh', ['-c', await heat.locator('.curl').inputValue()]);
  assert.deepEqual(JSON.parse(stdout).rows.at(-1).writes, told.rows.at(-1).writes);
  // An idle volume has an empty map.
  await page.goto(`${daemon.url}#/volumes/volume-0000/io`);
  await until('no request', async () => (await text()).includes('No reads and writes in the last hour.'));
  assert.equal(await drawn(), 0);
  assert.deepEqual(page.errors, []);
});

test('sections have addresses, and the back button and the keyboard reach them', { skip }, async (t) => {
  const page = await open(t, '#/volumes/database?range=1h');
  await waitForBadge(page, 'live');
  const sections = page.getByRole('navigation', { name: 'Sections of database' });
  const shown = (key) => until(`section ${key}`, () => page.locator(`[data-section="${key}"]`).count());
  const current = () => sections.locator('[aria-current=page]').innerText();
  await shown('');
  const links = await sections.getByRole('link').all();
  assert.equal(links.length, 5);
  await sections.getByRole('link', { name: 'Summary' }).focus();
  for (const key of ['sizing', 'io', 'qos', 'controls']) {
    await page.keyboard.press('Tab');
    await page.keyboard.press('Enter');
    await shown(key);
    assert.ok(page.url().endsWith(`#/volumes/database/${key}?range=1h`), page.url());
    assert.equal(await page.locator('h1').innerText(), 'database');
  }
  assert.equal(await current(), 'Controls');
  await page.goBack();
  await shown('qos');
  assert.equal(await current(), 'QoS');
  await page.reload();
  await shown('qos');
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
