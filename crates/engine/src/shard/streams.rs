//! Sequential streams: recognised by the position of their next request, with a readahead window for each stream of
//! reads.

use std::ops::Range;

use flash::BlockNo;

use crate::ByteOffset;

/// Maximum number of streams that are recognised at a time.
const STREAMS_MAX: usize = 16;
/// A run of this length counts as a stream.
const SEQUENTIAL_BYTES: u64 = 128 << 10;
/// First readahead window of a stream; it doubles.
const WINDOW_MIN_BYTES: u64 = 128 << 10;

/// A sequence of requests, each of which begins near the end of the one before.
#[derive(Clone, Copy)]
struct Stream {
    /// Offset of its first request.
    first_offset: ByteOffset,
    /// Offset at which its next request is expected.
    next_offset: ByteOffset,
    /// Bytes read or written in sequence.
    run_bytes: u64,
    /// Readahead window.
    window_bytes: u64,
    /// End of the range read ahead so far.
    readahead_end: ByteOffset,
}

/// The streams of a volume's reads, or of its writes, most recently used first.
#[derive(Default)]
pub struct Streams {
    recent: Vec<Stream>,
}

/// Result of recording a read.
#[derive(Debug, PartialEq, Eq)]
pub struct StreamRead {
    /// The read continues a stream.
    pub is_sequential: bool,
    /// Blocks to read ahead now.
    pub readahead: Option<Range<BlockNo>>,
}

impl Streams {
    /// Records a write of `len_bytes` bytes at `at`. True if it extends a stream that is sequential and covers at least
    /// 3/4 of its range.
    pub fn record_write(&mut self, at: ByteOffset, len_bytes: u64) -> bool {
        let Some((stream, has_progressed)) = self.advance(at, len_bytes) else { return false };
        let is_dense = stream.run_bytes * 4 >= stream.next_offset.distance_from(stream.first_offset) * 3;
        has_progressed && is_dense && stream.is_sequential()
    }

    /// Records a read of `len_bytes` bytes at `at` on a volume of `size_bytes` bytes. At most `readahead_max_bytes`
    /// bytes are read ahead.
    pub fn record_read(
        &mut self,
        at: ByteOffset,
        len_bytes: u64,
        size_bytes: u64,
        readahead_max_bytes: u64,
    ) -> StreamRead {
        let end = at.plus(len_bytes);
        let Some((stream, has_progressed)) = self.advance(at, len_bytes) else {
            return StreamRead { is_sequential: false, readahead: None };
        };
        if !has_progressed || !stream.is_sequential() {
            return StreamRead { is_sequential: stream.is_sequential(), readahead: None };
        }
        stream.readahead_end = stream.readahead_end.max(end);
        if stream.readahead_end.distance_from(end) > stream.window_bytes / 2 {
            return StreamRead { is_sequential: true, readahead: None };
        }
        let from = stream.readahead_end;
        let to = end.plus(stream.window_bytes).min(ByteOffset(size_bytes));
        stream.window_bytes = (stream.window_bytes * 2).min(readahead_max_bytes.max(WINDOW_MIN_BYTES));
        stream.readahead_end = stream.readahead_end.max(to);
        let blocks = from.block_at_or_after()..to.block_at_or_after();
        StreamRead { is_sequential: true, readahead: (blocks.start < blocks.end).then_some(blocks) }
    }

    /// Adds a request to the stream that it continues, which becomes the most recently used one. Returns the stream and
    /// whether the request reaches past its end: a repeated one does not. `None` if the request begins a stream.
    fn advance(&mut self, at: ByteOffset, len_bytes: u64) -> Option<(&mut Stream, bool)> {
        let end = at.plus(len_bytes);
        // Several requests of one stream may be in flight and arrive slightly out of order.
        let slack = 2 * len_bytes;
        let continues = |stream: &Stream| {
            at.0 >= stream.next_offset.0.saturating_sub(slack) && at <= stream.next_offset.plus(slack)
        };
        let Some(position) = self.recent.iter().position(continues) else {
            self.recent.truncate(STREAMS_MAX - 1);
            self.recent.insert(
                0,
                Stream {
                    first_offset: at,
                    next_offset: end,
                    run_bytes: len_bytes,
                    window_bytes: WINDOW_MIN_BYTES,
                    readahead_end: end,
                },
            );
            return None;
        };
        self.recent[..=position].rotate_right(1);
        let stream = &mut self.recent[0];
        let has_progressed = end > stream.next_offset;
        if has_progressed {
            stream.run_bytes += end.distance_from(stream.next_offset.max(at));
            stream.next_offset = end;
        }
        Some((stream, has_progressed))
    }
}

impl Stream {
    /// True if the stream is long enough to count as sequential.
    fn is_sequential(&self) -> bool {
        self.run_bytes >= SEQUENTIAL_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    #[test]
    fn random_reads_are_not_a_stream() {
        let mut streams = Streams::default();
        for step in 0..1000u64 {
            let at = step.wrapping_mul(0x9E37_79B9_7F4A_7C15) % (1 << 30) / 4096 * 4096;
            assert_eq!(
                streams.record_read(ByteOffset(at), 4096, 1 << 30, 1 << 20),
                StreamRead { is_sequential: false, readahead: None }
            );
        }
        assert!(streams.recent.len() <= STREAMS_MAX);
    }

    #[test]
    fn interleaved_streams_are_each_read_ahead_without_gaps() {
        let mut streams = Streams::default();
        let mut ahead = [0u64; 3];
        for step in 0..200u64 {
            for (stream, covered) in ahead.iter_mut().enumerate() {
                let at = stream as u64 * (1 << 28) + step * 16 * KIB;
                let read = streams.record_read(ByteOffset(at), 16 * KIB, 1 << 30, 1 << 20);
                if step > 16 {
                    assert!(read.is_sequential, "step {step}");
                }
                if let Some(blocks) = read.readahead {
                    assert!(*covered == 0 || blocks.start.0 == *covered, "no gap and nothing twice");
                    *covered = blocks.end.0;
                }
                if step > 32 {
                    assert!(*covered * 4096 > at + 16 * KIB, "ahead of the reader");
                }
            }
        }
    }

    #[test]
    fn repeated_write_of_the_tail_continues_no_stream() {
        let mut streams = Streams::default();
        let is_stream: Vec<bool> =
            (0..64).map(|step| streams.record_write(ByteOffset(step * 16 * KIB), 16 * KIB)).collect();
        assert_eq!(is_stream, (0..64).map(|step| step >= 7).collect::<Vec<_>>());
        assert!(!streams.record_write(ByteOffset(63 * 16 * KIB), 16 * KIB));
    }

    #[test]
    fn writes_of_every_second_block_are_no_stream() {
        let mut streams = Streams::default();
        assert!((0..200).all(|step| !streams.record_write(ByteOffset(step * 8 * KIB), 4 * KIB)));
    }

    #[test]
    fn readahead_stops_at_end_of_volume() {
        let mut streams = Streams::default();
        for step in 0..64u64 {
            let read = streams.record_read(ByteOffset(step * 16 * KIB), 16 * KIB, 1 << 20, 1 << 20);
            assert!(read.readahead.is_none_or(|blocks| blocks.end <= BlockNo(256)));
        }
    }
}
