//! A session in the full-feature phase, driven by the duplex loop of the crate `connection`.
//!
//! The reading half (`incoming`) answers commands that need no waiting. A command that has to wait is a task of its own
//! (`command`). The reading half waits only for its socket and for queued replies to leave.

mod command;
mod incoming;
mod management;
mod outgoing;
mod reply;
mod shared;
mod slowest;
mod task;
mod text;
mod writes;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use connection::{Control, Duplex, Protocol, Stop};
use iscsi_protocol::login::{Negotiated, SessionType};
use iscsi_protocol::response::AsyncEvent;
use iscsi_protocol::{Framing, NO_TAG, ResponseBody, Window};
use scsi::{CancelToken, Lun, Nexus};
use seam::{BufferedReader, Nanos, Piece, Seam, StreamReader, StreamWriter};

use self::incoming::ReadError;
pub(crate) use self::shared::Shared;
pub use self::slowest::SlowCommand;
use self::slowest::SlowestCommands;
pub(crate) use self::task::Task;
use self::text::TextExchange;
use self::writes::Writes;
use crate::SessionStats;

/// Time limit of a discovery session.
const DISCOVERY_TIMEOUT: Nanos = Nanos::from_secs(60);
/// Poll interval for the end of the last commands.
const END_POLL: Nanos = Nanos::from_millis(5);

/// Specification of a session.
pub(crate) struct SessionSpec<S: Seam> {
    pub(crate) shared: Rc<Shared<S>>,
    pub(crate) tsih: u16,
    /// `None` in a discovery session.
    pub(crate) nexus: Option<Nexus>,
    pub(crate) portal: Option<String>,
    pub(crate) negotiated: Negotiated,
    pub(crate) cmd_sn: u32,
    pub(crate) stat_sn: u32,
    pub(crate) control: Rc<Control>,
}

/// Counters of a session.
#[derive(Default)]
struct Counters {
    commands: Cell<u64>,
    aborted: Cell<u64>,
    read_bytes: Cell<u64>,
    write_bytes: Cell<u64>,
}

/// State shared by a session's halves and the tasks of its commands.
pub(crate) struct Session<S: Seam> {
    spec: SessionSpec<S>,
    /// Format of sent PDUs.
    framing: Framing,
    /// The command window.
    window: Cell<Window>,
    /// StatSN of the next response.
    stat_sn: Cell<u32>,
    duplex: Duplex<S>,
    /// Scratch buffer for a PDU.
    scratch: RefCell<Vec<u8>>,
    /// Scratch buffer for the pieces of an answer.
    pieces: RefCell<Vec<Piece<S::Block>>>,
    /// Cancellation handle for commands that are answered at once; never cancelled.
    never_cancelled: CancelToken,
    /// Commands to be answered, by initiator task tag.
    tasks: RefCell<BTreeMap<u32, Rc<Task>>>,
    /// Aborted commands that may still change the medium.
    aborted_tasks: RefCell<Vec<Rc<Task>>>,
    /// Number of commands in flight, including aborted ones.
    commands_in_flight: Cell<usize>,
    /// Number of immediate commands and task management functions in flight.
    immediate_in_flight: Cell<usize>,
    /// Next target transfer tag.
    next_target_tag: Cell<u32>,
    writes: Writes,
    text_exchange: RefCell<TextExchange>,
    counters: Counters,
    slowest: SlowestCommands,
    /// MaxCmdSN as last sent to the initiator.
    announced_max_cmd_sn: Cell<u32>,
    /// When the last data was received.
    last_received_at: Cell<Nanos>,
    /// When the session began.
    started_at: Nanos,
    /// When the last reply was sent.
    last_sent_at: Cell<Nanos>,
    /// True if a ping was sent since the last data was received.
    ping_sent: Cell<bool>,
}

impl<S: Seam> Session<S> {
    /// A session with negotiated parameters.
    pub(crate) fn new(spec: SessionSpec<S>) -> Rc<Self> {
        let parameters = &spec.negotiated.parameters;
        let framing = Framing {
            header_digest: parameters.header_digest,
            data_digest: parameters.data_digest,
            data_bytes_max: parameters.send_bytes_max,
        };
        let window = Window::new(spec.cmd_sn, spec.shared.options.commands_max);
        Rc::new(Session {
            framing,
            window: Cell::new(window),
            stat_sn: Cell::new(spec.stat_sn),
            duplex: Duplex::new(Rc::clone(&spec.control), &spec.shared.clients),
            scratch: RefCell::default(),
            pieces: RefCell::default(),
            never_cancelled: CancelToken::default(),
            tasks: RefCell::default(),
            aborted_tasks: RefCell::default(),
            commands_in_flight: Cell::new(0),
            immediate_in_flight: Cell::new(0),
            next_target_tag: Cell::new(1),
            writes: Writes::default(),
            text_exchange: RefCell::default(),
            counters: Counters::default(),
            slowest: SlowestCommands::default(),
            announced_max_cmd_sn: Cell::new(window.max()),
            last_received_at: Cell::new(spec.shared.seam.now()),
            started_at: spec.shared.seam.now(),
            last_sent_at: Cell::new(spec.shared.seam.now()),
            ping_sent: Cell::new(false),
            spec,
        })
    }

    /// Target session identifying handle.
    pub(crate) fn tsih(&self) -> u16 {
        self.spec.tsih
    }

    /// Connection identifier.
    pub(crate) fn cid(&self) -> u16 {
        self.spec.negotiated.connection
    }

    /// Control of the session's connection.
    pub(crate) fn control(&self) -> &Control {
        &self.spec.control
    }

    /// The SCSI nexus; `None` in a discovery session.
    pub(crate) fn nexus(&self) -> Option<&Nexus> {
        self.spec.nexus.as_ref()
    }

    /// True for the normal session of this initiator port.
    pub(crate) fn belongs_to(&self, initiator: &str, isid: [u8; 6]) -> bool {
        let negotiated = &self.spec.negotiated;
        negotiated.session == SessionType::Normal && negotiated.initiator == initiator && negotiated.isid == isid
    }

    /// State and counters.
    pub(crate) fn stats(&self) -> SessionStats {
        let negotiated = &self.spec.negotiated;
        SessionStats {
            tsih: self.spec.tsih,
            initiator: negotiated.initiator.clone(),
            alias: negotiated.alias.clone(),
            portal: self.spec.portal.clone().unwrap_or_default(),
            discovery: negotiated.session == SessionType::Discovery,
            authenticated: negotiated.authenticated,
            digests: (negotiated.parameters.header_digest, negotiated.parameters.data_digest),
            commands: self.counters.commands.get(),
            commands_in_flight: self.commands_in_flight.get() as u64,
            aborted: self.counters.aborted.get(),
            read_bytes: self.counters.read_bytes.get(),
            write_bytes: self.counters.write_bytes.get(),
            slowest: self.slowest.list(self.spec.shared.seam.now()),
        }
    }

    /// True if no command is in flight and no reply is queued.
    pub(crate) fn is_idle(&self) -> bool {
        self.commands_in_flight.get() == 0 && self.duplex.is_queue_empty()
    }

    /// True while a command to the unit is in flight.
    pub(crate) fn is_busy_with(&self, lun: Lun) -> bool {
        self.tasks.borrow().values().any(|task| Lun::decode(task.lun) == Some(lun))
    }

    /// Serves until a logout, a lost connection, a protocol error, or a request to stop.
    pub(crate) async fn run<R: StreamReader<S>, W: StreamWriter<S>>(
        self: &Rc<Self>,
        incoming: &mut BufferedReader<S, R>,
        writer: W,
    ) {
        self.duplex.run(&**self, self.read_pdus(incoming), writer).await;
    }

    /// Aborts all commands and waits until none of them can have an effect.
    pub(crate) async fn abort_all_tasks(&self) {
        drop(self.abort(|_| true));
        while self.commands_in_flight.get() > 0 {
            self.spec.shared.seam.sleep(END_POLL).await;
        }
    }

    /// True if the reply queue is full. The socket is then not read.
    fn is_full(&self) -> bool {
        self.duplex.queued_bytes() >= self.spec.shared.held_quota_bytes()
    }

    /// Requests a logout of the initiator within `seconds`.
    pub(crate) fn request_logout(&self, seconds: u16) {
        self.queue(NO_TAG, ResponseBody::Async(AsyncEvent::LogOutWithin(seconds)), &[]);
        self.control().wake();
    }

    /// Sends an asynchronous SCSI event. It is omitted if the reply queue is full: the next command reports the
    /// unit attention.
    pub(crate) fn send_scsi_event(&self, lun: Lun, sense: &[u8]) {
        if self.is_full() || self.duplex.is_draining() {
            return;
        }
        let event = AsyncEvent::Scsi { lun: lun.encode() };
        self.queue(NO_TAG, ResponseBody::Async(event), &AsyncEvent::sense_data(sense));
        self.control().wake();
    }

    /// Pings a silent initiator, and ends the session of one that does not answer.
    pub(crate) fn check_alive(&self) {
        let now = self.spec.shared.seam.now();
        let ping_after = self.spec.shared.options.ping_after;
        let dead_after = ping_after + ping_after;
        // While the socket is not read, sent replies are the only sign that the initiator is alive.
        let is_stuck =
            self.is_full() && now.since(self.last_received_at.get().max(self.last_sent_at.get())) >= dead_after;
        let has_timed_out = self.nexus().is_none() && now.since(self.started_at) >= DISCOVERY_TIMEOUT;
        if is_stuck || has_timed_out {
            return self.control().request_stop(Stop::Now);
        }
        let idle_time = now.since(self.last_received_at.get());
        if idle_time < ping_after || self.is_full() || self.duplex.is_draining() {
            return;
        }
        if !self.ping_sent.replace(true) {
            let target_tag = self.draw_target_tag();
            self.queue(NO_TAG, ResponseBody::NopIn { lun: [0; 8], target_tag }, &[]);
            self.control().wake();
        } else if idle_time >= dead_after {
            self.control().request_stop(Stop::Now);
        }
    }

    /// A target transfer tag, never [`NO_TAG`].
    fn draw_target_tag(&self) -> u32 {
        let number = self.next_target_tag.get();
        self.next_target_tag.set(if number == NO_TAG - 1 { 1 } else { number + 1 });
        number
    }
}

impl<S: Seam> Protocol for Session<S> {
    type ReadOutcome = Result<(), ReadError>;

    fn is_full(&self) -> bool {
        self.is_full()
    }

    fn is_answered(&self) -> bool {
        self.tasks.borrow().is_empty()
    }

    fn on_reading_stopped(&self, ended: Option<&Result<(), ReadError>>) -> bool {
        let is_broken = matches!(ended, Some(Err(_)));
        // A lost connection aborts all of its commands. Queued replies, such as a reject, are sent first.
        if is_broken && self.duplex.is_queue_empty() {
            return false;
        }
        // Wake all tasks: writes with incomplete data then fail.
        self.tasks.borrow().values().for_each(|task| task.wake());
        if is_broken {
            drop(self.abort(|_| true));
        }
        true
    }

    fn on_replies_sent(&self) {
        self.last_sent_at.set(self.spec.shared.seam.now());
    }
}
