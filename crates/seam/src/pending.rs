//! Requests that a disk has not answered, and since when.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use crate::Nanos;

/// Requests that begin within this time of each other are counted together, so that a request costs no look-up.
const BUCKET: Nanos = Nanos::from_millis(100);

/// Requests that began at about the same time.
#[derive(Debug)]
struct Bucket {
    begun: Nanos,
    requests: usize,
}

/// The requests under way at one disk. A clone is another handle to the same.
#[derive(Clone, Debug, Default)]
pub struct PendingRequests(Rc<RefCell<VecDeque<Bucket>>>);

/// A request under way, until it is dropped.
#[derive(Debug)]
pub struct PendingRequest {
    all: PendingRequests,
    begun: Nanos,
}

impl PendingRequests {
    /// A request begins.
    pub fn begin(&self, now: Nanos) -> PendingRequest {
        let mut buckets = self.0.borrow_mut();
        let begun = match buckets.back_mut().filter(|last| now.since(last.begun) < BUCKET) {
            Some(last) => {
                last.requests += 1;
                last.begun
            }
            None => {
                buckets.push_back(Bucket { begun: now, requests: 1 });
                now
            }
        };
        PendingRequest { all: self.clone(), begun }
    }

    /// When the oldest of them began, up to a tenth of a second early; `None` when none is under way.
    pub fn oldest(&self) -> Option<Nanos> {
        self.0.borrow().front().map(|bucket| bucket.begun)
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        let mut buckets = self.all.0.borrow_mut();
        let index = buckets.iter().rposition(|bucket| bucket.begun == self.begun);
        let index = index.expect("a bucket stays while a request of it is under way");
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
    fn the_oldest_request_counts_however_many_end_after_it() {
        let (pending, at) = (PendingRequests::default(), Nanos::from_millis);
        let hung = pending.begin(at(500));
        for ms in (1_000..60_000).step_by(100) {
            drop(pending.begin(at(ms)));
        }
        let later = pending.begin(at(60_000));
        assert_eq!(pending.oldest(), Some(at(500)));
        assert_eq!(pending.0.borrow().len(), 2, "an empty bucket goes");
        drop(hung);
        assert_eq!(pending.oldest(), Some(at(60_000)));
        drop(later);
        assert_eq!(pending.oldest(), None);
    }
}
