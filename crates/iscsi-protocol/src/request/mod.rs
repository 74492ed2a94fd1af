//! PDUs of initiators: headers, decoded and encoded.

mod command;

pub use command::{Attribute, Command};

use crate::wire::HeaderFields;
use crate::{HEADER_BYTES, Header};

/// Operation codes.
const NOP_OUT: u8 = 0x00;
const SCSI_COMMAND: u8 = 0x01;
const TASK_MANAGEMENT: u8 = 0x02;
const LOGIN: u8 = 0x03;
const TEXT: u8 = 0x04;
const DATA_OUT: u8 = 0x05;
const LOGOUT: u8 = 0x06;
const SNACK: u8 = 0x10;

/// Bits of the first byte: the operation code, and the flag of an immediate PDU.
const OPCODE_MASK: u8 = 0x3f;
const IMMEDIATE: u8 = 0x40;
/// Flags of the second byte.
const FINAL: u8 = 0x80;
const CONTINUES: u8 = 0x40;

/// A PDU of an initiator, without its data segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// True for an immediate PDU, which has no command number of its own.
    pub immediate: bool,
    /// Initiator task tag.
    pub task_tag: u32,
    /// CmdSN; unused in [`RequestBody::DataOut`] and [`RequestBody::Snack`].
    pub cmd_sn: u32,
    /// ExpStatSN.
    pub exp_stat_sn: u32,
    /// Type and type-specific fields.
    pub body: RequestBody,
}

/// Type of an initiator's PDU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestBody {
    /// NOP-Out: a ping, whose data is returned, or the answer to a ping.
    NopOut {
        /// Unit of the NOP-In that is answered.
        lun: [u8; 8],
        /// Target transfer tag of the NOP-In that is answered, or [`crate::NO_TAG`].
        target_tag: u32,
    },
    /// SCSI command with its immediate data.
    Command(Command),
    /// Task management function request.
    TaskManagement(TaskManagement),
    /// Login request; the data is text.
    Login(LoginRequest),
    /// Text request.
    Text {
        /// True for the last PDU of the text.
        is_final: bool,
        /// True if the text continues in the next PDU.
        continues: bool,
        /// Target transfer tag of the text response that is continued, or [`crate::NO_TAG`].
        target_tag: u32,
        /// Returned in the response.
        lun: [u8; 8],
    },
    /// Data of a write.
    DataOut(DataOut),
    /// Logout request.
    Logout {
        /// 0: close the session; 1: close the connection; 2: remove the connection for recovery.
        reason: u8,
        /// Connection identifier.
        connection: u16,
    },
    /// SNACK: a request for retransmission, which needs an error recovery level that is never negotiated.
    Snack,
}

/// A task management function request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskManagement {
    /// Function.
    pub function: TaskFunction,
    /// Address of the unit.
    pub lun: [u8; 8],
    /// Tag of the task, for functions on one task.
    pub referenced_tag: u32,
    /// CmdSN of that task.
    pub referenced_cmd_sn: u32,
}

/// Task management function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskFunction {
    /// Aborts one task.
    AbortTask,
    /// Aborts all tasks of this session on a unit.
    AbortTaskSet,
    /// Clears an ACA condition.
    ClearAca,
    /// Aborts all tasks of all sessions on a unit.
    ClearTaskSet,
    /// Resets a unit.
    LogicalUnitReset,
    /// Resets all units.
    TargetWarmReset,
    /// Resets all units and ends all sessions.
    TargetColdReset,
    /// Reassigns a task to another connection.
    TaskReassign,
    /// An unsupported function.
    Unknown(u8),
}

impl TaskFunction {
    /// Decodes a function number.
    pub const fn from_wire(number: u8) -> Self {
        match number {
            1 => TaskFunction::AbortTask,
            2 => TaskFunction::AbortTaskSet,
            3 => TaskFunction::ClearAca,
            4 => TaskFunction::ClearTaskSet,
            5 => TaskFunction::LogicalUnitReset,
            6 => TaskFunction::TargetWarmReset,
            7 => TaskFunction::TargetColdReset,
            8 => TaskFunction::TaskReassign,
            other => TaskFunction::Unknown(other),
        }
    }

    /// Encodes the function number.
    pub const fn to_wire(self) -> u8 {
        match self {
            TaskFunction::AbortTask => 1,
            TaskFunction::AbortTaskSet => 2,
            TaskFunction::ClearAca => 3,
            TaskFunction::ClearTaskSet => 4,
            TaskFunction::LogicalUnitReset => 5,
            TaskFunction::TargetWarmReset => 6,
            TaskFunction::TargetColdReset => 7,
            TaskFunction::TaskReassign => 8,
            TaskFunction::Unknown(number) => number,
        }
    }
}

/// Header of a login request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoginRequest {
    /// True if the initiator requests a transition to `next_stage`.
    pub transit: bool,
    /// True if the text continues in the next PDU.
    pub continues: bool,
    /// Current stage. 0: security; 1: operational parameters.
    pub stage: u8,
    /// Next stage. 1: operational parameters; 3: full feature.
    pub next_stage: u8,
    /// Highest supported version.
    pub version_max: u8,
    /// Lowest supported version.
    pub version_min: u8,
    /// Initiator's part of the session identifier.
    pub isid: [u8; 6],
    /// Target session identifying handle; 0 for a new session.
    pub tsih: u16,
    /// Connection identifier.
    pub connection: u16,
}

/// Header of a data-out PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataOut {
    /// True for the last PDU of the sequence.
    pub is_final: bool,
    /// Address of the unit.
    pub lun: [u8; 8],
    /// Target transfer tag of the R2T, or [`crate::NO_TAG`] for unsolicited data.
    pub target_tag: u32,
    /// DataSN.
    pub data_sn: u32,
    /// Offset in the command's data.
    pub offset: u32,
}

/// Reason of a reject PDU (11.17.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reject {
    /// Data digest error.
    DataDigest = 2,
    /// SNACK reject: the recovery level is not negotiated.
    Snack = 3,
    /// Protocol error.
    Protocol = 4,
    /// Unsupported opcode.
    NotSupported = 5,
    /// Too many immediate commands.
    TooManyImmediate = 6,
    /// Invalid field.
    InvalidField = 9,
}

impl Request {
    /// Decodes a header and its additional headers.
    pub fn decode(header: &Header, ahs: &[u8]) -> Result<Request, Reject> {
        let flags = header[1];
        let (is_final, continues) = (flags & FINAL != 0, flags & CONTINUES != 0);
        let lun = header.bytes_at(8);
        let target_tag = header.u32_at(20);
        let body = match header[0] & OPCODE_MASK {
            NOP_OUT => RequestBody::NopOut { lun, target_tag },
            SCSI_COMMAND => RequestBody::Command(Command::decode(header, ahs)?),
            TASK_MANAGEMENT => RequestBody::TaskManagement(TaskManagement {
                function: TaskFunction::from_wire(flags & 0x7f),
                lun,
                referenced_tag: target_tag,
                referenced_cmd_sn: header.u32_at(32),
            }),
            LOGIN => RequestBody::Login(LoginRequest {
                transit: is_final,
                continues,
                stage: flags >> 2 & 3,
                next_stage: flags & 3,
                version_max: header[2],
                version_min: header[3],
                isid: header.bytes_at(8),
                tsih: header.u16_at(14),
                connection: header.u16_at(20),
            }),
            TEXT => RequestBody::Text { is_final, continues, target_tag, lun },
            DATA_OUT => RequestBody::DataOut(DataOut {
                is_final,
                lun,
                target_tag,
                data_sn: header.u32_at(36),
                offset: header.u32_at(40),
            }),
            LOGOUT => RequestBody::Logout { reason: flags & 0x7f, connection: header.u16_at(20) },
            SNACK => RequestBody::Snack,
            _ => return Err(Reject::NotSupported),
        };
        Ok(Request {
            immediate: header[0] & IMMEDIATE != 0,
            task_tag: header.u32_at(16),
            cmd_sn: header.u32_at(24),
            exp_stat_sn: header.u32_at(28),
            body,
        })
    }

    /// Encodes the header, without the data length and without additional headers.
    pub fn encode(&self) -> Header {
        let mut header = [0; HEADER_BYTES];
        header.put_u32(16, self.task_tag);
        header.put_u32(24, self.cmd_sn);
        header.put_u32(28, self.exp_stat_sn);
        let flag = |set, bit| if set { bit } else { 0 };
        let opcode = match &self.body {
            RequestBody::NopOut { lun, target_tag } => {
                header[1] = FINAL;
                header.put(8, lun);
                header.put_u32(20, *target_tag);
                NOP_OUT
            }
            RequestBody::Command(command) => {
                command.encode(&mut header);
                SCSI_COMMAND
            }
            RequestBody::TaskManagement(task) => {
                header[1] = FINAL | task.function.to_wire();
                header.put(8, &task.lun);
                header.put_u32(20, task.referenced_tag);
                header.put_u32(32, task.referenced_cmd_sn);
                TASK_MANAGEMENT
            }
            RequestBody::Login(login) => {
                header[1] = flag(login.transit, FINAL) | flag(login.continues, CONTINUES);
                header[1] |= (login.stage & 3) << 2 | login.next_stage & 3;
                (header[2], header[3]) = (login.version_max, login.version_min);
                header.put(8, &login.isid);
                header.put_u16(14, login.tsih);
                header.put_u16(20, login.connection);
                LOGIN
            }
            RequestBody::Text { is_final, continues, target_tag, lun } => {
                header[1] = flag(*is_final, FINAL) | flag(*continues, CONTINUES);
                header.put(8, lun);
                header.put_u32(20, *target_tag);
                TEXT
            }
            RequestBody::DataOut(data) => {
                header[1] = flag(data.is_final, FINAL);
                header.put(8, &data.lun);
                header.put_u32(20, data.target_tag);
                header.put_u32(36, data.data_sn);
                header.put_u32(40, data.offset);
                DATA_OUT
            }
            RequestBody::Logout { reason, connection } => {
                header[1] = FINAL | reason & 0x7f;
                header.put_u16(20, *connection);
                LOGOUT
            }
            RequestBody::Snack => {
                header[1] = FINAL;
                SNACK
            }
        };
        header[0] = opcode | flag(self.immediate, IMMEDIATE);
        header
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_round_trips() {
        let lun = [0, 3, 0, 0, 0, 0, 0, 0];
        let task = |function| TaskManagement { function, lun, referenced_tag: 9, referenced_cmd_sn: 8 };
        let login = LoginRequest {
            transit: true,
            continues: false,
            stage: 1,
            next_stage: 3,
            version_max: 0,
            version_min: 0,
            isid: [0x40, 1, 2, 3, 4, 5],
            tsih: 7,
            connection: 2,
        };
        let bodies = [
            RequestBody::NopOut { lun, target_tag: 3 },
            RequestBody::TaskManagement(task(TaskFunction::AbortTask)),
            RequestBody::TaskManagement(task(TaskFunction::Unknown(99))),
            RequestBody::Login(login),
            RequestBody::Text { is_final: true, continues: false, target_tag: 4, lun },
            RequestBody::DataOut(DataOut { is_final: true, lun, target_tag: 5, data_sn: 6, offset: 512 }),
            RequestBody::Logout { reason: 1, connection: 3 },
            RequestBody::Snack,
        ];
        for body in bodies {
            for immediate in [false, true] {
                let request = Request { immediate, task_tag: 1, cmd_sn: 2, exp_stat_sn: 3, body: body.clone() };
                assert_eq!(Request::decode(&request.encode(), &[]), Ok(request));
            }
        }
    }

    #[test]
    fn task_function_numbers_round_trip() {
        for number in 0..=127 {
            assert_eq!(TaskFunction::from_wire(number).to_wire(), number);
        }
        assert_eq!(TaskFunction::from_wire(5), TaskFunction::LogicalUnitReset);
    }

    #[test]
    fn unknown_opcodes_are_refused() {
        let mut header = [0; HEADER_BYTES];
        for opcode in [0x07, 0x11, 0x1c, 0x20, 0x3f] {
            header[0] = opcode;
            assert_eq!(Request::decode(&header, &[]), Err(Reject::NotSupported));
        }
    }
}
