//! Memory budget for write data that waits for the engine, shared by all guests of a core; lists of waiting tasks; and
//! the count of requests whose front end has disconnected.

use std::cell::{Cell, RefCell};
use std::task::{Context, Waker};

/// A budget of bytes, lent to waiting writes.
pub(crate) struct PayloadPool {
    free_bytes: Cell<usize>,
    waiting: WakerList,
}

impl PayloadPool {
    /// A budget of `bytes`.
    pub(crate) fn new(bytes: usize) -> PayloadPool {
        PayloadPool { free_bytes: Cell::new(bytes), waiting: WakerList::default() }
    }

    /// Lends `bytes`, or registers the task of `context` to try again.
    pub(crate) fn lend(&self, bytes: usize, context: &Context<'_>) -> Option<PayloadLoan<'_>> {
        match self.free_bytes.get().checked_sub(bytes) {
            Some(left) => {
                self.free_bytes.set(left);
                Some(PayloadLoan { payload_pool: self, bytes })
            }
            None => {
                self.waiting.register(context);
                None
            }
        }
    }

    /// Wakes all waiting tasks.
    pub(crate) fn wake(&self) {
        self.waiting.wake();
    }
}

/// Bytes lent by a [`PayloadPool`]; dropping returns them.
pub(crate) struct PayloadLoan<'a> {
    payload_pool: &'a PayloadPool,
    bytes: usize,
}

impl Drop for PayloadLoan<'_> {
    fn drop(&mut self) {
        self.payload_pool.free_bytes.set(self.payload_pool.free_bytes.get() + self.bytes);
        self.payload_pool.waiting.wake();
    }
}

/// Wakers of tasks that wait for a change.
#[derive(Default)]
pub(crate) struct WakerList(RefCell<Vec<Waker>>);

impl WakerList {
    /// Registers the task of `context`, once.
    pub(crate) fn register(&self, context: &Context<'_>) {
        let mut waiting = self.0.borrow_mut();
        if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
            waiting.push(context.waker().clone());
        }
    }

    /// Wakes all registered tasks.
    pub(crate) fn wake(&self) {
        self.0.borrow_mut().drain(..).for_each(Waker::wake);
    }
}

/// Number of a volume's inflight requests whose front end has disconnected. New queues wait until it is 0, because a
/// late write could overwrite newer data.
#[derive(Default)]
pub(crate) struct UnfinishedCount {
    count: Cell<usize>,
    waiting: WakerList,
}

impl UnfinishedCount {
    /// Counts the requests of a front end that has disconnected.
    pub(crate) fn add(&self, count: usize) {
        self.count.set(self.count.get() + count);
    }

    /// Records that one of the counted requests has ended.
    pub(crate) fn request_ended(&self) {
        self.count.set(self.count.get().checked_sub(1).expect("the request was counted"));
        if self.count.get() == 0 {
            self.waiting.wake();
        }
    }

    /// True if the count is 0; otherwise registers the task of `context`.
    pub(crate) fn is_zero_or_register(&self, context: &Context<'_>) -> bool {
        if self.count.get() > 0 {
            self.waiting.register(context);
        }
        self.count.get() == 0
    }
}
