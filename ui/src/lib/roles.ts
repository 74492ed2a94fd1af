// Roles of tokens.

import type { Role } from './types';

/** Permissions of each role, in the order of growing permissions. */
export const ROLES: Record<Role, string> = {
  read: 'Reads status, figures, events and metrics.',
  operate:
    'Also flushes, pauses, freezes and resumes volumes, pins ranges, changes settings of volumes, and acknowledges and silences alerts.',
  administer:
    'Everything: also adds, resizes, invalidates and removes volumes, changes flash devices, cancels jobs and manages tokens.',
};
