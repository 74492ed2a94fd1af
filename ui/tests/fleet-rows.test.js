// Rows of volumes from the reports of several hosts, without a browser or a daemon.

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { test } from 'node:test';
import ts from 'typescript';
import { hosts } from './fleet-hosts.js';

const source = await readFile(new URL('../src/lib/fleet.ts', import.meta.url), 'utf8');
const { outputText } = ts.transpileModule(source, { compilerOptions: { module: 'esnext', target: 'es2023' } });
const { canMove, canTakeOver, fleetRows, isSingleHost, moveResult, moveTargets, versions, volumeCounts } = await import(
  `data:text/javascript,${encodeURIComponent(outputText)}`
);

const rowsByName = (reports) => Object.fromEntries(fleetRows(reports).map((row) => [row.name, row]));
const report = (host, image, state, fleet) => ({
  host,
  address: `${host}:7401`,
  version: '0.1.0',
  volumes: [{ volume: 'web', image, state, policy: 'write-back', fleet: { host, requested_policy: 'none', ...fleet } }],
});

test('hosts with different users of the cluster share a row', () => {
  const rows = fleetRows(hosts());
  assert.deepEqual(
    rows.map(({ name, image, owner, ownership }) => [name, image, owner, ownership]),
    [
      ['backup', 'rbd:vms/backup', 'beta', 1],
      ['db01', 'rbd:vms/db01', 'gamma', 12],
      ['mail', 'rbd:vms/mail', 'alpha', 2],
      ['web01', 'rbd:vms/web01', 'alpha', 4],
      ['web02', 'rbd:vms/web02', 'beta', 7],
    ],
  );
  assert.equal(rows[4].ownerAlias, 'www2');
});

test('images of two clusters of one host have rows of their own', () => {
  const [alpha] = hosts();
  const [web] = alpha.volumes;
  alpha.volumes = [web, { ...web, volume: 'other', image: 'rbd:vms/web01?ceph_conf=/etc/ceph/b.conf' }];
  assert.deepEqual(
    fleetRows([alpha]).map(({ name }) => name),
    ['other', 'web01'],
  );
});

test('a volume moves only if this host can reach its owner', () => {
  const { backup, db01, mail, web01, web02 } = rowsByName(hosts());
  assert.ok(canMove(web01) && canMove(web02));
  assert.ok(!canMove(backup), 'this host does not have it');
  assert.ok(!canMove(db01), 'its owner does not answer');
  assert.ok(!canMove(mail), 'no host serves it');
  assert.deepEqual(moveTargets(web01), ['beta']);
  assert.deepEqual(moveTargets(web02), ['alpha']);
});

test('a volume is taken over only where it is on standby', () => {
  const { backup, db01, mail, web01, web02 } = rowsByName(hosts());
  assert.deepEqual([backup, db01, mail, web01, web02].map(canTakeOver), [false, true, true, false, true]);
});

test('the newest ownership decides, and an older owner is a former one', () => {
  const lost = report('alpha', 'rbd:vms/web', 'active', { owner: 'alpha', is_owner: true, ownership: 3 });
  const standby = report('beta', 'rbd:vms/web', 'standby', { owner: 'gamma', is_owner: false, ownership: 4 });
  const [row] = fleetRows([lost, standby]);
  assert.deepEqual([row.owner, row.served, canMove(row)], ['gamma', null, false]);
  assert.deepEqual(
    row.others.map(({ host, state }) => [host, state]),
    [
      ['alpha', 'former owner'],
      ['beta', 'standby'],
    ],
  );
});

test('the owner knows of a release before hosts on standby do', () => {
  const standby = report('alpha', 'rbd:vms/web', 'standby', { owner: 'beta', is_owner: false, ownership: 3 });
  const released = report('beta', 'rbd:vms/web', 'standby', { owner: 'beta', ownership: 3, released_to: 'any' });
  assert.equal(fleetRows([standby, released])[0].releasedTo, 'any');
});

test('undestaged data is that of the owner, or that for which a host is refused', () => {
  const { db01, mail, web01 } = rowsByName(hosts());
  assert.deepEqual(web01.undestaged, { host: 'alpha', data: null });
  assert.deepEqual(db01.undestaged, { host: 'gamma', data: '5f2c61d09a7be413' });
  assert.equal(mail.undestaged, null);
  // A host on standby sees the end of the destage later than the owner.
  const owner = report('alpha', 'rbd:vms/web', 'active', { owner: 'alpha', is_owner: true, ownership: 3 });
  const standby = report('beta', 'rbd:vms/web', 'standby', { owner: 'alpha', ownership: 3, undestaged_host: 'alpha' });
  assert.equal(fleetRows([owner, standby])[0].undestaged, null);
});

test('a silent host has no version, and mixed versions name their hosts', () => {
  const mixed = [
    { version: '0.1.0', hosts: ['alpha'] },
    { version: '0.2.0', hosts: ['beta'] },
  ];
  assert.deepEqual(versions(hosts()), mixed);
  const same = hosts().map((host) => ({ ...host, version: host.error ? '' : '0.1.0' }));
  assert.equal(versions(same).length, 1);
});

test('volumes of a host are owned, on standby or not served', () => {
  const [alpha, beta, gamma] = hosts();
  assert.deepEqual(volumeCounts(alpha), { owned: 1, standby: 3, notServed: 0 });
  assert.deepEqual(volumeCounts(beta), { owned: 2, standby: 1, notServed: 1 });
  assert.deepEqual(volumeCounts({ host: gamma.host }), { owned: 0, standby: 0, notServed: 0 });
});

test('a single host has neither a link nor volumes on images', () => {
  const [alpha] = hosts();
  assert.ok(isSingleHost([{ host: 'alpha', address: '' }]));
  assert.ok(!isSingleHost([{ ...alpha, address: '' }]), 'it has volumes');
  assert.ok(!isSingleHost([{ ...alpha, volumes: [] }]), 'it has a link');
});

test('the result of a move names only what this host knows', () => {
  assert.equal(moveResult({ fleet: { owner: 'beta' } }, 'beta'), 'Host beta serves the volume.');
  assert.equal(moveResult({ fleet: { owner: 'alpha' } }, 'beta'), '');
  assert.match(
    moveResult({ fleet: { owner: 'alpha', released_to: 'beta' } }, 'beta'),
    /released for host beta, and no/,
  );
  assert.match(moveResult({ fleet: { owner: 'alpha', released_to: 'any' } }, ''), /for any host/);
});
