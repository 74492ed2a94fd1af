// The iSCSI target's view, in Chromium with an initiator that logs in.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { after, before, test } from 'node:test';
import { axeFindings, openPage, waitForBadge } from './browser.js';
import { startFixture, stopFixture, skip, until } from './daemon.js';

let daemon, browser;

before(async () => ({ daemon, browser } = await startFixture()));
after(() => stopFixture({ daemon, browser }));

test('a session is shown while it lasts, and each volume with its LUN', { skip }, async (t) => {
  const page = await openPage({ daemon, browser, t }, '#/initiators');
  await waitForBadge(page, 'live');
  const { target, portals } = (await daemon.json('status')).iscsi;
  assert.match(await page.locator('main').innerText(), /No sessions/);
  const { unit } = await daemon.json('volumes/mail');
  const load = spawn('iscsi-perf', ['-t', '60', `iscsi://${portals[0]}/${target}/${unit.lun}`], { stdio: 'ignore' });
  t.after(() => load.kill('SIGKILL'));
  const row = page.locator('tr[data-session]');
  await row.waitFor();
  const commands = () => row.locator('td').nth(3).innerText();
  const before = await commands();
  await until('more commands', async () => (await commands()) !== before);
  const reported = (await daemon.json('status')).iscsi.sessions;
  assert.ok((await row.innerText()).includes(reported[0].initiator) && reported.length === 1);
  assert.deepEqual(await axeFindings(page), []);
  load.kill('SIGKILL');
  await until('no session', async () => (await row.count()) === 0);
  await page.goto(`${daemon.url}#/volumes/mail`);
  await page.locator('.facts .tag', { hasText: `LUN ${unit.lun}` }).waitFor();
  assert.deepEqual(page.errors, []);
});
