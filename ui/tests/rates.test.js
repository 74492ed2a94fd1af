// Percentiles, and service and held time of latencies, without a browser or a daemon.

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { test } from 'node:test';
import ts from 'typescript';

/** Imports a module of the console that imports only types. */
async function load(name) {
  const source = await readFile(new URL(`../src/lib/${name}`, import.meta.url), 'utf8');
  const { outputText } = ts.transpileModule(source, { compilerOptions: { module: 'esnext', target: 'es2023' } });
  return import(`data:text/javascript,${encodeURIComponent(outputText)}`);
}
const { between, quantileOf } = await load('rates.ts');
const { latency } = await load('units.ts');

const counts = (...below) => ({ below: below.map(([us, count]) => ({ us, count })), all: below.at(-1)[1], sum_us: 0 });
const NO_REQUESTS = { below: [], all: 0, sum_us: 0 };

// The same histogram and figures as in the test of `percentile_us` of the daemon.
test('percentiles equal those of the daemon', () => {
  const histogram = counts([16, 50], [64, 50], [128, 99], [512, 99], [1024, 100]);
  assert.equal(quantileOf(NO_REQUESTS, histogram, 0.5), 16);
  assert.equal(quantileOf(NO_REQUESTS, histogram, 0.99), 128);
  assert.equal(quantileOf(NO_REQUESTS, histogram, 0.75), 64 + (64 * 25) / 49);
  assert.equal(quantileOf(NO_REQUESTS, histogram, 1), 1024);
  assert.equal(quantileOf(NO_REQUESTS, { ...histogram, all: 101 }, 1), 1024);
  assert.equal(quantileOf(histogram, histogram, 0.5), null);
});

test('a bucket that only one state lists counts in both', () => {
  const before = counts([16, 5], [32, 5], [64, 8]);
  const after = counts([16, 5], [32, 5], [64, 8], [256, 8], [512, 18]);
  assert.equal(quantileOf(before, after, 0.5), 384);
});

test('service and held time are reported only if a request was held', () => {
  const counters = (latency_counts) => ({
    source_bytes: { memory: 0, prefetched: 0, flash: 0, backing: 0 },
    latency_counts,
  });
  const idle = counters({ read: counts([16.384, 4]), write: counts([16.384, 0]) });
  const held = counters({
    read: counts([16.384, 4], [14_000, 4], [16_000, 14]),
    read_service: counts([16.384, 4], [80, 4], [100, 14]),
    read_held: counts([16.384, 4], [14_000, 4], [16_000, 14]),
    write: counts([16.384, 0]),
  });
  const rates = between(idle, held, 0, 1_000);
  assert.deepEqual([rates.readP99, rates.readParts], [16_000, { service: 100, held: 16_000 }]);
  assert.equal(rates.writeParts, null);
  assert.equal(between(held, held, 0, 1_000).readParts, null);
});

test('a latency outside the histogram is shown as a bound', () => {
  assert.deepEqual([16.384, 1, 17.4, 34_359_738.368, null].map(latency), [
    '< 16 µs',
    '< 16 µs',
    '17.4 µs',
    '> 34 s',
    '–',
  ]);
});
