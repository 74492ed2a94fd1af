//! Latency histograms, and requests to a backing by operation and cause.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A volume's latencies.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LatencyCountsReport {
    /// Of reads.
    pub read: Counts,
    /// Of writes.
    pub write: Counts,
}

/// Latencies of one kind of request, in buckets that add up over volumes and time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Counts {
    /// By growing latency.
    pub below: Vec<CountsBelow>,
    /// Requests that were counted.
    pub all: u64,
    /// Sum of their latencies.
    pub sum_us: f64,
}

/// Requests that took less than a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CountsBelow {
    /// The time.
    pub us: f64,
    /// How many took less.
    pub count: u64,
}

impl Counts {
    /// True for an omitted histogram; an empty histogram has its buckets.
    fn is_omitted(&self) -> bool {
        self.below.is_empty()
    }
}

/// Requests to a backing of one operation and cause.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BackingRequests {
    /// `read`, `write`, `zero` or `flush`.
    pub op: String,
    /// `client-read`, `destage`, `readahead` or `promotion`.
    pub cause: String,
    /// Requests.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Latencies at the backing; absent on the stream.
    #[serde(default, skip_serializing_if = "Counts::is_omitted")]
    pub latency: Counts,
}
