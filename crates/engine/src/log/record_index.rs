//! Compact index of the log records that are not in flight: sorted, about 16 bytes each, because flash and not memory
//! bounds their number.
//!
//! A record in the index either holds its block's newest content (the block is *spilled*: no other copy exists), or is
//! kept because nothing newer is durable yet.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use flash::{BlockNo, Position, SegmentNo};

/// Limit of entries in a chunk; a full chunk is halved.
const ENTRIES_MAX: usize = 512;
/// A chunk with fewer entries is merged into the one before it, if they fit.
const ENTRIES_MIN: usize = 128;
/// Entries by which the capacity of a chunk grows.
const ENTRIES_STEP: usize = 32;
/// Flag in [`IndexEntry::index`]: the record holds the block's newest content.
const SPILLED: u32 = 1 << 31;

/// A record. The upper half of its block number belongs to the chunk.
#[derive(Clone, Copy)]
struct IndexEntry {
    block: u32,
    segment: u32,
    index: u32,
    checksum: u32,
}

impl IndexEntry {
    fn new(block: BlockNo, position: Position, is_spilled: bool) -> IndexEntry {
        let [segment, index, checksum] = position.to_words();
        IndexEntry { block: block.0 as u32, segment, index: index | if is_spilled { SPILLED } else { 0 }, checksum }
    }

    fn position(&self) -> Position {
        Position::from_words([self.segment, self.index & !SPILLED, self.checksum])
    }

    fn is_spilled(&self) -> bool {
        self.index & SPILLED != 0
    }
}

/// The records, by block.
#[derive(Default)]
pub struct RecordIndex {
    /// Keyed by the first block that a chunk may hold; all of its blocks share the upper half.
    chunks: BTreeMap<BlockNo, Vec<IndexEntry>>,
    len: usize,
    spilled: usize,
}

/// The first block with the same upper half.
fn upper(block: BlockNo) -> BlockNo {
    BlockNo(block.0 >> 32 << 32)
}

/// The block of a chunk whose upper half is `base`.
fn with_lower(base: BlockNo, lower: u32) -> BlockNo {
    BlockNo(base.0 | u64::from(lower))
}

impl RecordIndex {
    /// Number of records.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Number of spilled blocks.
    pub fn spilled_blocks(&self) -> u64 {
        self.spilled as u64
    }

    /// Approximate size in bytes.
    pub fn bytes(&self) -> usize {
        // A node of the map holds 5 to 11 entries and a few words.
        let chunk_overhead = 2 * (size_of::<BlockNo>() + size_of::<Vec<IndexEntry>>());
        self.chunks.values().map(|chunk| chunk.capacity() * size_of::<IndexEntry>() + chunk_overhead).sum()
    }

    /// The record of a block, and whether the block is spilled.
    pub fn get(&self, block: BlockNo) -> Option<(Position, bool)> {
        let (_, chunk) = self.chunks.range(upper(block)..=block).next_back()?;
        let index = chunk.binary_search_by_key(&(block.0 as u32), |entry| entry.block).ok()?;
        Some((chunk[index].position(), chunk[index].is_spilled()))
    }

    /// True if the block is spilled: this record alone holds its newest content.
    pub fn is_spilled(&self, block: BlockNo) -> bool {
        self.spilled > 0 && self.get(block).is_some_and(|(_, is_spilled)| is_spilled)
    }

    /// Adds the record of a block that has none in the index.
    pub fn insert(&mut self, block: BlockNo, position: Position, is_spilled: bool) {
        let key = self.chunks.range(upper(block)..=block).next_back().map_or(upper(block), |(key, _)| *key);
        let chunk = self.chunks.entry(key).or_default();
        let search = chunk.binary_search_by_key(&(block.0 as u32), |entry| entry.block);
        let index = search.expect_err("a block has one record here");
        if chunk.len() == chunk.capacity() {
            chunk.reserve_exact(ENTRIES_STEP);
        }
        chunk.insert(index, IndexEntry::new(block, position, is_spilled));
        self.len += 1;
        self.spilled += usize::from(is_spilled);
        if chunk.len() > ENTRIES_MAX {
            // Records added in ascending order leave nearly full chunks.
            let split = if index + 1 == chunk.len() { ENTRIES_MAX - ENTRIES_STEP } else { ENTRIES_MAX / 2 };
            let right = chunk.split_off(split);
            chunk.shrink_to(split + ENTRIES_STEP);
            self.chunks.insert(with_lower(upper(block), right[0].block), right);
        }
    }

    /// Adds records in ascending order of block to an empty index.
    ///
    /// # Panics
    /// If the index is not empty or the order is not ascending.
    pub fn bulk_load(&mut self, records: impl Iterator<Item = (BlockNo, Position, bool)>) {
        assert!(self.len == 0, "bulk load needs an empty index");
        let (mut chunks, mut chunk, mut first, mut last) = (Vec::new(), Vec::new(), BlockNo::ZERO, None);
        for (block, position, is_spilled) in records {
            assert!(last.replace(block).is_none_or(|last| last < block), "block {block} is out of order");
            if chunk.len() == ENTRIES_MAX - ENTRIES_STEP || upper(block) != upper(first) {
                chunk.shrink_to_fit();
                chunks.push((first, std::mem::take(&mut chunk)));
            }
            if chunk.is_empty() {
                chunk.reserve_exact(ENTRIES_MAX - ENTRIES_STEP);
                first = if chunks.is_empty() || upper(block) != upper(first) { upper(block) } else { block };
            }
            chunk.push(IndexEntry::new(block, position, is_spilled));
            self.len += 1;
            self.spilled += usize::from(is_spilled);
        }
        chunk.shrink_to_fit();
        chunks.push((first, chunk));
        self.chunks = chunks.into_iter().filter(|(_, chunk)| !chunk.is_empty()).collect();
    }

    /// Removes and returns the record of a block.
    pub fn remove(&mut self, block: BlockNo) -> Option<(Position, bool)> {
        let (key, chunk) = self.chunks.range_mut(upper(block)..=block).next_back()?;
        let key = *key;
        let index = chunk.binary_search_by_key(&(block.0 as u32), |entry| entry.block).ok()?;
        let entry = chunk.remove(index);
        self.len -= 1;
        self.spilled -= usize::from(entry.is_spilled());
        self.shrink_or_merge(key);
        Some((entry.position(), entry.is_spilled()))
    }

    /// Marks the records of these blocks as superseded by newer content; they stay in the index. Returns how many
    /// blocks were spilled.
    pub fn supersede(&mut self, blocks: Range<BlockNo>) -> u64 {
        let before = self.spilled;
        if before > 0 {
            let first = self.first_key(blocks.start);
            for (key, chunk) in self.chunks.range_mut(first..blocks.end) {
                let entries = entry_range(upper(*key), chunk, &blocks);
                for entry in &mut chunk[entries] {
                    self.spilled -= usize::from(entry.is_spilled());
                    entry.index &= !SPILLED;
                }
            }
        }
        (before - self.spilled) as u64
    }

    /// Removes and returns all records of these blocks.
    ///
    /// # Panics
    /// If one of the blocks is spilled.
    pub fn remove_range(&mut self, blocks: Range<BlockNo>) -> Vec<Position> {
        let mut taken = Vec::new();
        let keys: Vec<BlockNo> =
            self.chunks.range(self.first_key(blocks.start)..blocks.end).map(|(key, _)| *key).collect();
        for key in keys {
            let Some(chunk) = self.chunks.get_mut(&key) else { continue };
            let entries = entry_range(upper(key), chunk, &blocks);
            taken.extend(chunk.drain(entries).map(|entry| {
                assert!(!entry.is_spilled(), "the only copy of a block is never retired");
                entry.position()
            }));
            self.shrink_or_merge(key);
        }
        self.len -= taken.len();
        taken
    }

    /// The blocks whose records are superseded but still held.
    pub fn superseded(&self) -> Vec<BlockNo> {
        if self.spilled == self.len {
            return Vec::new();
        }
        let entries = self.chunks.iter().flat_map(|(key, chunk)| chunk.iter().map(|entry| (upper(*key), entry)));
        entries.filter(|(_, entry)| !entry.is_spilled()).map(|(base, entry)| with_lower(base, entry.block)).collect()
    }

    /// The blocks whose records are in these segments.
    pub fn blocks_in_segments<'a>(&'a self, segments: &'a BTreeSet<SegmentNo>) -> impl Iterator<Item = BlockNo> + 'a {
        let entries = self.chunks.iter().flat_map(|(key, chunk)| chunk.iter().map(|entry| (upper(*key), entry)));
        let inside = entries.filter(|(_, entry)| segments.contains(&entry.position().segment()));
        inside.map(|(base, entry)| with_lower(base, entry.block))
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
        let blocks = self.chunks.range(self.first_key(from)..).flat_map(|(key, chunk)| {
            let base = upper(*key);
            chunk.iter().filter(|entry| entry.is_spilled()).map(move |entry| with_lower(base, entry.block))
        });
        let mut blocks = blocks.skip_while(|block| *block < from).skip_while(|block| !is_eligible(*block));
        let start = blocks.next()?;
        let end_max = start.align_down(boundary).plus(boundary).min(start.plus(count));
        let mut end = start.next();
        while end < end_max && blocks.next() == Some(end) && is_eligible(end) {
            end = end.next();
        }
        Some(start..end)
    }

    /// Key of the first chunk that may hold a block at or after `from`.
    fn first_key(&self, from: BlockNo) -> BlockNo {
        self.chunks.range(..=from).next_back().map_or(from, |(key, _)| *key)
    }

    /// Releases unused capacity of a chunk, or merges a small chunk into the one before it.
    fn shrink_or_merge(&mut self, key: BlockNo) {
        let chunk = self.chunks.get_mut(&key).expect("the changed chunk exists");
        let len = chunk.len();
        if len >= ENTRIES_MIN {
            chunk.shrink_to(len + ENTRIES_STEP);
            return;
        }
        if len == 0 {
            self.chunks.remove(&key);
            return;
        }
        let mut before = self.chunks.range_mut(upper(key)..key);
        if let Some((_, left)) = before.next_back()
            && left.len() + len <= ENTRIES_MAX - ENTRIES_STEP
        {
            left.reserve_exact(len);
            let left_key = *self.chunks.range(..key).next_back().expect("the chunk exists").0;
            let mut entries = self.chunks.remove(&key).expect("the chunk exists");
            self.chunks.get_mut(&left_key).expect("the chunk exists").append(&mut entries);
        } else {
            self.chunks.get_mut(&key).expect("the chunk exists").shrink_to(len + ENTRIES_STEP);
        }
    }
}

/// Indexes of the chunk's entries that belong to `blocks`.
fn entry_range(base: BlockNo, chunk: &[IndexEntry], blocks: &Range<BlockNo>) -> Range<usize> {
    let index_of = |bound: BlockNo| chunk.partition_point(|entry| with_lower(base, entry.block) < bound);
    index_of(blocks.start)..index_of(blocks.end)
}

#[cfg(test)]
mod tests {
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
