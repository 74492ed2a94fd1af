// The buttons of alerts, in Chromium on a daemon with a mail server.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { badge, axeFindings, logIn, openPage } from './browser.js';
import { begin, end, skip, until } from './daemon.js';
import { mailServer } from './smtp.js';

let daemon, browser, mail;

before(async () => {
  mail = await mailServer();
  const tables =
    `[alerts]\nmail_server = "127.0.0.1:${mail.port}"\nmail_tls = "none"\nmail_severity = "info"\n` +
    `mail_from = "hotset@example.com"\nmail_to = ["admin@example.com"]\n`;
  ({ daemon, browser } = await begin(0, tables));
});
after(async () => {
  await end({ daemon, browser });
  mail.close();
});

const open = (t, view, options) => openPage({ daemon, browser, t }, view, options);
const text = async (locator) => (await locator.innerText()).replaceAll(/\s+/g, ' ');

/** Opens the list of alerts. */
async function openHealth(page) {
  await badge(page, 'live');
  await page.locator('header [data-health]').click();
  const dialog = page.getByRole('dialog', { name: 'Health' });
  await dialog.waitFor();
  return dialog;
}

test('the test button shows what each channel answers', { skip }, async (t) => {
  const page = await open(t, '#/overview');
  const dialog = await openHealth(page);
  const button = dialog.getByRole('button', { name: 'Test alert channels' });
  await button.click();
  await logIn(page, daemon, 'tester', 'administer');
  const result = dialog.locator('[data-channel=mail]');
  await result.waitFor();
  assert.match(await text(result), /^Mail to admin@example.com through 127.0.0.1:\d+: accepted$/);
  assert.ok(mail.mails.some((content) => content.includes('] TEST: ')));
  mail.refusal = '550 5.7.1 sender is unknown here';
  await button.click();
  await until('the refusal', async () => (await text(result)).includes('failed: it answered 550 5.7.1 sender is'));
  mail.refusal = null;
  assert.deepEqual(await axeFindings(page, 'dialog'), []);
});
