//! REPORT SUPPORTED OPERATION CODES, generated from the list of commands, and REPORT SUPPORTED TASK MANAGEMENT
//! FUNCTIONS.

use seam::Seam;

use super::Task;
use crate::cdb::{Cdb, invalid_field};
use crate::exchange::{DataIn, DataOut};
use crate::failure::Failure;
use crate::opcodes::{OPCODES, Opcode};
use crate::status::Status;

/// Bytes of a command timeouts descriptor.
const TIMEOUTS_BYTES: usize = 12;

impl<S: Seam, O: DataOut, I: DataIn<S>> Task<'_, S, O, I> {
    pub(super) async fn report_opcodes(&mut self, cdb: Cdb<'_>) -> Result<Status, Failure> {
        let (with_timeouts, option, code, action) = (cdb.bit(2, 7), cdb.u8(2) & 7, cdb.u8(3), cdb.u16(4));
        let bytes = match option {
            0 => describe_all(with_timeouts),
            1..=3 => describe(with_timeouts, option, code, action)?,
            _ => return Err(invalid_field(2, Some(2))),
        };
        self.send_response(&bytes, cdb.u32(6)).await
    }

    /// ABORT TASK, ABORT TASK SET, CLEAR TASK SET, LOGICAL UNIT RESET, TARGET RESET.
    pub(super) async fn report_task_management(&mut self, cdb: Cdb<'_>) -> Result<Status, Failure> {
        let mut bytes = vec![0xda, 0, 0, 0];
        if cdb.bit(2, 7) {
            bytes[3] = 12;
            bytes.resize(16, 0);
        }
        self.send_response(&bytes, cdb.u32(6)).await
    }
}

fn describe_all(with_timeouts: bool) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    for opcode in OPCODES {
        bytes.extend([opcode.code(), 0, 0, opcode.action.unwrap_or(0), 0]);
        bytes.push(u8::from(with_timeouts) << 1 | u8::from(opcode.action.is_some()));
        bytes.extend((opcode.usage.len() as u16).to_be_bytes());
        if with_timeouts {
            bytes.extend(timeouts_descriptor(opcode));
        }
    }
    let len = (bytes.len() - 4) as u32;
    bytes[..4].copy_from_slice(&len.to_be_bytes());
    bytes
}

/// Describes one command. Option 1: a code without service actions; 2: a code with service actions; 3: either.
fn describe(with_timeouts: bool, option: u8, code: u8, action: u16) -> Result<Vec<u8>, Failure> {
    let has_actions = OPCODES.iter().any(|opcode| opcode.code() == code && opcode.action.is_some());
    let has_none = OPCODES.iter().any(|opcode| opcode.code() == code && opcode.action.is_none());
    if option == 1 && has_actions || option == 2 && has_none {
        return Err(invalid_field(2, Some(2)));
    }
    let is_requested = |opcode: &&Opcode| {
        opcode.code() == code
            && match opcode.action {
                Some(opcode_action) => u16::from(opcode_action) == action,
                None => option == 1 || action == 0,
            }
    };
    Ok(match OPCODES.iter().find(is_requested) {
        // SUPPORT 1: the command is not supported.
        None => vec![0, 0x01, 0, 0],
        Some(opcode) => {
            // SUPPORT 3: the command conforms to the standard.
            let mut bytes = vec![0, u8::from(with_timeouts) << 7 | 0x03];
            bytes.extend((opcode.usage.len() as u16).to_be_bytes());
            bytes.extend(opcode.usage);
            if with_timeouts {
                bytes.extend(timeouts_descriptor(opcode));
            }
            bytes
        }
    })
}

fn timeouts_descriptor(opcode: &Opcode) -> [u8; TIMEOUTS_BYTES] {
    let mut bytes = [0; TIMEOUTS_BYTES];
    bytes[1] = TIMEOUTS_BYTES as u8 - 2;
    bytes[4..8].copy_from_slice(&opcode.timeouts_s.0.to_be_bytes());
    bytes[8..].copy_from_slice(&opcode.timeouts_s.1.to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_is_reported_as_listed() {
        for opcode in OPCODES {
            let (option, other_option) = if opcode.action.is_some() { (2, 1) } else { (1, 2) };
            let action = opcode.action.unwrap_or(0).into();
            let bytes = describe(true, option, opcode.code(), action).expect("the command is supported");
            assert_eq!((bytes[1], bytes[3]), (0x83, opcode.usage.len() as u8));
            assert_eq!(&bytes[4..4 + opcode.usage.len()], opcode.usage);
            assert_eq!(describe(false, other_option, opcode.code(), action), Err(invalid_field(2, Some(2))));
            assert_eq!(describe(false, 3, opcode.code(), action).map(|bytes| bytes[1]), Ok(3));
        }
        assert_eq!(describe(false, 1, 0xff, 0), Ok(vec![0, 1, 0, 0]));
        assert_eq!(describe(false, 2, 0x9e, 0x1f), Ok(vec![0, 1, 0, 0]));
    }

    #[test]
    fn full_list_has_its_stated_length() {
        for (with_timeouts, descriptor_len) in [(false, 8), (true, 20)] {
            let bytes = describe_all(with_timeouts);
            assert_eq!(bytes.len(), 4 + OPCODES.len() * descriptor_len);
            assert_eq!(bytes[..4], (bytes.len() as u32 - 4).to_be_bytes());
        }
    }
}
