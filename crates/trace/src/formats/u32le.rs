//! Block numbers only: little-endian `u32`, blocks of 4 KiB, without times, directions and lengths. The format accepts
//! any bytes, so it is detected by the file name only.

use crate::input::Chunk;
use crate::request::{Op, Request};
use crate::request_sink::{RecordError, RequestSink};

const BLOCK_BYTES: u64 = 4096;

pub struct Decoder;

impl super::Decoder for Decoder {
    fn next_chunk(&self) -> Chunk {
        Chunk::Bytes(4)
    }

    fn chunk_name(&self) -> &'static str {
        "a block number"
    }

    fn decode(&mut self, record: &[u8], out: &mut RequestSink) -> Result<(), RecordError> {
        let block = u32::from_le_bytes(record.try_into().expect("a record has four bytes"));
        out.put(Request {
            time_ns: None,
            op: Op::Read,
            at: u64::from(block) * BLOCK_BYTES,
            len: BLOCK_BYTES,
            device: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::tests::{error_of_named, read_detected, request};
    use crate::{Format, Op};

    #[test]
    fn format_is_detected_by_name() {
        let bytes: Vec<u8> = [3u32, 0, u32::MAX].iter().flat_map(|block| block.to_le_bytes()).collect();
        let (format, requests) = read_detected("w106.u32le.xz", &bytes);
        assert_eq!(format, Format::U32Le);
        assert_eq!(requests[0], request(None, Op::Read, 12_288, 4_096, 0));
        assert_eq!(requests[2].at, u64::from(u32::MAX) * 4096);
    }

    #[test]
    fn error_names_the_byte_of_a_truncated_block_number() {
        let message = error_of_named("a.u32le", &[1, 0, 0, 0, 2, 0], 1);
        assert!(
            message.contains("byte 4: the file ends within a block number, with 2 bytes of it present"),
            "{message}"
        );
    }
}
