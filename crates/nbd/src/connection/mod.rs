//! A connection in the transmission phase: one task polls a reading and a writing half.
//!
//! The reading half serves requests that need no waiting and queues the replies. Once it has nothing to decode, the
//! writing half, polled right after it, sends all of them in one call. A request that has to wait is a task of its own
//! (`tasks`), which queues its reply and wakes the connection. A request at depth one thus costs a receive and a send,
//! without a task or a wake-up.

mod outgoing;
mod request_guard;
mod requests;
mod tasks;

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

use engine::Volume;
use front::{Account, Control, Stop};
use seam::{Gather, Incoming, Seam, StreamReader, StreamWriter};

use self::requests::Ending;
use crate::negotiation::Agreed;
use crate::shared_limits::SharedLimits;

/// Rounds of reading and sending before other tasks of the core run.
const ROUNDS_MAX: usize = 16;

/// The event that the reading half waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadWait {
    /// Data from the socket.
    Socket,
    /// One poll of the writing half.
    Sent,
    /// Room for further requests.
    Room,
}

/// State shared by a connection's halves and the tasks of its requests.
pub(crate) struct Connection<S: Seam> {
    seam: S,
    volume: Volume<S>,
    structured: bool,
    allocation: bool,
    control: Rc<Control>,
    limits: Rc<SharedLimits>,
    out: RefCell<Gather<S>>,
    /// Bytes in the current send call.
    sending: Cell<usize>,
    /// Buffers borrowed for replies, until they are sent.
    account: Account,
    /// Number of requests in flight.
    requests: Cell<usize>,
    /// True while a long simple reply is sent; no request is accepted before its end.
    is_streaming: Cell<bool>,
    /// Waker of a task that waits to be the only request in flight.
    last_one: RefCell<Option<Waker>>,
    /// Bytes that replies of requests in flight will need.
    held_bytes: Cell<usize>,
    /// Bytes of write data of requests in flight.
    payload_bytes: Cell<usize>,
    waits: Cell<ReadWait>,
    /// True once the reading half has ended.
    draining: Cell<bool>,
    /// True if the next flush must fail, because acknowledged writes were lost with an earlier daemon.
    unreported_loss: Cell<bool>,
}

impl<S: Seam> Connection<S> {
    /// A connection after negotiation.
    pub(crate) fn new(
        seam: S,
        agreed: Agreed<S>,
        control: Rc<Control>,
        limits: Rc<SharedLimits>,
        unreported_loss: bool,
    ) -> Rc<Self> {
        Rc::new(Connection {
            seam,
            volume: agreed.export.volume,
            structured: agreed.structured,
            allocation: agreed.allocation,
            control,
            account: Account::new(&limits.clients),
            limits,
            out: RefCell::default(),
            sending: Cell::new(0),
            requests: Cell::new(0),
            is_streaming: Cell::new(false),
            last_one: RefCell::default(),
            held_bytes: Cell::new(0),
            payload_bytes: Cell::new(0),
            waits: Cell::new(ReadWait::Socket),
            draining: Cell::new(false),
            unreported_loss: Cell::new(unreported_loss),
        })
    }

    /// True if the client has not yet received the error that reports lost writes.
    pub(crate) fn has_unreported_loss(&self) -> bool {
        self.unreported_loss.get()
    }

    /// Serves until the client disconnects, breaks the protocol, or the connection is asked to end. Returns both halves
    /// of the stream for a handover, if the client stands between two requests and all requests are answered.
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
                    is_between = matches!(ended, Ok(Ending::HandOver));
                    self.draining.set(true);
                }
                if self.draining.get() {
                    // An incomplete write is dropped.
                    reading.set(None);
                }
                if let Poll::Ready(writer) = writing.as_mut().poll(context) {
                    return Poll::Ready(writer);
                }
                let again = match self.waits.get() {
                    ReadWait::Socket => false,
                    ReadWait::Sent => true,
                    ReadWait::Room => !self.is_full(),
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

    /// True during a handover: only the rest of a request that the client has begun to send is read.
    fn is_leaving(&self) -> bool {
        self.control.stop() == Stop::HandOver
    }

    /// True while no further request is accepted.
    fn is_full(&self) -> bool {
        self.is_streaming.get()
            || self.requests.get() >= self.limits.options.requests_max
            || self.queued_bytes() + self.held_bytes.get() >= self.limits.held_bytes()
            || self.is_full_of_payload()
    }

    /// True while no further write data are accepted; implies [`Connection::is_full`].
    fn is_full_of_payload(&self) -> bool {
        self.payload_bytes.get() >= self.limits.payload_bytes()
    }

    /// Waits for one poll of the writing half if replies are queued.
    async fn wait_until_sent(&self) {
        if self.out.borrow().is_empty() {
            return;
        }
        self.waits.set(ReadWait::Sent);
        let mut polled = false;
        poll_fn(|_| if std::mem::replace(&mut polled, true) { Poll::Ready(()) } else { Poll::Pending }).await;
        self.waits.set(ReadWait::Socket);
    }

    /// Waits until `full` is false: until replies are sent or requests end.
    async fn wait_while(&self, full: impl Fn(&Self) -> bool) {
        if !full(self) {
            return;
        }
        self.waits.set(ReadWait::Room);
        poll_fn(|_| if full(self) { Poll::Pending } else { Poll::Ready(()) }).await;
        self.waits.set(ReadWait::Socket);
    }
}
