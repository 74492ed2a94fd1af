//! Blocks that were changed since a volume was attached, while cached blocks of its former owner arrive: that host's
//! copy of a changed block is older (R2, docs/rules.md).

use std::ops::Range;

use hashbrown::HashTable;

use crate::memory::BlockNo;
use crate::page_hash::hash_key;

/// Maximum number of changed blocks (1 GiB of content). Beyond it no more blocks are taken from the former owner: what
/// clients have written since is in memory anyhow.
const CHANGED_BLOCKS_MAX: u64 = 1 << 18;

/// The changed blocks.
#[derive(Default)]
pub struct ChangedBlocks {
    blocks: HashTable<u64>,
}

/// The bound of [`ChangedBlocks`] is exceeded.
pub struct TooManyChanges;

fn hash_of(block: u64) -> u64 {
    hash_key(0, block)
}

impl ChangedBlocks {
    /// Adds changed blocks.
    pub fn add(&mut self, blocks: &Range<BlockNo>) -> Result<(), TooManyChanges> {
        // A range may be that of all blocks.
        if (self.blocks.len() as u64).saturating_add(BlockNo::count(blocks)) > CHANGED_BLOCKS_MAX {
            return Err(TooManyChanges);
        }
        for BlockNo(block) in BlockNo::each(blocks) {
            if self.blocks.find(hash_of(block), |other| *other == block).is_none() {
                self.blocks.insert_unique(hash_of(block), block, |other| hash_of(*other));
            }
        }
        Ok(())
    }

    /// True if the block was changed.
    pub fn contains(&self, block: BlockNo) -> bool {
        self.blocks.find(hash_of(block.0), |other| *other == block.0).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_blocks_are_known_up_to_a_bound() {
        let mut changed = ChangedBlocks::default();
        assert!(changed.add(&(BlockNo(5)..BlockNo(8))).is_ok());
        assert!(changed.add(&BlockNo(6).single()).is_ok());
        let known: Vec<u64> = (0..10).filter(|block| changed.contains(BlockNo(*block))).collect();
        assert_eq!(known, [5, 6, 7]);
        assert!(changed.add(&(BlockNo(100)..BlockNo(100 + CHANGED_BLOCKS_MAX - 3))).is_ok());
        assert!(changed.add(&BlockNo(50).single()).is_err());
        assert!(changed.add(&(BlockNo::ALL)).is_err(), "without a step for each block");
    }
}
