//! PDUs of targets: headers, encoded and decoded.

use crate::request::Reject;
use crate::wire::HeaderFields;
use crate::{HEADER_BYTES, Header, NO_TAG};

/// Operation codes.
const NOP_IN: u8 = 0x20;
const SCSI_RESPONSE: u8 = 0x21;
const TASK_MANAGEMENT_RESPONSE: u8 = 0x22;
const LOGIN_RESPONSE: u8 = 0x23;
const TEXT_RESPONSE: u8 = 0x24;
const DATA_IN: u8 = 0x25;
const LOGOUT_RESPONSE: u8 = 0x26;
const READY_TO_TRANSFER: u8 = 0x31;
const ASYNC_MESSAGE: u8 = 0x32;
const REJECT: u8 = 0x3f;

/// Event codes of an asynchronous message.
const SCSI_EVENT: u8 = 0;
const LOGOUT_REQUEST: u8 = 1;
const DROP_ALL_CONNECTIONS: u8 = 3;

/// Flags of the second byte.
const FINAL: u8 = 0x80;
const CONTINUES: u8 = 0x40;
const STATUS: u8 = 0x01;
const UNDERFLOW: u8 = 0x02;
const OVERFLOW: u8 = 0x04;
const READ_UNDERFLOW: u8 = 0x08;
const READ_OVERFLOW: u8 = 0x10;

/// A PDU of a target, without its data segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Initiator task tag, or [`NO_TAG`].
    pub task_tag: u32,
    /// StatSN; unused in a [`ResponseBody::DataIn`] without status.
    pub stat_sn: u32,
    /// ExpCmdSN: number of the next expected command.
    pub exp_cmd_sn: u32,
    /// MaxCmdSN: highest acceptable command number.
    pub max_cmd_sn: u32,
    /// Type and type-specific fields.
    pub body: ResponseBody,
}

/// Residual count: difference between the expected and the full transfer length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residual {
    /// No difference.
    #[default]
    None,
    /// The transfer was this many bytes shorter.
    Underflow(u32),
    /// The full transfer would have been this many bytes longer.
    Overflow(u32),
}

/// Type of a target's PDU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponseBody {
    /// NOP-In: a ping or the answer to one, with the data of the NOP-Out.
    NopIn {
        /// From the NOP-Out.
        lun: [u8; 8],
        /// Target transfer tag for the answer, or [`NO_TAG`].
        target_tag: u32,
    },
    /// SCSI response; the data is the length and the sense data.
    Command {
        /// 0: command completed at the target; 1: target failure.
        response: u8,
        /// SCSI status.
        status: u8,
        /// Number of Data-In and R2T PDUs of the command.
        exp_data_sn: u32,
        /// Residual of the expected data; of the written data if the command reads and writes.
        residual: Residual,
        /// Residual of the read data of a command that also writes.
        read_residual: Residual,
    },
    /// Task management function response.
    TaskManagement(TaskResponse),
    /// Login response; the data is text.
    Login(LoginResponse),
    /// Text response.
    Text {
        /// True for the last PDU of the response.
        is_final: bool,
        /// True if the text continues in the next PDU.
        continues: bool,
        /// Target transfer tag to request the rest, or [`NO_TAG`].
        target_tag: u32,
        /// From the request.
        lun: [u8; 8],
    },
    /// Data of a read.
    DataIn(DataIn),
    /// Logout response.
    Logout {
        /// 0: closed; 1: no such connection; 2: no recovery; 3: cleanup failed.
        response: u8,
    },
    /// R2T: a request for data of a write.
    ReadyToTransfer {
        /// Address of the unit.
        lun: [u8; 8],
        /// Target transfer tag.
        target_tag: u32,
        /// R2TSN.
        r2t_sn: u32,
        /// Offset of the requested data.
        offset: u32,
        /// Length of the requested data in bytes.
        len: u32,
    },
    /// Asynchronous message.
    Async(AsyncEvent),
    /// Reject; the data is the rejected header.
    Reject(Reject),
}

/// Result of a task management function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TaskResponse {
    /// Function complete.
    Complete = 0,
    /// Task does not exist.
    NoSuchTask = 1,
    /// Unit does not exist.
    NoSuchUnit = 2,
    /// Task is still allegiant to its connection.
    StillAllegiant = 3,
    /// Task reassignment is not supported.
    NoReassignment = 4,
    /// Function is not supported.
    NotSupported = 5,
    /// Function is not authorized.
    NotAuthorized = 6,
    /// Function is rejected.
    Rejected = 255,
}

/// Header of a login response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoginResponse {
    /// True if the next stage begins.
    pub transit: bool,
    /// True if the text continues in the next PDU.
    pub continues: bool,
    /// Current stage. 0: security; 1: operational parameters.
    pub stage: u8,
    /// Next stage. 1: operational parameters; 3: full feature.
    pub next_stage: u8,
    /// Initiator's part of the session identifier.
    pub isid: [u8; 6],
    /// Target session identifying handle.
    pub tsih: u16,
    /// Status class and detail; (0, 0) is success.
    pub status: (u8, u8),
}

/// Header of a data-in PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataIn {
    /// True for the last PDU of the sequence.
    pub is_final: bool,
    /// Good status and residual, if this PDU ends the command; a response does not follow.
    pub status: Option<Residual>,
    /// DataSN.
    pub data_sn: u32,
    /// Offset in the command's data.
    pub offset: u32,
}

/// Event of an asynchronous message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// SCSI event; the data segment holds length and sense data ([`AsyncEvent::sense_data`]).
    Scsi {
        /// The unit's address.
        lun: [u8; 8],
    },
    /// Request to log out within this many seconds.
    LogOutWithin(u16),
    /// The target will drop all connections; the initiator may reconnect after this many seconds.
    WillDropAll(u16),
}

impl AsyncEvent {
    /// Data segment of a SCSI event (11.9.4).
    pub fn sense_data(sense: &[u8]) -> Vec<u8> {
        let mut data = (sense.len() as u16).to_be_bytes().to_vec();
        data.extend_from_slice(sense);
        data
    }
}

impl Response {
    /// Encodes the header, without the data length.
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
                DATA_IN
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
                SCSI_RESPONSE
            }
            ResponseBody::NopIn { lun, target_tag } => {
                header.put(8, lun);
                header.put_u32(20, *target_tag);
                NOP_IN
            }
            ResponseBody::TaskManagement(response) => {
                header[2] = *response as u8;
                TASK_MANAGEMENT_RESPONSE
            }
            ResponseBody::Login(login) => {
                header[1] = flag(login.transit, FINAL) | flag(login.continues, CONTINUES);
                header[1] |= (login.stage & 3) << 2 | login.next_stage & 3;
                header.put(8, &login.isid);
                header.put_u16(14, login.tsih);
                (header[36], header[37]) = login.status;
                LOGIN_RESPONSE
            }
            ResponseBody::Text { is_final, continues, target_tag, lun } => {
                header[1] = flag(*is_final, FINAL) | flag(*continues, CONTINUES);
                header.put(8, lun);
                header.put_u32(20, *target_tag);
                TEXT_RESPONSE
            }
            ResponseBody::Logout { response } => {
                header[2] = *response;
                LOGOUT_RESPONSE
            }
            ResponseBody::ReadyToTransfer { lun, target_tag, r2t_sn, offset, len } => {
                header.put(8, lun);
                header.put_u32(20, *target_tag);
                header.put_u32(36, *r2t_sn);
                header.put_u32(40, *offset);
                header.put_u32(44, *len);
                READY_TO_TRANSFER
            }
            ResponseBody::Async(event) => {
                match event {
                    AsyncEvent::Scsi { lun } => header.put(8, lun),
                    AsyncEvent::LogOutWithin(seconds) => {
                        header[36] = LOGOUT_REQUEST;
                        header.put_u16(42, *seconds);
                    }
                    AsyncEvent::WillDropAll(seconds) => {
                        header[36] = DROP_ALL_CONNECTIONS;
                        header.put_u16(40, *seconds);
                    }
                }
                ASYNC_MESSAGE
            }
            ResponseBody::Reject(reason) => {
                header[2] = *reason as u8;
                REJECT
            }
        };
        header
    }

    /// Decodes a header; `None` for a header that this target does not send.
    pub fn decode(header: &Header) -> Option<Response> {
        let flags = header[1];
        let (is_final, continues) = (flags & FINAL != 0, flags & CONTINUES != 0);
        let (lun, target_tag) = (header.bytes_at(8), header.u32_at(20));
        let body = match header[0] {
            NOP_IN => ResponseBody::NopIn { lun, target_tag },
            SCSI_RESPONSE => ResponseBody::Command {
                response: header[2],
                status: header[3],
                exp_data_sn: header.u32_at(36),
                residual: residual(flags, UNDERFLOW, OVERFLOW, header.u32_at(44)),
                read_residual: residual(flags, READ_UNDERFLOW, READ_OVERFLOW, header.u32_at(40)),
            },
            TASK_MANAGEMENT_RESPONSE => ResponseBody::TaskManagement(task_response(header[2])?),
            LOGIN_RESPONSE => ResponseBody::Login(LoginResponse {
                transit: is_final,
                continues,
                stage: flags >> 2 & 3,
                next_stage: flags & 3,
                isid: header.bytes_at(8),
                tsih: header.u16_at(14),
                status: (header[36], header[37]),
            }),
            TEXT_RESPONSE => ResponseBody::Text { is_final, continues, target_tag, lun },
            DATA_IN => {
                let ends = flags & STATUS != 0;
                let status = ends.then(|| residual(flags, UNDERFLOW, OVERFLOW, header.u32_at(44)));
                let (data_sn, offset) = (header.u32_at(36), header.u32_at(40));
                ResponseBody::DataIn(DataIn { is_final, status, data_sn, offset })
            }
            LOGOUT_RESPONSE => ResponseBody::Logout { response: header[2] },
            READY_TO_TRANSFER => ResponseBody::ReadyToTransfer {
                lun,
                target_tag,
                r2t_sn: header.u32_at(36),
                offset: header.u32_at(40),
                len: header.u32_at(44),
            },
            ASYNC_MESSAGE if header[36] == SCSI_EVENT => ResponseBody::Async(AsyncEvent::Scsi { lun }),
            ASYNC_MESSAGE if header[36] == LOGOUT_REQUEST => {
                ResponseBody::Async(AsyncEvent::LogOutWithin(header.u16_at(42)))
            }
            ASYNC_MESSAGE if header[36] == DROP_ALL_CONNECTIONS => {
                ResponseBody::Async(AsyncEvent::WillDropAll(header.u16_at(40)))
            }
            REJECT => ResponseBody::Reject(reject(header[2])?),
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
    if flags & underflow != 0 {
        Residual::Underflow(count)
    } else if flags & overflow != 0 {
        Residual::Overflow(count)
    } else {
        Residual::None
    }
}

fn task_response(number: u8) -> Option<TaskResponse> {
    use TaskResponse::*;
    let responses =
        [Complete, NoSuchTask, NoSuchUnit, StillAllegiant, NoReassignment, NotSupported, NotAuthorized, Rejected];
    responses.into_iter().find(|response| *response as u8 == number)
}

fn reject(number: u8) -> Option<Reject> {
    use Reject::*;
    let reasons = [DataDigest, Snack, Protocol, NotSupported, TooManyImmediate, InvalidField];
    reasons.into_iter().find(|reason| *reason as u8 == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_response_round_trips() {
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
    fn header_of_no_response_is_refused() {
        assert_eq!(Response::decode(&[0; HEADER_BYTES]), None);
    }
}
