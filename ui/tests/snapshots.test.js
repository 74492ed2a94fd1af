// Snapshots on the volume page, in Chromium on a daemon with a pool of files.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { after, afterEach, before, test } from 'node:test';
import { axeFindings, logIn, openPage, waitForBadge } from './browser.js';
import { startPoolFixture, stopFixture, skip, until } from './daemon.js';

let daemon, browser, folder;

before(async () => {
  ({ daemon, browser, folder } = await startPoolFixture());
});
afterEach(async () => {
  for (const name of skip ? [] : await names()) await daemon.command('snapshot', 'delete', 'web01', name, '--yes');
});
after(() => stopFixture({ daemon, browser, folder }));

const VIEW = '#/volumes/web01/snapshots';

const open = async (t, view = VIEW, options = {}) => {
  const page = await openPage({ daemon, browser, t }, view, options);
  await waitForBadge(page, 'live');
  return page;
};
const text = async (locator) => (await locator.innerText()).replaceAll(/\s+/g, ' ');
const waitForText = (locator, part) => until(part, async () => (await text(locator)).includes(part));
const names = async () => (await daemon.json('volumes/web01/snapshots')).snapshots.map(({ name }) => name);
const first = async () => (await daemon.json('volumes/web01/snapshots')).snapshots[0];
const create = (name) => daemon.command('snapshot', 'create', 'web01', name);
const bytesText = (bytes) => `${bytes >> 20} MiB`;
const dialog = (page, title) => page.getByRole('dialog', { name: title });

test('a snapshot is created after a login, and invalid names are refused', { skip }, async (t) => {
  const page = await open(t);
  const section = page.locator('[data-snapshots]');
  await waitForText(section, 'No snapshots.');
  const name = section.getByLabel('New snapshot');
  const button = section.getByRole('button', { name: 'Create' });
  assert.ok(await button.isDisabled(), 'nothing was typed');
  for (const invalid of ['.hidden', 'two words', 'a/b']) {
    await name.fill(invalid);
    await waitForText(section, `“${invalid}” cannot be a name`);
    assert.ok(await button.isDisabled(), invalid);
  }
  await name.fill('monday');
  await button.click();
  await dialog(page, 'Log in').waitFor();
  assert.deepEqual(await names(), []);
  await logIn(page, daemon, 'snapshots', 'administer');
  await waitForText(section, 'Create snapshot: done.');
  assert.deepEqual(await names(), ['monday']);
  const row = page.locator('[data-snapshot=monday]');
  const { created_unix_seconds: created, allocated_bytes: allocated } = await first();
  const shownTime = await page.evaluate((seconds) => new Date(seconds * 1e3).toLocaleString(), created);
  await waitForText(row, shownTime.replaceAll(/\s+/g, ' '));
  // All slices are shared with the volume: a deletion frees nothing.
  const cells = await row.locator('td.number').allInnerTexts();
  assert.deepEqual(cells, ['256 MiB', bytesText(allocated), '0 B']);
  await name.fill('monday');
  await waitForText(section, 'The volume has a snapshot “monday” already.');
  assert.ok(await button.isDisabled(), 'the name is taken');
  // A snapshot by command appears.
  await create('tuesday');
  await page.waitForSelector('[data-snapshots="2"] [data-snapshot=tuesday]');
  // The refusal is the only console error.
  assert.deepEqual(
    page.errors.map((error) => error.match(/\b4\d\d\b/)?.[0]),
    ['401'],
  );
});

test('a roll back is confirmed by name, and clients refuse it', { skip }, async (t) => {
  await create('before');
  await daemon.burst('web01', ['--rw=write', '--size=8m', '--bs=1m']);
  const page = await open(t);
  await page.getByRole('button', { name: 'Log in' }).click();
  await logIn(page, daemon, 'roller', 'administer');
  const own = async () => (await first()).own_bytes;
  await daemon.command('volume', 'flush', 'web01');
  assert.ok((await own()) > 0, 'the volume differs from the snapshot');
  const load = [...daemon.fio('web01', 120), '--rw=randread', '--size=1m', '--rate_iops=10'];
  const client = spawn('fio', load, { stdio: 'ignore' });
  t.after(() => client.kill('SIGKILL'));
  await until('the client', async () => (await daemon.json('volumes/web01')).reads > 0);
  await page.getByRole('button', { name: 'Roll back to before' }).click();
  const rollBack = dialog(page, 'Roll back to before');
  await waitForText(rollBack, 'All data written to web01 since');
  const button = rollBack.getByRole('button', { name: 'Roll back', exact: true });
  await rollBack.getByLabel('to confirm').fill('before');
  assert.ok(await button.isDisabled(), 'the name of the volume confirms it');
  await rollBack.getByLabel('to confirm').fill('web01');
  await button.click();
  await rollBack.getByRole('alert').filter({ hasText: 'volume web01 has clients' }).waitFor();
  assert.ok((await own()) > 0, 'the volume was rolled back');
  await rollBack.getByLabel('Disconnect the clients').check();
  await button.click();
  await waitForText(rollBack, 'Roll back: done.');
  assert.equal(await own(), 0);
  await rollBack.getByRole('button', { name: 'Close' }).click();
  await page.waitForSelector('[data-snapshots="1"] [data-snapshot=before]');
  assert.deepEqual(
    page.errors.map((error) => error.match(/\b4\d\d\b/)?.[0]),
    ['409'],
  );
});

test('a snapshot is cloned and deleted, and a failure is shown', { skip }, async (t) => {
  await create('golden');
  const page = await open(t);
  await page.getByRole('button', { name: 'Log in' }).click();
  await logIn(page, daemon, 'cloner', 'administer');
  await page.getByRole('button', { name: 'Clone golden' }).click();
  const clone = dialog(page, 'Clone snapshot golden');
  const cloneButton = clone.getByRole('button', { name: 'Clone', exact: true });
  const newName = clone.getByLabel('Name of the new volume');
  await newName.fill('a b');
  await waitForText(clone, '“a b” cannot be a name');
  assert.ok(await cloneButton.isDisabled(), 'the name is invalid');
  await newName.fill('web01');
  await cloneButton.click();
  await clone.getByRole('alert').filter({ hasText: 'a volume named "web01" already exists' }).waitFor();
  await newName.fill('web02');
  await cloneButton.click();
  await waitForText(clone, 'To serve web02, add a volume of this name with the backing pool://tank.');
  const volumes = (await daemon.json('pools/tank')).volumes.map(({ name }) => name);
  assert.ok(volumes.includes('web02'), volumes.join());
  await clone.getByRole('button', { name: 'Close' }).click();
  await page.getByRole('button', { name: 'Delete golden' }).click();
  const deletion = dialog(page, 'Delete snapshot golden');
  const deleteButton = deletion.getByRole('button', { name: 'Delete snapshot', exact: true });
  assert.ok(await deleteButton.isDisabled(), 'it is not confirmed');
  await deletion.getByLabel('to confirm').fill('golden');
  await deleteButton.click();
  await deletion.waitFor({ state: 'hidden' });
  await waitForText(page.locator('[data-snapshots]'), 'No snapshots.');
  assert.deepEqual(await names(), []);
});

test('a reader sees the list without buttons', { skip }, async (t) => {
  await create('kept');
  const page = await open(t);
  const section = page.locator('[data-snapshots]');
  await section.getByRole('button', { name: 'Delete kept' }).waitFor();
  await page.getByRole('button', { name: 'Log in' }).click();
  await logIn(page, daemon, 'viewer', 'read');
  await until('no button', async () => (await section.getByRole('button').count()) === 0);
  await waitForText(page.locator('[data-snapshot=kept]'), bytesText((await first()).allocated_bytes));
  assert.equal(await section.getByRole('textbox').count(), 0);
});

test('volumes without a pool have no such section', { skip }, async (t) => {
  const page = await open(t, '#/volumes/mail/snapshots');
  const sections = page.getByRole('navigation', { name: 'Sections of mail' });
  await sections.getByRole('link', { name: 'Controls' }).waitFor();
  await waitForText(page.locator('[data-section=snapshots]'), 'Section not found.');
  assert.equal(await sections.getByRole('link', { name: 'Snapshots' }).count(), 0);
  await page.goto(`${daemon.url}#/volumes/web01`);
  await page.getByRole('navigation', { name: 'Sections of web01' }).getByRole('link', { name: 'Snapshots' }).click();
  await waitForText(page.locator('[data-snapshots]'), 'No snapshots.');
  assert.deepEqual(page.errors, []);
});

test('the section passes axe and fits 390 pixels, in light and dark', { skip }, async (t) => {
  await create('wide-name-of-a-snapshot-2026-11-29');
  for (const colorScheme of ['light', 'dark']) {
    const page = await open(t, VIEW, { colorScheme, viewport: { width: 390, height: 800 } });
    await page.waitForSelector('[data-snapshots="1"]');
    assert.deepEqual(await axeFindings(page), [], colorScheme);
    for (const name of ['Roll back to', 'Clone', 'Delete']) {
      await page.getByRole('button', { name: new RegExp(`^${name} wide`) }).click();
      const shown = page.getByRole('dialog', { name: /wide-name/ });
      await shown.waitFor();
      assert.deepEqual(await axeFindings(page, 'dialog[open]'), [], `${name}, ${colorScheme}`);
      await page.keyboard.press('Escape');
      await shown.waitFor({ state: 'hidden' });
    }
    const overflow = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
    assert.ok(overflow <= 0, `the page scrolls by ${overflow} pixels`);
  }
});
