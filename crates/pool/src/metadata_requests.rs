//! Metadata requests of a group in flight, and those of them that are late (`late.rs`).

use std::cell::{Cell, RefCell};

use seam::Nanos;

/// Time after which a request is late if a metadata copy answers.
pub(crate) const TIMEOUT: Nanos = Nanos::from_secs(5);

/// Metadata requests of a group in flight. They outlast the group if it is removed.
#[derive(Debug, Default)]
pub(crate) struct MetadataRequests {
    begun_at: RefCell<Vec<Nanos>>,
    late: Cell<u32>,
    /// A task waits for the end of the late ones, to write the superblock that the group missed.
    is_awaited: Cell<bool>,
}

impl MetadataRequests {
    /// Counts a request as late.
    pub fn begin_late(&self) {
        self.late.update(|late| late + 1);
    }

    /// A late request has ended.
    pub fn end_late(&self) {
        self.late.update(|late| late - 1);
    }

    /// True while a late request has not ended.
    pub fn are_late(&self) -> bool {
        self.late.get() > 0
    }

    /// Begins to await the end of late requests. False if there are none, or if a task awaits it already.
    pub fn begin_wait(&self) -> bool {
        self.are_late() && !self.is_awaited.replace(true)
    }

    /// Ends [`MetadataRequests::begin_wait`].
    pub fn end_wait(&self) {
        self.is_awaited.set(false);
    }

    /// Begins a request.
    pub fn begin(&self, begun_at: Nanos) {
        self.begun_at.borrow_mut().push(begun_at);
    }

    /// Ends a request that began at this time.
    pub fn end(&self, begun_at: Nanos) {
        let mut all = self.begun_at.borrow_mut();
        let ended = all.iter().position(|begun| *begun == begun_at).expect("the request has begun");
        all.swap_remove(ended);
    }

    /// True if the group answers its requests in time, as far as is known.
    pub fn are_in_time(&self, now: Nanos) -> bool {
        !self.are_late() && self.begun_at.borrow().iter().all(|begun_at| now.since(*begun_at) < TIMEOUT)
    }
}
