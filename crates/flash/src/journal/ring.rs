//! The blocks of each volume that were destaged last, with their checksums: what a backing that was changed behind the cache's back is
//! most likely to have lost.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use crate::format::journal::Record;

/// Blocks that are noted of a volume.
pub const RING_BLOCKS: usize = 256;

#[derive(Default)]
struct Ring {
    blocks: VecDeque<(u64, u32)>,
    /// So many of the last have no record yet.
    unsaved: usize,
}

/// The rings of all volumes.
#[derive(Default)]
pub struct Rings {
    rings: BTreeMap<u16, Ring>,
    blocks_max: usize,
    blocks: usize,
}

impl Rings {
    /// At most so many blocks are noted of all volumes together.
    pub fn set_max(&mut self, blocks_max: usize) {
        self.blocks_max = blocks_max;
    }

    /// A block was destaged.
    pub fn push(&mut self, volume: u16, block: u64, checksum: u32) {
        self.remove(volume, block..block + 1);
        if self.blocks >= self.blocks_max && self.rings.get(&volume).is_none_or(|ring| ring.blocks.is_empty()) {
            return;
        }
        let ring = self.rings.entry(volume).or_default();
        ring.blocks.push_back((block, checksum));
        ring.unsaved += 1;
        self.blocks += 1;
        if ring.blocks.len() > RING_BLOCKS || self.blocks > self.blocks_max {
            ring.blocks.pop_front();
            self.blocks -= 1;
            ring.unsaved = ring.unsaved.min(ring.blocks.len());
        }
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
        records
    }

    /// Records that are to be written; they count as written.
    pub fn take_unsaved(&mut self) -> Vec<Record> {
        let mut records = Vec::new();
        for (volume, ring) in &mut self.rings {
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
        self.rings.values().map(|ring| ring.unsaved).sum()
    }

    /// Everything as records.
    pub fn records(&self) -> impl Iterator<Item = Record> + '_ {
        self.rings.iter().flat_map(|(volume, ring)| {
            ring.blocks.iter().map(|(block, checksum)| Record::Destaged {
                volume: *volume,
                block: *block,
                checksum: *checksum,
            })
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
        self.rings.values_mut().for_each(|ring| ring.unsaved = 0);
    }

    /// Blocks that are noted.
    pub fn len(&self) -> usize {
        self.blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_blocks_are_kept_each_once_and_what_is_gone_is_said() {
        let mut rings = Rings::default();
        rings.set_max(1_000);
        (0..300).for_each(|block| rings.push(3, block % 280, block as u32));
        let all = rings.of(3);
        assert_eq!((all.len(), all[255], rings.unsaved()), (256, (19, 299), 256));
        assert_eq!(rings.take_unsaved().len(), 256);
        rings.push(3, 19, 1);
        assert_eq!((rings.of(3).len(), rings.unsaved(), rings.len()), (256, 1, 256));
        assert_eq!(rings.remove(3, 18..20).len(), 2);
        assert_eq!((rings.unsaved(), rings.take_unsaved()), (0, vec![]));
    }
}
