//! Sequential streams: recognised by the position of their next read, with a readahead window for each.

use std::ops::Range;

use flash::BlockNo;

use crate::ByteOffset;

/// Maximum number of streams that are recognised at a time.
const STREAMS_MAX: usize = 16;
/// A run of this length counts as a stream.
const SEQUENTIAL_BYTES: u64 = 128 << 10;
/// First readahead window of a stream; it doubles.
const WINDOW_MIN_BYTES: u64 = 128 << 10;

#[derive(Clone, Copy)]
struct Stream {
    /// Position of its next read.
    next: ByteOffset,
    /// Bytes read in sequence.
    run_bytes: u64,
    /// Readahead window.
    window_bytes: u64,
    /// End of the range read ahead so far.
    ahead: ByteOffset,
}

/// The streams of a volume's reads, most recently used first.
#[derive(Default)]
pub struct Streams {
    recent: Vec<Stream>,
}

/// Result of recording a read.
#[derive(Debug, PartialEq, Eq)]
pub struct StreamRead {
    /// The read continues a stream.
    pub sequential: bool,
    /// Blocks to read ahead now.
    pub ahead: Option<Range<BlockNo>>,
}

impl Streams {
    /// Records a read of `len` bytes at `at` on a volume of `size` bytes. At most `ahead_max` bytes are read ahead.
    pub fn record_read(&mut self, at: ByteOffset, len: u64, size: u64, ahead_max: u64) -> StreamRead {
        let end = at.plus(len);
        // Several requests of one stream may be in flight and arrive slightly out of order.
        let slack = 2 * len;
        let continues = |stream: &Stream| at.0 >= stream.next.0.saturating_sub(slack) && at <= stream.next.plus(slack);
        let position = self.recent.iter().position(continues);
        let Some(position) = position else {
            self.recent.truncate(STREAMS_MAX - 1);
            self.recent.insert(0, Stream { next: end, run_bytes: len, window_bytes: WINDOW_MIN_BYTES, ahead: end });
            return StreamRead { sequential: false, ahead: None };
        };
        self.recent[..=position].rotate_right(1);
        let stream = &mut self.recent[0];
        if end <= stream.next {
            // A repeated read of the same range is no progress.
            return StreamRead { sequential: stream.run_bytes >= SEQUENTIAL_BYTES, ahead: None };
        }
        stream.run_bytes += end.since(stream.next.max(at));
        stream.next = end;
        if stream.run_bytes < SEQUENTIAL_BYTES {
            return StreamRead { sequential: false, ahead: None };
        }
        stream.ahead = stream.ahead.max(end);
        if stream.ahead.since(end) > stream.window_bytes / 2 {
            return StreamRead { sequential: true, ahead: None };
        }
        let from = stream.ahead;
        let to = end.plus(stream.window_bytes).min(ByteOffset(size));
        stream.window_bytes = (stream.window_bytes * 2).min(ahead_max.max(WINDOW_MIN_BYTES));
        stream.ahead = stream.ahead.max(to);
        let blocks = from.block_at_or_after()..to.block_at_or_after();
        StreamRead { sequential: true, ahead: (blocks.start < blocks.end).then_some(blocks) }
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
                StreamRead { sequential: false, ahead: None }
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
                    assert!(read.sequential, "step {step}");
                }
                if let Some(blocks) = read.ahead {
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
    fn readahead_stops_at_end_of_volume() {
        let mut streams = Streams::default();
        for step in 0..64u64 {
            let read = streams.record_read(ByteOffset(step * 16 * KIB), 16 * KIB, 1 << 20, 1 << 20);
            assert!(read.ahead.is_none_or(|blocks| blocks.end <= BlockNo(256)));
        }
    }
}
