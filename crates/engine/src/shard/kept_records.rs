//! Kept records: retired records that are the newest content of their blocks. The backing durably has their content,
//! and the log still has it too, until the record expires. The log is thereby also a cache of written data.
//!
//! The index is not notified of expiries: reads skip expired records, and sweeps remove them.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use flash::{BlockNo, EXPIRY_MODULUS, Position};
use seam::{BLOCK_BYTES, Seam};

use super::core_state::CoreState;
use crate::log_tracker::block_index::{BlockIndex, Value};

/// The indexes of all volumes of a core together take at most 1/8 as much memory as the cache.
const INDEX_MEMORY_DIVISOR: usize = 8;
/// Approximate size of an entry.
const ENTRY_BYTES: usize = 19;
/// A volume is swept when 1/8 of the segments has expired since its last sweep.
const SWEEPS_PER_CYCLE: u64 = 8;
/// A volume is swept at the latest after this number of expiries: half of the number that a position tells apart.
const EXPIRIES_PER_SWEEP_MAX: u64 = EXPIRY_MODULUS as u64 / 2;
/// Minimum number of chunks that sweeps may examine in one tick: about 0.1 ms.
const SWEPT_CHUNKS_PER_TICK_MIN: usize = 32;
/// Maximum number of chunks that sweeps examine in one tick: about 3 ms.
const SWEPT_CHUNKS_PER_TICK_MAX: usize = 1_024;
/// Approximate entries per chunk.
const ENTRIES_PER_CHUNK: u64 = 256;

/// The kept records of a volume.
#[derive(Default)]
pub struct KeptRecords {
    records: BlockIndex,
    /// Expiries of segments when the last sweep began.
    expiries_at_sweep_start: u64,
    /// Where the sweep in progress continues.
    sweep_continues_at: Option<BlockNo>,
}

impl KeptRecords {
    /// Number of records, including those that have expired since the last sweep.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Approximate size in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.records.memory_bytes()
    }

    /// The record of a block.
    pub fn get(&self, block: BlockNo) -> Option<Position> {
        self.records.get(block).map(Position::from_words)
    }

    /// Adds the record of a block, or replaces it.
    pub fn insert(&mut self, block: BlockNo, position: Position) {
        match self.records.get_mut(block) {
            Some(value) => *value = position.to_words(),
            None => self.records.insert(block, position.to_words()),
        }
    }

    /// Removes the records of these blocks: their content has changed.
    pub fn remove(&mut self, blocks: Range<BlockNo>) {
        if self.records.len() == 0 {
            return;
        }
        match BlockNo::count(&blocks) {
            1 => drop(self.records.remove(blocks.start)),
            _ => self.records.remove_range(blocks, |_| ()),
        }
    }

    /// Removes the record of a block, unless it has been replaced by another one.
    pub fn remove_position(&mut self, block: BlockNo, position: Position) {
        if self.get(block) == Some(position) {
            self.records.remove(block);
        }
    }

    /// Removes expired records from at most `chunks_left` chunks, if enough segments have expired since the last sweep.
    /// `expiries` is their number since the store was opened, `segments` that of all segments.
    fn sweep(
        &mut self,
        chunks_left: &mut usize,
        (expiries, segments): (u64, u64),
        has_expired: impl Fn(Position) -> bool,
    ) {
        if self.sweep_continues_at.is_none() {
            if expiries - self.expiries_at_sweep_start < (segments / SWEEPS_PER_CYCLE).clamp(1, EXPIRIES_PER_SWEEP_MAX)
            {
                return;
            }
            (self.expiries_at_sweep_start, self.sweep_continues_at) = (expiries, Some(BlockNo::ZERO));
        }
        while let Some(next) = self.sweep_continues_at
            && *chunks_left > 0
        {
            *chunks_left -= 1;
            let is_valid = |value: Value| !has_expired(Position::from_words(value));
            self.sweep_continues_at = self.records.retain_in_chunk(next, is_valid);
        }
    }
}

/// Number of kept records of a core, and progress of its sweeps.
#[derive(Default)]
pub struct KeptTotals {
    /// Number of records at the last tick, and those added since.
    record_count: Cell<usize>,
    /// Expiries of segments at the last tick.
    expiries_at_tick: Cell<u64>,
    /// Index of the volume that is swept first.
    next_shard_index: Cell<usize>,
}

impl<S: Seam> CoreState<S> {
    /// Counts another record as kept. Returns false if there is no room for it.
    pub fn reserve_kept_record(&self) -> bool {
        let entries_max = self.seam().blocks_total() * BLOCK_BYTES / INDEX_MEMORY_DIVISOR / ENTRY_BYTES;
        let entries = self.kept_totals.record_count.get();
        self.kept_totals.record_count.set(entries + usize::from(entries < entries_max));
        entries < entries_max
    }

    /// Removes expired records of all volumes, as fast as segments expire.
    pub fn sweep_kept_records(&self) {
        let Some(store) = self.log() else { return };
        let shards: Vec<Rc<_>> = self.shards();
        let entries: usize = shards.iter().map(|shard| shard.kept_records.borrow().len()).sum();
        self.kept_totals.record_count.set(entries);
        let (expiries, segments) = (store.expiries(), store.segment_count());
        let new_expiries = expiries - self.kept_totals.expiries_at_tick.replace(expiries);
        let due_entries = entries as u64 * new_expiries * SWEEPS_PER_CYCLE / segments.max(1);
        let due_chunks = usize::try_from(due_entries / ENTRIES_PER_CHUNK).unwrap_or(usize::MAX);
        let mut chunks_left = due_chunks.clamp(SWEPT_CHUNKS_PER_TICK_MIN, SWEPT_CHUNKS_PER_TICK_MAX);
        let first = self.kept_totals.next_shard_index.get();
        for index in (0..shards.len()).map(|number| (first + number) % shards.len()) {
            let mut kept = shards[index].kept_records.borrow_mut();
            kept.sweep(&mut chunks_left, (expiries, segments), |position| store.has_expired(position));
            if chunks_left == 0 {
                return self.kept_totals.next_shard_index.set(index);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expired_records_are_swept_in_steps() {
        let mut kept = KeptRecords::default();
        (0..40_000).for_each(|block| kept.insert(BlockNo(block), Position::from_words([block as u32 % 8, 1, 2])));
        let has_expired = |position: Position| position.segment().0 == 3;
        kept.sweep(&mut 20, (1, 16), has_expired);
        assert_eq!(kept.len(), 40_000, "less than an eighth has expired");
        kept.sweep(&mut 20, (2, 16), has_expired);
        assert!((35_001..40_000).contains(&kept.len()), "one step: {}", kept.len());
        let mut chunks_left = 1_000;
        kept.sweep(&mut chunks_left, (3, 16), has_expired);
        assert!((800..1_000).contains(&chunks_left), "{chunks_left} chunks left");
        assert_eq!((kept.len(), kept.get(BlockNo(3)), kept.get(BlockNo(4)).is_some()), (35_000, None, true));
        kept.remove_position(BlockNo(4), Position::from_words([5, 1, 2]));
        assert!(kept.get(BlockNo(4)).is_some(), "another record has replaced it");
        kept.remove_position(BlockNo(5), Position::from_words([5, 1, 2]));
        kept.remove(BlockNo(6)..BlockNo(9));
        let left = [4, 5, 8, 9].map(|block| kept.get(BlockNo(block)).is_some());
        assert_eq!(left, [true, false, false, true]);
    }
}
