//! Measurements of single requests: where a request spends its time, all latencies, and the slowest requests.

mod latency;
mod request_latency;
mod slow_requests;

pub use latency::{LatencyTrace, OpKind, Step};
pub use request_latency::{LatencyParts, LatencyStats, RequestLatency};
pub use slow_requests::{SlowRequest, SlowRequests};
