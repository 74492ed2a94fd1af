// Tokens under Settings, in Chromium on a daemon.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { axeFindings, logIn, openPage, waitForBadge } from './browser.js';
import { startFixture, stopFixture, skip, until } from './daemon.js';

let daemon, browser;

before(async () => ({ daemon, browser } = await startFixture()));
after(() => stopFixture({ daemon, browser }));

const user = (page) => page.locator('header [data-user]');
const section = (page) => page.locator('[data-tokens]');
const row = (page, name) => page.locator(`[data-token="${name}"]`);
const text = async (locator) => (await locator.innerText()).replaceAll(/\s+/g, ' ');

/** Opens the settings, logged in with a new token of this role. */
async function openAs(t, name, role, options) {
  const page = await openPage({ daemon, browser, t }, '#/settings', options);
  await waitForBadge(page, 'live');
  await user(page).getByRole('button', { name: 'Log in' }).click();
  await logIn(page, daemon, name, role);
  await page.waitForSelector('[data-setting]');
  return page;
}

/** Creates a token in the console. Returns its secret. */
async function create(page, name, role) {
  await section(page).getByRole('button', { name: 'Create token' }).click();
  const dialog = page.getByRole('dialog', { name: 'Create token' });
  const button = dialog.getByRole('button', { name: 'Create', exact: true });
  assert.ok(await button.isDisabled(), 'no name was typed');
  await dialog.getByLabel('Name').fill(name);
  await dialog.getByRole('radio', { name: new RegExp(`^${role}`) }).check();
  await button.click();
  await dialog.getByText('It is not shown again').waitFor();
  return dialog.getByLabel('Token', { exact: true }).inputValue();
}

const statusOf = async (secret, action) => {
  const headers = { Authorization: `Bearer ${secret}` };
  return (await fetch(`${daemon.url}api/v1/volumes/mail/${action}`, { method: 'POST', headers })).status;
};

test('a token is created, used, and refused after its revocation', { skip }, async (t) => {
  const page = await openAs(t, 'admin', 'administer');
  await page.context().grantPermissions(['clipboard-read', 'clipboard-write']);
  await section(page).waitFor();
  assert.match(await text(row(page, 'admin')), /admin \(your session\) administer .*\d/);
  const secret = await create(page, 'deploy', 'operate');
  assert.match(secret, /^hotset_[0-9a-f]{64}$/);
  const dialog = page.getByRole('dialog', { name: 'Create token' });
  await dialog.getByRole('button', { name: 'Copy' }).click();
  await dialog.getByText('Copied.').waitFor();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), secret);
  // A closed dialog has forgotten the secret.
  await page.keyboard.press('Escape');
  await row(page, 'deploy').waitFor();
  await section(page).getByRole('button', { name: 'Create token' }).click();
  await dialog.getByLabel('Name').waitFor();
  assert.ok(!(await page.content()).includes(secret));
  await page.keyboard.press('Escape');

  assert.equal(await statusOf(secret, 'pause'), 200);
  assert.equal(await statusOf(secret, 'resume'), 200);
  // The audit event names the token and its creator, without the secret.
  const { events } = await daemon.json('events?limit=100&kind=change');
  const audited = events.find((event) => event.text === 'create the token deploy (operate)');
  assert.match(audited.actor, /^token admin from /);
  assert.ok(!JSON.stringify(events).includes(secret.slice('hotset_'.length)));
  assert.equal((await fetch(`${daemon.url}api/v1/tokens`)).status, 401);

  await row(page, 'deploy').getByRole('button', { name: 'Revoke deploy' }).click();
  const revocation = page.getByRole('dialog', { name: 'Revoke token deploy' });
  const effects = await text(revocation);
  assert.match(effects, /Requests with deploy are refused from now on/);
  assert.match(effects, /Browser sessions that were started with it end/);
  assert.doesNotMatch(effects, /you are logged out|No other token/);
  await page.keyboard.press('Escape');
  assert.equal(await statusOf(secret, 'resume'), 200);
  await row(page, 'deploy').getByRole('button', { name: 'Revoke deploy' }).click();
  await revocation.getByRole('button', { name: 'Revoke token' }).click();
  await row(page, 'deploy').waitFor({ state: 'detached' });
  assert.equal(await statusOf(secret, 'pause'), 401);
  assert.deepEqual(page.errors, []);
});

test('a duplicate is refused with its reason; changes by command appear', { skip }, async (t) => {
  const page = await openAs(t, 'watcher', 'administer');
  await section(page).waitFor();
  await daemon.command('token', 'create', 'by-command', '--role', 'read');
  await row(page, 'by-command').waitFor();
  await section(page).getByRole('button', { name: 'Create token' }).click();
  const dialog = page.getByRole('dialog', { name: 'Create token' });
  await dialog.getByLabel('Name').fill('by-command');
  await dialog.getByRole('button', { name: 'Create', exact: true }).click();
  await dialog.getByRole('alert').getByText('a token "by-command" already exists').waitFor();
  await page.keyboard.press('Escape');
  await daemon.command('token', 'revoke', 'by-command');
  await row(page, 'by-command').waitFor({ state: 'detached' });
});

test('the revocation of the own token logs out', { skip }, async (t) => {
  const page = await openAs(t, 'own', 'administer');
  await section(page).waitFor();
  await row(page, 'own').getByRole('button', { name: 'Revoke own' }).click();
  const revocation = page.getByRole('dialog', { name: 'Revoke token own' });
  await revocation.getByText('you are logged out').waitFor();
  await revocation.getByRole('button', { name: 'Revoke token' }).click();
  await until('the log-out', () => user(page).getByRole('button', { name: 'Log in' }).count());
  assert.equal(await section(page).count(), 0);
  assert.equal(await page.getByRole('dialog').count(), 0);
  // The cookie of the ended session is worth nothing.
  assert.equal(await page.evaluate(async () => (await fetch('api/v1/tokens')).status), 401);
});

test('only administrators see the tokens', { skip }, async (t) => {
  const anonymous = await openPage({ daemon, browser, t }, '#/settings');
  await anonymous.waitForSelector('[data-setting]');
  assert.equal(await section(anonymous).count(), 0);
  for (const role of ['read', 'operate']) {
    const page = await openAs(t, `only-${role}`, role);
    await until('the role', async () => (await user(page).innerText()).includes(`(${role})`));
    assert.equal(await section(page).count(), 0, role);
    assert.equal(await page.evaluate(async () => (await fetch('api/v1/tokens')).status), 403, role);
  }
  // The page does not know the role of a link, so it asks the daemon.
  for (const [role, isShown] of [
    ['operate', false],
    ['administer', true],
  ]) {
    const page = await openPage({ daemon, browser, t });
    const link = new URL((await daemon.command('token', 'link', '--role', role)).match(/http\S+/)[0]);
    await page.goto(`${daemon.url}login${link.search}`);
    const answered = page.waitForResponse((response) => response.url().endsWith('/api/v1/tokens'));
    await page.goto(`${daemon.url}#/settings`);
    assert.equal((await answered).status(), isShown ? 200 : 403, role);
    await page.waitForSelector('[data-setting]');
    if (isShown) await section(page).waitFor();
    else assert.equal(await section(page).count(), 0);
  }
});

test('tokens and their dialogs pass axe and fit 390 pixels, light and dark', { skip }, async (t) => {
  for (const colorScheme of ['light', 'dark']) {
    const page = await openAs(t, `${colorScheme}-admin`, 'administer', {
      colorScheme,
      viewport: { width: 390, height: 800 },
    });
    await section(page).waitFor();
    assert.deepEqual(await axeFindings(page, '[data-tokens]'), [], colorScheme);
    const fits = async (state) => {
      assert.deepEqual(await axeFindings(page, 'dialog[open]'), [], `${colorScheme}, ${state}`);
      const { x, width } = await page.locator('dialog[open]').boundingBox();
      assert.ok(x >= 0 && x + width <= 390, `${state}: from ${x}, ${width} wide`);
      assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= 390, state);
    };
    await section(page).getByRole('button', { name: 'Create token' }).click();
    await fits('form');
    await page.keyboard.press('Escape');
    await create(page, `${colorScheme}-new`, 'read');
    await fits('created');
    await page.keyboard.press('Escape');
    await row(page, `${colorScheme}-new`).getByRole('button').click();
    await fits('revocation');
  }
});
