// The buttons of alerts, in Chromium on a daemon with a mail server.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { axeFindings, logIn, openPage, recordHealth, replaceStream, waitForBadge } from './browser.js';
import { startFixture, stopFixture, skip, until } from './daemon.js';
import { mailServer } from './smtp.js';

let daemon, browser, mail;

before(async () => {
  mail = await mailServer();
  const tables =
    `[alerts]\nmail_server = "127.0.0.1:${mail.port}"\nmail_tls = "none"\nmail_severity = "info"\n` +
    `mail_from = "hotset@example.com"\nmail_to = ["admin@example.com"]\n`;
  ({ daemon, browser } = await startFixture(0, tables));
});
after(async () => {
  await stopFixture({ daemon, browser });
  mail.close();
});

const open = (t, view, options) => openPage({ daemon, browser, t }, view, options);
const text = async (locator) => (await locator.innerText()).replaceAll(/\s+/g, ' ');

/** Opens the list of alerts. */
async function openHealth(page) {
  await waitForBadge(page, 'live');
  await page.locator('header [data-health]').click();
  const dialog = page.getByRole('dialog', { name: 'Health' });
  await dialog.waitFor();
  return dialog;
}

test('the test button shows the answer of each channel', { skip }, async (t) => {
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

test('an alert is acknowledged and silenced, and the badge says so', { skip }, async (t) => {
  await daemon.command('volume', 'pause', 'mail');
  const page = await open(t, '#/volumes');
  const dialog = await openHealth(page);
  const alert = dialog.locator('[data-alert=cache-paused]');
  await alert.getByRole('button', { name: 'Acknowledge cache-paused:mail' }).click();
  await logIn(page, daemon, 'operator', 'operate');
  await alert.locator('[data-acknowledged]').waitFor();
  assert.match(await text(alert.locator('[data-acknowledged]')), /^Acknowledged by token operator from 127\.0\.0\.1, /);
  assert.equal(await alert.getByRole('button', { name: 'Acknowledge cache-paused:mail' }).count(), 0);
  await alert.getByRole('button', { name: 'Silence cache-paused:mail', exact: true }).click();
  await alert.getByLabel('For').selectOption('4 hours');
  await alert.getByLabel('Reason').fill('maintenance');
  await alert.getByRole('button', { name: 'Silence', exact: true }).click();
  await alert.locator('[data-silenced]').waitFor();
  assert.match(await text(alert.locator('[data-silenced]')), /^Silenced by token operator .* until .*: maintenance\.$/);
  const [reported] = await daemon.json('alerts');
  assert.equal(reported.silenced.reason, 'maintenance');
  assert.deepEqual(await axeFindings(page, 'dialog'), []);
  // The end of a silenced alert is not mailed.
  const sentCount = mail.mails.length;
  await daemon.command('volume', 'resume', 'mail');
  await dialog.getByText('No active alerts.').waitFor();
  assert.equal(mail.mails.length, sentCount);
  await daemon.command('volume', 'pause', 'mail');
  await alert.getByRole('button', { name: 'End silence of cache-paused:mail' }).click();
  await alert.locator('[data-silenced]').waitFor({ state: 'detached' });
  assert.equal(await alert.locator('[data-acknowledged]').count(), 0, 'an acknowledgement ends with its alert');
  await daemon.command('volume', 'resume', 'mail');
  await until('the mail about the end', () => mail.mails.at(-1)?.includes('] RESOLVED: cache-paused of mail'));
});

test('the badge counts a silenced critical alert and names the silence', { skip }, async (t) => {
  const page = await open(t, '#/events');
  await waitForBadge(page, 'live');
  const silenced = { id: 'no-copy', by: 'user root', until_unix_ms: Date.now() + 60_000, reason: null };
  const alert = {
    ...{ id: 'no-copy', kind: 'no-copy', subject: null, severity: 'critical', since_unix_ms: Date.now() },
    ...{ cause: 'A cause.', effect: 'An effect.', remedy: 'A remedy.', acknowledged: null, silenced },
  };
  const status = { ...(await daemon.json('status')), active_alerts: [alert] };
  const badgeTexts = await recordHealth(page);
  await replaceStream(page, { at_unix_ms: Date.now(), status, totals: {}, events: [], volumes: {} });
  await until('the badge', () =>
    badgeTexts.some((badgeText) => badgeText.includes('✖ Health: Critical, 1 alert (1 silenced)')),
  );
});
