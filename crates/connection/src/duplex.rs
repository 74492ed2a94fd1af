//! The duplex loop of a connection: one task polls a reading and a writing half.
//!
//! The reading half serves requests that need no waiting and queues the replies. Once it has nothing to decode, the
//! writing half, polled right after it, sends all of them in one call. A request that has to wait is a task of its own,
//! which queues its reply and wakes the connection. A request at queue depth 1 thus costs a receive and a send, without
//! a task or a wake-up.

use std::cell::{Cell, RefCell, RefMut};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use seam::{Gather, Seam, StreamWriter};

use crate::{BufferAccount, Clients, Control, Stop};

/// Rounds of reading and sending before other tasks of the core run.
const ROUNDS_MAX: usize = 16;

/// The event that the reading half waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadWait {
    /// Data from the socket.
    Socket,
    /// One poll of the writing half.
    Sent,
    /// Completion of requests or replies, below the limits.
    Capacity,
}

/// A protocol's part in the duplex loop.
pub trait Protocol {
    /// Outcome of the reading half.
    type ReadOutcome;

    /// True while no further request is accepted, so that the reading half waits.
    fn is_full(&self) -> bool;

    /// True if the replies of all accepted requests are queued or sent.
    fn is_answered(&self) -> bool;

    /// Begins a handover. Returns true if the reading half ends by itself; otherwise reading stops at once.
    fn begin_handover(&self) -> bool {
        false
    }

    /// Called once when reading stops: with the outcome of the reading half, or `None` if a drain was
    /// requested. Returns false if the queued replies need not be sent.
    fn on_reading_stopped(&self, _outcome: Option<&Self::ReadOutcome>) -> bool {
        true
    }

    /// Called after each send.
    fn on_replies_sent(&self) {}
}

/// Outcome of [`Duplex::run`].
pub struct DuplexOutcome<E, W> {
    /// Outcome of the reading half; `None` if it was stopped.
    pub read_outcome: Option<E>,
    /// The stream's writer; `None` unless all replies were sent.
    pub writer: Option<W>,
}

/// The reply queue of a connection, with the state that its two halves share.
pub struct Duplex<S: Seam> {
    control: Rc<Control>,
    /// Buffers borrowed for replies, until they are sent.
    buffer_account: BufferAccount,
    out: RefCell<Gather<S>>,
    /// Bytes in the current send call.
    sending_bytes: Cell<usize>,
    read_wait: Cell<ReadWait>,
    /// True once the reading half has ended.
    draining: Cell<bool>,
}

impl<S: Seam> Duplex<S> {
    /// The duplex loop of a new client, with an empty queue.
    pub fn new(control: Rc<Control>, clients: &Rc<Clients>) -> Self {
        Duplex {
            control,
            buffer_account: BufferAccount::new(clients),
            out: RefCell::default(),
            sending_bytes: Cell::new(0),
            read_wait: Cell::new(ReadWait::Socket),
            draining: Cell::new(false),
        }
    }

    /// The server's handle to the connection.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Buffers borrowed for replies.
    pub fn buffer_account(&self) -> &BufferAccount {
        &self.buffer_account
    }

    /// True once no further request is read.
    pub fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// True if no reply is queued; a reply in the current send call does not count.
    pub fn is_queue_empty(&self) -> bool {
        self.out.borrow().is_empty()
    }

    /// Bytes queued or being sent.
    pub fn queued_bytes(&self) -> usize {
        self.out.borrow().len() + self.sending_bytes.get()
    }

    /// The queue, for a reply that holds `lent_bytes` of borrowed buffers. Once the connection has ended the buffers
    /// are released and there is no queue.
    pub fn queue(&self, lent_bytes: usize) -> Option<RefMut<'_, Gather<S>>> {
        if self.buffer_account.has_ended() {
            self.buffer_account.release(lent_bytes);
            return None;
        }
        self.buffer_account.queue(lent_bytes);
        Some(self.out.borrow_mut())
    }

    /// Queues bytes; drops them once the connection has ended.
    pub fn queue_bytes(&self, bytes: &[u8]) {
        if let Some(mut out) = self.queue(0) {
            out.push_bytes(bytes);
        }
    }

    /// Waits for one poll of the writing half if replies are queued. Called by the reading half alone.
    pub async fn wait_until_sent(&self) {
        if self.is_queue_empty() {
            return;
        }
        self.read_wait.set(ReadWait::Sent);
        let mut polled = false;
        poll_fn(|_| if std::mem::replace(&mut polled, true) { Poll::Ready(()) } else { Poll::Pending }).await;
        self.read_wait.set(ReadWait::Socket);
    }

    /// Waits until `is_full` is false: until replies are sent or requests end. `is_full` implies
    /// [`Protocol::is_full`]. Called by the reading half alone.
    pub async fn wait_while(&self, is_full: impl Fn() -> bool) {
        if !is_full() {
            return;
        }
        self.read_wait.set(ReadWait::Capacity);
        poll_fn(|_| if is_full() { Poll::Pending } else { Poll::Ready(()) }).await;
        self.read_wait.set(ReadWait::Socket);
    }

    /// Polls `reading` and the sending of replies until the connection has nothing left to answer, its socket fails, or
    /// its immediate end is requested.
    pub async fn run<P: Protocol, W: StreamWriter<S>>(
        &self,
        protocol: &P,
        reading: impl Future<Output = P::ReadOutcome>,
        writer: W,
    ) -> DuplexOutcome<P::ReadOutcome, W> {
        let (mut is_handing_over, mut read_outcome) = (false, None);
        let mut reading = pin!(Some(reading));
        let mut writing = pin!(self.send_replies(protocol, writer));
        let writer = poll_fn(|context| {
            self.control.register(context);
            for _ in 0..ROUNDS_MAX {
                match self.control.stop() {
                    Stop::No => (),
                    Stop::HandOver if is_handing_over => (),
                    Stop::HandOver if protocol.begin_handover() => is_handing_over = true,
                    Stop::HandOver | Stop::Drain => {
                        let _ = self.stop_reading(protocol, None);
                    }
                    Stop::Now => return Poll::Ready(None),
                }
                if !self.draining.get()
                    && let Some(reading) = reading.as_mut().as_pin_mut()
                    && let Poll::Ready(outcome) = reading.poll(context)
                {
                    let must_send_replies = self.stop_reading(protocol, Some(&outcome));
                    read_outcome = Some(outcome);
                    if !must_send_replies {
                        return Poll::Ready(None);
                    }
                }
                if self.draining.get() {
                    // An incomplete request is dropped.
                    reading.set(None);
                }
                if let Poll::Ready(writer) = writing.as_mut().poll(context) {
                    return Poll::Ready(writer);
                }
                let must_poll_again = match self.read_wait.get() {
                    ReadWait::Socket => false,
                    ReadWait::Sent => true,
                    ReadWait::Capacity => !protocol.is_full(),
                };
                if self.draining.get() || !must_poll_again {
                    return Poll::Pending;
                }
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
        self.draining.set(true);
        self.control.set_sending(false);
        self.out.borrow_mut().clear();
        self.buffer_account.end();
        DuplexOutcome { read_outcome, writer }
    }

    /// Ends the reading half; returns false if the queued replies need not be sent.
    fn stop_reading<P: Protocol>(&self, protocol: &P, outcome: Option<&P::ReadOutcome>) -> bool {
        self.draining.replace(true) || protocol.on_reading_stopped(outcome)
    }

    /// Sends queued replies until the connection has nothing left to answer; returns `None` if the socket fails.
    async fn send_replies<P: Protocol, W: StreamWriter<S>>(&self, protocol: &P, mut writer: W) -> Option<W> {
        let mut gather = Gather::default();
        loop {
            let ready = |_: &mut std::task::Context<'_>| {
                if !self.is_queue_empty() {
                    Poll::Ready(true)
                } else if self.draining.get() && protocol.is_answered() {
                    Poll::Ready(false)
                } else {
                    Poll::Pending
                }
            };
            if !poll_fn(ready).await {
                return Some(writer);
            }
            std::mem::swap(&mut *self.out.borrow_mut(), &mut gather);
            self.sending_bytes.set(gather.len());
            self.control.set_sending(true);
            let lent_bytes = self.buffer_account.queued_bytes();
            let (result, sent) = writer.send(gather).await;
            gather = sent;
            gather.clear();
            self.sending_bytes.set(0);
            protocol.on_replies_sent();
            self.control.set_sending(false);
            self.buffer_account.record_sent(lent_bytes, result.is_ok());
            if result.is_err() {
                return None;
            }
        }
    }
}
