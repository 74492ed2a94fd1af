//! A connection in the transmission phase, driven by the duplex loop of the crate `connection`.
//!
//! The reading half (`requests`) answers requests that need no waiting. A request that has to wait is a task of its own
//! (`tasks`).

mod outgoing;
mod request_guard;
mod requests;
mod tasks;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Waker;

use connection::{Control, Duplex, DuplexOutcome, Protocol, Stop};
use engine::Volume;
use seam::{BufferedReader, Seam, StreamReader, StreamWriter};

use self::requests::{Ending, ReadError};
use crate::negotiation::Negotiated;
use crate::shared_limits::SharedLimits;

/// State shared by a connection's halves and the tasks of its requests.
pub(crate) struct Connection<S: Seam> {
    seam: S,
    volume: Volume<S>,
    /// The client may not change the volume.
    is_read_only: bool,
    /// True if structured replies are negotiated.
    structured: bool,
    /// True if `base:allocation` is negotiated.
    allocation: bool,
    duplex: Duplex<S>,
    limits: Rc<SharedLimits>,
    /// Number of requests in flight.
    requests_in_flight: Cell<usize>,
    /// True while a long simple reply is sent; no request is accepted before its end.
    is_streaming: Cell<bool>,
    /// Waker of the task that waits to be the only request in flight.
    sole_request_waker: RefCell<Option<Waker>>,
    /// Bytes that replies of requests in flight will need.
    held_bytes: Cell<usize>,
    /// Bytes of write data of requests in flight.
    payload_bytes: Cell<usize>,
    /// True if the next flush must fail, because acknowledged writes were lost with an earlier daemon.
    unreported_loss: Cell<bool>,
}

impl<S: Seam> Connection<S> {
    /// A connection after negotiation.
    pub(crate) fn new(
        seam: S,
        negotiated: Negotiated<S>,
        control: Rc<Control>,
        limits: Rc<SharedLimits>,
        unreported_loss: bool,
    ) -> Rc<Self> {
        Rc::new(Connection {
            seam,
            is_read_only: negotiated.export.is_read_only,
            volume: negotiated.export.volume,
            structured: negotiated.structured,
            allocation: negotiated.allocation,
            duplex: Duplex::new(control, &limits.clients),
            limits,
            requests_in_flight: Cell::new(0),
            is_streaming: Cell::new(false),
            sole_request_waker: RefCell::default(),
            held_bytes: Cell::new(0),
            payload_bytes: Cell::new(0),
            unreported_loss: Cell::new(unreported_loss),
        })
    }

    /// True if the client has not yet received the error that reports lost writes.
    pub(crate) fn has_unreported_loss(&self) -> bool {
        self.unreported_loss.get()
    }

    /// Serves until the client disconnects or violates the protocol, or the end is requested. Returns both halves
    /// of the stream for a handover, if the client is at a request boundary and all requests are answered.
    pub(crate) async fn run<R: StreamReader<S>, W: StreamWriter<S>>(
        self: Rc<Self>,
        mut incoming: BufferedReader<S, R>,
        writer: W,
    ) -> Option<(R, W)> {
        let halves = ConnectionHalves { connection: &self, interrupt: incoming.interrupter() };
        let DuplexOutcome { read_outcome, writer } =
            self.duplex.run(&halves, self.read_requests(&mut incoming), writer).await;
        match read_outcome {
            Some(Ok(Ending::HandOver)) => incoming.into_reader().zip(writer),
            _ => None,
        }
    }

    /// True during a handover: only the rest of a partly received request is read.
    fn is_handing_over(&self) -> bool {
        self.duplex.control().stop() == Stop::HandOver
    }

    /// True while no further request is accepted.
    fn is_full(&self) -> bool {
        self.is_streaming.get()
            || self.requests_in_flight.get() >= self.limits.options.requests_max
            || self.duplex.queued_bytes() + self.held_bytes.get() >= self.limits.held_quota_bytes()
            || self.is_full_of_payload()
    }

    /// True while no further write data is accepted; implies [`Connection::is_full`].
    fn is_full_of_payload(&self) -> bool {
        self.payload_bytes.get() >= self.limits.payload_quota_bytes()
    }
}

/// The connection as the duplex loop sees it.
struct ConnectionHalves<'a, S: Seam, I> {
    connection: &'a Connection<S>,
    /// Ends the current wait for data.
    interrupt: I,
}

impl<S: Seam, I: Fn()> Protocol for ConnectionHalves<'_, S, I> {
    type ReadOutcome = Result<Ending, ReadError>;

    fn is_full(&self) -> bool {
        self.connection.is_full()
    }

    fn is_answered(&self) -> bool {
        self.connection.requests_in_flight.get() == 0
    }

    fn begin_handover(&self) -> bool {
        (self.interrupt)();
        true
    }
}
