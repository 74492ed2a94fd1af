//! What goes into the log and what comes back from it.

use std::collections::BTreeMap;

use seam::Seam;

/// Whose block it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// The volume's identity.
    pub incarnation: u64,
    /// The block's number in it.
    pub block: u64,
}

/// What a record says.
pub enum Content<S: Seam> {
    /// The block's content.
    Data(S::Block),
    /// So many blocks from this one on read as zeroes.
    Zero {
        /// How many, at least 1.
        blocks: u32,
        /// Their space may be released.
        may_unmap: bool,
    },
    /// Older records of so many blocks from this one on are dead (the durable tombstone of R8).
    Retire {
        /// How many, at least 1.
        blocks: u32,
    },
}

/// One record to be appended.
pub struct Record<S: Seam> {
    /// The block, or the first of several.
    pub owner: Owner,
    /// The volume's epoch.
    pub epoch: u64,
    /// What it says.
    pub content: Content<S>,
}

/// Where a record lies, and the checksum of its block. Of use only until it was retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub(crate) segment: u32,
    /// Block of the segment: the data's own, or the header's.
    pub(crate) index: u32,
    pub(crate) checksum: u32,
    /// It holds its segment until it is retired; tombstones do not.
    pub(crate) live: bool,
}

impl Position {
    /// A live record's position in three words, for who keeps many: segment, block of the segment (less than 2^31), checksum.
    ///
    /// # Panics
    /// For a tombstone's.
    pub fn to_words(self) -> [u32; 3] {
        assert!(self.live, "a tombstone holds nothing");
        [self.segment, self.index, self.checksum]
    }

    /// The segment that it holds.
    pub fn segment(self) -> u32 {
        self.segment
    }

    /// What [`Position::to_words`] took apart.
    pub fn from_words([segment, index, checksum]: [u32; 3]) -> Position {
        Position { segment, index, checksum, live: true }
    }
}

/// Blocks that were read and of which no copy is good, until they are dead.
#[derive(Default)]
pub(crate) struct LostBlocks(BTreeMap<(u32, u32), Owner>);

/// Blocks that are listed at most.
const LOST_MAX: usize = 1024;

impl LostBlocks {
    /// Lists one.
    pub fn note(&mut self, owner: Owner, position: Position) {
        if self.0.len() < LOST_MAX {
            self.0.insert((position.segment, position.index), owner);
        }
    }

    /// It is dead: nobody misses it any more.
    pub fn retire(&mut self, position: &Position) {
        self.0.remove(&(position.segment, position.index));
    }

    /// Those that are listed, in their owners' order.
    pub fn list(&self) -> Vec<Owner> {
        let mut list: Vec<_> = self.0.values().copied().collect();
        list.sort_unstable();
        list
    }
}

/// What a live record that recovery found says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveredContent {
    /// The block's content lies in the log.
    Data,
    /// So many blocks from this one on read as zeroes.
    Zero {
        /// How many.
        blocks: u32,
        /// Their space may be released.
        may_unmap: bool,
    },
}

/// A live record that recovery found: the newest of its blocks. To be retired once, like one that was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The block, or the first of several.
    pub owner: Owner,
    /// The volume's epoch.
    pub epoch: u64,
    /// Where it lies.
    pub position: Position,
    /// What it says.
    pub content: RecoveredContent,
}
