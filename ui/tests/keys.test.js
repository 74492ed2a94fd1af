// Quick open and keyboard help, in Chromium on a daemon.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { axeFindings, openPage, waitForBadge } from './browser.js';
import { startFixture, stopFixture, skip, until } from './daemon.js';

let daemon, browser;

before(async () => ({ daemon, browser } = await startFixture(20)));
after(() => stopFixture({ daemon, browser }));

const open = (t, view, options) => openPage({ daemon, browser, t }, view, options);
const viewOf = (page) => page.locator('main').getAttribute('data-view');
const waitForView = (page, view) => until(view, async () => (await viewOf(page)) === view);
/** First word of the focused element. */
const focusedWord = (page) => page.evaluate(() => document.activeElement?.textContent?.trim().split(/\s+/)[0] ?? '');

test('Ctrl+K opens every view, volume, datastore and setting', { skip }, async (t) => {
  const page = await open(t, '#/?range=1h');
  await waitForBadge(page, 'live');
  const dialog = page.getByRole('dialog', { name: 'Go to' });
  const search = async (text) => {
    await page.keyboard.press('Control+k');
    await dialog.waitFor();
    await page.keyboard.type(text);
  };
  for (const link of await page.locator('nav a').all()) {
    const label = (await link.innerText()).trim();
    await search(label.slice(0, 4).toLowerCase());
    await until(`${label} first`, async () => (await dialog.locator('li').first().innerText()).startsWith(label));
    await page.keyboard.press('Enter');
    await waitForView(page, label.toLowerCase());
    assert.equal(await dialog.count(), 0, 'the dialog stays open');
    // The link keeps the time range.
    assert.ok(page.url().endsWith('?range=1h'), page.url());
  }
  await search('0017');
  await until('the volume', async () => /volume-0017/.test(await dialog.locator('li').first().innerText()));
  await page.keyboard.press('Enter');
  await page.waitForSelector('h1:text-is("volume-0017")');
  await search('shelf');
  await page.keyboard.press('Enter');
  await waitForView(page, 'volumes');
  await until('its volumes', async () => (await page.locator('tbody tr').count()) === 2);
  // Also from a text field; arrow keys select a result.
  await page.getByRole('searchbox').focus();
  await search('memory');
  await until('settings', async () => (await dialog.locator('li').count()) >= 3);
  await page.keyboard.press('ArrowDown');
  const [first, second] = await dialog
    .locator('li a')
    .evaluateAll((links) => links.map((link) => link.textContent.split(' ')[0]));
  assert.equal(await focusedWord(page), first);
  await page.keyboard.press('ArrowDown');
  assert.equal(await focusedWord(page), second);
  await page.keyboard.press('Enter');
  await waitForView(page, 'settings');
  await until('only this key', async () => (await page.locator(`[data-setting="${second}"]`).count()) === 1);
  await search('nonsense');
  await dialog.getByText('No match for “nonsense”.').waitFor();
  await page.keyboard.press('Escape');
  await until('no dialog', async () => (await dialog.count()) === 0);
  assert.deepEqual(page.errors, []);
});

test('? opens keyboard help except in text fields', { skip }, async (t) => {
  const page = await open(t, '#/settings');
  await page.waitForSelector('[data-setting]');
  const help = page.getByRole('dialog', { name: 'Keyboard shortcuts' });
  await page.keyboard.press('/');
  await page.keyboard.type('a?/');
  assert.equal(await page.getByRole('searchbox').inputValue(), 'a?/');
  assert.equal(await help.count(), 0);
  await page.getByRole('searchbox').fill('');
  await page.getByRole('heading', { name: 'Settings' }).click();
  await page.keyboard.press('?');
  await help.waitFor();
  const text = (await help.innerText()).replaceAll(/\s+/g, ' ');
  for (const part of ['open a view, volume', 'Charts', 'focus the filter', 'Trial size']) {
    assert.ok(text.includes(part), `${part} is not in: ${text}`);
  }
  // One dialog replaces the other.
  await page.keyboard.press('Control+k');
  await page.getByRole('dialog', { name: 'Go to' }).waitFor();
  assert.equal(await help.count(), 0);
  // Also in quick succession.
  await Promise.all(['Escape', '?', 'Escape', '?'].map((key) => page.keyboard.press(key)));
  await help.waitFor();
  await page.keyboard.press('Escape');
  await until('no help', async () => (await help.count()) === 0);
  // By mouse.
  await page.getByRole('button', { name: 'Keyboard shortcuts' }).click();
  await help.waitFor();
  await help.getByRole('button', { name: 'Close' }).click();
  await until('no help', async () => (await help.count()) === 0);
  await page.getByRole('button', { name: 'Go to…' }).click();
  await page.getByRole('dialog', { name: 'Go to' }).waitFor();
  assert.deepEqual(page.errors, []);
});

test('both dialogs pass axe and fit into 390 pixels, in light and dark', { skip }, async (t) => {
  for (const colorScheme of ['light', 'dark']) {
    const page = await open(t, '#/events', { colorScheme, viewport: { width: 390, height: 800 } });
    await waitForBadge(page, 'live');
    for (const [key, text] of [
      ['Control+k', 'vol'],
      ['?', ''],
    ]) {
      await page.keyboard.press(key);
      await page.getByRole('dialog').waitFor();
      await page.keyboard.type(text);
      assert.deepEqual(await axeFindings(page), [], `${key} ${colorScheme}`);
      const { x, width } = await page.getByRole('dialog').boundingBox();
      assert.ok(x >= 0 && x + width <= 390, `${key}: from ${x}, ${width} wide`);
      await page.keyboard.press('Escape');
      await until('no dialog', async () => (await page.getByRole('dialog').count()) === 0);
    }
  }
});

test('quick open works without the list of volumes', { skip }, async (t) => {
  const page = await open(t, '#/events');
  // Chromium may stall the first request after a route is installed: reload, so that it is another one.
  await page.route('**/api/v1/volumes?*', (route) => route.abort());
  await page.reload();
  await waitForBadge(page, 'live');
  await page.keyboard.press('Control+k');
  const dialog = page.getByRole('dialog', { name: 'Go to' });
  await dialog.getByText('The list of volumes is unavailable.').waitFor();
  await page.keyboard.type('flash');
  await page.keyboard.press('Enter');
  await waitForView(page, 'flash');
});
