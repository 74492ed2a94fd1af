//! Compact index of the log records that are not in flight: sorted, about 16 bytes each, because flash and not memory
//! bounds their number.
//!
//! A record in the index either holds its block's newest content (the block is *spilled*: no other copy exists), or is
//! kept because nothing newer is durable yet.

use std::collections::BTreeSet;
use std::ops::Range;

use flash::{BlockNo, Position, SegmentNo};

use super::block_index::{BlockIndex, Value};

/// Flag in the second word: the record holds the block's newest content.
const SPILLED: u32 = 1 << 31;

fn value_of(position: Position, is_spilled: bool) -> Value {
    let [segment, index, checksum] = position.to_words();
    [segment, index | if is_spilled { SPILLED } else { 0 }, checksum]
}

fn position_of([segment, index, checksum]: Value) -> Position {
    Position::from_words([segment, index & !SPILLED, checksum])
}

fn is_spilled([_, index, _]: Value) -> bool {
    index & SPILLED != 0
}

/// The records, by block.
#[derive(Default)]
pub struct RecordIndex {
    records: BlockIndex,
    spilled: usize,
}

impl RecordIndex {
    /// Number of records.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Number of spilled blocks.
    pub fn spilled_blocks(&self) -> u64 {
        self.spilled as u64
    }

    /// Approximate size in bytes.
    pub fn bytes(&self) -> usize {
        self.records.bytes()
    }

    /// The record of a block, and whether the block is spilled.
    pub fn get(&self, block: BlockNo) -> Option<(Position, bool)> {
        self.records.get(block).map(|value| (position_of(value), is_spilled(value)))
    }

    /// True if the block is spilled: this record alone holds its newest content.
    pub fn is_spilled(&self, block: BlockNo) -> bool {
        self.spilled > 0 && self.records.get(block).is_some_and(is_spilled)
    }

    /// Adds the record of a block that has none in the index.
    pub fn insert(&mut self, block: BlockNo, position: Position, is_spilled: bool) {
        self.records.insert(block, value_of(position, is_spilled));
        self.spilled += usize::from(is_spilled);
    }

    /// Adds records in ascending order of block to an empty index.
    ///
    /// # Panics
    /// If the index is not empty or the order is not ascending.
    pub fn bulk_load(&mut self, records: impl Iterator<Item = (BlockNo, Position, bool)>) {
        let mut spilled = 0;
        self.records.bulk_load(records.map(|(block, position, is_spilled)| {
            spilled += usize::from(is_spilled);
            (block, value_of(position, is_spilled))
        }));
        self.spilled = spilled;
    }

    /// Removes and returns the record of a block.
    pub fn remove(&mut self, block: BlockNo) -> Option<(Position, bool)> {
        let value = self.records.remove(block)?;
        self.spilled -= usize::from(is_spilled(value));
        Some((position_of(value), is_spilled(value)))
    }

    /// Marks the records of these blocks as superseded by newer content; they stay in the index. Returns how many
    /// blocks were spilled.
    pub fn supersede(&mut self, blocks: Range<BlockNo>) -> u64 {
        let before = self.spilled;
        if before > 0 {
            for value in self.records.values_mut(blocks) {
                self.spilled -= usize::from(is_spilled(*value));
                value[1] &= !SPILLED;
            }
        }
        (before - self.spilled) as u64
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

    /// The blocks whose records are superseded but still held.
    pub fn superseded(&self) -> Vec<BlockNo> {
        if self.spilled == self.records.len() {
            return Vec::new();
        }
        self.records.iter().filter(|(_, value)| !is_spilled(*value)).map(|(block, _)| block).collect()
    }

    /// The records from `from` on: block, position, and whether the block is spilled.
    pub fn iter_from(&self, from: BlockNo) -> impl Iterator<Item = (BlockNo, Position, bool)> + '_ {
        self.records.iter_from(from).map(|(block, value)| (block, position_of(value), is_spilled(value)))
    }

    /// The blocks whose records are in these segments.
    pub fn blocks_in_segments<'a>(&'a self, segments: &'a BTreeSet<SegmentNo>) -> impl Iterator<Item = BlockNo> + 'a {
        let inside = self.records.iter().filter(|(_, value)| segments.contains(&position_of(*value).segment()));
        inside.map(|(block, _)| block)
    }

    /// A run of up to `count` consecutive spilled blocks that `is_eligible` accepts. It starts at the first such block
    /// from `from` on and does not cross a multiple of `boundary`.
    pub fn next_run(
        &self,
        from: BlockNo,
        boundary: u64,
        count: u64,
        is_eligible: impl Fn(BlockNo) -> bool,
    ) -> Option<Range<BlockNo>> {
        let spilled = self.records.iter_from(from).filter(|(_, value)| is_spilled(*value)).map(|(block, _)| block);
        let mut blocks = spilled.skip_while(|block| !is_eligible(*block));
        let start = blocks.next()?;
        let end_max = start.align_down(boundary).plus(boundary).min(start.plus(count));
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
            let (mut index, mut map) = (RecordIndex::default(), BTreeMap::<BlockNo, (Position, bool)>::new());
            // The blocks lie around a boundary that no chunk crosses.
            let block_at = |number: u64| BlockNo((1 << 32) - 1_500 + number);
            for step in 0..30_000 {
                let block = block_at(draw(bound));
                match draw(12) {
                    0..8 => {
                        let is_spilled = draw(3) > 0;
                        if let std::collections::btree_map::Entry::Vacant(entry) = map.entry(block) {
                            entry.insert((position(step), is_spilled));
                            index.insert(block, position(step), is_spilled);
                        }
                    }
                    8 | 9 => assert_eq!(index.remove(block), map.remove(&block)),
                    10 => {
                        let blocks = block.run(draw(40));
                        let mut count = 0;
                        for (_, (_, is_spilled)) in map.range_mut(blocks.clone()) {
                            count += u64::from(std::mem::take(is_spilled));
                        }
                        assert_eq!(index.supersede(blocks), count);
                    }
                    _ => {
                        let blocks = block.run(draw(40));
                        index.supersede(blocks.clone());
                        let removed: Vec<BlockNo> = map.range(blocks.clone()).map(|(block, _)| *block).collect();
                        let expected: Vec<_> = removed.iter().map(|block| map.remove(block).unwrap().0).collect();
                        assert_eq!(index.remove_range(blocks), expected);
                    }
                }
                let from = block_at(draw(bound));
                assert_eq!(index.get(from), map.get(&from).copied());
                assert_eq!(index.is_spilled(from), map.get(&from).is_some_and(|(_, is_spilled)| *is_spilled));
                let accepts = |block: BlockNo| !block.0.is_multiple_of(5);
                let run = index.next_run(from, 16, 8, accepts);
                let is_spilled = |block: &BlockNo| map.get(block).is_some_and(|(_, is_spilled)| *is_spilled);
                let start = map
                    .range(from..)
                    .find(|(block, (_, is_spilled))| *is_spilled && accepts(**block))
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
                    (index.len(), index.spilled_blocks()),
                    (map.len(), map.values().filter(|(_, is_spilled)| *is_spilled).count() as u64)
                );
            }
            let superseded: Vec<BlockNo> =
                map.iter().filter(|(_, (_, is_spilled))| !is_spilled).map(|(block, _)| *block).collect();
            assert_eq!(index.superseded(), superseded);
        }
    }

    #[test]
    fn bulk_load_equals_single_inserts() {
        for step in [1, 3, (1 << 32) / 700] {
            let records = || (0..2_000).map(|number| (BlockNo(5 + number * step), position(number), number % 7 > 0));
            let (mut filled, mut built) = (RecordIndex::default(), RecordIndex::default());
            filled.bulk_load(records());
            records().for_each(|(block, position, is_spilled)| built.insert(block, position, is_spilled));
            assert_eq!((filled.len(), filled.spilled_blocks()), (built.len(), built.spilled_blocks()));
            assert!(filled.bytes() <= 18 * filled.len(), "{} bytes", filled.bytes());
            for (block, position, is_spilled) in records() {
                assert_eq!(filled.get(block), Some((position, is_spilled)));
                assert_eq!(filled.get(block.next()), built.get(block.next()));
            }
            assert_eq!(filled.superseded(), built.superseded());
            for block in [4, 6, 2_000 * step + 9].map(BlockNo) {
                if filled.get(block).is_none() {
                    filled.insert(block, position(1), true);
                }
                assert!(filled.remove(block).is_some());
            }
        }
    }

    #[test]
    fn spilled_blocks_cost_at_most_24_bytes_each() {
        let bytes_per_entry = |index: &RecordIndex| index.bytes().div_ceil(index.len());
        let (mut scattered, mut ordered, mut draw) = (RecordIndex::default(), RecordIndex::default(), draws(3));
        let mut blocks: Vec<u64> = (0..300_000).map(|number| number * 7).collect();
        blocks.iter().for_each(|block| ordered.insert(BlockNo(*block), position(*block), true));
        (1..blocks.len()).rev().for_each(|index| blocks.swap(index, draw(index as u64 + 1) as usize));
        blocks.iter().for_each(|block| scattered.insert(BlockNo(*block), position(*block), true));
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
