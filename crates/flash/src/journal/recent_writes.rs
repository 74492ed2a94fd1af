//! Recent writes: a ring per volume of the blocks destaged last, with their checksums. They detect a backing that was
//! changed outside the cache.
//!
//! The journal records the entries that are pending at a commit, not entries that were added and removed between two
//! commits. So a replayed ring may still contain an entry that this ring has evicted. Every eviction therefore needs a
//! record. Without one, the next write of the block would make the checksum of the replayed entry wrong. That write
//! finds no entry to remove, so it writes no record.
//!
//! Entries of a region that was dirty at a crash are unproven: the block may have been written again. They are kept
//! apart until the block has been read from the backing.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use crate::format::journal::Record;
use crate::number::BlockNo;

/// Maximum number of entries per volume.
pub const ENTRIES_MAX: usize = 256;
/// Maximum number of entries of zeroed blocks per volume: a guest that discards all free space must not displace all
/// written data.
const ZEROES_MAX: usize = 64;

#[derive(Default)]
struct VolumeRing {
    blocks: VecDeque<(BlockNo, u32)>,
    /// Number of entries at the end that have no record yet.
    unsaved: usize,
    /// Blocks evicted from the ring that a durable record may still list. The value is true once a commit has taken the
    /// record of the eviction, which is durable when the next commit begins.
    evicted: BTreeMap<BlockNo, bool>,
    /// Unproven entries, all with a record.
    unproven: BTreeMap<BlockNo, u32>,
}

impl VolumeRing {
    /// True when the block has an entry with a record.
    fn is_saved(&self, block: BlockNo) -> bool {
        self.unproven.contains_key(&block)
            || self.evicted.contains_key(&block)
            || self.blocks.iter().take(self.blocks.len() - self.unsaved).any(|(saved, _)| *saved == block)
    }
}

/// The recent writes of all volumes.
#[derive(Default)]
pub struct RecentWrites {
    volumes: BTreeMap<u16, VolumeRing>,
    entries_max: usize,
    blocks: usize,
    /// Checksum of a block of zeroes.
    zeroes: u32,
}

impl RecentWrites {
    /// Sets the maximum number of entries over all volumes, and the checksum of a block of zeroes.
    pub fn set_limit(&mut self, entries_max: usize, zeroes: u32) {
        (self.entries_max, self.zeroes) = (entries_max, zeroes);
    }

    /// Adds a destaged block.
    pub fn push(&mut self, volume: u16, block: BlockNo, checksum: u32) {
        let saved = self.volumes.get(&volume).is_some_and(|ring| ring.is_saved(block));
        self.remove(volume, block.single());
        let ring = self.volumes.entry(volume).or_default();
        if saved {
            ring.evicted.insert(block, false);
        }
        if self.blocks >= self.entries_max && ring.blocks.is_empty() {
            return;
        }
        ring.blocks.push_back((block, checksum));
        ring.unsaved += 1;
        self.blocks += 1;
        let zeroes = |(_, sum): &(BlockNo, u32)| *sum == self.zeroes;
        let has_many = checksum == self.zeroes && ring.blocks.iter().filter(|entry| zeroes(entry)).count() > ZEROES_MAX;
        if has_many || ring.blocks.len() > ENTRIES_MAX || self.blocks > self.entries_max {
            let evicted_at = if has_many { ring.blocks.iter().position(zeroes).unwrap_or(0) } else { 0 };
            let saved = ring.blocks.len() - ring.unsaved;
            let (oldest, _) = ring.blocks.remove(evicted_at).expect("an entry was just added");
            self.blocks -= 1;
            if evicted_at >= saved {
                ring.unsaved -= 1;
            } else {
                ring.evicted.insert(oldest, false);
            }
        }
    }

    /// True when a durable record may list one of these blocks.
    pub fn may_be_durable(&self, volume: u16, blocks: &Range<BlockNo>) -> bool {
        self.volumes.get(&volume).is_some_and(|ring| {
            ring.blocks.iter().any(|(block, _)| blocks.contains(block))
                || ring.evicted.range(blocks.clone()).next().is_some()
                || ring.unproven.range(blocks.clone()).next().is_some()
        })
    }

    /// Removes the entries of these blocks. Returns the records of the removal.
    pub fn remove(&mut self, volume: u16, blocks: Range<BlockNo>) -> Vec<Record> {
        let Some(ring) = self.volumes.get_mut(&volume) else { return Vec::new() };
        let mut records = Vec::new();
        let mut index = 0;
        while let Some((block, _)) = ring.blocks.get(index).copied() {
            if !blocks.contains(&block) {
                index += 1;
                continue;
            }
            if index >= ring.blocks.len() - ring.unsaved {
                ring.unsaved -= 1;
            }
            ring.blocks.remove(index);
            self.blocks -= 1;
            records.push(Record::Undestaged { volume, block });
        }
        let evicted: Vec<_> = ring.evicted.range(blocks.clone()).map(|(block, _)| *block).collect();
        for block in evicted {
            ring.evicted.remove(&block);
            records.push(Record::Undestaged { volume, block });
        }
        records.extend(self.drop_unproven(volume, &blocks));
        records
    }

    /// Removes the unproven entries of these blocks. Returns the records of the removal.
    pub fn drop_unproven(&mut self, volume: u16, blocks: &Range<BlockNo>) -> Vec<Record> {
        let Some(ring) = self.volumes.get_mut(&volume) else { return Vec::new() };
        let unproven: Vec<_> = ring.unproven.range(blocks.clone()).map(|(block, _)| *block).collect();
        ring.unproven.retain(|block, _| !blocks.contains(block));
        self.blocks -= unproven.len();
        unproven.into_iter().map(|block| Record::Undestaged { volume, block }).collect()
    }

    /// Marks the entries of these blocks as unproven, after a replay.
    pub fn mark_unproven(&mut self, volume: u16, blocks: &Range<BlockNo>) {
        let Some(ring) = self.volumes.get_mut(&volume) else { return };
        assert!(ring.unsaved == 0, "replayed entries have records");
        ring.unproven.extend(ring.blocks.iter().copied().filter(|(block, _)| blocks.contains(block)));
        ring.blocks.retain(|(block, _)| !blocks.contains(block));
    }

    /// True if any of these blocks has an unproven entry.
    pub fn has_unproven(&self, volume: u16, blocks: &Range<BlockNo>) -> bool {
        self.volumes.get(&volume).is_some_and(|ring| ring.unproven.range(blocks.clone()).next().is_some())
    }

    /// The blocks with unproven entries.
    pub fn unproven(&self, volume: u16) -> Vec<BlockNo> {
        self.volumes.get(&volume).map(|ring| ring.unproven.keys().copied().collect()).unwrap_or_default()
    }

    /// Takes the pending records, which count as written from now on.
    pub fn take_unsaved(&mut self) -> Vec<Record> {
        let mut records = Vec::new();
        for (volume, ring) in &mut self.volumes {
            ring.evicted.retain(|_, recorded| !*recorded);
            for (block, recorded) in &mut ring.evicted {
                *recorded = true;
                records.push(Record::Undestaged { volume: *volume, block: *block });
            }
            let from = ring.blocks.len() - std::mem::take(&mut ring.unsaved);
            let record = |(block, checksum): &(BlockNo, u32)| Record::Destaged {
                volume: *volume,
                block: *block,
                checksum: *checksum,
            };
            records.extend(ring.blocks.iter().skip(from).map(record));
        }
        records
    }

    /// The number of pending records.
    pub fn unsaved(&self) -> usize {
        self.volumes
            .values()
            .map(|ring| ring.unsaved + ring.evicted.values().filter(|recorded| !**recorded).count())
            .sum()
    }

    /// The records of all entries that have one, for a checkpoint. The other entries follow with a commit.
    pub fn records(&self) -> impl Iterator<Item = Record> + '_ {
        self.volumes.iter().flat_map(|(volume, ring)| {
            let saved = ring.blocks.iter().take(ring.blocks.len() - ring.unsaved).copied();
            let unproven = ring.unproven.iter().map(|(block, checksum)| (*block, *checksum));
            unproven.chain(saved).map(|(block, checksum)| Record::Destaged { volume: *volume, block, checksum })
        })
    }

    /// A volume's entries without unproven ones, oldest first.
    pub fn of_volume(&self, volume: u16) -> Vec<(BlockNo, u32)> {
        self.volumes.get(&volume).map(|ring| ring.blocks.iter().copied().collect()).unwrap_or_default()
    }

    /// Drops the entries of a removed volume.
    pub fn remove_volume(&mut self, volume: u16) {
        if let Some(ring) = self.volumes.remove(&volume) {
            self.blocks -= ring.blocks.len() + ring.unproven.len();
        }
    }

    /// Marks all entries as recorded, after a replay.
    pub fn mark_all_saved(&mut self) {
        for ring in self.volumes.values_mut() {
            ring.unsaved = 0;
            ring.evicted.clear();
        }
    }

    /// The number of entries of all volumes.
    pub fn len(&self) -> usize {
        self.blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZEROES: u32 = 7;

    #[test]
    fn zeroes_displace_zeroes_and_leave_written_data() {
        let mut recent_writes = RecentWrites::default();
        recent_writes.set_limit(1_000, ZEROES);
        (0..100).for_each(|block| recent_writes.push(3, BlockNo(block), 1_000 + block as u32));
        (100..1_100).for_each(|block| recent_writes.push(3, BlockNo(block), ZEROES));
        let all = recent_writes.of_volume(3);
        assert_eq!(all.iter().filter(|(block, _)| *block < BlockNo(100)).count(), 100);
        assert_eq!((all.len(), all.last()), (100 + ZEROES_MAX, Some(&(BlockNo(1_099), ZEROES))));
    }

    #[test]
    fn newest_blocks_are_listed_once_and_evictions_have_records() {
        let mut recent_writes = RecentWrites::default();
        recent_writes.set_limit(1_000, ZEROES);
        (0..300).for_each(|block| recent_writes.push(3, BlockNo(block % 280), block as u32));
        let all = recent_writes.of_volume(3);
        assert_eq!((all.len(), all[255], recent_writes.unsaved()), (256, (BlockNo(19), 299), 256));
        assert_eq!(recent_writes.take_unsaved().len(), 256);
        recent_writes.push(3, BlockNo(19), 1);
        // Its durable entry falls out, and a new one is added.
        assert_eq!((recent_writes.of_volume(3).len(), recent_writes.unsaved(), recent_writes.len()), (256, 2, 256));
        assert_eq!(recent_writes.remove(3, BlockNo(18).run(2)).len(), 3);
        assert_eq!((recent_writes.unsaved(), recent_writes.take_unsaved()), (0, vec![]));
    }

    #[test]
    fn unproven_entries_are_durable_but_not_listed() {
        let mut recent_writes = RecentWrites::default();
        recent_writes.set_limit(1_000, ZEROES);
        (0..6).for_each(|block| recent_writes.push(3, BlockNo(block), 100 + block as u32));
        recent_writes.mark_all_saved();
        recent_writes.mark_unproven(3, &(BlockNo(1)..BlockNo(5)));
        let listed: Vec<_> = recent_writes.of_volume(3).into_iter().map(|(block, _)| block.0).collect();
        assert_eq!((listed, recent_writes.records().count(), recent_writes.len()), (vec![0, 5], 6, 6));
        assert!(recent_writes.may_be_durable(3, &BlockNo(2).single()));
        // One block is read from the backing, one is written.
        recent_writes.push(3, BlockNo(1), 7_001);
        let removed = recent_writes.remove(3, BlockNo(2).single());
        assert_eq!(removed, [Record::Undestaged { volume: 3, block: BlockNo(2) }]);
        assert_eq!(recent_writes.unproven(3), [3, 4].map(BlockNo));
        assert!(
            recent_writes.has_unproven(3, &BlockNo(4).run(9)) && !recent_writes.has_unproven(3, &BlockNo(5).run(9))
        );
        let expected = [
            Record::Undestaged { volume: 3, block: BlockNo(1) },
            Record::Destaged { volume: 3, block: BlockNo(1), checksum: 7_001 },
        ];
        assert_eq!((recent_writes.take_unsaved(), recent_writes.len()), (expected.to_vec(), 5));
        recent_writes.remove_volume(3);
        assert_eq!(recent_writes.len(), 0);
    }

    #[test]
    fn replayed_ring_equals_the_original_despite_removals() {
        let new = || {
            let mut recent_writes = RecentWrites::default();
            recent_writes.set_limit(1_000, ZEROES);
            recent_writes
        };
        let (mut original, mut replayed) = (new(), new());
        let mut random: u64 = 1;
        for _ in 0..5_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let block = BlockNo(random >> 33 & 511);
            let mut records = Vec::new();
            match random >> 55 & 63 {
                0 => records = original.take_unsaved(),
                1..6 => records = original.remove(3, block.run(4)),
                _ => original.push(3, block, if random >> 20 & 1 == 0 { ZEROES } else { (random >> 20) as u32 }),
            }
            for record in &records {
                match record {
                    Record::Destaged { volume, block, checksum } => replayed.push(*volume, *block, *checksum),
                    Record::Undestaged { volume, block } => drop(replayed.remove(*volume, block.single())),
                    other => panic!("{other:?}"),
                }
            }
            if random >> 55 & 63 == 0 {
                assert_eq!(original.of_volume(3), replayed.of_volume(3));
            }
            let checked = if random >> 40 & 31 == 0 { replayed.of_volume(3) } else { Vec::new() };
            for (block, _) in checked {
                assert!(
                    original.may_be_durable(3, &block.single()),
                    "a write of block {block} would record no removal"
                );
            }
        }
    }
}
