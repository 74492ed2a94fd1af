//! Checks of received PDUs: each must be an owed answer, in order.

use iscsi_protocol::request::{DataOut, TaskFunction};
use iscsi_protocol::response::TaskResponse;
use iscsi_protocol::window::is_before;
use iscsi_protocol::{NO_TAG, RequestBody, Response, ResponseBody};

use super::{COMMANDS_MAX, Feeds, LUNS, SEND_BYTES, Session, State};

impl Session {
    pub(super) fn take(&self, response: &Response, data: Vec<u8>) {
        let carries_number = match &response.body {
            ResponseBody::DataIn(data) => data.status.is_some(),
            ResponseBody::ReadyToTransfer { .. } => false,
            ResponseBody::NopIn { .. } => response.task_tag != NO_TAG,
            _ => true,
        };
        assert_eq!(response.stat_sn, self.stat_sn.get(), "answers are numbered one by one");
        self.stat_sn.set(response.stat_sn.wrapping_add(u32::from(carries_number)));
        assert!(!is_before(response.max_cmd_sn, self.max_cmd_sn.get()), "the command window shrank");
        self.max_cmd_sn.set(response.max_cmd_sn);
        let room = response.max_cmd_sn.wrapping_sub(response.exp_cmd_sn).wrapping_add(1);
        assert!(room <= COMMANDS_MAX, "more is let in than there is room for");
        if self.wild.get() {
            return;
        }
        let tag = response.task_tag;
        match &response.body {
            ResponseBody::NopIn { target_tag, lun } if tag == NO_TAG => {
                if *target_tag != NO_TAG {
                    self.say(NO_TAG, true, RequestBody::NopOut { lun: *lun, target_tag: *target_tag }, &[]);
                }
            }
            ResponseBody::NopIn { .. } => {
                let asked = self.pings.borrow_mut().remove(&tag).expect("a ping is answered once");
                let len = asked.len().min(self.receive_bytes);
                assert!(data == asked[..len], "a ping comes back as it was sent, as far as it fits");
            }
            ResponseBody::TaskManagement(answer) => self.take_managed(tag, *answer),
            ResponseBody::Reject(_) => self.take_reject(&data),
            ResponseBody::DataIn(_) | ResponseBody::Command { .. } | ResponseBody::ReadyToTransfer { .. } => {
                self.take_of_task(tag, &response.body, data);
            }
            ResponseBody::Text { .. } | ResponseBody::Logout { .. } | ResponseBody::Async(_) => (),
            ResponseBody::Login(_) => panic!("an unexpected login response"),
        }
    }

    fn take_of_task(&self, tag: u32, body: &ResponseBody, data: Vec<u8>) {
        let mut tasks = self.tasks.borrow_mut();
        let task = tasks.get_mut(&tag).expect("an answer is to a command that was sent");
        assert_eq!(task.state, State::Open, "{body:?} comes of a command that has ended");
        match *body {
            ResponseBody::DataIn(head) => {
                assert_eq!((head.data_sn, head.offset), (task.data_sn, task.read_bytes), "data come in order");
                task.data_sn += 1;
                task.read_bytes += data.len() as u32;
                assert!(task.read_bytes <= task.expected_read, "more is read than was asked for");
                if let Some(read) = &mut task.read {
                    read.extend(data);
                }
                if head.status.is_some() {
                    task.state = State::Answered;
                }
            }
            ResponseBody::Command { status, .. } => {
                task.status = status;
                task.state = State::Answered;
            }
            ResponseBody::ReadyToTransfer { lun, target_tag, r2t_sn, offset, len } => {
                assert_eq!((r2t_sn, offset), (task.r2ts, task.asked), "data are asked for in order");
                assert!(len > 0 && len <= self.burst_bytes, "an R2T for {len} bytes");
                task.r2ts += 1;
                task.asked += len;
                self.last_r2t.set((tag, target_tag, offset));
                let (from, to) = (offset as usize, (offset + len) as usize);
                let feeds = self.feeds.get();
                if feeds != Feeds::Rightly {
                    self.neglects.set(true);
                }
                let part = task.data[..task.len].get(from..to).map(<[u8]>::to_vec);
                drop(tasks);
                if let Some(part) = part {
                    self.feed(feeds, (tag, target_tag, lun), from, &part);
                }
            }
            _ => unreachable!("it was one of these"),
        }
    }

    fn feed(&self, feeds: Feeds, (tag, target_tag, lun): (u32, u32, [u8; 8]), from: usize, part: &[u8]) {
        match feeds {
            Feeds::Rightly => self.say_data(tag, target_tag, lun, from, part),
            Feeds::NotAtAll => (),
            Feeds::Elsewhere => self.say_data(tag, target_tag, lun, from + 512, part),
            Feeds::UnderAnotherName => self.say_data(tag, target_tag.wrapping_add(1), lun, from, part),
            Feeds::WithoutEnd => {
                let len = part.len().min(SEND_BYTES);
                let pdu = DataOut { is_final: false, lun, target_tag, data_sn: 0, offset: from as u32 };
                self.say(tag, false, RequestBody::DataOut(pdu), &part[..len]);
            }
            Feeds::TooMuch => self.say_data(tag, target_tag, lun, from, &[part, &[0; 512]].concat()),
        }
    }

    /// Processes the response to a task management function: the affected commands are gone, and none of them was
    /// answered before.
    fn take_managed(&self, tag: u32, answer: TaskResponse) {
        let asked = self.managed.borrow_mut().remove(&tag).expect("a function that was asked for, answered once");
        let mut tasks = self.tasks.borrow_mut();
        match (asked.function, answer) {
            (TaskFunction::AbortTask, TaskResponse::Complete) => {
                let task = tasks.get_mut(&asked.referenced).expect("one that was sent");
                assert_ne!(task.state, State::Answered, "it is told to be aborted, and was answered before");
                task.state = State::Gone;
            }
            (TaskFunction::AbortTask, TaskResponse::NoSuchTask) => {
                if let Some(task) = tasks.get(&asked.referenced).filter(|task| task.lun == asked.lun) {
                    // While another function is pending, that one may have ended the command.
                    let may_be_gone = self.upheaval.get() || !self.managed.borrow().is_empty();
                    let is_lost = task.state == State::Open && task.is_owed && !may_be_gone;
                    assert!(!is_lost, "it is neither answered nor there");
                }
            }
            (_, TaskResponse::Complete) => {
                let everywhere =
                    matches!(asked.function, TaskFunction::TargetWarmReset | TaskFunction::TargetColdReset);
                for task in tasks.values_mut() {
                    let is_there = if everywhere { LUNS.contains(&task.lun) } else { task.lun == asked.lun };
                    let is_meant = task.number < asked.number && is_there;
                    if task.state == State::Open && is_meant {
                        task.state = State::Gone;
                    }
                }
            }
            _ => (),
        }
    }

    /// Processes the rejection of a PDU, whose header is returned.
    fn take_reject(&self, header: &[u8]) {
        let tag = u32::from_be_bytes(header[16..20].try_into().expect("a header"));
        if let Some(task) = self.tasks.borrow_mut().get_mut(&tag).filter(|task| task.state == State::Open) {
            task.state = State::Gone;
        }
        self.managed.borrow_mut().remove(&tag);
        self.pings.borrow_mut().remove(&tag);
    }
}
