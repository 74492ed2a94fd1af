// Builds the console into dist, each file with a compressed copy beside it: the daemon embeds and sends these.
import { readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { constants, gzipSync } from 'node:zlib';
import { build } from 'vite';

const dist = new URL('dist/', import.meta.url);
// Compressed size limit: the cost of a first visit.
const SENT_BYTES_MAX = 150_000;

for (const name of await readdir(dist)) {
  // The folder stays, with its .gitignore: cargo watches it.
  if (name !== '.gitignore') await rm(new URL(name, dist), { recursive: true });
}
await build({ logLevel: 'warn' });

let sent = 0;
for (const entry of await readdir(dist, { recursive: true, withFileTypes: true })) {
  if (!entry.isFile() || entry.name === '.gitignore') continue;
  const path = `${entry.parentPath}/${entry.name}`;
  const packed = gzipSync(await readFile(path), { level: constants.Z_BEST_COMPRESSION });
  await writeFile(`${path}.gz`, packed);
  sent += packed.length;
}
console.log(`ui/dist: ${(sent / 1000).toFixed(1)} kB as sent`);
if (sent > SENT_BYTES_MAX) throw new Error(`the page is larger than ${SENT_BYTES_MAX / 1000} kB`);
