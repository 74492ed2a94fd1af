//! What an initiator sends: headers, decoded and encoded.

mod command;

pub use command::{Attribute, Command};

use crate::wire::Places;
use crate::{HEADER_BYTES, Header};

const IMMEDIATE: u8 = 0x40;
const FINAL: u8 = 0x80;
const CONTINUES: u8 = 0x40;

/// One PDU of an initiator, without its data segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// To be served before those that came earlier, and not numbered.
    pub immediate: bool,
    /// The initiator's name for the task.
    pub task_tag: u32,
    /// The command's number; nothing in a [`RequestBody::DataOut`] and a [`RequestBody::Snack`].
    pub cmd_sn: u32,
    /// The next response that the initiator waits for.
    pub exp_stat_sn: u32,
    /// What it is.
    pub body: RequestBody,
}

/// What an initiator's PDU is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestBody {
    /// A sign of life, asked for or answering ours; the data come back.
    NopOut {
        /// The unit that our question was about.
        lun: [u8; 8],
        /// The tag of our question that this answers, or [`crate::NO_TAG`].
        target_tag: u32,
    },
    /// A SCSI command; the data are the first of what it writes.
    Command(Command),
    /// Ends tasks.
    TaskManagement(TaskManagement),
    /// A step of the log-in; the data are text.
    Login(LoginRequest),
    /// A question in text.
    Text {
        /// The last PDU of the question.
        is_final: bool,
        /// The text goes on in the next PDU.
        continues: bool,
        /// The tag of our answer that this continues, or [`crate::NO_TAG`].
        target_tag: u32,
        /// Comes back.
        lun: [u8; 8],
    },
    /// Data of a write.
    DataOut(DataOut),
    /// The end of a session.
    Logout {
        /// 0: the session; 1: the connection; 2: the connection, for recovery.
        reason: u8,
        /// The connection.
        connection: u16,
    },
    /// A wish for something to be sent again; recovery of a level that is never agreed on.
    Snack,
}

/// A task management function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskManagement {
    /// What is to be done.
    pub function: TaskFunction,
    /// The unit.
    pub lun: [u8; 8],
    /// The task, for those functions that mean one.
    pub referenced_tag: u32,
    /// The number of the command that began it.
    pub referenced_cmd_sn: u32,
}

/// What a task management request wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskFunction {
    /// One task gone.
    AbortTask,
    /// All tasks of this session on a unit gone.
    AbortTaskSet,
    /// An ACA condition gone.
    ClearAca,
    /// All tasks of all sessions on a unit gone.
    ClearTaskSet,
    /// A unit like new.
    LogicalUnitReset,
    /// All units like new.
    TargetWarmReset,
    /// All units like new and all sessions gone.
    TargetColdReset,
    /// A task moved to another connection.
    TaskReassign,
    /// Something that is not spoken here.
    Unknown(u8),
}

impl TaskFunction {
    /// From its number on the wire.
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

    /// Its number on the wire.
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

/// The head of a step of the log-in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoginRequest {
    /// The initiator wants to go on to `next_stage`.
    pub transit: bool,
    /// The text goes on in the next PDU.
    pub continues: bool,
    /// 0: security; 1: parameters.
    pub stage: u8,
    /// 1: parameters; 3: full feature.
    pub next_stage: u8,
    /// Highest version that the initiator speaks.
    pub version_max: u8,
    /// Lowest version that it speaks.
    pub version_min: u8,
    /// The initiator's name for the session.
    pub isid: [u8; 6],
    /// Our name for the session; 0 for a new one.
    pub tsih: u16,
    /// The initiator's name for the connection.
    pub connection: u16,
}

/// The head of a piece of a write's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataOut {
    /// The last of its sequence.
    pub is_final: bool,
    /// The unit.
    pub lun: [u8; 8],
    /// The tag of the R2T that this answers, or [`crate::NO_TAG`] for what nobody asked for.
    pub target_tag: u32,
    /// Its number in its sequence.
    pub data_sn: u32,
    /// Where it belongs in the command's data.
    pub offset: u32,
}

/// Why a PDU is answered with a reject (11.17.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reject {
    /// The data's checksum is wrong.
    DataDigest = 2,
    /// Asks for recovery of a level that was not agreed on.
    Snack = 3,
    /// Not what the protocol wants here.
    Protocol = 4,
    /// An opcode that is not spoken here.
    NotSupported = 5,
    /// Too many immediate commands.
    TooManyImmediate = 6,
    /// A field that makes no sense.
    InvalidField = 9,
}

impl Request {
    /// What the header and the additional headers say.
    pub fn decode(header: &Header, ahs: &[u8]) -> Result<Request, Reject> {
        let flags = header[1];
        let (is_final, continues) = (flags & FINAL != 0, flags & CONTINUES != 0);
        let lun = header.bytes_at(8);
        let target_tag = header.u32_at(20);
        let body = match header[0] & 0x3f {
            0x00 => RequestBody::NopOut { lun, target_tag },
            0x01 => RequestBody::Command(Command::decode(header, ahs)?),
            0x02 => RequestBody::TaskManagement(TaskManagement {
                function: TaskFunction::from_wire(flags & 0x7f),
                lun,
                referenced_tag: target_tag,
                referenced_cmd_sn: header.u32_at(32),
            }),
            0x03 => RequestBody::Login(LoginRequest {
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
            0x04 => RequestBody::Text { is_final, continues, target_tag, lun },
            0x05 => RequestBody::DataOut(DataOut {
                is_final,
                lun,
                target_tag,
                data_sn: header.u32_at(36),
                offset: header.u32_at(40),
            }),
            0x06 => RequestBody::Logout { reason: flags & 0x7f, connection: header.u16_at(20) },
            0x10 => RequestBody::Snack,
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

    /// As it goes over the wire, without its data's length and without additional headers.
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
                0x00
            }
            RequestBody::Command(command) => {
                command.encode(&mut header);
                0x01
            }
            RequestBody::TaskManagement(task) => {
                header[1] = FINAL | task.function.to_wire();
                header.put(8, &task.lun);
                header.put_u32(20, task.referenced_tag);
                header.put_u32(32, task.referenced_cmd_sn);
                0x02
            }
            RequestBody::Login(login) => {
                header[1] = flag(login.transit, FINAL) | flag(login.continues, CONTINUES);
                header[1] |= (login.stage & 3) << 2 | login.next_stage & 3;
                (header[2], header[3]) = (login.version_max, login.version_min);
                header.put(8, &login.isid);
                header.put_u16(14, login.tsih);
                header.put_u16(20, login.connection);
                0x03
            }
            RequestBody::Text { is_final, continues, target_tag, lun } => {
                header[1] = flag(*is_final, FINAL) | flag(*continues, CONTINUES);
                header.put(8, lun);
                header.put_u32(20, *target_tag);
                0x04
            }
            RequestBody::DataOut(data) => {
                header[1] = flag(data.is_final, FINAL);
                header.put(8, &data.lun);
                header.put_u32(20, data.target_tag);
                header.put_u32(36, data.data_sn);
                header.put_u32(40, data.offset);
                0x05
            }
            RequestBody::Logout { reason, connection } => {
                header[1] = FINAL | reason & 0x7f;
                header.put_u16(20, *connection);
                0x06
            }
            RequestBody::Snack => {
                header[1] = FINAL;
                0x10
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
    fn every_request_survives_the_wire() {
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
    fn task_functions_keep_their_numbers() {
        for number in 0..=127 {
            assert_eq!(TaskFunction::from_wire(number).to_wire(), number);
        }
        assert_eq!(TaskFunction::from_wire(5), TaskFunction::LogicalUnitReset);
    }

    #[test]
    fn an_opcode_of_nobody_is_refused() {
        let mut header = [0; HEADER_BYTES];
        for opcode in [0x07, 0x11, 0x1c, 0x20, 0x3f] {
            header[0] = opcode;
            assert_eq!(Request::decode(&header, &[]), Err(Reject::NotSupported));
        }
    }
}
