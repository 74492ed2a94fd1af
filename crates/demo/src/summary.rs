//! How the demo went, as JSON has it.

use serde::Serialize;

use super::figures::Figures;
use super::stage::{FLASH_BYTES, MEMORY_BYTES, Stage, VOLUME_BYTES};
use super::workload::{DEPTH, HOT_BYTES, HOT_PERCENT, READ_PERCENT, REQUEST_BYTES};
use config::show_array;

/// What was done.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Load {
    /// Each of the two arrays.
    pub array: String,
    /// Bytes of each volume.
    pub volume_bytes: u64,
    /// Memory of the cache.
    pub memory_bytes: u64,
    /// Each of its two flash devices.
    pub flash_bytes: u64,
    /// Bytes of a request.
    pub request_bytes: u64,
    /// Requests in flight.
    pub depth: usize,
    /// Requests that read, in percent.
    pub read_percent: u64,
    /// Bytes of the hot part, half of which moves elsewhere once.
    pub hot_bytes: u64,
    /// Requests that go there, in percent.
    pub hot_percent: u64,
}

impl Load {
    /// The demo's.
    pub fn of_demo() -> Load {
        Load {
            array: format!("sim://{}", show_array(&Stage::array())),
            volume_bytes: VOLUME_BYTES,
            memory_bytes: MEMORY_BYTES,
            flash_bytes: FLASH_BYTES,
            request_bytes: REQUEST_BYTES,
            depth: DEPTH,
            read_percent: READ_PERCENT,
            hot_bytes: HOT_BYTES,
            hot_percent: HOT_PERCENT,
        }
    }
}

/// How it went.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// What was done.
    pub load: Load,
    /// The client without a cache, over the whole time.
    pub without: Figures,
    /// The client with one, over the whole time.
    pub with: Figures,
    /// The same, in the last quarter.
    pub warm: Figures,
    /// Requests a second once warm, against those without a cache.
    pub iops_gain: f64,
    /// Not yet on the array when the clients ended.
    pub dirty_bytes_at_end: u64,
    /// Time until it was.
    pub drain_seconds: f64,
}
