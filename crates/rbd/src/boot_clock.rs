//! The clock of leases: it also runs while the machine is suspended, and all processes of a machine agree on it.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Validity of a check of the lock. A client whose lock is broken without the death of its process has been silent for
/// 30 s, the time-out of its watch: the helper ends before, and the daemon holds its requests.
pub const LEASE: Duration = Duration::from_secs(25);

/// Milliseconds since the boot.
pub fn boot_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// Time since a check that began at `began_ms`, if that is past its validity.
pub fn expired_for(began_ms: u64, now_ms: u64) -> Option<Duration> {
    let age = Duration::from_millis(now_ms.saturating_sub(began_ms));
    (age > LEASE).then_some(age)
}
