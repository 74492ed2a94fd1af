//! The Hotset format, documented byte by byte in `docs/user/traces.md`: a header, blocks of records with a checksum
//! each, and an end mark. Blocks are independent. A record is the difference from the previous record, in varints.

mod decode;
mod encode;
mod varint;

pub(crate) use decode::Decoder;
pub use encode::{Encoder, Header};

/// Magic number of a file.
pub(super) const MAGIC: [u8; 8] = *b"HOTSETTR";
/// The supported version.
const VERSION: u32 = 1;
/// Magic number, version, flags, bytes of an address unit, start, checksum.
const HEADER_BYTES: usize = 8 + 4 + 4 + 4 + 8 + 4;
/// Header flag: addresses are anonymised.
const ANONYMISED: u32 = 1;
/// Address unit: addresses and lengths that are multiples of it are stored in this unit.
const UNIT_BYTES: u32 = 512;

/// Magic number of a block.
const BLOCK_MAGIC: [u8; 4] = *b"HTBK";
/// Magic number, payload bytes, records, dropped, time, checksum.
const BLOCK_HEADER_BYTES: usize = 4 + 4 + 4 + 4 + 8 + 4;
/// Maximum size in bytes of a block's records.
const PAYLOAD_BYTES_MAX: usize = 48 << 10;
/// Maximum number of records of a block, which a reader holds at once.
const BLOCK_RECORDS_MAX: u32 = 4_096;
/// `records` of the end mark; its time field is the number of records.
const END_MARK: u32 = u32::MAX;

/// Bits of a record's first byte; the lowest two are the operation.
const OP_MASK: u8 = 0b11;
/// A time follows: nanoseconds since the last record with a time, or since the block's time.
const HAS_TIME: u8 = 1 << 2;
/// A device follows; otherwise it is the previous record's, or 0.
const HAS_DEVICE: u8 = 1 << 3;
/// An address follows: the difference from the end of the previous record, or from 0. Otherwise the record begins at
/// that end.
const HAS_ADDRESS: u8 = 1 << 4;
/// A length follows; otherwise it is the previous record's.
const HAS_LENGTH: u8 = 1 << 5;
/// Address and length are in bytes instead of address units.
const IN_BYTES: u8 = 1 << 6;
/// Must be 0.
const RESERVED: u8 = 1 << 7;

/// State that a record is relative to.
#[derive(Clone, Copy, Default)]
struct Previous {
    time_ns: u64,
    device: u32,
    end: u64,
    len: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{error_of, read_detected, request};
    use crate::{Format, Op, Request};

    fn written(requests: &[Request]) -> Vec<u8> {
        let mut file = Vec::new();
        let mut encoder =
            Encoder::new(&mut file, Header { start_unix_ns: 5, anonymised: true }).expect("memory accepts writes");
        requests.iter().for_each(|request| encoder.put(request).expect("memory accepts writes"));
        encoder.finish().expect("memory accepts writes");
        file
    }

    fn many() -> Vec<Request> {
        let request = |number: u64| {
            let op = [Op::Read, Op::Write, Op::Discard, Op::Flush][number as usize % 4];
            let (at, len) = match number % 5 {
                _ if op == Op::Flush => (0, 0),
                0 => ((1 << 63) - 4_096, 4_096),
                1 => (number * 7, 13),
                2 => (number * 512, 512),
                _ => (number * 4_096, 65_536),
            };
            let time_ns = (number % 11 != 3).then_some(number * 1_000 + (number % 3) * 4_000);
            request(time_ns, op, at, len, (number / 100 % 3) as u32)
        };
        (0..20_000).map(request).collect()
    }

    #[test]
    fn every_field_round_trips() {
        let requests = many();
        let (format, read) = read_detected("a", &written(&requests));
        assert_eq!(format, Format::Hotset);
        assert!(read == requests);
        assert_eq!(read_detected("empty.hotset", &written(&[])).1, []);
    }

    #[test]
    fn sequential_run_takes_few_bytes() {
        let requests: Vec<_> =
            (0..10_000u64).map(|n| request(Some(n * 100_000), Op::Read, n * 65_536, 65_536, 0)).collect();
        assert!(written(&requests).len() < 4 * requests.len() + 1_000, "{}", written(&requests).len());
    }

    #[test]
    fn truncated_file_is_read_to_its_last_complete_block() {
        let requests = many();
        let file = written(&requests);
        let read_of = |bytes: &[u8]| {
            let reader =
                crate::open("a", Box::new(std::io::Cursor::new(bytes.to_vec())), None).expect("the header is complete");
            let read: Vec<_> = reader.collect();
            let good = read.iter().filter_map(|request| request.as_ref().ok()).count();
            (good, read.into_iter().find_map(Result::err).expect("the file is truncated").to_string())
        };
        let (good, message) = read_of(&file[..file.len() - BLOCK_HEADER_BYTES]);
        assert_eq!(good, requests.len());
        assert!(message.contains("the end mark is missing: the recording was cut off"), "{message}");
        let (good, message) = read_of(&file[..file.len() / 2]);
        assert!(good > 0 && good < requests.len() && good % BLOCK_RECORDS_MAX as usize == 0, "{good}");
        assert!(message.contains("the file ends within a block's records"), "{message}");
    }

    #[test]
    fn flipped_bit_is_found_anywhere() {
        let file = written(&many()[..50]);
        for at in 0..file.len() {
            let mut broken = file.clone();
            broken[at] ^= 0x10;
            let read: Vec<_> = match crate::open("a", Box::new(std::io::Cursor::new(broken)), Some(Format::Hotset)) {
                Ok(reader) => reader.collect(),
                Err(error) => panic!("byte {at}: {error}"),
            };
            assert!(read.last().is_some_and(Result::is_err), "byte {at}");
        }
    }

    #[test]
    fn golden_traces_are_read_in_every_field() {
        let requests = &many()[..9_000];
        for golden in golden::files("trace.hotset.zst", || written(requests)) {
            let (format, read) = read_detected("a", &golden.bytes);
            assert!(format == Format::Hotset && read == requests, "written by {}", golden.release);
        }
    }

    #[test]
    fn newer_trace_is_refused_by_its_format() {
        let of_version = |version: u32| {
            let mut file = written(&many()[..50]);
            file[8..12].copy_from_slice(&version.to_le_bytes());
            let checksum = crc32c::crc32c(&file[..HEADER_BYTES - 4]);
            file[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
            error_of(&file, 0)
        };
        let expected = "the trace was written by a newer version of Hotset (format 2, this one reads up to 1); needs \
                        at least a version that reads format 2";
        assert!(of_version(2).contains(expected), "{}", of_version(2));
        assert!(of_version(0).contains("format 0 was never released"), "{}", of_version(0));
    }
}
