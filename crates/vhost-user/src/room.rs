//! Room for the data of writes that wait for the engine, of all guests of a core together; and who waits for what others leave behind.

use std::cell::{Cell, RefCell};
use std::task::{Context, Waker};

/// So many bytes, lent to whoever comes.
pub(crate) struct Room {
    free: Cell<usize>,
    waiting: Waiting,
}

impl Room {
    pub(crate) fn new(bytes: usize) -> Room {
        Room { free: Cell::new(bytes), waiting: Waiting::default() }
    }

    /// Lends `bytes`, or has the task of `context` look again later.
    pub(crate) fn lend(&self, bytes: usize, context: &Context<'_>) -> Option<Lent<'_>> {
        match self.free.get().checked_sub(bytes) {
            Some(left) => {
                self.free.set(left);
                Some(Lent { room: self, bytes })
            }
            None => {
                self.waiting.register(context);
                None
            }
        }
    }

    /// Has all who wait look again.
    pub(crate) fn wake(&self) {
        self.waiting.wake();
    }
}

/// Bytes of a [`Room`]; given back when dropped.
pub(crate) struct Lent<'a> {
    room: &'a Room,
    bytes: usize,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.room.free.set(self.room.free.get() + self.bytes);
        self.room.waiting.wake();
    }
}

/// Tasks that look again when something has changed.
#[derive(Default)]
pub(crate) struct Waiting(RefCell<Vec<Waker>>);

impl Waiting {
    pub(crate) fn register(&self, context: &Context<'_>) {
        let mut waiting = self.0.borrow_mut();
        if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
            waiting.push(context.waker().clone());
        }
    }

    pub(crate) fn wake(&self) {
        self.0.borrow_mut().drain(..).for_each(Waker::wake);
    }
}

/// Requests of a volume whose front end has gone, and which are still under way. Until they have ended nobody else's are begun: one of
/// them could land on what came later.
#[derive(Default)]
pub(crate) struct Orphans {
    count: Cell<usize>,
    waiting: Waiting,
}

impl Orphans {
    pub(crate) fn add(&self, count: usize) {
        self.count.set(self.count.get() + count);
    }

    pub(crate) fn one_less(&self) {
        self.count.set(self.count.get().checked_sub(1).expect("what ends was counted"));
        if self.count.get() == 0 {
            self.waiting.wake();
        }
    }

    /// True when there are none; else the task of `context` looks again.
    pub(crate) fn are_gone(&self, context: &Context<'_>) -> bool {
        if self.count.get() > 0 {
            self.waiting.register(context);
        }
        self.count.get() == 0
    }
}
