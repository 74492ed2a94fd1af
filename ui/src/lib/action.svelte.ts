// What somebody has the daemon do: what is under way, how it ended, and whether it takes a log-in.

import { Refused, textOf } from './api';

export class Action {
  /** What is under way; empty when nothing is. */
  busy = $state('');
  said = $state('');
  problem = $state('');
  needsLogin = $state(false);

  /** Does it; `done` gets what came of it, if it succeeds, and `said` is told then. */
  async run<T>(what: string, doing: () => Promise<T>, done: (told: T) => void, said = `${what}: done.`) {
    [this.busy, this.said, this.problem] = [what, '', ''];
    try {
      done(await doing());
      [this.said, this.needsLogin] = [said, false];
    } catch (error) {
      this.problem = textOf(error);
      this.needsLogin = error instanceof Refused && (error.status === 401 || error.status === 403);
    } finally {
      this.busy = '';
    }
  }

  loggedIn() {
    [this.needsLogin, this.problem, this.said] = [false, '', 'Logged in; choose again.'];
  }
}
