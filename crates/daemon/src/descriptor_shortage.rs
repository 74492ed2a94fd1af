//! Detection of a shortage of file descriptors, reported once at its start and once at its end.

use rustix::process::{Resource, getrlimit};

use super::events::Journal;
use logging::{self as log, DAEMON};

/// Consecutive checks, one per second, without a failed accept after which the shortage is over.
const QUIET_CHECKS: u32 = 10;

/// State of the detection.
#[derive(Default)]
pub struct DescriptorShortage {
    /// Number of failed accepts at the last check.
    failed_accepts: u64,
    /// Checks left until the shortage is over; 0 if there is none.
    checks_left: u32,
}

impl DescriptorShortage {
    /// Compares the number of failed accepts since the start of the daemon with the last check: true if a shortage
    /// begins, false if it ends.
    fn update(&mut self, failed_accepts: u64) -> Option<bool> {
        let left_before = self.checks_left;
        let is_new = std::mem::replace(&mut self.failed_accepts, failed_accepts) != failed_accepts;
        self.checks_left = if is_new { QUIET_CHECKS } else { left_before.saturating_sub(1) };
        match (left_before, self.checks_left) {
            (0, 1..) => Some(true),
            (1.., 0) => Some(false),
            _ => None,
        }
    }

    /// Reports the start and the end of a shortage. To be called every second.
    pub fn report(&mut self, journal: &Journal) {
        let Some(begins) = self.update(seam::real::descriptor_shortages()) else { return };
        let text = match begins {
            true => {
                let limit = getrlimit(Resource::Nofile).current;
                let limit = limit.map_or_else(|| "no limit".to_owned(), |limit| limit.to_string());
                format!(
                    "no file descriptor is left (of {limit}): new clients wait until others disconnect; raise \
                     LimitNOFILE= of the service, or reduce the number of clients. The control socket has a reserved \
                     descriptor"
                )
            }
            false => "file descriptors are available again".to_owned(),
        };
        if begins {
            log::error!(target: DAEMON, "{text}")
        } else {
            log::info!(target: DAEMON, "{text}")
        }
        journal.record_daemon_event(&text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortage_and_its_end_are_reported_once_each() {
        let mut shortage = DescriptorShortage::default();
        let mut reported = Vec::new();
        for (second, failed_accepts) in [0, 0, 5, 15, 15, 25].into_iter().chain([25; 20]).chain([26]).enumerate() {
            reported.extend(shortage.update(failed_accepts).map(|begins| (second, begins)));
        }
        assert_eq!(reported, [(2, true), (15, false), (26, true)]);
    }
}
