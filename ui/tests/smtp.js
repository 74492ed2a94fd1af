// A mail server for the tests: accepts every mail, or answers with `refusal` to each sender.

import { createServer } from 'node:net';

export async function mailServer() {
  const mails = [];
  const state = { mails, refusal: null };
  const server = createServer((socket) => {
    let text = '';
    let isContent = false;
    const say = (line) => socket.write(`${line}\r\n`);
    say('220 test ready');
    socket.on('error', () => {});
    socket.on('data', (data) => {
      text += data;
      for (;;) {
        const mark = isContent ? '\r\n.\r\n' : '\r\n';
        const end = text.indexOf(mark);
        if (end < 0) return;
        const line = text.slice(0, end);
        text = text.slice(end + mark.length);
        if (isContent) {
          mails.push(line);
          isContent = false;
          say('250 queued');
        } else if (line.startsWith('DATA')) {
          isContent = true;
          say('354 go');
        } else if (line.startsWith('MAIL') && state.refusal !== null) {
          say(state.refusal);
        } else {
          say(line.startsWith('QUIT') ? '221 bye' : '250 yes');
        }
      }
    });
  });
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  return Object.assign(state, { port: server.address().port, close: () => server.close() });
}
