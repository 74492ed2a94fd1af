//! The outside's hold on a connection: to stop it, and to know when it ended.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// How a connection is to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// Not at all.
    #[default]
    No,
    /// As [`Stop::Drain`], after what the client has begun to send; what can be is left open for a successor.
    HandOver,
    /// Take no further request, finish and answer those under way.
    Drain,
    /// At once.
    Now,
}

/// One connection, as the server sees it.
#[derive(Default)]
pub struct Control {
    stop: Cell<Stop>,
    waker: RefCell<Option<Waker>>,
    /// While replies are being sent: for how many [`crate::clients::WATCH_PAUSE`]s others have waited meanwhile.
    stalled_for: Cell<Option<u64>>,
}

impl Control {
    /// What is wanted.
    pub fn stop(&self) -> Stop {
        self.stop.get()
    }

    /// Asks the connection to end; a stronger wish stays.
    pub fn ask(&self, stop: Stop) {
        self.stop.set(self.stop.get().max(stop));
        self.wake();
    }

    /// Has the connection's task look again.
    pub fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// Replies are being sent from now on, or no longer.
    pub fn sends(&self, sends: bool) {
        self.stalled_for.set(sends.then_some(0));
    }

    /// Others have waited once more: for how many pauses replies have been being sent meanwhile.
    pub(crate) fn count_stall(&self) -> u64 {
        let Some(pauses) = self.stalled_for.get() else { return 0 };
        self.stalled_for.set(Some(pauses + 1));
        pauses
    }

    /// Remembers whom to wake.
    pub fn register(&self, context: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        match &*waker {
            Some(known) if known.will_wake(context.waker()) => (),
            _ => *waker = Some(context.waker().clone()),
        }
    }

    /// `work`, unless `limit` ends first or the connection is asked to end.
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
