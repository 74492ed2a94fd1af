//! The summary of the demo, as JSON shows it.

use serde::Serialize;

use super::demo_daemon::{DemoDaemon, FLASH_BYTES, MEMORY_BYTES, VOLUME_BYTES};
use super::figures::Figures;
use super::workload::{DEPTH, HOT_BYTES, HOT_PERCENT, READ_PERCENT, REQUEST_BYTES};
use config::show_array;

/// The load that was run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Load {
    /// Model of each of the two arrays.
    pub array: String,
    /// Bytes of each volume.
    pub volume_bytes: u64,
    /// Memory of the cache.
    pub memory_bytes: u64,
    /// Size of each of its two flash devices.
    pub flash_bytes: u64,
    /// Bytes of a request.
    pub request_bytes: u64,
    /// Requests in flight.
    pub depth: usize,
    /// Requests that read, in percent.
    pub read_percent: u64,
    /// Bytes of the hot set, half of which moves once.
    pub hot_bytes: u64,
    /// Requests to the hot set, in percent.
    pub hot_percent: u64,
}

impl Load {
    /// The load of the demo.
    pub fn of_demo() -> Load {
        Load {
            array: format!("sim://{}", show_array(&DemoDaemon::array())),
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

/// Results of the demo.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The load that was run.
    pub load: Load,
    /// Figures of the client without a cache, over the whole time.
    pub without: Figures,
    /// Figures of the client with a cache, over the whole time.
    pub with: Figures,
    /// The same over the last quarter.
    pub warm: Figures,
    /// Requests per second of the last quarter with a cache, divided by those of the whole time without one.
    pub iops_gain: f64,
    /// Dirty data when the clients ended.
    pub dirty_bytes_at_end: u64,
    /// Time to destage it.
    pub drain_seconds: f64,
}
