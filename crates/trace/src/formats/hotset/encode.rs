//! Encoder of the Hotset format.

use std::io::{self, Write};

use crate::request::{Op, Request};

use super::varint::{push_varint, zigzag};
use super::*;

/// Longest record in bytes: flags, time, device, address, length.
const RECORD_BYTES_MAX: usize = 1 + 10 + 5 + 10 + 10;

/// Header of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Start of the recording in nanoseconds since 1970; 0 if unknown.
    pub start_unix_ns: u64,
    /// True if addresses are anonymised.
    pub anonymised: bool,
}

/// Encodes requests into a file. Without [`Encoder::finish`] the file counts as truncated.
pub struct Encoder<W> {
    out: W,
    payload: Vec<u8>,
    records: u32,
    dropped: u32,
    started_at_ns: u64,
    previous: Previous,
    recorded: u64,
}

impl<W: Write> Encoder<W> {
    /// Writes the header.
    pub fn new(mut out: W, header: Header) -> io::Result<Self> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(u32::from(header.anonymised) * ANONYMISED).to_le_bytes());
        bytes.extend_from_slice(&UNIT_BYTES.to_le_bytes());
        bytes.extend_from_slice(&header.start_unix_ns.to_le_bytes());
        bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
        out.write_all(&bytes)?;
        let payload = Vec::with_capacity(PAYLOAD_BYTES_MAX);
        Ok(Encoder {
            out,
            payload,
            records: 0,
            dropped: 0,
            started_at_ns: 0,
            previous: Previous::default(),
            recorded: 0,
        })
    }

    /// Appends a request and writes each full block.
    pub fn put(&mut self, request: &Request) -> io::Result<()> {
        if self.records == BLOCK_RECORDS_MAX || self.payload.len() + RECORD_BYTES_MAX > PAYLOAD_BYTES_MAX {
            self.write_block()?;
        }
        if self.records == 0 {
            self.started_at_ns = request.time_ns.unwrap_or(0);
            self.previous = Previous { time_ns: self.started_at_ns, ..Previous::default() };
        }
        self.push_record(request);
        self.records += 1;
        self.recorded += 1;
        Ok(())
    }

    /// Records that `count` requests were lost after the last request.
    pub fn record_dropped(&mut self, count: u64) -> io::Result<()> {
        if count > 0 {
            if self.records > 0 {
                self.write_block()?;
            }
            self.dropped = self.dropped.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
        }
        Ok(())
    }

    fn push_record(&mut self, request: &Request) {
        let &Request { time_ns, op, at, len, device } = request;
        let previous = self.previous;
        let distance = at.wrapping_sub(previous.end);
        let has_range = op != Op::Flush;
        let unit = u64::from(UNIT_BYTES);
        let in_units = len.is_multiple_of(unit) && previous.end.is_multiple_of(unit) && at.is_multiple_of(unit);
        let mut flags = op as u8;
        let flag_if = |condition: bool, flag: u8| if condition { flag } else { 0 };
        flags |= flag_if(time_ns.is_some(), HAS_TIME) | flag_if(device != previous.device, HAS_DEVICE);
        flags |=
            flag_if(has_range && distance != 0, HAS_ADDRESS) | flag_if(has_range && len != previous.len, HAS_LENGTH);
        flags |= flag_if(has_range && !in_units, IN_BYTES);
        self.payload.push(flags);
        if let Some(time_ns) = time_ns {
            push_varint(&mut self.payload, zigzag(time_ns.wrapping_sub(previous.time_ns)));
            self.previous.time_ns = time_ns;
        }
        if flags & HAS_DEVICE != 0 {
            push_varint(&mut self.payload, u64::from(device));
            self.previous.device = device;
        }
        let unit = if in_units { unit } else { 1 };
        if flags & HAS_ADDRESS != 0 {
            push_varint(&mut self.payload, zigzag(((distance as i64) / unit as i64) as u64));
        }
        if flags & HAS_LENGTH != 0 {
            push_varint(&mut self.payload, len / unit);
        }
        if has_range {
            (self.previous.end, self.previous.len) = (at.wrapping_add(len), len);
        }
    }

    fn write_block(&mut self) -> io::Result<()> {
        let payload = std::mem::take(&mut self.payload);
        let result = self.write_header(payload.len() as u32, self.records, self.dropped, self.started_at_ns, &payload);
        self.payload = payload;
        self.payload.clear();
        (self.records, self.dropped) = (0, 0);
        result
    }

    fn write_header(&mut self, len: u32, records: u32, dropped: u32, time_ns: u64, payload: &[u8]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(BLOCK_HEADER_BYTES);
        bytes.extend_from_slice(&BLOCK_MAGIC);
        [len, records, dropped].iter().for_each(|field| bytes.extend_from_slice(&field.to_le_bytes()));
        bytes.extend_from_slice(&time_ns.to_le_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes), payload);
        bytes.extend_from_slice(&crc.to_le_bytes());
        self.out.write_all(&bytes)?;
        self.out.write_all(payload)
    }

    /// Writes the last block and the end mark; returns the output.
    pub fn finish(mut self) -> io::Result<W> {
        if self.records > 0 {
            self.write_block()?;
        }
        self.write_header(0, END_MARK, self.dropped, self.recorded, &[])?;
        self.out.flush()?;
        Ok(self.out)
    }
}
