//! CSV format of the Microsoft Research Cambridge block traces (SNIA IOTTA):
//! `time,host,disk,Read|Write,offset,bytes,response time`. Times are Windows file times: units of 100 ns since 1601.

use crate::request::{Op, Request};
use crate::request_sink::{RecordError, RequestSink};
use crate::text::{parse_u32, parse_u64, quote, split_fields};

const TICK_NS: u64 = 100;

pub struct Decoder;

impl super::Decoder for Decoder {
    fn decode(&mut self, line: &[u8], out: &mut RequestSink) -> Result<(), RecordError> {
        let [time, host, disk, op_name, at, len, latency] = split_fields(line)?;
        let ticks = parse_u64(time, "the time")?;
        let time_ns = ticks.checked_mul(TICK_NS).ok_or_else(|| format!("the time is {ticks}, which is too large"))?;
        parse_u32(disk, "the disk")?;
        let op = match op_name {
            name if name.eq_ignore_ascii_case(b"read") => Op::Read,
            name if name.eq_ignore_ascii_case(b"write") => Op::Write,
            _ => return Err(format!("{} is neither Read nor Write", quote(op_name)).into()),
        };
        let (at, len) = (parse_u64(at, "the offset")?, parse_u64(len, "the size")?);
        parse_u64(latency, "the response time")?;
        let device = out.device(&[host, b".", disk].concat())?;
        out.put(Request { time_ns: Some(time_ns), op, at, len, device })
    }
}

#[cfg(test)]
mod tests {
    use crate::tests::{error_of, read_detected, request};
    use crate::{Format, Op};

    const FIXTURE: &str = "128166372003061629,usr,0,Read,7014609920,24576,41286\n\
                           128166372016382155,usr,1,Write,1317441536,8192,1963\r\n\
                           128166372026382245,usr,0,Write,2436440064,4096,1835\n";

    #[test]
    fn ticks_become_nanoseconds_and_disks_are_numbered_by_appearance() {
        let (format, requests) = read_detected("a", FIXTURE.as_bytes());
        assert_eq!(format, Format::Msr);
        assert_eq!(requests[0], request(Some(0), Op::Read, 7_014_609_920, 24_576, 0));
        assert_eq!(requests[1], request(Some(1_332_052_600), Op::Write, 1_317_441_536, 8_192, 1));
        assert_eq!(requests[2].device, 0);
        assert_eq!(requests.len(), 3);
    }

    #[test]
    fn error_names_the_line() {
        let message = error_of(format!("{FIXTURE}128166372026382245,usr,0,Erase,0,4096,1\n").as_bytes(), 3);
        assert!(message.contains("line 4: \"Erase\" is neither Read nor Write; keep what comes before"), "{message}");
        let message = error_of(&FIXTURE.as_bytes()[..FIXTURE.len() - 15], 2);
        assert!(
            message.contains("line 3: the last line is cut short: has 5 fields where 7 are expected; copy it again"),
            "{message}"
        );
    }
}
