//! Page fill: a miss that promotes its page to flash reads the whole page, in one request to the backing instead of
//! two.
//!
//! While clients keep the backing busy, promotion may not read from it. Without page fills a page would therefore grow
//! by a few blocks with each miss. For a disk, 64 KiB cost hardly more than 4 KiB. For a backing short of bandwidth
//! they do, so a limit of bytes per second applies, reads of clients included.

use std::ops::Range;
use std::rc::Rc;

use seam::{DiskError, Seam};

use crate::backing::Cause;
use crate::fill::FillResult;
use crate::memory::{BLOCKS_PER_PAGE, BlockNo, PageNo, Sectors};
use crate::policy::InsertKind;
use crate::shard::fill_guard::FillGuard;
use crate::shard::promoter::PageRead;
use crate::shard::{Shard, ShardRef};
use crate::spec::Sabotage;

/// Maximum number of page reads that wait to be written to flash.
const QUEUED_PAGE_READS_MAX: usize = 32;
/// They take at most this part of the memory.
const QUEUED_PAGE_READS_DIVISOR: usize = 16;

impl<S: Seam> Shard<S> {
    /// The page to read in place of `run`. `Some` only if the run lies in a page of `pages_to_promote`, no part of the
    /// run is on flash, and reading the rest is cheap.
    pub fn page_to_fill(self: &ShardRef<S>, run: &Range<BlockNo>, pages_to_promote: &[PageNo]) -> Option<PageNo> {
        let (page, index) = run.start.page();
        let is_inside = pages_to_promote.contains(&page) && run.end <= page.next().first_block();
        let pages = self.fillable_pages().filter(|_| is_inside)?;
        let mask = pages.valid_blocks(page) >> index;
        let is_absent = mask & ((1_u32 << BlockNo::count(run)) - 1) as u16 == 0
            && BlockNo::each(run).all(|block| self.kept_position(block).is_none());
        let page_reads_max =
            (self.seam().blocks_total() / BLOCKS_PER_PAGE / QUEUED_PAGE_READS_DIVISOR).min(QUEUED_PAGE_READS_MAX);
        let page_bytes = (BLOCKS_PER_PAGE * seam::BLOCK_BYTES) as u64;
        let is_cheap = self.flash_tier.page_fill_budget.has_room(self.seam().now(), page_bytes)
            && self.core.promoter().queued_page_reads() < page_reads_max;
        if !is_absent || !is_cheap {
            return None;
        }
        if !self.is_settled() {
            // Content read now may not be durable on the backing. The flush lets the next page fill succeed.
            self.start_settling_flush();
            return None;
        }
        Some(page)
    }

    /// Starts a flush of the backing, unless one runs, so that content read later is durable there.
    fn start_settling_flush(self: &ShardRef<S>) {
        if !self.flash_tier.is_settling_flush_running.replace(true) {
            let shard = Rc::clone(self);
            self.seam().spawn(async move {
                shard.flush_if_unsettled().await;
                shard.flash_tier.is_settling_flush_running.set(false);
            });
        }
    }

    /// Reads a page: `run`, into these buffers, for a client, all of it for promotion.
    pub async fn fill_page(
        self: &ShardRef<S>,
        page: PageNo,
        run: Range<BlockNo>,
        mut buffers: Vec<S::BlockMut>,
        admit: Option<InsertKind>,
    ) -> Result<FillResult<S>, DiskError> {
        let blocks = self.page_blocks(page);
        let is_inside = run.end <= blocks.end;
        let rest = (BlockNo::count(&blocks) as usize).saturating_sub(buffers.len());
        let Some(rest) = (if is_inside { self.core.alloc_all(rest, false).await } else { None }) else {
            return self.fill_into(run, buffers, admit, Cause::ClientRead).await;
        };
        buffers.extend(rest);
        let (page_guard, guard) = self.with_state(|state, memory| {
            let page_guard = state.issue_fill_guard(memory, self.volume_number, blocks.clone(), false);
            (page_guard, state.issue_fill_guard(memory, self.volume_number, run.clone(), true))
        });
        let read = self.read_backing_blocks(blocks.start, buffers, Cause::ClientRead).await;
        let Ok((content, waited)) = read else {
            // A bad sector elsewhere in the page must not fail this client.
            self.release_fill_guards([&page_guard, &guard]);
            let result = self.fill(run, admit, Cause::ClientRead).await;
            // The caller counts the failure of this request if the run fails, too.
            self.counters.add(&self.counters.backing_errors, u64::from(result.is_ok()));
            return result;
        };
        let indexes = run.start.distance_from(blocks.start) as usize..run.end.distance_from(blocks.start) as usize;
        let run_content = content[indexes].to_vec();
        self.with_state(|state, memory| {
            for (block, data) in BlockNo::each(&run).zip(&run_content) {
                self.install(state, memory, &guard, block, data, admit);
            }
        });
        self.release_fill_guards([&guard]);
        self.queue_page_read(page, PageRead { guard: page_guard, first_block: blocks.start, blocks: content });
        let mut filled = FillResult::new(run.start, run_content, guard);
        filled.slot_wait = waited;
        Ok(filled)
    }

    /// Ends the fills of these guards.
    pub fn release_fill_guards<'a>(&self, fill_guards: impl IntoIterator<Item = &'a Rc<FillGuard>>) {
        let mut state = self.state.borrow_mut();
        fill_guards.into_iter().for_each(|guard| state.release_fill_guard(guard));
    }

    /// The blocks of a page read that may be put on flash: the backing holds them durably, and flash lacks them.
    pub fn blocks_to_promote(&self, page_read: PageRead<S>, valid: u16) -> Vec<(u32, S::Block)> {
        let blocks_to_promote = (0..).zip(page_read.blocks).filter(|(index, _)| {
            let is_valid = page_read.guard.invalidated(page_read.first_block.plus(u64::from(*index))) == Sectors::NONE
                || self.has_sabotage(Sabotage::PageOverWrite);
            is_valid && valid >> index & 1 == 0 && self.is_settled()
        });
        let blocks_to_promote = blocks_to_promote.collect();
        self.release_fill_guards([&page_read.guard]);
        blocks_to_promote
    }
}
