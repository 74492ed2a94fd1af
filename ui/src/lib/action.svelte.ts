// A request that changes something: its progress, its result, and whether a login is required.

import { ApiError, textOf } from './api';

export class Action {
  /** Label of the running action; empty when idle. */
  busy = $state('');
  message = $state('');
  problem = $state('');
  needsLogin = $state(false);

  /** Runs `request`. On success `done` receives the answer, and `message` is shown. */
  async run<T>(label: string, request: () => Promise<T>, done: (answer: T) => void, message = `${label}: done.`) {
    [this.busy, this.message, this.problem] = [label, '', ''];
    try {
      done(await request());
      [this.message, this.needsLogin] = [message, false];
    } catch (error) {
      this.problem = textOf(error);
      this.needsLogin = error instanceof ApiError && (error.status === 401 || error.status === 403);
    } finally {
      this.busy = '';
    }
  }

  loggedIn() {
    [this.needsLogin, this.problem, this.message] = [false, '', 'Logged in. Repeat the action.'];
  }
}
