//! A compact map from blocks to three words: sorted, about 16 bytes an entry, because flash and not memory bounds the
//! number of entries.

use std::collections::BTreeMap;
use std::ops::Range;

use flash::BlockNo;

/// Limit of entries in a chunk; a full chunk is halved.
const CHUNK_ENTRIES_MAX: usize = 512;
/// A chunk with fewer entries is merged into the one before it, if they fit.
const CHUNK_ENTRIES_MIN: usize = 128;
/// Entries by which the capacity of a chunk grows.
const CHUNK_ENTRIES_STEP: usize = 32;

/// The value of a block.
pub type Value = [u32; 3];

/// An entry. The upper half of its block number belongs to the chunk.
#[derive(Clone, Copy)]
struct Entry {
    block: u32,
    value: Value,
}

/// The map.
#[derive(Default)]
pub struct BlockIndex {
    /// Keyed by the first block that a chunk may hold; all of its blocks share the upper half.
    chunks: BTreeMap<BlockNo, Vec<Entry>>,
    entry_count: usize,
}

/// The first block with the same upper half.
fn chunk_base(block: BlockNo) -> BlockNo {
    BlockNo(block.0 >> 32 << 32)
}

/// The block of a chunk whose upper half is `base`.
fn with_lower(base: BlockNo, lower: u32) -> BlockNo {
    BlockNo(base.0 | u64::from(lower))
}

impl BlockIndex {
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entry_count
    }

    /// Approximate size in bytes.
    pub fn memory_bytes(&self) -> usize {
        // A node of the map holds 5 to 11 entries and a few words.
        let chunk_overhead = 2 * (size_of::<BlockNo>() + size_of::<Vec<Entry>>());
        self.chunks.values().map(|chunk| chunk.capacity() * size_of::<Entry>() + chunk_overhead).sum()
    }

    /// The value of a block.
    pub fn get(&self, block: BlockNo) -> Option<Value> {
        let (_, chunk) = self.chunks.range(chunk_base(block)..=block).next_back()?;
        let index = chunk.binary_search_by_key(&(block.0 as u32), |entry| entry.block).ok()?;
        Some(chunk[index].value)
    }

    /// The value of a block, mutable.
    pub fn get_mut(&mut self, block: BlockNo) -> Option<&mut Value> {
        let (_, chunk) = self.chunks.range_mut(chunk_base(block)..=block).next_back()?;
        let index = chunk.binary_search_by_key(&(block.0 as u32), |entry| entry.block).ok()?;
        Some(&mut chunk[index].value)
    }

    /// Adds the entry of a block that has none.
    pub fn insert(&mut self, block: BlockNo, value: Value) {
        let key = self.chunks.range(chunk_base(block)..=block).next_back().map_or(chunk_base(block), |(key, _)| *key);
        let chunk = self.chunks.entry(key).or_default();
        let search = chunk.binary_search_by_key(&(block.0 as u32), |entry| entry.block);
        let index = search.expect_err("a block has one entry");
        if chunk.len() == chunk.capacity() {
            chunk.reserve_exact(CHUNK_ENTRIES_STEP);
        }
        chunk.insert(index, Entry { block: block.0 as u32, value });
        self.entry_count += 1;
        if chunk.len() > CHUNK_ENTRIES_MAX {
            // Entries added in ascending order leave nearly full chunks.
            let split =
                if index + 1 == chunk.len() { CHUNK_ENTRIES_MAX - CHUNK_ENTRIES_STEP } else { CHUNK_ENTRIES_MAX / 2 };
            let right = chunk.split_off(split);
            chunk.shrink_to(split + CHUNK_ENTRIES_STEP);
            self.chunks.insert(with_lower(chunk_base(block), right[0].block), right);
        }
    }

    /// Adds entries in ascending order of block to an empty index.
    ///
    /// # Panics
    /// If the index is not empty or the order is not ascending.
    pub fn bulk_load(&mut self, entries: impl Iterator<Item = (BlockNo, Value)>) {
        assert!(self.entry_count == 0, "bulk load needs an empty index");
        let (mut chunks, mut chunk, mut first, mut last) = (Vec::new(), Vec::new(), BlockNo::ZERO, None);
        for (block, value) in entries {
            assert!(last.replace(block).is_none_or(|last| last < block), "block {block} is out of order");
            if chunk.len() == CHUNK_ENTRIES_MAX - CHUNK_ENTRIES_STEP || chunk_base(block) != chunk_base(first) {
                chunk.shrink_to_fit();
                chunks.push((first, std::mem::take(&mut chunk)));
            }
            if chunk.is_empty() {
                chunk.reserve_exact(CHUNK_ENTRIES_MAX - CHUNK_ENTRIES_STEP);
                first =
                    if chunks.is_empty() || chunk_base(block) != chunk_base(first) { chunk_base(block) } else { block };
            }
            chunk.push(Entry { block: block.0 as u32, value });
            self.entry_count += 1;
        }
        chunk.shrink_to_fit();
        chunks.push((first, chunk));
        self.chunks = chunks.into_iter().filter(|(_, chunk)| !chunk.is_empty()).collect();
    }

    /// Removes and returns the value of a block.
    pub fn remove(&mut self, block: BlockNo) -> Option<Value> {
        let (key, chunk) = self.chunks.range_mut(chunk_base(block)..=block).next_back()?;
        let key = *key;
        let index = chunk.binary_search_by_key(&(block.0 as u32), |entry| entry.block).ok()?;
        let entry = chunk.remove(index);
        self.entry_count -= 1;
        self.shrink_or_merge(key);
        Some(entry.value)
    }

    /// Removes the entries of these blocks, and passes their values to `removed` in order.
    pub fn remove_range(&mut self, blocks: Range<BlockNo>, mut removed: impl FnMut(Value)) {
        let keys: Vec<BlockNo> =
            self.chunks.range(self.first_key(blocks.start)..blocks.end).map(|(key, _)| *key).collect();
        for key in keys {
            let Some(chunk) = self.chunks.get_mut(&key) else { continue };
            let entries = entry_range(chunk_base(key), chunk, &blocks);
            self.entry_count -= entries.len();
            chunk.drain(entries).for_each(|entry| removed(entry.value));
            self.shrink_or_merge(key);
        }
    }

    /// The values of these blocks, mutable, in order.
    pub fn values_mut(&mut self, blocks: Range<BlockNo>) -> impl Iterator<Item = &mut Value> {
        let first = self.first_key(blocks.start);
        self.chunks.range_mut(first..blocks.end.max(first)).flat_map(move |(key, chunk)| {
            let entries = entry_range(chunk_base(*key), chunk, &blocks);
            chunk[entries].iter_mut().map(|entry| &mut entry.value)
        })
    }

    /// All entries, in order.
    pub fn iter(&self) -> impl Iterator<Item = (BlockNo, Value)> + '_ {
        self.chunks.iter().flat_map(|(key, chunk)| entries_of(*key, chunk))
    }

    /// The entries from a block on, in order.
    pub fn iter_from(&self, from: BlockNo) -> impl Iterator<Item = (BlockNo, Value)> + '_ {
        let chunks = self.chunks.range(self.first_key(from)..);
        chunks.flat_map(|(key, chunk)| entries_of(*key, chunk)).skip_while(move |(block, _)| *block < from)
    }

    /// Removes the entries that `keep` rejects from the first chunk at or after `from`. Returns the block at which to
    /// continue; `None` at the end.
    pub fn retain_in_chunk(&mut self, from: BlockNo, keep: impl Fn(Value) -> bool) -> Option<BlockNo> {
        let key = *self.chunks.range(from..).next()?.0;
        let next = self.chunks.range(key.next()..).next().map(|(key, _)| *key);
        let chunk = self.chunks.get_mut(&key).expect("the chunk exists");
        let before = chunk.len();
        chunk.retain(|entry| keep(entry.value));
        self.entry_count -= before - chunk.len();
        if chunk.len() < before {
            self.shrink_or_merge(key);
        }
        next
    }

    /// Key of the first chunk that may hold a block at or after `from`.
    fn first_key(&self, from: BlockNo) -> BlockNo {
        self.chunks.range(..=from).next_back().map_or(from, |(key, _)| *key)
    }

    /// Releases unused capacity of a chunk, or merges a small chunk into the one before it.
    fn shrink_or_merge(&mut self, key: BlockNo) {
        let chunk = self.chunks.get_mut(&key).expect("the changed chunk exists");
        let len = chunk.len();
        if len >= CHUNK_ENTRIES_MIN {
            chunk.shrink_to(len + CHUNK_ENTRIES_STEP);
            return;
        }
        if len == 0 {
            self.chunks.remove(&key);
            return;
        }
        let mut before = self.chunks.range_mut(chunk_base(key)..key);
        if let Some((_, left)) = before.next_back()
            && left.len() + len <= CHUNK_ENTRIES_MAX - CHUNK_ENTRIES_STEP
        {
            left.reserve_exact(len);
            let left_key = *self.chunks.range(..key).next_back().expect("the chunk exists").0;
            let mut entries = self.chunks.remove(&key).expect("the chunk exists");
            self.chunks.get_mut(&left_key).expect("the chunk exists").append(&mut entries);
        } else {
            self.chunks.get_mut(&key).expect("the chunk exists").shrink_to(len + CHUNK_ENTRIES_STEP);
        }
    }
}

/// The entries of a chunk.
fn entries_of(key: BlockNo, chunk: &[Entry]) -> impl Iterator<Item = (BlockNo, Value)> + '_ {
    let base = chunk_base(key);
    chunk.iter().map(move |entry| (with_lower(base, entry.block), entry.value))
}

/// Indexes of the chunk's entries that belong to `blocks`.
fn entry_range(base: BlockNo, chunk: &[Entry], blocks: &Range<BlockNo>) -> Range<usize> {
    let index_of = |bound: BlockNo| chunk.partition_point(|entry| with_lower(base, entry.block) < bound);
    index_of(blocks.start)..index_of(blocks.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejected_entries_are_removed_chunk_by_chunk() {
        let mut index = BlockIndex::default();
        (0..3_000).for_each(|block| index.insert(BlockNo(block), [block as u32; 3]));
        let (mut next, mut chunks) = (Some(BlockNo::ZERO), 0);
        while let Some(from) = next {
            next = index.retain_in_chunk(from, |[word, ..]| word % 10 == 0);
            chunks += 1;
        }
        assert!(chunks > 3, "{chunks} chunks");
        let left: Vec<u64> = index.iter().map(|(block, _)| block.0).collect();
        assert_eq!(left, (0..3_000).step_by(10).collect::<Vec<_>>());
        assert_eq!(index.len(), 300);
        assert_eq!(index.retain_in_chunk(BlockNo(3_000), |_| false), None);
    }

    #[test]
    fn values_of_a_range_are_changed_in_order() {
        let mut index = BlockIndex::default();
        (0..2_000).for_each(|block| index.insert(BlockNo(block * 3), [block as u32; 3]));
        let values: Vec<u32> = index.values_mut(BlockNo(1_000)..BlockNo(1_010)).map(|value| value[0]).collect();
        assert_eq!(values, [334, 335, 336]);
        assert_eq!(index.values_mut(BlockNo(9_000)..BlockNo(9_100)).count(), 0);
        assert_eq!(index.values_mut(BlockNo(7)..BlockNo(7)).count(), 0);
        assert_eq!(index.iter_from(BlockNo(5_996)).map(|(block, _)| block.0).collect::<Vec<_>>(), [5_997]);
    }
}
