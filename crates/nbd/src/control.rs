//! The outside's hold on a connection: to stop it, and to know when it ended.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use seam::Nanos;

use crate::Options;
use crate::budget::Budget;
use crate::options::{READ_PIECE_BYTES, WRITE_PIECE_BYTES};

/// How often it is looked whether a client keeps others waiting.
pub(crate) const WATCH_PAUSE: Nanos = Nanos::from_secs(1);

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
    /// While replies are being sent: for how many [`WATCH_PAUSE`]s others have waited meanwhile.
    pub(crate) stalled_for: Cell<Option<u64>>,
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

/// What all connections of a server share: limits, and among whom they are split.
pub(crate) struct Shares {
    /// The limits.
    pub(crate) options: Options,
    /// Buffers for replies.
    pub(crate) budget: Budget,
    /// Connections now, by their number.
    pub(crate) clients: RefCell<BTreeMap<u64, Rc<Control>>>,
    /// What one connection may borrow of the budget without waiting for others, in bytes.
    share_bytes: Cell<usize>,
    /// Somebody looks for clients that keep others waiting.
    pub(crate) watched: Cell<bool>,
}

impl Shares {
    /// No connections yet, on a core with `pool_bytes` of buffers.
    pub(crate) fn new(options: Options, pool_bytes: usize) -> Shares {
        let (clients, share_bytes, watched) = Default::default();
        let shares = Shares { options, budget: Budget::new(pool_bytes), clients, share_bytes, watched };
        shares.recount();
        shares
    }

    /// One connection more.
    pub(crate) fn add(&self, number: u64, control: &Rc<Control>) {
        self.clients.borrow_mut().insert(number, Rc::clone(control));
        self.recount();
    }

    /// One connection less.
    pub(crate) fn remove(&self, number: u64) {
        self.clients.borrow_mut().remove(&number);
        self.recount();
    }

    /// Connections now.
    pub(crate) fn connections(&self) -> usize {
        self.clients.borrow().len()
    }

    /// What one connection may borrow of the budget without waiting for others, in bytes.
    pub(crate) fn share_bytes(&self) -> usize {
        self.share_bytes.get()
    }

    /// Bytes of requests and replies past which one connection's socket is not read; waiting requests hold no buffers.
    pub(crate) fn held_bytes(&self) -> usize {
        self.share_bytes().max(READ_PIECE_BYTES)
    }

    /// Bytes of waiting writes that one connection may hold.
    pub(crate) fn payload_bytes(&self) -> usize {
        (self.options.payload_bytes_max / self.connections().max(1)).max(WRITE_PIECE_BYTES)
    }

    /// Others have waited for another [`WATCH_PAUSE`]: sends away whoever has not taken his replies for too long.
    pub(crate) fn end_stalled(&self) {
        for client in self.clients.borrow().values() {
            let Some(pauses) = client.stalled_for.get() else { continue };
            client.stalled_for.set(Some(pauses + 1));
            if WATCH_PAUSE.0 * pauses >= self.options.stall_timeout.0 {
                client.ask(Stop::Now);
            }
        }
    }

    fn recount(&self) {
        self.share_bytes.set(self.budget.share_bytes(self.connections()).min(self.options.held_bytes_max));
    }
}
