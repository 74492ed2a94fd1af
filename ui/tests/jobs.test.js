// Long work in the tray, in a real Chromium on a real daemon whose array is slow.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { badge, graveFindings, openPage, tellInstead } from './browser.js';
import { begin, end, skip, until } from './daemon.js';

let daemon, browser;

before(async () => ({ daemon, browser } = await begin()));
after(() => end({ daemon, browser }));

const open = (t, view, options) => openPage({ daemon, browser, t }, view, options);
const job = (page) => page.locator('[data-job]');
const done = async (page) => Number(await job(page).locator('progress').getAttribute('value'));
const said = (page, text) =>
  until(text, async () => (await page.textContent('[data-tray-said]')).includes(text), 60_000);
const callOff = (page) => page.getByRole('button', { name: 'Call off flush of mail' });
const under = async () => (await daemon.json('status')).jobs.length;
const width = (page) => page.evaluate(() => document.documentElement.scrollWidth);

/** Writes what takes the array many seconds. */
const makeDirty = () => daemon.burst('mail', ['--rw=randwrite', '--size=2g', '--runtime=3', '--iodepth=16']);

async function login(page, role) {
  await page.getByLabel('Token').fill(await daemon.command('token', 'create', `${role}-${Date.now()}`, '--role', role));
  await page.getByRole('button', { name: 'Log in' }).click();
  await page.waitForSelector('text=Token', { state: 'detached' });
}

test('a flush goes on aside: every view and tab shows how far it is and how it ends', { skip }, async (t) => {
  await makeDirty();
  const page = await open(t, '#/volumes/mail');
  await badge(page, 'live');
  // A view in which nothing moves by itself.
  const other = await page.context().newPage();
  const asked = [];
  for (const tab of [page, other]) tab.on('request', (request) => asked.push(request.url()));
  await other.goto(`${daemon.url}#/settings`);
  await badge(other, 'live');
  await other.waitForSelector('[data-setting]');
  const place = () =>
    other.evaluate(() => [...document.querySelectorAll('main > *')].map((part) => part.getBoundingClientRect().top));
  const before = await place();
  const flush = page.locator('[data-controls]').getByRole('button', { name: 'Flush' });
  await flush.click();
  await login(page, 'operate');
  assert.equal(await under(), 0);
  await flush.click();
  await page.waitForSelector('text=Flush: begun.');
  await other.waitForSelector('[data-job]');
  assert.deepEqual(await place(), before, 'the tray moved the page');
  assert.ok(await flush.isDisabled(), 'it is under way already');
  await said(page, 'flush of mail is under way');
  await page.getByRole('navigation').getByRole('link', { name: 'Events' }).click();
  const first = await done(page);
  await until('progress', async () => (await done(page)) > first, 60_000);
  assert.match(await job(page).innerText(), /[KM]iB of [\d.]+ MiB, .* left/);
  assert.deepEqual(await graveFindings(page), []);
  await page.setViewportSize({ width: 390, height: 800 });
  assert.ok((await width(page)) <= 390, `it is ${await width(page)} pixels wide`);
  await callOff(page).click();
  for (const tab of [page, other]) await said(tab, 'flush of mail: called off');
  assert.equal(await under(), 0);
  assert.ok((await daemon.json('volumes/mail')).dirty_bytes > 0, 'it was done before it was called off');
  await page.getByRole('navigation').getByRole('link', { name: 'Flash' }).click();
  await daemon.command('volume', 'flush', 'mail');
  await said(page, 'flush of mail: done');
  // What has ended is shown for a while alone.
  for (const tab of [page, other]) await tab.waitForSelector('[data-tray]', { state: 'detached' });
  // The stream tells it to all tabs: none of them asks.
  assert.deepEqual(
    asked.filter((url) => url.endsWith('/jobs')),
    [],
  );
  // The refusal is the browser's only complaint.
  assert.ok(page.errors.length === 1 && page.errors[0].includes('401'), String(page.errors));
});

test('who may read alone calls nothing off, and is told what it takes', { skip }, async (t) => {
  await makeDirty();
  const flushed = daemon.command('volume', 'flush', 'mail').then(
    () => 'done',
    (error) => error.message,
  );
  const page = await open(t, '#/overview');
  await callOff(page).click();
  await login(page, 'read');
  await callOff(page).click();
  const problem = job(page).getByRole('alert');
  await until('why not', async () => /may read; this needs one that may operate/.test(await problem.innerText()));
  assert.equal(await under(), 1);
  await login(page, 'operate');
  await callOff(page).click();
  await page.waitForSelector('[data-ended=called-off]');
  assert.match(await flushed, /cancelled/);
  assert.deepEqual(
    page.errors.map((error) => error.match(/\b4\d\d\b/)?.[0]),
    ['401', '403'],
  );
});

test('why work has failed is shown, and what is held and of the flash devices', { skip }, async (t) => {
  const status = await daemon.json('status');
  const at_unix_ms = Date.now();
  status.jobs = [
    { id: 'flash', kind: 'replace', subject: `/dev/disk/by-id/${'x'.repeat(60)}`, paused: true, left_seconds: null },
    { id: 'flush-7', kind: 'flush', subject: 'database', paused: false, left_seconds: 90 },
  ].map((job) => ({ done_bytes: 1 << 20, total_bytes: 4 << 20, ...job }));
  const ended = { id: 'flush-6', kind: 'flush', subject: 'mail', ended_unix_ms: at_unix_ms - 20_000 };
  status.ended_jobs = [
    { ...ended, outcome: 'failed', reason: 'volume mail: destaging failed: input/output error' },
    { ...ended, id: 'flush-5', outcome: 'done', reason: '' },
  ];
  const sample = { at_unix_ms, status, totals: (await daemon.json('datastores'))[0], events: [], volumes: {} };
  for (const colorScheme of ['light', 'dark']) {
    const page = await open(t, '#/events', { colorScheme, viewport: { width: 390, height: 800 } });
    await tellInstead(page, sample);
    await page.waitForSelector('[data-tray="2"]');
    const text = (await page.textContent('[data-tray]')).replaceAll(/\s+/g, ' ');
    for (const part of [
      '✖ flush of mail: failed volume mail: destaging failed: input/output error',
      'held: hotset flash resume lets it go on',
      'flush of database',
      '1 MiB of 4 MiB, 1 min 30 s left',
    ]) {
      assert.ok(text.includes(part), `${part} is not in: ${text}`);
    }
    assert.ok(!text.includes(': done'), 'what is done has been shown for long enough');
    // All else looks old: what was told ends at once.
    assert.deepEqual(await graveFindings(page, '.tray'), [], colorScheme);
    assert.ok((await width(page)) <= 390, `it is ${await width(page)} pixels wide`);
    await page.getByText('2 under way').click();
    await until('a closed tray', async () => !(await job(page).first().isVisible()));
  }
});
