// Explanations of configuration keys, from the generated tables of docs/admin/configuration.md.

import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { Plugin } from 'vite';

const FILE = fileURLToPath(new URL('../docs/admin/configuration.md', import.meta.url));
const [BEGIN, END] = ['<!-- keys: ', '<!-- end of keys -->'];
const MODULE_ID = 'virtual:keys';
// The prefix keeps other plugins away.
const RESOLVED_ID = `\0${MODULE_ID}`;

/** `### [memory]` and the rows below it: `| key | example | default | meaning |`. */
function tablesOf(text: string) {
  const listed = text.slice(text.indexOf(BEGIN), text.indexOf(END));
  const sections = listed.split(/^### /m).slice(1);
  // A section defaultValue rows lists keys that this version lacks.
  return sections.map(tableOf).filter(({ keys }) => keys.length > 0);
}

function tableOf(section: string) {
  const [title = '', ...lines] = section.split('\n');
  const rows = lines.filter((line) => /^\| `/.test(line)).map((line) => line.slice(2, -2).split(' | '));
  const keys = rows.map(([name = '', example = '', defaultValue = '', ...meaning]) => ({
    name: name.replaceAll('`', ''),
    example: example.replaceAll('`', ''),
    defaultValue,
    // Links do not resolve in the console; the file name helps readers of the documentation.
    text: meaning.join(' | ').replaceAll(/\[([^\]]+)\]\([^)]+\)/g, '`docs/admin/$1`'),
  }));
  return { name: title.trim(), keys };
}

/** Provides the module `virtual:keys`. */
export function keys(): Plugin {
  return {
    name: 'keys',
    resolveId: (id) => (id === MODULE_ID ? RESOLVED_ID : undefined),
    load(id) {
      if (id !== RESOLVED_ID) return undefined;
      this.addWatchFile(FILE);
      const tables = tablesOf(readFileSync(FILE, 'utf8'));
      if (tables.length === 0) throw new Error(`${FILE} has no tables of keys`);
      return `export const TABLES = ${JSON.stringify(tables)};`;
    },
  };
}
