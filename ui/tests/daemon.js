// Fixture of tests and screenshots: a daemon with a load, and a browser.

import { execFile, spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdtemp, rm, truncate, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { promisify } from 'node:util';
import { chromium } from 'playwright-core';
import { serveConsole } from './front.js';

const MIB = 1 << 20;
const run = promisify(execFile);

const BROWSER = process.env.HOTSET_CHROMIUM ?? '/usr/bin/chromium';
/** Reason to skip the tests, or false. */
export const skip = existsSync(BROWSER) ? false : `there is no ${BROWSER}: apt-get install chromium`;

/** Launches the browser. Chromium refuses its sandbox as root; only the daemon's page is loaded. */
export const launch = () =>
  chromium.launch({ executablePath: BROWSER, args: process.getuid?.() === 0 ? ['--no-sandbox'] : [] });

async function freePort() {
  const server = createServer();
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/** Repeats `check` until its result is truthy, and returns that. */
export async function until(description, check, timeoutMs = 20_000) {
  const deadline = Date.now() + timeoutMs;
  for (;;) {
    const result = await check();
    if (result) return result;
    if (Date.now() > deadline) throw new Error(`waited ${timeoutMs} ms for ${description}`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

/** Creates the empty devices of a pool of two tiers. */
export async function poolDevices(folder) {
  const paths = [];
  for (const [number, mib] of [128, 256, 256].entries()) {
    const path = join(folder, `disk-${number}`);
    await writeFile(path, '');
    await truncate(path, mib * MIB);
    paths.push(path);
  }
  return paths;
}

/** Configuration of the pool `tank` on these devices. */
export const poolTables = ([fast, ...slow]) =>
  `[[pool]]\nname = "tank"\nslice = "1 MiB"\n` +
  `[[pool.tier]]\nname = "ssd"\nclass = "ssd"\ndevices = ["${fast}"]\n` +
  `[[pool.tier]]\nname = "sas"\nclass = "10k"\ndevices = [${slow.map((path) => `"${path}"`).join(', ')}]\n`;

/** Starts a daemon with `idle` idle volumes and further `tables` of the configuration, and a browser. */
export async function startFixture(idle = 0, tables = '') {
  return skip ? {} : { daemon: await Daemon.start(idle, tables), browser: await launch() };
}

/** As `startFixture`, with the pool `tank` on files of a folder of their own. */
export async function startPoolFixture() {
  if (skip) return {};
  const folder = await mkdtemp(join(process.env.HOTSET_E2E_DIR ?? tmpdir(), 'hotset-pool-'));
  const fixture = await startFixture(0, poolTables(await poolDevices(folder)));
  await fixture.daemon.createPool();
  return { ...fixture, folder };
}

export async function stopFixture({ daemon, browser, folder }) {
  await browser?.close();
  await daemon?.stop();
  if (folder) await rm(folder, { recursive: true });
}

export class Daemon {
  /** Serves `idle` volumes besides the three with load. */
  static async start(idle = 0, tables = '') {
    const daemon = new Daemon();
    daemon.binary = process.env.HOTSET_BIN;
    if (!daemon.binary) throw new Error('HOTSET_BIN names no hotset to test');
    daemon.folder = await mkdtemp(join(process.env.HOTSET_E2E_DIR ?? tmpdir(), 'hotset-page-'));
    const listen = `127.0.0.1:${await freePort()}`;
    daemon.url = `http://${listen}/`;
    for (const device of ['flash-0', 'flash-1']) await daemon.createSparseFile(device, 1024);
    // Modelled arrays have realistic latency.
    const loadedVolumes = ['database', 'desktops', 'mail'].map(
      (name) =>
        `[[volume]]\nname = "${name}"\nbacking = "sim://raid5?disks=5&type=sas10k&size=2GiB"\n` +
        (name === 'mail' ? '' : 'datastore = "shelf"\n'),
    );
    const idleVolumes = [];
    for (let number = 0; number < idle; number++) {
      const name = `volume-${String(number).padStart(4, '0')}`;
      idleVolumes.push(
        `[[volume]]\nname = "${name}"\nbacking = "${await daemon.createSparseFile(`${name}.img`, 4)}"\n`,
      );
    }
    const pathOf = (name) => join(daemon.folder, name);
    // The daemon is killed at the end: persisted memory would stay.
    await writeFile(
      pathOf('hotset.toml'),
      `[state]\ndirectory = "${pathOf('state')}"\n[memory]\nsize = "256 MiB"\nkeep_in = "none"\n` +
        `[flash]\ndevices = ["${pathOf('flash-0')}", "${pathOf('flash-1')}"]\nendurance_dwpd = 1\n` +
        `[[datastore]]\nname = "shelf"\n` +
        `[control]\nsocket = "${pathOf('control.sock')}"\n[api]\nlisten = "${listen}"\n` +
        `[iscsi]\nlisten = ["127.0.0.1:${await freePort()}"]\ntarget = "iqn.2026-11.io.hotset:page"\n` +
        `[nbd]\nlisten = ["unix:${pathOf('nbd.sock')}"]\n${loadedVolumes.join('')}${idleVolumes.join('')}${tables}`,
    );
    try {
      await daemon.serve();
      if (process.env.HOTSET_PAGE) {
        const folder = resolve(process.env.HOTSET_PAGE);
        daemon.proxy = await serveConsole(folder, daemon.url);
        daemon.url = `http://127.0.0.1:${daemon.proxy.address().port}/`;
      }
    } catch (error) {
      await daemon.stop();
      throw error;
    }
    return daemon;
  }

  /** Creates a sparse file in the daemon's folder. Returns its path. */
  async createSparseFile(name, mib) {
    const path = join(this.folder, name);
    await writeFile(path, '');
    await truncate(path, mib * MIB);
    return path;
  }

  /** Starts the process and waits until it is ready. */
  async serve() {
    const stdio = ['ignore', 'ignore', process.env.HOTSET_E2E_KEEP ? 'inherit' : 'ignore'];
    this.child = spawn(this.binary, ['serve', '--config', join(this.folder, 'hotset.toml')], { stdio });
    await until(
      'the daemon',
      () =>
        fetch(`${this.url}readyz`).then(
          (response) => response.ok,
          () => false,
        ),
      60_000,
    );
  }

  async kill() {
    const exited = new Promise((resolve) => this.child.once('exit', resolve));
    this.child.kill('SIGKILL');
    await exited;
  }

  /** Common fio arguments. */
  fio(name, seconds) {
    return [
      '--name=load',
      // A single process ends at once without its daemon; several would retry until the runtime is over.
      '--thread',
      '--ioengine=nbd',
      `--uri=nbd+unix:///${name}?socket=${join(this.folder, 'nbd.sock')}`,
      '--bs=8k',
      '--iodepth=4',
      '--time_based',
      `--runtime=${seconds}`,
    ];
  }

  /** Creates the configured pool `tank`, which the daemon then opens, with a volume `web01` that is partly written. */
  async createPool() {
    await this.command('pool', 'create', 'tank', '--config', join(this.folder, 'hotset.toml'));
    await this.command('volume', 'add', 'web01', '--backing', 'pool://tank', '--size', '256MiB');
    await this.burst('web01', ['--rw=write', '--size=200m', '--bs=1m']);
    await this.command('volume', 'flush', 'web01');
  }

  /** Starts mixed load for this time, most of it in a hot tenth of each volume. */
  load(seconds) {
    this.loads = ['database', 'desktops'].map((name, index) => {
      const args = [
        ...this.fio(name, seconds),
        '--rw=randrw',
        '--rwmixread=80',
        '--size=256m',
        `--rate_iops=${index === 0 ? 400 : 150},${index === 0 ? 100 : 40}`,
        '--random_distribution=zipf:1.2',
      ];
      return spawn('fio', args, { stdio: 'ignore' });
    });
  }

  /** Runs one second of memory hits, or of the load that `fioArguments` describe. */
  async burst(name, fioArguments = ['--rw=randread', '--rate_iops=6000']) {
    await run('fio', [...this.fio(name, 1), '--size=1m', ...fioArguments]);
  }

  /** Runs the `hotset` command line on the daemon. Returns its output. */
  async command(...args) {
    const { stdout } = await run(this.binary, [...args, '--socket', join(this.folder, 'control.sock')]);
    return stdout.trim();
  }

  /** Answer of the API. */
  async json(path) {
    return (await fetch(`${this.url}api/v1/${path}`)).json();
  }

  async stop() {
    this.proxy?.close();
    this.proxy?.closeAllConnections();
    for (const load of this.loads ?? []) load.kill('SIGKILL');
    if (this.child.exitCode === null) await this.kill();
    if (!process.env.HOTSET_E2E_KEEP) await rm(this.folder, { recursive: true });
  }
}
