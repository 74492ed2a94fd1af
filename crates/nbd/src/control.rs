//! The outside's hold on a connection: to stop it, and to know when it ended.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use crate::Options;
use crate::options::{READ_PIECE_BYTES, WRITE_PIECE_BYTES};

/// How a connection is to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stop {
    /// Not at all.
    #[default]
    No,
    /// Take no further request, finish and answer those under way.
    Drain,
    /// At once.
    Now,
}

/// One connection, as the server sees it.
#[derive(Default)]
pub(crate) struct Control {
    stop: Cell<Stop>,
    waker: RefCell<Option<Waker>>,
    /// Name of the export in use; empty before.
    pub(crate) export: RefCell<String>,
}

impl Control {
    /// What is wanted.
    pub(crate) fn stop(&self) -> Stop {
        self.stop.get()
    }

    /// Asks the connection to end; a stronger wish stays.
    pub(crate) fn ask(&self, stop: Stop) {
        self.stop.set(self.stop.get().max(stop));
        self.wake();
    }

    /// Has the connection's task look again.
    pub(crate) fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// Remembers whom to wake.
    pub(crate) fn register(&self, context: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        match &*waker {
            Some(known) if known.will_wake(context.waker()) => (),
            _ => *waker = Some(context.waker().clone()),
        }
    }

    /// `work`, unless `limit` ends first or the connection is asked to end.
    pub(crate) async fn until<T>(&self, limit: impl Future<Output = ()>, work: impl Future<Output = T>) -> Option<T> {
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

/// What all connections of a server share: limits, and among how many they are split.
pub(crate) struct Shares {
    /// The limits.
    pub(crate) options: Options,
    /// Connections now.
    pub(crate) connections: Cell<usize>,
}

impl Shares {
    /// Bytes of requests and replies that one connection may hold on a core with `pool_bytes` of buffers.
    pub(crate) fn held_bytes(&self, pool_bytes: usize) -> usize {
        let even = pool_bytes / 4 / self.connections();
        even.min(self.options.held_bytes_max).max(READ_PIECE_BYTES)
    }

    /// Clients at once, at least 1.
    pub(crate) fn connections(&self) -> usize {
        self.connections.get().max(1)
    }

    /// Bytes of waiting writes that one connection may hold.
    pub(crate) fn payload_bytes(&self) -> usize {
        (self.options.payload_bytes_max / self.connections()).max(WRITE_PIECE_BYTES)
    }
}
