// A mail server for the tests: accepts every mail, or answers with `refusal` to each sender.

import { createServer } from 'node:net';

/** Starts the server. Its `mails` are the received contents; a `refusal` is the answer to MAIL. */
export async function mailServer() {
  const mails = [];
  const state = { mails, refusal: null };
  const server = createServer((socket) => {
    let text = '';
    let isContent = false;
    const reply = (line) => socket.write(`${line}\r\n`);
    reply('220 test ready');
    socket.on('error', () => {});
    socket.on('data', (data) => {
      text += data;
      for (;;) {
        const terminator = isContent ? '\r\n.\r\n' : '\r\n';
        const end = text.indexOf(terminator);
        if (end < 0) return;
        const line = text.slice(0, end);
        text = text.slice(end + terminator.length);
        if (isContent) {
          mails.push(line);
          isContent = false;
          reply('250 queued');
        } else if (line.startsWith('DATA')) {
          isContent = true;
          reply('354 go');
        } else if (line.startsWith('MAIL') && state.refusal !== null) {
          reply(state.refusal);
        } else {
          reply(line.startsWith('QUIT') ? '221 bye' : '250 yes');
        }
      }
    });
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  return Object.assign(state, { port: server.address().port, close: () => server.close() });
}
