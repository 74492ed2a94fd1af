// Names of jobs.

import type { EndedJob, Job } from './types';

const KINDS: Record<string, string> = {
  flush: 'flush',
  add: 'addition',
  remove: 'removal',
  replace: 'replacement',
  'take-over': 'log takeover',
  drain: 'drain',
};

/** `flush of mail`. */
export const jobName = ({ kind, subject }: Job | EndedJob) => `${KINDS[kind] ?? kind} of ${subject}`;
