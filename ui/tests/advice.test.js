// Sizing advice, in Chromium on a daemon and on prepared answers.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { badge, openPage } from './browser.js';
import { begin, end, skip, until } from './daemon.js';

const GIB = 2 ** 30;
const ASSUMED = { spindle_requests_per_s: 180, array_latency_us: 8000, flash_latency_us: 200, memory_latency_us: 20 };
const NONE = { knee_bytes: null, steps: [] };

let daemon, browser;

before(async () => {
  ({ daemon, browser } = await begin(2));
  daemon?.load(600);
});
after(() => end({ daemon, browser }));

const open = (t, view) => openPage({ daemon, browser, t }, view);
const text = async (locator) => (await locator.innerText()).replaceAll(/\s+/g, ' ');
const recommendations = (page) =>
  page.locator('[data-recommendation]').evaluateAll((all) => all.map((one) => one.dataset.recommendation));
const figure = (page, key) => text(page.locator(`[data-figure=${key}]`));

/** One tier of an answer; sizes in GiB. */
const side = (today, knee, steps) => ({
  today: { size_bytes: today[0] * GIB, hit_ratio: today[1] },
  knee_bytes: knee === null ? null : knee * GIB,
  steps: steps.map(([gib, hit_ratio]) => ({ size_bytes: gib * GIB, hit_ratio })),
});
const advice = (volume, rate, memory, flash, requests = 1_000_000) => ({
  volume,
  nothing: null,
  requests,
  requests_per_s: rate,
  memory,
  flash,
});

/** Opens the view with answers from `answer`. */
async function openOn(t, answer) {
  const page = await open(t, '#/events');
  await badge(page, 'live');
  await page.route('**/api/v1/advice?*', (route) => answer(route, new URL(route.request().url()).searchParams));
  await page.goto(`${daemon.url}#/advice`);
  return page;
}

const told = (volumes, next = null) => ({ json: { assumptions: ASSUMED, volumes, next } });

test('recommendations are sorted by gain over both tiers, and need enough data', { skip }, async (t) => {
  const volumes = [
    // Flash serves half already, so of memory's gain of 0.4 only 0.2 counts.
    advice(
      'sql',
      100,
      side([1, 0.25], 4, [
        [1, 0.3],
        [2, 0.5],
        [4, 0.7],
        [8, 0.705],
      ]),
      side([2, 0.4], 2, [[2, 0.5]]),
    ),
    advice('web', 1_000, side([0, 0], null, [[1, 0.1]]), NONE),
    // Hits that move from flash to memory avoid no array requests.
    advice(
      'app',
      50,
      side([1, 0.3], null, [
        [1, 0.3],
        [2, 0.9],
      ]),
      side([4, 0.95], null, [[4, 0.95]]),
    ),
    advice('full', 10, side([8, 0.9], 4, [[4, 0.9]]), NONE),
    advice('new', 5, side([1, 0.5], 2, [[2, 0.9]]), NONE, 999),
    { ...advice('off', null, NONE, NONE, 0), nothing: 'it is refused: it has no miss-ratio curve' },
  ];
  const page = await openOn(t, (route, query) =>
    route.fulfill(
      query.get('array_latency_us') === '1000'
        ? { json: { assumptions: { ...ASSUMED, array_latency_us: 1_000 }, volumes, next: null } }
        : told(volumes),
    ),
  );
  await until('recommendations', async () => (await recommendations(page)).length === 3);
  assert.deepEqual(await recommendations(page), ['web memory', 'sql memory', 'app memory']);
  const sql = page.locator('[data-recommendation="sql memory"]');
  // 0.3 * 20 us + 0.2 * 200 us + 0.5 * 8 ms, and then 0.7 * 20 us + 0.3 * 8 ms; a fifth of 100 requests, for 3 GiB.
  const whole = await text(sql);
  for (const part of ['4 GiB now 1 GiB; knee of the curve', '50.0 % → 70.0 %', '4.05 ms → 2.41 ms', '20/s', '6.7/s']) {
    assert.ok(whole.includes(part), `${part} is not in: ${whole}`);
  }
  assert.match(await text(page.locator('[data-recommendation="web memory"]')), /1 GiB now none; no knee/);
  await sql.getByText('All sizes').click();
  assert.deepEqual(await sql.locator('tbody tr').evaluateAll((rows) => rows.map((row) => row.innerText)), [
    '4 GiB\t3 GiB\t70.0 %\t2.41 ms\t20/s',
  ]);
  assert.match(
    await text(page.locator('[data-recommendation="app memory"]')),
    /95\.0 % → 95\.0 % Latency 536 µs → 428 µs Array requests avoided none/,
  );
  assert.match(await text(sql), /Measured hit ratio of the current 1 GiB since the daemon's start: 25\.0 %/);
  assert.match(await figure(page, 'memory'), /\+3 GiB up to 1 knee; array requests avoided: 20\/s/);
  assert.match(await figure(page, 'flash'), /–/);
  assert.match(await figure(page, 'sufficient'), /1 of 6/);
  assert.equal(
    await text(page.locator('[data-unavailable] ul')),
    '999 requests observed, at least 1,000 required: new it is refused: it has no miss-ratio curve: off',
  );
  // Sorting by hit ratio reverses the order; a link restores it.
  await page.getByLabel('Sort by').selectOption('hits');
  await until('the other order', async () => (await recommendations(page))[0] === 'sql memory');
  await page.reload();
  await until('the same order', async () => (await recommendations(page))[0] === 'sql memory');
  await page.getByText('Assumptions').click();
  await page.getByLabel('Latency of array').fill('1000');
  await page.keyboard.press('Enter');
  await until('another latency', async () => (await text(sql)).includes('546 µs → 314 µs'));
  assert.ok(page.url().includes('array_latency_us=1000'), page.url());
  assert.deepEqual(page.errors, []);
});

test('1,000 volumes load page by page and are filtered', { skip }, async (t) => {
  const asked = [];
  const all = Array.from({ length: 1_000 }, (_, at) =>
    advice(`v${String(at).padStart(3, '0')}`, at, side([1, 0.1], 2, [[2, 0.9]]), NONE),
  );
  const page = await openOn(t, (route, query) => {
    asked.push([query.get('limit'), query.get('after')]);
    const from = query.has('after') ? all.findIndex(({ volume }) => volume === query.get('after')) + 1 : 0;
    const part = all.slice(from, from + 100);
    return route.fulfill(told(part, from + 100 < all.length ? part.at(-1).volume : null));
  });
  await until('all of them', async () => (await page.getAttribute('[data-loaded]', 'data-loaded')) === '1000');
  await until('an order', async () => (await recommendations(page))[0] === 'v999 memory');
  const pages = all.filter((_, at) => at % 100 === 99).map(({ volume }) => ['100', volume]);
  assert.deepEqual(asked.slice(0, 10), [['100', null], ...pages.slice(0, 9)]);
  assert.equal((await recommendations(page)).length, 20);
  await page.getByRole('button', { name: 'Show 20 more of 980' }).click();
  await until('more of them', async () => (await recommendations(page)).length === 40);
  await page.getByRole('searchbox').fill('v07');
  await until('ten of them', async () => (await recommendations(page)).length === 10);
  await page.getByRole('searchbox').fill('nonsense');
  await page.waitForSelector('.empty:has-text("“nonsense”")');
  assert.deepEqual(page.errors, []);
});

test('loading and errors are shown, and the last results stay', { skip }, async (t) => {
  let isBroken = true;
  let release;
  const held = new Promise((done) => (release = done));
  const one = advice('sql', 100, side([1, 0.25], 4, [[4, 0.7]]), NONE);
  const page = await openOn(t, async (route) => {
    await held;
    const problem = { status: 503, contentType: 'application/problem+json', body: '{"detail": "too much to do"}' };
    await route.fulfill(isBroken ? problem : told([one]));
  });
  await page.waitForSelector('.empty:has-text("Loading…")');
  release();
  await page.waitForSelector('[role=alert]:has-text("too much to do")');
  await page.waitForSelector('.empty:has-text("No data yet, retrying")');
  isBroken = false;
  await until('the recommendation', async () => (await recommendations(page)).length === 1);
  assert.equal(await page.locator('[role=alert]').count(), 0);
  isBroken = true;
  await page.waitForSelector('[role=alert]:has-text("out of date")', { timeout: 30_000 });
  assert.deepEqual(await recommendations(page), ['sql memory']);
});

test('recommendations for a loaded volume match the API', { skip }, async (t) => {
  // With its hot set in memory it needs no larger cache.
  await daemon.command('volume', 'set', 'database', 'memory_max=4 MiB');
  await until('enough requests, and little memory', async () => {
    const [{ requests, memory }] = (await daemon.json('advice?volume=database')).volumes;
    return requests > 2_000 && memory.today.size_bytes <= 4 << 20;
  });
  const page = await open(t);
  await badge(page, 'live');
  const answered = page.waitForResponse('**/api/v1/advice?*');
  await page.getByRole('navigation').getByRole('link', { name: 'Advice' }).click();
  const recommendation = page.locator('[data-recommendation="database memory"]');
  await recommendation.waitFor();
  await recommendation.getByText('All sizes').click();
  const { volumes } = await (await answered).json();
  const { memory } = volumes.find(({ volume }) => volume === 'database');
  const sizes = memory.steps.map(({ size_bytes }) => size_bytes);
  const shown = await recommendation.locator('tbody td:first-child').allInnerTexts();
  assert.ok(shown.length > 0, `${shown}`);
  for (const size of shown) {
    const [value, unit] = size.split(' ');
    const asBytes = Number(value) * 1024 ** ['B', 'KiB', 'MiB', 'GiB'].indexOf(unit);
    assert.ok(
      sizes.some((told) => Math.abs(told - asBytes) <= told / 100),
      `${size} is none of ${sizes}`,
    );
  }
  // Idle volumes are listed with the reason.
  assert.match(
    await text(page.locator('[data-unavailable]')),
    /nothing was read or written yet, so there is no advice: .*volume-0000, volume-0001/,
  );
  await recommendation.getByRole('link', { name: 'database' }).click();
  await page.waitForSelector('h1:text-is("database")');
  assert.deepEqual(page.errors, []);
});
