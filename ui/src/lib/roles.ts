// Roles of tokens.

import type { Role } from './types';

/** Permissions of each role, in the order of growing permissions. */
export const ROLES: Record<Role, string> = {
  read: 'Reads status, figures, events and metrics.',
  operate:
    'Also flushes, pauses, freezes and resumes volumes, moves them to other hosts and takes them over, pins ranges, changes settings of volumes, relocates, pauses and resumes pools, and acknowledges and silences alerts.',
  administer:
    'Everything: also adds, resizes, invalidates and removes volumes, takes, clones and deletes snapshots and rolls back to them, changes flash devices and devices of pools, cancels jobs and manages tokens.',
};
