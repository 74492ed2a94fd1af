//! Queue of requests to a volume with a limit: they enter in order at the rate of the limit, hits as well as misses.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use qos::{Limiter, Limits};
use seam::{Nanos, Seam};

use crate::wait::OneShotEvent;

/// Longest delay until waiting requests notice a changed limit.
const RECHECK_PERIOD: Nanos = Nanos::from_millis(100);

/// The queue of waiting requests, and the limiter that admits them.
#[derive(Default)]
pub struct LimitQueue {
    limiter: RefCell<Limiter>,
    /// True while a limit is set.
    has_limit: Cell<bool>,
    /// True once the limit no longer applies to any request.
    is_lifted: Cell<bool>,
    /// Length in bytes of each waiting request.
    queue: RefCell<VecDeque<(u64, Rc<OneShotEvent>)>>,
    /// True while the task that admits waiting requests runs.
    is_pacing: Cell<bool>,
    /// Number of requests that waited.
    pub waited_requests: Cell<u64>,
    /// Total time that they waited.
    pub total_wait: Cell<Nanos>,
}

impl LimitQueue {
    /// True while a limit is set, or a request still waits for one.
    pub fn is_limited(&self) -> bool {
        !self.is_lifted.get() && (self.has_limit.get() || self.is_pacing.get())
    }

    /// Changes the limits, for waiting requests as well.
    pub fn set_limits(&self, limits: Limits, now: Nanos) {
        self.limiter.borrow_mut().change(limits, now);
        self.has_limit.set(!limits.is_none());
    }

    /// Admits all waiting requests. [`LimitQueue::is_limited`] is false from now on, so that callers do not wait.
    pub fn lift(&self) {
        self.is_lifted.set(true);
        self.release();
    }

    /// Admits all waiting requests: the volume is being closed and answers them with an error.
    pub fn release(&self) {
        self.queue.take().iter().for_each(|(_, waiter)| waiter.set());
    }

    /// Waits until the limit admits a request of `request_bytes`; returns the time waited.
    pub async fn wait<S: Seam>(self: &Rc<Self>, seam: &S, request_bytes: u64) -> Nanos {
        let since = seam.now();
        if !self.is_pacing.get() {
            let mut limiter = self.limiter.borrow_mut();
            if limiter.next_at(request_bytes) <= since {
                limiter.take(since, request_bytes);
                return Nanos::ZERO;
            }
        }
        let waiter = Rc::<OneShotEvent>::default();
        self.queue.borrow_mut().push_back((request_bytes, Rc::clone(&waiter)));
        self.start_pacing(seam);
        waiter.wait().await;
        let waited = seam.now().since(since);
        self.waited_requests.set(self.waited_requests.get() + 1);
        self.total_wait.set(self.total_wait.get() + waited);
        waited
    }

    /// Starts the task that admits waiting requests at the rate of the limit, unless it runs.
    fn start_pacing<S: Seam>(self: &Rc<Self>, seam: &S) {
        if self.is_pacing.replace(true) {
            return;
        }
        let (queue, task_seam) = (Rc::clone(self), seam.clone());
        seam.spawn(async move {
            while let Some(next) = queue.admit_due(task_seam.now()) {
                task_seam.sleep_until(next.min(task_seam.now() + RECHECK_PERIOD)).await;
            }
            queue.is_pacing.set(false);
        });
    }

    /// Admits the requests that are due. Returns the time at which the next one is due, if any still waits.
    fn admit_due(&self, now: Nanos) -> Option<Nanos> {
        loop {
            let bytes = self.queue.borrow().front()?.0;
            let next = self.limiter.borrow().next_at(bytes);
            if next > now {
                return Some(next);
            }
            self.limiter.borrow_mut().take(now, bytes);
            let (_, waiter) = self.queue.borrow_mut().pop_front().expect("the queue is not empty");
            waiter.set();
        }
    }
}
