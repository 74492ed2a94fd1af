//! Measurements of single requests: where a request spends its time, and the slowest ones.

mod latency;
mod slow_requests;

pub use latency::{LatencyTrace, OpKind, Step};
pub use slow_requests::{SlowRequest, SlowRequests};
