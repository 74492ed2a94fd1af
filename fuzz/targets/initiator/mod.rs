//! An initiator that tracks all its requests: every received PDU must answer an outstanding request, in order.

mod log_in;
mod responses;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::{Poll, Waker};

use iscsi_protocol::request::{Command, DataOut, TaskFunction, TaskManagement};
use iscsi_protocol::window::is_before;
use iscsi_protocol::{Framing, NO_TAG, Request, RequestBody, Response, Step, text};
use seam::sim::{SimReader, SimSeam};
use seam::{BufferedReader, Gather, StreamWriter};

pub use log_in::{LoginOptions, SECRET, TARGET, USER, build_login_pdu, build_login_request};

/// Units visible to hostile initiators.
pub const LUNS: [[u8; 8]; 2] = [[0, 1, 0, 0, 0, 0, 0, 0], [0, 2, 0, 0, 0, 0, 0, 0]];
/// Most concurrent commands of a session.
pub const COMMANDS_MAX: u32 = 64;
/// Longest data segment sent.
const SEND_BYTES: usize = 64 << 10;

/// Wakes all tasks that wait for a change.
#[derive(Default)]
pub struct Notify(RefCell<Vec<Waker>>);

impl Notify {
    fn notify_all(&self) {
        self.0.take().into_iter().for_each(Waker::wake);
    }

    async fn wait_until(&self, holds: impl Fn() -> bool) {
        let check = poll_fn(|context| match holds() {
            true => Poll::Ready(()),
            false => {
                self.0.borrow_mut().push(context.waker().clone());
                Poll::Pending
            }
        });
        check.await;
    }
}

/// Data that an initiator sends in response to an R2T.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum R2tResponse {
    Correct,
    Missing,
    WrongOffset,
    WrongTransferTag,
    /// The final PDU is missing.
    Endless,
    TooLong,
}

/// State of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Open,
    Answered,
    /// Aborted or rejected: no answer may follow.
    Aborted,
}

/// A command in progress or ended.
pub struct Task {
    pub state: State,
    pub status: u8,
    /// The data read, if it is collected.
    pub read: Option<Vec<u8>>,
    /// The command was sent with all solicited data, so it must be answered.
    pub must_be_answered: bool,
    pub lun: [u8; 8],
    /// Position in the order of sent commands and task management functions.
    number: u64,
    /// Data to write: a prefix of a buffer that many commands share.
    data: Rc<[u8]>,
    len: usize,
    expected_read: u32,
    /// Progress: bytes read, numbers of Data-In PDUs and R2Ts, and the end of the solicited data.
    read_bytes: u32,
    data_sn: u32,
    r2ts: u32,
    r2t_end: u32,
}

/// A pending task management function.
struct PendingTaskManagement {
    function: TaskFunction,
    lun: [u8; 8],
    referenced_tag: u32,
    /// Position in the order of sent commands and task management functions.
    number: u64,
}

/// A session as seen by its initiator.
pub struct Session {
    framing: Framing,
    /// PDUs queued for sending, and their total size.
    outbox: RefCell<VecDeque<Vec<u8>>>,
    queued_bytes: Cell<usize>,
    changed: Notify,
    is_closed: Cell<bool>,
    /// True while the session does not read from its socket.
    pub is_read_paused: Cell<bool>,
    pub r2t_response: Cell<R2tResponse>,
    /// True if a write did not get its solicited data: later commands may wait for ever.
    pub has_unfed_writes: Cell<bool>,
    /// True if untracked PDUs were sent: any response is possible.
    pub sent_untracked_pdus: Cell<bool>,
    /// True if another session may have aborted commands of this one.
    pub had_cross_session_abort: Cell<bool>,
    pub tasks: RefCell<BTreeMap<u32, Task>>,
    task_management: RefCell<BTreeMap<u32, PendingTaskManagement>>,
    pings: RefCell<BTreeMap<u32, Vec<u8>>>,
    /// The last R2T: task tag, target transfer tag, offset.
    pub last_r2t: Cell<(u32, u32, u32)>,
    pub cmd_sn: Cell<u32>,
    pub max_cmd_sn: Cell<u32>,
    stat_sn: Cell<u32>,
    /// Negotiated limits: unsolicited and immediate data of a command, data of an R2T, received data segments.
    unsolicited_bytes: usize,
    immediate_bytes: usize,
    burst_bytes: u32,
    receive_bytes: usize,
    last_number: Cell<u64>,
    last_tag: Cell<u32>,
}

/// Sends bytes; false if the connection is closed.
pub async fn send(writer: &mut impl StreamWriter<SimSeam>, bytes: &[u8]) -> bool {
    let mut gather = Gather::default();
    gather.push_bytes(bytes);
    writer.send(gather).await.0.is_ok()
}

/// Receives a PDU; `None` if the server has closed the connection.
async fn receive(incoming: &mut BufferedReader<SimSeam, SimReader>, framing: &Framing) -> Option<(Response, Vec<u8>)> {
    loop {
        let step = match framing.decode(incoming.bytes()).expect("the server sends valid iSCSI PDUs") {
            Step::Got(frame, used) => {
                Some((Response::decode(frame.header).expect("a target's PDU"), frame.data.to_vec(), used))
            }
            Step::Incomplete(_) => None,
        };
        match step {
            Some((response, data, used)) => {
                incoming.consume(used);
                return Some((response, data));
            }
            None => incoming.receive_more().await.ok()?,
        }
    }
}

impl Session {
    fn new(login: &LoginOptions, reply: &[u8], last: &Response) -> Rc<Session> {
        let pairs = text::parse_pairs(reply).expect("the login response consists of pairs");
        let value = |key: &str| pairs.iter().find(|pair| pair.key == key).map(|pair| pair.value);
        let number = |key: &str, default| value(key).and_then(text::parse_number).unwrap_or(default);
        let requested = text::parse_pairs(login.parameters.as_bytes()).expect("the parameters are pairs");
        let requested_number =
            |key: &str| requested.iter().find(|pair| pair.key == key).and_then(|pair| text::parse_number(pair.value));
        let burst_bytes = number("MaxBurstLength", 262_144);
        let first_burst = number("FirstBurstLength", 65_536).min(burst_bytes) as usize;
        let has = |key, expected| value(key) == Some(expected);
        Rc::new(Session {
            framing: Framing { header_digest: login.digests.0, data_digest: login.digests.1, data_bytes_max: 1 << 20 },
            outbox: RefCell::default(),
            queued_bytes: Cell::new(0),
            changed: Notify::default(),
            is_closed: Cell::new(false),
            is_read_paused: Cell::new(false),
            r2t_response: Cell::new(R2tResponse::Correct),
            has_unfed_writes: Cell::new(false),
            sent_untracked_pdus: Cell::new(false),
            had_cross_session_abort: Cell::new(false),
            tasks: RefCell::default(),
            task_management: RefCell::default(),
            pings: RefCell::default(),
            last_r2t: Cell::default(),
            cmd_sn: Cell::new(1),
            max_cmd_sn: Cell::new(0),
            stat_sn: Cell::new(last.stat_sn.wrapping_add(1)),
            unsolicited_bytes: if has("InitialR2T", "No") { first_burst } else { 0 },
            immediate_bytes: if has("ImmediateData", "No") { 0 } else { first_burst.min(SEND_BYTES) },
            burst_bytes,
            receive_bytes: requested_number("MaxRecvDataSegmentLength").map_or(8192, |len| len as usize),
            last_number: Cell::new(0),
            last_tag: Cell::new(1),
        })
    }

    /// True if the server or this side has closed the connection.
    pub fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    /// Closes the connection without a logout.
    pub fn close(&self) {
        self.is_closed.set(true);
        self.changed.notify_all();
    }

    /// Resumes reading.
    pub fn resume_reading(&self) {
        self.is_read_paused.set(false);
        self.changed.notify_all();
    }

    /// Waits until the condition holds or the session is closed.
    pub async fn wait_until(&self, holds: impl Fn() -> bool) {
        self.changed.wait_until(|| self.is_closed() || holds()).await;
    }

    /// Bytes queued for sending.
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes.get()
    }

    async fn write_all(self: Rc<Self>, mut writer: impl StreamWriter<SimSeam>) {
        loop {
            self.wait_until(|| self.queued_bytes() > 0).await;
            let Some(pdu) = self.outbox.borrow_mut().pop_front() else { return };
            let until_closed = self.wait_until(|| false);
            let sent = run_until(until_closed, send(&mut writer, &pdu)).await;
            self.queued_bytes.set(self.queued_bytes.get() - pdu.len());
            if self.is_closed() || sent != Some(true) {
                return self.close();
            }
        }
    }

    async fn read_all(self: Rc<Self>, mut incoming: BufferedReader<SimSeam, SimReader>) {
        loop {
            self.wait_until(|| !self.is_read_paused.get()).await;
            let received = run_until(self.wait_until(|| false), receive(&mut incoming, &self.framing)).await;
            match received.flatten() {
                Some((response, data)) if !self.is_closed() => self.handle_response(&response, data),
                _ => return self.close(),
            }
            self.changed.notify_all();
        }
    }

    /// Sends raw bytes without tracking.
    pub fn send_raw(&self, bytes: &[u8]) {
        self.queued_bytes.set(self.queued_bytes.get() + bytes.len());
        self.outbox.borrow_mut().push_back(bytes.to_vec());
        self.changed.notify_all();
    }

    /// Encodes a PDU. A PDU that is not immediate takes a command sequence number.
    pub fn encode_pdu(&self, task_tag: u32, immediate: bool, body: RequestBody, data: &[u8]) -> Vec<u8> {
        let ahs = match &body {
            RequestBody::Command(command) => command.encode_ahs(),
            _ => Vec::new(),
        };
        let numbered = !matches!(body, RequestBody::DataOut(_) | RequestBody::Snack | RequestBody::Login(_));
        let cmd_sn = self.cmd_sn.get();
        if numbered && !immediate {
            self.cmd_sn.set(cmd_sn.wrapping_add(1));
        }
        let request = Request { immediate, task_tag, cmd_sn, exp_stat_sn: self.stat_sn.get(), body };
        let mut bytes = Vec::new();
        self.framing.push_with_ahs(&mut bytes, request.encode(), &ahs, data);
        bytes
    }

    /// Sends a PDU.
    pub fn send_pdu(&self, task_tag: u32, immediate: bool, body: RequestBody, data: &[u8]) {
        let bytes = self.encode_pdu(task_tag, immediate, body, data);
        self.send_raw(&bytes);
    }

    /// A new task tag.
    pub fn new_tag(&self) -> u32 {
        self.last_tag.set(self.last_tag.get() + 1);
        self.last_tag.get()
    }

    fn next_number(&self) -> u64 {
        self.last_number.set(self.last_number.get() + 1);
        self.last_number.get()
    }

    /// True if the target's command window has room.
    pub fn has_room(&self) -> bool {
        !is_before(self.max_cmd_sn.get(), self.cmd_sn.get())
    }

    /// Begins a command that writes the first `len` bytes of `data`; as many of them as permitted are sent unsolicited.
    pub fn begin(&self, mut command: Command, immediate: bool, data: &Rc<[u8]>, len: usize) -> u32 {
        let tag = self.new_tag();
        let immediate_bytes = len.min(self.immediate_bytes);
        let unsolicited_bytes = len.min(self.unsolicited_bytes).max(immediate_bytes);
        command.is_final = unsolicited_bytes <= immediate_bytes;
        let task = Task {
            state: State::Open,
            status: 0,
            read: None,
            must_be_answered: (immediate || self.has_room())
                && (!command.writes || len == command.expected_len as usize),
            lun: command.lun,
            number: self.next_number(),
            expected_read: match (command.reads, command.writes) {
                (true, true) => command.expected_read_len.unwrap_or(0),
                (true, false) => command.expected_len,
                (false, _) => 0,
            },
            data: Rc::clone(data),
            len,
            read_bytes: 0,
            data_sn: 0,
            r2ts: 0,
            r2t_end: unsolicited_bytes as u32,
        };
        self.tasks.borrow_mut().insert(tag, task);
        let lun = command.lun;
        self.send_pdu(tag, immediate, RequestBody::Command(command), &data[..immediate_bytes]);
        if unsolicited_bytes > immediate_bytes {
            let unsolicited = &data[immediate_bytes..unsolicited_bytes];
            self.send_data(tag, NO_TAG, lun, immediate_bytes, unsolicited);
        }
        tag
    }

    fn send_data(&self, tag: u32, target_tag: u32, lun: [u8; 8], offset: usize, data: &[u8]) {
        let count = data.len().div_ceil(SEND_BYTES);
        for (number, segment) in data.chunks(SEND_BYTES).enumerate() {
            let offset = (offset + number * SEND_BYTES) as u32;
            let pdu = DataOut { is_final: number + 1 == count, lun, target_tag, data_sn: number as u32, offset };
            self.send_pdu(tag, false, RequestBody::DataOut(pdu), segment);
        }
    }

    /// Requests a task management function.
    pub fn manage(&self, function: TaskFunction, lun: [u8; 8], referenced_tag: u32) {
        let tag = self.new_tag();
        let pending = PendingTaskManagement { function, lun, referenced_tag, number: self.next_number() };
        self.task_management.borrow_mut().insert(tag, pending);
        let body = TaskManagement { function, lun, referenced_tag, referenced_cmd_sn: 0 };
        self.send_pdu(tag, true, RequestBody::TaskManagement(body), &[]);
    }

    /// Sends a ping and returns its task tag.
    pub fn ping(&self, data: &[u8]) -> u32 {
        let tag = self.new_tag();
        self.pings.borrow_mut().insert(tag, data.to_vec());
        self.send_pdu(tag, true, RequestBody::NopOut { lun: [0; 8], target_tag: NO_TAG }, data);
        tag
    }

    /// True if the ping was answered.
    pub fn is_ping_answered(&self, tag: u32) -> bool {
        !self.pings.borrow().contains_key(&tag)
    }

    /// Logs out, and waits until the server has closed the connection.
    pub async fn log_out(&self) {
        if !self.is_closed() {
            let body = RequestBody::Logout { reason: 0, connection: 0 };
            self.sent_untracked_pdus.set(true);
            self.send_pdu(self.new_tag(), true, body, &[]);
            self.wait_until(|| false).await;
        }
    }

    /// Checks, after sufficient time, that all outstanding requests were answered.
    pub fn check_all_answered(&self) {
        if self.is_closed() || self.sent_untracked_pdus.get() || self.is_read_paused.get() {
            return;
        }
        for (tag, task) in self.tasks.borrow().iter().filter(|_| !self.had_cross_session_abort.get()) {
            let Task { r2ts, r2t_end, len, read_bytes, .. } = task;
            let is_lost =
                task.state == State::Open && task.must_be_answered && !(*len > 0 && self.has_unfed_writes.get());
            assert!(
                !is_lost,
                "command {tag} got no response: {r2ts} R2Ts for {r2t_end} of {len} bytes, {read_bytes} bytes were read"
            );
        }
        assert!(self.task_management.borrow().is_empty(), "a task management function was never answered");
        assert!(self.pings.borrow().is_empty(), "a ping was never answered");
    }
}

/// Output of `work`, or `None` if `end` completes first.
pub async fn run_until<T>(end: impl Future<Output = ()>, work: impl Future<Output = T>) -> Option<T> {
    let (mut end, mut work) = (std::pin::pin!(end), std::pin::pin!(work));
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => end.as_mut().poll(context).map(|()| None),
    })
    .await
}
