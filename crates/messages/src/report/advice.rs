//! What each further step of memory or of flash would bring, and what that assumes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a request costs, and what a disk can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Assumptions {
    /// Requests a second of one disk of the array.
    pub spindle_iops: u32,
    /// A request that the array answers, in nanoseconds.
    pub array_ns: u64,
    /// One that flash answers.
    pub flash_ns: u64,
    /// One that memory answers.
    pub memory_ns: u64,
}

impl Default for Assumptions {
    /// A 15k disk in a busy array, an SSD through a file system, memory through a socket.
    fn default() -> Self {
        Assumptions { spindle_iops: 180, array_ns: 8_000_000, flash_ns: 200_000, memory_ns: 20_000 }
    }
}

/// A page of advice: volumes by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AdvicePage {
    /// What all of it assumes.
    pub assumptions: AssumptionsReport,
    /// One by one.
    pub volumes: Vec<VolumeAdvice>,
    /// What to give as `after` for the next page; null on the last one.
    pub next: Option<String>,
}

/// What advice assumes, as it is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AssumptionsReport {
    /// Requests a second of one disk.
    pub spindle_requests_per_s: f64,
    /// A request that the array answers.
    pub array_latency_us: f64,
    /// One that flash answers.
    pub flash_latency_us: f64,
    /// One that memory answers.
    pub memory_latency_us: f64,
}

impl From<Assumptions> for AssumptionsReport {
    fn from(assumed: Assumptions) -> Self {
        let micros = |nanos: u64| nanos as f64 / 1e3;
        AssumptionsReport {
            spindle_requests_per_s: f64::from(assumed.spindle_iops),
            array_latency_us: micros(assumed.array_ns),
            flash_latency_us: micros(assumed.flash_ns),
            memory_latency_us: micros(assumed.memory_ns),
        }
    }
}

/// What memory and flash would bring a volume, each alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VolumeAdvice {
    /// Its name.
    pub volume: String,
    /// Why nothing can be said of it; null where something can.
    pub nothing: Option<String>,
    /// Requests since it is served.
    pub requests: u64,
    /// Bytes of all that was used lately.
    pub footprint_bytes: u64,
    /// The mean since it is served.
    pub requests_per_s: Option<f64>,
    /// Of memory.
    pub memory: SideAdvice,
    /// Of flash.
    pub flash: SideAdvice,
}

/// What one kind of cache would bring.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SideAdvice {
    /// What there is of it; absent for a trace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub today: Option<TodayAdvice>,
    /// The step past which more brings less than on average: the size worth buying. Null where it grows evenly.
    pub knee_bytes: Option<u64>,
    /// By growing size.
    pub steps: Vec<StepAdvice>,
}

impl SideAdvice {
    /// The step past which more brings less than on average.
    pub fn knee(&self) -> Option<&StepAdvice> {
        self.steps.iter().find(|step| Some(step.size_bytes) == self.knee_bytes)
    }
}

/// What there is of a cache, and what it does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TodayAdvice {
    /// Its size.
    pub size_bytes: u64,
    /// Reads that it served whole, of all.
    pub hit_ratio: f64,
}

/// A size and what it brings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StepAdvice {
    /// The cache's size.
    pub size_bytes: u64,
    /// Requests that are served whole, of all.
    pub hit_ratio: f64,
    /// Blocks or pages that are missed, of all that are asked for.
    pub miss_ratio: f64,
    /// The same of an LRU.
    pub lru_miss_ratio: f64,
    /// Mean latency of a request.
    pub latency_us: f64,
    /// Disks that the hits spare; null where nothing is known of times.
    pub saved_spindles: Option<f64>,
}
