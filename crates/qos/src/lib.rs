//! Quality of service, as arithmetic: limits at a volume's entry, shares and reservations among the clients of the same
//! disks, and detection of congestion.
//!
//! This crate never waits and does no I/O: callers pass the time, the cost of a request and its completion.

mod cost;
mod disk_clock;
mod limit;
mod schedule;
mod throughput;
mod window;

pub use cost::Cost;
pub use disk_clock::{DiskClock, TICK_EVERY};
pub use limit::{LIMIT_REQUEST_BYTES, Limiter, Limits};
pub use schedule::{Entitlement, Fault, Scheduler};
pub use window::{Priority, Threshold, Window};
