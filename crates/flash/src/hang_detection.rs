//! Detection of hung members: they are removed from service, and their pending requests fail.
//!
//! While requests are in flight, a task checks every [`CHECK_INTERVAL`] whether the oldest request of each member is
//! still the same. Age is counted in checks, not in time: after a stall of the process or the machine all members
//! respond late, and none of them has failed.
//!
//! A member that has hung for [`HANG_TIMEOUT`] while a log member responds is removed, so reads and writes wait only
//! for its mirror. If no log member responds, [`LAST_MEMBER_HANG_TIMEOUT`] applies. Linux resets a SCSI or NVMe disk
//! after as long, so a reset can still help. If the last member is removed, the store and its flushes fail. An image
//! with the log is never removed.

use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use seam::{Disk, DiskError, Nanos, Seam};

use crate::log_members::log_placement;
use crate::member_disk::LogPlacement;
use crate::membership::{MemberFailure, remove_members};
use crate::number::MemberNo;
use crate::slow_detection::MIRROR_GRACE;
use crate::state::Inner;

/// Time between two checks.
const CHECK_INTERVAL: Nanos = Nanos::from_millis(250);
/// Time after which a hung member is removed while another log member responds.
const HANG_TIMEOUT: Nanos = MIRROR_GRACE;
/// Time after which a hung member is removed while no log member responds.
const LAST_MEMBER_HANG_TIMEOUT: Nanos = Nanos::from_secs(30);
/// Maximum age of the oldest request of a responsive member.
const RESPONSIVE_AGE_MAX: Nanos = Nanos(2 * CHECK_INTERVAL.0);

/// The oldest request of each member: its start time, and how long it has been the oldest (a multiple of
/// [`CHECK_INTERVAL`]).
#[derive(Default)]
struct OldestRequests(BTreeMap<MemberNo, (Nanos, Nanos)>);

impl OldestRequests {
    /// Records a check of a member's oldest request. Returns how long this request has been the oldest.
    fn record_check(&mut self, member: MemberNo, oldest: Option<Nanos>) -> Nanos {
        let Some(oldest) = oldest else {
            self.0.remove(&member);
            return Nanos::ZERO;
        };
        let before = self.0.get(&member).filter(|(known, _)| *known == oldest);
        let hung_for = before.map_or(Nanos::ZERO, |(_, hung_for)| *hung_for + CHECK_INTERVAL);
        self.0.insert(member, (oldest, hung_for));
        hung_for
    }
}

/// Starts to watch the members, until no request is in flight.
pub fn start_watch<S: Seam>(inner: &Inner<S>) {
    if let Some(inner) = inner.self_ref.upgrade() {
        inner.seam.spawn(watch(inner.seam.clone(), Rc::downgrade(&inner)));
    }
}

/// Checks the members while requests are in flight.
async fn watch<S: Seam>(seam: S, weak: Weak<Inner<S>>) {
    let mut oldest_requests = OldestRequests::default();
    loop {
        seam.sleep(CHECK_INTERVAL).await;
        let Some(inner) = weak.upgrade() else { return };
        if inner.in_flight_requests.end_watch_if_idle() {
            return;
        }
        let failures = find_hung(&inner, &mut oldest_requests);
        if !failures.is_empty() {
            // In its own task: a second member may hang while the store writes the first one's removal to it.
            seam.spawn(async move {
                // The store's state shows the outcome.
                let _ = remove_members(&inner, failures).await;
            });
        }
    }
}

/// Members that have hung for too long. A device that has hung during its resync is aborted: the job fails.
fn find_hung<S: Seam>(inner: &Inner<S>, oldest_requests: &mut OldestRequests) -> Vec<MemberFailure> {
    let members = inner.in_service();
    let hung_times: Vec<_> = members
        .iter()
        .map(|device| (device.member, oldest_requests.record_check(device.member, device.disk.oldest_unanswered())))
        .collect();
    let state = inner.state.borrow();
    let is_responsive = |(member, hung_for): &(MemberNo, Nanos)| {
        state.superblock.carries_log(*member) && *hung_for <= RESPONSIVE_AGE_MAX
    };
    let timeout = if hung_times.iter().any(is_responsive) { HANG_TIMEOUT } else { LAST_MEMBER_HANG_TIMEOUT };
    if let Some(resyncing) = &state.resyncing_device
        && oldest_requests.record_check(resyncing.member, resyncing.disk.oldest_unanswered()) >= timeout
    {
        resyncing.abort.abort();
    }
    // Nothing could take the place of an image: its requests wait for the cluster.
    let is_kept = |member| log_placement(&state) == LogPlacement::Image && state.superblock.carries_log(member);
    let hung_member = |(member, hung_for): (MemberNo, Nanos)| {
        let error = DiskError::Io(format!("no answer to a request for {timeout}"));
        (hung_for >= timeout && !is_kept(member)).then_some((member, error))
    };
    hung_times.into_iter().filter_map(hung_member).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn member_hangs_while_its_oldest_request_stays_the_same() {
        let (mut oldest_requests, at) = (OldestRequests::default(), |ms| Some(Nanos::from_millis(ms)));
        assert_eq!(
            [at(1), at(1), at(1)].map(|oldest| oldest_requests.record_check(MemberNo(0), oldest)),
            [Nanos::ZERO, CHECK_INTERVAL, CHECK_INTERVAL + CHECK_INTERVAL]
        );
        assert_eq!(oldest_requests.record_check(MemberNo(0), at(500)), Nanos::ZERO, "another request is the oldest");
        assert_eq!(
            [at(500), None, at(500)].map(|oldest| oldest_requests.record_check(MemberNo(0), oldest)),
            [CHECK_INTERVAL, Nanos::ZERO, Nanos::ZERO]
        );
    }
}
