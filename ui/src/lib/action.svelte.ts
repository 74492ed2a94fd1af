// A request that changes the daemon's state: its progress and its result. A refused request waits for a log-in.

import { tick } from 'svelte';
import { ApiError, textOf } from './api';
import { session } from './session.svelte';

export class Action {
  /** Label of the running action; empty when idle. */
  busy = $state('');
  message = $state('');
  problem = $state('');

  /** Runs `request`. On success `apply` receives the answer, and `message` is shown. */
  async run<T>(label: string, request: () => Promise<T>, apply: (answer: T) => void, message = `${label}: done.`) {
    const focused = document.activeElement;
    [this.busy, this.message, this.problem] = [label, '', ''];
    try {
      apply(await this.runPermitted(label, request));
      this.message = message;
    } catch (error) {
      this.problem = textOf(error);
    } finally {
      this.busy = '';
      // A button that was disabled meanwhile, or a closed dialog, has lost the focus.
      await tick();
      const focusHolder = document.activeElement;
      const isLost =
        focusHolder === null || focusHolder === document.body || focusHolder.closest('dialog:not([open])') !== null;
      if (isLost && focused instanceof HTMLElement) focused.focus();
    }
  }

  /**
   * Repeats a refused request after each log-in, until it is permitted or the dialog is closed. The same refusal after a
   * log-in has another cause than the role, so it ends the action.
   */
  private async runPermitted<T>(label: string, request: () => Promise<T>): Promise<T> {
    let refusal = '';
    for (;;) {
      try {
        return await request();
      } catch (error) {
        if (!(error instanceof ApiError) || ![401, 403].includes(error.status)) throw error;
        const isUnknown = error.status === 401;
        if (!isUnknown && error.message === refusal) throw error;
        refusal = error.message;
        if (isUnknown) session.forget();
        this.busy = '';
        const isLoggedIn = await session.ask(
          isUnknown ? `“${label}” requires a log-in.` : `${label}: ${error.message}`,
        );
        if (!isLoggedIn) throw isUnknown ? new Error(`${label}: not done, because you are not logged in.`) : error;
        this.busy = label;
      }
    }
  }
}
