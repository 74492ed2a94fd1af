//! Pools: tiers, groups, and the volumes cut from them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An open pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolReport {
    /// Its name.
    pub name: String,
    /// Bytes of a slice.
    pub slice_bytes: u64,
    /// Bytes of all groups in service that volumes can use.
    pub size_bytes: u64,
    /// Bytes of these that no volume uses.
    pub free_bytes: u64,
    /// Its tiers, the fastest first.
    pub tiers: Vec<PoolTierReport>,
    /// Its volumes. The status leaves them out.
    pub volumes: Vec<PoolVolumeReport>,
    /// Moves of its slices between tiers.
    pub relocation: PoolRelocationReport,
    /// When it will be full by the trend of the last week, in seconds since 1970; null while it does not fill up, and
    /// with less than a day of history.
    #[schema(required)]
    pub full_at_unix_seconds: Option<u64>,
}

impl PoolReport {
    /// Percentages of the fill from which on alerts are raised and initiators are notified, ascending.
    pub const FILL_THRESHOLDS_PERCENT: [u64; 3] = [70, 85, 95];

    /// Bytes in use, and bytes that can be in use: a device that takes no slices has room for those that it holds.
    pub fn fill(&self) -> (u64, u64) {
        let groups = self.tiers.iter().flat_map(|tier| &tier.groups);
        groups.fold((0, 0), |(used, size), group| {
            let used_bytes = group.size_bytes - group.free_bytes;
            let size_bytes = if group.state == "in-service" { group.size_bytes } else { used_bytes };
            (used + used_bytes, size + size_bytes)
        })
    }
}

/// The snapshots of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotsReport {
    /// The volume.
    pub volume: String,
    /// Its pool.
    pub pool: String,
    /// Its snapshots, the oldest first.
    pub snapshots: Vec<SnapshotReport>,
}

/// A snapshot of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotReport {
    /// Its name.
    pub name: String,
    /// Time of its creation, in seconds since 1970.
    pub created_unix_seconds: u64,
    /// Size of the volume at that time.
    pub size_bytes: u64,
    /// Bytes of its slices, shared ones included.
    pub allocated_bytes: u64,
    /// Bytes of the slices that nothing else shares: its deletion frees them.
    pub own_bytes: u64,
}

/// State of the moves of a pool's slices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PoolRelocationState {
    /// The configuration switches moves off; `pool relocate` moves slices once.
    #[default]
    Off,
    /// Paused by command.
    Paused,
    /// Outside of the windows of the configuration.
    Waiting,
    /// Until the next plan.
    Idle,
    /// Planning, or moving slices.
    Moving,
}

impl PoolRelocationState {
    /// All states.
    pub const ALL: [PoolRelocationState; 5] = [
        PoolRelocationState::Off,
        PoolRelocationState::Paused,
        PoolRelocationState::Waiting,
        PoolRelocationState::Idle,
        PoolRelocationState::Moving,
    ];

    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            PoolRelocationState::Off => "off",
            PoolRelocationState::Paused => "paused",
            PoolRelocationState::Waiting => "waiting",
            PoolRelocationState::Idle => "idle",
            PoolRelocationState::Moving => "moving",
        }
    }
}

/// Moves of a pool's slices between tiers. Counters begin at the start of the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolRelocationReport {
    /// State.
    pub state: PoolRelocationState,
    /// `relocation` of the configuration.
    pub times: String,
    /// `rate` of the configuration.
    pub rate: String,
    /// Moves of the present plan, or of the last one.
    pub planned_moves: u64,
    /// Moves of it that have ended.
    pub ended_moves: u64,
    /// Slices moved, drains of devices included.
    pub moves: u64,
    /// Bytes of these slices.
    pub moved_bytes: u64,
    /// Planned moves of slices that had been freed or moved by then, and cancelled moves.
    pub skipped_moves: u64,
    /// Moves that failed; their slices stay.
    pub failed_moves: u64,
    /// Time until the next plan; null while slices move, and where none is due.
    #[schema(required)]
    pub next_plan_seconds: Option<u64>,
}

/// The class of a tier's devices, which tells what a move between tiers is worth.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolClassReport {
    /// `nvme`, `ssd`, `15k`, `10k` or `nl-sas`: the configured class, or the one most like the measured reads.
    pub name: String,
    /// True if it was measured when the pool was opened.
    pub measured: bool,
    /// Time of a random read of 4 KiB.
    pub read_us: u64,
    /// Rate of sequential reads.
    pub bytes_per_second: u64,
    /// Random reads that a device serves at once.
    pub parallel: u32,
}

/// A tier of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolTierReport {
    /// Its name.
    pub name: String,
    /// Class of its devices.
    pub class: PoolClassReport,
    /// Its groups.
    pub groups: Vec<PoolGroupReport>,
}

/// The moves that a pool would make now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolPlanReport {
    /// Name of the pool.
    pub pool: String,
    /// Names of the tiers, the fastest first.
    pub tiers: Vec<String>,
    /// Slices by their load.
    pub heat: Vec<PoolHeatReport>,
    /// Share of the load that the hottest slices carry.
    pub curve: Vec<PoolCurveReport>,
    /// Load of the devices.
    pub loads: Vec<PoolLoadReport>,
    /// Number of moves.
    pub total_moves: u64,
    /// The first of them, at most 1,000, in their order.
    pub moves: Vec<PoolMoveReport>,
    /// Bytes to copy.
    pub bytes: u64,
    /// Time to copy them at the rate that is expected now.
    pub seconds: u64,
    /// Disk time that the moves save each hour; negative where policies move slices to slower tiers.
    pub saved_ms_per_hour: i64,
    /// Disk time of the copies.
    pub copy_ms: u64,
}

/// Slices of similar load: the disk time that their requests would cost on the slowest tier.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolHeatReport {
    /// Least disk time of a slice for each hour.
    pub from_ms_per_hour: u64,
    /// Bytes of the slices in each tier.
    pub tier_bytes: Vec<u64>,
    /// Disk time of all of them for each hour.
    pub ms_per_hour: u64,
}

/// Share of the load that the hottest slices carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolCurveReport {
    /// The hottest slices, in millionths of all allocated slices.
    pub slices_ppm: u64,
    /// Their part of the disk time of all slices, in millionths.
    pub load_ppm: u64,
}

/// Load of a device of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolLoadReport {
    /// Number of its group.
    pub number: u16,
    /// The device.
    pub device: String,
    /// Utilisation by the requests since the last relocation, in millionths.
    pub measured_ppm: u64,
    /// Utilisation by the expected load of its slices, from which the plan follows, in millionths.
    pub expected_ppm: u64,
}

/// Reason of a move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PoolMoveReason {
    /// The slice saves disk time in the faster tier.
    #[default]
    Promote,
    /// The slice makes room for a hotter one, or for one that moves by policy.
    MakeRoom,
    /// The policy of its volume names another tier.
    Policy,
    /// The tier has less free space than its reserve.
    Reserve,
    /// The device is busier than another one of its tier.
    Balance,
}

impl PoolMoveReason {
    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            PoolMoveReason::Promote => "promote",
            PoolMoveReason::MakeRoom => "make-room",
            PoolMoveReason::Policy => "policy",
            PoolMoveReason::Reserve => "reserve",
            PoolMoveReason::Balance => "balance",
        }
    }
}

/// A planned move of a slice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolMoveReport {
    /// The volume.
    pub volume: String,
    /// First byte of the slice.
    pub offset_bytes: u64,
    /// Number of the group that holds it.
    pub from: u16,
    /// Number of the group that it moves to.
    pub to: u16,
    /// Reason.
    pub reason: PoolMoveReason,
    /// Disk time that the move saves each hour; negative if the slice gets slower.
    pub saved_ms_per_hour: i64,
    /// Disk time of the copy.
    pub copy_ms: u64,
    /// Time in which it earns its copies; null for moves by policy or for a reserve.
    #[schema(required)]
    pub payback_seconds: Option<u64>,
    /// Expected time until it ends: from now, or in a plan from the start of its first move.
    pub eta_seconds: u64,
}

/// The moves of a pool that have not ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolQueueReport {
    /// Moves in progress.
    pub moving: Vec<PoolMoveReport>,
    /// The next moves in their order, at most 1,000.
    pub waiting: Vec<PoolMoveReport>,
    /// Number of all moves that have not begun.
    pub total_waiting: u64,
    /// Expected time until the last one ends.
    pub left_seconds: u64,
}

/// The slices of a volume of a pool, in at most 2,048 cells.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolCellsReport {
    /// Names of the tiers, the fastest first.
    pub tiers: Vec<String>,
    /// Bytes of a cell; the last one may have fewer.
    pub cell_bytes: u64,
    /// Bytes of the allocated slices of each cell in each tier, in the order of the tiers.
    pub tier_bytes: Vec<Vec<u64>>,
    /// Disk time of each cell for each hour: what the expected requests would cost on the slowest tier.
    pub us_per_hour: Vec<u64>,
}

/// A group of a pool: one device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolGroupReport {
    /// Its number.
    pub number: u16,
    /// Its device; the last known name if it is absent.
    pub device: String,
    /// `in-service`, `draining`, `removed` or `absent`.
    pub state: String,
    /// True if it carries a copy of the pool's metadata.
    pub carries_metadata: bool,
    /// Bytes that volumes can use.
    pub size_bytes: u64,
    /// Bytes of these that no volume uses.
    pub free_bytes: u64,
    /// Utilisation by the requests since the last relocation, in millionths; null while it takes no slices.
    #[schema(required)]
    pub load_ppm: Option<u64>,
    /// Its drain; null unless its state is `draining`.
    #[schema(required)]
    pub drain: Option<PoolDrainReport>,
}

/// The drain of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolDrainReport {
    /// Bytes moved since its start, or since the start of the daemon.
    pub done_bytes: u64,
    /// Bytes that were on the device then.
    pub total_bytes: u64,
    /// Estimated remaining time; null if unknown.
    #[schema(required)]
    pub left_seconds: Option<u64>,
    /// True while moves of the pool are paused.
    pub paused: bool,
    /// The reason why slices stay for now; null if none does.
    #[schema(required)]
    pub problem: Option<String>,
}

/// The ranges of volumes on absent devices of a pool: requests to them fail.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolLostReport {
    /// Name of the pool.
    pub pool: String,
    /// Bytes of all ranges.
    pub bytes: u64,
    /// The volumes that have such ranges.
    pub volumes: Vec<PoolLostVolumeReport>,
}

/// The ranges of one volume on absent devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolLostVolumeReport {
    /// Its name.
    pub name: String,
    /// Bytes of its ranges.
    pub bytes: u64,
    /// Number of its ranges.
    pub total_ranges: u64,
    /// The first of them; those of all volumes are at most 1,000.
    pub ranges: Vec<PoolLostRangeReport>,
}

/// A range of a volume on an absent device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolLostRangeReport {
    /// First byte in the volume.
    pub offset_bytes: u64,
    /// Length.
    pub length_bytes: u64,
    /// Number of the device's group.
    pub number: u16,
    /// The device.
    pub device: String,
}

/// Time at which a volume takes its space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PoolProvisioning {
    /// At the first write of each slice.
    #[default]
    Thin,
    /// At its creation.
    Thick,
}

/// A volume of a pool, which may be served under the same name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolVolumeReport {
    /// Its name.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// Placement of its slices: `auto`, `start-high`, `highest`, `lowest`, or the name of a tier.
    pub tier_policy: String,
    /// Time of allocation.
    pub provisioning: PoolProvisioning,
    /// Bytes of its slices in each tier, in the order of the tiers.
    pub tier_bytes: Vec<u64>,
    /// Bytes of it on devices that are absent.
    pub lost_bytes: u64,
}
