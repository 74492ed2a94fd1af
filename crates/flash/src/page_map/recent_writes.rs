//! Recent writes: a ring per volume of the blocks destaged last, with their checksums. They detect a backing that was
//! changed outside the cache.
//!
//! The journal records the entries that are pending at a commit, not entries that were added and removed between two
//! commits. So a replayed ring may still contain an entry that this ring has evicted. Every eviction therefore needs a
//! record. Without one, the next write of the block would make the checksum of the replayed entry wrong. That write
//! finds no entry to remove, so it writes no record.
//!
//! Entries of a region that was dirty at a crash are unproven: the block may have been written again. A comparison with
//! the backing leaves them out until the block has been read from the backing again. They keep their position in the
//! ring: a comparison takes the newest entries, and a block that was only read again is not new.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use crate::format::journal::JournalRecord;
use crate::number::BlockNo;

/// Maximum number of entries per volume.
pub const ENTRIES_MAX: usize = 256;
/// Maximum number of entries of zeroed blocks per volume: a guest that discards all free space must not displace all
/// written data.
const ZERO_ENTRIES_MAX: usize = 64;

/// A recent write of one block.
struct Entry {
    block: BlockNo,
    /// The block's checksum with seed 0.
    checksum: u32,
    /// A commit has taken a record of the block.
    has_record: bool,
    /// The checksum has no record yet.
    is_pending: bool,
    /// The checksum comes from a read of the backing after a crash; the block was destaged earlier.
    was_reread: bool,
    /// The region was dirty at a crash, and the block has not been read since.
    is_unproven: bool,
}

impl Entry {
    /// The journal record of the entry.
    fn record(&self, volume_number: u16) -> JournalRecord {
        JournalRecord::RecentWrite {
            volume_number,
            block: self.block,
            checksum: self.checksum,
            was_reread: self.was_reread,
        }
    }
}

/// The recent writes of one volume.
#[derive(Default)]
struct VolumeRing {
    /// Oldest first.
    entries: VecDeque<Entry>,
    /// Blocks evicted from the ring to which a durable record may still refer. The value is true once a commit has
    /// taken the record of the eviction, which is durable when the next commit begins.
    evicted: BTreeMap<BlockNo, bool>,
    /// Number of pending entries. It is counted, because each flush of a destage reads it.
    pending_entries: usize,
}

impl VolumeRing {
    /// Removes the entry at this index. A record of it needs a record of the eviction.
    fn evict(&mut self, index: usize) {
        let entry = self.entries.remove(index).expect("the index is below the length");
        self.pending_entries -= usize::from(entry.is_pending);
        if entry.has_record {
            self.evicted.insert(entry.block, false);
        }
    }

    /// The index of the block's entry.
    fn index_of(&self, block: BlockNo) -> Option<usize> {
        self.entries.iter().position(|entry| entry.block == block)
    }

    /// The number of entries with this checksum.
    fn count_with_checksum(&self, checksum: u32) -> usize {
        self.entries.iter().filter(|entry| entry.checksum == checksum).count()
    }
}

/// The recent writes of all volumes.
#[derive(Default)]
pub struct RecentWrites {
    /// The ring of each volume, by volume number.
    volume_rings: BTreeMap<u16, VolumeRing>,
    /// Maximum number of entries over all volumes.
    entries_max: usize,
    /// Number of entries over all volumes.
    entry_count: usize,
    /// Checksum of a block of zeroes.
    zero_checksum: u32,
}

impl RecentWrites {
    /// Sets the maximum number of entries over all volumes, and the checksum of a block of zeroes.
    pub fn set_limit(&mut self, entries_max: usize, zero_checksum: u32) {
        (self.entries_max, self.zero_checksum) = (entries_max, zero_checksum);
    }

    /// Adds a destaged block as the newest entry.
    pub fn push(&mut self, volume_number: u16, block: BlockNo, checksum: u32) {
        let ring = self.volume_rings.entry(volume_number).or_default();
        if let Some(index) = ring.index_of(block) {
            ring.evict(index);
            self.entry_count -= 1;
        }
        if self.entry_count >= self.entries_max && ring.entries.is_empty() {
            return;
        }
        let (has_record, was_reread, is_unproven) = (false, false, false);
        ring.entries.push_back(Entry { block, checksum, has_record, is_pending: true, was_reread, is_unproven });
        ring.pending_entries += 1;
        self.entry_count += 1;
        let has_excess_zeroes =
            checksum == self.zero_checksum && ring.count_with_checksum(self.zero_checksum) > ZERO_ENTRIES_MAX;
        if has_excess_zeroes || ring.entries.len() > ENTRIES_MAX || self.entry_count > self.entries_max {
            let is_zeroes = |entry: &Entry| entry.checksum == self.zero_checksum;
            ring.evict(if has_excess_zeroes { ring.entries.iter().position(is_zeroes).unwrap_or(0) } else { 0 });
            self.entry_count -= 1;
        }
    }

    /// Sets the checksum of a block that was read from the backing again. Its entry keeps its age. A block without an
    /// entry becomes the oldest entry if there is room.
    pub fn record_reread(&mut self, volume_number: u16, block: BlockNo, checksum: u32) {
        let ring = self.volume_rings.entry(volume_number).or_default();
        let index = ring.index_of(block);
        let has_max_zeroes =
            checksum == self.zero_checksum && ring.count_with_checksum(self.zero_checksum) >= ZERO_ENTRIES_MAX;
        let is_full = self.entry_count >= self.entries_max || ring.entries.len() >= ENTRIES_MAX;
        match index {
            Some(index) if has_max_zeroes && ring.entries[index].checksum != checksum => {
                ring.evict(index);
                self.entry_count -= 1;
            }
            Some(index) => {
                let entry = &mut ring.entries[index];
                ring.pending_entries += usize::from(!entry.is_pending);
                (entry.checksum, entry.is_pending, entry.is_unproven) = (checksum, true, false);
                // An entry without a record is not marked as reread: its first record adds it at its position.
                entry.was_reread |= entry.has_record;
            }
            None if is_full || has_max_zeroes => {}
            None => {
                let (has_record, is_unproven) = (false, false);
                let entry = Entry { block, checksum, has_record, is_pending: true, was_reread: true, is_unproven };
                ring.entries.push_front(entry);
                ring.pending_entries += 1;
                self.entry_count += 1;
            }
        }
    }

    /// True when a durable record may refer to one of these blocks.
    pub fn may_be_durable(&self, volume_number: u16, blocks: &Range<BlockNo>) -> bool {
        self.volume_rings.get(&volume_number).is_some_and(|ring| {
            ring.entries.iter().any(|entry| blocks.contains(&entry.block))
                || ring.evicted.range(blocks.clone()).next().is_some()
        })
    }

    /// Removes the entries of these blocks. Returns the records of the removal.
    pub fn remove(&mut self, volume_number: u16, blocks: Range<BlockNo>) -> Vec<JournalRecord> {
        let mut records = self.remove_entries(volume_number, |entry| blocks.contains(&entry.block));
        let Some(ring) = self.volume_rings.get_mut(&volume_number) else { return records };
        let evicted = ring.evicted.extract_if(blocks, |_, _| true);
        records.extend(evicted.map(|(block, _)| JournalRecord::RecentWriteRemoved { volume_number, block }));
        records
    }

    /// Removes the unproven entries of these blocks. Returns the records of the removal.
    pub fn drop_unproven(&mut self, volume_number: u16, blocks: &Range<BlockNo>) -> Vec<JournalRecord> {
        self.remove_entries(volume_number, |entry| entry.is_unproven && blocks.contains(&entry.block))
    }

    /// Removes the entries for which `is_removed` is true. Returns the records of the removal.
    fn remove_entries(&mut self, volume_number: u16, is_removed: impl Fn(&Entry) -> bool) -> Vec<JournalRecord> {
        let Some(ring) = self.volume_rings.get_mut(&volume_number) else { return Vec::new() };
        let mut records = Vec::new();
        ring.entries.retain(|entry| {
            if is_removed(entry) {
                records.push(JournalRecord::RecentWriteRemoved { volume_number, block: entry.block });
                ring.pending_entries -= usize::from(entry.is_pending);
            }
            !is_removed(entry)
        });
        self.entry_count -= records.len();
        records
    }

    /// Marks the entries of these blocks as unproven, after a replay.
    pub fn mark_unproven(&mut self, volume_number: u16, blocks: &Range<BlockNo>) {
        let Some(ring) = self.volume_rings.get_mut(&volume_number) else { return };
        for entry in ring.entries.iter_mut().filter(|entry| blocks.contains(&entry.block)) {
            assert!(!entry.is_pending, "replayed entries have records");
            entry.is_unproven = true;
        }
    }

    /// True if any of these blocks has an unproven entry.
    pub fn has_unproven(&self, volume_number: u16, blocks: &Range<BlockNo>) -> bool {
        let is_unproven = |entry: &Entry| entry.is_unproven && blocks.contains(&entry.block);
        self.volume_rings.get(&volume_number).is_some_and(|ring| ring.entries.iter().any(is_unproven))
    }

    /// A volume's unproven entries, oldest first.
    pub fn unproven(&self, volume_number: u16) -> Vec<(BlockNo, u32)> {
        let Some(ring) = self.volume_rings.get(&volume_number) else { return Vec::new() };
        ring.entries.iter().filter(|entry| entry.is_unproven).map(|entry| (entry.block, entry.checksum)).collect()
    }

    /// Takes the pending records, which count as written from now on.
    pub fn take_pending(&mut self) -> Vec<JournalRecord> {
        let mut records = Vec::new();
        for (volume, ring) in &mut self.volume_rings {
            ring.evicted.retain(|_, recorded| !*recorded);
            for (block, recorded) in &mut ring.evicted {
                *recorded = true;
                records.push(JournalRecord::RecentWriteRemoved { volume_number: *volume, block: *block });
            }
            let is_reread = |entry: &&Entry| entry.is_pending && entry.was_reread;
            let is_new = |entry: &&Entry| entry.is_pending && !entry.was_reread;
            // A replay puts each block that was read again before the others, so the oldest one comes last here.
            records.extend(ring.entries.iter().rev().filter(is_reread).map(|entry| entry.record(*volume)));
            records.extend(ring.entries.iter().filter(is_new).map(|entry| entry.record(*volume)));
            for entry in &mut ring.entries {
                entry.has_record |= std::mem::take(&mut entry.is_pending);
            }
            ring.pending_entries = 0;
        }
        records
    }

    /// The number of pending records.
    pub fn pending_count(&self) -> usize {
        let evicted = |ring: &VolumeRing| ring.evicted.values().filter(|recorded| !**recorded).count();
        self.volume_rings.values().map(|ring| ring.pending_entries + evicted(ring)).sum()
    }

    /// The records of all entries that have one, for a checkpoint: oldest first, so that a replay in this order gives
    /// each entry its age. The other entries follow with a commit.
    pub fn records(&self) -> impl Iterator<Item = JournalRecord> + '_ {
        self.volume_rings.iter().flat_map(|(volume, ring)| {
            let recorded = ring.entries.iter().filter(|entry| entry.has_record);
            recorded.map(|Entry { block, checksum, .. }| JournalRecord::RecentWrite {
                volume_number: *volume,
                block: *block,
                checksum: *checksum,
                was_reread: false,
            })
        })
    }

    /// A volume's entries except unproven ones, oldest first.
    pub fn proven(&self, volume_number: u16) -> Vec<(BlockNo, u32)> {
        let Some(ring) = self.volume_rings.get(&volume_number) else { return Vec::new() };
        ring.entries.iter().filter(|entry| !entry.is_unproven).map(|entry| (entry.block, entry.checksum)).collect()
    }

    /// A volume's blocks with entries, except unproven ones and zeroes.
    pub fn nonzero(&self, volume_number: u16) -> impl Iterator<Item = BlockNo> + '_ {
        let is_nonzero = |entry: &&Entry| !entry.is_unproven && entry.checksum != self.zero_checksum;
        let entries = self.volume_rings.get(&volume_number).into_iter().flat_map(|ring| &ring.entries);
        entries.filter(is_nonzero).map(|entry| entry.block)
    }

    /// True if a volume has an entry that a commit has recorded, unproven ones and zeroes excluded.
    pub fn has_recorded_content(&self, volume_number: u16) -> bool {
        let is_recorded = |entry: &Entry| entry.has_record && !entry.is_pending && !entry.is_unproven;
        let ring = self.volume_rings.get(&volume_number);
        ring.is_some_and(|ring| {
            ring.entries.iter().any(|entry| is_recorded(entry) && entry.checksum != self.zero_checksum)
        })
    }

    /// Drops the entries of a removed volume.
    pub fn remove_volume(&mut self, volume_number: u16) {
        if let Some(ring) = self.volume_rings.remove(&volume_number) {
            self.entry_count -= ring.entries.len();
        }
    }

    /// Marks all entries as recorded, after a replay.
    pub fn mark_all_recorded(&mut self) {
        for ring in self.volume_rings.values_mut() {
            ring.evicted.clear();
            ring.pending_entries = 0;
            for entry in &mut ring.entries {
                (entry.has_record, entry.is_pending) = (true, false);
            }
        }
    }

    /// The number of entries of all volumes.
    pub fn len(&self) -> usize {
        self.entry_count
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
        let listed = recent_writes.proven(3);
        assert_eq!(listed.iter().filter(|(block, _)| *block < BlockNo(100)).count(), 100);
        assert_eq!((listed.len(), listed.last()), (100 + ZERO_ENTRIES_MAX, Some(&(BlockNo(1_099), ZEROES))));
    }

    #[test]
    fn newest_blocks_are_listed_once_and_evictions_have_records() {
        let mut recent_writes = RecentWrites::default();
        recent_writes.set_limit(1_000, ZEROES);
        (0..300).for_each(|block| recent_writes.push(3, BlockNo(block % 280), block as u32));
        let listed = recent_writes.proven(3);
        assert_eq!((listed.len(), listed[255], recent_writes.pending_count()), (256, (BlockNo(19), 299), 256));
        assert_eq!(recent_writes.take_pending().len(), 256);
        recent_writes.push(3, BlockNo(19), 1);
        // Its durable entry falls out, and a new one is added.
        assert_eq!((recent_writes.proven(3).len(), recent_writes.pending_count(), recent_writes.len()), (256, 2, 256));
        assert_eq!(recent_writes.remove(3, BlockNo(18).range_of_len(2)).len(), 3);
        assert_eq!((recent_writes.pending_count(), recent_writes.take_pending()), (0, vec![]));
    }

    #[test]
    fn unproven_entries_are_durable_but_left_out() {
        let mut recent_writes = RecentWrites::default();
        recent_writes.set_limit(1_000, ZEROES);
        (0..6).for_each(|block| recent_writes.push(3, BlockNo(block), 100 + block as u32));
        recent_writes.mark_all_recorded();
        recent_writes.mark_unproven(3, &(BlockNo(1)..BlockNo(5)));
        let listed: Vec<_> = recent_writes.proven(3).into_iter().map(|(block, _)| block.0).collect();
        assert_eq!((listed, recent_writes.records().count(), recent_writes.len()), (vec![0, 5], 6, 6));
        assert!(recent_writes.may_be_durable(3, &BlockNo(2).single()));
        // One block is read from the backing, one is written.
        recent_writes.record_reread(3, BlockNo(1), 7_001);
        let removed = recent_writes.remove(3, BlockNo(2).single());
        assert_eq!(removed, [JournalRecord::RecentWriteRemoved { volume_number: 3, block: BlockNo(2) }]);
        assert_eq!(recent_writes.unproven(3), [3, 4].map(|block| (BlockNo(block), 100 + block as u32)));
        assert!(
            recent_writes.has_unproven(3, &BlockNo(4).range_of_len(9))
                && !recent_writes.has_unproven(3, &BlockNo(5).range_of_len(9))
        );
        let expected =
            JournalRecord::RecentWrite { volume_number: 3, block: BlockNo(1), checksum: 7_001, was_reread: true };
        assert_eq!((recent_writes.take_pending(), recent_writes.len()), (vec![expected], 5));
        let listed: Vec<_> = recent_writes.proven(3).into_iter().map(|(block, _)| block.0).collect();
        assert_eq!(listed, [0, 1, 5], "the block keeps its age");
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
                0 => records = original.take_pending(),
                1..6 => records = original.remove(3, block.range_of_len(4)),
                6..9 => {
                    original.record_reread(3, block, if random >> 20 & 1 == 0 { ZEROES } else { (random >> 21) as u32 })
                }
                _ => original.push(3, block, if random >> 20 & 1 == 0 { ZEROES } else { (random >> 20) as u32 }),
            }
            for record in &records {
                match record {
                    JournalRecord::RecentWrite { volume_number: volume, block, checksum, was_reread: true } => {
                        replayed.record_reread(*volume, *block, *checksum);
                    }
                    JournalRecord::RecentWrite { volume_number: volume, block, checksum, .. } => {
                        replayed.push(*volume, *block, *checksum)
                    }
                    JournalRecord::RecentWriteRemoved { volume_number: volume, block } => {
                        drop(replayed.remove(*volume, block.single()))
                    }
                    other => panic!("{other:?}"),
                }
            }
            let ring = original.volume_rings.get(&3);
            let counted = ring.map(|ring| ring.entries.iter().filter(|entry| entry.is_pending).count());
            assert_eq!(ring.map(|ring| ring.pending_entries), counted);
            if random >> 55 & 63 == 0 {
                assert_eq!(original.proven(3), replayed.proven(3));
            }
            let checked = if random >> 40 & 31 == 0 { replayed.proven(3) } else { Vec::new() };
            for (block, _) in checked {
                assert!(
                    original.may_be_durable(3, &block.single()),
                    "a write of block {block} would record no removal"
                );
            }
        }
    }
}
