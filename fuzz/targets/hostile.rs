//! Hostile initiators: three sessions of one initiator, and connections that do not log in. The input determines their
//! actions.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use iscsi_protocol::request::{Attribute, Command, DataOut, TaskFunction};
use iscsi_protocol::{HEADER_BYTES, NO_TAG, RequestBody};
use seam::sim::{Fault, Ops, Rule, SimSeam, SimStream, When, World};
use seam::{ByteStream, Nanos, Seam};

use crate::healthy::{CHECK_CONDITION, GOOD, READ_10, TEST_UNIT_READY, WRITE_10, block_command, call};
use crate::initiator::{
    LUNS, LoginOptions, R2tResponse, Session, State, TARGET, build_login_pdu, build_login_request, run_until, send,
};
use crate::scsi_commands::{PERSISTENT_RESERVE_OUT, structured_command, take};

/// Time after which all outstanding requests must have been answered: longer than disks stall.
const ANSWER_TIMEOUT: Nanos = Nanos::from_secs(40);
/// Most actions of one input.
const ACTIONS_MAX: usize = 96;
/// Most queued bytes; beyond them no more PDUs are generated.
const QUEUED_BYTES_MAX: usize = 16 << 20;
const PATTERN_BYTES: usize = 1 << 20;
/// Operation codes.
const PERSISTENT_RESERVE_IN: u8 = 0x5e;
const COMPARE_AND_WRITE: u8 = 0x89;
/// Service action of PERSISTENT RESERVE IN.
const READ_RESERVATION: u8 = 1;
/// Length of the response to READ RESERVATION without a reservation.
const NO_RESERVATION_BYTES: usize = 8;

thread_local! {
    /// Data of all writes.
    static PATTERN: Rc<[u8]> = 0x1357_9bdf_u64.to_le_bytes().repeat(PATTERN_BYTES / 8).into();
}

/// Creates thread-local data ahead of the memory measurement.
pub fn prepare() {
    PATTERN.with(|_| ());
}

/// All hostile initiators and their sessions.
pub struct Hostile {
    seam: SimSeam,
    login: LoginOptions,
    usages: &'static [Vec<u8>],
    sessions: RefCell<Vec<Rc<Session>>>,
    pattern: Rc<[u8]>,
    /// True if a session may have aborted commands of other sessions.
    had_cross_session_abort: Cell<bool>,
    /// True once sessions only wait for outstanding responses.
    is_finishing: Cell<bool>,
    /// True after all sessions have ended.
    is_over: Cell<bool>,
}

impl Hostile {
    pub fn new(seam: SimSeam, login: LoginOptions, usages: &'static [Vec<u8>]) -> Hostile {
        let pattern = PATTERN.with(Rc::clone);
        Hostile {
            seam,
            login,
            usages,
            sessions: RefCell::default(),
            pattern,
            had_cross_session_abort: Cell::new(false),
            is_finishing: Cell::new(false),
            is_over: Cell::new(false),
        }
    }

    /// True after all sessions have ended.
    pub fn is_over(&self) -> bool {
        self.is_over.get()
    }

    /// True once the sessions start no more actions.
    pub fn is_finishing(&self) -> bool {
        self.is_finishing.get()
    }

    /// Bytes queued for sending.
    pub fn queued_bytes(&self) -> usize {
        self.sessions.borrow().iter().map(|session| session.queued_bytes()).sum()
    }

    /// Performs the actions of the input.
    pub async fn run(&self, world: &World, mut input: &[u8]) {
        let mut slots: [Option<Rc<Session>>; 3] = [None, None, None];
        let mut unauthenticated = Vec::new();
        for _ in 0..ACTIONS_MAX {
            let Some(action) = input.split_off_first() else { break };
            let slot = usize::from(action >> 6);
            let Some(session_slot) = slots.get_mut(slot) else {
                self.connect_without_login(action & 0x3f, &mut input, &mut unauthenticated).await;
                continue;
            };
            if session_slot.as_ref().is_none_or(|session| session.is_closed()) || action & 0x3f == 50 {
                *session_slot = self.log_in(slot).await;
            }
            if let Some(session) = session_slot.clone() {
                self.perform_action(world, &session, action & 0x3f, &mut input).await;
            }
        }
        (1..3).for_each(|number| world.disk(format!("/disk{number}")).expect("the disk exists").clear_faults());
        let sessions = self.sessions.borrow().clone();
        for session in &sessions {
            session.resume_reading();
        }
        self.is_finishing.set(true);
        self.seam.sleep(ANSWER_TIMEOUT).await;
        sessions.iter().for_each(|session| session.check_all_answered());
        for (number, session) in sessions.iter().enumerate() {
            match number % 2 == 0 && !session.sent_untracked_pdus.get() {
                true => session.log_out().await,
                false => session.close(),
            }
        }
        drop(unauthenticated);
        self.sessions.borrow_mut().clear();
        self.is_over.set(true);
    }

    async fn log_in(&self, slot: usize) -> Option<Rc<Session>> {
        let login = LoginOptions { isid: [slot as u8 + 1; 6], ..self.login.clone() };
        let session = Session::log_in(&self.seam, &login).await?;
        session.had_cross_session_abort.set(self.had_cross_session_abort.get());
        self.sessions.borrow_mut().push(Rc::clone(&session));
        // The first command of each unit reports a unit attention (power on).
        for lun in LUNS {
            self.begin(&session, block_command(TEST_UNIT_READY, lun, 0, 0), 0);
        }
        // Another session may end these commands, without a report.
        let answered = session.wait_until(|| session.tasks.borrow().values().all(|task| task.state != State::Open));
        run_until(answered, self.seam.sleep(ANSWER_TIMEOUT)).await;
        Some(session)
    }

    /// Marks sessions whose commands this action may abort, including commands sent before it completes.
    fn record_cross_session_abort(&self, acting: &Rc<Session>, includes_acting: bool) {
        self.had_cross_session_abort.set(true);
        for session in self.sessions.borrow().iter().filter(|session| includes_acting || !Rc::ptr_eq(session, acting)) {
            session.had_cross_session_abort.set(true);
        }
    }

    async fn perform_action(&self, world: &World, session: &Rc<Session>, kind: u8, input: &mut &[u8]) {
        let mut byte = || input.split_off_first().copied().unwrap_or_default();
        match kind {
            0..8 => {
                let (sector, count) = (u32::from(byte()) * 16, u16::from(byte()) * u16::from(kind / 2 + 1));
                let mut command = block_command(READ_10, lun(kind), sector, count);
                if kind == 7 {
                    command.expected_len = u32::from(byte()) * 500;
                }
                self.begin(session, command, 0);
            }
            8..20 | 62 | 63 => {
                let (selector, sectors, repeat) = (byte(), u16::from(byte()) + 1, byte() % 8);
                let sector = u32::from(selector) * 16;
                let repeat = if kind >= 62 { 1 + repeat * 8 } else { 1 };
                let sectors = if kind == 63 { 2048 } else { sectors };
                for _ in (0..repeat).take_while(|_| session.queued_bytes() < QUEUED_BYTES_MAX) {
                    let command =
                        block_command(WRITE_10, lun(if kind < 62 { kind } else { selector }), sector, sectors);
                    self.begin(session, command, usize::from(sectors) * 512);
                }
            }
            20..30 => self.send_structured_command(session, kind, input),
            30..34 => {
                let index_from_newest = u32::from(byte() % 16);
                let tags: Vec<u32> = session.tasks.borrow().keys().copied().collect();
                let tag = tags.len().checked_sub(1 + index_from_newest as usize).map_or(0xdead, |index| tags[index]);
                let own_lun = session.tasks.borrow().get(&tag).map_or(LUNS[0], |task| task.lun);
                session.manage(TaskFunction::AbortTask, if kind == 33 { lun(byte()) } else { own_lun }, tag);
            }
            34..37 => {
                let function = TaskFunction::from_wire(2 + byte() % 9);
                if !matches!(function, TaskFunction::AbortTaskSet) {
                    self.record_cross_session_abort(session, false);
                }
                session.manage(function, lun(kind), 0);
            }
            37..40 => self.send_data_out(session, kind, input),
            40 | 41 => self.send_contradictory_command(session, input),
            42 | 43 => drop(session.ping(&self.pattern[..usize::from(byte()) * if kind == 42 { 1 } else { 64 }])),
            44 => {
                let (flags, target_tag) = (byte(), if byte() & 1 == 0 { NO_TAG } else { 1 });
                let (is_final, continues) = (flags & 1 == 0, flags & 2 != 0);
                let text: &[u8] =
                    if flags & 4 == 0 { b"SendTargets=All\0SendTargets=\0X-other=1\0" } else { take(input, 30) };
                let body = RequestBody::Text { is_final, continues, target_tag, lun: [0; 8] };
                session.send_pdu(session.new_tag(), true, body, text);
            }
            45 => {
                let body = RequestBody::Logout { reason: byte() % 4, connection: u16::from(byte() % 2) };
                session.sent_untracked_pdus.set(true);
                session.send_pdu(session.new_tag(), true, body, &[]);
            }
            46 => session.send_pdu(session.new_tag(), false, RequestBody::Snack, &[]),
            47 => {
                session.sent_untracked_pdus.set(true);
                let len = usize::from(byte());
                session.send_raw(take(input, len));
            }
            48 | 57..60 => self.send_damaged_pdu(session, kind, input),
            49 => session.close(),
            51..54 => self.seam.sleep(Nanos::from_micros(1 << (byte() % 22))).await,
            54 | 55 => session.r2t_response.set(match byte() % 6 {
                0 => R2tResponse::Correct,
                1 => R2tResponse::Missing,
                2 => R2tResponse::WrongOffset,
                3 => R2tResponse::WrongTransferTag,
                4 => R2tResponse::Endless,
                _ => R2tResponse::TooLong,
            }),
            56 if session.is_read_paused.get() => session.resume_reading(),
            56 => session.is_read_paused.set(true),
            60 => world.cut(&self.login.portal),
            61 => {
                let stall = Nanos::from_millis(u64::from(byte()) * 20);
                let (selector, ops) = (byte(), if byte() & 1 == 0 { Ops::ALL } else { Ops::CHANGE });
                let disk = world.disk(format!("/disk{}", 1 + selector % 2)).expect("the disk exists");
                let now = self.seam.now();
                let when = match selector & 2 {
                    0 => When::Between(now, now + stall),
                    _ => When::Nth(u64::from(selector >> 2) % 8),
                };
                disk.add_fault(Rule::new(Fault::Stall(stall), ops, when));
            }
            _ => (),
        }
    }

    fn begin(&self, session: &Session, command: Command, len: usize) {
        session.begin(command, false, &self.pattern, len);
    }

    /// Sends a nearly valid command of any kind.
    fn send_structured_command(&self, session: &Rc<Session>, kind: u8, input: &mut &[u8]) {
        let (mut cdb, data) = structured_command(self.usages, input);
        let len = cdb.len();
        // Changes of reservations end other sessions' commands, and may end this session's own.
        if cdb[0] == PERSISTENT_RESERVE_OUT {
            self.record_cross_session_abort(session, true);
        }
        cdb.resize(16, 0);
        let blocks = usize::from(cdb[[4, 8, 9, 13][len / 6 + usize::from(len == 16)]]);
        let command = Command { cdb, ..block_command(TEST_UNIT_READY, lun(kind), 0, 0) };
        let immediate = kind >= 28;
        match (data.is_empty(), kind % 3) {
            (false, _) => {
                let command = Command { writes: true, expected_len: data.len() as u32, ..command };
                session.begin(command, immediate, &data.as_slice().into(), data.len());
            }
            (true, 0) => {
                let len = blocks * 512 * if command.cdb[0] == COMPARE_AND_WRITE { 2 } else { 1 };
                let writes = len > 0;
                session.begin(Command { writes, expected_len: len as u32, ..command }, immediate, &self.pattern, len);
            }
            (true, _) => {
                let command = Command { reads: true, expected_len: 4096 << (kind & 3), ..command };
                session.begin(command, immediate, &self.pattern, 0);
            }
        }
    }

    /// Sends a Data-Out PDU that was not solicited, or that differs from the R2T.
    fn send_data_out(&self, session: &Session, kind: u8, input: &mut &[u8]) {
        let [selector, flags, sn, sectors, len] = *take(input, 5) else { return };
        let (r2t_tag, r2t_transfer_tag, r2t_offset) = session.last_r2t.get();
        let tags: Vec<u32> = session.tasks.borrow().keys().copied().collect();
        let tag = match kind {
            37 => r2t_tag,
            _ => tags.len().checked_sub(1 + usize::from(selector % 8)).map_or(r2t_tag, |index| tags[index]),
        };
        if let Some(task) = session.tasks.borrow_mut().get_mut(&tag) {
            task.must_be_answered = false;
            session.has_unfed_writes.set(true);
        }
        let target_tag =
            [r2t_transfer_tag, NO_TAG, r2t_transfer_tag.wrapping_add(1), u32::from(selector)][usize::from(flags & 3)];
        let offset = (if flags & 4 == 0 { r2t_offset } else { 0 }).wrapping_add(u32::from(sectors) * 512);
        let offset = if flags & 8 == 0 { offset } else { u32::MAX - u32::from(sectors) };
        let pdu = DataOut { is_final: flags & 16 != 0, lun: lun(kind), target_tag, data_sn: u32::from(sn % 4), offset };
        let data = &self.pattern[offset as usize % 8..][..usize::from(len) * 700];
        session.send_pdu(tag, false, RequestBody::DataOut(pdu), data);
    }

    /// Sends a command with contradictory fields.
    fn send_contradictory_command(&self, session: &Session, input: &mut &[u8]) {
        let [flags, len, sent, sector, extra] = *take(input, 5) else { return };
        let command = Command {
            is_final: flags & 1 == 0,
            reads: flags & 2 != 0,
            writes: flags & 4 != 0,
            attribute: [Attribute::Simple, Attribute::Ordered, Attribute::HeadOfQueue, Attribute::Aca]
                [usize::from(flags >> 3 & 3)],
            lun: lun(flags >> 5),
            expected_len: if len == 255 { u32::MAX } else { u32::from(len) * 3000 },
            expected_read_len: (extra & 1 != 0).then_some(u32::from(extra) * 300),
            ..block_command(
                if extra & 2 == 0 { READ_10 } else { WRITE_10 },
                [0; 8],
                u32::from(sector),
                u16::from(sector),
            )
        };
        session.sent_untracked_pdus.set(true);
        session.send_pdu(
            session.new_tag(),
            extra & 4 != 0,
            RequestBody::Command(command),
            &self.pattern[..usize::from(sent) * 1028],
        );
    }

    /// Sends a PDU that is truncated, repeated, out of order, or has a flipped bit.
    fn send_damaged_pdu(&self, session: &Session, kind: u8, input: &mut &[u8]) {
        let [variant, position] = *take(input, 2) else { return };
        session.sent_untracked_pdus.set(true);
        let command = block_command(if variant & 1 == 0 { READ_10 } else { WRITE_10 }, lun(variant), 0, 16);
        let data = if command.writes { 4096 } else { 0 };
        let tags: Vec<u32> = session.tasks.borrow().keys().copied().collect();
        let tag = tags.len().checked_sub(1 + usize::from(position % 8)).map_or(77, |index| tags[index]);
        if kind == 58 {
            // A sequence number that skips or repeats.
            session.cmd_sn.set(session.cmd_sn.get().wrapping_add(u32::from(variant >> 1)).wrapping_sub(4));
        }
        let tag = if kind == 57 { tag } else { session.new_tag() };
        let mut bytes = session.encode_pdu(tag, false, RequestBody::Command(command), &self.pattern[..data]);
        match kind {
            48 => bytes.truncate(usize::from(position)),
            59 => {
                // Only in the header: written data must consist of whole tags, as simulated disks require.
                let bit = (usize::from(position) << 3 | usize::from(variant >> 5)) % (8 * HEADER_BYTES);
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            _ => (),
        }
        session.send_raw(&bytes);
    }

    /// Opens a connection that does not log in properly.
    async fn connect_without_login(
        &self,
        kind: u8,
        input: &mut &[u8],
        unauthenticated: &mut Vec<<SimStream as ByteStream<SimSeam>>::Writer>,
    ) {
        if kind == 0 {
            return unauthenticated.clear();
        }
        let (_, mut writer) = self.seam.connect(&self.login.portal).await.expect("the server listens").split();
        let bytes = match kind % 4 {
            0 => Vec::new(),
            1 => take(input, 60).to_vec(),
            _ => {
                let [stage, tsih, isid, flags] = *take(input, 4) else { return };
                let names = format!("InitiatorName={}\0TargetName={TARGET}\0", self.login.name);
                let mut text = if flags & 1 == 0 { names.into_bytes() } else { Vec::new() };
                text.extend(match flags & 2 {
                    0 => b"SessionType=Discovery\0AuthMethod=None\0",
                    _ => take(input, usize::from(flags >> 3)),
                });
                let request = build_login_request(
                    [isid % 4; 6],
                    u16::from(tsih % 8),
                    (stage & 3, stage >> 2 & 3),
                    stage & 16 != 0,
                );
                build_login_pdu(request, &text)
            }
        };
        send(&mut writer, &bytes).await;
        // Some connections stay open.
        if kind & 32 == 0 && unauthenticated.len() < 16 {
            unauthenticated.push(writer);
        }
    }
}

/// An existing unit, except for one value in sixteen.
fn lun(selector: u8) -> [u8; 8] {
    if selector % 16 == 15 { [0, 5, 0, 0, 0, 0, 0, 0] } else { LUNS[usize::from(selector) % LUNS.len()] }
}

/// Checks that only persistent reservations outlive their sessions.
pub async fn check_nothing_reserved(seam: &SimSeam, login: &LoginOptions) {
    let login = LoginOptions { isid: [99; 6], ..login.clone() };
    let session = Session::log_in(seam, &login).await.expect("the session limit is not reached");
    let none: Rc<[u8]> = [].into();
    for lun in LUNS {
        let ready = Command { reads: false, expected_len: 0, ..block_command(TEST_UNIT_READY, lun, 0, 0) };
        assert_eq!(call(&session, ready, &none).await.0, CHECK_CONDITION, "power on");
        let mut command = Command { reads: true, expected_len: 64, ..block_command(PERSISTENT_RESERVE_IN, lun, 0, 64) };
        command.cdb[1] = READ_RESERVATION;
        let (status, reservation) = call(&session, command, &none).await;
        assert_eq!(status, GOOD, "no session holds a reservation");
        if reservation.len() <= NO_RESERVATION_BYTES {
            assert_eq!(
                call(&session, block_command(READ_10, lun, 0, 1), &none).await.0,
                GOOD,
                "the unit is not reserved"
            );
        }
    }
    session.log_out().await;
}
