//! Persistence tags: they identify dirty buffers after a kill of the process.
//!
//! If buffers survive the process, three kinds of tags do too. They mark each buffer that is newer than its backing,
//! each zero-range, and log records that are out of date. A start after a kill resolves the remaining tags
//! ([`resolve_tags`]) and recovers their content. A power cut destroys buffers and tags together.
//!
//! Every tag has a number, and later tags have higher numbers, so that the set of tags is consistent after a kill at
//! any moment. A new tag is written before the tag that it replaces is removed, and a zero-range overrides only tags
//! with lower numbers.

use std::collections::BTreeMap;

/// The tag of a buffer that holds the newest content of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockTag {
    /// ID of the volume.
    pub volume_id: u64,
    /// Number of the block within the volume.
    pub block: u64,
    /// The sectors that are valid, one bit each.
    pub sectors: u8,
}

/// The statement of a range tag about its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeKind {
    /// Their newest content is zeroes.
    Zeroes {
        /// The backing may release their space.
        may_unmap: bool,
    },
    /// No log holds their newest content, even if a log has records of them. The newest content is in a tagged buffer,
    /// or is zeroes, or is on the backing.
    Outdated,
}

/// The tag of a run of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeTag {
    /// ID of the volume.
    pub volume_id: u64,
    /// First block.
    pub start: u64,
    /// One past the last block.
    pub end: u64,
    /// State of the blocks.
    pub kind: RangeKind,
}

/// The persisted state of one volume after a kill: outdated log records, zero-ranges, and blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShmImage {
    /// Blocks whose newest content is in no log.
    pub outdated: Vec<RangeTag>,
    /// Ranges that read as zeroes, except where `blocks` has an entry.
    pub zeroes: Vec<RangeTag>,
    /// Blocks in ascending order, each with its index in the input of [`resolve_tags`].
    pub blocks: Vec<(BlockTag, usize)>,
}

impl ShmImage {
    /// True if it includes content (zeroes or blocks), not only outdated log records.
    pub fn has_content(&self) -> bool {
        !self.zeroes.is_empty() || !self.blocks.is_empty()
    }
}

/// Resolves tags to one image per volume: the newest tag of each block wins, and zero-ranges override older tags.
pub fn resolve_tags(blocks: &[(u64, BlockTag)], ranges: &[(u64, RangeTag)]) -> BTreeMap<u64, ShmImage> {
    let mut newest: BTreeMap<(u64, u64), (u64, usize)> = BTreeMap::new();
    for (index, (number, tag)) in blocks.iter().enumerate() {
        let known = newest.entry((tag.volume_id, tag.block)).or_insert((*number, index));
        if known.0 < *number {
            *known = (*number, index);
        }
    }
    let mut images: BTreeMap<u64, ShmImage> = BTreeMap::new();
    for (number, range) in ranges {
        let image = images.entry(range.volume_id).or_default();
        if range.kind == RangeKind::Outdated {
            image.outdated.push(*range);
            continue;
        }
        image.zeroes.push(*range);
        let covered = newest.range((range.volume_id, range.start)..(range.volume_id, range.end));
        let older: Vec<_> = covered.filter(|(_, (block, _))| block < number).map(|(key, _)| *key).collect();
        for key in older {
            newest.remove(&key);
        }
    }
    for ((volume_id, _), (_, index)) in newest {
        images.entry(volume_id).or_default().blocks.push((blocks[index].1, index));
    }
    images
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(volume_id: u64, block: u64) -> BlockTag {
        BlockTag { volume_id, block, sectors: 0xff }
    }

    fn zeroes(volume_id: u64, start: u64, end: u64) -> RangeTag {
        RangeTag { volume_id, start, end, kind: RangeKind::Zeroes { may_unmap: false } }
    }

    #[test]
    fn newest_tag_of_a_block_wins_and_zeroes_override_older_tags() {
        let blocks = [(1, block(7, 10)), (5, block(7, 10)), (2, block(7, 12)), (9, block(7, 13)), (3, block(8, 12))];
        let images = resolve_tags(&blocks, &[(6, zeroes(7, 11, 20))]);
        assert_eq!(images[&7].zeroes, [zeroes(7, 11, 20)]);
        assert_eq!(images[&7].blocks, [(block(7, 10), 1), (block(7, 13), 3)]);
        assert_eq!(images[&8], ShmImage { blocks: vec![(block(8, 12), 4)], ..ShmImage::default() });
    }

    #[test]
    fn tag_of_outdated_log_records_removes_no_content_in_memory() {
        let outdated = RangeTag { kind: RangeKind::Outdated, ..zeroes(7, 10, 20) };
        let images = resolve_tags(&[(1, block(7, 10))], &[(6, outdated), (2, zeroes(7, 12, 14))]);
        assert_eq!((&images[&7].outdated[..], &images[&7].zeroes[..]), (&[outdated][..], &[zeroes(7, 12, 14)][..]));
        assert_eq!(images[&7].blocks, [(block(7, 10), 0)]);
    }

    #[test]
    fn zero_range_keeps_tags_of_blocks_at_its_edges() {
        let blocks = [(1, block(7, 9)), (1, block(7, 20))];
        let images = resolve_tags(&blocks, &[(6, zeroes(7, 10, 20))]);
        assert_eq!(images[&7].blocks.len(), 2);
    }
}
