//! The flash cache: its devices, its log, its clean pages, its scrub.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{DriveReport, JobKind, StatusProblem};

/// Bytes written to a flash device across all restarts, by cause.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WrittenReport {
    /// Bytes of clean pages.
    pub promotion_bytes: u64,
    /// Bytes of the log: dirty data with headers.
    pub dirty_bytes: u64,
    /// Bytes of the map journal (which page is in which slot).
    pub journal_bytes: u64,
    /// When counting began, in seconds since 1970.
    pub since_unix_seconds: u64,
}

/// A device of the flash cache.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FlashDeviceReport {
    /// Its number in the store, from 0.
    pub number: u32,
    /// Its path; empty if it is absent and its path is not known.
    pub device: String,
    /// Its size; 0 while it is absent.
    pub size_bytes: u64,
    /// `log` if it also carries the log of dirty data, `pages` if it holds only clean pages.
    #[serde(default)]
    #[schema(required)]
    pub role: String,
    /// Bytes of pages written to it since the start.
    #[serde(default)]
    #[schema(required)]
    pub promotion_bytes: u64,
    /// Bytes of the map journal written to it since the start.
    #[serde(default)]
    #[schema(required)]
    pub journal_bytes: u64,
    /// Bytes of the log written to it since the start.
    #[serde(default)]
    #[schema(required)]
    pub log_bytes: u64,
    /// Clean pages on it.
    #[serde(default)]
    #[schema(required)]
    pub pages: u64,
    /// Clean pages that its removal drops: those for which the other devices have no room, or, if another device takes
    /// over the log, all pages of both.
    #[serde(default)]
    #[schema(required)]
    pub pages_lost_if_removed: u64,
    /// Number of the device that takes over the log if this one is removed; null if none does.
    #[serde(default)]
    #[schema(required)]
    pub log_successor: Option<u32>,
    /// Bytes written to it across all restarts.
    #[serde(default)]
    #[schema(required)]
    pub written: WrittenReport,
    /// Used part of its rated writes (`endurance_dwpd` a day for five years); null without a rating.
    #[serde(default)]
    #[schema(required)]
    pub endurance_used_ratio: Option<f64>,
    /// Days until the rated writes are used up at the mean rate so far; null in the first hour.
    #[serde(default)]
    #[schema(required)]
    pub endurance_left_days: Option<u64>,
    /// Health of the drive; null for a file and before the first reading.
    #[serde(default)]
    #[schema(required)]
    pub drive: Option<DriveReport>,
    /// Age of the oldest request that it has not answered, in milliseconds; 0: it has answered all.
    #[serde(default)]
    #[schema(required)]
    pub unanswered_ms: u64,
    /// `in-service`, `lost` or `stale`.
    pub state: String,
    /// Reason why it is not in service.
    pub reason: String,
}

impl FlashDeviceReport {
    /// Its path, or its number if the path is not known.
    pub fn name(&self) -> String {
        if self.device.is_empty() { format!("device {}", self.number) } else { self.device.clone() }
    }
}

/// A change of the flash devices in progress.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FlashJobReport {
    /// Kind; never `flush`.
    pub kind: JobKind,
    /// The device, by path or number.
    pub device: String,
    /// Bytes copied.
    pub done_bytes: u64,
    /// Bytes in total.
    pub total_bytes: u64,
    /// Estimated remaining time; null if unknown.
    #[schema(required)]
    pub left_seconds: Option<u64>,
    /// True while it is paused until `flash resume`.
    pub paused: bool,
}

/// A dirty block without a good copy on any flash device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LostBlockReport {
    /// The volume; empty while it is not served.
    pub volume: String,
    /// Its identity, 16 hexadecimal digits.
    #[serde(rename = "incarnation")]
    pub volume_id: String,
    /// Byte offset of the 4 KiB block.
    pub at_bytes: u64,
}

/// Findings of the log's scrub since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScrubReport {
    /// Completed scrub passes.
    pub rounds: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Blocks with a bad copy.
    pub found: u64,
    /// Copies that were repaired.
    pub repaired: u64,
    /// Blocks without a good copy.
    pub lost: u64,
}

/// Clean pages on flash.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PagesReport {
    /// True once the map was read.
    pub loaded: bool,
    /// Reason why all pages from before the start were dropped.
    #[schema(required)]
    pub dropped: Option<String>,
    /// Capacity in pages.
    pub slots: u64,
    /// Pages of 64 KiB for which the devices have further room, and the map of clean pages, sized when the store was
    /// created, has none.
    #[serde(default)]
    #[schema(required)]
    pub unmapped_slots: u64,
    /// Pages present.
    pub pages: u64,
    /// Bytes that can be read from them.
    pub valid_bytes: u64,
    /// Suspect pages: compared with the backing before use.
    pub suspect: u64,
    /// Evicted pages.
    pub evictions: u64,
    /// Dirty regions of 4 MiB: a crash would make their pages suspect.
    pub dirty_regions: u64,
    /// Memory for the map.
    pub memory_bytes: u64,
    /// Bytes that promotion may write now within the devices' endurance; null without a limit.
    #[schema(required)]
    pub endurance_left_bytes: Option<u64>,
    /// One in this many eligible promotions is carried out; adapts to the gain of recent promotions.
    pub promote_one_in: u64,
}

/// Effects of the addition of a flash device, or of its replacement, on the clean pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlashPlanReport {
    /// True once the map of clean pages was read; before, no page is counted.
    pub loaded: bool,
    /// Size of the new device.
    pub device_bytes: u64,
    /// Pages of the replaced device for which the devices have room after the change.
    pub kept_pages: u64,
    /// Pages of the replaced device that are dropped for lack of room. In that case, pages without a recent use are
    /// dropped as well.
    pub dropped_pages: u64,
    /// Pages that the devices can hold in addition, as far as the map has room; 0 if they can hold fewer.
    pub added_slots: u64,
    /// Pages for which the devices have further room after the change, and the map has none.
    pub unmapped_slots: u64,
    /// Pages for which the map has room.
    pub map_slots: u64,
}

/// The flash cache: dirty-data log and clean pages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FlashReport {
    /// True while the log is in use: flushes are acknowledged once their data is in it.
    pub in_use: bool,
    /// True if the core of the log did not answer in time: the figures are those of its last answer.
    #[serde(default)]
    #[schema(required)]
    pub silent: bool,
    /// Identity of the store, 32 hexadecimal digits; empty if it is not in use.
    pub store: String,
    /// Its devices.
    pub devices: Vec<FlashDeviceReport>,
    /// Clean pages.
    #[serde(default)]
    #[schema(required)]
    pub pages: PagesReport,
    /// Copies of the log: devices in service that carry it.
    pub copies: usize,
    /// The log lies on an image, whose cluster keeps the copies: one device carries it.
    #[serde(default)]
    #[schema(required)]
    pub is_log_on_image: bool,
    /// Configured to work with a single copy.
    pub allow_single_copy: bool,
    /// Segments of the log that are free.
    pub free_segments: usize,
    /// Segments of the log.
    pub segments: usize,
    /// Bytes of dirty data in the log.
    pub dirty_bytes: u64,
    /// Volumes with dirty data in the log.
    pub volumes: Vec<String>,
    /// Volumes with data in the log that are not served.
    pub unclaimed: usize,
    /// Configured devices that are not in use, with reasons.
    #[serde(default)]
    #[schema(required)]
    pub absent: Vec<String>,
    /// Paths of the configured devices that did not answer when the daemon started.
    #[serde(default)]
    #[schema(required)]
    pub hung: Vec<String>,
    /// Why the health of the drives could not be read; null if it was, or has not been tried.
    #[serde(default)]
    #[schema(required)]
    pub drive_health_error: Option<String>,
    /// The change of devices in progress.
    #[serde(default)]
    #[schema(required)]
    pub job: Option<FlashJobReport>,
    /// Bytes written to all devices per byte of user data since the start; null without user data.
    #[serde(default)]
    #[schema(required)]
    pub write_amplification: Option<f64>,
    /// Findings of the scrub.
    #[serde(default)]
    #[schema(required)]
    pub scrub: ScrubReport,
    /// Lost blocks found by reads: they cannot be read until they are written again.
    #[serde(default)]
    #[schema(required)]
    pub lost: Vec<LostBlockReport>,
    /// Present problems.
    #[serde(rename = "alerts")]
    #[schema(value_type = Vec<String>)]
    pub problems: Vec<StatusProblem>,
    /// Code of the refusal (`docs/admin/refusals.md`), if the cache is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
}
