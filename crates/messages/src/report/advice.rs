//! Advice: the gain of each further step of memory or flash, with its assumptions.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Assumed latencies and disk performance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Assumptions {
    /// Requests per second of one disk of the array.
    pub spindle_iops: u32,
    /// Latency of the array, in nanoseconds; `None` for the measured latency of the volume, or [`ARRAY_NS`] without
    /// one.
    pub array_ns: Option<u64>,
    /// Latency of flash.
    pub flash_ns: u64,
    /// Latency of memory.
    pub memory_ns: u64,
}

/// Latency of a 15k disk in a busy array, in nanoseconds.
pub const ARRAY_NS: u64 = 8_000_000;

impl Default for Assumptions {
    /// A 15k disk in a busy array, an SSD through a file system, memory through a socket.
    fn default() -> Self {
        Assumptions { spindle_iops: 180, array_ns: None, flash_ns: 200_000, memory_ns: 20_000 }
    }
}

/// A page of advice: volumes by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AdvicePage {
    /// Assumptions.
    pub assumptions: AssumptionsReport,
    /// Advice by volume.
    pub volumes: Vec<VolumeAdvice>,
    /// Value of `after` for the next page; null on the last page.
    #[schema(required)]
    pub next: Option<String>,
}

/// Assumptions of advice in display units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AssumptionsReport {
    /// Requests per second of one disk.
    pub spindle_requests_per_s: f64,
    /// Latency of the array: as requested, and then for all volumes; otherwise the default for volumes without a
    /// measured one.
    pub array_latency_us: f64,
    /// Latency of flash.
    pub flash_latency_us: f64,
    /// Latency of memory.
    pub memory_latency_us: f64,
}

impl From<Assumptions> for AssumptionsReport {
    fn from(assumed: Assumptions) -> Self {
        let micros = |nanos: u64| nanos as f64 / 1e3;
        AssumptionsReport {
            spindle_requests_per_s: f64::from(assumed.spindle_iops),
            array_latency_us: micros(assumed.array_ns.unwrap_or(ARRAY_NS)),
            flash_latency_us: micros(assumed.flash_ns),
            memory_latency_us: micros(assumed.memory_ns),
        }
    }
}

/// Gain of a volume by more memory and by more flash, each alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VolumeAdvice {
    /// Its name.
    pub volume: String,
    /// Reason for missing advice; null if there is advice.
    #[schema(required)]
    pub nothing: Option<String>,
    /// Requests since the volume was attached.
    pub requests: u64,
    /// Bytes of recently used data.
    pub footprint_bytes: u64,
    /// Mean request rate since the volume was attached.
    #[schema(required)]
    pub requests_per_s: Option<f64>,
    /// Mean read rate since the volume was attached.
    #[schema(required)]
    pub reads_per_s: Option<f64>,
    /// Measured fraction of reads served whole from memory and flash; 0 for a trace.
    pub hit_ratio: f64,
    /// Mean latency of a read at that hit ratio, with the latencies of memory, flash and array below.
    pub latency_us: f64,
    /// Latency of the array.
    pub array_latency_us: f64,
    /// Whether it was measured at the volume's backing; otherwise assumed.
    pub array_latency_measured: bool,
    /// Reliability of the recommended purchases: `high` after a day in service, `medium` after an hour, `low` before.
    /// Without a recommendation `few-accesses`, or `deviation` if the measured hit ratio deviates from the curve.
    pub confidence: String,
    /// Advice on memory.
    pub memory: SideAdvice,
    /// Advice on flash.
    pub flash: SideAdvice,
}

/// Gain by one kind of cache, memory or flash: one side of the advice.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SideAdvice {
    /// Present size and hit ratio; absent for a trace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub today: Option<TodayAdvice>,
    /// Size past which the gain is below average: the size worth buying. Null for an even curve.
    #[schema(required)]
    pub knee_bytes: Option<u64>,
    /// Smallest size on sale with most of the gain that is possible within the quota. Null if nothing is worth buying,
    /// or if the confidence is insufficient.
    #[schema(required)]
    pub purchase: Option<PurchaseAdvice>,
    /// The volume's quota; null without one, and for a trace.
    #[serde(default)]
    #[schema(required)]
    pub quota: Option<QuotaAdvice>,
    /// Steps by growing size.
    pub steps: Vec<StepAdvice>,
}

/// Quota of a volume in one kind of cache.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QuotaAdvice {
    /// The setting that limits the volume: `memory_max`, `flash_max`, or `flash`, which disables flash for the volume.
    pub setting: String,
    /// Its value in force: a size, a percentage, or `false`.
    pub value: String,
    /// Bytes that the present cache may hold of the volume; null for a percentage of a cache that does not exist.
    #[schema(required)]
    pub limit_bytes: Option<u64>,
    /// The effect of a higher value: without any limit by this setting, and with a purchase, unless its size is 0. Null
    /// unless the quota binds, which means that it prevents a gain worth recommending, or if the confidence is
    /// insufficient.
    #[schema(required)]
    pub raise: Option<PurchaseAdvice>,
}

/// A recommended purchase with its effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PurchaseAdvice {
    /// Capacity of the SSD that is to take the place of all flash devices, or size of the memory to add; 0 for a change
    /// of a quota alone.
    pub size_bytes: u64,
    /// Expected fraction of reads served whole from memory and flash without the purchase, once both are filled.
    pub hit_ratio_before: f64,
    /// Expected mean latency of a read without it.
    pub latency_before_us: f64,
    /// Expected fraction of reads served whole from memory and flash.
    pub hit_ratio: f64,
    /// Expected mean latency of a read.
    pub latency_us: f64,
    /// Array reads saved per second, at most the array's present reads; null without a known rate.
    #[schema(required)]
    pub saved_reads_per_s: Option<f64>,
    /// Array disks saved with them; null without a known rate.
    #[schema(required)]
    pub saved_spindles: Option<f64>,
}

impl SideAdvice {
    /// The step past which the gain is below average.
    pub fn knee(&self) -> Option<&StepAdvice> {
        self.steps.iter().find(|step| Some(step.size_bytes) == self.knee_bytes)
    }
}

/// Present size and hit ratio of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TodayAdvice {
    /// Its size.
    pub size_bytes: u64,
    /// Hit ratio of reads.
    pub hit_ratio: f64,
}

/// A cache size with its effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StepAdvice {
    /// The cache's size.
    pub size_bytes: u64,
    /// Hit ratio of requests.
    pub hit_ratio: f64,
    /// Miss ratio of blocks or pages.
    pub miss_ratio: f64,
    /// Miss ratio of an LRU cache.
    pub lru_miss_ratio: f64,
    /// Mean latency of a request.
    pub latency_us: f64,
    /// Array disks saved by this step's hits. For a volume in service, only hits within its quota, and beyond those of
    /// its present memory and flash, count. Null without a known read rate.
    #[schema(required)]
    pub saved_spindles: Option<f64>,
}
