//! Zero-ranges and discards (R4, docs/rules.md): edges within a block are partial writes of zeroes; all whole blocks
//! form a range.

use std::ops::Range;
use std::rc::Rc;

use seam::{BlockMut, Disk, Seam};

use super::write::{BlockWrite, WriteMode};
use crate::log_tracker::RangeChange;
use crate::memory::zeroes::{DESTAGE_START_RANGES, RANGES_MAX, ZeroRange, ZeroState};
use crate::memory::{BlockNo, PageNo, Sectors};
use crate::shard::state::FlushObligation;
use crate::shard::write_wait::{WaitFor, WriteWait};
use crate::shard::{Shard, ShardRef, Span, spans};
use crate::spec::Sabotage;
use crate::{ByteOffset, RequestError, WriteSource, ZeroFlags};

/// Blocks of a range processed in one step; other tasks run between steps.
const STEP_BLOCKS: u64 = 1 << 16;

/// A source of zeroes for block edges.
struct ZeroSource;

impl<S: Seam> WriteSource<S> for ZeroSource {
    fn fill(&mut self, _from: usize, block: &mut S::BlockMut, at: usize, len: usize) {
        block.zero(at, len);
    }
}

impl<S: Seam> Shard<S> {
    /// Makes a range read as zeroes; returns when the policy allows the acknowledgement.
    pub async fn zero(
        self: &ShardRef<S>,
        at: ByteOffset,
        len_bytes: u64,
        flags: ZeroFlags,
    ) -> Result<(), RequestError> {
        let started_at = self.seam().now();
        self.last_request_at.set(started_at);
        if flags.fast_only && !self.disk.geometry().fast_zero {
            return Err(RequestError::NotFast);
        }
        // The log makes the zeroes durable, even if an older copy of the backing replaces it later.
        let logged = flags.fua && self.uses_log();
        let wait = (flags.fua && !logged || !self.defers_writes()).then(|| Rc::new(WriteWait::default()));
        let backing_losses = self.state.borrow().backing_losses;
        let end = at.plus(len_bytes);
        // A short last block counts as whole if the range reaches the volume's end.
        let blocks_end = if end.0 == self.size_bytes.get() { end.block_at_or_after() } else { end.block() };
        let blocks = at.block_at_or_after()..blocks_end;
        if blocks.start >= blocks.end {
            self.zero_edge(at, len_bytes, &wait).await?;
        } else {
            let (blocks_start, blocks_end) = (ByteOffset::of(blocks.start), ByteOffset::of(blocks.end));
            if at < blocks_start {
                self.zero_edge(at, blocks_start.distance_from(at), &wait).await?;
            }
            if blocks_end < end {
                self.zero_edge(blocks_end, end.distance_from(blocks_end), &wait).await?;
            }
            let mut next = blocks.start;
            while next < blocks.end {
                let step = next..blocks.end.min(next.plus(STEP_BLOCKS));
                next = step.end;
                self.wait_for_room(step.start.single()).await;
                self.wait_for_range_room().await;
                self.reserve_for_zeroes(&blocks).await?;
                self.zero_blocks(step, flags.may_unmap, &wait);
                if next < blocks.end {
                    self.seam().yield_now().await;
                }
            }
        }
        self.notify_dirty_data(started_at);
        self.wait_until_written(wait, WaitFor::of_fua(flags.fua), backing_losses).await?;
        if flags.fua && self.flush_involves_log() {
            self.flush_log().await?;
        } else if logged {
            // The policy has changed meanwhile.
            self.flush_all().await?;
        }
        self.counters.add(&self.counters.zeroes, 1);
        Ok(())
    }

    /// Writes zeroes to a part of a block.
    async fn zero_edge(
        self: &ShardRef<S>,
        at: ByteOffset,
        len_bytes: u64,
        wait: &Option<Rc<WriteWait>>,
    ) -> Result<(), RequestError> {
        for span in spans(at, len_bytes as usize) {
            self.wait_for_room(span.block.single()).await;
            loop {
                self.reload_for_partial_write(span.block).await?;
                self.reserve_space(&span).await?;
                if self.zero_span(&span, wait) {
                    break;
                }
                self.wait_for_buffer().await;
            }
        }
        Ok(())
    }

    /// Writes zeroes to the span in memory; false if there is no buffer now, or if the block has to be reloaded first.
    fn zero_span(&self, span: &Span, wait: &Option<Rc<WriteWait>>) -> bool {
        let now = self.seam().now();
        self.with_state(|state, memory| {
            let mode = WriteMode {
                is_transit: self.makes_transit_blocks(),
                holds_acknowledged_data: wait.is_none(),
                bypasses_log: false,
                now,
            };
            if self.write_block(state, memory, span, &mut ZeroSource, mode) != BlockWrite::Written {
                return false;
            }
            if let Some(wait) = wait {
                state.write_waits.add(span.block, wait);
            }
            true
        })
    }

    /// Reserves the space that zeroes of these blocks need on the backing, as [`Shard::reserve_space`].
    async fn reserve_for_zeroes(&self, blocks: &Range<BlockNo>) -> Result<(), RequestError> {
        let (at, end) = (ByteOffset::of(blocks.start), blocks.end.offset().min(self.size_bytes.get()));
        while let Some(part) = self.disk.part_to_reserve_for_zeroes(at.0, end.saturating_sub(at.0)) {
            self.disk.reserve(part.start, part.end - part.start).await?;
        }
        Ok(())
    }

    /// Makes whole blocks a dirty zero-range, which replaces their content in memory, on flash and in the log.
    fn zero_blocks(&self, blocks: Range<BlockNo>, may_unmap: bool, wait: &Option<Rc<WriteWait>>) {
        let now = self.seam().now();
        self.with_state(|state, memory| {
            state.invalidate_fills(blocks.clone(), Sectors::ALL);
            self.invalidate_flash(blocks.clone());
            state.log_tracker.record_range_change(blocks.clone(), RangeChange::Zeroed { may_unmap });
            let mut obligation = FlushObligation { epoch: None, holds_acknowledged_data: wait.is_none() };
            for page in PageNo::each(&PageNo::covering(&blocks)) {
                let Some(slots) = memory.page_slots(self.volume_number, page) else { continue };
                for (index, slot) in slots.into_iter().enumerate() {
                    let is_inside = blocks.contains(&page.block(index));
                    if let Some(id) = slot.filter(|_| is_inside) {
                        if self.has_sabotage(Sabotage::StaleAfterDiscard) && memory.slot(id).is_clean() {
                            continue;
                        }
                        // The zeroes inherit the flush obligation of the replaced content.
                        obligation = obligation.merge(state.supersede(memory, id));
                    }
                }
            }
            obligation = obligation.merge(state.supersede_spilled(blocks.clone()).unwrap_or_default());
            obligation = obligation.merge(state.cut_zeroes(blocks.clone()).unwrap_or_default());
            let epoch = obligation.oldest_epoch(state.epochs.current());
            let range = ZeroRange {
                end: blocks.end,
                epoch,
                state: ZeroState::Dirty,
                dirty_since: now,
                may_unmap,
                holds_acknowledged_data: obligation.holds_acknowledged_data,
            };
            let start = state.add_zeroes(blocks.start, range);
            if let Some(wait) = wait {
                state.write_waits.add(start, wait);
            }
        });
    }

    /// Waits until a zero-range may be added.
    async fn wait_for_range_room(&self) {
        if self.state.borrow().zeroes.len() >= DESTAGE_START_RANGES {
            self.destage_work.notify();
        }
        self.progress.wait_for(|| (self.state.borrow().zeroes.len() < RANGES_MAX).then_some(())).await;
    }
}
