//! Quality of service, as arithmetic: limits that hold at a volume's entry, shares and reservations among those who wait for the same
//! disks, and when such disks are congested at all.
//!
//! Nothing here waits, and nothing knows a disk: callers say what time it is, what a request costs and when it ended.

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
