// The state of a volume as text: on standby with the owner of its image.

import type { VolumeReport } from './api-types';

export function stateText(volume: Pick<VolumeReport, 'state' | 'fleet'>): string {
  const fleet = volume.fleet;
  if (volume.state !== 'standby' || !fleet) return volume.state;
  const owner = fleet.owner || 'unknown';
  if (!fleet.released_to) return `standby: ${owner}`;
  return `standby: ${owner}, released${fleet.released_to === 'any' ? '' : ` for ${fleet.released_to}`}`;
}
