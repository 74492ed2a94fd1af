// What the daemon tells, as far as the page shows it. docs/admin/api.md has the rest.

export interface Bucket {
  us: number;
  count: number;
}

export interface Counts {
  below: Bucket[];
  all: number;
  sum_us: number;
}

/** Counters since the daemon's start; of one volume, or summed over all. */
export interface Counters {
  reads: number;
  writes: number;
  read_bytes: number;
  write_bytes: number;
  memory_hits: number;
  flash_hits: number;
  prefetched_hits: number;
  partial_hits: number;
  misses: number;
  errors: number;
  memory_bytes: number;
  dirty_bytes: number;
  dirty_age_ms: number;
  backing_reads: number;
  backing_writes: number;
  backing_read_bytes: number;
  backing_write_bytes: number;
  latency_counts: { read: Counts; write: Counts };
}

export interface Totals extends Counters {
  volumes: number;
}

/** What a volume has of a datastore. */
export interface Member {
  volume: string;
  shares: number;
  reservation_iops: number;
  /** Beside those who ask for something now. */
  entitled_ratio: number;
  /** In the last second. */
  used_ratio: number;
  waits: number;
  waited_us: number;
  /** Requests that wait now. */
  waiting: number;
}

/** A time in which a datastore was congested. */
export interface Episode {
  began_unix_seconds: number;
  /** Absent while it lasts. */
  ended_unix_seconds?: number;
  caused_by: string;
  contenders: string[];
}

export interface Datastore extends Totals {
  /** Empty for volumes without one, of which no congestion is known. */
  name: string;
  /** The flash devices, which all volumes share. */
  is_flash: boolean;
  congested: boolean;
  congested_seconds_total: number;
  congestion_episodes: number;
  threshold_ms: number;
  /** The threshold was found, not given. */
  threshold_found: boolean;
  latency_ms: number;
  accesses_per_second: number;
  shown_accesses_per_second?: number;
  members: Member[];
  /** The newest last. */
  episodes: Episode[];
}

export interface Volume extends Counters {
  name: string;
  state: 'active' | 'paused' | 'frozen' | 'refused' | 'removing';
  policy: string;
  size_bytes: number;
  backing: string;
  datastore: string;
  read_only: boolean;
  /** What initiators know it by, where there is an iSCSI target. */
  unit?: { lun: number; naa: string; declared_lost: boolean };
  labels: Record<string, string>;
  /** Sizes, percent or `none`, as they are written; empty while it is refused. */
  memory: { min: string; max: string };
  flash: {
    pages: number;
    cached_bytes: number;
    not_hit: Record<string, number>;
    min: string;
    max: string;
    pinned_pages: number;
    pinned_whole_pages: number;
    /** Why the last one that is not there could not be brought. */
    pin_waits: string;
  };
  qos: Qos;
  alerts: string[];
}

/** What a volume is entitled to and held to; 0: no limit, nothing reserved. */
export interface Qos {
  shares: number;
  limit_iops: number;
  limit_bytes: number;
  burst_iops: number;
  burst_bytes: number;
  reservation_iops: number;
  limit_waits: number;
  limit_waited_us: number;
  share_waits: number;
  share_waited_us: number;
}

/** Bytes written to a device, by cause, over all restarts. */
export interface Written {
  promotion_bytes: number;
  dirty_bytes: number;
  journal_bytes: number;
  since_unix_seconds: number;
}

/** What a drive says of its own health. */
export interface Drive {
  /** The whole drive. */
  drive: string;
  model: string;
  /** 0 while nothing was read. */
  read_unix_seconds: number;
  spare_ratio: number | null;
  spare_threshold_ratio: number | null;
  wear_used_ratio: number | null;
  temperature_celsius: number | null;
  media_errors: number | null;
  warnings: string[];
  /** Why it could not be read the last time. */
  unread: string;
}

export interface FlashDevice {
  number: number;
  /** Empty when it is not there. */
  device: string;
  size_bytes: number;
  role: string;
  state: string;
  reason: string;
  /** Since the daemon's start. */
  promotion_bytes: number;
  journal_bytes: number;
  log_bytes: number;
  written: Written;
  endurance_used_ratio: number | null;
  endurance_left_days: number | null;
  /** None where it is a file. */
  drive: Drive | null;
}

export interface Flash {
  in_use: boolean;
  devices: FlashDevice[];
  pages: { pages: number; slots: number; valid_bytes: number; suspect: number; evictions: number };
  copies: number;
  allow_single_copy: boolean;
  segments: number;
  free_segments: number;
  dirty_bytes: number;
  volumes: string[];
  unclaimed: number;
  /** A change of the devices; among the jobs, too. */
  job: object | null;
  write_amplification: number | null;
  drives_unread: string | null;
  scrub: { rounds: number; read_bytes: number; found: number; repaired: number; lost: number };
  alerts: string[];
}

export type Severity = 'critical' | 'warning' | 'info';

/** What is wrong now. */
export interface Alert {
  kind: string;
  severity: Severity;
  /** A volume, a device or a part of the daemon; null for the whole. */
  subject: string | null;
  since_unix_ms: number;
  cause: string;
  effect: string;
  remedy: string;
}

/** Something that happened. */
export interface Event {
  /** They count up, over restarts too. */
  number: number;
  at_unix_ms: number;
  kind: string;
  /** A volume or a device; null for the whole. */
  subject: string | null;
  /** Who did it; null where nobody did. */
  actor: string | null;
  text: string;
}

/** A change made by command, or over HTTP, that differs from the file. */
export interface Override {
  volume: string;
  key: string;
  value: string;
  /** What the file says. */
  file: string;
}

/** Where a value of the configuration comes from. */
export type KeySource = 'default' | 'file' | 'command';

/** What a volume, datastore or array has of a key, where that is not the default. */
export interface KeyEntry {
  name: string;
  value: string;
  source: KeySource;
}

/** A key of the configuration. */
export interface Key {
  /** Empty at the top of the file. */
  table: string;
  key: string;
  default: string;
  /** Null where the table is repeated: then `entries` have it. */
  value: string | null;
  source: KeySource;
  takes_effect: 'restart' | 'reload' | 'renewal' | 'command';
  entries: KeyEntry[];
}

/** Long work that is under way. */
export interface Job {
  id: string;
  kind: 'flush' | 'add' | 'remove' | 'replace' | 'take-over';
  /** The volume or device that it is about. */
  subject: string;
  done_bytes: number;
  total_bytes: number;
  left_seconds: number | null;
  paused: boolean;
}

/** Such that has ended in the last half minute. */
export interface EndedJob extends Pick<Job, 'id' | 'kind' | 'subject'> {
  ended_unix_ms: number;
  outcome: 'done' | 'failed' | 'called-off';
  /** Empty where it is done. */
  reason: string;
}

/** An iSCSI initiator that is logged in. */
export interface IscsiSession {
  session: number;
  initiator: string;
  alias: string;
  portal: string;
  discovery: boolean;
  authenticated: boolean;
  header_digest: boolean;
  data_digest: boolean;
  commands: number;
  under_way: number;
  aborted: number;
  read_bytes: number;
  write_bytes: number;
  /** Of the last hour, the slowest first. */
  slowest: { ago_ms: number; command: string; lun: number | null; took_us: number }[];
}

export interface Iscsi {
  target: string;
  portals: string[];
  connections: number;
  half_open: number;
  failed_logins: number;
  sessions: IscsiSession[];
}

export interface Status {
  version: string;
  uptime_seconds: number;
  stopping: boolean;
  overrides: Override[];
  memory_bytes: number;
  flash: Flash | null;
  iscsi: Iscsi | null;
  /** The most severe first. */
  active_alerts: Alert[];
  jobs: Job[];
  ended_jobs: EndedJob[];
  events: { newest: number };
}

/** One event of the stream. */
export interface Sample {
  /** `life-number`: another life is another start of the daemon. */
  id: string;
  at_unix_ms: number;
  status: Status;
  totals: Totals;
  /** What has happened since the sample before, or the newest part of it. */
  events: Event[];
  volumes: Record<string, Volume>;
}

export interface SlowRequest {
  ago_ms: number;
  asked: string;
  offset_bytes: number;
  length_bytes: number;
  took_us: number;
  step: string;
  waited_us: number;
}

/** How often each part of a volume was asked for; minutes in which nothing was are left out. */
export interface Heat {
  size_bytes: number;
  part_bytes: number;
  step_seconds: number;
  keep_seconds: number;
  rows: { at_unix_seconds: number; reads: number[]; writes: number[] }[];
}

export interface Curve {
  working_set_bytes: number;
  points: { size_bytes: number; miss_ratio: number }[];
}

export interface MissRatioCurve {
  observed_ms: number;
  memory: Curve;
  flash: Curve;
}

/** What advice takes a request to cost, by who answers it. */
export interface AdviceAssumptions {
  array_latency_us: number;
  flash_latency_us: number;
  memory_latency_us: number;
}

/** What sizes of one kind of cache would do, that kind alone. */
export interface AdviceSide {
  today?: { size_bytes: number; hit_ratio: number };
  /** Past it more brings less than on average; null where it grows evenly. */
  knee_bytes: number | null;
  steps: { size_bytes: number; hit_ratio: number }[];
}

export interface VolumeAdvice {
  volume: string;
  /** Why nothing can be said of it. */
  nothing: string | null;
  requests: number;
  requests_per_s: number | null;
  memory: AdviceSide;
  flash: AdviceSide;
}

export interface AdvicePage {
  assumptions: AdviceAssumptions;
  volumes: VolumeAdvice[];
  next: string | null;
}

/** One figure over time: of a counter what came a second, of a level what it was. */
export interface HistorySeries {
  mean: number[];
  min: number[];
  max: number[];
}

/** Latencies over time, in microseconds; null where nothing was asked. */
export interface HistoryLatency {
  p50_us: (number | null)[];
  p99_us: (number | null)[];
  /** Upper ends of the buckets; the last one has none. */
  bounds_us: number[];
  counts: number[][];
}

/** What the history tells, in columns; steps of which nothing is known are left out. */
export interface History {
  step_seconds: number;
  at_unix_seconds: number[];
  covered_seconds: number[];
  series: Record<string, HistorySeries>;
  latency: Record<string, HistoryLatency>;
}
