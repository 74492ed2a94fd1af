//! What a target sends: headers, encoded and decoded.

use crate::request::Reject;
use crate::wire::Places;
use crate::{HEADER_BYTES, Header, NO_TAG};

const FINAL: u8 = 0x80;
const CONTINUES: u8 = 0x40;
const STATUS: u8 = 0x01;
const UNDERFLOW: u8 = 0x02;
const OVERFLOW: u8 = 0x04;
const READ_UNDERFLOW: u8 = 0x08;
const READ_OVERFLOW: u8 = 0x10;

/// One PDU of a target, without its data segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The initiator's name for the task, or [`NO_TAG`].
    pub task_tag: u32,
    /// The response's number; nothing in a [`ResponseBody::DataIn`] without status.
    pub stat_sn: u32,
    /// The next command that is waited for.
    pub exp_cmd_sn: u32,
    /// The last command that may come.
    pub max_cmd_sn: u32,
    /// What it is.
    pub body: ResponseBody,
}

/// What was moved more or less than the initiator expected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residual {
    /// As expected.
    #[default]
    None,
    /// So many bytes less.
    Underflow(u32),
    /// So many bytes more would have had to be moved.
    Overflow(u32),
}

/// What a target's PDU is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponseBody {
    /// A sign of life, asked for or asking; with the data that came.
    NopIn {
        /// Comes from the question.
        lun: [u8; 8],
        /// The tag that the initiator answers with, or [`NO_TAG`].
        target_tag: u32,
    },
    /// The end of a SCSI command; the data are the sense data with their length before them.
    Command {
        /// 0: the command was carried out; 1: the target failed.
        response: u8,
        /// The SCSI status.
        status: u8,
        /// Data-Ins and R2Ts that were sent for it.
        exp_data_sn: u32,
        /// Of the data that the initiator expected to move (to write, if it did both).
        residual: Residual,
        /// Of the data that came back of a command that also wrote.
        read_residual: Residual,
    },
    /// The end of a task management function.
    TaskManagement(TaskResponse),
    /// An answer in the log-in; the data are text.
    Login(LoginResponse),
    /// An answer in text.
    Text {
        /// The last PDU of the answer.
        is_final: bool,
        /// The text goes on in the next PDU.
        continues: bool,
        /// The tag with which the initiator asks for the rest, or [`NO_TAG`].
        target_tag: u32,
        /// Comes from the question.
        lun: [u8; 8],
    },
    /// Data of a read.
    DataIn(DataIn),
    /// The end of a session.
    Logout {
        /// 0: closed; 1: no such connection; 2: no recovery; 3: cleanup failed.
        response: u8,
    },
    /// A wish for data of a write.
    ReadyToTransfer {
        /// The unit.
        lun: [u8; 8],
        /// Our name for the wish.
        target_tag: u32,
        /// Its number in the command.
        r2t_sn: u32,
        /// Where the data begin.
        offset: u32,
        /// Bytes of them.
        len: u32,
    },
    /// Something that happened.
    Async(AsyncEvent),
    /// A PDU that is not understood; the data are its header.
    Reject(Reject),
}

/// How a task management function ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TaskResponse {
    /// Done.
    Complete = 0,
    /// There is no such task.
    NoSuchTask = 1,
    /// There is no such unit.
    NoSuchUnit = 2,
    /// The task still belongs to its connection.
    StillAllegiant = 3,
    /// Tasks do not change connections here.
    NoReassignment = 4,
    /// The function is not spoken here.
    NotSupported = 5,
    /// The initiator may not.
    NotAuthorized = 6,
    /// Refused.
    Rejected = 255,
}

/// The head of an answer in the log-in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoginResponse {
    /// The next stage begins.
    pub transit: bool,
    /// The text goes on in the next PDU.
    pub continues: bool,
    /// 0: security; 1: parameters.
    pub stage: u8,
    /// 1: parameters; 3: full feature.
    pub next_stage: u8,
    /// The initiator's name for the session.
    pub isid: [u8; 6],
    /// Our name for the session.
    pub tsih: u16,
    /// Class and detail of the status: (0, 0) is success.
    pub status: (u8, u8),
}

/// The head of a piece of a read's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataIn {
    /// The last of its sequence.
    pub is_final: bool,
    /// The command has ended well with this: there is no other response.
    pub status: Option<Residual>,
    /// Its number in the command.
    pub data_sn: u32,
    /// Where it belongs in the command's data.
    pub offset: u32,
}

/// Something that happened to a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// A unit has something to say; the sense data follow in the data segment, behind their length ([`AsyncEvent::sense_data`]).
    Scsi {
        /// The unit's address.
        lun: [u8; 8],
    },
    /// The initiator is to log out within so many seconds.
    LogOutWithin(u16),
    /// The connection is going to be closed; the initiator may come back after so many seconds.
    WillDropAll(u16),
}

impl AsyncEvent {
    /// The data segment that sense data travel in (11.9.4).
    pub fn sense_data(sense: &[u8]) -> Vec<u8> {
        let mut data = (sense.len() as u16).to_be_bytes().to_vec();
        data.extend_from_slice(sense);
        data
    }
}

impl Response {
    /// As it goes over the wire, without its data's length.
    #[inline]
    pub fn encode(&self) -> Header {
        let mut header = [0; HEADER_BYTES];
        header[1] = FINAL;
        header.put_u32(16, self.task_tag);
        header.put_u32(24, self.stat_sn);
        header.put_u32(28, self.exp_cmd_sn);
        header.put_u32(32, self.max_cmd_sn);
        let flag = |set, bit| if set { bit } else { 0 };
        header[0] = match &self.body {
            ResponseBody::DataIn(data) => {
                header[1] = flag(data.is_final, FINAL);
                if let Some(residual) = data.status {
                    header[1] |= STATUS;
                    put_residual(&mut header, residual);
                }
                header.put_u32(20, NO_TAG);
                header.put_u32(36, data.data_sn);
                header.put_u32(40, data.offset);
                0x25
            }
            ResponseBody::Command { response, status, exp_data_sn, residual, read_residual } => {
                (header[2], header[3]) = (*response, *status);
                header.put_u32(36, *exp_data_sn);
                put_residual(&mut header, *residual);
                let (bit, count) = match read_residual {
                    Residual::None => (0, 0),
                    Residual::Underflow(count) => (READ_UNDERFLOW, *count),
                    Residual::Overflow(count) => (READ_OVERFLOW, *count),
                };
                header[1] |= bit;
                header.put_u32(40, count);
                0x21
            }
            ResponseBody::NopIn { lun, target_tag } => {
                header.put(8, lun);
                header.put_u32(20, *target_tag);
                0x20
            }
            ResponseBody::TaskManagement(response) => {
                header[2] = *response as u8;
                0x22
            }
            ResponseBody::Login(login) => {
                header[1] = flag(login.transit, FINAL) | flag(login.continues, CONTINUES);
                header[1] |= (login.stage & 3) << 2 | login.next_stage & 3;
                header.put(8, &login.isid);
                header.put_u16(14, login.tsih);
                (header[36], header[37]) = login.status;
                0x23
            }
            ResponseBody::Text { is_final, continues, target_tag, lun } => {
                header[1] = flag(*is_final, FINAL) | flag(*continues, CONTINUES);
                header.put(8, lun);
                header.put_u32(20, *target_tag);
                0x24
            }
            ResponseBody::Logout { response } => {
                header[2] = *response;
                0x26
            }
            ResponseBody::ReadyToTransfer { lun, target_tag, r2t_sn, offset, len } => {
                header.put(8, lun);
                header.put_u32(20, *target_tag);
                header.put_u32(36, *r2t_sn);
                header.put_u32(40, *offset);
                header.put_u32(44, *len);
                0x31
            }
            ResponseBody::Async(event) => {
                match event {
                    AsyncEvent::Scsi { lun } => header.put(8, lun),
                    AsyncEvent::LogOutWithin(seconds) => {
                        header[36] = 1;
                        header.put_u16(42, *seconds);
                    }
                    AsyncEvent::WillDropAll(seconds) => {
                        header[36] = 3;
                        header.put_u16(40, *seconds);
                    }
                }
                0x32
            }
            ResponseBody::Reject(reason) => {
                header[2] = *reason as u8;
                0x3f
            }
        };
        header
    }

    /// What a header says; `None` if that is nothing that we send.
    pub fn decode(header: &Header) -> Option<Response> {
        let flags = header[1];
        let (is_final, continues) = (flags & FINAL != 0, flags & CONTINUES != 0);
        let (lun, target_tag) = (header.bytes_at(8), header.u32_at(20));
        let body = match header[0] {
            0x20 => ResponseBody::NopIn { lun, target_tag },
            0x21 => ResponseBody::Command {
                response: header[2],
                status: header[3],
                exp_data_sn: header.u32_at(36),
                residual: residual(flags, UNDERFLOW, OVERFLOW, header.u32_at(44)),
                read_residual: residual(flags, READ_UNDERFLOW, READ_OVERFLOW, header.u32_at(40)),
            },
            0x22 => ResponseBody::TaskManagement(task_response(header[2])?),
            0x23 => ResponseBody::Login(LoginResponse {
                transit: is_final,
                continues,
                stage: flags >> 2 & 3,
                next_stage: flags & 3,
                isid: header.bytes_at(8),
                tsih: header.u16_at(14),
                status: (header[36], header[37]),
            }),
            0x24 => ResponseBody::Text { is_final, continues, target_tag, lun },
            0x25 => {
                let ends = flags & STATUS != 0;
                let status = ends.then(|| residual(flags, UNDERFLOW, OVERFLOW, header.u32_at(44)));
                let (data_sn, offset) = (header.u32_at(36), header.u32_at(40));
                ResponseBody::DataIn(DataIn { is_final, status, data_sn, offset })
            }
            0x26 => ResponseBody::Logout { response: header[2] },
            0x31 => ResponseBody::ReadyToTransfer {
                lun,
                target_tag,
                r2t_sn: header.u32_at(36),
                offset: header.u32_at(40),
                len: header.u32_at(44),
            },
            0x32 if header[36] == 0 => ResponseBody::Async(AsyncEvent::Scsi { lun }),
            0x32 if header[36] == 1 => ResponseBody::Async(AsyncEvent::LogOutWithin(header.u16_at(42))),
            0x32 if header[36] == 3 => ResponseBody::Async(AsyncEvent::WillDropAll(header.u16_at(40))),
            0x3f => ResponseBody::Reject(reject(header[2])?),
            _ => return None,
        };
        Some(Response {
            task_tag: header.u32_at(16),
            stat_sn: header.u32_at(24),
            exp_cmd_sn: header.u32_at(28),
            max_cmd_sn: header.u32_at(32),
            body,
        })
    }
}

fn put_residual(header: &mut Header, residual: Residual) {
    let (bit, count) = match residual {
        Residual::None => (0, 0),
        Residual::Underflow(count) => (UNDERFLOW, count),
        Residual::Overflow(count) => (OVERFLOW, count),
    };
    header[1] |= bit;
    header.put_u32(44, count);
}

fn residual(flags: u8, underflow: u8, overflow: u8, count: u32) -> Residual {
    match () {
        () if flags & underflow != 0 => Residual::Underflow(count),
        () if flags & overflow != 0 => Residual::Overflow(count),
        () => Residual::None,
    }
}

fn task_response(number: u8) -> Option<TaskResponse> {
    use TaskResponse::*;
    let all = [Complete, NoSuchTask, NoSuchUnit, StillAllegiant, NoReassignment, NotSupported, NotAuthorized, Rejected];
    all.into_iter().find(|response| *response as u8 == number)
}

fn reject(number: u8) -> Option<Reject> {
    use Reject::*;
    let all = [DataDigest, Snack, Protocol, NotSupported, TooManyImmediate, InvalidField];
    all.into_iter().find(|reason| *reason as u8 == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_response_survives_the_wire() {
        let lun = [0, 3, 0, 0, 0, 0, 0, 0];
        let login = LoginResponse {
            transit: true,
            continues: false,
            stage: 1,
            next_stage: 3,
            isid: [0x40, 1, 2, 3, 4, 5],
            tsih: 7,
            status: (2, 1),
        };
        let data = |status| DataIn { is_final: true, status, data_sn: 4, offset: 512 };
        let bodies = [
            ResponseBody::NopIn { lun, target_tag: 1 },
            ResponseBody::Command {
                response: 0,
                status: 2,
                exp_data_sn: 3,
                residual: Residual::Underflow(5),
                read_residual: Residual::Overflow(6),
            },
            ResponseBody::TaskManagement(TaskResponse::Rejected),
            ResponseBody::Login(login),
            ResponseBody::Text { is_final: true, continues: false, target_tag: NO_TAG, lun },
            ResponseBody::DataIn(data(None)),
            ResponseBody::DataIn(data(Some(Residual::None))),
            ResponseBody::DataIn(data(Some(Residual::Overflow(8)))),
            ResponseBody::Logout { response: 2 },
            ResponseBody::ReadyToTransfer { lun, target_tag: 1, r2t_sn: 2, offset: 3, len: 4 },
            ResponseBody::Async(AsyncEvent::Scsi { lun: [0, 7, 0, 0, 0, 0, 0, 0] }),
            ResponseBody::Async(AsyncEvent::LogOutWithin(9)),
            ResponseBody::Async(AsyncEvent::WillDropAll(9)),
            ResponseBody::Reject(Reject::Protocol),
        ];
        for body in bodies {
            let response = Response { task_tag: 1, stat_sn: 2, exp_cmd_sn: 3, max_cmd_sn: 4, body };
            assert_eq!(Response::decode(&response.encode()), Some(response));
        }
    }

    #[test]
    fn what_no_target_sends_is_none() {
        assert_eq!(Response::decode(&[0; HEADER_BYTES]), None);
    }
}
