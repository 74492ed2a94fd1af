//! Text format of MQSim: `time-ns device first-sector sectors type`; type 1 is a read, 0 a write.

use crate::request::{Op, Request};
use crate::request_sink::{RecordError, RequestSink};
use crate::text::{SECTOR_BYTES, parse_u32, parse_u64, quote, split_words, to_bytes};

pub struct Decoder;

impl super::Decoder for Decoder {
    fn decode(&mut self, line: &[u8], out: &mut RequestSink) -> Result<(), RecordError> {
        let [time, device, first, count, kind] = split_words(line)?;
        let op = match kind {
            b"1" => Op::Read,
            b"0" => Op::Write,
            _ => return Err(format!("the type is {}, neither 1 (read) nor 0 (write)", quote(kind)).into()),
        };
        let time_ns = Some(parse_u64(time, "the time")?);
        let device = parse_u32(device, "the device")?;
        let at = to_bytes(parse_u64(first, "the first sector")?, SECTOR_BYTES)?;
        let len = to_bytes(parse_u64(count, "the count of sectors")?, SECTOR_BYTES)?;
        out.put(Request { time_ns, op, at, len, device })
    }
}

#[cfg(test)]
mod tests {
    use crate::tests::{error_of, read_detected, request};
    use crate::{Format, Op};

    const FIXTURE: &str = "938513000 4 264719034 16 0\n938828000 3 197570570 16 1\n938944000 13 93230992 32 0\n";

    #[test]
    fn types_are_decoded_and_times_start_at_the_first_request() {
        let (format, requests) = read_detected("a", FIXTURE.as_bytes());
        assert_eq!(format, Format::Mqsim);
        assert_eq!(requests[0], request(Some(0), Op::Write, 264_719_034 * 512, 8_192, 4));
        assert_eq!(requests[1], request(Some(315_000), Op::Read, 197_570_570 * 512, 8_192, 3));
        assert_eq!(requests.len(), 3);
    }

    #[test]
    fn error_names_the_line() {
        let message = error_of(format!("{FIXTURE}938944000 13 93230992 32 2\n").as_bytes(), 3);
        assert!(message.contains("line 4: the type is \"2\", neither 1 (read) nor 0 (write)"), "{message}");
        let message = error_of(&FIXTURE.as_bytes()[..35], 1);
        assert!(message.contains("line 2: the last line is cut short: has 1 fields where 5 are expected"), "{message}");
    }
}
