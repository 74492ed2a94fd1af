//! Allocation status (R4, docs/rules.md): the backing's, overlaid with newer content of the cache.

use seam::{AllocationExtent, Disk, Seam};

use crate::memory::Sectors;
use crate::shard::{Shard, ShardRef, blocks_of};
use crate::spec::Sabotage;
use crate::{ByteOffset, RequestError};

/// Longest range of one query.
const RANGE_BYTES_MAX: u64 = 64 << 20;

impl<S: Seam> Shard<S> {
    /// Allocation status of a prefix of the range, at least one run. Reports zero or hole only if that is the newest
    /// content; reports data if in doubt.
    pub async fn allocation(
        self: &ShardRef<S>,
        at: ByteOffset,
        len_bytes: u64,
    ) -> Result<Vec<AllocationExtent>, RequestError> {
        let len = len_bytes.min(RANGE_BYTES_MAX);
        let blocks = blocks_of(at, len);
        // The guard detects changes during the query; blocks with newer content in memory are invalid from the start.
        let guard =
            self.with_state(|state, memory| state.issue_fill_guard(memory, self.volume_number, blocks.clone(), false));
        let logical = u64::from(self.disk.geometry().logical_block);
        let end = at.plus(len);
        let first = at.align_down(logical);
        let answer = self.disk.allocation(first.0, end.align_up(logical).distance_from(first)).await;
        self.state.borrow_mut().release_fill_guard(&guard);
        let backing_extents = answer?;
        assert!(!backing_extents.is_empty(), "a backing reports at least one run");
        let mut overlaid = ExtentRuns::default();
        let (mut position, mut run_end) = (at, first);
        let reports_truth = !self.has_sabotage(Sabotage::ZeroForDirty);
        for run in backing_extents {
            run_end = run_end.plus(run.len_bytes).min(end);
            while position < run_end {
                let block = position.block();
                let next = ByteOffset::of(block.next()).min(run_end);
                let zeroed = self.state.borrow().zeroes.find(block);
                let (hole, zero) = match zeroed {
                    Some((_, range)) => (range.may_unmap, true),
                    None if reports_truth && guard.invalidated(block) != Sectors::NONE => (false, false),
                    None => (run.hole, run.zero),
                };
                overlaid.push(next.distance_from(position), hole, zero);
                position = next;
            }
        }
        Ok(overlaid.0)
    }
}

/// Runs of extents; neighbours with the same status are merged.
#[derive(Default)]
struct ExtentRuns(Vec<AllocationExtent>);

impl ExtentRuns {
    fn push(&mut self, len_bytes: u64, is_hole: bool, is_zero: bool) {
        match self.0.last_mut() {
            Some(last) if last.hole == is_hole && last.zero == is_zero => last.len_bytes += len_bytes,
            _ => self.0.push(AllocationExtent { len_bytes, hole: is_hole, zero: is_zero }),
        }
    }
}
