//! fio's I/O log. Version 2: `file action [offset length]`, with `file wait µs` in between. Version 3, written by
//! `--write_iolog`: `µs file action [offset length]`. The header names the version.

use crate::request::{Op, Request};
use crate::request_sink::{RecordError, RequestSink};
use crate::text::{parse_u64, quote};

/// First bytes of a log.
pub const MAGIC: &[u8] = b"fio version ";

enum Version {
    /// Time passes only in `wait` actions; a log without them has no times.
    Two {
        elapsed_ns: Option<u64>,
    },
    Three,
}

pub struct Decoder {
    /// Version in the header; `None` before the header.
    version: Option<Version>,
    has_waits: bool,
}

impl Decoder {
    pub fn new(head: &[u8]) -> Self {
        Decoder { version: None, has_waits: head.windows(6).any(|word| word == b" wait ") }
    }

    fn decode_header(&self, line: &[u8]) -> Result<Version, RecordError> {
        match line.trim_ascii() {
            b"fio version 2 iolog" => Ok(Version::Two { elapsed_ns: self.has_waits.then_some(0) }),
            b"fio version 3 iolog" => Ok(Version::Three),
            other => Err(format!("{} is not a header; expected \"fio version 2 iolog\" or 3", quote(other)).into()),
        }
    }
}

impl super::Decoder for Decoder {
    fn decode(&mut self, line: &[u8], out: &mut RequestSink) -> Result<(), RecordError> {
        let Some(version) = &mut self.version else {
            self.version = Some(self.decode_header(line)?);
            return Ok(());
        };
        let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let mut next = |name: &str| words.next().ok_or_else(|| RecordError(format!("{name} is missing")));
        let time_ns = match version {
            Version::Two { elapsed_ns } => *elapsed_ns,
            Version::Three => Some(micros_to_nanos(parse_u64(next("the time")?, "the time")?)?),
        };
        let file = next("the file")?;
        let op = match (next("the action")?, version) {
            (b"add" | b"open" | b"close", _) => return Ok(()),
            (b"wait", Version::Two { elapsed_ns }) => {
                let wait_ns = micros_to_nanos(parse_u64(next("the wait")?, "the wait")?)?;
                let elapsed = elapsed_ns.unwrap_or(0).checked_add(wait_ns);
                *elapsed_ns = Some(elapsed.ok_or("the waits overflow the time range")?);
                return Ok(());
            }
            (b"sync" | b"datasync", _) => {
                return {
                    let device = out.device(file)?;
                    out.put_flush(time_ns, device)
                };
            }
            (b"read", _) => Op::Read,
            (b"write", _) => Op::Write,
            (b"trim", _) => Op::Discard,
            (other, _) => return Err(format!("unknown action {}", quote(other)).into()),
        };
        let (at, len) = (parse_u64(next("the offset")?, "the offset")?, parse_u64(next("the length")?, "the length")?);
        let device = out.device(file)?;
        out.put(Request { time_ns, op, at, len, device })
    }
}

fn micros_to_nanos(time_us: u64) -> Result<u64, RecordError> {
    time_us.checked_mul(1_000).ok_or_else(|| format!("{time_us} µs overflow the time range").into())
}

#[cfg(test)]
mod tests {
    use crate::tests::{error_of, read_detected, request};
    use crate::{Format, Op};

    #[test]
    fn version_3_has_a_time_in_each_line() {
        let text = "fio version 3 iolog\n36 /dev/sdb add\n187 /dev/sdb open\n193 /dev/sdb read 61440 4096\n\
                    36366 /dev/sdc write 774144 4096\n40000 /dev/sdb sync\n40001 /dev/sdb trim 0 1048576\n\
                    168659 /dev/sdb close\n";
        let (format, requests) = read_detected("a", text.as_bytes());
        assert_eq!(format, Format::Iolog);
        assert_eq!(requests[0], request(Some(0), Op::Read, 61_440, 4_096, 0));
        assert_eq!(requests[1], request(Some(36_173_000), Op::Write, 774_144, 4_096, 1));
        assert_eq!(requests[2], request(Some(39_807_000), Op::Flush, 0, 0, 0));
        assert_eq!(requests[3], request(Some(39_808_000), Op::Discard, 0, 1 << 20, 0));
    }

    #[test]
    fn version_2_takes_times_from_waits() {
        let without = "fio version 2 iolog\nf add\nf open\nf read 0 4096\nf write 4096 512\nf datasync 0 0\nf close\n";
        let (format, requests) = read_detected("a", without.as_bytes());
        assert_eq!((format, requests.len()), (Format::Iolog, 3));
        assert_eq!(requests[1], request(None, Op::Write, 4_096, 512, 0));
        let with = "fio version 2 iolog\nf read 0 4096\nf wait 150\nf read 0 4096\nf wait 100\nf read 0 4096\n";
        let times: Vec<_> = read_detected("a", with.as_bytes()).1.iter().map(|request| request.time_ns).collect();
        assert_eq!(times, [Some(0), Some(150_000), Some(250_000)]);
    }

    #[test]
    fn error_names_the_line() {
        let message = error_of(b"fio version 3 iolog\n0 f read 0 4096\n5 f erase 0 4096\n", 1);
        assert!(message.contains("line 3: unknown action \"erase\""), "{message}");
        let message = error_of(b"fio version 3 iolog\n0 f read 0 4096\n5 f read 0", 1);
        assert!(message.contains("line 3: the last line is cut short: the length is missing"), "{message}");
        let message = error_of(b"fio version 3 iolog\n0 f read 0 4096\n5 f wait 10\n", 1);
        assert!(message.contains("line 3: unknown action \"wait\""), "{message}");
    }
}
