// Generates src/lib/api-types.ts from the OpenAPI document. With `--check` it fails if the file is out of date.

import { readFile, writeFile } from 'node:fs/promises';
import openapiTS, { astToString } from 'openapi-typescript';
import { format, resolveConfig } from 'prettier';

const DOCUMENT = new URL('../crates/api/openapi.json', import.meta.url);
const TYPES = new URL('src/lib/api-types.ts', import.meta.url);

// Formats of numbers are left out: they all are `number`, and would be most of the comments.
const withoutFormat = (key, value) => (key === 'format' && typeof value === 'string' ? undefined : value);
const document = JSON.parse(await readFile(DOCUMENT, 'utf8'), withoutFormat);
// `api.ts` has the console's routes, so it needs the schemas alone.
const { schemas } = document.components;
const ast = await openapiTS(
  { ...document, paths: {}, components: { schemas } },
  { rootTypes: true, rootTypesNoSchemaPrefix: true },
);
const head = '// Generated from crates/api/openapi.json by `npm run types`.\n\n';
const types = await format(head + astToString(ast), { ...(await resolveConfig(TYPES)), filepath: TYPES.pathname });

if (!process.argv.includes('--check')) {
  await writeFile(TYPES, types);
} else if (types !== (await readFile(TYPES, 'utf8').catch(() => ''))) {
  console.error('ui/src/lib/api-types.ts is out of date: `npm run types` in ui/ writes it');
  process.exit(1);
}
