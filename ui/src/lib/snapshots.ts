// Snapshots of volumes on pools.

import type { Snapshot, Volume } from './types';

/** True if the daemon has snapshots of the volume: its backing is a pool. */
export const hasSnapshots = ({ backing }: Pick<Volume, 'backing'>) => backing.startsWith('pool://');

/** Fault of the name of a new snapshot; empty for a valid name. */
export const takenProblem = (name: string, snapshots: Pick<Snapshot, 'name'>[]) =>
  snapshots.some((snapshot) => snapshot.name === name) ? `The volume has a snapshot “${name}” already.` : '';

/** Time of creation by the browser's clock settings. */
export const createdText = ({ created_unix_seconds: seconds }: Pick<Snapshot, 'created_unix_seconds'>) =>
  seconds === 0 ? 'unknown' : new Date(seconds * 1e3).toLocaleString();
