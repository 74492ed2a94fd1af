// Serves a console build instead of the one in the daemon's binary, so that UI changes need no build of the daemon.

import { readFile } from 'node:fs/promises';
import { createServer, request } from 'node:http';
import { join, normalize } from 'node:path';

const KINDS = {
  html: 'text/html; charset=utf-8',
  css: 'text/css; charset=utf-8',
  js: 'text/javascript; charset=utf-8',
};

/** Serves the console in `folder` and proxies everything else to the daemon at `url`. */
export async function serveConsole(folder, url) {
  const { hostname, port } = new URL(url);
  // The daemon's content security policy applies here, too.
  const policy = (await fetch(url)).headers.get('content-security-policy');
  const server = createServer((asked, answer) => {
    const path = asked.url === '/' ? '/index.html' : asked.url.split('?')[0];
    if (path === '/index.html' || path.startsWith('/assets/')) {
      const headers = { 'Content-Type': KINDS[path.split('.').at(-1)], 'Content-Security-Policy': policy };
      readFile(join(folder, normalize(path))).then(
        (content) => answer.writeHead(200, headers).end(content),
        () => answer.writeHead(404).end(),
      );
      return;
    }
    const passed = request({ hostname, port, path: asked.url, method: asked.method, headers: asked.headers }, (got) => {
      answer.writeHead(got.statusCode, got.headers);
      got.pipe(answer);
      got.on('error', () => answer.destroy());
    });
    // An unreachable daemon looks the same as without a proxy.
    passed.on('error', () => answer.destroy());
    answer.on('close', () => passed.destroy());
    asked.pipe(passed);
  });
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  return server;
}
