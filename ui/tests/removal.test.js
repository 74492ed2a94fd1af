// The reason for which the removal of a flash device drops clean pages, without a browser or a daemon.

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { test } from 'node:test';
import ts from 'typescript';

const source = await readFile(new URL('../src/lib/removal.ts', import.meta.url), 'utf8');
const { outputText } = ts.transpileModule(source, { compilerOptions: { module: 'esnext', target: 'es2023' } });
const { pageLoss } = await import(`data:text/javascript,${encodeURIComponent(outputText)}`);

const device = (pages_lost_if_removed, log_successor) => ({ pages_lost_if_removed, log_successor });

test('a device that takes over the log is the reason for the dropped pages', () => {
  const flash = { pages: { loaded: true } };
  const takeOver = { reason: 'log-take-over', pages: 8, successor: 2 };
  assert.deepEqual(pageLoss(flash, device(8, 2)), takeOver);
  assert.deepEqual(pageLoss({ pages: { loaded: false } }, device(0, 2)), { ...takeOver, pages: null });
  assert.deepEqual(pageLoss(flash, device(3, null)), { reason: 'no-room', pages: 3 });
  assert.deepEqual(pageLoss(flash, device(0, null)), { reason: 'none' });
});
