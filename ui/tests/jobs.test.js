// Jobs in the tray, in Chromium on a daemon with a slow array.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { axeFindings, logIn, openPage, replaceStream, waitForBadge } from './browser.js';
import { startFixture, stopFixture, skip, until } from './daemon.js';

let daemon, browser;

before(async () => ({ daemon, browser } = await startFixture()));
after(() => stopFixture({ daemon, browser }));

const open = (t, view, options) => openPage({ daemon, browser, t }, view, options);
const job = (page) => page.locator('[data-job]');
const doneBytes = async (page) => Number(await job(page).locator('progress').getAttribute('value'));
const waitForAnnouncement = (page, text) =>
  until(text, async () => (await page.textContent('[data-tray-announcement]')).includes(text), 60_000);
const cancel = (page) => page.getByRole('button', { name: 'Cancel flush of mail' });
const jobCount = async () => (await daemon.json('status')).jobs.length;
const width = (page) => page.evaluate(() => document.documentElement.scrollWidth);

/** Creates dirty data that takes the array many seconds. */
const makeDirty = () => daemon.burst('mail', ['--rw=randwrite', '--size=2g', '--bs=4k', '--runtime=3', '--iodepth=16']);

test('every view and tab shows progress and end of a flush', { skip }, async (t) => {
  await makeDirty();
  const page = await open(t, '#/volumes/mail/controls');
  await waitForBadge(page, 'live');
  // A view with a static layout.
  const other = await page.context().newPage();
  const requestedUrls = [];
  for (const tab of [page, other]) tab.on('request', (request) => requestedUrls.push(request.url()));
  await other.goto(`${daemon.url}#/settings`);
  await waitForBadge(other, 'live');
  await other.waitForSelector('[data-setting]');
  const positions = () =>
    other.evaluate(() =>
      [...document.querySelectorAll('main > *')].map((element) => element.getBoundingClientRect().top),
    );
  const before = await positions();
  const flush = page.locator('[data-controls]').getByRole('button', { name: 'Flush' });
  await flush.click();
  await page.getByRole('dialog', { name: 'Log in' }).waitFor();
  assert.equal(await jobCount(), 0);
  await logIn(page, daemon, 'flush', 'operate');
  await page.waitForSelector('text=Flush: started.');
  await other.waitForSelector('[data-job]');
  assert.deepEqual(await positions(), before, 'the tray moved the page');
  assert.ok(await flush.isDisabled(), 'a flush is running already');
  await waitForAnnouncement(page, 'flush of mail in progress');
  await page.getByRole('navigation').getByRole('link', { name: 'Events' }).click();
  const first = await doneBytes(page);
  await until('progress', async () => (await doneBytes(page)) > first, 60_000);
  assert.match(await job(page).innerText(), /[KM]iB of [\d.]+ MiB, .* remaining/);
  assert.deepEqual(await axeFindings(page), []);
  await page.setViewportSize({ width: 390, height: 800 });
  assert.ok((await width(page)) <= 390, `it is ${await width(page)} pixels wide`);
  for (const tab of [page, other]) await waitForAnnouncement(tab, 'flush of mail: done');
  // Ended jobs disappear.
  for (const tab of [page, other]) await tab.waitForSelector('[data-tray]', { state: 'detached' });
  // Jobs arrive by the stream: no tab polls.
  assert.deepEqual(
    requestedUrls.filter((url) => url.endsWith('/jobs')),
    [],
  );
  // The refusal is the only console error.
  assert.ok(page.errors.length === 1 && page.errors[0].includes('401'), String(page.errors));
});

test('cancelling a job requires the operate role', { skip }, async (t) => {
  const page = await open(t, '#/overview');
  await waitForBadge(page, 'live');
  await makeDirty();
  const flushResult = daemon.command('volume', 'flush', 'mail').then(
    () => 'done',
    (error) => error.message,
  );
  await cancel(page).click();
  const dialog = page.getByRole('dialog', { name: 'Log in' });
  await dialog.getByLabel('Token').fill(await daemon.command('token', 'create', 'reader', '--role', 'read'));
  await dialog.getByRole('button', { name: 'Log in' }).click();
  await dialog.getByText('may read; this needs one that may operate').waitFor();
  assert.equal(await jobCount(), 1);
  await logIn(page, daemon, 'operator', 'operate');
  await page.waitForSelector('[data-ended=called-off]');
  await waitForAnnouncement(page, 'flush of mail: cancelled');
  assert.match(await flushResult, /cancelled/);
  assert.equal(await jobCount(), 0);
  assert.ok((await daemon.json('volumes/mail')).dirty_bytes > 0, 'the flush ended before it was cancelled');
  assert.deepEqual(
    page.errors.map((error) => error.match(/\b4\d\d\b/)?.[0]),
    ['401', '403'],
  );
});

test('the tray shows failures, and paused jobs of flash devices', { skip }, async (t) => {
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
    await replaceStream(page, sample);
    await page.waitForSelector('[data-tray="2"]');
    const text = (await page.textContent('[data-tray]')).replaceAll(/\s+/g, ' ');
    for (const part of [
      '✖ flush of mail: failed volume mail: destaging failed: input/output error',
      'paused: hotset flash resume continues it',
      'flush of database',
      '1 MiB of 4 MiB, 1 min 30 s remaining',
    ]) {
      assert.ok(text.includes(part), `${part} is not in: ${text}`);
    }
    assert.ok(!text.includes(': done'), 'a job that ended long ago is still shown');
    // The stream has ended: the rest of the page is faded, which lowers its contrast.
    assert.deepEqual(await axeFindings(page, '.tray'), [], colorScheme);
    assert.ok((await width(page)) <= 390, `it is ${await width(page)} pixels wide`);
    await page.getByText('2 jobs running').click();
    await until('a closed tray', async () => !(await job(page).first().isVisible()));
  }
});
