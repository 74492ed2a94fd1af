//! Unanswered requests of a disk, with their start times.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use crate::Nanos;

/// Requests that begin within this time of each other share a bucket, so `begin` needs no search and `drop` a
/// short one.
const BUCKET_WIDTH: Nanos = Nanos::from_millis(100);

/// Requests that began at about the same time.
#[derive(Debug)]
struct Bucket {
    started_at: Nanos,
    requests: usize,
}

/// Requests in flight at one disk. A clone is another handle to the same set.
#[derive(Clone, Debug, Default)]
pub struct PendingRequests(Rc<RefCell<VecDeque<Bucket>>>);

/// Guard of a request in flight; dropping it ends the request.
#[derive(Debug)]
pub struct PendingRequest {
    pending: PendingRequests,
    started_at: Nanos,
}

impl PendingRequests {
    /// Counts a request that begins at `now`.
    pub fn begin(&self, now: Nanos) -> PendingRequest {
        let mut buckets = self.0.borrow_mut();
        let started_at = match buckets.back_mut().filter(|last| now.since(last.started_at) < BUCKET_WIDTH) {
            Some(last) => {
                last.requests += 1;
                last.started_at
            }
            None => {
                buckets.push_back(Bucket { started_at: now, requests: 1 });
                now
            }
        };
        PendingRequest { pending: self.clone(), started_at }
    }

    /// Start of the oldest request in flight, up to a tenth of a second early; `None` if none is in flight.
    pub fn oldest_started_at(&self) -> Option<Nanos> {
        self.0.borrow().front().map(|bucket| bucket.started_at)
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        let mut buckets = self.pending.0.borrow_mut();
        let index = buckets.iter().rposition(|bucket| bucket.started_at == self.started_at);
        let index = index.expect("a bucket exists while one of its requests is in flight");
        buckets[index].requests -= 1;
        if buckets[index].requests == 0 {
            buckets.remove(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_pending_request_counts_despite_later_completions() {
        let (pending, at) = (PendingRequests::default(), Nanos::from_millis);
        let hung = pending.begin(at(500));
        for ms in (1_000..60_000).step_by(100) {
            drop(pending.begin(at(ms)));
        }
        let later = pending.begin(at(60_000));
        assert_eq!(pending.oldest_started_at(), Some(at(500)));
        assert_eq!(pending.0.borrow().len(), 2, "an empty bucket is removed");
        drop(hung);
        assert_eq!(pending.oldest_started_at(), Some(at(60_000)));
        drop(later);
        assert_eq!(pending.oldest_started_at(), None);
    }
}
