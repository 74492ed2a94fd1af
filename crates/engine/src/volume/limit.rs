//! The entry of a volume with a limit: requests come in at the pace that it allows, in their order, hits as well as misses.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use qos::{Limiter, Limits};
use seam::{Nanos, Seam};

use crate::wait::Grant;

/// How long a change of the limit may take to be noticed by those who wait.
const LOOK_EVERY: Nanos = Nanos::from_millis(100);

/// Who waits outside, and what may come in.
#[derive(Default)]
pub struct Entry {
    limiter: RefCell<Limiter>,
    limited: Cell<bool>,
    /// Nobody is held to anything any more.
    lifted: Cell<bool>,
    /// Bytes of each request that waits.
    queue: RefCell<VecDeque<(u64, Rc<Grant>)>>,
    pacing: Cell<bool>,
    /// Requests that waited.
    pub waits: Cell<u64>,
    /// How long they waited together.
    pub waited: Cell<Nanos>,
}

impl Entry {
    /// True while there is a limit, or somebody who waits because of one.
    pub fn is_limited(&self) -> bool {
        !self.lifted.get() && (self.limited.get() || self.pacing.get())
    }

    /// Other limits from now on, for those who wait as well.
    pub fn set_limits(&self, limits: Limits, now: Nanos) {
        self.limiter.borrow_mut().change(limits, now);
        self.limited.set(!limits.is_none());
    }

    /// Lets everybody in who waits, and from now on whoever comes.
    pub fn lift(&self) {
        self.lifted.set(true);
        self.release();
    }

    /// Lets everybody in who waits: the volume is being closed, and will tell them so.
    pub fn release(&self) {
        self.queue.take().iter().for_each(|(_, waiter)| waiter.give());
    }

    /// Comes in, as soon as the limit allows a request of `bytes`; how long that took.
    pub async fn pass<S: Seam>(self: &Rc<Self>, seam: &S, bytes: u64) -> Nanos {
        let since = seam.now();
        if !self.pacing.get() {
            let mut limiter = self.limiter.borrow_mut();
            if limiter.next_at(bytes) <= since {
                limiter.take(since, bytes);
                return Nanos::ZERO;
            }
        }
        let waiter = Rc::<Grant>::default();
        self.queue.borrow_mut().push_back((bytes, Rc::clone(&waiter)));
        self.keep_pace(seam);
        waiter.given().await;
        let waited = seam.now().since(since);
        self.waits.set(self.waits.get() + 1);
        self.waited.set(self.waited.get() + waited);
        waited
    }

    fn keep_pace<S: Seam>(self: &Rc<Self>, seam: &S) {
        if self.pacing.replace(true) {
            return;
        }
        let (entry, own) = (Rc::clone(self), seam.clone());
        seam.spawn(async move {
            while let Some(next) = entry.let_in(own.now()) {
                own.sleep_until(next.min(own.now() + LOOK_EVERY)).await;
            }
            entry.pacing.set(false);
        });
    }

    /// Lets in whose time has come; when the next one's comes, if anybody still waits.
    fn let_in(&self, now: Nanos) -> Option<Nanos> {
        loop {
            let bytes = self.queue.borrow().front()?.0;
            let next = self.limiter.borrow().next_at(bytes);
            if next > now {
                return Some(next);
            }
            self.limiter.borrow_mut().take(now, bytes);
            let (_, waiter) = self.queue.borrow_mut().pop_front().expect("looked at a moment ago");
            waiter.give();
        }
    }
}
