//! One initiator in the full-feature phase: takes PDUs and sends replies, both at once, in one task.
//!
//! The reading half answers what can be answered at once and queues the replies; when it has nothing more to decode, the
//! writing half, polled right after it, sends them all in one call. A command that has to wait is a task of its own (`command`), which
//! queues its reply and wakes this one. The reading half waits for nothing but its socket and for queued replies to leave.

mod command;
mod incoming;
mod management;
mod outgoing;
mod reply;
mod slowest;
mod task;
mod text;
mod writes;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use front::{Account, Control, Stop};
use iscsi_protocol::login::{Agreed, SessionType};
use iscsi_protocol::response::AsyncEvent;
use iscsi_protocol::{Framing, NO_TAG, ResponseBody, Window};
use scsi::{Cancel, Lun, Nexus};
use seam::{Gather, Incoming, Nanos, Piece, Seam, StreamReader, StreamWriter};

pub use self::slowest::SlowCommand;
use self::slowest::Slowest;
pub(crate) use self::task::Task;
use self::text::Texts;
use self::writes::Writes;
use crate::SessionStats;
use crate::shared::Shared;

/// Rounds of reading and sending before other tasks of the core get their turn.
const ROUNDS_MAX: usize = 16;
/// Time for asking which targets there are.
const DISCOVERY_TIME: Nanos = Nanos::from_secs(60);
/// How often it is looked whether the last commands have ended.
const END_POLL: Nanos = Nanos::from_millis(5);

/// What a session begins with.
pub(crate) struct SessionSpec<S: Seam> {
    pub(crate) shared: Rc<Shared<S>>,
    pub(crate) tsih: u16,
    /// None in a session that only asks which targets there are.
    pub(crate) nexus: Option<Nexus>,
    pub(crate) portal: Option<String>,
    pub(crate) agreed: Agreed,
    pub(crate) cmd_sn: u32,
    pub(crate) stat_sn: u32,
    pub(crate) control: Rc<Control>,
}

/// What the reading half waits for, besides its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    /// Nothing else.
    Socket,
    /// That the writing half was polled once.
    Sent,
    /// That less is queued.
    Room,
}

/// What a session has done.
#[derive(Default)]
struct Counters {
    commands: Cell<u64>,
    aborted: Cell<u64>,
    read_bytes: Cell<u64>,
    write_bytes: Cell<u64>,
}

/// The state that a session's halves and the tasks of its commands share.
pub(crate) struct Session<S: Seam> {
    spec: SessionSpec<S>,
    /// The form of what we send.
    framing: Framing,
    window: Cell<Window>,
    stat_sn: Cell<u32>,
    account: Account,
    out: RefCell<Gather<S>>,
    /// Bytes that are being sent.
    sending: Cell<usize>,
    /// Room to make a PDU in, and for the pieces of an answer.
    scratch: RefCell<Vec<u8>>,
    pieces: RefCell<Vec<Piece<S::Block>>>,
    /// Calls off what is answered at once: never.
    nobody: Cancel,
    /// Commands that an answer is waited for, by the initiator's names for them.
    tasks: RefCell<BTreeMap<u32, Rc<Task>>>,
    /// Commands that were aborted and may still change something.
    ending: RefCell<Vec<Rc<Task>>>,
    /// Commands under way, also those that nobody waits for any more.
    running: Cell<usize>,
    /// Those of them that were immediate, and task management functions.
    immediate: Cell<usize>,
    /// The number of the next command or R2T, for us.
    next: Cell<u32>,
    writes: Writes,
    texts: RefCell<Texts>,
    counters: Counters,
    slowest: Slowest,
    waits: Cell<Waits>,
    /// The reading half has ended.
    draining: Cell<bool>,
    /// The highest command number that the initiator was told.
    told_max: Cell<u32>,
    /// When something was last heard, and whether the initiator was asked since.
    heard: Cell<Nanos>,
    /// When it began, and when the initiator last took something.
    begun: Nanos,
    sent: Cell<Nanos>,
    asked: Cell<bool>,
}

impl<S: Seam> Session<S> {
    /// A session that was agreed on.
    pub(crate) fn new(spec: SessionSpec<S>) -> Rc<Self> {
        let parameters = &spec.agreed.parameters;
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
            account: Account::new(&spec.shared.clients),
            out: RefCell::default(),
            sending: Cell::new(0),
            scratch: RefCell::default(),
            pieces: RefCell::default(),
            nobody: Cancel::default(),
            tasks: RefCell::default(),
            ending: RefCell::default(),
            running: Cell::new(0),
            immediate: Cell::new(0),
            next: Cell::new(1),
            writes: Writes::default(),
            texts: RefCell::default(),
            counters: Counters::default(),
            slowest: Slowest::default(),
            waits: Cell::new(Waits::Socket),
            draining: Cell::new(false),
            told_max: Cell::new(window.max()),
            heard: Cell::new(spec.shared.seam.now()),
            begun: spec.shared.seam.now(),
            sent: Cell::new(spec.shared.seam.now()),
            asked: Cell::new(false),
            spec,
        })
    }

    /// Our name for it.
    pub(crate) fn tsih(&self) -> u16 {
        self.spec.tsih
    }

    /// The initiator's name for its connection.
    pub(crate) fn connection(&self) -> u16 {
        self.spec.agreed.connection
    }

    pub(crate) fn control(&self) -> &Control {
        &self.spec.control
    }

    /// Who it is to SCSI; nobody in a session that only asks which targets there are.
    pub(crate) fn nexus(&self) -> Option<&Nexus> {
        self.spec.nexus.as_ref()
    }

    /// True when it is the session for commands of that initiator's port.
    pub(crate) fn is_of(&self, initiator: &str, isid: [u8; 6]) -> bool {
        let agreed = &self.spec.agreed;
        agreed.session == SessionType::Normal && agreed.initiator == initiator && agreed.isid == isid
    }

    /// What it is and has done.
    pub(crate) fn stats(&self) -> SessionStats {
        let agreed = &self.spec.agreed;
        SessionStats {
            tsih: self.spec.tsih,
            initiator: agreed.initiator.clone(),
            alias: agreed.alias.clone(),
            portal: self.spec.portal.clone().unwrap_or_default(),
            discovery: agreed.session == SessionType::Discovery,
            authenticated: agreed.authenticated,
            digests: (agreed.parameters.header_digest, agreed.parameters.data_digest),
            commands: self.counters.commands.get(),
            under_way: self.running.get() as u64,
            aborted: self.counters.aborted.get(),
            read_bytes: self.counters.read_bytes.get(),
            write_bytes: self.counters.write_bytes.get(),
            slowest: self.slowest.list(self.spec.shared.seam.now()),
        }
    }

    /// True while nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.running.get() == 0 && self.out.borrow().is_empty()
    }

    /// True while a command to that unit is under way.
    pub(crate) fn is_busy_with(&self, lun: Lun) -> bool {
        self.tasks.borrow().values().any(|task| Lun::decode(task.lun) == Some(lun))
    }

    /// Serves until the initiator logs out, is lost, breaks the protocol, or the session is asked to end.
    pub(crate) async fn run<R: StreamReader<S>, W: StreamWriter<S>>(
        self: &Rc<Self>,
        incoming: &mut Incoming<S, R>,
        writer: W,
    ) {
        let mut reading = pin!(Some(self.read_pdus(incoming)));
        let mut writing = pin!(self.send_replies(writer));
        poll_fn(|context| {
            self.control().register(context);
            for _ in 0..ROUNDS_MAX {
                match self.control().stop() {
                    Stop::No => (),
                    Stop::HandOver | Stop::Drain => self.drain(),
                    Stop::Now => return Poll::Ready(()),
                }
                if !self.draining.get()
                    && let Some(reading) = reading.as_mut().as_pin_mut()
                    && let Poll::Ready(ended) = Future::poll(reading, context)
                {
                    match ended {
                        Ok(()) => self.drain(),
                        // A connection is lost with all that was under way on it.
                        Err(_) if self.out.borrow().is_empty() => return Poll::Ready(()),
                        // What was wrong is said first.
                        Err(_) => self.end_after_last_words(),
                    }
                }
                if self.draining.get() {
                    reading.set(None);
                }
                if Pin::new(&mut writing).poll(context).is_ready() {
                    return Poll::Ready(());
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
        self.draining.set(true);
        self.control().sends(false);
        self.out.borrow_mut().clear();
        self.account.end();
    }

    /// Nothing more is read. Writes whose data have not all come get no more.
    fn drain(&self) {
        if !self.draining.replace(true) {
            self.tasks.borrow().values().for_each(|task| task.wake());
        }
    }

    fn end_after_last_words(&self) {
        self.drain();
        drop(self.abort(|_| true));
    }

    /// Aborts all commands and waits until the last of them has ended: from then on nothing of the session happens any more.
    pub(crate) async fn end_tasks(&self) {
        drop(self.abort(|_| true));
        while self.running.get() > 0 {
            self.spec.shared.seam.sleep(END_POLL).await;
        }
    }

    /// True while nothing more is read: the initiator does not take what was sent to it.
    fn is_full(&self) -> bool {
        self.out.borrow().len() + self.sending.get() >= self.spec.shared.held_bytes()
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

    /// Waits for queued replies to leave while there are too many.
    async fn wait_for_room(&self) {
        if !self.is_full() {
            return;
        }
        self.waits.set(Waits::Room);
        poll_fn(|_| if self.is_full() { Poll::Pending } else { Poll::Ready(()) }).await;
        self.waits.set(Waits::Socket);
    }

    /// Asks the initiator to log out within so many seconds.
    pub(crate) fn ask_to_log_out(&self, seconds: u16) {
        self.queue(NO_TAG, ResponseBody::Async(AsyncEvent::LogOutWithin(seconds)), &[]);
        self.control().wake();
    }

    /// Tells the initiator at once what its next command to that unit would tell it. One that does not take what it was sent is left to that.
    pub(crate) fn tell(&self, lun: Lun, sense: &[u8]) {
        if self.is_full() || self.draining.get() {
            return;
        }
        let event = AsyncEvent::Scsi { lun: lun.encode() };
        self.queue(NO_TAG, ResponseBody::Async(event), &AsyncEvent::sense_data(sense));
        self.control().wake();
    }

    /// Asks an initiator that has been silent for long whether it is there, and ends its session when it does not answer.
    pub(crate) fn look_alive(&self) {
        let now = self.spec.shared.seam.now();
        let after = self.spec.shared.options.ping_after;
        // Who is not listened to cannot be heard: it has to take what was sent to it.
        let is_stuck = self.is_full() && now.since(self.heard.get().max(self.sent.get())) >= after + after;
        let is_done = self.nexus().is_none() && now.since(self.begun) >= DISCOVERY_TIME;
        if is_stuck || is_done {
            return self.control().ask(Stop::Now);
        }
        let silent = now.since(self.heard.get());
        if silent < after || self.is_full() || self.draining.get() {
            return;
        }
        if !self.asked.replace(true) {
            let target_tag = self.next_number();
            self.queue(NO_TAG, ResponseBody::NopIn { lun: [0; 8], target_tag }, &[]);
            self.control().wake();
        } else if silent >= after + after {
            self.control().ask(Stop::Now);
        }
    }

    /// A number for a command or an R2T, never [`NO_TAG`].
    fn next_number(&self) -> u32 {
        let number = self.next.get();
        self.next.set(if number == NO_TAG - 1 { 1 } else { number + 1 });
        number
    }
}
