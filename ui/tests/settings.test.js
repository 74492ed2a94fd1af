// Settings, in Chromium on a daemon with a non-default configuration.

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { axeFindings, logIn, openPage, waitForBadge } from './browser.js';
import { startFixture, stopFixture, skip, until } from './daemon.js';

let daemon, browser;

before(async () => ({ daemon, browser } = await startFixture(1)));
after(() => stopFixture({ daemon, browser }));

const open = (t, view, options) => openPage({ daemon, browser, t }, view, options);
const setting = (page, key) => page.locator(`[data-setting="${key}"]`);
/** Opens the group of a key. */
async function show(page, key) {
  await page.evaluate((group) => (location.hash = `#/settings?group=${group}`), key.split('.')[0]);
  await setting(page, key).waitFor();
}
const valueOf = async (page, key) => (await setting(page, key).locator('.holds b').innerText()).trim();
const isDefault = async (page, key) => (await setting(page, key).getAttribute('data-different')) === 'false';
const sourceOf = (page, key) => setting(page, key).locator('[data-from]').allInnerTexts();
const keys = (page) => page.locator('[data-setting]').evaluateAll((items) => items.map((item) => item.dataset.setting));

test('each key shows value, source, default, meaning and needed restart', { skip }, async (t) => {
  const page = await open(t);
  await waitForBadge(page, 'live');
  await page.getByRole('navigation').getByRole('link', { name: 'Settings' }).click();
  await page.waitForSelector('[data-setting]');
  // Exactly the documented keys.
  const docs = await readFile(new URL('../../docs/admin/configuration.md', import.meta.url), 'utf8');
  const tables = docs.split('<!-- keys: ')[1].split('<!-- end of keys -->')[0];
  const documented = [...tables.matchAll(/^\| `(\w+)` \| .* \| (.*) \|$/gm)];
  assert.ok(documented.length > 30, `${documented.length} keys are documented`);
  const groups = page.getByRole('navigation', { name: 'Groups of settings' }).getByRole('button');
  const all = [];
  for (const group of await groups.all()) {
    await group.click();
    await until('the group', async () => (await group.getAttribute('aria-current')) === 'true');
    all.push(...(await keys(page)));
  }
  assert.deepEqual(
    all.map((key) => key.split('.').at(-1)),
    documented.map(([, name]) => name),
  );
  const pathOf = (name) => join(daemon.folder, name);
  for (const [key, value, hasDefault] of [
    ['memory.size', '256 MiB', false],
    ['flash.devices', `${pathOf('flash-0')}, ${pathOf('flash-1')}`, false],
    ['flash.allow_single_copy', 'false', true],
    ['nbd.listen', `unix:${pathOf('nbd.sock')}`, false],
    ['history.size', '1 GiB', true],
    ['alerts.webhook', 'none', true],
    ['volume.name', '4 volumes', true],
    ['datastore.name', 'shelf', true],
    ['volume.policy', 'write-back', true],
    ['volume.datastore', '2 of 4 volumes differ', false],
  ]) {
    await show(page, key);
    assert.equal(await valueOf(page, key), value, key);
    assert.equal(await isDefault(page, key), hasDefault, key);
    assert.equal((await setting(page, key).innerText()).includes('non-default'), !hasDefault, key);
  }
  assert.match(await setting(page, 'volume.datastore').innerText(), /database: shelf, desktops: shelf/);
  await show(page, 'memory.size');
  await setting(page, 'memory.size').getByRole('button', { name: 'Change' }).click();
  const size = (await setting(page, 'memory.size').innerText()).replaceAll(/\s+/g, ' ');
  for (const part of [
    'Default: 1 GiB',
    'Memory for caching, including its index',
    'type: size',
    'restart to change',
    'in [memory], for example size = "4 GiB"',
    'after a restart',
  ]) {
    assert.ok(size.includes(part), `${part} is not in: ${size}`);
  }
  await show(page, 'volume.labels');
  assert.match(await setting(page, 'volume.labels').innerText(), /reload to change/);
  assert.match(await setting(page, 'volume.policy').innerText(), /no restart/);
  await setting(page, 'volume.policy').getByRole('button', { name: 'Change' }).click();
  assert.match(
    await setting(page, 'volume.policy').innerText(),
    /immediately when set on the volume page or by hotset volume set/,
  );
  // Source of a value, and keys that only the file has.
  await show(page, 'memory.size');
  assert.deepEqual(await sourceOf(page, 'memory.size'), ['from the file']);
  await show(page, 'flash.scrub');
  assert.deepEqual(await sourceOf(page, 'flash.scrub'), []);
  assert.equal(await valueOf(page, 'flash.scrub'), '4 MiB');
  await show(page, 'state.directory');
  assert.equal(await valueOf(page, 'state.directory'), pathOf('state'));
  await show(page, 'volume.backing');
  assert.match(await setting(page, 'volume.backing').innerText(), /mail: sim:\/\/raid5/);
  assert.ok((await page.locator('main').innerText()).includes(pathOf('hotset.toml')));
  assert.deepEqual(page.errors, []);
});

test('overrides are listed live with the value in the file', { skip }, async (t) => {
  const page = await open(t, '#/settings');
  await waitForBadge(page, 'live');
  await page.waitForSelector('.empty:has-text("all values come from the file")');
  await daemon.command('volume', 'set', 'mail', 'memory_max=50%', 'policy=write-through');
  const row = page.locator('[data-override="mail.memory_max"]');
  await row.waitFor();
  assert.deepEqual(await row.locator('td').allInnerTexts(), ['mail', 'memory_max', '50%', 'none']);
  await show(page, 'volume.memory_max');
  await until('the volume', async () => /mail: 50%/.test(await setting(page, 'volume.memory_max').innerText()));
  assert.equal(await valueOf(page, 'volume.policy'), '1 of 4 volumes differs');
  await row.getByRole('link', { name: 'mail' }).click();
  await page.waitForSelector('h1:text-is("mail")');
  await daemon.command('volume', 'set', 'mail', 'memory_max=none', 'policy=write-back');
  await page.goBack();
  await page.waitForSelector('.empty:has-text("all values come from the file")');
  assert.deepEqual(page.errors, []);
});

test('settings are filtered by text and non-default; a link restores it', { skip }, async (t) => {
  const page = await open(t, '#/settings');
  await page.waitForSelector('[data-setting]');
  await page.getByRole('searchbox').fill('MEMORY_M');
  await until('two keys', async () => String(await keys(page)) === 'volume.memory_min,volume.memory_max');
  await page.getByRole('searchbox').fill('silent corruption');
  await until('one key', async () => String(await keys(page)) === 'flash.scrub');
  await page.getByLabel('Only non-default values').check();
  await page.waitForSelector('.empty:has-text("are defaults")');
  await page.getByRole('searchbox').fill('listen');
  await until('three keys', async () => String(await keys(page)) === 'api.listen,nbd.listen,iscsi.listen');
  await page.reload();
  await until('the same keys', async () => String(await keys(page)) === 'api.listen,nbd.listen,iscsi.listen');
  await page.getByLabel('Only non-default values').uncheck();
  await page.getByRole('searchbox').fill('nonsense');
  await page.waitForSelector('.empty:has-text("“nonsense”")');
  assert.deepEqual(page.errors, []);
});

test('settings stay while the daemon does not answer, and recover', { skip }, async (t) => {
  const page = await open(t, '#/settings');
  await page.waitForSelector('[data-setting]');
  await show(page, 'volume.flash_max');
  await page.route('**/api/v1/configuration', (route) => route.abort());
  // A change triggers the next request.
  await daemon.command('volume', 'set', 'mail', 'flash_max=50%');
  await page.waitForSelector('[role=alert]:has-text("out of date")');
  assert.equal(await valueOf(page, 'volume.flash_max'), 'none');
  await page.unroute('**/api/v1/configuration');
  await until('the changed value', async () => (await valueOf(page, 'volume.flash_max')) === '1 of 4 volumes differs');
  assert.equal(await page.locator('[role=alert]').count(), 0);
  await daemon.command('volume', 'set', 'mail', 'flash_max=none');
});

test('a setting of a volume changes in the form after a log-in', { skip }, async (t) => {
  const page = await open(t, '#/settings?filter=volume.limit_iops');
  await waitForBadge(page, 'live');
  const item = setting(page, 'volume.limit_iops');
  await item.getByRole('button', { name: 'Change' }).click();
  const form = item.locator('[data-volume-setting]');
  await form.getByLabel('Volume').selectOption('mail');
  await form.getByLabel('New value').fill('700');
  await form.getByRole('button', { name: 'Apply' }).click();
  await logIn(page, daemon, 'settings', 'operate');
  await item.getByText('Change: limit_iops of mail is 700 now.').waitFor();
  assert.equal((await daemon.json('volumes/mail')).qos.limit_iops, 700);
  await page.locator('[data-override="mail.limit_iops"]').waitFor();
  await until('the value', async () => (await valueOf(page, 'volume.limit_iops')) === '1 of 4 volumes differs');
  await daemon.command('volume', 'set', 'mail', 'limit_iops=0');
});

test('settings are short, pass axe and fit 390 pixels, in light and dark', { skip }, async (t) => {
  for (const colorScheme of ['light', 'dark']) {
    const page = await open(t, '#/settings?group=volume', { colorScheme });
    await waitForBadge(page, 'live');
    await setting(page, 'volume.policy').getByRole('button', { name: 'Change' }).click();
    assert.deepEqual(await axeFindings(page), [], colorScheme);
    const height = () => page.evaluate(() => document.documentElement.scrollHeight);
    assert.ok((await height()) < 3_000, `the longest group is ${await height()} pixels high`);
    // A search shows the first results.
    await page.getByRole('searchbox').fill('e');
    await page.getByRole('button', { name: /^Show all/ }).waitFor();
    assert.equal((await keys(page)).length, 20);
    await page.setViewportSize({ width: 390, height: 800 });
    const width = await page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(width <= 390, `it is ${width} pixels wide`);
    await page.getByRole('button', { name: /^Show all/ }).click();
    assert.ok((await keys(page)).length > 60);
  }
});
