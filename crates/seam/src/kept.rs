//! Persistence tags: notes that identify dirty buffers after the death of the process.
//!
//! If buffers outlive the process, the world keeps three kinds of notes: for each buffer that is newer than its
//! backing, for each zero-range, and for log records that are out of date. A start after a kill resolves the remaining
//! notes ([`sort_out`]) and recovers their content. A power cut destroys buffers and notes together.
//!
//! Every note has a number, and later notes have higher numbers, so that the notes are true at any moment. A new note
//! is made before the note that it replaces is removed, and a zero-range overrides only notes with lower numbers.

use std::collections::BTreeMap;

/// States that a buffer holds the newest content of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockNote {
    /// Identity of the volume.
    pub owner: u64,
    /// Number of the block within the volume.
    pub block: u64,
    /// The sectors that are valid, one bit each.
    pub sectors: u8,
}

/// State that a note gives to a run of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeKind {
    /// Their newest content is zeroes.
    Zeroes {
        /// The backing may release their space.
        may_unmap: bool,
    },
    /// No log holds their newest content, even if a log has records of them. The newest content is in a buffer with a
    /// note, or zeroes, or on the backing.
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
    /// State of the blocks.
    pub kind: RangeKind,
}

/// Recovered notes of one volume: outdated log records, zero-ranges, and blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Blocks whose newest content is in no log.
    pub outdated: Vec<RangeNote>,
    /// Ranges that read as zeroes, except where `blocks` has an entry.
    pub zeroes: Vec<RangeNote>,
    /// Blocks in ascending order, each with its index in the input of [`sort_out`].
    pub blocks: Vec<(BlockNote, usize)>,
}

impl Left {
    /// True if the notes include content (zeroes or blocks), not only outdated log records.
    pub fn has_content(&self) -> bool {
        !self.zeroes.is_empty() || !self.blocks.is_empty()
    }
}

/// Resolves numbered notes to the valid ones, by owner.
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
    fn newest_note_of_a_block_wins_and_zeroes_override_older_notes() {
        let blocks = [(1, block(7, 10)), (5, block(7, 10)), (2, block(7, 12)), (9, block(7, 13)), (3, block(8, 12))];
        let left = sort_out(&blocks, &[(6, zeroes(7, 11, 20))]);
        assert_eq!(left[&7].zeroes, [zeroes(7, 11, 20)]);
        assert_eq!(left[&7].blocks, [(block(7, 10), 1), (block(7, 13), 3)]);
        assert_eq!(left[&8], Left { blocks: vec![(block(8, 12), 4)], ..Left::default() });
    }

    #[test]
    fn outdated_log_note_removes_no_content_in_memory() {
        let outdated = RangeNote { kind: RangeKind::Outdated, ..zeroes(7, 10, 20) };
        let left = sort_out(&[(1, block(7, 10))], &[(6, outdated), (2, zeroes(7, 12, 14))]);
        assert_eq!((&left[&7].outdated[..], &left[&7].zeroes[..]), (&[outdated][..], &[zeroes(7, 12, 14)][..]));
        assert_eq!(left[&7].blocks, [(block(7, 10), 0)]);
    }

    #[test]
    fn zero_range_keeps_notes_of_blocks_at_its_edges() {
        let blocks = [(1, block(7, 9)), (1, block(7, 20))];
        let left = sort_out(&blocks, &[(6, zeroes(7, 10, 20))]);
        assert_eq!(left[&7].blocks.len(), 2);
    }
}
