//! A request that is acknowledged only when its blocks are on the backing.

use std::cell::{Cell, RefCell};

use seam::DiskError;

use crate::wait::Signal;

/// Counts a request's blocks down.
#[derive(Default)]
pub struct WriteWait {
    remaining: Cell<u64>,
    failure: RefCell<Option<DiskError>>,
    /// Something newer took the place of a part that was lost.
    replaced: Cell<bool>,
    done: Signal,
}

impl WriteWait {
    /// One more block has to be written.
    pub fn expect_one(&self) {
        self.remaining.set(self.remaining.get() + 1);
    }

    /// One block is on the backing, or could not get there.
    pub fn finish_one(&self, result: Result<&(), &DiskError>) {
        if let Err(error) = result {
            self.failure.borrow_mut().get_or_insert_with(|| error.clone());
        }
        self.remaining.set(self.remaining.get().checked_sub(1).expect("as many finish as were expected"));
        if self.remaining.get() == 0 {
            self.done.notify();
        }
    }

    /// A part was lost on its way, and something newer has to get there in its place.
    pub fn replace(&self) {
        self.replaced.set(true);
    }

    /// True when that happened to a part.
    pub fn was_replaced(&self) -> bool {
        self.replaced.get()
    }

    /// Waits for all blocks; the first failure counts.
    pub async fn all(&self) -> Result<(), DiskError> {
        self.done.wait_for(|| (self.remaining.get() == 0).then_some(())).await;
        self.failure.borrow_mut().take().map_or(Ok(()), Err)
    }
}
