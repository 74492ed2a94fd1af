//! The flash cache: its devices, its log, its clean pages, its scrub.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{DriveReport, Notice};

/// What was written to a flash device over all restarts, by cause.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WrittenReport {
    /// Bytes of clean pages.
    pub promotion_bytes: u64,
    /// Bytes of the log: what was dirty, with headers.
    pub dirty_bytes: u64,
    /// Bytes of the map of clean pages.
    pub journal_bytes: u64,
    /// When counting began, in seconds since 1970.
    pub since_unix_seconds: u64,
}

/// A device of the flash log.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FlashDeviceReport {
    /// Its number in the store, from 0.
    pub number: u32,
    /// Its path; empty when it is not there.
    pub device: String,
    /// Its size; 0 when it is not there.
    pub size_bytes: u64,
    /// `log` when it carries what is dirty, too, `pages` when it holds clean pages alone.
    #[serde(default)]
    pub role: String,
    /// Bytes of pages written to it since the start.
    #[serde(default)]
    pub promotion_bytes: u64,
    /// Bytes of the map of pages written to it since the start.
    #[serde(default)]
    pub journal_bytes: u64,
    /// Bytes of the log written to it since the start.
    #[serde(default)]
    pub log_bytes: u64,
    /// What was written to it over all restarts.
    #[serde(default)]
    pub written: WrittenReport,
    /// That as a part of what it is rated for: `endurance_dwpd` a day for five years. Absent where that is 0.
    #[serde(default)]
    pub endurance_used_ratio: Option<f64>,
    /// Days after which all of it is used up at the mean pace so far; absent in the first hour.
    #[serde(default)]
    pub endurance_left_days: Option<u64>,
    /// What the drive under it says of its own health; absent where it is a file, or before the first answer.
    #[serde(default)]
    pub drive: Option<DriveReport>,
    /// Age of the oldest request that it has not answered, in milliseconds; 0: it has answered all.
    #[serde(default)]
    pub unanswered_ms: u64,
    /// `in-service`, `lost` or `stale`.
    pub state: String,
    /// Why it is not in service.
    pub reason: String,
}

impl FlashDeviceReport {
    /// What it is called: by its path, and while it is not there by its number.
    pub fn name(&self) -> String {
        if self.device.is_empty() { format!("number {}", self.number) } else { self.device.clone() }
    }
}

/// A change of the flash devices that is under way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FlashJobReport {
    /// `add`, `remove`, `replace` or `take-over`.
    pub kind: String,
    /// Which device it is about, by path or number.
    pub device: String,
    /// Bytes copied.
    pub done_bytes: u64,
    /// Of so many.
    pub total_bytes: u64,
    /// How long the rest takes at the pace so far; absent where that is not known.
    pub left_seconds: Option<u64>,
    /// It waits for `flash resume`.
    pub paused: bool,
}

/// A dirty block that no flash device has whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LostBlockReport {
    /// The volume; empty when it is not served.
    pub volume: String,
    /// Its identity, 16 hexadecimal digits.
    pub incarnation: String,
    /// Where the block of 4 KiB lies in it, in bytes.
    pub at_bytes: u64,
}

/// What the scrub of the log has found since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScrubReport {
    /// Times that it has been through.
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
    /// The map of what lies there was read.
    pub loaded: bool,
    /// Why all pages from before the start were dropped, if they were.
    pub dropped: Option<String>,
    /// Pages that fit.
    pub slots: u64,
    /// Pages that are there.
    pub pages: u64,
    /// Bytes that can be read from them.
    pub valid_bytes: u64,
    /// Pages that are compared with the backing before they are trusted again.
    pub suspect: u64,
    /// Pages that had to go for others.
    pub evictions: u64,
    /// Regions of 4 MiB whose pages a crash now would make suspect.
    pub regions_in_flux: u64,
    /// Memory for the map.
    pub memory_bytes: u64,
    /// Bytes that promotion may write now within the devices' endurance; none without a limit.
    pub endurance_left_bytes: Option<u64>,
    /// Of so many promotions that were earned one is carried out, for what they have lately brought.
    pub promotes_one_of: u64,
}

/// The flash log.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FlashReport {
    /// It answers flushes.
    pub in_use: bool,
    /// Identity of the store, 32 hexadecimal digits; empty when it is not in use.
    pub store: String,
    /// Its devices.
    pub devices: Vec<FlashDeviceReport>,
    /// Clean pages.
    #[serde(default)]
    pub pages: PagesReport,
    /// Devices in service.
    pub copies: usize,
    /// One copy is enough, as configured.
    pub allow_single_copy: bool,
    /// Segments of the log that are free.
    pub free_segments: usize,
    /// Segments of the log.
    pub segments: usize,
    /// What is in the log and not durable on its backing.
    pub dirty_bytes: u64,
    /// Volumes that this belongs to.
    pub volumes: Vec<String>,
    /// Volumes with data in the log that are not served.
    pub unclaimed: usize,
    /// Devices of the configuration that are not in use, and why.
    #[serde(default)]
    pub absent: Vec<String>,
    /// Why nothing is known of the health of any drive, if that is so.
    #[serde(default)]
    pub drives_unread: Option<String>,
    /// What is being done to the devices.
    #[serde(default)]
    pub job: Option<FlashJobReport>,
    /// Bytes written to all devices since the start for each byte of content, promoted or dirty; absent where there was none.
    #[serde(default)]
    pub write_amplification: Option<f64>,
    /// What the scrub has found.
    #[serde(default)]
    pub scrub: ScrubReport,
    /// Blocks that were read and of which no copy on flash is good: reading them fails until they are written again.
    #[serde(default)]
    pub lost: Vec<LostBlockReport>,
    /// What is wrong now.
    #[schema(value_type = Vec<String>)]
    pub alerts: Vec<Notice>,
    /// Names why it is not used, where `docs/admin/refusals.md` lists that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
}
