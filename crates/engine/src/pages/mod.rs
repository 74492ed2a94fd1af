//! Clean pages on flash: promotion, invalidation of stale copies, and the flushes of the backing that both depend on. A
//! promotion waits until its content is durable there; a flush that makes overwritten blocks durable queues the refresh
//! of their pages.
//!
//! - **R2** [`Shard::invalidate_flash`]: a write, a discard or an invalidation invalidates the flash copy before it is
//!   acknowledged.
//! - **R8** [`Shard::begin_write`]: no write goes to the backing before its region is durably marked dirty.
//! - **R11** is enforced by the store, which verifies every block that it returns.
//!
//! A page on flash holds only content that the backing holds *durably*. Such content is a clean block of memory, or a
//! block read from the backing under a fill guard while nothing there was unsettled.

mod backing_flush;
mod page_fill;
mod pin;
mod promote;

use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use flash::{CompletionNo, VolumePages, WriteIntent};
use seam::{BLOCK_BYTES, Block, Seam};

use crate::flash_tier::destaged::DestagedBlocks;
use crate::memory::{BlockNo, PageNo};
use crate::shard::core_state::CoreState;
use crate::shard::{Shard, ShardRef};
use crate::spec::Sabotage;
pub use backing_flush::BackingFlushResult;

impl<S: Seam> Shard<S> {
    /// Invalidates the flash copies of these blocks before newer content is acknowledged (R2, docs/rules.md).
    pub fn invalidate_flash(&self, blocks: Range<BlockNo>) {
        if let Some(pages) = &self.flash_tier.pages
            && !blocks.is_empty()
            && !self.has_sabotage(Sabotage::StaleOnFlash)
        {
            self.restore_pins(&blocks);
            if !self.has_sabotage(Sabotage::KeptOverWrite) {
                self.kept_records.borrow_mut().remove(blocks.clone());
            }
            pages.invalidate(blocks);
        }
    }

    /// Marks the regions of these blocks as dirty; completes before the blocks may change on the backing (R8). Returns
    /// `None` without a flash cache.
    pub async fn begin_write(&self, blocks: Range<BlockNo>) -> Option<WriteIntent> {
        let pages = self.flash_tier.pages.as_ref()?;
        if self.has_sabotage(Sabotage::StaleOnFlash) {
            return None;
        }
        if self.has_sabotage(Sabotage::NoDirtyRegions) {
            pages.invalidate(blocks);
            return None;
        }
        if pages.wants_flush() {
            self.core.start_freeing_dirty_regions();
        }
        Some(pages.begin_write(blocks).await)
    }

    /// Ends a write that [`Shard::begin_write`] announced. `has_succeeded` is true if the write succeeded in full.
    pub fn end_write(&self, write_intent: Option<WriteIntent>, has_succeeded: bool) {
        if self.flash_tier.pages.is_none() {
            return;
        }
        // The write gets its own completion number: no flush that began earlier covers it.
        let completion = self.state.borrow_mut().number_completion();
        if !has_succeeded {
            self.flash_tier.settled_completion.set(completion.next());
        }
        if let (Some(pages), Some(write_intent)) = (&self.flash_tier.pages, write_intent) {
            pages.end_write(write_intent, completion);
        }
    }

    /// Records that a flush of the backing has covered all completions below `covered`, and that `destaged` is durable
    /// there. While the flash tier is suspended, `destaged` leaves no evidence: the content of the backing may be about
    /// to change, and the entries of the ring that the change invalidates are already dropped.
    pub fn record_backing_flush(&self, covered: CompletionNo, destaged: DestagedBlocks<S::Block>) {
        if let Some(pages) = &self.flash_tier.pages {
            pages.record_flush(covered);
        }
        let refreshed = self.queue_refresh(&destaged.first_blocks);
        // Under a policy that caches no writes, a block leaves memory although a refresh of its page is queued.
        let retained = if self.makes_transit_blocks() { BTreeSet::new() } else { refreshed };
        self.drop_transit(&destaged.transit_blocks, &retained);
        if let Some(pages) = &self.flash_tier.pages {
            if self.flash_tier.is_suspended() {
                return;
            }
            let zeroes = self.seam().zero_block();
            // A block that the backing has in part is not compared at a start, so it proves nothing.
            let whole = || destaged.last_blocks.iter().filter(|(block, _)| self.is_inside(*block));
            whole().for_each(|(block, content)| pages.record_destaged(*block, content.as_ref().unwrap_or(&zeroes)));
            let lacks_content = &self.flash_tier.lacks_destaged_content;
            let has_content =
                |content: &Option<S::Block>| content.as_ref().is_some_and(|block| !block.is_zero(0, BLOCK_BYTES));
            if lacks_content.get() && whole().any(|(_, content)| has_content(content)) {
                lacks_content.set(false);
            }
            self.flash_tier.record_partial_blocks(&destaged);
        }
    }

    /// Drops blocks from memory that were in it only to be destaged, except blocks of `retained` pages, whose queued
    /// refreshes copy them from memory.
    fn drop_transit(&self, blocks: &[BlockNo], retained: &BTreeSet<PageNo>) {
        self.with_state(|_, memory| {
            for block in blocks.iter().filter(|block| !retained.contains(&block.page().0)) {
                if let Some(id) = memory.find(self.volume_number, *block)
                    && memory.slot(id).is_clean()
                    && memory.slot(id).is_transit
                {
                    memory.remove(id);
                }
            }
        });
    }

    /// True if the ring of recent writes may not prove the state of the backing: it has only zeroes, or no content that
    /// was destaged since the attach.
    pub fn lacks_evidence(&self) -> bool {
        let lacks_destaged = self.flash_tier.lacks_destaged_content.get();
        self.flash_tier.pages.as_ref().is_some_and(|pages| lacks_destaged || pages.nonzero_recent_writes() == 0)
    }

    /// True if the backing has all of a block.
    pub fn is_inside(&self, block: BlockNo) -> bool {
        self.bytes_inside(block) == BLOCK_BYTES
    }

    /// True if every write that was ever sent to the backing is durable there, apart from writes known to be in flight.
    fn is_settled(&self) -> bool {
        self.state.borrow().flushed_below >= self.flash_tier.settled_completion.get()
    }

    /// Flushes the backing if content read from it would otherwise not be durable. Returns true if it is durable.
    async fn flush_if_unsettled(self: &ShardRef<S>) -> bool {
        self.is_settled() || (self.flush_backing().await.is_durable() && self.is_settled())
    }

    /// Prepares a change of the backing's size, after which blocks from `from` on may have different content. Their
    /// flash copies are not trusted any more, not even after a crash. The caller passes the returned write intent to
    /// [`Shard::end_write`] and then calls [`FlashTier::resume`].
    pub async fn begin_resize(&self, from: BlockNo, shrinks: bool) -> Result<Option<WriteIntent>, crate::RequestError> {
        self.flash_tier.suspend();
        if shrinks {
            // The range past the new end may exceed the free dirty regions. Shrinking is rare, so all pages are
            // dropped.
            self.drop_pages().await?;
        }
        Ok(self.begin_write(from.single()).await)
    }

    /// Drops all pages of the volume, durably.
    pub async fn drop_pages(&self) -> Result<(), crate::RequestError> {
        let Some(pages) = self.core.pages() else { return Ok(()) };
        self.invalidate_flash(self.all_blocks());
        let removed = pages.remove_volume(self.volume_id).await;
        removed.map_err(|error| seam::DiskError::Io(format!("the flash cache cannot drop pages: {error}")).into())
    }
}

impl<S: Seam> CoreState<S> {
    /// Starts flushes of the backings that free dirty regions of the write-intent log, which are running out.
    pub fn start_freeing_dirty_regions(self: &Rc<Self>) {
        if !self.is_freeing_dirty_regions.replace(true) {
            let core_state = Rc::clone(self);
            self.seam().spawn(async move {
                free_dirty_regions(core_state.shards()).await;
                core_state.is_freeing_dirty_regions.set(false);
            });
        }
    }
}

/// Flushes backings with dirty regions while few regions are free. A backing that cannot be flushed is skipped until
/// the next write: without a free region, a write waits until the invalidation of its blocks is durable in the map.
pub async fn free_dirty_regions<S: Seam>(shards: Vec<ShardRef<S>>) {
    for shard in shards {
        if shard.flash_tier.pages.as_ref().is_some_and(VolumePages::wants_flush) {
            shard.flush_backing().await;
        }
    }
}
