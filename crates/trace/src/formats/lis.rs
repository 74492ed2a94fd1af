//! Text format of the ARC paper's traces (Megiddo and Modha, FAST 2003): `first-block count ignored request-number`, in
//! blocks of 512 bytes, without times and directions.

use crate::request::{Op, Request};
use crate::request_sink::{RecordError, RequestSink};
use crate::text::{SECTOR_BYTES, parse_u64, split_words, to_bytes};

pub struct Decoder;

impl super::Decoder for Decoder {
    fn decode(&mut self, line: &[u8], out: &mut RequestSink) -> Result<(), RecordError> {
        let [first, count, ignored, request] = split_words(line)?;
        let at = to_bytes(parse_u64(first, "the first block")?, SECTOR_BYTES)?;
        let len = to_bytes(parse_u64(count, "the count")?, SECTOR_BYTES)?;
        parse_u64(ignored, "the third number")?;
        parse_u64(request, "the request's number")?;
        out.put(Request { time_ns: None, op: Op::Read, at, len, device: 0 })
    }
}

#[cfg(test)]
mod tests {
    use crate::tests::{error_of, read_detected, request};
    use crate::{Format, Op};

    const FIXTURE: &str = "3050771 25 0 0\n2461851 8 0 1\n3050771 8 0 2\n";

    #[test]
    fn requests_are_reads_without_times() {
        let (format, requests) = read_detected("a", FIXTURE.as_bytes());
        assert_eq!(format, Format::Lis);
        assert_eq!(requests[0], request(None, Op::Read, 3_050_771 * 512, 25 * 512, 0));
        assert_eq!(requests.len(), 3);
    }

    #[test]
    fn error_names_the_line() {
        let message = error_of(format!("{FIXTURE}12 eight 0 3\n").as_bytes(), 3);
        assert!(message.contains("line 4: the count is \"eight\", which is not a whole number"), "{message}");
        let message = error_of(&FIXTURE.as_bytes()[..24], 1);
        assert!(message.contains("line 2: the last line is cut short: has 2 fields where 4 are expected"), "{message}");
    }
}
