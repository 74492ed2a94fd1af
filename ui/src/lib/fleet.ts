// The reports of all hosts of a fleet, joined to one row for each image, and what this host can do with it.

import type { FleetHost, FleetVolume, Volume } from './types';

/** A volume on one host. */
interface Entry {
  host: string;
  report: FleetVolume;
}

export interface FleetRow {
  key: string;
  /** Name of the volume: on this host, else on its owner. */
  name: string;
  /** Without the parameters, which may differ between hosts. */
  image: string;
  /** The volume on this host; null if the configuration of this host lacks it. */
  here: FleetVolume | null;
  /** Empty while no host knows it. */
  owner: string;
  /** The volume on its owner; null if the owner has not answered, or serves it no longer. */
  served: FleetVolume | null;
  /** Name of the volume on its owner, if that is another one. */
  ownerAlias: string | null;
  /** 0 while no host knows it. */
  ownership: number;
  /** The host that may claim the image, or `any`; null if the owner has not released it. */
  releasedTo: string | null;
  undestaged: { host: string; data: string | null } | null;
  /** The hosts that do not serve the volume. `alias` is its name there, if that is another one. */
  others: { host: string; state: string; alias: string | null; isWarned: boolean }[];
}

export const hasAnswered = ({ error }: FleetHost) => error === null || error === undefined;

const isOnStandby = ({ state }: FleetVolume) => state === 'standby';

/** True for a host without a link to others and without a volume that others could have. */
export const isSingleHost = (hosts: FleetHost[]) =>
  hosts.length === 1 && !hosts[0]!.address && (hosts[0]!.volumes ?? []).length === 0;

/** Numbers of the volumes of a host. */
export function volumeCounts({ volumes = [] }: FleetHost) {
  const owned = volumes.filter(({ fleet }) => fleet.is_owner).length;
  const standby = volumes.filter((volume) => !volume.fleet.is_owner && isOnStandby(volume)).length;
  return { owned, standby, notServed: volumes.length - owned - standby };
}

/** The versions of the hosts that have answered, each with its hosts: more than one if versions are mixed. */
export function versions(hosts: FleetHost[]): { version: string; hosts: string[] }[] {
  const byVersion = groupBy(hosts.filter(hasAnswered), ({ version = '' }) => version);
  return [...byVersion]
    .map(([version, of]) => ({ version, hosts: of.map(({ host }) => host) }))
    .toSorted((a, b) => a.version.localeCompare(b.version, 'en', { numeric: true }));
}

/** One row for each image, by name. The first host is this one. */
export function fleetRows(hosts: FleetHost[]): FleetRow[] {
  const entries = hosts.flatMap(({ host, volumes = [] }) => volumes.map((report) => ({ host, report })));
  const images = [...groupBy(entries, ({ report }) => pathOf(report.image))].flatMap(([path, sharing]) => {
    // Hosts may use different users of a cluster. Two volumes of one host are on images of different clusters.
    const isOneCluster = new Set(sharing.map(({ host }) => host)).size === sharing.length;
    return isOneCluster ? [[path, sharing] as const] : [...groupBy(sharing, ({ report }) => report.image)];
  });
  return images
    .map(([key, sharing]) => rowOf(key, sharing, hosts[0]!.host))
    .toSorted((a, b) => a.name.localeCompare(b.name, 'en', { numeric: true }) || a.key.localeCompare(b.key));
}

function rowOf(key: string, entries: Entry[], thisHost: string): FleetRow {
  const [newest] = entries.toSorted(byAge);
  const { host, report } = newest!;
  const served = report.fleet.is_owner ? report : null;
  const here = entries.find((entry) => entry.host === thisHost)?.report ?? null;
  const name = (here ?? report).volume;
  return {
    key,
    name,
    image: pathOf(report.image),
    here,
    owner: report.fleet.owner || (served ? host : ''),
    served,
    ownerAlias: served && served.volume !== name ? served.volume : null,
    ownership: report.fleet.ownership,
    releasedTo: served ? null : (report.fleet.released_to ?? null),
    undestaged: undestagedData(served ? [report] : entries.map((entry) => entry.report)),
    others: entries
      .filter((entry) => entry.report !== served)
      .map(({ host, report: { fleet, state, volume } }) => ({
        host,
        // The daemon of a host that has lost its image keeps the volume until it is restarted.
        state: fleet.is_owner ? 'former owner' : state,
        alias: volume === name ? null : volume,
        isWarned: state !== 'standby',
      })),
  };
}

/** The newest ownership first. In one ownership the owner knows best, then a host that has seen the release. */
function byAge({ report: { fleet: a } }: Entry, { report: { fleet: b } }: Entry): number {
  const rank = (fleet: FleetVolume['fleet']) => (fleet.is_owner ? 2 : 0) + (fleet.released_to ? 1 : 0);
  return b.ownership - a.ownership || rank(b) - rank(a);
}

function undestagedData(reports: FleetVolume[]): FleetRow['undestaged'] {
  const fleet = reports.map((report) => report.fleet).find(({ undestaged_host }) => undestaged_host);
  return fleet ? { host: fleet.undestaged_host!, data: fleet.undestaged_data ?? null } : null;
}

/** True if this host serves the volume, or can ask the host that does. */
export const canMove = ({ here, served }: FleetRow) =>
  here !== null && served !== null && (here === served || isOnStandby(here));

/** The hosts that can claim the image: a host that has not answered is not among them. */
export const moveTargets = ({ others }: FleetRow) =>
  others.filter(({ state }) => state === 'standby').map(({ host }) => host);

export const canTakeOver = ({ here }: FleetRow) => here !== null && isOnStandby(here);

/** What this host knows after a move to the host `to`; empty if it only asked the owner. */
export function moveResult({ fleet }: Pick<Volume, 'fleet'>, to: string): string {
  if (fleet?.released_to) {
    const claimant = fleet.released_to === 'any' ? 'any host' : `host ${fleet.released_to}`;
    return `The image is released for ${claimant}, and no host serves the volume yet.`;
  }
  return fleet?.owner && fleet.owner === to ? `Host ${to} serves the volume.` : '';
}

/** `rbd:POOL/IMAGE` without the way to the cluster. */
const pathOf = (image: string) => image.split('?')[0]!;

function groupBy<T>(items: T[], keyOf: (item: T) => string): Map<string, T[]> {
  const groups = new Map<string, T[]>();
  for (const item of items) {
    const group = groups.get(keyOf(item));
    if (group) group.push(item);
    else groups.set(keyOf(item), [item]);
  }
  return groups;
}
