//! The SCSI command PDU with its additional headers (11.2.2, 11.3).

use super::{FINAL, Reject};
use crate::wire::HeaderFields;
use crate::{HEADER_BYTES, Header};

const READ: u8 = 0x40;
const WRITE: u8 = 0x20;
/// Bytes of a CDB in the basic header.
const CDB_BYTES: usize = 16;
/// Longest CDB, in bytes.
const CDB_BYTES_MAX: usize = 260;
const EXTENDED_CDB: u8 = 1;
const BIDIRECTIONAL_LEN: u8 = 2;

/// Task attribute (SAM-5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// In any order.
    Simple,
    /// After all earlier tasks and before all later ones.
    Ordered,
    /// Before all other tasks.
    HeadOfQueue,
    /// During an ACA condition.
    Aca,
}

/// A SCSI command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// True if no unsolicited data PDUs follow.
    pub is_final: bool,
    /// True if the command reads.
    pub reads: bool,
    /// True if the command writes.
    pub writes: bool,
    /// Task attribute.
    pub attribute: Attribute,
    /// Address of the unit.
    pub lun: [u8; 8],
    /// Expected data length; of the written data if the command reads and writes.
    pub expected_len: u32,
    /// Expected length of the read data of a command that also writes.
    pub expected_read_len: Option<u32>,
    /// The CDB; at least 16 bytes.
    pub cdb: Vec<u8>,
}

impl Command {
    pub(super) fn decode(header: &Header, mut ahs: &[u8]) -> Result<Command, Reject> {
        let flags = header[1];
        let attribute = match flags & 7 {
            // An untagged task is treated as simple, because the session takes many tasks at once.
            0 | 1 => Attribute::Simple,
            2 => Attribute::Ordered,
            3 => Attribute::HeadOfQueue,
            4 => Attribute::Aca,
            _ => return Err(Reject::InvalidField),
        };
        let mut cdb = header[HEADER_BYTES - CDB_BYTES..].to_vec();
        let mut expected_read_len = None;
        while let Some((head, rest)) = ahs.split_first_chunk::<4>() {
            // The length includes the reserved byte, but neither itself nor the type.
            let len = usize::from(u16::from_be_bytes([head[0], head[1]]));
            let content = len.checked_sub(1).and_then(|len| rest.get(..len)).ok_or(Reject::InvalidField)?;
            match head[2] & 0x3f {
                EXTENDED_CDB if cdb.len() == CDB_BYTES && content.len() <= CDB_BYTES_MAX - CDB_BYTES => {
                    cdb.extend_from_slice(content);
                }
                BIDIRECTIONAL_LEN if expected_read_len.is_none() => {
                    let len = content.first_chunk().ok_or(Reject::InvalidField)?;
                    expected_read_len = Some(u32::from_be_bytes(*len));
                }
                _ => return Err(Reject::InvalidField),
            }
            ahs = rest.get(content.len().next_multiple_of(4)..).unwrap_or_default();
        }
        if !ahs.is_empty() {
            return Err(Reject::InvalidField);
        }
        Ok(Command {
            is_final: flags & FINAL != 0,
            reads: flags & READ != 0,
            writes: flags & WRITE != 0,
            attribute,
            lun: header.bytes_at(8),
            expected_len: header.u32_at(20),
            expected_read_len,
            cdb,
        })
    }

    pub(super) fn encode(&self, header: &mut Header) {
        let flag = |set, bit| if set { bit } else { 0 };
        let attribute = match self.attribute {
            Attribute::Simple => 1,
            Attribute::Ordered => 2,
            Attribute::HeadOfQueue => 3,
            Attribute::Aca => 4,
        };
        header[1] = flag(self.is_final, FINAL) | flag(self.reads, READ) | flag(self.writes, WRITE) | attribute;
        header.put(8, &self.lun);
        header.put_u32(20, self.expected_len);
        header.put(HEADER_BYTES - CDB_BYTES, &self.cdb[..self.cdb.len().min(CDB_BYTES)]);
    }

    /// Encodes the additional headers, in whole words; empty for most commands.
    pub fn encode_ahs(&self) -> Vec<u8> {
        let mut ahs = Vec::new();
        let mut push = |kind: u8, content: &[u8]| {
            ahs.extend_from_slice(&(content.len() as u16 + 1).to_be_bytes());
            ahs.extend_from_slice(&[kind, 0]);
            ahs.extend_from_slice(content);
            ahs.resize(ahs.len().next_multiple_of(4), 0);
        };
        if let Some(rest) = self.cdb.get(CDB_BYTES..).filter(|rest| !rest.is_empty()) {
            push(EXTENDED_CDB, rest);
        }
        if let Some(len) = self.expected_read_len {
            push(BIDIRECTIONAL_LEN, &len.to_be_bytes());
        }
        ahs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Request, RequestBody};

    fn command(cdb_len: usize, expected_read_len: Option<u32>) -> Request {
        let body = RequestBody::Command(Command {
            is_final: true,
            reads: true,
            writes: expected_read_len.is_some(),
            attribute: Attribute::Simple,
            lun: [0, 1, 0, 0, 0, 0, 0, 0],
            expected_len: 4096,
            expected_read_len,
            cdb: (0..cdb_len).map(|byte| byte as u8).collect(),
        });
        Request { immediate: false, task_tag: 1, cmd_sn: 2, exp_stat_sn: 3, body }
    }

    #[test]
    fn command_round_trips_with_additional_headers() {
        for (cdb_len, read_len) in [(16, None), (32, None), (33, None), (16, Some(512)), (260, Some(512))] {
            let request = command(cdb_len, read_len);
            let RequestBody::Command(command) = &request.body else { unreachable!() };
            assert_eq!(Request::decode(&request.encode(), &command.encode_ahs()), Ok(request.clone()));
        }
    }

    #[test]
    fn inconsistent_additional_headers_are_refused() {
        let header = command(16, None).encode();
        for ahs in [
            &[0, 0, 1, 0][..],
            &[0, 9, 1, 0, 1, 2, 3, 4],
            &[0, 4, 2, 0, 1, 2, 3, 0],
            &[0, 5, 9, 0, 1, 2, 3, 4],
            &[0, 5, 2, 0, 1, 2, 3, 4, 0, 5, 2, 0, 1, 2, 3, 4],
            &[0, 1, 1],
        ] {
            assert_eq!(Request::decode(&header, ahs), Err(Reject::InvalidField), "{ahs:?}");
        }
    }
}
