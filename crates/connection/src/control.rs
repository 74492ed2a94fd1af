//! The server's handle to a connection: requests its end, and measures stalled sends.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// Requested end of a connection, by rising urgency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// None.
    #[default]
    No,
    /// Like [`Stop::Drain`], but a partly received request is completed first. The stream stays open for a successor if
    /// the protocol permits it.
    HandOver,
    /// Accept no further request; answer the requests in flight.
    Drain,
    /// End at once.
    Now,
}

/// Handle to one connection.
#[derive(Default)]
pub struct Control {
    stop: Cell<Stop>,
    waker: RefCell<Option<Waker>>,
    /// During a send: number of [`crate::clients::STALL_CHECK_INTERVAL`]s for which others have waited.
    stalled_for: Cell<Option<u64>>,
}

impl Control {
    /// The requested end.
    pub fn stop(&self) -> Stop {
        self.stop.get()
    }

    /// Requests the end of the connection; a more urgent request stays in force.
    pub fn request_stop(&self, stop: Stop) {
        self.stop.set(self.stop.get().max(stop));
        self.wake();
    }

    /// Wakes the connection's task.
    pub fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// Records the start or the end of a send.
    pub fn set_sending(&self, is_sending: bool) {
        self.stalled_for.set(is_sending.then_some(0));
    }

    /// Counts an interval for which others have waited; returns the intervals counted since the send began.
    pub(crate) fn count_stall(&self) -> u64 {
        let Some(intervals) = self.stalled_for.get() else { return 0 };
        self.stalled_for.set(Some(intervals + 1));
        intervals
    }

    /// Registers the waker of the connection's task.
    pub fn register(&self, context: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        match &*waker {
            Some(known) if known.will_wake(context.waker()) => (),
            _ => *waker = Some(context.waker().clone()),
        }
    }

    /// Runs `work`; returns `None` if `limit` completes first or the end of the connection is requested.
    pub async fn until<T>(&self, limit: impl Future<Output = ()>, work: impl Future<Output = T>) -> Option<T> {
        let (mut limit, mut work) = (pin!(limit), pin!(work));
        std::future::poll_fn(|context| {
            self.register(context);
            if self.stop() != Stop::No {
                return Poll::Ready(None);
            }
            if let Poll::Ready(done) = work.as_mut().poll(context) {
                return Poll::Ready(Some(done));
            }
            limit.as_mut().poll(context).map(|()| None)
        })
        .await
    }
}
