// Pools: fill, states and moves in words, and figures over time.

import { live } from '../feed/live.svelte';
import type { Source } from './points';
import { pairwise } from './rates';
import type { Pool, PoolGroup, PoolMove, Sample } from './types';
import { duration, percent, time } from './units';

/** Marks of the fill, as of the alerts pool-filling, pool-nearly-full and pool-full. */
export const FILL_MARKS = [
  { ratio: 0.7, key: 'filling', label: 'filling' },
  { ratio: 0.85, key: 'nearly-full', label: 'nearly full' },
  { ratio: 0.95, key: 'full', label: 'full' },
];
/** Looks of tiers; slower tiers than these share the last one. */
const TIER_LOOKS = ['memory', 'flash', 'prefetched', 'array'] as const;

/** Look of a tier in bars and maps. */
export const tierLook = (tier: number) => TIER_LOOKS[Math.min(tier, TIER_LOOKS.length - 1)]!;

const TIER_POLICIES = ['auto', 'start-high', 'highest', 'lowest'];

/** Policies of a pool's volumes: those of every pool, and its tiers. */
export const tierPolicies = (pool: Pool | undefined) => [
  ...TIER_POLICIES,
  ...(pool?.tiers.map(({ name }) => name) ?? []),
];

const inPool = (pool: Pool) => pool.tiers.flatMap(({ groups }) => groups);

/** Members of a pool; a removed device stays known to it. */
export const isMember = ({ state }: PoolGroup) => state !== 'removed';

/** Bytes in use, and bytes that can be in use: a device that takes no slices has room for those that it holds. */
export function fillOf(groups: PoolGroup[]): { used: number; size: number } {
  const used = groups.reduce((sum, { size_bytes, free_bytes }) => sum + size_bytes - free_bytes, 0);
  const free = groups.reduce((sum, { state, free_bytes }) => sum + (state === 'in-service' ? free_bytes : 0), 0);
  return { used, size: used + free };
}

export const fillOfPool = (pool: Pool) => fillOf(inPool(pool));

/** The highest mark that a fill has reached. */
export const fillMark = (ratio: number) => FILL_MARKS.findLast((mark) => ratio >= mark.ratio);

/** Date of a time in Unix seconds. */
const date = (seconds: number) => new Date(seconds * 1e3).toLocaleDateString();

/** The day on which the pool is full by its trend. */
export const fullDate = ({ full_at_unix_seconds: at }: Pool) => (at === null ? null : date(at));

const STATES: Record<string, string> = {
  'in-service': 'in service',
  draining: 'draining',
  absent: 'absent',
};

/** State of a device in words, with the progress of its drain. */
export function groupState({ state, drain }: PoolGroup): string {
  const text = STATES[state] ?? state;
  if (drain === null) return text;
  const progress = drain.total_bytes > 0 ? drain.done_bytes / drain.total_bytes : 1;
  const left =
    drain.problem !== null
      ? `, ${drain.problem}`
      : drain.paused
        ? ', paused'
        : drain.left_seconds === null
          ? ''
          : `, ${duration(drain.left_seconds)} left`;
  return `${text}, ${percent(progress)}${left}`;
}

const RELOCATION_STATES: Record<Pool['relocation']['state'], string> = {
  off: 'off by the configuration',
  paused: 'paused',
  waiting: 'outside of its windows',
  idle: 'idle',
  moving: 'moving',
};

export const relocationState = ({ relocation }: Pool) => RELOCATION_STATES[relocation.state];

/** Reasons of moves. */
export const REASONS: Record<PoolMove['reason'], { label: string; text: string }> = {
  promote: { label: 'promote', text: 'The slice saves disk time in the faster tier.' },
  'make-room': { label: 'make room', text: 'It is colder than the slice that takes its place.' },
  policy: { label: 'policy', text: 'The policy of its volume names another tier.' },
  reserve: { label: 'reserve', text: 'Its tier has less than 10 % free.' },
  balance: { label: 'balance', text: 'Its device is busier than another one of the tier.' },
};

/** Device and tier of each group, by its number. */
export function places(pool: Pool): Map<number, string> {
  const named = pool.tiers.flatMap(({ name, groups }) =>
    groups.map(({ number, device }): [number, string] => [number, `${name}: ${device.split('/').at(-1) ?? device}`]),
  );
  return new Map(named);
}

/** Disk time in milliseconds. */
export function diskTime(ms: number): string {
  const sign = ms < 0 ? '−' : '';
  return sign + time(Math.abs(ms) * 1e3);
}

/** Fill and moved bytes of a pool over time. */
export interface PoolFigures {
  /** Unix seconds. */
  at: number;
  usedBytes: number;
  sizeBytes: number;
  /** A second. */
  movedBytes: number;
}

const poolIn = ({ status }: Sample, name: string) => status.pools.find((pool) => pool.name === name);

export const poolFigures = (name: string): Source<PoolFigures> => ({
  series: ['allocated_bytes', 'capacity_bytes', 'moved_bytes'],
  fromHistory: (report, index, aggregate) => {
    const valueOf = (series: string) => report.series[series]?.[aggregate][index] ?? 0;
    return {
      at: report.at_unix_seconds[index]!,
      usedBytes: valueOf('allocated_bytes'),
      sizeBytes: valueOf('capacity_bytes'),
      movedBytes: valueOf('moved_bytes'),
    };
  },
  live: () =>
    pairwise(live.samples, (before, sample, elapsedMs) => {
      const [from, to] = [poolIn(before, name), poolIn(sample, name)];
      if (!from || !to) return null;
      const { used, size } = fillOfPool(to);
      const moved = to.relocation.moved_bytes - from.relocation.moved_bytes;
      return {
        at: sample.at_unix_ms / 1e3,
        usedBytes: used,
        sizeBytes: size,
        movedBytes: Math.max(0, (moved / elapsedMs) * 1e3),
      };
    }),
});
