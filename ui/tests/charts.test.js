// Time range, zoom, cursor, events and export of charts, in Chromium on a daemon under load.

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { after, before, test } from 'node:test';
import { promisify } from 'node:util';
import { openPage, setVisible, waitForBadge } from './browser.js';
import { startFixture, stopFixture, skip, until } from './daemon.js';

const REQUESTS = 'Requests per second';
const SOURCES = 'Reads per second by source';
/** Opacity of a band. */
const BAND_OPACITY = 0.35;
/** Seconds that the stream keeps for resuming clients. */
const STREAM_SECONDS = 60;

let daemon, browser, hiddenPage, hiddenSince;

const open = (t, view, options) => openPage({ daemon, browser, t }, view, options);
const seconds = () => Math.floor(Date.now() / 1e3);
/** Waits until the history has this number of seconds with reads. */
const waitForHistory = async (count) =>
  until(
    `${count} seconds of history`,
    async () => {
      const { series } = await daemon.json('history?from=-10min&step=1s&series=reads');
      return series.reads.max.filter((reads) => reads > 0).length >= count;
    },
    90_000,
  );

before(async () => {
  ({ daemon, browser } = await startFixture(1));
  if (skip) return;
  daemon.load(600);
  // Hidden during the other tests, for longer than the stream keeps samples.
  hiddenPage = await openPage({ daemon, browser });
  await waitForBadge(hiddenPage, 'live');
  await until('live points', async () => (await csvRows(hiddenPage, REQUESTS)).length > 2);
  await setVisible(hiddenPage, false);
  await waitForBadge(hiddenPage, 'paused');
  hiddenSince = seconds();
});
after(() => stopFixture({ daemon, browser }));

const chart = (page, title) => page.locator(`[data-chart="${title}"]`);
const plot = (page, title) => chart(page, title).locator('.u-over');
const legend = async (page, title, label) =>
  (await chart(page, title).locator(`[data-legend="${label}"]`).innerText()).trim();
/** Time range of the charts. */
const rangeOf = async (page) => {
  const ranges = page.locator('.ranges');
  return [Number(await ranges.getAttribute('data-from')), Number(await ranges.getAttribute('data-to'))];
};
const stepOf = async (page, title) => Number(await chart(page, title).getAttribute('data-step'));
const waitForStep = (page, title, expected) =>
  until(`steps of ${expected} s`, async () => (await stepOf(page, title)) === expected);

/** Opens the export of a chart. */
async function exportOf(page, title) {
  const details = chart(page, title).locator('details');
  if ((await details.getAttribute('open')) === null) await details.locator('summary').click();
  return details;
}
async function download(page, title, name) {
  const button = (await exportOf(page, title)).getByRole('button', { name });
  const [file] = await Promise.all([page.waitForEvent('download'), button.click()]);
  return readFile(await file.path());
}
/** CSV export of a chart, one row per point. */
async function csvRows(page, title) {
  const [header, ...lines] = String(await download(page, title, 'CSV'))
    .trim()
    .split('\n')
    .map((line) => line.split(','));
  return lines.map((line) => Object.fromEntries(header.map((name, index) => [name, Number(line[index])])));
}
/**
 * Waits until complete steps of a chart match the answer to its curl command; `columns` maps labels to history series.
 * Returns the command.
 */
async function matchHistory(page, title, columns) {
  const curl = await (await exportOf(page, title)).getByLabel('Equivalent curl command').inputValue();
  // The newest step is incomplete.
  const complete = (rows) => rows.slice(-4, -1);
  await until('the same figures', async () => {
    const rows = complete(await csvRows(page, title));
    const { stdout } = await promisify(execFile)('sh', ['-c', curl]);
    const history = JSON.parse(stdout);
    const expected = Object.entries(columns).flatMap(([column, name]) => [
      [column, history.series[name].mean],
      [`${column} min`, history.series[name].min],
      [`${column} max`, history.series[name].max],
    ]);
    const isSame = (row) => {
      const index = history.at_unix_seconds.indexOf(row.at_unix_seconds);
      return (
        index >= 0 && expected.every(([name, values]) => Math.abs(row[name] - values[index]) <= 1e-9 * values[index])
      );
    };
    return rows.length > 0 && rows.every(isSame);
  });
  return curl;
}
/** Seconds in the history that a chart lacks; on a busy machine both may lack some. */
async function missingSeconds(rows, from, to) {
  const { at_unix_seconds: recorded } = await daemon.json(`history?from=${from}&to=${to}&step=1s&series=reads`);
  assert.ok(recorded.length > (to - from) / 2, `the history has ${recorded.length} seconds from ${from} to ${to}`);
  const charted = new Set(rows.map((row) => row.at_unix_seconds));
  return recorded.filter((second) => !charted.has(second));
}
/** Drags between two fractions of a chart's width. */
async function drag(page, title, from, to) {
  await plot(page, title).scrollIntoViewIfNeeded();
  const { x, y, width, height } = await plot(page, title).boundingBox();
  await page.mouse.move(x + from * width, y + height / 2);
  await page.mouse.down();
  await page.mouse.move(x + to * width, y + height / 2, { steps: 5 });
  await page.mouse.up();
}
/** Moves the pointer to a fraction of a chart's width. */
async function hover(page, title, fraction) {
  await plot(page, title).scrollIntoViewIfNeeded();
  const { x, y, width, height } = await plot(page, title).boundingBox();
  await page.mouse.move(x + fraction * width, y + height / 2);
}
/** Number of pixels of a chart in a style sheet colour with opacity `alpha` over the background. */
const pixelCount = (page, title, name, alpha) =>
  chart(page, title)
    .locator('canvas')
    .evaluate(
      (canvas, { name, alpha }) => {
        const colour = (name) => {
          const element = document.createElement('i');
          element.style.color = `var(--${name})`;
          document.body.append(element);
          const { color } = getComputedStyle(element);
          element.remove();
          return color;
        };
        /** Pixels over the background, which the canvas itself lacks. */
        const pixels = (width, height, draw) => {
          const context = Object.assign(document.createElement('canvas'), { width, height }).getContext('2d');
          context.fillStyle = colour('surface');
          context.fillRect(0, 0, width, height);
          draw(context);
          return context.getImageData(0, 0, width, height).data;
        };
        const expected = pixels(1, 1, (context) => {
          context.globalAlpha = alpha;
          context.fillStyle = colour(name);
          context.fillRect(0, 0, 1, 1);
        });
        const actual = pixels(canvas.width, canvas.height, (context) => context.drawImage(canvas, 0, 0));
        const isExpected = (offset) =>
          [0, 1, 2].every((channel) => Math.abs(actual[offset + channel] - expected[channel]) <= 3);
        return Array.from({ length: actual.length / 4 }, (_, index) => 4 * index).filter(isExpected).length;
      },
      { name, alpha },
    );

test('a single tab shows the time before it opened', { skip }, async (t) => {
  await waitForHistory(15);
  const openedAt = seconds();
  const page = await open(t);
  await waitForBadge(page, 'live');
  await until('seconds before it and after', async () => {
    const rows = await csvRows(page, REQUESTS);
    const before = rows.filter((row) => row.Reads > 0 && row.at_unix_seconds < openedAt - 2);
    if (before.length < 10 || rows.at(-1).at_unix_seconds <= openedAt + 3) return false;
    return (await missingSeconds(rows, openedAt - 10, openedAt + 3)).length === 0;
  });
  assert.deepEqual(page.errors, []);
});

test('the band shows a spike at every resolution', { skip }, async (t) => {
  const page = await open(t);
  await waitForBadge(page, 'live');
  const before = seconds();
  await daemon.burst('mail');
  const peak = await until('the spike', async () => {
    const reads = (await csvRows(page, REQUESTS))
      .filter((row) => row.at_unix_seconds >= before)
      .map(({ Reads }) => Reads);
    return Math.max(...reads) > 2_000 && reads.at(-1) < 2_000 && Math.max(...reads);
  });
  assert.ok((await pixelCount(page, REQUESTS, 'memory', BAND_OPACITY)) < 20, 'seconds have a band');
  // Right after the spike a new step contains little else.
  await until('seconds after it', () => seconds() > before + 14);
  for (const [range, expectedStep] of [
    ['1h', 10],
    ['6h', 60],
    ['24h', 300],
    ['30d', 7_200],
  ]) {
    await page.click(`[data-range="${range}"]`);
    await waitForStep(page, REQUESTS, expectedStep);
    const rows = await until('the spike', async () => {
      const rows = await csvRows(page, REQUESTS);
      return rows.some((row) => row['Reads max'] >= peak * 0.8) && rows;
    });
    const [mean, max] = ['Reads', 'Reads max'].map((name) => Math.max(...rows.map((row) => row[name])));
    t.diagnostic(`${range}: a mean of ${mean.toFixed(0)}, at most ${max} a second`);
    assert.ok(max < peak * 1.3 && mean < max / 2, `${range}: mean ${mean}, max ${max}, peak ${peak}`);
    const pixels = await pixelCount(page, REQUESTS, 'memory', BAND_OPACITY);
    assert.ok(pixels >= 50, `${range}: ${pixels} pixels of a band`);
  }
  assert.deepEqual(page.errors, []);
});

test('a zoomed range survives refreshes and a reload until zoomed out', { skip }, async (t) => {
  await waitForHistory(45);
  const page = await open(t);
  await waitForBadge(page, 'live');
  await until('past points', async () => (await csvRows(page, REQUESTS)).length > 40);
  const startedAt = seconds();
  await drag(page, REQUESTS, 0.93, 0.98);
  const range = await rangeOf(page);
  assert.ok(range[0] > startedAt - 60 && range[1] < startedAt && range[1] - range[0] < 60, `${range} of ${startedAt}`);
  const timeInMiddle = async () => {
    await hover(page, SOURCES, 0.1);
    await hover(page, REQUESTS, 0.5);
    return legend(page, REQUESTS, 'at');
  };
  const time = await timeInMiddle();
  const values = new Set();
  await until('other figures', async () => values.add(await page.textContent('[data-figure=reads]')).size > 3);
  assert.deepEqual(await rangeOf(page), range);
  assert.equal(await timeInMiddle(), time, 'a refresh moved the chart');
  await page.reload();
  await waitForBadge(page, 'live');
  await until('the same range', async () => (await csvRows(page, REQUESTS)).length > 20);
  assert.deepEqual(await rangeOf(page), range);
  assert.equal(await timeInMiddle(), time, 'a reload shows another range');
  // Zoom by keyboard.
  await page.getByRole('group', { name: REQUESTS }).focus();
  for (const key of ['ArrowLeft', 'ArrowLeft', ...Array.from({ length: 8 }, () => 'Shift+ArrowLeft'), 'Enter']) {
    await page.keyboard.press(key);
  }
  const innerRange = await rangeOf(page);
  assert.ok(
    innerRange[0] >= range[0] && innerRange[1] <= range[1] && innerRange[1] - innerRange[0] < range[1] - range[0],
    `${innerRange} in ${range}`,
  );
  await page.getByRole('button', { name: 'Zoom out' }).click();
  assert.deepEqual(await rangeOf(page), range);
  await page.goBack();
  await until('the previous zoom, by the back button', async () => String(await rangeOf(page)) === String(innerRange));
  await page.getByRole('group', { name: REQUESTS }).focus();
  await page.keyboard.press('Escape');
  assert.deepEqual(await rangeOf(page), range);
  await plot(page, REQUESTS).dblclick();
  await until('now', async () => (await rangeOf(page))[1] > startedAt);
  assert.ok(!page.url().includes('zoom'));
  assert.deepEqual(page.errors, []);
});

test('the resolution follows the zoom', { skip }, async (t) => {
  const page = await open(t, '#/?range=24h');
  await waitForStep(page, REQUESTS, 300);
  await drag(page, REQUESTS, 0.98, 1);
  await waitForStep(page, REQUESTS, 5);
  // Seconds, while the history still has them.
  await drag(page, SOURCES, 0.8, 1);
  await waitForStep(page, SOURCES, 1);
  await until('seconds', async () => (await csvRows(page, SOURCES)).some(({ Memory }) => Memory > 0));
  await page.getByRole('button', { name: 'Zoom out' }).click();
  await waitForStep(page, SOURCES, 5);
  assert.deepEqual(page.errors, []);
});

test('all charts of a view share cursor and range', { skip }, async (t) => {
  await waitForHistory(20);
  const page = await open(t, '#/volumes/database?range=1min');
  await waitForBadge(page, 'live');
  const titles = await page.locator('[data-chart]').evaluateAll((charts) => charts.map((chart) => chart.dataset.chart));
  assert.equal(titles.length, 4);
  const times = () => Promise.all(titles.map((title) => legend(page, title, 'at')));
  await until('past points', async () => (await csvRows(page, REQUESTS)).length > 20);
  // In a past range only the cursor moves.
  await drag(page, REQUESTS, 0.7, 0.95);
  await page.mouse.move(0, 0);
  const newest = await times();
  await hover(page, titles[1], 0.4);
  await until('one cursor', async () => new Set(await times()).size === 1);
  assert.notEqual((await times())[0], newest[0]);
  const starts = await page
    .locator('[data-chart]')
    .evaluateAll((charts) => charts.map((chart) => Number(chart.dataset.from)));
  assert.deepEqual(new Set(starts), new Set([(await rangeOf(page))[0]]));
  assert.deepEqual(page.errors, []);
});

test('a link restores range, hidden lines and sort order', { skip }, async (t) => {
  const page = await open(t, '#/volumes/database');
  await waitForBadge(page, 'live');
  await page.click('[data-range="1h"]');
  await waitForStep(page, SOURCES, 10);
  await until('reads from memory', async () => (await pixelCount(page, SOURCES, 'memory', 1)) > 50);
  const memory = (page) => chart(page, SOURCES).getByRole('button', { name: 'Memory' });
  await memory(page).click();
  const waitForHidden = async (page) => {
    await until('no reads from memory', async () => (await pixelCount(page, SOURCES, 'memory', 1)) === 0);
    assert.equal(await memory(page).getAttribute('aria-pressed'), 'false');
    assert.equal(await page.getAttribute('[data-range="1h"]', 'aria-pressed'), 'true');
    await waitForStep(page, SOURCES, 10);
    await until('reads from the array', async () => (await pixelCount(page, SOURCES, 'array', 1)) > 0);
  };
  await waitForHidden(page);
  const other = await open(t, new URL(page.url()).hash);
  await waitForBadge(other, 'live');
  await waitForHidden(other);
  await memory(other).click();
  await until('reads from memory', async () => (await pixelCount(other, SOURCES, 'memory', 1)) > 50);
  // Another view keeps the time range.
  await page.getByRole('navigation', { name: 'Views' }).getByRole('link', { name: 'Volumes' }).click();
  await page.getByRole('button', { name: 'Requests' }).click();
  await page.reload();
  await page.waitForSelector('th[aria-sort=descending] >> text=Requests');
  assert.ok(page.url().includes('range=1h'), page.url());
  assert.deepEqual(page.errors, []);
});

test('volume charts mark events of the volume and of the daemon', { skip }, async (t) => {
  const titles = (page) =>
    page.locator('[data-chart]').evaluateAll((charts) => charts.map((chart) => chart.dataset.chart));
  /** Waits until every chart has marks, or none has. */
  const waitForMarks = (page, isMarked) =>
    until(`${isMarked ? 'marks' : 'no mark'} on every chart`, async () => {
      const counts = await Promise.all((await titles(page)).map((title) => pixelCount(page, title, 'event', 1)));
      return counts.length === 4 && counts.every((pixels) => (isMarked ? pixels > 40 : pixels === 0));
    });
  const from = seconds() + 1;
  await until('seconds before it', () => seconds() > from + 1);
  await daemon.command('volume', 'set', 'desktops', 'policy=write-around');
  const [{ at_unix_ms }] = (await daemon.json('events?subject=desktops&kind=change')).events;
  await daemon.command('volume', 'set', 'desktops', 'policy=write-back');
  await until('seconds after it', () => seconds() > from + 8);
  const zoom = `zoom=${from}-${from + 8}`;
  const page = await open(t, `#/?${zoom}`);
  await waitForBadge(page, 'live');
  await waitForMarks(page, true);
  await page.goto(`${daemon.url}#/volumes/database?${zoom}`);
  await page.waitForSelector('h1:text-is("database")');
  await until('past points', async () => (await csvRows(page, REQUESTS)).length > 3);
  await waitForMarks(page, false);
  await page.goto(`${daemon.url}#/volumes/desktops?${zoom}`);
  await page.waitForSelector('h1:text-is("desktops")');
  await waitForMarks(page, true);
  // The tooltip appears in the hovered chart only.
  const tooltip = (title) => chart(page, title).getByRole('status').innerText();
  await hover(page, REQUESTS, (at_unix_ms / 1e3 - from) / 8);
  await until('its text', async () =>
    /change desktops: set policy=write-around.*, by user /.test(await tooltip(REQUESTS)),
  );
  assert.equal(await tooltip(SOURCES), '');
  await hover(page, REQUESTS, 0.02);
  await until('no text', async () => (await tooltip(REQUESTS)) === '');
  await page.mouse.move(0, 0);
  // By keyboard.
  await page.getByRole('group', { name: SOURCES }).focus();
  await page.keyboard.press('e');
  await until('its text', async () => /set policy=write-back/.test(await tooltip(SOURCES)));
  // Events of the daemon are marked on a volume's charts, live.
  const live = await open(t, '#/volumes/database?range=1min');
  await waitForBadge(live, 'live');
  await until('past points', async () => (await csvRows(live, REQUESTS)).length > 10);
  const marks = async () => Number(await chart(live, REQUESTS).getAttribute('data-marks'));
  const before = await marks();
  await daemon.command('token', 'create', `marked-${from}`, '--role', 'read');
  await until('one more', async () => (await marks()) > before);
  await waitForMarks(live, true);
  assert.deepEqual([...page.errors, ...live.errors], []);
});

test('flash charts have history, bands, zoom, shared cursor and event marks', { skip }, async (t) => {
  /** History series by chart and label. */
  const SERIES = {
    'Flash writes by cause': {
      Promotion: 'flash_promotion_bytes',
      'Dirty data': 'flash_log_bytes',
      'Map journal': 'flash_journal_bytes',
    },
    'Clean pages': { Pages: 'flash_pages' },
    'Free log segments': { Free: 'flash_log_free_segments' },
  };
  const [WRITES, PAGES, FREE] = Object.keys(SERIES);
  /** Seconds of the zoomed range; it ends in the future, so that events of the test are in it. */
  const ZOOM_SECONDS = 90;
  await waitForHistory(30);
  const openedAt = seconds();
  const page = await open(t, '#/flash?range=1min');
  await waitForBadge(page, 'live');
  await until('seconds before it and after', async () => {
    const times = (await csvRows(page, WRITES)).map((row) => row.at_unix_seconds);
    return times.some((time) => time < openedAt - 10) && times.some((time) => time > openedAt + 2);
  });
  await page.click('[data-range="1h"]');
  for (const [title, columns] of Object.entries(SERIES)) {
    await waitForStep(page, title, 10);
    const curl = await matchHistory(page, title, columns);
    const total = title === WRITES ? 'flash_device_bytes,' : '';
    assert.ok(
      curl.endsWith(`/api/v1/history?from=-1h&step=10s&series=${total}${Object.values(columns).join(',')}'`),
      curl,
    );
  }
  // The causes add up to all bytes written; flushed data goes to the log.
  await daemon.burst('mail', ['--rw=randwrite', '--rate_iops=200', '--fsync=4']);
  await until('flushed data', async () => {
    const { series } = await daemon.json('history?from=-10min&step=10s');
    const sum = (name) => series[name].sum.reduce((total, value) => total + value, 0);
    const causes = Object.values(SERIES[WRITES]).reduce((total, name) => total + sum(name), 0);
    assert.equal(causes, sum('flash_device_bytes'));
    return sum('flash_log_bytes') > 0;
  });
  await until('a band', async () => (await pixelCount(page, WRITES, 'ink', BAND_OPACITY)) > 10);
  // Flash charts mark events of the daemon and of devices, not of volumes.
  const from = seconds() + 1;
  await until('seconds before it', () => seconds() > from + 1);
  const marks = async (title) => Number(await chart(page, title).getAttribute('data-marks'));
  /** Neighbouring events share a mark. */
  const waitForEventMarks = () =>
    until('marks of the events of the daemon and of devices', async () => {
      const { events } = await daemon.json(`events?since=${from}&until=${from + ZOOM_SECONDS}&limit=1000`);
      const expected = events.filter(({ subject }) => subject === null || subject.startsWith('/')).length;
      const counts = await Promise.all(Object.keys(SERIES).map(marks));
      return counts.every((count) => count <= expected && count > 0 === expected > 0);
    });
  await daemon.command('volume', 'set', 'desktops', 'policy=write-around');
  await daemon.command('volume', 'set', 'desktops', 'policy=write-back');
  await until('seconds after it', () => seconds() > from + 8);
  await page.goto(`${daemon.url}#/flash?zoom=${from}-${from + ZOOM_SECONDS}`);
  await until('the zoomed range', async () => (await rangeOf(page))[0] === from);
  await page.waitForFunction(() => document.querySelector('.ranges .hint')?.textContent.includes(', fixed.'));
  await waitForEventMarks();
  const marksBefore = await marks(PAGES);
  await daemon.command('flash', 'add', await daemon.createSparseFile('flash-2', 256));
  await until('one more', async () => (await marks(PAGES)) > marksBefore);
  await waitForEventMarks();
  await until('its line', async () => (await pixelCount(page, PAGES, 'event', 1)) > 40);
  // Zoom applies to all charts, with a shared cursor.
  await until('past points', async () => (await csvRows(page, FREE)).length > 10);
  await drag(page, PAGES, 0.02, 0.1);
  const [innerFrom] = await rangeOf(page);
  assert.ok(innerFrom > from, `${innerFrom} after ${from}`);
  await hover(page, PAGES, 0.3);
  const times = () => Promise.all(Object.keys(SERIES).map((title) => legend(page, title, 'at')));
  await until('one cursor', async () => new Set(await times()).size === 1);
  const starts = await Promise.all(Object.keys(SERIES).map((title) => chart(page, title).getAttribute('data-from')));
  assert.deepEqual(new Set(starts.map(Number)), new Set([innerFrom]));
  await page.getByRole('button', { name: 'Zoom out' }).click();
  assert.equal((await rangeOf(page))[0], from);
  assert.deepEqual(page.errors, []);
});

test('datastore charts have history, zoom, event marks and comparison', { skip }, async (t) => {
  const DIRTY = 'Dirty data';
  await waitForHistory(30);
  const openedAt = seconds();
  const page = await open(t, '#/datastores?range=1min');
  await waitForBadge(page, 'live');
  const requestTimes = async () => (await csvRows(page, REQUESTS)).map((row) => row.at_unix_seconds);
  await until('seconds before it and after', async () => {
    const times = await requestTimes();
    return times.some((time) => time < openedAt - 10) && times.some((time) => time > openedAt + 2);
  });
  // The busiest datastore is selected by default; a link restores the selection.
  assert.match(await page.locator('h2:has-text(": history")').innerText(), /^shelf/);
  await page.click('[data-range="1h"]');
  for (const [title, columns] of [
    [REQUESTS, { Reads: 'reads', Writes: 'writes' }],
    [DIRTY, { Dirty: 'dirty_bytes' }],
  ]) {
    await waitForStep(page, title, 10);
    assert.match(
      await matchHistory(page, title, columns),
      /\/api\/v1\/history\?datastore=shelf&from=-1h&step=10s&series=/,
    );
  }
  // The sum over its two volumes, of complete seconds: a longer step may still grow between two queries.
  const readsOf = async (path) => {
    const { at_unix_seconds: times, series } = await daemon.json(
      `${path}from=${openedAt - 20}&to=${openedAt}&step=1s&series=reads`,
    );
    return times.length === 0 ? 0 : series.reads.sum.reduce((total, value) => total + value, 0);
  };
  const reads = await Promise.all(['database', 'desktops'].map((name) => readsOf(`volumes/${name}/history?`)));
  assert.ok(
    reads.every((count) => count > 0),
    `${reads}`,
  );
  assert.equal(await readsOf('history?datastore=shelf&'), reads[0] + reads[1]);
  const from = seconds() + 1;
  // Far enough apart for separate marks.
  for (const [offset, name, policy] of [
    [1, 'mail', 'write-around'],
    [5, 'desktops', 'write-around'],
    [9, 'mail', 'write-back'],
  ]) {
    await until('seconds before it', () => seconds() > from + offset);
    await daemon.command('volume', 'set', name, `policy=${policy}`);
  }
  await page.goto(`${daemon.url}#/datastores?zoom=${from}-${from + 30}`);
  await until('the zoomed range', async () => (await rangeOf(page))[0] === from);
  const marks = async () => Number(await chart(page, REQUESTS).getAttribute('data-marks'));
  await until('the event of its volume, and none of the other one', async () => (await marks()) === 1);
  await daemon.command('volume', 'set', 'desktops', 'policy=write-back');
  await page.getByRole('button', { name: 'Compare with previous period' }).click();
  await page.waitForSelector('[data-changes=Volume] tbody tr');
  const names = await page.locator('[data-changes=Volume] tbody a').allInnerTexts();
  assert.deepEqual(names.toSorted(), ['database', 'desktops']);
  await page.getByRole('link', { name: 'no datastore', exact: true }).click();
  await page.waitForSelector('h2:text-is("no datastore: history")');
  assert.deepEqual(await rangeOf(page), [from, from + 30]);
  await page.reload();
  await page.waitForSelector('h2:text-is("no datastore: history")');
  await page.goto(`${daemon.url}#/datastores?of=none`);
  await page.waitForSelector('[role=alert]:has-text("“none”")');
  assert.deepEqual(page.errors, []);
});

test('a chart is exported as PNG, CSV and curl command', { skip }, async (t) => {
  await waitForHistory(30);
  const page = await open(t, '#/volumes/database?range=1h');
  await waitForBadge(page, 'live');
  await waitForStep(page, REQUESTS, 10);
  const png = await download(page, REQUESTS, 'PNG');
  assert.equal(png.toString('latin1', 1, 4), 'PNG');
  const canvas = chart(page, REQUESTS).locator('canvas');
  assert.ok(png.readUInt32BE(16) > (await canvas.evaluate((canvas) => canvas.width)));
  assert.ok(png.length > 3_000, `${png.length} bytes`);
  const curl = await matchHistory(page, REQUESTS, { Reads: 'reads', Writes: 'writes' });
  assert.match(curl, /^curl -s 'http.*\/api\/v1\/volumes\/database\/history\?from=-1h&step=10s&series=reads,writes'$/);
  assert.deepEqual(page.errors, []);
});

test('a zoomed range is compared with the previous period', { skip }, async (t) => {
  const from = seconds();
  await daemon.burst('mail');
  const to = Math.max(seconds() + 1, from + 5);
  await until('seconds after it', () => seconds() > to + 2);
  const page = await open(t, `#/?zoom=${from}-${to}`);
  await waitForBadge(page, 'live');
  await until('volumes', () => page.locator('.ranks tbody a').count());
  await page.getByRole('button', { name: 'Compare with previous period' }).click();
  await page.waitForSelector('[data-changes=Volume] tbody tr');
  const rows = (column) => page.locator(`[data-changes=${column}] tbody tr`).allInnerTexts();
  const [volumes, figures] = [await rows('Volume'), await rows('Figure')];
  t.diagnostic(`${volumes.join('; ')} | ${figures.join('; ')}`.replaceAll('\t', ' '));
  // The idle volume is left out.
  assert.ok(volumes.length === 3 && volumes[0].startsWith('mail'), String(volumes));
  assert.ok(
    figures.slice(0, 3).some((row) => row.startsWith('Reads')),
    String(figures),
  );
  await page.locator('[data-changes=Volume] tbody a').first().click();
  await page.waitForSelector('h1:text-is("mail")');
  assert.deepEqual(await rangeOf(page), [from, to]);
  assert.deepEqual(page.errors, []);
});

test('a long-hidden tab resumes without a gap', { skip }, async () => {
  await until('a long time', () => seconds() > hiddenSince + STREAM_SECONDS + 5, 90_000);
  const hiddenRows = await csvRows(hiddenPage, REQUESTS);
  assert.ok(hiddenRows.at(-1).at_unix_seconds <= hiddenSince + 2, 'a hidden tab receives samples');
  const shownAt = seconds();
  await setVisible(hiddenPage, true);
  await waitForBadge(hiddenPage, 'live');
  await until('no gap', async () => {
    const rows = await csvRows(hiddenPage, REQUESTS);
    if (rows.at(-1).at_unix_seconds <= shownAt + 3) return false;
    return (await missingSeconds(rows, hiddenSince - 2, shownAt + 3)).length === 0;
  });
  assert.deepEqual(hiddenPage.errors, []);
});
