//! Recovery of a volume from the flash log after a restart. Before the volume is served, each data record becomes a
//! spilled block and each zero record a dirty zero-range. Only the log's headers have been read by then; a block
//! without an intact copy fails the request that reads it.

use std::ops::Range;

use flash::{BlockNo, RecoveredContent, RecoveredRecord};
use seam::Seam;
use seam::persist::ShmImage;

use crate::shard::{Shard, ShardRef};

impl<S: Seam> Shard<S> {
    /// Installs `records`: the newest records of the volume, in order of block. Records of blocks that persisted memory
    /// lists as out of date are ignored. Returns true if there are records past the volume's end.
    pub fn recover(self: &ShardRef<S>, records: &[RecoveredRecord], image: &ShmImage) -> bool {
        let end = BlockNo(self.block_count());
        let outdated = merge_outdated_ranges(image);
        let is_valid = |block: BlockNo| {
            let last = outdated.partition_point(|range| range.start <= block).checked_sub(1);
            block < end && !last.is_some_and(|last| outdated[last].contains(&block))
        };
        let now = self.seam().now();
        self.with_state(|state, _| {
            let data = records.iter().filter(|record| record.content == RecoveredContent::Data);
            state.install_records(data.map(|record| (record.address.block, record.position)), is_valid);
            for record in records {
                if let RecoveredContent::Zero { may_unmap, .. } = record.content {
                    let range = record.blocks();
                    let (valid, invalid) = split_by(range.clone(), &outdated, end);
                    valid.into_iter().for_each(|part| state.install_zeroes(part, may_unmap, now));
                    invalid.into_iter().for_each(|part| state.mark_outdated(part));
                    state.log_tracker.install_zeroes(range, record.position);
                }
            }
        });
        self.core.keep_ticking();
        self.destage_work.notify();
        records.iter().any(|record| record.blocks().end > end)
    }
}

/// Splits `range` into the parts that are valid and the parts in `outdated` ranges or from `end` on.
fn split_by(
    range: Range<BlockNo>,
    outdated: &[Range<BlockNo>],
    end: BlockNo,
) -> (Vec<Range<BlockNo>>, Vec<Range<BlockNo>>) {
    let (mut valid, mut invalid) = (Vec::new(), Vec::new());
    let mut add = |part: Range<BlockNo>, is_valid: bool| {
        let parts = if is_valid { &mut valid } else { &mut invalid };
        parts.extend((!part.is_empty()).then_some(part));
    };
    let inside = range.start..end.clamp(range.start, range.end);
    let mut next = inside.start;
    let first = outdated.partition_point(|other| other.end <= inside.start);
    for other in outdated[first..].iter().take_while(|other| other.start < inside.end) {
        add(next..other.start.max(next), true);
        next = other.end.min(inside.end);
        add(other.start.max(inside.start)..next, false);
    }
    add(next..inside.end, true);
    add(inside.end..range.end, false);
    (valid, invalid)
}

/// The ranges that are out of date, sorted and merged. A kill between writing a new tag and removing the ones it
/// replaces leaves overlapping ranges.
fn merge_outdated_ranges(image: &ShmImage) -> Vec<Range<BlockNo>> {
    let mut ranges: Vec<_> = image.outdated.iter().map(|tag| BlockNo(tag.start)..BlockNo(tag.end)).collect();
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, last| {
        let touches = next.start <= last.end;
        if touches {
            last.end = last.end.max(next.end);
        }
        touches
    });
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> Range<BlockNo> {
        BlockNo(start)..BlockNo(end)
    }

    #[test]
    fn ranges_are_split_by_outdated_ranges_and_the_volumes_end() {
        let outdated = [range(0, 12), range(14, 16), range(19, 22), range(40, 50)];
        let (valid, invalid) = split_by(range(10, 30), &outdated, BlockNo(20));
        assert_eq!(valid, [range(12, 14), range(16, 19)]);
        assert_eq!(invalid, [range(10, 12), range(14, 16), range(19, 20), range(20, 30)]);
        assert_eq!(split_by(range(30, 35), &outdated, BlockNo(100)), (vec![range(30, 35)], vec![]));
        assert_eq!(split_by(range(30, 35), &outdated, BlockNo(20)), (vec![], vec![range(30, 35)]));
        assert_eq!(split_by(range(41, 45), &outdated, BlockNo(100)), (vec![], vec![range(41, 45)]));
    }
}
