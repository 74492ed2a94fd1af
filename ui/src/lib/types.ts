// Types of the API's answers, under the names that the console uses, generated from the OpenAPI document. Only what
// it lacks is written by hand: the events of the stream, and the counters that a volume and a sum of volumes share.

import type { EventReport, StatusReport, Totals, VolumeReport } from './api-types';

export type {
  AdvicePage,
  AlertReport as Alert,
  AssumptionsReport as AdviceAssumptions,
  ChannelTestReport as ChannelTest,
  ConfigurationReport as Configuration,
  Counts,
  Curve,
  Datastore,
  EndedJobReport as EndedJob,
  EntryReport as KeyEntry,
  EventReport as Event,
  EventsPage,
  FlashDeviceReport as FlashDevice,
  FlashReport as Flash,
  FleetHostReport as FleetHost,
  FleetVolumeReport as FleetVolume,
  HeatReport as Heat,
  HistoryReport as History,
  IscsiSessionReport as IscsiSession,
  JobReport as Job,
  KeyReport as Key,
  LatencyCountsReport as LatencyCounts,
  LatencyFigures as HistoryLatency,
  LoggedIn,
  MissRatioCurve,
  NewVolume,
  OverrideReport as Override,
  Resize,
  Revocation,
  Role,
  Said,
  Severity,
  PoolCellsReport as PoolCells,
  PoolGroupReport as PoolGroup,
  PoolMoveReport as PoolMove,
  PoolPlanReport as PoolPlan,
  PoolQueueReport as PoolQueue,
  PoolReport as Pool,
  PoolVolumeReport as PoolVolume,
  SilenceReport as Silence,
  PurchaseAdvice as AdvicePurchase,
  QuotaAdvice as AdviceQuota,
  StepAdvice as AdviceStep,
  SlowReport as SlowRequest,
  SnapshotReport as Snapshot,
  SnapshotsReport as Snapshots,
  TokenCreated,
  TokenReport as Token,
  VolumeAdvice,
  VolumeReport as Volume,
  VolumesPage,
} from './api-types';

/** Counters since the daemon's start; of one volume, or summed over several. */
export type Counters = Omit<Totals, 'volumes'>;

/** The status in an event of the stream: volumes have a field of their own there. */
export type Status = Omit<StatusReport, 'volumes'>;

/** One event of the stream. */
export interface Sample {
  /** `run-number`: the first part identifies the run of the daemon. */
  id: string;
  at_unix_ms: number;
  status: Status;
  totals: Totals;
  /** The newest events since the previous sample. */
  events: EventReport[];
  /** The volumes that a client follows. */
  volumes: Record<string, VolumeReport>;
}
