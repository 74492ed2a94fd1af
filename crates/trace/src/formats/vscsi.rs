//! Binary format of VMware's vscsiStats, little-endian, used by the CloudPhysics traces.
//!
//! Version 1, 32 bytes: `u32` serial, `u32` bytes, `u32` scatter-gather count, `u16` SCSI opcode, `u16` version, `u64`
//! first sector, `u64` time in µs. Version 2, 40 bytes: `u16` opcode, `u16` version, `u32` serial, `u32` bytes, `u32`
//! scatter-gather count, `u64` first sector, `u64` time in µs, `u64` response time. The version is the upper byte of
//! its field.

use crate::input::Chunk;
use crate::request::{Op, Request};
use crate::request_sink::{RecordError, RequestSink};
use crate::text::{SECTOR_BYTES, to_bytes};

/// Record size and field offsets of a version.
struct Layout {
    version: u16,
    record_bytes: usize,
    opcode_at: usize,
    version_at: usize,
    len_at: usize,
    sector_at: usize,
    time_at: usize,
}

const V1: Layout =
    Layout { version: 1, record_bytes: 32, opcode_at: 12, version_at: 14, len_at: 4, sector_at: 16, time_at: 24 };
const V2: Layout =
    Layout { version: 2, record_bytes: 40, opcode_at: 0, version_at: 2, len_at: 8, sector_at: 16, time_at: 24 };

// SCSI operation codes.
const READ_6: u16 = 0x08;
const READ_10: u16 = 0x28;
const READ_12: u16 = 0xa8;
const READ_16: u16 = 0x88;
const WRITE_6: u16 = 0x0a;
const WRITE_10: u16 = 0x2a;
const WRITE_12: u16 = 0xaa;
const WRITE_16: u16 = 0x8a;
const WRITE_VERIFY_10: u16 = 0x2e;
const WRITE_VERIFY_12: u16 = 0xae;
const WRITE_VERIFY_16: u16 = 0x8e;
const SYNCHRONIZE_CACHE_10: u16 = 0x35;
const SYNCHRONIZE_CACHE_16: u16 = 0x91;

pub struct Decoder(&'static Layout);

impl Decoder {
    /// Takes the version of the first record; version 1 if the record matches neither.
    pub fn new(head: &[u8]) -> Self {
        let is_v2 = head.len() >= V2.record_bytes && u16_at(head, V2.version_at) >> 8 == V2.version;
        let is_v1 = head.len() >= V1.record_bytes && u16_at(head, V1.version_at) >> 8 == V1.version;
        Decoder(if is_v2 && !is_v1 { &V2 } else { &V1 })
    }
}

impl super::Decoder for Decoder {
    fn next_chunk(&self) -> Chunk {
        Chunk::Bytes(self.0.record_bytes)
    }

    fn decode(&mut self, record: &[u8], out: &mut RequestSink) -> Result<(), RecordError> {
        let version = u16_at(record, self.0.version_at);
        if version >> 8 != self.0.version {
            return Err(format!("a record of version {version:#06x} among those of version {}", self.0.version).into());
        }
        let opcode = u16_at(record, self.0.opcode_at);
        let time_us = u64_at(record, self.0.time_at);
        let time_ns = Some(micros_to_nanos(time_us)?);
        let op = match opcode {
            READ_6 | READ_10 | READ_12 | READ_16 => Op::Read,
            WRITE_6 | WRITE_10 | WRITE_12 | WRITE_16 | WRITE_VERIFY_10 | WRITE_VERIFY_12 | WRITE_VERIFY_16 => Op::Write,
            SYNCHRONIZE_CACHE_10 | SYNCHRONIZE_CACHE_16 => return out.put_flush(time_ns, 0),
            // The records of UNMAP and WRITE SAME have the length of the parameters instead of the range.
            0..=0xff => {
                out.skipped += 1;
                return Ok(());
            }
            _ => return Err(format!("unknown SCSI opcode {opcode:#x}").into()),
        };
        let at = to_bytes(u64_at(record, self.0.sector_at), SECTOR_BYTES)?;
        let len =
            u64::from(u32::from_le_bytes(record[self.0.len_at..self.0.len_at + 4].try_into().expect("four bytes")));
        out.put(Request { time_ns, op, at, len, device: 0 })
    }
}

fn micros_to_nanos(time_us: u64) -> Result<u64, RecordError> {
    time_us.checked_mul(1_000).ok_or_else(|| format!("{time_us} µs overflow the time range").into())
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::{READ_16, SYNCHRONIZE_CACHE_10, WRITE_10};
    use crate::tests::{error_of, read_detected, request};
    use crate::{Format, Op};

    const INQUIRY: u16 = 0x12;

    fn v1(opcode: u16, len: u32, sector: u64, time_us: u64) -> Vec<u8> {
        let head = [7u32.to_le_bytes(), len.to_le_bytes(), 1u32.to_le_bytes()].concat();
        [&head[..], &opcode.to_le_bytes(), &0x100u16.to_le_bytes(), &sector.to_le_bytes(), &time_us.to_le_bytes()]
            .concat()
    }

    fn v2(opcode: u16, len: u32, sector: u64, time_us: u64) -> Vec<u8> {
        let head =
            [&opcode.to_le_bytes()[..], &0x200u16.to_le_bytes(), &7u32.to_le_bytes(), &len.to_le_bytes()].concat();
        [&head[..], &[0; 4], &sector.to_le_bytes(), &time_us.to_le_bytes(), &[0; 8]].concat()
    }

    #[test]
    fn both_versions_are_detected_and_decoded() {
        for record in [v1, v2] {
            let bytes = [
                record(WRITE_10, 4096, 8, 1_000),
                record(INQUIRY, 36, 0, 1_001),
                record(READ_16, 512, 1, 1_002),
                record(SYNCHRONIZE_CACHE_10, 0, 0, 1_003),
            ];
            let (format, requests) = read_detected("disk", &bytes.concat());
            assert_eq!(format, Format::Vscsi);
            let flush = request(Some(3_000), Op::Flush, 0, 0, 0);
            assert_eq!(
                requests,
                [request(Some(0), Op::Write, 4096, 4096, 0), request(Some(2_000), Op::Read, 512, 512, 0), flush]
            );
        }
    }

    #[test]
    fn error_names_the_byte() {
        let good = v1(WRITE_10, 4096, 8, 1_000);
        let other = [&good[..], &v2(WRITE_10, 4096, 8, 1_000)].concat();
        assert!(
            error_of(&other, 1).contains("byte 32: a record of version 0x0000 among those of version 1;"),
            "{}",
            error_of(&other, 1)
        );
        let cut = [&good[..], &good[..12]].concat();
        assert!(
            error_of(&cut, 1)
                .contains("byte 32: the file ends within a record, with 12 bytes of it present; copy it again")
        );
        let far = [&good[..], &v1(WRITE_10, 4096, u64::MAX, 1_000)].concat();
        assert!(
            error_of(&far, 1).contains("byte 32: 18446744073709551615 times 512 bytes exceed the size of any disk")
        );
        let long = [&good[..], &v1(WRITE_10, u32::MAX, 0, 1_000)].concat();
        assert!(error_of(&long, 1).contains("byte 32: a request of 4294967295 bytes exceeds the longest transfer"));
    }
}
