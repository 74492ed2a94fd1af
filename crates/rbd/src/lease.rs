//! The lease of the lock: requests are served only while a check of the lock is recent.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rbd::{LEASE, boot_ms, expired_for};

/// Longest pause between two checks of the lock at the storage. A change of the image's header ends it.
pub const CHECK_PAUSE: Duration = Duration::from_secs(5);

/// Time-out of the watch of a silent client, after which another one breaks its lock.
const WATCH_TIMEOUT: Duration = Duration::from_secs(30);

const _: () = {
    assert!(LEASE.as_secs() < WATCH_TIMEOUT.as_secs(), "the lease ends before the watch of a silent client does");
    assert!(LEASE.as_secs() > 3 * CHECK_PAUSE.as_secs(), "a lease outlasts checks that have no answer");
};

/// The time for which the last successful check of the lock is valid, by a clock that also runs while the machine is
/// suspended.
pub struct Lease(AtomicU64);

impl Lease {
    /// A lease from now on.
    pub fn begin() -> Lease {
        Lease(AtomicU64::new(boot_ms()))
    }

    /// When it began, or the check that renewed it last, in milliseconds of this boot.
    pub fn began_ms(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Time since then.
    pub fn elapsed(&self) -> Duration {
        Duration::from_millis(boot_ms().saturating_sub(self.began_ms()))
    }

    /// Renews it with a check that began at `began_ms`.
    pub fn renew(&self, began_ms: u64) {
        self.0.fetch_max(began_ms, Ordering::AcqRel);
    }

    pub fn is_expired_at(&self, now_ms: u64) -> bool {
        expired_for(self.began_ms(), now_ms).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_ends_a_fixed_time_after_the_last_successful_check() {
        let (lease, ms) = (Lease(AtomicU64::new(1000)), LEASE.as_millis() as u64);
        assert!(!lease.is_expired_at(1000 + ms));
        assert!(lease.is_expired_at(1001 + ms));
        lease.renew(9000);
        lease.renew(2000);
        assert!(!lease.is_expired_at(9000 + ms), "an older check does not shorten it");
        assert!(lease.is_expired_at(9001 + ms));
    }
}
