//! Notes on buffers that must not be lost with the process.
//!
//! A world whose buffers outlive the process keeps a note for each one that is newer than its backing, for each zero-range, and for what
//! a log elsewhere has that is out of date. Who starts after a kill sorts out what is left ([`sort_out`]) and takes it back. A power cut
//! takes buffers and notes along.
//!
//! Every note has a number, later ones higher, so that at any moment the notes that are there tell the truth: the new one is made
//! before the one that it replaces is forgotten, and a zero-range counts for what was noted before it alone.

use std::collections::BTreeMap;

/// A buffer holds the newest content of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockNote {
    /// Identity of the volume.
    pub owner: u64,
    /// Which block of it.
    pub block: u64,
    /// The sectors whose content that is, one bit each.
    pub sectors: u8,
}

/// What a note says of some blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeKind {
    /// Their newest content is zeroes.
    Zeroes {
        /// Space may be released.
        may_unmap: bool,
    },
    /// Their newest content is no log's, whatever a log holds of them: a buffer with a note has it, or zeroes, else the backing.
    Outdated,
}

/// A note on a run of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeNote {
    /// Identity of the volume.
    pub owner: u64,
    /// First block.
    pub start: u64,
    /// One past the last block.
    pub end: u64,
    /// What it says of them.
    pub kind: RangeKind,
}

/// What is left of one volume: what of a log does not count, zero-ranges, and then blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Blocks of which no log has the newest content.
    pub outdated: Vec<RangeNote>,
    /// Ranges that read as zeroes, but for the blocks.
    pub zeroes: Vec<RangeNote>,
    /// Blocks in their order, each with the place that it had among those that were sorted out.
    pub blocks: Vec<(BlockNote, usize)>,
}

impl Left {
    /// True when something of it is content, and not word of a log alone.
    pub fn has_content(&self) -> bool {
        !self.zeroes.is_empty() || !self.blocks.is_empty()
    }
}

/// What counts of numbered notes, by owner.
pub fn sort_out(blocks: &[(u64, BlockNote)], ranges: &[(u64, RangeNote)]) -> BTreeMap<u64, Left> {
    let mut newest: BTreeMap<(u64, u64), (u64, usize)> = BTreeMap::new();
    for (place, (number, note)) in blocks.iter().enumerate() {
        let known = newest.entry((note.owner, note.block)).or_insert((*number, place));
        if known.0 < *number {
            *known = (*number, place);
        }
    }
    let mut left: BTreeMap<u64, Left> = BTreeMap::new();
    for (number, range) in ranges {
        let of = left.entry(range.owner).or_default();
        if range.kind == RangeKind::Outdated {
            of.outdated.push(*range);
            continue;
        }
        of.zeroes.push(*range);
        let covered = newest.range((range.owner, range.start)..(range.owner, range.end));
        let older: Vec<_> = covered.filter(|(_, (block, _))| block < number).map(|(key, _)| *key).collect();
        for key in older {
            newest.remove(&key);
        }
    }
    for ((owner, _), (_, place)) in newest {
        left.entry(owner).or_default().blocks.push((blocks[place].1, place));
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(owner: u64, block: u64) -> BlockNote {
        BlockNote { owner, block, sectors: 0xff }
    }

    fn zeroes(owner: u64, start: u64, end: u64) -> RangeNote {
        RangeNote { owner, start, end, kind: RangeKind::Zeroes { may_unmap: false } }
    }

    #[test]
    fn the_newest_note_of_a_block_counts_and_zeroes_count_for_what_is_older() {
        let blocks = [(1, block(7, 10)), (5, block(7, 10)), (2, block(7, 12)), (9, block(7, 13)), (3, block(8, 12))];
        let left = sort_out(&blocks, &[(6, zeroes(7, 11, 20))]);
        assert_eq!(left[&7].zeroes, [zeroes(7, 11, 20)]);
        assert_eq!(left[&7].blocks, [(block(7, 10), 1), (block(7, 13), 3)]);
        assert_eq!(left[&8], Left { blocks: vec![(block(8, 12), 4)], ..Left::default() });
    }

    #[test]
    fn what_is_said_of_a_log_takes_nothing_from_what_is_in_memory() {
        let outdated = RangeNote { kind: RangeKind::Outdated, ..zeroes(7, 10, 20) };
        let left = sort_out(&[(1, block(7, 10))], &[(6, outdated), (2, zeroes(7, 12, 14))]);
        assert_eq!((&left[&7].outdated[..], &left[&7].zeroes[..]), (&[outdated][..], &[zeroes(7, 12, 14)][..]));
        assert_eq!(left[&7].blocks, [(block(7, 10), 0)]);
    }

    #[test]
    fn of_zeroes_and_a_block_at_their_edges_both_count() {
        let blocks = [(1, block(7, 9)), (1, block(7, 20))];
        let left = sort_out(&blocks, &[(6, zeroes(7, 10, 20))]);
        assert_eq!(left[&7].blocks.len(), 2);
    }
}
