// Rules of names, without a browser or a daemon.

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { test } from 'node:test';
import ts from 'typescript';

const source = await readFile(new URL('../src/lib/names.ts', import.meta.url), 'utf8');
const { outputText } = ts.transpileModule(source, { compilerOptions: { module: 'esnext', target: 'es2023' } });
const { nameProblem } = await import(`data:text/javascript,${encodeURIComponent(outputText)}`);

test('names that the daemon takes have no problem', () => {
  for (const name of ['a', 'web01', 'before-update', '2026-11-29T08:00', '-', '_', 'a.b@c+d', 'x'.repeat(255)]) {
    assert.equal(nameProblem(name), '', name);
  }
});

test('names that the daemon refuses have a problem', () => {
  for (const name of ['', '.hidden', 'two words', 'a/b', 'größe', 'a\n', 'a,b']) {
    assert.match(nameProblem(name), /cannot be a name/, name);
  }
  assert.match(nameProblem('x'.repeat(256)), /longer than 255/);
});
