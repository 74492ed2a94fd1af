//! Recent writes: the last destaged blocks of each volume, with their checksums. A backing that was changed outside the
//! cache is found by them.
//!
//! Replay pushes the entries that were pending at a commit, not the ones that were added and withdrawn between two
//! commits. An entry that falls out of the ring here may therefore stay in the replayed ring. So its removal needs a
//! record: otherwise it would survive with a checksum that the next write, which finds no entry to withdraw, makes
//! wrong.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use crate::format::journal::Record;
use crate::number::BlockNo;

/// The most entries of a volume.
pub const RING_BLOCKS: usize = 256;
/// The most entries with zeroes, so that a guest that discards all free space leaves room for written data.
const ZEROES_MAX: usize = 64;

#[derive(Default)]
struct Ring {
    blocks: VecDeque<(BlockNo, u32)>,
    /// Number of the last entries that have no record yet.
    unsaved: usize,
    /// Blocks that fell out of the ring while a durable record may still list them. The value is true once a commit has
    /// taken the record of the removal, which is durable when the next commit begins.
    fallen: BTreeMap<BlockNo, bool>,
}

impl Ring {
    /// True when the block has an entry with a record.
    fn is_saved(&self, block: BlockNo) -> bool {
        self.blocks.iter().take(self.blocks.len() - self.unsaved).any(|(saved, _)| *saved == block)
    }
}

/// The recent writes of all volumes.
#[derive(Default)]
pub struct Rings {
    rings: BTreeMap<u16, Ring>,
    blocks_max: usize,
    blocks: usize,
    /// Checksum of a block of zeroes.
    zeroes: u32,
}

impl Rings {
    /// Sets the most entries of all volumes together, and the checksum of a block of zeroes.
    pub fn set_max(&mut self, blocks_max: usize, zeroes: u32) {
        (self.blocks_max, self.zeroes) = (blocks_max, zeroes);
    }

    /// Adds a destaged block.
    pub fn push(&mut self, volume: u16, block: BlockNo, checksum: u32) {
        let saved =
            self.rings.get(&volume).is_some_and(|ring| ring.is_saved(block) || ring.fallen.contains_key(&block));
        self.remove(volume, block.only());
        let ring = self.rings.entry(volume).or_default();
        if saved {
            ring.fallen.insert(block, false);
        }
        if self.blocks >= self.blocks_max && ring.blocks.is_empty() {
            return;
        }
        ring.blocks.push_back((block, checksum));
        ring.unsaved += 1;
        self.blocks += 1;
        let zeroes = |(_, sum): &(BlockNo, u32)| *sum == self.zeroes;
        let has_many = checksum == self.zeroes && ring.blocks.iter().filter(|noted| zeroes(noted)).count() > ZEROES_MAX;
        if has_many || ring.blocks.len() > RING_BLOCKS || self.blocks > self.blocks_max {
            let at = if has_many { ring.blocks.iter().position(zeroes).unwrap_or(0) } else { 0 };
            let saved = ring.blocks.len() - ring.unsaved;
            let (oldest, _) = ring.blocks.remove(at).expect("one was just put there");
            self.blocks -= 1;
            if at >= saved {
                ring.unsaved -= 1;
            } else {
                ring.fallen.insert(oldest, false);
            }
        }
    }

    /// True when a durable record may list one of these blocks.
    pub fn may_be_durable(&self, volume: u16, blocks: &Range<BlockNo>) -> bool {
        self.rings.get(&volume).is_some_and(|ring| {
            ring.blocks.iter().any(|(block, _)| blocks.contains(block))
                || ring.fallen.range(blocks.clone()).next().is_some()
        })
    }

    /// Withdraws the entries of these blocks. Returns the records of the withdrawal.
    pub fn remove(&mut self, volume: u16, blocks: Range<BlockNo>) -> Vec<Record> {
        let Some(ring) = self.rings.get_mut(&volume) else { return Vec::new() };
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
        let fallen: Vec<_> = ring.fallen.range(blocks).map(|(block, _)| *block).collect();
        for block in fallen {
            ring.fallen.remove(&block);
            records.push(Record::Undestaged { volume, block });
        }
        records
    }

    /// Takes the pending records; they count as written.
    pub fn take_unsaved(&mut self) -> Vec<Record> {
        let mut records = Vec::new();
        for (volume, ring) in &mut self.rings {
            ring.fallen.retain(|_, told| !*told);
            for (block, told) in &mut ring.fallen {
                *told = true;
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
        self.rings.values().map(|ring| ring.unsaved + ring.fallen.values().filter(|told| !**told).count()).sum()
    }

    /// The records of all entries that have one, for a checkpoint. The other entries follow with a commit.
    pub fn records(&self) -> impl Iterator<Item = Record> + '_ {
        self.rings.iter().flat_map(|(volume, ring)| {
            let saved = ring.blocks.iter().take(ring.blocks.len() - ring.unsaved);
            saved.map(|(block, checksum)| Record::Destaged { volume: *volume, block: *block, checksum: *checksum })
        })
    }

    /// A volume's entries, oldest first.
    pub fn of(&self, volume: u16) -> Vec<(BlockNo, u32)> {
        self.rings.get(&volume).map(|ring| ring.blocks.iter().copied().collect()).unwrap_or_default()
    }

    /// Drops the entries of a volume that is gone.
    pub fn forget(&mut self, volume: u16) {
        if let Some(ring) = self.rings.remove(&volume) {
            self.blocks -= ring.blocks.len();
        }
    }

    /// Marks all entries as recorded, after a replay.
    pub fn all_saved(&mut self) {
        for ring in self.rings.values_mut() {
            ring.unsaved = 0;
            ring.fallen.clear();
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
        let mut rings = Rings::default();
        rings.set_max(1_000, ZEROES);
        (0..100).for_each(|block| rings.push(3, BlockNo(block), 1_000 + block as u32));
        (100..1_100).for_each(|block| rings.push(3, BlockNo(block), ZEROES));
        let all = rings.of(3);
        assert_eq!(all.iter().filter(|(block, _)| *block < BlockNo(100)).count(), 100);
        assert_eq!((all.len(), all.last()), (100 + ZEROES_MAX, Some(&(BlockNo(1_099), ZEROES))));
    }

    #[test]
    fn last_blocks_are_kept_once_and_removals_have_records() {
        let mut rings = Rings::default();
        rings.set_max(1_000, ZEROES);
        (0..300).for_each(|block| rings.push(3, BlockNo(block % 280), block as u32));
        let all = rings.of(3);
        assert_eq!((all.len(), all[255], rings.unsaved()), (256, (BlockNo(19), 299), 256));
        assert_eq!(rings.take_unsaved().len(), 256);
        rings.push(3, BlockNo(19), 1);
        // Its durable entry falls out, and a new one is added.
        assert_eq!((rings.of(3).len(), rings.unsaved(), rings.len()), (256, 2, 256));
        assert_eq!(rings.remove(3, BlockNo(18).run(2)).len(), 3);
        assert_eq!((rings.unsaved(), rings.take_unsaved()), (0, vec![]));
    }

    #[test]
    fn replayed_ring_equals_the_original_despite_withdrawals() {
        let full = || {
            let mut rings = Rings::default();
            rings.set_max(1_000, ZEROES);
            rings
        };
        let (mut here, mut there) = (full(), full());
        let mut random: u64 = 1;
        for _ in 0..5_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let block = BlockNo(random >> 33 & 511);
            let mut records = Vec::new();
            match random >> 55 & 63 {
                0 => records = here.take_unsaved(),
                1..6 => records = here.remove(3, block.run(4)),
                _ => here.push(3, block, if random >> 20 & 1 == 0 { ZEROES } else { (random >> 20) as u32 }),
            }
            for record in &records {
                match record {
                    Record::Destaged { volume, block, checksum } => there.push(*volume, *block, *checksum),
                    Record::Undestaged { volume, block } => drop(there.remove(*volume, block.only())),
                    other => panic!("{other:?}"),
                }
            }
            if random >> 55 & 63 == 0 {
                assert_eq!(here.of(3), there.of(3));
            }
            let looked_at = if random >> 40 & 31 == 0 { there.of(3) } else { Vec::new() };
            for (block, _) in looked_at {
                assert!(here.may_be_durable(3, &block.only()), "a write of block {block} would withdraw nothing");
            }
        }
    }
}
