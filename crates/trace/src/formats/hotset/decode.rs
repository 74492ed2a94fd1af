//! Decoder of the Hotset format: header, blocks, end mark.

use format_version::NewerFormat;

use crate::input::Chunk;
use crate::request::{Op, Request};
use crate::request_sink::{RecordError, RequestSink};

use super::varint::{take_varint, unzigzag};
use super::*;

enum State {
    Header,
    BlockHeader,
    Records { header: [u8; BLOCK_HEADER_BYTES], len: usize, records: u32, started_at_ns: u64 },
    Ended,
}

pub(crate) struct Decoder {
    state: State,
    address_unit_bytes: u64,
    /// Records decoded so far.
    decoded: u64,
}

impl Decoder {
    pub(crate) fn new() -> Self {
        Decoder { state: State::Header, address_unit_bytes: u64::from(UNIT_BYTES), decoded: 0 }
    }

    fn decode_header(&mut self, bytes: &[u8]) -> Result<State, RecordError> {
        if bytes[..8] != MAGIC {
            return Err("is not a Hotset trace".into());
        }
        if u32_at(bytes, HEADER_BYTES - 4) != crc32c::crc32c(&bytes[..HEADER_BYTES - 4]) {
            return Err("the header's checksum is wrong".into());
        }
        let version = u32_at(bytes, 8);
        if version > VERSION {
            let newer = NewerFormat::of_format(version, VERSION, None);
            return Err(format!("the trace was {newer}").into());
        }
        if version < VERSION {
            return Err(format!("format {version} was never released").into());
        }
        self.address_unit_bytes = u64::from(u32_at(bytes, 16));
        Ok(State::BlockHeader)
    }

    fn decode_block_header(&mut self, bytes: &[u8], out: &mut RequestSink) -> Result<State, RecordError> {
        if bytes[..4] != BLOCK_MAGIC {
            return Err("the block header has a wrong magic number".into());
        }
        // The last field is the start time in a block header, and the number of records in the end mark.
        let (len, records, dropped, last_field) =
            (u32_at(bytes, 4) as usize, u32_at(bytes, 8), u32_at(bytes, 12), u64_at(bytes, 16));
        if records == END_MARK {
            verify_checksum(bytes, &[])?;
            out.dropped += u64::from(dropped);
            if last_field != self.decoded {
                return Err(
                    format!("the end mark counts {last_field} records, but {} were decoded", self.decoded).into()
                );
            }
            return Ok(State::Ended);
        }
        if len == 0 || len > PAYLOAD_BYTES_MAX || records == 0 || records > BLOCK_RECORDS_MAX {
            return Err(format!("invalid block header: {records} records in {len} bytes").into());
        }
        let header = bytes.try_into().expect("the chunk is a block header");
        Ok(State::Records { header, len, records, started_at_ns: last_field })
    }

    fn decode_record(&self, bytes: &mut &[u8], previous: &mut Previous) -> Option<Request> {
        let (flags, rest) = bytes.split_first()?;
        *bytes = rest;
        let has_flag = |flag: u8| flags & flag != 0;
        if has_flag(RESERVED) {
            return None;
        }
        let op = [Op::Read, Op::Write, Op::Discard, Op::Flush][usize::from(flags & OP_MASK)];
        let mut time_ns = None;
        if has_flag(HAS_TIME) {
            previous.time_ns = previous.time_ns.wrapping_add(unzigzag(take_varint(bytes)?));
            time_ns = Some(previous.time_ns);
        }
        if has_flag(HAS_DEVICE) {
            previous.device = u32::try_from(take_varint(bytes)?).ok()?;
        }
        if op == Op::Flush {
            return Some(Request { time_ns, op, at: 0, len: 0, device: previous.device });
        }
        let address_unit = if has_flag(IN_BYTES) { 1 } else { self.address_unit_bytes };
        let mut at = previous.end;
        if has_flag(HAS_ADDRESS) {
            at = at.wrapping_add(unzigzag(take_varint(bytes)?).wrapping_mul(address_unit));
        }
        if has_flag(HAS_LENGTH) {
            previous.len = take_varint(bytes)?.checked_mul(address_unit)?;
        }
        previous.end = at.wrapping_add(previous.len);
        Some(Request { time_ns, op, at, len: previous.len, device: previous.device })
    }
}

impl crate::formats::Decoder for Decoder {
    fn next_chunk(&self) -> Chunk {
        match self.state {
            State::Header => Chunk::Bytes(HEADER_BYTES),
            State::BlockHeader => Chunk::Bytes(BLOCK_HEADER_BYTES),
            State::Records { len, .. } => Chunk::Bytes(len),
            // A byte after the end mark is an error.
            State::Ended => Chunk::Bytes(1),
        }
    }

    fn chunk_name(&self) -> &'static str {
        match self.state {
            State::Header => "its header",
            State::BlockHeader => "a block's header",
            State::Records { .. } | State::Ended => "a block's records",
        }
    }

    fn decode(&mut self, bytes: &[u8], out: &mut RequestSink) -> Result<(), RecordError> {
        self.state = match &self.state {
            State::Header => self.decode_header(bytes)?,
            State::BlockHeader => self.decode_block_header(bytes, out)?,
            State::Records { header, records, started_at_ns, .. } => {
                verify_checksum(header, bytes)?;
                out.dropped += u64::from(u32_at(header, 12));
                let mut previous = Previous { time_ns: *started_at_ns, ..Previous::default() };
                let mut remaining = bytes;
                for number in 0..*records {
                    let request = self.decode_record(&mut remaining, &mut previous);
                    out.put(request.ok_or_else(|| format!("record {number} of the block is malformed"))?)?;
                }
                if !remaining.is_empty() {
                    return Err("the block has bytes after its last record".into());
                }
                self.decoded += u64::from(*records);
                State::BlockHeader
            }
            State::Ended => return Err("data follow the end mark".into()),
        };
        Ok(())
    }

    fn end(&mut self) -> Result<(), RecordError> {
        match self.state {
            State::Ended => Ok(()),
            State::Header | State::BlockHeader => Err("the end mark is missing: the recording was cut off".into()),
            State::Records { .. } => Err("the file ends before a block's records".into()),
        }
    }
}

/// Verifies the checksum over a block's header and records.
fn verify_checksum(header: &[u8], payload: &[u8]) -> Result<(), RecordError> {
    let (fields, crc) = header.split_at(BLOCK_HEADER_BYTES - 4);
    if u32_at(crc, 0) != crc32c::crc32c_append(crc32c::crc32c(fields), payload) {
        return Err("the block's checksum is wrong".into());
    }
    Ok(())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
