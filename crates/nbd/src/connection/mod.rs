//! One client in transmission: reads requests and sends replies, both at once, in one task.
//!
//! The reading half serves what can be served at once and queues the replies; when it has nothing more to decode, the
//! writing half, polled right after it, sends them all in one call. What has to wait is a task of its own (`slow`), which
//! queues its reply and wakes this one. So a request at depth one costs a receive and a send, and neither task nor wake-up.

mod outgoing;
mod requests;
mod slow;

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

use engine::Volume;
use front::{Account, Control, Stop};
use seam::{Gather, Incoming, Seam, StreamReader, StreamWriter};

use self::requests::Last;
use crate::negotiation::Agreed;
use crate::shares::Shares;

/// Rounds of reading and sending before other tasks of the core get their turn.
const ROUNDS_MAX: usize = 16;

/// What the reading half waits for, besides its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    /// Nothing else.
    Socket,
    /// That the writing half was polled once.
    Sent,
    /// That less is held.
    Room,
}

/// The state that a connection's halves and the tasks of its requests share.
pub(crate) struct Connection<S: Seam> {
    seam: S,
    volume: Volume<S>,
    structured: bool,
    allocation: bool,
    control: Rc<Control>,
    shares: Rc<Shares>,
    out: RefCell<Gather<S>>,
    /// Bytes that are being sent.
    sending: Cell<usize>,
    /// Buffers borrowed for replies, until they are sent.
    account: Account,
    /// Tasks under way.
    requests: Cell<usize>,
    /// A long simple reply is being made: no further request is taken before its end.
    is_streaming: Cell<bool>,
    /// Wakes a task that waits to be the last one under way.
    last_one: RefCell<Option<Waker>>,
    /// Bytes that those will need for their replies.
    held_bytes: Cell<usize>,
    /// Bytes that those write.
    payload_bytes: Cell<usize>,
    waits: Cell<Waits>,
    /// The reading half has ended.
    draining: Cell<bool>,
    /// Its next flush fails: acknowledged writes ended with an earlier daemon.
    untold_loss: Cell<bool>,
}

impl<S: Seam> Connection<S> {
    /// A connection that was agreed on.
    pub(crate) fn new(
        seam: S,
        agreed: Agreed<S>,
        control: Rc<Control>,
        shares: Rc<Shares>,
        untold_loss: bool,
    ) -> Rc<Self> {
        Rc::new(Connection {
            seam,
            volume: agreed.export.volume,
            structured: agreed.structured,
            allocation: agreed.allocation,
            control,
            account: Account::new(&shares.clients),
            shares,
            out: RefCell::default(),
            sending: Cell::new(0),
            requests: Cell::new(0),
            is_streaming: Cell::new(false),
            last_one: RefCell::default(),
            held_bytes: Cell::new(0),
            payload_bytes: Cell::new(0),
            waits: Cell::new(Waits::Socket),
            draining: Cell::new(false),
            untold_loss: Cell::new(untold_loss),
        })
    }

    /// True while its client has yet to hear of a loss.
    pub(crate) fn has_untold_loss(&self) -> bool {
        self.untold_loss.get()
    }

    /// Serves until the client leaves, breaks the protocol, or the connection is asked to end. Where it is to be handed over and stands
    /// between two requests with nothing left to answer, its two directions come back.
    pub(crate) async fn run<R: StreamReader<S>, W: StreamWriter<S>>(
        self: Rc<Self>,
        mut incoming: Incoming<S, R>,
        writer: W,
    ) -> Option<(R, W)> {
        let interrupt = incoming.interrupter();
        let (mut is_leaving, mut is_between) = (false, false);
        let mut reading = Box::pin(Some(self.read_requests(&mut incoming)));
        let mut writing = pin!(self.send_replies(writer));
        let writer = poll_fn(|context| {
            self.control.register(context);
            for _ in 0..ROUNDS_MAX {
                match self.control.stop() {
                    Stop::No => (),
                    Stop::HandOver if is_leaving => (),
                    Stop::HandOver => {
                        is_leaving = true;
                        interrupt();
                    }
                    Stop::Drain => self.draining.set(true),
                    Stop::Now => return Poll::Ready(None),
                }
                if !self.draining.get()
                    && let Some(reading) = reading.as_mut().as_pin_mut()
                    && let Poll::Ready(ended) = Future::poll(reading, context)
                {
                    is_between = matches!(ended, Ok(Last::Whole));
                    self.draining.set(true);
                }
                if self.draining.get() {
                    // A write of which only a part has come is none.
                    reading.set(None);
                }
                if let Poll::Ready(writer) = writing.as_mut().poll(context) {
                    return Poll::Ready(writer);
                }
                let again = match self.waits.get() {
                    Waits::Socket => false,
                    Waits::Sent => true,
                    Waits::Room => !self.is_full(),
                };
                if self.draining.get() || !again {
                    return Poll::Pending;
                }
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
        self.control.sends(false);
        self.out.borrow_mut().clear();
        self.account.end();
        drop(reading);
        if is_between { incoming.into_reader().zip(writer) } else { None }
    }

    /// True when nothing is taken any more but the rest of what the client has begun to send.
    fn is_leaving(&self) -> bool {
        self.control.stop() == Stop::HandOver
    }

    /// True while no further request is taken.
    fn is_full(&self) -> bool {
        self.is_streaming.get()
            || self.requests.get() >= self.shares.options.requests_max
            || self.queued_bytes() + self.held_bytes.get() >= self.shares.held_bytes()
            || self.is_full_of_payload()
    }

    /// True while no further data of a write is taken; then [`Connection::is_full`] is true too.
    fn is_full_of_payload(&self) -> bool {
        self.payload_bytes.get() >= self.shares.payload_bytes()
    }

    /// Has the writing half polled once, if there is anything to send.
    async fn let_replies_go(&self) {
        if self.out.borrow().is_empty() {
            return;
        }
        self.waits.set(Waits::Sent);
        let mut polled = false;
        poll_fn(|_| if std::mem::replace(&mut polled, true) { Poll::Ready(()) } else { Poll::Pending }).await;
        self.waits.set(Waits::Socket);
    }

    /// Waits for `full` to end: for replies to be sent, or for requests under way to end.
    async fn wait_while(&self, full: impl Fn(&Self) -> bool) {
        if !full(self) {
            return;
        }
        self.waits.set(Waits::Room);
        poll_fn(|_| if full(self) { Poll::Pending } else { Poll::Ready(()) }).await;
        self.waits.set(Waits::Socket);
    }
}
