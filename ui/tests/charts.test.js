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
const BAND = 0.35;
/** Seconds that the stream keeps for resuming clients. */
const STREAM_SECONDS = 60;

let daemon, browser, sleeper, sleptAt;

const open = (t, view, options) => openPage({ daemon, browser, t }, view, options);
const seconds = () => Math.floor(Date.now() / 1e3);
const known = async (count) =>
  until(
    `${count} seconds of history`,
    async () => {
      const { series } = await daemon.json('history?from=-10min&step=1s&series=reads');
      return series.reads.max.filter((reads) => reads > 0).length >= count;
    },
    90_000,
  );

before(async () => {
  ({ daemon, browser } = await startFixture());
  if (skip) return;
  daemon.load(600);
  // Hidden during the other tests, for longer than the stream keeps samples.
  sleeper = await openPage({ daemon, browser });
  await waitForBadge(sleeper, 'live');
  await until('live points', async () => (await table(sleeper, REQUESTS)).length > 2);
  await setVisible(sleeper, false);
  await waitForBadge(sleeper, 'paused');
  sleptAt = seconds();
});
after(() => stopFixture({ daemon, browser }));

const chart = (page, title) => page.locator(`[data-chart="${title}"]`);
const plot = (page, title) => chart(page, title).locator('.u-over');
const legend = async (page, title, what) =>
  (await chart(page, title).locator(`[data-legend="${what}"]`).innerText()).trim();
/** Time range of the charts. */
const shown = async (page) => {
  const ranges = page.locator('.ranges');
  return [Number(await ranges.getAttribute('data-from')), Number(await ranges.getAttribute('data-to'))];
};
const stepOf = async (page, title) => Number(await chart(page, title).getAttribute('data-step'));
const step = (page, title, wanted) => until(`steps of ${wanted} s`, async () => (await stepOf(page, title)) === wanted);

/** Opens the export of a chart. */
async function exportOf(page, title) {
  const details = chart(page, title).locator('details');
  if ((await details.getAttribute('open')) === null) await details.locator('summary').click();
  return details;
}
async function download(page, title, name) {
  const button = (await exportOf(page, title)).getByRole('button', { name });
  const [got] = await Promise.all([page.waitForEvent('download'), button.click()]);
  return readFile(await got.path());
}
/** CSV export of a chart, one row per point. */
async function table(page, title) {
  const [head, ...lines] = String(await download(page, title, 'CSV'))
    .trim()
    .split('\n')
    .map((line) => line.split(','));
  return lines.map((line) => Object.fromEntries(head.map((name, at) => [name, Number(line[at])])));
}
/** Complete steps of a chart match its curl command; `columns` maps labels to history series. */
async function agrees(page, title, columns) {
  const curl = await (await exportOf(page, title)).getByLabel('Equivalent curl command').inputValue();
  // The newest step is incomplete.
  const whole = (rows) => rows.slice(-4, -1);
  await until('the same figures', async () => {
    const rows = whole(await table(page, title));
    const { stdout } = await promisify(execFile)('sh', ['-c', curl]);
    const told = JSON.parse(stdout);
    const parts = Object.entries(columns).flatMap(([column, name]) => [
      [column, told.series[name].mean],
      [`${column} min`, told.series[name].min],
      [`${column} max`, told.series[name].max],
    ]);
    const isSame = (row) => {
      const index = told.at_unix_seconds.indexOf(row.at_unix_seconds);
      return index >= 0 && parts.every(([name, values]) => Math.abs(row[name] - values[index]) <= 1e-9 * values[index]);
    };
    return rows.length > 0 && rows.every(isSame);
  });
  return curl;
}
/** Seconds in the history that a chart lacks; a busy machine may miss some in both. */
async function missing(rows, from, to) {
  const { at_unix_seconds: known } = await daemon.json(`history?from=${from}&to=${to}&step=1s&series=reads`);
  assert.ok(known.length > (to - from) / 2, `the history knows ${known.length} seconds from ${from} to ${to}`);
  const shown = new Set(rows.map((row) => row.at_unix_seconds));
  return known.filter((at) => !shown.has(at));
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
async function hover(page, title, part) {
  await plot(page, title).scrollIntoViewIfNeeded();
  const { x, y, width, height } = await plot(page, title).boundingBox();
  await page.mouse.move(x + part * width, y + height / 2);
}
/** Number of pixels of a chart in a style sheet colour with opacity `alpha` over the background. */
const painted = (page, title, name, alpha) =>
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
          const pen = Object.assign(document.createElement('canvas'), { width, height }).getContext('2d');
          pen.fillStyle = colour('surface');
          pen.fillRect(0, 0, width, height);
          draw(pen);
          return pen.getImageData(0, 0, width, height).data;
        };
        const wanted = pixels(1, 1, (pen) => {
          pen.globalAlpha = alpha;
          pen.fillStyle = colour(name);
          pen.fillRect(0, 0, 1, 1);
        });
        const found = pixels(canvas.width, canvas.height, (pen) => pen.drawImage(canvas, 0, 0));
        const isWanted = (at) => [0, 1, 2].every((part) => Math.abs(found[at + part] - wanted[part]) <= 3);
        return Array.from({ length: found.length / 4 }, (_, at) => 4 * at).filter(isWanted).length;
      },
      { name, alpha },
    );

test('a single tab shows the time before it opened', { skip }, async (t) => {
  await known(15);
  const opened = seconds();
  const page = await open(t);
  await waitForBadge(page, 'live');
  await until('seconds before it and after', async () => {
    const rows = await table(page, REQUESTS);
    const before = rows.filter((row) => row.Reads > 0 && row.at_unix_seconds < opened - 2);
    if (before.length < 10 || rows.at(-1).at_unix_seconds <= opened + 3) return false;
    return (await missing(rows, opened - 10, opened + 3)).length === 0;
  });
  assert.deepEqual(page.errors, []);
});

test('the band shows a spike at every resolution', { skip }, async (t) => {
  const page = await open(t);
  await waitForBadge(page, 'live');
  const before = seconds();
  await daemon.burst('mail');
  const top = await until('the spike', async () => {
    const reads = (await table(page, REQUESTS))
      .filter((row) => row.at_unix_seconds >= before)
      .map(({ Reads }) => Reads);
    return Math.max(...reads) > 2_000 && reads.at(-1) < 2_000 && Math.max(...reads);
  });
  assert.ok((await painted(page, REQUESTS, 'memory', BAND)) < 20, 'seconds have a band');
  // Right after the spike a new step contains little else.
  await until('seconds besides it', () => seconds() > before + 14);
  for (const [range, wanted] of [
    ['1h', 10],
    ['6h', 60],
    ['24h', 300],
    ['30d', 7_200],
  ]) {
    await page.click(`[data-range="${range}"]`);
    await step(page, REQUESTS, wanted);
    const rows = await until('the spike', async () => {
      const rows = await table(page, REQUESTS);
      return rows.some((row) => row['Reads max'] >= top * 0.8) && rows;
    });
    const [mean, most] = ['Reads', 'Reads max'].map((name) => Math.max(...rows.map((row) => row[name])));
    t.diagnostic(`${range}: a mean of ${mean.toFixed(0)}, at most ${most} a second`);
    assert.ok(most < top * 1.3 && mean < most / 2, `${range}: mean ${mean}, most ${most}, seen ${top}`);
    const pixels = await painted(page, REQUESTS, 'memory', BAND);
    assert.ok(pixels >= 50, `${range}: ${pixels} pixels of a band`);
  }
  assert.deepEqual(page.errors, []);
});

test('a zoomed range survives refreshes and a reload until zoomed out', { skip }, async (t) => {
  await known(45);
  const page = await open(t);
  await waitForBadge(page, 'live');
  await until('a past', async () => (await table(page, REQUESTS)).length > 40);
  const started = seconds();
  await drag(page, REQUESTS, 0.93, 0.98);
  const part = await shown(page);
  assert.ok(part[0] > started - 60 && part[1] < started && part[1] - part[0] < 60, `${part} of ${started}`);
  const middle = async () => {
    await hover(page, SOURCES, 0.1);
    await hover(page, REQUESTS, 0.5);
    return legend(page, REQUESTS, 'at');
  };
  const there = await middle();
  const values = new Set();
  await until('other figures', async () => values.add(await page.textContent('[data-figure=reads]')).size > 3);
  assert.deepEqual(await shown(page), part);
  assert.equal(await middle(), there, 'a refresh moved the chart');
  await page.reload();
  await waitForBadge(page, 'live');
  await until('the same part', async () => (await table(page, REQUESTS)).length > 20);
  assert.deepEqual(await shown(page), part);
  assert.equal(await middle(), there, 'a reload shows another part');
  // Zoom by keyboard.
  await page.getByRole('group', { name: REQUESTS }).focus();
  for (const key of ['ArrowLeft', 'ArrowLeft', ...Array.from({ length: 8 }, () => 'Shift+ArrowLeft'), 'Enter']) {
    await page.keyboard.press(key);
  }
  const inner = await shown(page);
  assert.ok(
    inner[0] >= part[0] && inner[1] <= part[1] && inner[1] - inner[0] < part[1] - part[0],
    `${inner} in ${part}`,
  );
  await page.getByRole('button', { name: 'Zoom out' }).click();
  assert.deepEqual(await shown(page), part);
  await page.goBack();
  await until('what was before, by the browser', async () => String(await shown(page)) === String(inner));
  await page.getByRole('group', { name: REQUESTS }).focus();
  await page.keyboard.press('Escape');
  assert.deepEqual(await shown(page), part);
  await plot(page, REQUESTS).dblclick();
  await until('now', async () => (await shown(page))[1] > started);
  assert.ok(!page.url().includes('zoom'));
  assert.deepEqual(page.errors, []);
});

test('the resolution follows the zoom', { skip }, async (t) => {
  const page = await open(t, '#/?range=24h');
  await step(page, REQUESTS, 300);
  await drag(page, REQUESTS, 0.98, 1);
  await step(page, REQUESTS, 5);
  // Seconds, while the history still has them.
  await drag(page, SOURCES, 0.8, 1);
  await step(page, SOURCES, 1);
  await until('seconds', async () => (await table(page, SOURCES)).some(({ Memory }) => Memory > 0));
  await page.getByRole('button', { name: 'Zoom out' }).click();
  await step(page, SOURCES, 5);
  assert.deepEqual(page.errors, []);
});

test('all charts of a view share cursor and range', { skip }, async (t) => {
  await known(20);
  const page = await open(t, '#/volumes/database?range=1min');
  await waitForBadge(page, 'live');
  const titles = await page.locator('[data-chart]').evaluateAll((elements) => elements.map((element) => element.dataset.chart));
  assert.equal(titles.length, 4);
  const times = () => Promise.all(titles.map((title) => legend(page, title, 'at')));
  await until('a past', async () => (await table(page, REQUESTS)).length > 20);
  // In a past range only the cursor moves.
  await drag(page, REQUESTS, 0.7, 0.95);
  await page.mouse.move(0, 0);
  const newest = await times();
  await hover(page, titles[1], 0.4);
  await until('one cursor', async () => new Set(await times()).size === 1);
  assert.notEqual((await times())[0], newest[0]);
  const starts = await page.locator('[data-chart]').evaluateAll((all) => all.map((one) => Number(one.dataset.from)));
  assert.deepEqual(new Set(starts), new Set([(await shown(page))[0]]));
  assert.deepEqual(page.errors, []);
});

test('a link restores range, hidden lines and sort order', { skip }, async (t) => {
  const page = await open(t, '#/volumes/database');
  await waitForBadge(page, 'live');
  await page.click('[data-range="1h"]');
  await step(page, SOURCES, 10);
  await until('memory', async () => (await painted(page, SOURCES, 'memory', 1)) > 50);
  const memory = (page) => chart(page, SOURCES).getByRole('button', { name: 'Memory' });
  await memory(page).click();
  const isHidden = async (page) => {
    await until('no memory', async () => (await painted(page, SOURCES, 'memory', 1)) === 0);
    assert.equal(await memory(page).getAttribute('aria-pressed'), 'false');
    assert.equal(await page.getAttribute('[data-range="1h"]', 'aria-pressed'), 'true');
    await step(page, SOURCES, 10);
    await until('an array', async () => (await painted(page, SOURCES, 'array', 1)) > 0);
  };
  await isHidden(page);
  const other = await open(t, new URL(page.url()).hash);
  await waitForBadge(other, 'live');
  await isHidden(other);
  await memory(other).click();
  await until('memory', async () => (await painted(other, SOURCES, 'memory', 1)) > 50);
  // Another view keeps the time range.
  await page.getByRole('navigation', { name: 'Views' }).getByRole('link', { name: 'Volumes' }).click();
  await page.getByRole('button', { name: 'Requests' }).click();
  await page.reload();
  await page.waitForSelector('th[aria-sort=descending] >> text=Requests');
  assert.ok(page.url().includes('range=1h'), page.url());
  assert.deepEqual(page.errors, []);
});

test('volume charts mark events of the volume and of the daemon', { skip }, async (t) => {
  const titles = (page) => page.locator('[data-chart]').evaluateAll((elements) => elements.map((element) => element.dataset.chart));
  /** Waits until every chart has marks, or none has. */
  const marked = (page, wanted) =>
    until(`${wanted ? 'marks' : 'no mark'} on every chart`, async () => {
      const all = await Promise.all((await titles(page)).map((title) => painted(page, title, 'event', 1)));
      return all.length === 4 && all.every((pixels) => (wanted ? pixels > 40 : pixels === 0));
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
  await marked(page, true);
  await page.goto(`${daemon.url}#/volumes/database?${zoom}`);
  await page.waitForSelector('h1:text-is("database")');
  await until('a past', async () => (await table(page, REQUESTS)).length > 3);
  await marked(page, false);
  await page.goto(`${daemon.url}#/volumes/desktops?${zoom}`);
  await page.waitForSelector('h1:text-is("desktops")');
  await marked(page, true);
  // The tooltip appears in the hovered chart only.
  const told = (title) => chart(page, title).getByRole('status').innerText();
  await hover(page, REQUESTS, (at_unix_ms / 1e3 - from) / 8);
  await until('its text', async () =>
    /change desktops: set policy=write-around.*, by user /.test(await told(REQUESTS)),
  );
  assert.equal(await told(SOURCES), '');
  await hover(page, REQUESTS, 0.02);
  await until('no text', async () => (await told(REQUESTS)) === '');
  await page.mouse.move(0, 0);
  // By keyboard.
  await page.getByRole('group', { name: SOURCES }).focus();
  await page.keyboard.press('e');
  await until('its text', async () => /set policy=write-back/.test(await told(SOURCES)));
  // Events of the daemon are marked on a volume's charts, live.
  const live = await open(t, '#/volumes/database?range=1min');
  await waitForBadge(live, 'live');
  await until('a past', async () => (await table(live, REQUESTS)).length > 10);
  const marks = async () => Number(await chart(live, REQUESTS).getAttribute('data-marks'));
  const before = await marks();
  await daemon.command('token', 'create', `marked-${from}`, '--role', 'read');
  await until('one more', async () => (await marks()) > before);
  await marked(live, true);
  assert.deepEqual([...page.errors, ...live.errors], []);
});

test('flash charts have history, bands, zoom, a shared cursor and event marks', { skip }, async (t) => {
  const PAST = {
    'Flash writes by cause': {
      Promotion: 'flash_promotion_bytes',
      'Dirty data': 'flash_log_bytes',
      'Map journal': 'flash_journal_bytes',
    },
    'Clean pages': { Pages: 'flash_pages' },
    'Free log segments': { Free: 'flash_log_free_segments' },
  };
  const [WRITTEN, PAGES, FREE] = Object.keys(PAST);
  /** Seconds of the zoomed range; it ends in the future, so that events of the test are in it. */
  const WIDTH = 90;
  await known(30);
  const opened = seconds();
  const page = await open(t, '#/flash?range=1min');
  await waitForBadge(page, 'live');
  await until('seconds before it and after', async () => {
    const at = (await table(page, WRITTEN)).map((row) => row.at_unix_seconds);
    return at.some((second) => second < opened - 10) && at.some((second) => second > opened + 2);
  });
  await page.click('[data-range="1h"]');
  for (const [title, columns] of Object.entries(PAST)) {
    await step(page, title, 10);
    const curl = await agrees(page, title, columns);
    const all = title === WRITTEN ? 'flash_device_bytes,' : '';
    assert.ok(
      curl.endsWith(`/api/v1/history?from=-1h&step=10s&series=${all}${Object.values(columns).join(',')}'`),
      curl,
    );
  }
  // The causes add up to all bytes written; flushed data goes to the log.
  await daemon.burst('mail', ['--rw=randwrite', '--rate_iops=200', '--fsync=4']);
  await until('what was flushed', async () => {
    const { series } = await daemon.json('history?from=-10min&step=10s');
    const sum = (name) => series[name].sum.reduce((all, part) => all + part, 0);
    const parts = Object.values(PAST[WRITTEN]).reduce((all, name) => all + sum(name), 0);
    assert.equal(parts, sum('flash_device_bytes'));
    return sum('flash_log_bytes') > 0;
  });
  await until('a band', async () => (await painted(page, WRITTEN, 'ink', BAND)) > 10);
  // Flash charts mark events of the daemon and of devices, not of volumes.
  const from = seconds() + 1;
  await until('seconds before it', () => seconds() > from + 1);
  const marks = async (title) => Number(await chart(page, title).getAttribute('data-marks'));
  /** Neighbouring events share a mark. */
  const isMarked = () =>
    until('marks of the events of the daemon and of devices', async () => {
      const { events } = await daemon.json(`events?since=${from}&until=${from + WIDTH}&limit=1000`);
      const wanted = events.filter(({ subject }) => subject === null || subject.startsWith('/')).length;
      const found = await Promise.all(Object.keys(PAST).map(marks));
      return found.every((count) => count <= wanted && count > 0 === wanted > 0);
    });
  await daemon.command('volume', 'set', 'desktops', 'policy=write-around');
  await daemon.command('volume', 'set', 'desktops', 'policy=write-back');
  await until('seconds after it', () => seconds() > from + 8);
  await page.goto(`${daemon.url}#/flash?zoom=${from}-${from + WIDTH}`);
  await until('the part', async () => (await shown(page))[0] === from);
  await page.waitForFunction(() => document.querySelector('.ranges .hint')?.textContent.includes(', fixed.'));
  await isMarked();
  const marksBefore = await marks(PAGES);
  await daemon.command('flash', 'add', await daemon.createSparseFile('flash-2', 256));
  await until('one more', async () => (await marks(PAGES)) > marksBefore);
  await isMarked();
  await until('its line', async () => (await painted(page, PAGES, 'event', 1)) > 40);
  // Zoom applies to all charts, with a shared cursor.
  await until('a past', async () => (await table(page, FREE)).length > 10);
  await drag(page, PAGES, 0.02, 0.1);
  const [inner] = await shown(page);
  assert.ok(inner > from, `${inner} after ${from}`);
  await hover(page, PAGES, 0.3);
  const times = () => Promise.all(Object.keys(PAST).map((title) => legend(page, title, 'at')));
  await until('one cursor', async () => new Set(await times()).size === 1);
  const starts = await Promise.all(Object.keys(PAST).map((title) => chart(page, title).getAttribute('data-from')));
  assert.deepEqual(new Set(starts.map(Number)), new Set([inner]));
  await page.getByRole('button', { name: 'Zoom out' }).click();
  assert.equal((await shown(page))[0], from);
  assert.deepEqual(page.errors, []);
});

test('datastore charts have history, zoom, event marks and comparison', { skip }, async (t) => {
  const DIRTY = 'Dirty data';
  await known(30);
  const opened = seconds();
  const page = await open(t, '#/datastores?range=1min');
  await waitForBadge(page, 'live');
  const requests = async () => (await table(page, REQUESTS)).map((row) => row.at_unix_seconds);
  await until('seconds before it and after', async () => {
    const at = await requests();
    return at.some((second) => second < opened - 10) && at.some((second) => second > opened + 2);
  });
  // The busiest datastore is selected by default; a link restores the selection.
  assert.match(await page.locator('h2:has-text(": history")').innerText(), /^shelf/);
  await page.click('[data-range="1h"]');
  for (const [title, columns] of [
    [REQUESTS, { Reads: 'reads', Writes: 'writes' }],
    [DIRTY, { Dirty: 'dirty_bytes' }],
  ]) {
    await step(page, title, 10);
    assert.match(await agrees(page, title, columns), /\/api\/v1\/history\?datastore=shelf&from=-1h&step=10s&series=/);
  }
  // The sum over its two volumes.
  const reads = async (path) => {
    const { at_unix_seconds: at, series } = await daemon.json(
      `${path}from=${opened - 20}&to=${opened}&step=20s&series=reads`,
    );
    return at.length === 0 ? 0 : series.reads.sum.reduce((sum, part) => sum + part, 0);
  };
  const parts = await Promise.all(['database', 'desktops'].map((name) => reads(`volumes/${name}/history?`)));
  assert.ok(
    parts.every((part) => part > 0),
    `${parts}`,
  );
  assert.equal(await reads('history?datastore=shelf&'), parts[0] + parts[1]);
  const from = seconds() + 1;
  // Far enough apart for separate marks.
  for (const [at, name, policy] of [
    [1, 'mail', 'write-around'],
    [5, 'desktops', 'write-around'],
    [9, 'mail', 'write-back'],
  ]) {
    await until('seconds before it', () => seconds() > from + at);
    await daemon.command('volume', 'set', name, `policy=${policy}`);
  }
  await page.goto(`${daemon.url}#/datastores?zoom=${from}-${from + 30}`);
  await until('the part', async () => (await shown(page))[0] === from);
  const marks = async () => Number(await chart(page, REQUESTS).getAttribute('data-marks'));
  await until('the event of its volume, and none of the other one', async () => (await marks()) === 1);
  await daemon.command('volume', 'set', 'desktops', 'policy=write-back');
  await page.getByRole('button', { name: 'Compare with previous period' }).click();
  await page.waitForSelector('[data-changes=Volume] tbody tr');
  const names = await page.locator('[data-changes=Volume] tbody a').allInnerTexts();
  assert.deepEqual(names.toSorted(), ['database', 'desktops']);
  await page.getByRole('link', { name: 'no datastore', exact: true }).click();
  await page.waitForSelector('h2:text-is("no datastore: history")');
  assert.deepEqual(await shown(page), [from, from + 30]);
  await page.reload();
  await page.waitForSelector('h2:text-is("no datastore: history")');
  await page.goto(`${daemon.url}#/datastores?of=none`);
  await page.waitForSelector('[role=alert]:has-text("“none”")');
  assert.deepEqual(page.errors, []);
});

test('a chart is exported as PNG, CSV and curl command', { skip }, async (t) => {
  await known(30);
  const page = await open(t, '#/volumes/database?range=1h');
  await waitForBadge(page, 'live');
  await step(page, REQUESTS, 10);
  const picture = await download(page, REQUESTS, 'PNG');
  assert.equal(picture.toString('latin1', 1, 4), 'PNG');
  const canvas = chart(page, REQUESTS).locator('canvas');
  assert.ok(picture.readUInt32BE(16) > (await canvas.evaluate((canvas) => canvas.width)));
  assert.ok(picture.length > 3_000, `${picture.length} bytes`);
  const curl = await agrees(page, REQUESTS, { Reads: 'reads', Writes: 'writes' });
  assert.match(curl, /^curl -s 'http.*\/api\/v1\/volumes\/database\/history\?from=-1h&step=10s&series=reads,writes'$/);
  assert.deepEqual(page.errors, []);
});

test('a zoomed range is compared with the previous period', { skip }, async (t) => {
  const from = seconds();
  await daemon.burst('mail');
  const to = Math.max(seconds() + 1, from + 5);
  await until('what came after', () => seconds() > to + 2);
  const page = await open(t, `#/?zoom=${from}-${to}`);
  await waitForBadge(page, 'live');
  await until('volumes', () => page.locator('.ranks tbody a').count());
  await page.getByRole('button', { name: 'Compare with previous period' }).click();
  await page.waitForSelector('[data-changes=Volume] tbody tr');
  const rows = (what) => page.locator(`[data-changes=${what}] tbody tr`).allInnerTexts();
  const [volumes, figures] = [await rows('Volume'), await rows('Figure')];
  t.diagnostic(`${volumes.join('; ')} | ${figures.join('; ')}`.replaceAll('\t', ' '));
  assert.ok(volumes.length === 3 && volumes[0].startsWith('mail'), String(volumes));
  assert.ok(
    figures.slice(0, 3).some((row) => row.startsWith('Reads')),
    String(figures),
  );
  await page.locator('[data-changes=Volume] tbody a').first().click();
  await page.waitForSelector('h1:text-is("mail")');
  assert.deepEqual(await shown(page), [from, to]);
  assert.deepEqual(page.errors, []);
});

test('a long-hidden tab resumes without a gap', { skip }, async () => {
  await until('a long sleep', () => seconds() > sleptAt + STREAM_SECONDS + 5, 90_000);
  const asleep = await table(sleeper, REQUESTS);
  assert.ok(asleep.at(-1).at_unix_seconds <= sleptAt + 2, 'a hidden tab goes on');
  const woken = seconds();
  await setVisible(sleeper, true);
  await waitForBadge(sleeper, 'live');
  await until('no gap', async () => {
    const rows = await table(sleeper, REQUESTS);
    if (rows.at(-1).at_unix_seconds <= woken + 3) return false;
    return (await missing(rows, sleptAt - 2, woken + 3)).length === 0;
  });
  assert.deepEqual(sleeper.errors, []);
});
