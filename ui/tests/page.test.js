// Overview, volumes, datastores and flash, in Chromium on a daemon under load.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { axeFindings, logIn, openPage, replaceStream, setVisible, waitForBadge } from './browser.js';
import { startFixture, stopFixture, skip, until } from './daemon.js';

const VIEWS = [
  '#/?range=1h',
  '#/volumes',
  '#/volumes/database',
  '#/volumes/database/sizing',
  '#/volumes/database/io',
  '#/volumes/database/qos',
  '#/volumes/database/controls',
  '#/datastores',
  '#/flash',
  '#/advice',
  '#/events',
  '#/settings',
];
/** Selector of elements that are present once a view has data. */
const DATA_SELECTOR =
  'tbody td:not(.empty), .events li, .settings li, [data-sizing], [data-unavailable], .setting, .keys b';

let daemon, browser;

before(async () => {
  ({ daemon, browser } = await startFixture(17));
  daemon?.load(600);
});
after(() => stopFixture({ daemon, browser }));

const open = (t, view, options) => openPage({ daemon, browser, t }, view, options);
const figure = async (page, key) => (await page.textContent(`[data-figure=${key}] b`)).trim();
/** Opens each view in turn, in one tab: open tabs of charts keep the processors busy. */
async function* eachView(t, options) {
  const page = await open(t, VIEWS[0], options);
  for (const view of VIEWS) {
    await page.goto('about:blank');
    await page.goto(daemon.url + view);
    await waitForBadge(page, 'live');
    await page.waitForSelector(DATA_SELECTOR);
    await page.evaluate(() => document.querySelectorAll('details').forEach((details) => (details.open = true)));
    yield { page, view };
  }
}
const rateOf = (text) => Number.parseFloat(text.replaceAll(',', ''));

test('overview matches the API and updates every second', { skip }, async (t) => {
  const page = await open(t);
  await waitForBadge(page, 'live');
  await until('a read rate', async () => rateOf(await figure(page, 'reads')) > 0);
  await new Promise((resolve) => setTimeout(resolve, 4_000));
  const reads = async () => (await daemon.json('status')).volumes.reduce((sum, volume) => sum + volume.reads, 0);
  const [readsBefore, startMs] = [await reads(), Date.now()];
  const rateTexts = [];
  // The load is constant, so rates may be, too; latencies vary.
  const figureTexts = new Set();
  while (Date.now() - startMs < 6_000) {
    rateTexts.push(await figure(page, 'reads'));
    figureTexts.add(await page.textContent('.figures'));
    await new Promise((resolve) => setTimeout(resolve, 250));
  }
  const expected = ((await reads()) - readsBefore) / ((Date.now() - startMs) / 1e3);
  const shown = rateTexts.reduce((sum, text) => sum + rateOf(text), 0) / rateTexts.length;
  t.diagnostic(
    `reads per second: page ${shown.toFixed(1)}, API ${expected.toFixed(1)}; figures changed ${figureTexts.size} times in 6 s`,
  );
  assert.ok(Math.abs(shown - expected) < expected * 0.25, `the page shows ${shown}, the API ${expected}`);
  assert.ok(figureTexts.size >= 2, `in six seconds the page showed ${[...figureTexts]}`);
  assert.notEqual(await page.getAttribute('[data-verdict]', 'data-verdict'), 'idle');
  // Memory and flash in the same unit.
  for (const key of ['memory', 'flash']) assert.match(await figure(page, key), /^[\d.]+ [KMG]?i?B$/);
  assert.deepEqual(page.errors, []);
});

test('tabs share one stream; hidden tabs pause and catch up', { skip }, async (t) => {
  const page = await open(t);
  await waitForBadge(page, 'live');
  // More tabs than Chromium has connections to one server.
  const others = await Promise.all(Array.from({ length: 7 }, () => page.context().newPage()));
  await Promise.all(others.map((other) => other.goto(daemon.url)));
  await Promise.all(others.map((other) => waitForBadge(other, 'live')));
  for (const other of others) await other.close();
  const text = () => page.textContent('[data-figure=reads] b');
  await setVisible(page, false);
  await waitForBadge(page, 'paused');
  const before = await text();
  await new Promise((resolve) => setTimeout(resolve, 5_000));
  assert.equal(await text(), before, 'a hidden page is updated');
  await setVisible(page, true);
  await waitForBadge(page, 'live');
  await until('fresh figures', async () => (await text()) !== before);
  assert.deepEqual(page.errors, []);
});

/** Extends the API's answer to 1,000 volumes by copies of an idle one. */
async function extendTo1000(route) {
  const response = await route.fetch();
  const reported = await response.json();
  const idle = reported.volumes.find(({ name }) => name === 'volume-0000');
  const volumes = Array.from({ length: 997 }, (_, index) => ({
    ...idle,
    name: `volume-${String(index).padStart(4, '0')}`,
  }));
  const loaded = reported.volumes.filter(({ name }) => !name.startsWith('volume-'));
  await route.fulfill({ json: { volumes: [...loaded, ...volumes], next: null } });
}

test('a table of 1,000 volumes sorts and filters; a link restores both', { skip }, async (t) => {
  const page = await open(t);
  await page.route('**/api/v1/volumes?*', extendTo1000);
  const startMs = Date.now();
  await page.getByRole('link', { name: 'Volumes' }).click();
  await page.waitForSelector('tbody a');
  t.diagnostic(`1,000 volumes on the screen after ${Date.now() - startMs} ms`);
  const rows = (count) => until(`${count} rows`, async () => (await page.locator('tbody tr').count()) === count);
  const first = (name) =>
    until(`${name} in the first row`, async () => (await page.textContent('tbody tr:first-child a')) === name);
  await rows(1_000);
  await first('database');
  await page.getByRole('button', { name: 'Volume', exact: true }).click();
  await first('volume-0996');
  await page.getByRole('button', { name: 'Requests' }).click();
  await first('database');
  await page.getByRole('searchbox').fill('volume-00');
  await page.getByRole('button', { name: 'Volume', exact: true }).click();
  await page.getByRole('button', { name: 'Volume', exact: true }).click();
  await first('volume-0099');
  await page.reload();
  await page.waitForSelector('tbody a');
  await first('volume-0099');
  await rows(100);
  assert.deepEqual(page.errors, []);
  await page.locator('tbody a').first().focus();
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('Enter');
  await page.waitForSelector('h1:text-is("volume-0098")');
});

test('a policy change requires a login', { skip }, async (t) => {
  const page = await open(t, '#/volumes/mail/controls');
  await page.getByLabel('Policy', { exact: true }).selectOption('write-through');
  await page.getByRole('button', { name: 'Change policy' }).click();
  await page.getByRole('dialog', { name: 'Log in' }).waitFor();
  assert.equal((await daemon.json('volumes/mail')).policy, 'write-back');
  await logIn(page, daemon, 'page', 'operate');
  await page.waitForSelector('text=Policy: done.');
  assert.equal((await daemon.json('volumes/mail')).policy, 'write-through');
  for (const [action, state] of [
    ['Pause', 'paused'],
    ['Freeze', 'frozen'],
    ['Resume', 'active'],
  ]) {
    await page.getByRole('button', { name: action }).click();
    await page.waitForSelector(`text=${action}: done.`);
    assert.equal((await daemon.json('volumes/mail')).state, state, action);
  }
  // The refusal is the only console error.
  assert.ok(page.errors.length === 1 && page.errors[0].includes('401'), String(page.errors));
});

test('datastores show the sums of their volumes', { skip }, async (t) => {
  const page = await open(t, '#/datastores');
  await waitForBadge(page, 'live');
  const shown = async () => rateOf(await page.textContent('[data-datastore=shelf] [data-cell=requests]'));
  await until('a rate', async () => (await shown()) > 0);
  const names = await page.locator('tr[data-datastore] td:first-child').allTextContents();
  assert.deepEqual(names, ['no datastore', 'shelf']);
  const requests = async () => {
    const { volumes } = await daemon.json('status');
    const shelf = volumes.filter(({ datastore }) => datastore === 'shelf');
    return shelf.reduce((sum, { reads, writes }) => sum + reads + writes, 0);
  };
  const [requestsBefore, startMs, rates] = [await requests(), Date.now(), []];
  while (Date.now() - startMs < 8_000) {
    rates.push(await shown());
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
  const expected = ((await requests()) - requestsBefore) / ((Date.now() - startMs) / 1e3);
  const mean = rates.reduce((sum, rate) => sum + rate, 0) / rates.length;
  t.diagnostic(`requests per second: page ${mean.toFixed(1)}, API ${expected.toFixed(1)}`);
  assert.ok(Math.abs(mean - expected) < expected * 0.25, `the page shows ${mean}, the API ${expected}`);
  assert.ok((await page.locator('[data-chart]').count()) >= 4);
  assert.deepEqual(page.errors, []);
});

test('a datastore shows contention, waiting requests and congestion history', { skip }, async (t) => {
  const page = await open(t, '#/datastores?of=shelf');
  await waitForBadge(page, 'live');
  const card = page.locator('[data-contention=shelf]');
  await card.waitFor();
  const rows = async () => {
    const texts = await card.locator('tr[data-member]').allInnerTexts();
    return texts.map((text) => text.replaceAll(/\s+/g, ' ').trim());
  };
  const members = (await rows()).map((row) => row.split(' ').slice(0, 2).join(' '));
  assert.deepEqual(members.toSorted(), ['database 1,000', 'desktops 1,000']);
  const prepared = await daemon.json('datastores');
  const shelf = prepared.find(({ name }) => name === 'shelf');
  const member = { shares: 1000, reservation_iops: 0, entitled_ratio: 0.2, used_ratio: 0.7, waits: 9, waited_us: 2e6 };
  await page.route('**/api/v1/datastores', (route) => route.fulfill({ json: prepared }));
  // Latency above the threshold alone is no congestion; the first ten idle volumes are listed, and all others.
  const idle = { ...member, used_ratio: 0, waits: 0, waited_us: 0, waiting: 0 };
  const named = (entry, index) => ({ ...entry, volume: `idle-${String(index).padStart(2, '0')}` });
  Object.assign(shelf, {
    latency_ms: 50,
    threshold_ms: 5,
    congested: false,
    congestion_episodes: 0,
    members: [...Array.from({ length: 14 }, () => idle), { ...idle, waits: 1 }].map(named),
  });
  await until('eleven volumes', async () => (await rows()).length === 11);
  const calm = (await card.innerText()).replaceAll(/\s+/g, ' ');
  for (const part of [
    'Latency 50 ms, congestion threshold 5 ms',
    'latency exceeds the threshold and several volumes have many outstanding requests',
    '4 further volumes not listed.',
    "No congestion since the daemon's start.",
  ]) {
    assert.ok(calm.includes(part), `${part} is not in: ${calm}`);
  }
  // A congested datastore.
  Object.assign(shelf, {
    congested: true,
    congestion_episodes: 2,
    congested_seconds_total: 75,
    members: [
      { ...member, volume: 'database', entitled_ratio: 0.8, used_ratio: 0.3, waiting: 0, reservation_iops: 300 },
      { ...member, volume: 'desktops', waiting: 31 },
    ],
    episodes: [
      { began_unix_seconds: 1795326300, ended_unix_seconds: 1795326315, caused_by: 'database', contenders: ['mail'] },
      { began_unix_seconds: 1795326400, caused_by: 'desktops', contenders: ['database', 'desktops'] },
    ],
  });
  await card.locator('[data-congested=true]').waitFor();
  // Volumes with waiting requests first.
  assert.deepEqual(await rows(), [
    'desktops 1,000 – 20 % 70 % 31 2.0 s (9)',
    'database 1,000 300/s 80 % 30 % 0 2.0 s (9)',
  ]);
  const episodes = await card.locator('tr[data-episode]').allInnerTexts();
  assert.match(episodes[0].replaceAll(/\s+/g, ' '), /ongoing desktops database, desktops$/);
  assert.match(episodes[1].replaceAll(/\s+/g, ' '), /15 s database mail$/);
  assert.match(await card.innerText(), /2 periods since the daemon's start, 1 min 15 s in total/);
  assert.equal(
    await page.textContent('[data-datastore=shelf] [data-cell=contention]').then((text) => text.trim()),
    'congested',
  );
  assert.deepEqual(await axeFindings(page), []);
  assert.deepEqual(page.errors, []);
});

test('flash devices are listed, added and removed after a login', { skip }, async (t) => {
  const page = await open(t, '#/flash');
  await waitForBadge(page, 'live');
  const rows = (count) =>
    until(`${count} devices`, async () => (await page.locator('tr[data-device]').count()) === count);
  await rows(2);
  const { devices } = await daemon.json('flash');
  for (const device of devices) {
    const text = await page.textContent(`tr[data-device="${device.number}"]`);
    assert.ok(text.includes(device.device) && text.includes('in service') && text.includes('1 GiB'), text);
  }
  assert.equal(await figure(page, 'copies'), '2');
  assert.equal(await figure(page, 'scrub'), '0');
  const path = await daemon.createSparseFile('flash-2', 256);
  await page.getByLabel('Device', { exact: true }).fill(path);
  await page.getByRole('button', { name: 'Add' }).click();
  await page.getByRole('dialog', { name: 'Log in' }).waitFor();
  assert.equal((await daemon.json('flash')).devices.length, 2);
  await logIn(page, daemon, 'flash', 'administer');
  await page.waitForSelector('text=Add: done.');
  await rows(3);
  const added = (await daemon.json('flash')).devices.find(({ device }) => device === path);
  assert.equal(added.state, 'in-service');
  // Removal requires typing the name.
  const remove = page.getByRole('button', { name: 'Remove' });
  await page.getByRole('combobox', { name: /^Remove/ }).selectOption(String(added.number));
  assert.ok(await remove.isDisabled());
  await page.getByLabel('to confirm').fill('flash-2');
  assert.ok(await remove.isDisabled());
  await page.getByLabel('to confirm').fill(path);
  await remove.click();
  await page.waitForSelector('text=Remove: done.');
  await rows(2);
  assert.ok((await daemon.json('flash')).devices.every(({ device }) => device !== path));
  // The refusal is the only console error.
  assert.ok(page.errors.length === 1 && page.errors[0].includes('401'), String(page.errors));
});

test('drive health is listed beside the write count', { skip }, async (t) => {
  const page = await open(t, '#/flash');
  await waitForBadge(page, 'live');
  // The test's devices are files.
  await page.waitForSelector('[data-drives="0"]:has-text("files have none")');
  const status = await daemon.json('status');
  const drive = { drive: '/dev/nvme0n1', model: 'Example', read_unix_seconds: 1e9, temperature_celsius: 41 };
  const unread = { spare_ratio: null, spare_threshold_ratio: null, wear_used_ratio: null, media_errors: null };
  status.flash.devices[0].drive = { ...unread, ...drive, warnings: [], unread: 'smartctl has not answered' };
  const read = { spare_ratio: 0.04, spare_threshold_ratio: 0.1, wear_used_ratio: 1.12, media_errors: 2190 };
  status.flash.devices[1].drive = { ...drive, ...read, warnings: ['it takes no more writes'], unread: '' };
  status.flash.devices[1].endurance_used_ratio = 0.31;
  await replaceStream(page, { at_unix_ms: Date.now(), status, totals: {}, events: [], volumes: {} });
  const row = async (number) => (await page.textContent(`tr[data-drive="${number}"]`)).replaceAll(/\s+/g, ' ');
  await page.waitForSelector('[data-drives="2"]');
  const [first, second] = status.flash.devices.map(({ number }) => number);
  for (const part of ['none', 'Unreadable: smartctl has not answered', '41 °C', '––']) {
    assert.ok((await row(first)).includes(part), `${part} is not in: ${await row(first)}`);
  }
  for (const part of ['▲ it takes no more writes', '4 % (threshold 10 %)', '112 %', '31 %', '2,190']) {
    assert.ok((await row(second)).includes(part), `${part} is not in: ${await row(second)}`);
  }
  // The stream has ended and figures fade, which lowers the contrast.
  await page.evaluate(() => document.styleSheets[0].insertRule('main.stale table { opacity: 1 !important }'));
  assert.deepEqual(await axeFindings(page, '[data-drives]'), []);
});

test('flash figures stay while the core of the log does not answer', { skip }, async (t) => {
  const page = await open(t, '#/flash');
  await waitForBadge(page, 'live');
  const status = await daemon.json('status');
  const silent = structuredClone(status);
  silent.flash.silent = true;
  const sample = { at_unix_ms: Date.now(), status, totals: {}, events: [], volumes: {} };
  await replaceStream(page, sample, { ...sample, at_unix_ms: sample.at_unix_ms + 1_000, status: silent });
  await page.getByText('The data core of the flash log does not answer: figures are from').waitFor();
  assert.equal(await figure(page, 'copies'), '2');
  assert.equal(await page.locator('tr[data-device]').count(), 2);
});

test('no view has a serious axe finding, in light or dark', { skip }, async (t) => {
  for (const colorScheme of ['light', 'dark']) {
    for await (const { page, view } of eachView(t, { colorScheme })) {
      assert.deepEqual(await axeFindings(page), [], `${view} ${colorScheme}`);
    }
  }
});

test('no view overflows at 390 pixels', { skip }, async (t) => {
  for await (const { page, view } of eachView(t, { viewport: { width: 390, height: 800 } })) {
    const width = await page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(width <= 390, `${view} is ${width} pixels wide`);
  }
});

test('tables, bars and texts have room at 1024 pixels', { skip }, async (t) => {
  for (const view of ['#/volumes', '#/datastores', '#/flash', '#/volumes/database', '#/volumes/database/io']) {
    const page = await open(t, view, { viewport: { width: 1024, height: 800 } });
    await waitForBadge(page, 'live');
    await page.waitForSelector(DATA_SELECTOR);
    const hidden = await page
      .locator('.scroll')
      .evaluateAll((regions) => regions.map((region) => region.scrollWidth - region.clientWidth));
    assert.deepEqual([view, ...hidden.filter((pixels) => pixels > 0)], [view]);
    for (const bar of await page.locator('main .bar').all()) {
      const { width } = await bar.boundingBox();
      assert.ok(width > 300, `a bar of ${view} is ${width} pixels wide`);
    }
  }
  const page = await open(t, '#/events', { viewport: { width: 1024, height: 800 } });
  const { width } = await page.locator('.events .text').first().boundingBox();
  assert.ok(width > 300, `the text of an event is ${width} pixels wide`);
});

test('the first column of a wide table stays at 390 pixels', { skip }, async (t) => {
  const page = await open(t, '#/volumes', { viewport: { width: 390, height: 800 } });
  const table = page.getByRole('region', { name: 'Volumes' });
  await table.locator('tbody a').first().waitFor();
  await table.evaluate((region) => (region.scrollLeft = region.scrollWidth));
  assert.ok((await table.evaluate((region) => region.scrollLeft)) > 100, 'the table is not scrolled');
  const { x } = await table.locator('tbody a').first().boundingBox();
  assert.ok(x > 0 && x < 60, `the name is at ${x} pixels`);
});

test('figures stay while the daemon is down and resume after its restart', { skip }, async (t) => {
  const page = await open(t);
  await waitForBadge(page, 'live');
  await until('figures', async () => (await figure(page, 'memory')) !== '–');
  await daemon.kill();
  await waitForBadge(page, 'lost');
  await until('the reason', async () => /unreachable/.test(await page.textContent('[data-badge]')));
  await until('faded figures', () => page.locator('main.stale').count());
  assert.notEqual(await figure(page, 'memory'), '–');
  await daemon.serve();
  await waitForBadge(page, 'live');
  await until('fresh figures', async () => (await page.locator('main.stale').count()) === 0);
});
