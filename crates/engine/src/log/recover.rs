//! Recovery of a volume from the flash log after a restart. Every block with a record becomes a spilled block before
//! the volume is served. Only the log's headers have been read by then; a block without an intact copy fails the
//! request that reads it.

use std::ops::Range;

use flash::{BlockNo, Recovered, RecoveredContent};
use seam::persist::ShmImage;
use seam::{DiskError, Seam};

use crate::RequestError;
use crate::shard::{Shard, ShardRef};

impl<S: Seam> Shard<S> {
    /// Adopts `records`: the newest record of each block, in order of block. Records of blocks that persisted memory
    /// lists as out of date do not count.
    pub fn recover(self: &ShardRef<S>, records: &[Recovered], left: &ShmImage) -> Result<(), RequestError> {
        if let Some(range) = records.iter().find(|record| record.content != RecoveredContent::Data) {
            let block = range.owner.block;
            let text = format!("the flash log holds a zero-range at block {block}, which this version never writes");
            return Err(DiskError::Io(text).into());
        }
        let blocks = self.blocks();
        let outdated = merged(left);
        let is_valid = |block: BlockNo| {
            let last = outdated.partition_point(|range| range.start <= block).checked_sub(1);
            block.0 < blocks && !last.is_some_and(|last| outdated[last].contains(&block))
        };
        self.with(|state, _| state.adopt(records.iter().map(|record| (record.owner.block, record.position)), is_valid));
        self.core.keep_ticking();
        self.work.notify();
        Ok(())
    }
}

/// The ranges that are out of date, sorted and merged. A kill between writing a new tag and removing the ones it
/// replaces leaves overlapping ranges.
fn merged(image: &ShmImage) -> Vec<Range<BlockNo>> {
    let mut ranges: Vec<_> = image.outdated.iter().map(|tag| BlockNo(tag.start)..BlockNo(tag.end)).collect();
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, last| {
        let touch = next.start <= last.end;
        if touch {
            last.end = last.end.max(next.end);
        }
        touch
    });
    ranges
}
