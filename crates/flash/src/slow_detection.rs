//! Detection of slow devices. A device that repeatedly takes ten times as long as usual is treated as failed: otherwise
//! every flush waits for it.
//!
//! Each device is compared with its own history and with its mirror. A write is compared with the mirror's write of the
//! same batch, a read with the mirror's recent reads. A cause that slows both down therefore counts
//! against neither: it is the usual latency under their load, and the history adopts it.
//!
//! A request waits behind others, so only its part of the queueing time counts. A read also waits behind writes that
//! the device has acknowledged from its buffer and still has to program.
//!
//! One slow request is not enough, requests that were in the queue at the same time count once, and the last log member
//! always stays.

use std::rc::Rc;

use seam::{DiskError, Nanos, Piece, Seam};

use crate::device::Device;
use crate::membership::{MemberFailure, remove_members};
use crate::number::MemberNo;
use crate::state::Inner;
use crate::state::latency::{REQUEST_COST_BLOCKS, RequestWork};

/// A request is slow only above this multiple of its mirror's latency, too.
const SLOW_FACTOR_TO_MIRROR: u64 = 4;
/// Maximum time by which a member may complete a batch later than its mirror.
pub const MIRROR_GRACE: Nanos = Nanos::from_secs(2);

/// A request in a device's queue, until it is dropped. It waits for the requests before it, so its latency is scaled by
/// its part of the queue.
pub struct QueuedRequest<'a, S: Seam> {
    inner: &'a Inner<S>,
    member: MemberNo,
    work: RequestWork,
    /// Weight of the queue when the request was sent: the request itself and, for a read, pending programs included.
    queue_weight: u64,
    started_at: Nanos,
}

impl<'a, S: Seam> QueuedRequest<'a, S> {
    /// Adds a request that is being sent to the queue.
    pub fn new(inner: &'a Inner<S>, member: MemberNo, work: RequestWork) -> Self {
        let now = inner.seam.now();
        let mut state = inner.state.borrow_mut();
        let queue_weight = state.latency_tracker(member).enqueue(work, now);
        QueuedRequest { inner, member, work, queue_weight, started_at: now }
    }

    /// The latency that the request would have had alone: its part of the elapsed time.
    pub fn exclusive_time(&self) -> Nanos {
        Nanos(self.inner.seam.now().since(self.started_at).0 * REQUEST_COST_BLOCKS / self.queue_weight)
    }
}

impl<S: Seam> Drop for QueuedRequest<'_, S> {
    fn drop(&mut self) {
        let mut state = self.inner.state.borrow_mut();
        state.latency_tracker(self.member).dequeue(self.work, self.inner.seam.now());
    }
}

/// The error of a member that is removed because it is too slow.
fn too_slow_error(operation: &str) -> DiskError {
    DiskError::Io(format!("ten times slower than it used to be at {operation}"))
}

/// Records the latencies of a batch that was written and flushed. Returns the members that have become too slow.
pub fn detect_slow_members<S: Seam>(inner: &Inner<S>, latencies: &[(MemberNo, Nanos)]) -> Vec<MemberFailure> {
    let Some(fastest) = latencies.iter().map(|(_, latency)| latency.0).min().filter(|_| latencies.len() > 1) else {
        return Vec::new();
    };
    let now = inner.seam.now();
    let mut state = inner.state.borrow_mut();
    let mut failures = Vec::new();
    for (member, latency) in latencies {
        let history = &mut state.latency_tracker(*member).writes;
        let is_unusual = history.record_latency(latency.0);
        let slow = is_unusual && latency.0 > SLOW_FACTOR_TO_MIRROR * fastest;
        if is_unusual && !slow {
            history.raise_usual_latency(latency.0);
        }
        // Batches never overlap, so each one counts.
        if history.update_slow_score(slow, now, now) {
            failures.push((*member, too_slow_error("writes and flushes")));
        }
    }
    failures
}

/// Reads the block at byte `offset_bytes` from a log member. Removes the member when it has become too slow, compared
/// with its own history and with its mirrors' recent reads.
pub async fn read_measured<S: Seam, T>(
    inner: &Rc<Inner<S>>,
    member: MemberNo,
    offset_bytes: u64,
    read: impl Future<Output = T>,
) -> T {
    let queued = QueuedRequest::new(inner, member, RequestWork::Read(1));
    let result = read.await;
    let (latency, started_at) = (queued.exclusive_time(), queued.started_at);
    drop(queued);
    let now = inner.seam.now();
    let mirrors: Vec<_> = inner.log_devices().into_iter().filter(|device| device.member != member).collect();
    let (is_too_slow, needs_comparison) = {
        let mut state = inner.state.borrow_mut();
        let fastest =
            mirrors.iter().filter_map(|mirror| state.latency_tracker(mirror.member).mean_read_latency_ns(now)).min();
        let tracker = state.latency_tracker(member);
        tracker.record_read(now, latency);
        match (tracker.reads.record_latency(latency.0), fastest) {
            (true, None) => (false, !std::mem::replace(&mut tracker.is_comparing, true)),
            (suspect, fastest) => {
                // Compare means: a single read may be delayed by chance.
                let recent_mean =
                    tracker.mean_read_latency_ns(now).map_or(latency.0, |recent_mean| recent_mean.min(latency.0));
                let slow = suspect && fastest.is_some_and(|fastest| recent_mean > SLOW_FACTOR_TO_MIRROR * fastest);
                if suspect && !slow {
                    tracker.reads.raise_usual_latency(latency.0);
                }
                (tracker.reads.update_slow_score(slow, started_at, now), false)
            }
        }
    };
    match mirrors.into_iter().next() {
        // The last log member always stays.
        None => {}
        Some(mirror) if needs_comparison => {
            let inner = Rc::clone(inner);
            inner.seam.clone().spawn(async move { compare_with_mirror(&inner, member, &mirror, offset_bytes).await });
        }
        Some(_) if is_too_slow => {
            // The store's state shows the outcome.
            let _ = remove_members(inner, vec![(member, too_slow_error("reads"))]).await;
        }
        Some(_) => {}
    }
    result
}

/// Reads the block of a slow read of `member` from the mirror, too, so that the next slow read has a comparison.
async fn compare_with_mirror<S: Seam>(inner: &Rc<Inner<S>>, member: MemberNo, mirror: &Device<S>, offset_bytes: u64) {
    if let Some(buffer) = inner.alloc() {
        let queued = QueuedRequest::new(inner, mirror.member, RequestWork::Read(1));
        let (result, _) = inner.read_from(mirror, offset_bytes, vec![Piece::whole(buffer)]).await;
        let latency = queued.exclusive_time();
        drop(queued);
        if result.is_ok() {
            inner.state.borrow_mut().latency_tracker(mirror.member).record_read(inner.seam.now(), latency);
        }
    }
    inner.state.borrow_mut().latency_tracker(member).is_comparing = false;
}
