// The view of the fleet, in Chromium on a daemon without other hosts and on prepared reports of three hosts.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { axeFindings, logIn, openPage, waitForBadge } from './browser.js';
import { startFixture, stopFixture, skip, until } from './daemon.js';
import { hosts } from './fleet-hosts.js';

let daemon, browser;

before(async () => ({ daemon, browser } = await startFixture()));
after(() => stopFixture({ daemon, browser }));

const text = async (locator) => (await locator.innerText()).replaceAll(/\s+/g, ' ');
const waitForText = (locator, part) => until(part, async () => (await text(locator)).includes(part));
const volumeRow = (page, name) => page.locator(`[data-fleet-volume=${name}]`);
const dialogOf = (page, title) => page.getByRole('dialog', { name: title });
const volumes = (page) => page.locator('[data-fleet-volumes]');

/** Opens the view with the reports that `answer` returns; a problem instead of a list is a refusal. */
async function openFleet(t, answer = hosts, options = {}) {
  const page = await openPage({ daemon, browser, t }, '#/fleet', options);
  await page.route('**/api/v1/fleet/hosts', async (route) => {
    const reports = await answer();
    const problem = { status: reports.status, contentType: 'application/problem+json', body: JSON.stringify(reports) };
    await route.fulfill(Array.isArray(reports) ? { json: reports } : problem);
  });
  await page.reload();
  await waitForBadge(page, 'live');
  return page;
}

/** Answers requests of this path with `answer`, and records their bodies. */
async function record(page, path, answer) {
  const bodies = [];
  await page.route(`**/api/v1/${path}`, async (route) => {
    assert.equal(route.request().method(), 'POST');
    bodies.push(route.request().postDataJSON());
    await answer(route);
  });
  return bodies;
}

test('a daemon without other hosts shows the way to a link', { skip }, async (t) => {
  const page = await openPage({ daemon, browser, t }, '#/fleet');
  await waitForBadge(page, 'live');
  for (const part of ['No other hosts', 'Ceph RBD', '[fleet]', 'docs/admin/fleet.md']) {
    await waitForText(page.locator('main'), part);
  }
  assert.equal(await page.locator('table').count(), 0);
  assert.deepEqual(await axeFindings(page), []);
  assert.deepEqual(page.errors, []);
});

test('hosts show their versions and volumes, or why they are silent', { skip }, async (t) => {
  const page = await openFleet(t);
  const host = (name) => text(page.locator(`[data-fleet-host=${name}]`));
  await page.waitForSelector('[data-fleet-host=gamma]');
  assert.equal((await host('alpha')).trim(), 'alpha this host 10.0.0.1:7401 0.1.0 1 3 0');
  assert.equal((await host('beta')).trim(), 'beta 10.0.0.2:7401 0.2.0 other version 2 1 1');
  assert.match(await host('gamma'), /^gamma 10\.0\.0\.3:7401 No answer: host gamma .* within 5 s/);
  assert.equal(await page.locator('[data-fleet-host=gamma] .problem').count(), 1);
  assert.match(await text(page.locator('[data-mixed-versions]')), /0\.1\.0 on alpha; 0\.2\.0 on beta/);
  assert.deepEqual(page.errors, []);
});

test('each image has a row with owner, policy and state on other hosts', { skip }, async (t) => {
  const page = await openFleet(t);
  const cell = (name, key) => text(volumeRow(page, name).locator(`[data-cell=${key}]`)).then((shown) => shown.trim());
  await page.waitForSelector('[data-fleet-volume]');
  assert.equal(await page.locator('[data-fleet-volume]').count(), 5);
  assert.match(await text(volumeRow(page, 'web01')), /^web01 rbd:vms\/web01 alpha/);
  assert.equal(await cell('web01', 'owner'), 'alpha');
  assert.equal(await cell('web01', 'policy'), 'write-back');
  assert.equal(await cell('web01', 'others'), 'beta: standby');
  assert.equal(await cell('web01', 'undestaged'), 'of alpha');
  assert.equal(await cell('web02', 'owner'), 'beta (www2)');
  assert.equal(await cell('web02', 'policy'), 'write-through write-back requested');
  assert.equal(await cell('db01', 'owner'), 'gamma no answer');
  assert.equal(await cell('db01', 'policy'), '–');
  assert.equal(await cell('db01', 'others'), 'alpha: standby beta: refused');
  assert.equal(await cell('db01', 'undestaged'), 'of gamma 5f2c61d09a7be413');
  assert.equal(await cell('mail', 'owner'), 'alpha released for gamma');
  // Only volumes of this host have a page and actions here.
  const links = await page.locator('[data-fleet-volume] a').allInnerTexts();
  assert.deepEqual(links, ['db01', 'mail', 'web01', 'web02']);
  const actions = await page
    .locator('[data-fleet-volume]')
    .evaluateAll((rows) => rows.map((row) => [...row.querySelectorAll('button')].map((button) => button.textContent)));
  assert.deepEqual(actions, [
    [],
    ['Take over… db01'],
    ['Take over… mail'],
    ['Move… web01'],
    ['Move… web02', 'Take over… web02'],
  ]);
  assert.deepEqual(page.errors, []);
});

test('a move names the chosen host and reads the hosts again', { skip }, async (t) => {
  let reports = hosts();
  const delta = { ...hosts()[1], host: 'delta', version: '0.1.0' };
  delta.volumes = [{ ...delta.volumes[0], fleet: { ...delta.volumes[0].fleet, host: 'delta' } }];
  reports.push(delta);
  const page = await openFleet(t, () => reports);
  let finish;
  const isAsked = new Promise((resolve) => (finish = resolve));
  const bodies = await record(page, 'volumes/web01/move', async (route) => {
    await isAsked;
    await route.fulfill({ json: { name: 'web01', fleet: { owner: 'delta', is_owner: false } } });
  });
  const button = volumeRow(page, 'web01').getByRole('button', { name: 'Move… web01' });
  await button.click();
  const dialog = dialogOf(page, 'Move web01');
  await waitForText(dialog, 'Host alpha destages dirty data while clients are served');
  // The host that does not answer is no choice.
  assert.deepEqual(await dialog.getByLabel('To host').locator('option').allInnerTexts(), ['beta', 'delta']);
  await dialog.getByLabel('To host').selectOption('delta');
  await dialog.getByRole('button', { name: 'Move' }).click();
  await waitForText(volumes(page), 'Move of web01: in progress…');
  assert.equal(await dialog.count(), 0);
  assert.ok(await button.isDisabled(), 'it could be moved twice');
  // A long move keeps no other volume waiting.
  assert.ok(await volumeRow(page, 'web02').getByRole('button', { name: 'Move… web02' }).isEnabled());
  reports = hosts();
  reports[0].volumes[0].state = 'standby';
  Object.assign(reports[0].volumes[0].fleet, { owner: 'delta', is_owner: false, ownership: 5, released_to: null });
  finish();
  await waitForText(volumes(page), 'Move of web01: done. Host delta serves the volume.');
  assert.deepEqual(bodies, [{ to: 'delta' }]);
  // Sooner than the next periodic request.
  await until(
    'the new owner',
    async () => /^delta/.test(await text(volumeRow(page, 'web01').locator('[data-cell=owner]'))),
    4_000,
  );
  assert.deepEqual(page.errors, []);
});

test('a failed move shows the reason', { skip }, async (t) => {
  const page = await openFleet(t);
  const detail = 'volume web01 has lost its image, so it cannot be moved';
  const body = JSON.stringify({ detail });
  await record(page, 'volumes/web01/move', (route) =>
    route.fulfill({ status: 409, contentType: 'application/problem+json', body }),
  );
  await volumeRow(page, 'web01').getByRole('button', { name: 'Move' }).click();
  await dialogOf(page, 'Move web01').getByRole('button', { name: 'Move' }).click();
  await volumes(page).getByRole('alert').getByText(detail).waitFor();
  assert.doesNotMatch(await text(volumes(page)), /done/);
});

test('a take-over needs the typed name and states what is lost', { skip }, async (t) => {
  const page = await openFleet(t);
  const bodies = await record(page, 'volumes/db01/take-over', (route) => route.fulfill({ json: { name: 'db01' } }));
  const take = async (isFenced) => {
    await volumeRow(page, 'db01').getByRole('button', { name: 'Take over… db01' }).click();
    const dialog = dialogOf(page, 'Take db01 over');
    const button = dialog.getByRole('button', { name: 'Take over' });
    for (const part of [
      'Unflushed writes of host gamma are lost, as at a power cut.',
      'after 26 s',
      'The image lacks flushed data of host gamma.',
    ]) {
      await waitForText(dialog, part);
    }
    assert.doesNotMatch(await text(dialog), /a move loses nothing/);
    assert.ok(await button.isDisabled(), 'no name was typed');
    await dialog.getByLabel('to confirm').fill('db0');
    assert.ok(await button.isDisabled(), 'another name was typed');
    // Enter in the field submits the form only if the button may be pressed.
    await page.keyboard.press('Enter');
    if (isFenced) await dialog.getByLabel('Host gamma is known to be off').check();
    await dialog.getByLabel('to confirm').fill('db01');
    await button.click();
    await waitForText(volumes(page), 'Take-over of db01: done. This host serves the volume.');
    assert.equal(await dialog.count(), 0);
  };
  await take(false);
  await take(true);
  assert.deepEqual(bodies, [
    { from: 'gamma', fenced: false },
    { from: 'gamma', fenced: true },
  ]);
  // The owner of this one answers.
  await volumeRow(page, 'web02').getByRole('button', { name: 'Take over… web02' }).click();
  const dialog = dialogOf(page, 'Take web02 over');
  for (const part of ['a move loses nothing', 'A client, probably host beta, has the image open.']) {
    await waitForText(dialog, part);
  }
  assert.equal(await dialog.getByLabel('to confirm').inputValue(), '', 'the name of another volume is left');
  await page.keyboard.press('Escape');
  // Nothing is lost with an image that its owner has released.
  await volumeRow(page, 'mail').getByRole('button', { name: 'Take over… mail' }).click();
  await waitForText(dialogOf(page, 'Take mail over'), 'nothing is lost');
  assert.doesNotMatch(await text(dialogOf(page, 'Take mail over')), /are lost|known to be off/);
  assert.deepEqual(page.errors, []);
});

test('a drain asks first, requires a login and shows its outcome', { skip }, async (t) => {
  const page = await openFleet(t);
  const drain = page.locator('[data-fleet-drain]');
  await waitForText(drain, 'Moves 1 volume from alpha to other hosts');
  await drain.getByRole('button', { name: 'Drain this host…' }).click();
  const dialog = dialogOf(page, 'Drain alpha');
  await waitForText(dialog, 'its clients are disconnected');
  await dialog.getByRole('button', { name: 'Drain', exact: true }).click();
  await logIn(page, daemon, 'drainer', 'operate');
  await waitForText(drain, 'Drain: done.');
  // The daemon of the test has no such volume.
  await waitForText(drain, 'no volume in service lies on an image that other hosts can own');
  // The refusal is the only console error.
  assert.ok(page.errors.length === 1 && page.errors[0].includes('401'), String(page.errors));
});

test('the view loads, is read again, and keeps its last answer', { skip }, async (t) => {
  let answer;
  const first = new Promise((resolve) => (answer = resolve));
  let requests = 0;
  const page = await openFleet(t, () => {
    requests += 1;
    return requests === 1 ? first : { status: 503, detail: 'the daemon is stopping' };
  });
  await waitForText(page.locator('main'), 'Loading…');
  assert.equal(await page.locator('table').count(), 0);
  answer(hosts());
  await page.waitForSelector('[data-fleet-host=gamma]');
  assert.doesNotMatch(await text(page.locator('main')), /Loading/);
  assert.equal(await page.getByRole('alert').count(), 0);
  await page.getByRole('alert').getByText('the daemon is stopping').waitFor({ timeout: 15_000 });
  assert.equal(await page.locator('[data-fleet-volume]').count(), 5);
});

test('the view passes axe and fits 390 pixels, in light and dark', { skip }, async (t) => {
  for (const colorScheme of ['light', 'dark']) {
    const page = await openFleet(t, hosts, { colorScheme, viewport: { width: 390, height: 800 } });
    await page.waitForSelector('[data-fleet-volume]');
    assert.deepEqual(await axeFindings(page), [], colorScheme);
    const width = await page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(width <= 390, `it is ${width} pixels wide`);
    for (const [name, button, title] of [
      ['web02', 'Move… web02', 'Move web02'],
      ['web02', 'Take over… web02', 'Take web02 over'],
    ]) {
      await volumeRow(page, name).getByRole('button', { name: button }).click();
      await dialogOf(page, title).waitFor();
      assert.deepEqual(await axeFindings(page), [], `${title} ${colorScheme}`);
      await page.keyboard.press('Escape');
    }
    await page.getByRole('button', { name: 'Drain this host…' }).click();
    assert.deepEqual(await axeFindings(page), [], `drain ${colorScheme}`);
    assert.deepEqual(page.errors, []);
  }
});

test('tables have room at 1024 pixels', { skip }, async (t) => {
  const page = await openFleet(t, hosts, { viewport: { width: 1024, height: 800 } });
  await page.waitForSelector('[data-fleet-volume]');
  const hidden = await page
    .locator('.scroll')
    .evaluateAll((regions) => regions.map((region) => region.scrollWidth - region.clientWidth));
  assert.deepEqual(hidden, [0, 0]);
});
