//! Default output of blkparse: `major,minor cpu sequence seconds pid action RWBS [sector + sectors] [process]`.
//!
//! A request produces several events. The decoder uses Q (*queued*), the request before the scheduler merges and splits
//! it, because a cache would see that. Without Q at the start (`blktrace -a issue`) it uses D (*issued*).

use crate::request::{Op, Request};
use crate::request_sink::{RecordError, RequestSink};
use crate::text::{SECTOR_BYTES, parse_seconds_as_ns, parse_u64, quote, split_leading_words, to_bytes};

pub struct Decoder {
    /// Action of the decoded events: `Q` or `D`.
    action: &'static [u8],
    /// True once the summary after the events has begun.
    in_summary: bool,
}

impl Decoder {
    pub fn new(head: &[u8]) -> Self {
        let action_of = |line| split_leading_words::<6>(line).map_or(&b""[..], |words| words[5]);
        let queued = head.split(|byte| *byte == b'\n').any(|line| action_of(line) == b"Q");
        Decoder { action: if queued { b"Q" } else { b"D" }, in_summary: false }
    }
}

impl super::Decoder for Decoder {
    fn decode(&mut self, line: &[u8], out: &mut RequestSink) -> Result<(), RecordError> {
        if self.in_summary || line.trim_ascii().is_empty() {
            return Ok(());
        }
        if line.starts_with(b"CPU") || line.starts_with(b"Total") {
            self.in_summary = true;
            return Ok(());
        }
        let [disk, cpu, sequence, time, _, action] = split_leading_words(line)?;
        let comma = disk.iter().position(|byte| *byte == b',');
        let (major, minor) = disk.split_at(comma.ok_or_else(|| format!("{} is not a disk such as 8,0", quote(disk)))?);
        for (field, name) in [
            (major, "the disk's major number"),
            (&minor[1..], "the disk's minor number"),
            (cpu, "the CPU"),
            (sequence, "the sequence"),
        ] {
            parse_u64(field, name)?;
        }
        let time_ns = Some(parse_seconds_as_ns(time, "the time")?);
        if action != self.action {
            return Ok(());
        }
        let device = out.device(disk)?;
        let [_, _, _, _, _, _, flags] = split_leading_words(line)?;
        let range_words = split_leading_words::<10>(line).ok().filter(|words| words[8] == b"+");
        // The first letters name the operation (`FWS`: a flush before a write, `RA`, `DS`); later ones are modifiers.
        let (is_flush, kind) = flags.strip_prefix(b"F").map_or((false, flags), |rest| (true, rest));
        if is_flush {
            out.put_flush(time_ns, device)?;
        }
        let Some(words) = range_words else {
            out.skipped += u64::from(!is_flush);
            return Ok(());
        };
        let op = match kind.first() {
            Some(b'R') => Op::Read,
            Some(b'W') => Op::Write,
            Some(b'D') => Op::Discard,
            _ if is_flush => return Ok(()),
            _ => {
                out.skipped += 1;
                return Ok(());
            }
        };
        let at = to_bytes(parse_u64(words[7], "the sector")?, SECTOR_BYTES)?;
        let len = to_bytes(parse_u64(words[9], "the count of sectors")?, SECTOR_BYTES)?;
        out.put(Request { time_ns, op, at, len, device })
    }
}

#[cfg(test)]
mod tests {
    use crate::tests::{error_of, read_detected, request};
    use crate::{Format, Op};

    const FIXTURE: &str = "  8,0    3        1     0.000000000   697  Q   W 223490 + 8 [kjournald]
  8,0    3        2     0.000001829   697  G   W 223490 + 8 [kjournald]
  8,0    3        3     0.000003000   697  D   W 223490 + 16 [kjournald]
  8,0    3        0     0.000004000     0  m   N cfq697S / add_to_rr
  8,0    1        4     0.000010000   698  Q  RA 800 + 256 [cat]
  8,16   1        5     0.500000001   698  Q FWS [sync]
  8,0    1        6     1.000000000   698  Q FWFS 64 + 8 [jbd2]
  8,0    1        7     1.000000002   698  Q  DS 1024 + 2048 [fstrim]
  8,0    1        8     1.100000000   698  C   W 223490 + 8 [0]
CPU0 (8,0):
 Reads Queued:           1,      128KiB  Writes Queued:          26,      824KiB

Total (8,0):
";

    #[test]
    fn queued_events_are_the_requests() {
        let (format, requests) = read_detected("a", FIXTURE.as_bytes());
        assert_eq!(format, Format::Blkparse);
        let expected = [
            request(Some(0), Op::Write, 223_490 * 512, 4_096, 0),
            request(Some(10_000), Op::Read, 800 * 512, 131_072, 0),
            request(Some(500_000_001), Op::Flush, 0, 0, 1),
            request(Some(1_000_000_000), Op::Flush, 0, 0, 0),
            request(Some(1_000_000_000), Op::Write, 64 * 512, 4_096, 0),
            request(Some(1_000_000_002), Op::Discard, 1_024 * 512, 1 << 20, 0),
        ];
        assert_eq!(requests, expected);
    }

    #[test]
    fn trace_without_queued_events_uses_issued_ones() {
        let issued: Vec<&str> = FIXTURE.lines().filter(|line| !line.contains(" Q ")).collect();
        let requests = read_detected("a", issued.join("\n").as_bytes()).1;
        assert_eq!(requests, [request(Some(0), Op::Write, 223_490 * 512, 8_192, 0)]);
    }

    #[test]
    fn error_names_the_line() {
        let first = FIXTURE.lines().next().expect("the fixture has lines");
        let message = error_of(format!("{first}\nwhat is this line doing here\n").as_bytes(), 1);
        assert!(message.contains("line 2: \"what\" is not a disk such as 8,0"), "{message}");
        let message = error_of(format!("{first}\n  8,0    3        2   ").as_bytes(), 1);
        assert!(message.contains("line 2: the last line is cut short: has 3 fields where 6 are expected"), "{message}");
    }
}
