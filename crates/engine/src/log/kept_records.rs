//! Kept records: records of clean blocks. The backing durably has their content, and the log still has it too, until
//! the segment is used again. The log is thereby also a cache of what was written.
//!
//! Entries of segments that were used again are found by their life (`flash::Position`) and removed by sweeps.

use std::ops::Range;

use flash::{BlockNo, Position};

use super::block_index::BlockIndex;

/// Chunks of the indexes of all volumes that sweeps examine in one tick: about 0.1 ms.
pub const SWEPT_CHUNKS_MAX: usize = 32;
/// A sweep begins when 1/8 of the segments were used again since the last one.
const SWEEPS_PER_CYCLE: u64 = 8;
/// A sweep begins at the latest after this number of uses: a segment's life repeats after more.
const REUSES_MAX: u64 = 4_096;

/// The kept records of a volume.
#[derive(Default)]
pub struct KeptRecords {
    records: BlockIndex,
    /// Number of segments that had been used again when the last sweep began.
    swept_reuses: u64,
    /// Where the sweep in progress continues.
    sweep_next: Option<BlockNo>,
}

impl KeptRecords {
    /// Number of records, including those whose segments were used again since the last sweep.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Approximate size in bytes.
    pub fn bytes(&self) -> usize {
        self.records.bytes()
    }

    /// The record of a block.
    pub fn get(&self, block: BlockNo) -> Option<Position> {
        self.records.get(block).map(Position::from_words)
    }

    /// Adds the record of a block, or replaces it.
    pub fn insert(&mut self, block: BlockNo, position: Position) {
        match self.records.get_mut(block) {
            Some(words) => *words = position.to_words(),
            None => self.records.insert(block, position.to_words()),
        }
    }

    /// Removes the records of these blocks, which newer content replaces.
    pub fn remove(&mut self, blocks: Range<BlockNo>) {
        if self.records.len() == 0 {
            return;
        }
        match BlockNo::count(&blocks) {
            1 => drop(self.records.remove(blocks.start)),
            _ => drop(self.records.remove_range(blocks)),
        }
    }

    /// Removes records that `is_kept` rejects, from at most `chunks_left` chunks, if enough segments were used again.
    /// `reuses` is the number of segments used again since the store was opened, `segments` that of all segments.
    pub fn sweep(&mut self, chunks_left: &mut usize, reuses: u64, segments: u64, is_kept: impl Fn(Position) -> bool) {
        if self.sweep_next.is_none() {
            if reuses - self.swept_reuses < (segments / SWEEPS_PER_CYCLE).clamp(1, REUSES_MAX) {
                return;
            }
            (self.swept_reuses, self.sweep_next) = (reuses, Some(BlockNo::ZERO));
        }
        while let Some(next) = self.sweep_next
            && *chunks_left > 0
        {
            *chunks_left -= 1;
            self.sweep_next = self.records.retain_in_chunk(next, |words| is_kept(Position::from_words(words)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_segments_in_use_again_are_swept_in_steps() {
        let mut kept = KeptRecords::default();
        (0..40_000).for_each(|block| kept.insert(BlockNo(block), Position::from_words([block as u32 % 8, 1, 2])));
        let is_kept = |position: Position| position.segment().0 != 3;
        kept.sweep(&mut 20, 1, 16, is_kept);
        assert_eq!(kept.len(), 40_000, "fewer than an eighth were used again");
        kept.sweep(&mut 20, 2, 16, is_kept);
        assert!((35_001..40_000).contains(&kept.len()), "one step: {}", kept.len());
        let mut chunks_left = 1_000;
        kept.sweep(&mut chunks_left, 3, 16, is_kept);
        assert!((800..1_000).contains(&chunks_left), "{chunks_left} chunks left");
        assert_eq!((kept.len(), kept.get(BlockNo(3)), kept.get(BlockNo(4)).is_some()), (35_000, None, true));
        kept.remove(BlockNo(4)..BlockNo(9));
        assert_eq!((kept.get(BlockNo(8)), kept.get(BlockNo(9)).is_some()), (None, true));
    }
}
