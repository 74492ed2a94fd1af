//! Checks of received PDUs: each must answer an outstanding request, in order.

use iscsi_protocol::request::{DataOut, TaskFunction};
use iscsi_protocol::response::TaskResponse;
use iscsi_protocol::window::is_before;
use iscsi_protocol::{NO_TAG, RequestBody, Response, ResponseBody};

use super::{COMMANDS_MAX, LUNS, R2tResponse, SEND_BYTES, Session, State};

impl Session {
    /// Checks a received PDU, and reacts to it.
    pub(super) fn handle_response(&self, response: &Response, data: Vec<u8>) {
        let carries_number = match &response.body {
            ResponseBody::DataIn(data) => data.status.is_some(),
            ResponseBody::ReadyToTransfer { .. } => false,
            ResponseBody::NopIn { .. } => response.task_tag != NO_TAG,
            _ => true,
        };
        assert_eq!(response.stat_sn, self.stat_sn.get(), "StatSN increases by one");
        self.stat_sn.set(response.stat_sn.wrapping_add(u32::from(carries_number)));
        assert!(!is_before(response.max_cmd_sn, self.max_cmd_sn.get()), "the command window shrank");
        self.max_cmd_sn.set(response.max_cmd_sn);
        let window = response.max_cmd_sn.wrapping_sub(response.exp_cmd_sn).wrapping_add(1);
        assert!(window <= COMMANDS_MAX, "the command window exceeds the limit of commands");
        if self.sent_untracked_pdus.get() {
            return;
        }
        let tag = response.task_tag;
        match &response.body {
            ResponseBody::NopIn { target_tag, lun } if tag == NO_TAG => {
                if *target_tag != NO_TAG {
                    self.send_pdu(NO_TAG, true, RequestBody::NopOut { lun: *lun, target_tag: *target_tag }, &[]);
                }
            }
            ResponseBody::NopIn { .. } => {
                let sent = self.pings.borrow_mut().remove(&tag).expect("a NOP-In answers an outstanding ping");
                let len = sent.len().min(self.receive_bytes);
                assert!(data == sent[..len], "a NOP-In returns the ping's data, up to the segment limit");
            }
            ResponseBody::TaskManagement(response) => self.handle_task_management_response(tag, *response),
            ResponseBody::Reject(_) => self.handle_reject(&data),
            ResponseBody::DataIn(_) | ResponseBody::Command { .. } | ResponseBody::ReadyToTransfer { .. } => {
                self.handle_task_response(tag, &response.body, data);
            }
            ResponseBody::Text { .. } | ResponseBody::Logout { .. } | ResponseBody::Async(_) => (),
            ResponseBody::Login(_) => panic!("an unexpected login response"),
        }
    }

    fn handle_task_response(&self, tag: u32, body: &ResponseBody, data: Vec<u8>) {
        let mut tasks = self.tasks.borrow_mut();
        let task = tasks.get_mut(&tag).expect("the response refers to a command that was sent");
        assert_eq!(task.state, State::Open, "{body:?} refers to a command that has ended");
        match *body {
            ResponseBody::DataIn(header) => {
                assert_eq!(
                    (header.data_sn, header.offset),
                    (task.data_sn, task.read_bytes),
                    "Data-In PDUs arrive in order"
                );
                task.data_sn += 1;
                task.read_bytes += data.len() as u32;
                assert!(task.read_bytes <= task.expected_read, "more data is read than the command expects");
                if let Some(read) = &mut task.read {
                    read.extend(data);
                }
                if header.status.is_some() {
                    task.state = State::Answered;
                }
            }
            ResponseBody::Command { status, .. } => {
                task.status = status;
                task.state = State::Answered;
            }
            ResponseBody::ReadyToTransfer { lun, target_tag, r2t_sn, offset, len } => {
                assert_eq!((r2t_sn, offset), (task.r2ts, task.r2t_end), "R2Ts request data in order");
                assert!(len > 0 && len <= self.burst_bytes, "an R2T for {len} bytes");
                task.r2ts += 1;
                task.r2t_end += len;
                self.last_r2t.set((tag, target_tag, offset));
                let (start, end) = (offset as usize, (offset + len) as usize);
                let r2t_response = self.r2t_response.get();
                if r2t_response != R2tResponse::Correct {
                    self.has_unfed_writes.set(true);
                }
                let solicited = task.data[..task.len].get(start..end).map(<[u8]>::to_vec);
                drop(tasks);
                if let Some(solicited) = solicited {
                    self.answer_r2t(r2t_response, (tag, target_tag, lun), start, &solicited);
                }
            }
            _ => unreachable!("the caller passes only responses to commands"),
        }
    }

    fn answer_r2t(
        &self,
        r2t_response: R2tResponse,
        (tag, target_tag, lun): (u32, u32, [u8; 8]),
        offset: usize,
        data: &[u8],
    ) {
        match r2t_response {
            R2tResponse::Correct => self.send_data(tag, target_tag, lun, offset, data),
            R2tResponse::Missing => (),
            R2tResponse::WrongOffset => self.send_data(tag, target_tag, lun, offset + 512, data),
            R2tResponse::WrongTransferTag => self.send_data(tag, target_tag.wrapping_add(1), lun, offset, data),
            R2tResponse::Endless => {
                let len = data.len().min(SEND_BYTES);
                let pdu = DataOut { is_final: false, lun, target_tag, data_sn: 0, offset: offset as u32 };
                self.send_pdu(tag, false, RequestBody::DataOut(pdu), &data[..len]);
            }
            R2tResponse::TooLong => self.send_data(tag, target_tag, lun, offset, &[data, &[0; 512]].concat()),
        }
    }

    /// Processes the response to a task management function: the affected commands are aborted, and none of them was
    /// answered before.
    fn handle_task_management_response(&self, tag: u32, response: TaskResponse) {
        let pending = self.task_management.borrow_mut().remove(&tag).expect("the function is pending");
        let mut tasks = self.tasks.borrow_mut();
        match (pending.function, response) {
            (TaskFunction::AbortTask, TaskResponse::Complete) => {
                let task = tasks.get_mut(&pending.referenced_tag).expect("the aborted command was sent");
                assert_ne!(task.state, State::Answered, "an aborted command was answered before");
                task.state = State::Aborted;
            }
            (TaskFunction::AbortTask, TaskResponse::NoSuchTask) => {
                if let Some(task) = tasks.get(&pending.referenced_tag).filter(|task| task.lun == pending.lun) {
                    // While another function is pending, that one may have ended the command.
                    let may_be_aborted =
                        self.had_cross_session_abort.get() || !self.task_management.borrow().is_empty();
                    let is_lost = task.state == State::Open && task.must_be_answered && !may_be_aborted;
                    assert!(!is_lost, "a command was lost: it was neither answered nor aborted");
                }
            }
            (_, TaskResponse::Complete) => {
                let is_target_reset =
                    matches!(pending.function, TaskFunction::TargetWarmReset | TaskFunction::TargetColdReset);
                for task in tasks.values_mut() {
                    let has_lun = if is_target_reset { LUNS.contains(&task.lun) } else { task.lun == pending.lun };
                    let is_affected = task.number < pending.number && has_lun;
                    if task.state == State::Open && is_affected {
                        task.state = State::Aborted;
                    }
                }
            }
            _ => (),
        }
    }

    /// Processes the rejection of a PDU, whose header is returned.
    fn handle_reject(&self, header: &[u8]) {
        let tag = u32::from_be_bytes(header[16..20].try_into().expect("a reject returns the header"));
        if let Some(task) = self.tasks.borrow_mut().get_mut(&tag).filter(|task| task.state == State::Open) {
            task.state = State::Aborted;
        }
        self.task_management.borrow_mut().remove(&tag);
        self.pings.borrow_mut().remove(&tag);
    }
}
