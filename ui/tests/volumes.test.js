// Adding, resizing and removing volumes, in Chromium on a daemon.

import assert from 'node:assert/strict';
import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { axeFindings, logIn, openPage, waitForBadge } from './browser.js';
import { startFixture, stopFixture, skip, until } from './daemon.js';

const MIB = 1 << 20;

let daemon, browser;

before(async () => ({ daemon, browser } = await startFixture(1)));
after(() => stopFixture({ daemon, browser }));

const open = (t, view, options) => openPage({ daemon, browser, t }, view, options);
const text = async (locator) => (await locator.innerText()).replaceAll(/\s+/g, ' ');
const waitForText = (locator, part) => until(part, async () => (await text(locator)).includes(part));
const names = async () => (await daemon.json('volumes')).volumes.map(({ name }) => name);
const size = async (name) => (await daemon.json(`volumes/${name}`)).size_bytes;
const codes = (page) => page.errors.map((error) => error.match(/\b4\d\d\b/)?.[0]);

test('a volume is added, resized and removed after its effects are shown', { skip }, async (t) => {
  const page = await open(t, '#/volumes');
  await waitForBadge(page, 'live');
  await page.getByRole('button', { name: 'Add volume' }).click();
  const dialog = page.getByRole('dialog', { name: 'Add volume' });
  const add = dialog.getByRole('button', { name: 'Add', exact: true });
  assert.ok(await add.isDisabled(), 'nothing was typed');
  const path = join(daemon.folder, 'web01.img');
  await dialog.getByLabel('Name').fill('web01');
  await dialog.getByLabel('Backing').fill(path);
  await dialog.getByLabel('Size').fill('lots');
  await waitForText(dialog, '“lots” is not a valid size.');
  assert.ok(await add.isDisabled(), 'the size is invalid');
  await dialog.getByLabel('Size').fill('16 MiB');
  await dialog.getByLabel('Write policy').selectOption('write-through');
  for (const part of [
    `${path} is opened and served as NBD export web01 and as an iSCSI LUN`,
    'A missing file is created with 16 MiB',
    'Writes are acknowledged by the array',
    'stays across restarts',
  ]) {
    await waitForText(dialog, part);
  }
  await add.click();
  await page.getByRole('dialog', { name: 'Log in' }).waitFor();
  assert.ok(!(await names()).includes('web01'));
  await logIn(page, daemon, 'adder', 'administer');
  // The page of the new volume opens.
  await page.waitForSelector('h1:text-is("web01")');
  assert.equal(await size('web01'), 16 * MIB);
  assert.equal((await daemon.json('volumes/web01')).policy, 'write-through');

  await page.goto(`${daemon.url}#/volumes/web01/controls`);
  const resize = page.locator('[data-resize]');
  const apply = resize.getByRole('button', { name: 'Resize' });
  await resize.getByLabel('New size').fill('16 MiB');
  await waitForText(resize, 'The volume has this size already.');
  await resize.getByLabel('New size').fill('24 MiB');
  await waitForText(resize, 'Grows the volume by 8 MiB');
  await apply.click();
  await waitForText(resize, 'Resize: done.');
  assert.equal(await size('web01'), 24 * MIB);
  // A smaller size requires typing the name.
  await resize.getByLabel('New size').fill('8 MiB');
  await waitForText(resize, 'Cuts off the last 16 MiB: data past 8 MiB is lost');
  assert.ok(await apply.isDisabled());
  await resize.getByLabel('to confirm').fill('web01');
  await apply.click();
  await until('the smaller size', async () => (await size('web01')) === 8 * MIB);
  await waitForText(resize, 'Current: 8 MiB');

  const removal = page.locator('[data-removal]');
  const remove = removal.getByRole('button', { name: 'Remove volume' });
  for (const part of ['Clients of the volume are disconnected', 'Dirty data (0 B) is destaged', 'stays removed']) {
    await waitForText(removal, part);
  }
  await removal.getByLabel('to confirm').fill('web');
  assert.ok(await remove.isDisabled());
  await removal.getByLabel('to confirm').fill('web01');
  await remove.click();
  await page.waitForSelector('h1:text-is("Volumes")');
  assert.ok(!(await names()).includes('web01'));
  assert.equal((await stat(path)).size, 8 * MIB, 'the backing is gone');
  assert.deepEqual(codes(page), ['401'], String(page.errors));
});

test('a refused addition shows the reason and keeps the form', { skip }, async (t) => {
  const page = await open(t, '#/volumes');
  await waitForBadge(page, 'live');
  await page.getByRole('button', { name: 'Log in' }).click();
  await logIn(page, daemon, 'refused', 'administer');
  await page.getByRole('button', { name: 'Add volume' }).click();
  const dialog = page.getByRole('dialog', { name: 'Add volume' });
  await dialog.getByLabel('Name').fill('mail');
  await dialog.getByLabel('Backing').fill('/dev/null');
  await dialog.getByRole('button', { name: 'Add', exact: true }).click();
  await dialog.getByRole('alert').getByText('a volume named "mail" already exists').waitFor();
  assert.equal(await dialog.getByLabel('Name').inputValue(), 'mail');
  await page.keyboard.press('Escape');
  await until('no dialog', async () => (await dialog.count()) === 0);
  assert.deepEqual(codes(page), ['409']);
});

test('the add dialog passes axe and fits 390 pixels, in light and dark', { skip }, async (t) => {
  for (const colorScheme of ['light', 'dark']) {
    const page = await open(t, '#/volumes', { colorScheme, viewport: { width: 390, height: 800 } });
    await waitForBadge(page, 'live');
    await page.getByRole('button', { name: 'Add volume' }).click();
    const dialog = page.getByRole('dialog', { name: 'Add volume' });
    await dialog.waitFor();
    assert.deepEqual(await axeFindings(page), [], colorScheme);
    const { x, width } = await dialog.boundingBox();
    assert.ok(x >= 0 && x + width <= 390, `from ${x}, ${width} wide`);
    const inner = await dialog.evaluate((element) => element.scrollWidth - element.clientWidth);
    assert.ok(inner <= 0, `the dialog scrolls by ${inner} pixels`);
  }
});
