//! Compact index of the durable log records of blocks that were spilled and whose write-back has not started: sorted,
//! 16 bytes and an overhead each (18 to 24 in all), because flash and not memory bounds their number.
//!
//! A record in the index either holds its block's newest content (the block is *spilled*: no other copy exists), or is
//! *superseded* by a write and still live, because nothing newer is durable yet.

use std::collections::BTreeSet;
use std::ops::Range;

use flash::{BlockNo, Position, SegmentNo};

use super::block_index::{BlockIndex, Value};

/// Flag in the word of the position's index: the block is spilled, so this record alone holds its newest content.
const SPILLED_FLAG: u32 = 1 << 31;

/// A record in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// Position of the record in the log.
    pub position: Position,
    /// True if the block is spilled: this record alone holds its newest content.
    pub is_spilled: bool,
}

impl IndexEntry {
    fn to_value(self) -> Value {
        let [segment, index, checksum] = self.position.to_words();
        [segment, index | if self.is_spilled { SPILLED_FLAG } else { 0 }, checksum]
    }

    fn of_value(value: Value) -> IndexEntry {
        IndexEntry { position: position_of(value), is_spilled: is_spilled(value) }
    }
}

/// The position in an index value.
fn position_of([segment, index, checksum]: Value) -> Position {
    Position::from_words([segment, index & !SPILLED_FLAG, checksum])
}

/// True if an index value has the flag of a spilled block.
fn is_spilled([_, index, _]: Value) -> bool {
    index & SPILLED_FLAG != 0
}

/// Clears the flag of a spilled block.
fn clear_spilled([_, index, _]: &mut Value) {
    *index &= !SPILLED_FLAG;
}

/// The records, by block.
#[derive(Default)]
pub struct RecordIndex {
    records: BlockIndex,
    spilled_count: usize,
}

impl RecordIndex {
    /// Number of records.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Number of spilled blocks.
    pub fn spilled_count(&self) -> u64 {
        self.spilled_count as u64
    }

    /// Approximate size in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.records.memory_bytes()
    }

    /// The record of a block.
    pub fn get(&self, block: BlockNo) -> Option<IndexEntry> {
        self.records.get(block).map(IndexEntry::of_value)
    }

    /// True if the block is spilled: this record alone holds its newest content.
    pub fn is_spilled(&self, block: BlockNo) -> bool {
        self.spilled_count > 0 && self.records.get(block).is_some_and(is_spilled)
    }

    /// Adds the record of a block that has none in the index.
    pub fn insert(&mut self, block: BlockNo, entry: IndexEntry) {
        self.records.insert(block, entry.to_value());
        self.spilled_count += usize::from(entry.is_spilled);
    }

    /// Adds records in ascending order of block to an empty index.
    ///
    /// # Panics
    /// If the index is not empty or the order is not ascending.
    pub fn bulk_load(&mut self, records: impl Iterator<Item = (BlockNo, IndexEntry)>) {
        let mut spilled = 0;
        self.records.bulk_load(records.map(|(block, entry)| {
            spilled += usize::from(entry.is_spilled);
            (block, entry.to_value())
        }));
        self.spilled_count = spilled;
    }

    /// Removes and returns the record of a block.
    pub fn remove(&mut self, block: BlockNo) -> Option<IndexEntry> {
        let entry = IndexEntry::of_value(self.records.remove(block)?);
        self.spilled_count -= usize::from(entry.is_spilled);
        Some(entry)
    }

    /// Marks the records of these blocks as superseded by newer content; they stay in the index. Returns how many
    /// blocks were spilled.
    pub fn supersede(&mut self, blocks: Range<BlockNo>) -> u64 {
        let before = self.spilled_count;
        if before > 0 {
            for value in self.records.values_mut(blocks) {
                self.spilled_count -= usize::from(is_spilled(*value));
                clear_spilled(value);
            }
        }
        (before - self.spilled_count) as u64
    }

    /// Removes and returns all records of these blocks.
    ///
    /// # Panics
    /// If one of the blocks is spilled.
    pub fn remove_range(&mut self, blocks: Range<BlockNo>) -> Vec<Position> {
        let mut positions = Vec::new();
        self.records.remove_range(blocks, |value| {
            assert!(!is_spilled(value), "the only copy of a block is never retired");
            positions.push(position_of(value));
        });
        positions
    }

    /// True if one of these blocks has a record.
    pub fn has_any(&self, blocks: &Range<BlockNo>) -> bool {
        self.records.iter_from(blocks.start).next().is_some_and(|(block, _)| block < blocks.end)
    }

    /// The blocks whose records are superseded but still live.
    pub fn superseded_blocks(&self) -> Vec<BlockNo> {
        if self.spilled_count == self.records.len() {
            return Vec::new();
        }
        self.records.iter().filter(|(_, value)| !is_spilled(*value)).map(|(block, _)| block).collect()
    }

    /// The records from block `from` on.
    pub fn iter_from(&self, from: BlockNo) -> impl Iterator<Item = (BlockNo, IndexEntry)> + '_ {
        self.records.iter_from(from).map(|(block, value)| (block, IndexEntry::of_value(value)))
    }

    /// The blocks whose records are in these segments.
    pub fn blocks_in_segments<'a>(&'a self, segments: &'a BTreeSet<SegmentNo>) -> impl Iterator<Item = BlockNo> + 'a {
        let inside = self.records.iter().filter(|(_, value)| segments.contains(&position_of(*value).segment()));
        inside.map(|(block, _)| block)
    }

    /// A run of up to `run_blocks_max` consecutive spilled blocks that `is_eligible` accepts. It starts at the first
    /// such block from `from` on and does not cross a multiple of `boundary_blocks`.
    pub fn next_run(
        &self,
        from: BlockNo,
        boundary_blocks: u64,
        run_blocks_max: u64,
        is_eligible: impl Fn(BlockNo) -> bool,
    ) -> Option<Range<BlockNo>> {
        let spilled = self.records.iter_from(from).filter(|(_, value)| is_spilled(*value)).map(|(block, _)| block);
        let mut blocks = spilled.skip_while(|block| !is_eligible(*block));
        let start = blocks.next()?;
        let end_max = start.align_down(boundary_blocks).plus(boundary_blocks).min(start.plus(run_blocks_max));
        let mut end = start.next();
        while end < end_max && blocks.next() == Some(end) && is_eligible(end) {
            end = end.next();
        }
        Some(start..end)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn position(number: u64) -> Position {
        Position::from_words([number as u32, number as u32 % 1000, !number as u32])
    }

    fn entry(number: u64, is_spilled: bool) -> IndexEntry {
        IndexEntry { position: position(number), is_spilled }
    }

    /// A pseudorandom sequence.
    fn draws(seed: u64) -> impl FnMut(u64) -> u64 {
        let mut state = seed;
        move |bound| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % bound
        }
    }

    #[test]
    fn random_changes_match_a_plain_map() {
        let mut draw = draws(7);
        for bound in [3_000, 40_000] {
            let (mut index, mut map) = (RecordIndex::default(), BTreeMap::<BlockNo, IndexEntry>::new());
            // The blocks lie around a multiple of 2^32, which no chunk of a `BlockIndex` crosses.
            let block_at = |number: u64| BlockNo((1 << 32) - 1_500 + number);
            for step in 0..30_000 {
                let block = block_at(draw(bound));
                match draw(12) {
                    0..8 => {
                        let record = entry(step, draw(3) > 0);
                        if let std::collections::btree_map::Entry::Vacant(vacant) = map.entry(block) {
                            vacant.insert(record);
                            index.insert(block, record);
                        }
                    }
                    8 | 9 => assert_eq!(index.remove(block), map.remove(&block)),
                    10 => {
                        let blocks = block.range_of_len(draw(40));
                        let mut count = 0;
                        for (_, record) in map.range_mut(blocks.clone()) {
                            count += u64::from(std::mem::take(&mut record.is_spilled));
                        }
                        assert_eq!(index.supersede(blocks), count);
                    }
                    _ => {
                        let blocks = block.range_of_len(draw(40));
                        index.supersede(blocks.clone());
                        let removed: Vec<BlockNo> = map.range(blocks.clone()).map(|(block, _)| *block).collect();
                        let expected: Vec<_> =
                            removed.iter().map(|block| map.remove(block).unwrap().position).collect();
                        assert_eq!(index.remove_range(blocks), expected);
                    }
                }
                let from = block_at(draw(bound));
                assert_eq!(index.get(from), map.get(&from).copied());
                assert_eq!(index.is_spilled(from), map.get(&from).is_some_and(|record| record.is_spilled));
                let accepts = |block: BlockNo| !block.0.is_multiple_of(5);
                let run = index.next_run(from, 16, 8, accepts);
                let is_spilled = |block: &BlockNo| map.get(block).is_some_and(|record| record.is_spilled);
                let start = map
                    .range(from..)
                    .find(|(block, record)| record.is_spilled && accepts(**block))
                    .map(|(block, _)| *block);
                let expected = start.map(|start| {
                    let end_max = start.align_down(16).plus(16).min(start.plus(8));
                    start
                        ..BlockNo::each(&(start..end_max))
                            .find(|block| !is_spilled(block) || !accepts(*block))
                            .unwrap_or(end_max)
                });
                assert_eq!(run, expected);
                assert_eq!(
                    (index.len(), index.spilled_count()),
                    (map.len(), map.values().filter(|record| record.is_spilled).count() as u64)
                );
            }
            let superseded: Vec<BlockNo> =
                map.iter().filter(|(_, record)| !record.is_spilled).map(|(block, _)| *block).collect();
            assert_eq!(index.superseded_blocks(), superseded);
        }
    }

    #[test]
    fn bulk_load_equals_single_inserts() {
        for step in [1, 3, (1 << 32) / 700] {
            let records = || (0..2_000).map(|number| (BlockNo(5 + number * step), entry(number, number % 7 > 0)));
            let (mut loaded, mut inserted) = (RecordIndex::default(), RecordIndex::default());
            loaded.bulk_load(records());
            records().for_each(|(block, record)| inserted.insert(block, record));
            assert_eq!((loaded.len(), loaded.spilled_count()), (inserted.len(), inserted.spilled_count()));
            assert!(loaded.memory_bytes() <= 18 * loaded.len(), "{} bytes", loaded.memory_bytes());
            for (block, record) in records() {
                assert_eq!(loaded.get(block), Some(record));
                assert_eq!(loaded.get(block.next()), inserted.get(block.next()));
            }
            assert_eq!(loaded.superseded_blocks(), inserted.superseded_blocks());
            for block in [4, 6, 2_000 * step + 9].map(BlockNo) {
                if loaded.get(block).is_none() {
                    loaded.insert(block, entry(1, true));
                }
                assert!(loaded.remove(block).is_some());
            }
        }
    }

    #[test]
    fn spilled_blocks_cost_at_most_24_bytes_each() {
        let bytes_per_entry = |index: &RecordIndex| index.memory_bytes().div_ceil(index.len());
        let (mut scattered, mut ordered, mut draw) = (RecordIndex::default(), RecordIndex::default(), draws(3));
        let mut blocks: Vec<u64> = (0..300_000).map(|number| number * 7).collect();
        blocks.iter().for_each(|block| ordered.insert(BlockNo(*block), entry(*block, true)));
        (1..blocks.len()).rev().for_each(|index| blocks.swap(index, draw(index as u64 + 1) as usize));
        blocks.iter().for_each(|block| scattered.insert(BlockNo(*block), entry(*block, true)));
        assert!(
            bytes_per_entry(&ordered) <= 18 && bytes_per_entry(&scattered) <= 19,
            "{} {}",
            bytes_per_entry(&ordered),
            bytes_per_entry(&scattered)
        );
        // 19 of 20 blocks are removed again.
        for block in &blocks[blocks.len() / 20..] {
            scattered.remove(BlockNo(*block));
            ordered.remove(BlockNo(*block));
        }
        assert!(
            bytes_per_entry(&ordered) <= 24 && bytes_per_entry(&scattered) <= 24,
            "{} {}",
            bytes_per_entry(&ordered),
            bytes_per_entry(&scattered)
        );
    }
}
