//! Detection of sequential streams in the requests of a volume.

/// Streams that are followed at once.
const STREAMS: usize = 8;

/// Ends of the latest streams of a volume. A request is sequential if it begins where one of them ended.
///
/// Several ends are kept because clients of one volume interleave their streams. Reads and writes are separate: a write
/// at the end of a read does not continue it on the disk.
#[derive(Clone, Debug, Default)]
pub struct StreamDetector {
    /// (write, end in bytes), the latest last.
    ends: Vec<(bool, u64)>,
}

impl StreamDetector {
    /// Records a request and returns true if it continues a stream.
    pub fn is_sequential(&mut self, is_write: bool, at: u64, len: u64) -> bool {
        let found = self.ends.iter().position(|end| *end == (is_write, at));
        match found {
            Some(index) => {
                self.ends.remove(index);
            }
            None if self.ends.len() == STREAMS => {
                self.ends.remove(0);
            }
            None => {}
        }
        self.ends.push((is_write, at.saturating_add(len)));
        found.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_at_the_end_of_the_last_one_is_sequential() {
        let mut streams = StreamDetector::default();
        assert!(!streams.is_sequential(false, 0, 4096));
        assert!(streams.is_sequential(false, 4096, 8192));
        assert!(!streams.is_sequential(false, 4096, 4096));
        assert!(!streams.is_sequential(true, 8192, 4096), "a write does not continue a read");
    }

    #[test]
    fn eight_interleaved_streams_are_recognised_and_nine_are_not() {
        for (count, expected) in [(8, 8 * 9), (9, 0)] {
            let mut streams = StreamDetector::default();
            let mut sequential = 0;
            for round in 0..10u64 {
                for stream in 0..count {
                    sequential += u64::from(streams.is_sequential(false, (stream << 40) + round * 4096, 4096));
                }
            }
            assert_eq!(sequential, expected, "{count} streams");
        }
    }
}
