//! Text formats with a line per request.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::formats::Format;
use crate::request::{Op, Request};
use crate::text::SECTOR_BYTES;

use super::Lost;

/// Formats requests as lines of a text format.
pub struct LineFormatter {
    format: Format,
    /// Lines of the last request.
    text: String,
    /// Requests formatted so far.
    formatted: u64,
    /// Disks that the I/O log has opened.
    opened: BTreeSet<u32>,
}

impl LineFormatter {
    /// A formatter; `None` for a binary or read-only format.
    pub fn of(format: Format) -> Option<Self> {
        let text = matches!(format, Format::Msr | Format::Spc | Format::Iolog | Format::Lis);
        text.then(|| LineFormatter { format, text: String::new(), formatted: 0, opened: BTreeSet::new() })
    }

    /// Header of the file.
    pub fn header(&self) -> &'static [u8] {
        if self.format == Format::Iolog { b"fio version 3 iolog\n" } else { b"" }
    }

    /// The line or lines of a request; empty if the format cannot express it.
    pub fn line(&mut self, request: &Request, lost: &mut Lost) -> &str {
        self.text.clear();
        let is_expressible = self.format == Format::Iolog || matches!(request.op, Op::Read | Op::Write);
        if is_expressible {
            self.push(request, lost);
            self.formatted += 1;
        } else {
            lost.requests += 1;
        }
        &self.text
    }

    fn push(&mut self, request: &Request, lost: &mut Lost) {
        let &Request { time_ns, op, at, len, device } = request;
        let time = time_ns.unwrap_or(0);
        let (first, count) = sectors(at, len);
        let in_sectors = matches!(self.format, Format::Spc | Format::Lis);
        lost.rounded += u64::from(in_sectors && (at, len) != (first * SECTOR_BYTES, count * SECTOR_BYTES));
        let is_write = op == Op::Write;
        match self.format {
            Format::Msr => {
                let kind = if is_write { "Write" } else { "Read" };
                writeln!(self.text, "{},disk,{device},{kind},{at},{len},0", time / 100)
            }
            Format::Spc => {
                let (opcode, bytes) = (if is_write { 'w' } else { 'r' }, count * SECTOR_BYTES);
                writeln!(
                    self.text,
                    "{device},{first},{bytes},{opcode},{}.{:09}",
                    time / 1_000_000_000,
                    time % 1_000_000_000
                )
            }
            Format::Lis => {
                lost.times += u64::from(time_ns.is_some());
                lost.writes += u64::from(is_write);
                lost.devices += u64::from(device != 0);
                writeln!(self.text, "{first} {count} 0 {}", self.formatted)
            }
            _ => self.push_iolog(time / 1_000, op, (at, len), device),
        }
        .expect("writing to a string cannot fail")
    }

    fn push_iolog(&mut self, time_us: u64, op: Op, (at, len): (u64, u64), device: u32) -> std::fmt::Result {
        if self.opened.insert(device) {
            writeln!(self.text, "{time_us} disk{device} add\n{time_us} disk{device} open")?;
        }
        let action = match op {
            Op::Read => "read",
            Op::Write => "write",
            Op::Discard => "trim",
            Op::Flush => "sync",
        };
        writeln!(self.text, "{time_us} disk{device} {action} {at} {len}")
    }
}

/// The sectors of a byte range: first sector and count.
fn sectors(at: u64, len: u64) -> (u64, u64) {
    let first = at / SECTOR_BYTES;
    (first, (at % SECTOR_BYTES + len).div_ceil(SECTOR_BYTES))
}
