// Types of the API's responses, as far as the console uses them. docs/admin/api.md has the complete interface.

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

/** A volume's entitlement to and use of a datastore. */
export interface Member {
  volume: string;
  shares: number;
  reservation_iops: number;
  /** Among the volumes with current requests. */
  entitled_ratio: number;
  /** In the last second. */
  used_ratio: number;
  waits: number;
  waited_us: number;
  /** Requests waiting at the moment. */
  waiting: number;
}

/** A congestion episode of a datastore. */
export interface Episode {
  began_unix_seconds: number;
  /** Absent while the episode continues. */
  ended_unix_seconds?: number;
  caused_by: string;
  contenders: string[];
}

export interface Datastore extends Totals {
  /** Empty for volumes without a datastore; their congestion is unknown. */
  name: string;
  /** True for the flash devices, which all volumes share. */
  is_flash: boolean;
  congested: boolean;
  congested_seconds_total: number;
  congestion_episodes: number;
  threshold_ms: number;
  /** True if the threshold was measured, not configured. */
  threshold_found: boolean;
  latency_ms: number;
  accesses_per_second: number;
  shown_accesses_per_second?: number;
  members: Member[];
  /** Oldest first. */
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
  /** Identity for iSCSI initiators; absent without an iSCSI target. */
  unit?: { lun: number; naa: string; declared_lost: boolean };
  labels: Record<string, string>;
  /** Size, percentage or `none`, in the notation of the configuration; empty while the volume is refused. */
  memory: { min: string; max: string };
  flash: {
    pages: number;
    cached_bytes: number;
    not_hit: Record<string, number>;
    min: string;
    max: string;
    pinned_pages: number;
    pinned_whole_pages: number;
    /** Reason why the last missing pinned page was not promoted. */
    pin_waits: string;
  };
  qos: Qos;
  alerts: string[];
}

/** Quality of service of a volume; 0: no limit, no reservation. */
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

/** Bytes written to a device, by cause, across all restarts. */
export interface Written {
  promotion_bytes: number;
  dirty_bytes: number;
  journal_bytes: number;
  since_unix_seconds: number;
}

/** Health reported by a drive (SMART). */
export interface Drive {
  /** Path of the whole drive. */
  drive: string;
  model: string;
  /** Time of the last successful query; 0: none. */
  read_unix_seconds: number;
  spare_ratio: number | null;
  spare_threshold_ratio: number | null;
  wear_used_ratio: number | null;
  temperature_celsius: number | null;
  media_errors: number | null;
  warnings: string[];
  /** Error of the last query; empty without one. */
  unread: string;
}

export interface FlashDevice {
  number: number;
  /** Empty for a missing device. */
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
  /** Null for a file. */
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
  /** Change of devices in progress; also listed in `jobs`. */
  job: object | null;
  write_amplification: number | null;
  drives_unread: string | null;
  scrub: { rounds: number; read_bytes: number; found: number; repaired: number; lost: number };
  alerts: string[];
}

export type Severity = 'critical' | 'warning' | 'info';

/** An active problem. */
export interface Alert {
  kind: string;
  severity: Severity;
  /** A volume, a device or a part of the daemon; null for the whole daemon. */
  subject: string | null;
  since_unix_ms: number;
  cause: string;
  effect: string;
  remedy: string;
}

/** An entry of the event log. */
export interface Event {
  /** Rises with every event, across restarts. */
  number: number;
  at_unix_ms: number;
  kind: string;
  /** A volume or a device; null for the whole daemon. */
  subject: string | null;
  /** Origin of a change; null without one. */
  actor: string | null;
  text: string;
}

/** A change made by command, or over HTTP, that differs from the file. */
export interface Override {
  volume: string;
  key: string;
  value: string;
  /** Value in the configuration file. */
  file: string;
}

/** Source of a configuration value. */
export type KeySource = 'default' | 'file' | 'command';

/** A key's value for one volume, datastore or array, if it is not the default. */
export interface KeyEntry {
  name: string;
  value: string;
  source: KeySource;
}

/** A key of the configuration. */
export interface Key {
  /** Empty for top-level keys. */
  table: string;
  key: string;
  default: string;
  /** Null for a repeated table, whose values are in `entries`. */
  value: string | null;
  source: KeySource;
  takes_effect: 'restart' | 'reload' | 'renewal' | 'command';
  entries: KeyEntry[];
}

/** A job in progress. */
export interface Job {
  id: string;
  kind: 'flush' | 'add' | 'remove' | 'replace' | 'take-over';
  /** The volume or device concerned. */
  subject: string;
  done_bytes: number;
  total_bytes: number;
  left_seconds: number | null;
  paused: boolean;
}

/** A job that ended within the last 30 seconds. */
export interface EndedJob extends Pick<Job, 'id' | 'kind' | 'subject'> {
  ended_unix_ms: number;
  outcome: 'done' | 'failed' | 'called-off';
  /** Empty after success. */
  reason: string;
}

/** The session of a logged-in iSCSI initiator. */
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
  /** Commands of the last hour, slowest first. */
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
  /** Most severe first. */
  active_alerts: Alert[];
  jobs: Job[];
  ended_jobs: EndedJob[];
  events: { newest: number };
}

/** One event of the stream. */
export interface Sample {
  /** `life-number`: the first part changes with each start of the daemon. */
  id: string;
  at_unix_ms: number;
  status: Status;
  totals: Totals;
  /** The newest events since the previous sample. */
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

/** Requests per part of a volume and minute; minutes without requests are omitted. */
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

/** Assumed latency of a request by its source. */
export interface AdviceAssumptions {
  array_latency_us: number;
  flash_latency_us: number;
  memory_latency_us: number;
}

/** Predicted effect of sizes of one cache tier, independent of the other tier. */
export interface AdviceSide {
  today?: { size_bytes: number; hit_ratio: number };
  /** Size past which a step gains less than the average step; null for an even curve. */
  knee_bytes: number | null;
  steps: { size_bytes: number; hit_ratio: number }[];
}

export interface VolumeAdvice {
  volume: string;
  /** Reason for missing advice. */
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

/** One series: rate per second of a counter, or values of a gauge. */
export interface HistorySeries {
  mean: number[];
  min: number[];
  max: number[];
}

/** Latencies over time, in microseconds; null without requests. */
export interface HistoryLatency {
  p50_us: (number | null)[];
  p99_us: (number | null)[];
  /** Upper bounds of the buckets; the last bucket has none. */
  bounds_us: number[];
  counts: number[][];
}

/** The history in columns; steps without data are omitted. */
export interface History {
  step_seconds: number;
  at_unix_seconds: number[];
  covered_seconds: number[];
  series: Record<string, HistorySeries>;
  latency: Record<string, HistoryLatency>;
}
