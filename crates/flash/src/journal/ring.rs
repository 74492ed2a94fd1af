//! The blocks of each volume that were destaged last, with their checksums: what a backing that was changed behind the cache's back is
//! most likely to have lost.
//!
//! Whoever reads the journal pushes what was noted when it was committed, and not what was noted and withdrawn in between. So what falls
//! out of a ring here need not fall out there, and has to be said: else it would stay there with a checksum that the next write,
//! which finds nothing noted, makes a lie.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use crate::format::journal::Record;

/// Blocks that are noted of a volume.
pub const RING_BLOCKS: usize = 256;
/// Of them zeroes: a guest that discards all that is free leaves room for what was written.
const ZEROES_MAX: usize = 64;

#[derive(Default)]
struct Ring {
    blocks: VecDeque<(u64, u32)>,
    /// So many of the last have no record yet.
    unsaved: usize,
    /// Blocks that fell out and of which something durable may say that they are noted; true once a commit has been given the record
    /// that they are not, which is durable when the next one begins.
    fallen: BTreeMap<u64, bool>,
}

impl Ring {
    /// True when the block is noted, and has its record.
    fn is_saved(&self, block: u64) -> bool {
        self.blocks.iter().take(self.blocks.len() - self.unsaved).any(|(saved, _)| *saved == block)
    }
}

/// The rings of all volumes.
#[derive(Default)]
pub struct Rings {
    rings: BTreeMap<u16, Ring>,
    blocks_max: usize,
    blocks: usize,
    /// Checksum of a block of zeroes.
    zeroes: u32,
}

impl Rings {
    /// At most so many blocks are noted of all volumes together; a block of zeroes has the checksum `zeroes`.
    pub fn set_max(&mut self, blocks_max: usize, zeroes: u32) {
        (self.blocks_max, self.zeroes) = (blocks_max, zeroes);
    }

    /// A block was destaged.
    pub fn push(&mut self, volume: u16, block: u64, checksum: u32) {
        let saved =
            self.rings.get(&volume).is_some_and(|ring| ring.is_saved(block) || ring.fallen.contains_key(&block));
        self.remove(volume, block..block + 1);
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
        let zeroes = |(_, sum): &(u64, u32)| *sum == self.zeroes;
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

    /// True when something durable may say of these blocks that they were destaged with some content.
    pub fn may_be_durable(&self, volume: u16, blocks: &Range<u64>) -> bool {
        self.rings.get(&volume).is_some_and(|ring| {
            ring.blocks.iter().any(|(block, _)| blocks.contains(block))
                || ring.fallen.range(blocks.clone()).next().is_some()
        })
    }

    /// What was noted of these blocks holds no more. Returns the records that say so.
    pub fn remove(&mut self, volume: u16, blocks: Range<u64>) -> Vec<Record> {
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

    /// Records that are to be written; they count as written.
    pub fn take_unsaved(&mut self) -> Vec<Record> {
        let mut records = Vec::new();
        for (volume, ring) in &mut self.rings {
            ring.fallen.retain(|_, told| !*told);
            for (block, told) in &mut ring.fallen {
                *told = true;
                records.push(Record::Undestaged { volume: *volume, block: *block });
            }
            let from = ring.blocks.len() - std::mem::take(&mut ring.unsaved);
            let record = |(block, checksum): &(u64, u32)| Record::Destaged {
                volume: *volume,
                block: *block,
                checksum: *checksum,
            };
            records.extend(ring.blocks.iter().skip(from).map(record));
        }
        records
    }

    /// How many records are to be written.
    pub fn unsaved(&self) -> usize {
        self.rings.values().map(|ring| ring.unsaved + ring.fallen.values().filter(|told| !**told).count()).sum()
    }

    /// Everything that has its record, for a checkpoint; what has none comes with a commit behind it.
    pub fn records(&self) -> impl Iterator<Item = Record> + '_ {
        self.rings.iter().flat_map(|(volume, ring)| {
            let saved = ring.blocks.iter().take(ring.blocks.len() - ring.unsaved);
            saved.map(|(block, checksum)| Record::Destaged { volume: *volume, block: *block, checksum: *checksum })
        })
    }

    /// A volume's blocks, oldest first.
    pub fn of(&self, volume: u16) -> Vec<(u64, u32)> {
        self.rings.get(&volume).map(|ring| ring.blocks.iter().copied().collect()).unwrap_or_default()
    }

    /// The volume is gone.
    pub fn forget(&mut self, volume: u16) {
        if let Some(ring) = self.rings.remove(&volume) {
            self.blocks -= ring.blocks.len();
        }
    }

    /// Everything that was read from the journal has its record.
    pub fn all_saved(&mut self) {
        for ring in self.rings.values_mut() {
            ring.unsaved = 0;
            ring.fallen.clear();
        }
    }

    /// Blocks that are noted.
    pub fn len(&self) -> usize {
        self.blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZEROES: u32 = 7;

    #[test]
    fn zeroes_push_out_zeroes_and_leave_what_was_written() {
        let mut rings = Rings::default();
        rings.set_max(1_000, ZEROES);
        (0..100).for_each(|block| rings.push(3, block, 1_000 + block as u32));
        (100..1_100).for_each(|block| rings.push(3, block, ZEROES));
        let all = rings.of(3);
        assert_eq!(all.iter().filter(|(block, _)| *block < 100).count(), 100);
        assert_eq!((all.len(), all.last()), (100 + ZEROES_MAX, Some(&(1_099, ZEROES))));
    }

    #[test]
    fn the_last_blocks_are_kept_each_once_and_what_is_gone_is_said() {
        let mut rings = Rings::default();
        rings.set_max(1_000, ZEROES);
        (0..300).for_each(|block| rings.push(3, block % 280, block as u32));
        let all = rings.of(3);
        assert_eq!((all.len(), all[255], rings.unsaved()), (256, (19, 299), 256));
        assert_eq!(rings.take_unsaved().len(), 256);
        rings.push(3, 19, 1);
        // What the journal says of it falls out, and it is noted anew.
        assert_eq!((rings.of(3).len(), rings.unsaved(), rings.len()), (256, 2, 256));
        assert_eq!(rings.remove(3, 18..20).len(), 3);
        assert_eq!((rings.unsaved(), rings.take_unsaved()), (0, vec![]));
    }

    #[test]
    fn what_is_read_back_is_what_is_noted_whatever_was_withdrawn_before_a_commit() {
        let full = || {
            let mut rings = Rings::default();
            rings.set_max(1_000, ZEROES);
            rings
        };
        let (mut here, mut there) = (full(), full());
        let mut random: u64 = 1;
        for _ in 0..5_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let block = random >> 33 & 511;
            let mut records = Vec::new();
            match random >> 55 & 63 {
                0 => records = here.take_unsaved(),
                1..6 => records = here.remove(3, block..block + 4),
                _ => here.push(3, block, if random >> 20 & 1 == 0 { ZEROES } else { (random >> 20) as u32 }),
            }
            for record in &records {
                match record {
                    Record::Destaged { volume, block, checksum } => there.push(*volume, *block, *checksum),
                    Record::Undestaged { volume, block } => drop(there.remove(*volume, *block..*block + 1)),
                    other => panic!("{other:?}"),
                }
            }
            if random >> 55 & 63 == 0 {
                assert_eq!(here.of(3), there.of(3));
            }
            let looked_at = if random >> 40 & 31 == 0 { there.of(3) } else { Vec::new() };
            for (block, _) in looked_at {
                assert!(here.may_be_durable(3, &(block..block + 1)), "a write of block {block} would say nothing");
            }
        }
    }
}
