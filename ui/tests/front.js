// Serves a console build instead of the one in the daemon's binary, so that UI changes need no build of the daemon.

import { readFile } from 'node:fs/promises';
import { createServer, request as sendRequest } from 'node:http';
import { join, normalize } from 'node:path';

const CONTENT_TYPES = {
  html: 'text/html; charset=utf-8',
  css: 'text/css; charset=utf-8',
  js: 'text/javascript; charset=utf-8',
};

/** Serves the console in `folder` and proxies everything else to the daemon at `url`. */
export async function serveConsole(folder, url) {
  // The daemon's content security policy applies here, too.
  const policy = (await fetch(url)).headers.get('content-security-policy');
  const server = createServer((request, response) => {
    const path = request.url === '/' ? '/index.html' : request.url.split('?')[0];
    if (path === '/index.html' || path.startsWith('/assets/')) {
      const headers = { 'Content-Type': CONTENT_TYPES[path.split('.').at(-1)], 'Content-Security-Policy': policy };
      readFile(join(folder, normalize(path))).then(
        (content) => response.writeHead(200, headers).end(content),
        () => response.writeHead(404).end(),
      );
      return;
    }
    forward(request, response, url);
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  return server;
}

/** Forwards a request to the server at `url`. */
function forward(request, response, url) {
  const { hostname, port } = new URL(url);
  const options = { hostname, port, path: request.url, method: request.method, headers: request.headers };
  const forwarded = sendRequest(options, (upstream) => {
    response.writeHead(upstream.statusCode, upstream.headers);
    upstream.pipe(response);
    upstream.on('error', () => response.destroy());
  });
  // An unreachable daemon looks the same as without a proxy.
  forwarded.on('error', () => response.destroy());
  response.on('close', () => forwarded.destroy());
  request.pipe(forwarded);
}

/**
 * A proxy before `url` that redirects requests of the API to its own log-in while `isLocked` returns true, and `/entry`
 * to the page, as after a log-in.
 */
export async function serveLoginProxy(url, isLocked) {
  const server = createServer((request, response) => {
    const redirect = (to) => response.writeHead(302, { Location: to }).end();
    if (request.url === '/entry') redirect('./');
    else if (request.url === '/sign-in')
      response.writeHead(200, { 'Content-Type': 'text/html' }).end('<h1>Sign in</h1>');
    else if (request.url.startsWith('/api/') && isLocked()) redirect('/sign-in');
    else forward(request, response, url);
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  return server;
}
