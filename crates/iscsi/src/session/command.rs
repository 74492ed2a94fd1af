//! SCSI commands: a command that needs no waiting is answered at once, every other command becomes a task.

use std::rc::Rc;

use iscsi_protocol::NO_TAG;
use iscsi_protocol::request::{Command, Reject};
use iscsi_protocol::response::Residual;
use scsi::{ExpectedLengths, Lun, Nexus, Outcome, SENT_AT_ONCE_BYTES_MAX, Status};
use seam::Seam;

use super::Session;
use super::outgoing::DataPosition;
use super::reply::{Reply, borrowed_bytes};
use super::slowest::SlowCommand;
use super::task::{Task, WriteData};
use super::writes::DataDelivery;
use crate::options::IMMEDIATE_MAX;

/// SCSI status TASK SET FULL: the write quota is exhausted, and the initiator retries with fewer commands in flight.
const TASK_SET_FULL: u8 = 0x28;
/// SCSI status GOOD.
const GOOD: u8 = 0;
/// SCSI status CHECK CONDITION: sense data follows.
const CHECK_CONDITION: u8 = 2;
/// Sense data for data out of order (RFC 7143, 11.4.7.2): ABORTED COMMAND, 4B/00.
const DATA_PHASE_ERROR: [u8; 18] = [0x70, 0, 0x0b, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x4b, 0, 0, 0, 0, 0];
/// Operation codes of SYNCHRONIZE CACHE(10) and (16).
const SYNCHRONIZE_CACHE: [u8; 2] = [0x35, 0x91];

impl<S: Seam> Session<S> {
    /// Starts a command, with its immediate data.
    pub(super) fn start_command(
        self: &Rc<Self>,
        tag: u32,
        immediate: bool,
        command: &Command,
        data: &[u8],
    ) -> Result<(), Reject> {
        let Some(nexus) = &self.spec.nexus else { return Err(Reject::Protocol) };
        self.check_parameters(tag, command, data)?;
        if immediate && self.immediate_in_flight.get() >= IMMEDIATE_MAX {
            return Err(Reject::TooManyImmediate);
        }
        self.counters.commands.set(self.counters.commands.get() + 1);
        let (reads, writes, len) = (command.reads, command.writes, u64::from(command.expected_len));
        let expected = ExpectedLengths {
            out_bytes: if writes { len } else { 0 },
            in_bytes: match (reads, writes) {
                (true, false) => len,
                (true, true) => command.expected_read_len.unwrap_or_default().into(),
                (false, _) => 0,
            },
        };
        if self.try_answer(nexus, tag, command, expected, data) {
            return Ok(());
        }
        let parameters = &self.spec.negotiated.parameters;
        let unsolicited_max = parameters.first_burst_bytes;
        let unsolicited_len =
            if command.is_final { data.len() } else { unsolicited_max.min(command.expected_len) as usize };
        if unsolicited_len > 0 && self.exceeds_write_quota(unsolicited_len) {
            self.queue_status(tag, TASK_SET_FULL, &[], Residual::None, 0);
            return Ok(());
        }
        self.reserve_write_bytes(unsolicited_len);
        let continues_unsolicited = writes && !command.is_final;
        let write_data = WriteData::new(expected.out_bytes as u32, unsolicited_max, data, continues_unsolicited);
        let changes_nothing = reads && !writes || SYNCHRONIZE_CACHE.contains(&command.cdb[0]);
        let number = self.counters.commands.get();
        let task = Rc::new(Task::new(tag, command.lun, number, changes_nothing, immediate, write_data));
        self.tasks.borrow_mut().insert(tag, Rc::clone(&task));
        self.commands_in_flight.set(self.commands_in_flight.get() + 1);
        self.immediate_in_flight.set(self.immediate_in_flight.get() + usize::from(immediate));
        let (session, nexus, cdb) = (Rc::clone(self), nexus.clone(), command.cdb.clone());
        self.spec.shared.seam.spawn(async move { session.execute(&nexus, task, &cdb, expected).await });
        Ok(())
    }

    /// Checks a command against the negotiated parameters.
    fn check_parameters(&self, tag: u32, command: &Command, data: &[u8]) -> Result<(), Reject> {
        let parameters = &self.spec.negotiated.parameters;
        let immediate_max = parameters.first_burst_bytes.min(command.expected_len) as usize;
        let may_carry_data = command.writes && parameters.immediate_data && data.len() <= immediate_max;
        let is_invalid = tag == NO_TAG
            || self.tasks.borrow().contains_key(&tag)
            || !data.is_empty() && !may_carry_data
            || !command.is_final && (parameters.initial_r2t || !command.writes);
        if is_invalid { Err(Reject::Protocol) } else { Ok(()) }
    }

    /// Answers a command if the unit needs no waiting.
    fn try_answer(&self, nexus: &Nexus, tag: u32, command: &Command, expected: ExpectedLengths, data: &[u8]) -> bool {
        let target = &self.spec.shared.target;
        let scsi_command =
            scsi::Command { lun: command.lun, cdb: &command.cdb, expected, cancel: &self.never_cancelled };
        if command.writes {
            let is_complete = !command.reads && command.is_final && data.len() as u64 == expected.out_bytes;
            if !is_complete || data.is_empty() || !target.try_write(nexus, &scsi_command, data) {
                return false;
            }
            self.counters.write_bytes.set(self.counters.write_bytes.get() + data.len() as u64);
            self.queue_status(tag, GOOD, &[], Residual::None, 0);
            return true;
        }
        let len = expected.in_bytes as usize;
        if len == 0 || len > SENT_AT_ONCE_BYTES_MAX {
            return false;
        }
        let lent_bytes = borrowed_bytes(len);
        if !self.duplex.buffer_account().borrow_now(lent_bytes) {
            return false;
        }
        let mut pieces = self.pieces.borrow_mut();
        if !target.try_read(nexus, &scsi_command, &mut pieces) {
            self.duplex.buffer_account().release(lent_bytes);
            return false;
        }
        self.queue_pieces(tag, &mut DataPosition::default(), &mut pieces, Some(Residual::None), lent_bytes);
        true
    }

    /// Runs a command to its end, as a task.
    async fn execute(self: Rc<Self>, nexus: &Nexus, task: Rc<Task>, cdb: &[u8], expected: ExpectedLengths) {
        let started = self.spec.shared.seam.now();
        let mut data = DataDelivery::new(&self, &task);
        let mut reply = Reply::new(&self, &task, expected.in_bytes);
        let command = scsi::Command { lun: task.lun, cdb, expected, cancel: &task.cancel };
        let outcome = self.spec.shared.target.execute(nexus, command, &mut data, &mut reply).await;
        // Release the write quota first: MaxCmdSN of the answer is computed from it.
        drop(data);
        self.finish(&task, &outcome, reply, expected).await;
        let ended_at = self.spec.shared.seam.now();
        let lun = Lun::decode(task.lun).map(Lun::number);
        self.slowest.record(SlowCommand { name: scsi::name_of(cdb), lun, ended_at, latency: ended_at.since(started) });
    }

    /// Ends a command and answers it unless it was aborted.
    async fn finish(&self, task: &Rc<Task>, outcome: &Outcome, reply: Reply<S>, expected: ExpectedLengths) {
        self.wait_for_requested_data(task).await;
        self.commands_in_flight.set(self.commands_in_flight.get() - 1);
        self.immediate_in_flight.set(self.immediate_in_flight.get() - usize::from(task.is_immediate));
        // A task that this session aborted has left the list, and its tag may be in use again. A task that another
        // initiator's reset or preemption ended is still listed, with status `Aborted`; neither is answered.
        let mut tasks = self.tasks.borrow_mut();
        let is_registered = tasks.get(&task.tag).is_some_and(|registered| Rc::ptr_eq(registered, task));
        if is_registered {
            tasks.remove(&task.tag);
        }
        drop(tasks);
        if is_registered && task.has_data_error.get() {
            self.queue_status(task.tag, CHECK_CONDITION, &DATA_PHASE_ERROR, Residual::None, 0);
        } else if !is_registered || task.cancel.is_cancelled() || outcome.status == Status::Aborted {
            drop(reply);
            self.announce_window();
        } else {
            let expected = if expected.out_bytes > 0 { expected.out_bytes } else { expected.in_bytes };
            reply.finish(outcome, expected);
        }
        self.aborted_tasks.borrow_mut().retain(|aborted| !Rc::ptr_eq(aborted, task));
        task.end();
        // The connection's task sends the answer, or ends after the last command of a closing session.
        self.control().wake();
    }

    /// Aborts the commands for which `matches` is true; none of them is answered. Returns the tasks that may still
    /// change the medium, including earlier aborted ones.
    pub(crate) fn abort(&self, matches: impl Fn(&Task) -> bool) -> Vec<Rc<Task>> {
        let mut tasks = self.tasks.borrow_mut();
        let aborted: Vec<_> = tasks.values().filter(|task| matches(task)).cloned().collect();
        for task in &aborted {
            tasks.remove(&task.tag);
            self.counters.aborted.set(self.counters.aborted.get() + 1);
            task.cancel();
        }
        drop(tasks);
        let mut aborted_tasks = self.aborted_tasks.borrow_mut();
        aborted_tasks.extend(aborted.into_iter().filter(|task| !task.changes_nothing));
        let pending = aborted_tasks.iter().filter(|task| matches(task)).cloned().collect();
        drop(aborted_tasks);
        // Tasks that wait for buffers check for cancellation.
        self.duplex.buffer_account().wake_waiting();
        pending
    }
}
