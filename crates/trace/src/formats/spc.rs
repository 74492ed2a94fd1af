//! Text format of the Storage Performance Council (UMass Trace Repository): `unit,address,bytes,opcode,seconds`, and
//! optional further fields. The address counts blocks of 512 bytes in an application-specific unit, which is a disk of
//! its own.

use crate::request::{Op, Request};
use crate::request_sink::{RecordError, RequestSink};
use crate::text::{SECTOR_BYTES, parse_seconds_as_ns, parse_u32, parse_u64, quote, split_leading_fields, to_bytes};

pub struct Decoder;

impl super::Decoder for Decoder {
    fn decode(&mut self, line: &[u8], out: &mut RequestSink) -> Result<(), RecordError> {
        let [unit, address, len, opcode, time] = split_leading_fields(line)?;
        let device = parse_u32(unit, "the unit")?;
        let at = to_bytes(parse_u64(address, "the address")?, SECTOR_BYTES)?;
        let len = parse_u64(len, "the size")?;
        let op = match opcode {
            b"r" | b"R" => Op::Read,
            b"w" | b"W" => Op::Write,
            _ => return Err(format!("the opcode is {}, neither r nor w", quote(opcode)).into()),
        };
        out.put(Request { time_ns: Some(parse_seconds_as_ns(time, "the time")?), op, at, len, device })
    }
}

#[cfg(test)]
mod tests {
    use crate::tests::{error_of, read_detected, request};
    use crate::{Format, Op};

    const FIXTURE: &str = "0,303567,3584,w,0.000000\n1,55590,3072,R,0.026214\n0,303574,3584,W,0.078643,own,field\n";

    #[test]
    fn units_are_disks_and_addresses_are_sectors() {
        let (format, requests) = read_detected("a", FIXTURE.as_bytes());
        assert_eq!(format, Format::Spc);
        assert_eq!(requests[0], request(Some(0), Op::Write, 303_567 * 512, 3_584, 0));
        assert_eq!(requests[1], request(Some(26_214_000), Op::Read, 55_590 * 512, 3_072, 1));
        assert_eq!(requests[2], request(Some(78_643_000), Op::Write, 303_574 * 512, 3_584, 0));
    }

    #[test]
    fn error_names_the_line() {
        let message = error_of(format!("{FIXTURE}0,1,512,x,1.0\n").as_bytes(), 3);
        assert!(message.contains("line 4: the opcode is \"x\", neither r nor w"), "{message}");
        let message = error_of(&FIXTURE.as_bytes()[..33], 1);
        assert!(message.contains("line 2: the last line is cut short: has 3 fields where 5 are expected"), "{message}");
    }
}
