//! The flash tier of a volume: reads from its clean pages, promotion of pages, and invalidation of stale copies.
//!
//! - **R2** [`Shard::invalidate_flash`]: a write, a discard or an invalidation invalidates the flash copy before it is
//!   acknowledged.
//! - **R8** [`Shard::begin_write`]: no write goes to the backing before its region is durably marked dirty.
//! - **R11** is enforced by the store, which verifies every block that it returns.
//!
//! A page on flash holds only content that the backing holds *durably*. Such content is a clean block of memory, or a
//! block read from the backing under a fill guard while nothing there was unsettled.

pub mod budget;
mod check;
pub mod counters;
mod page_fill;
mod pin;
mod promote;
mod read;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use flash::{CompletionNo, PageUsage, Position, QuotaError, VolumePages, WriteIntent};
use seam::{BLOCK_BYTES, Block, Seam};

use crate::memory::{BlockNo, PageNo};
use crate::shard::destaged::{DestagedBlocks, PARTIAL_MAX};
use crate::shard::{Shard, ShardRef};
use crate::spec::Sabotage;
use crate::{CacheMode, FlashQuota, FlashStats, WritePolicy};
pub use check::newest_recent_writes;
use counters::TierCounters;
use page_fill::PageFillBudget;
use pin::Pins;
pub use promote::Promoter;

/// The flash tier of a volume.
pub struct FlashTier<S: Seam> {
    pages: Option<VolumePages<S>>,
    /// True if the volume may use flash at all.
    enabled: bool,
    /// True if pages from before the attach may be stale and are dropped.
    drops_old_pages: bool,
    /// True if no content was destaged since the attach, or since the ring was dropped. The blocks of the ring may then
    /// be ones that were read back: they identify the backing, but may be the same in an older copy of it.
    lacks_destaged_content: Cell<bool>,
    /// The volume's quota of flash.
    quota: RefCell<FlashQuota>,
    /// The pinned pages of the quota.
    pins: Pins,
    /// True once the pages have been compared with the backing after the attach.
    checked: Cell<bool>,
    /// True while the cached pages are being dropped.
    suspended: Cell<bool>,
    /// Completion number that a flush of the backing must cover before content read from the backing counts as durable.
    /// An earlier process may have left unflushed writes, and a write may have failed in part.
    settled: Cell<CompletionNo>,
    /// The last blocks of which only a part was written and destaged, oldest first.
    partial_blocks: RefCell<VecDeque<BlockNo>>,
    /// Reason why the pages were dropped, as text for users.
    drop_reason: RefCell<Option<String>>,
    /// Recent load of the backing, which limits page fills.
    pub page_fill_budget: PageFillBudget,
    /// Counters of the flash tier.
    pub counters: TierCounters,
}

impl<S: Seam> FlashTier<S> {
    /// Creates the flash tier of a volume over these pages.
    pub fn new(pages: Option<VolumePages<S>>, quota: FlashQuota, drops_old_pages: bool) -> Self {
        if let Some(pages) = &pages {
            pages.set_quota(quota.to_page_quota());
        }
        let (enabled, quota) = (quota.enabled, RefCell::new(quota));
        FlashTier {
            pages,
            enabled,
            drops_old_pages,
            lacks_destaged_content: Cell::new(true),
            quota,
            pins: Pins::default(),
            checked: Default::default(),
            suspended: Default::default(),
            settled: Cell::new(CompletionNo(1)),
            partial_blocks: RefCell::default(),
            drop_reason: Default::default(),
            page_fill_budget: Default::default(),
            counters: Default::default(),
        }
    }

    /// The quota of flash.
    pub fn quota(&self) -> FlashQuota {
        self.quota.borrow().clone()
    }

    /// Changes the quota if it is compatible with the minima of the other volumes. Whether the volume may use flash at
    /// all stays unchanged.
    pub fn set_quota(&self, quota: FlashQuota) -> Result<(), QuotaError> {
        if let Some(pages) = &self.pages {
            pages.check_quota(&quota.to_page_quota())?;
            pages.set_quota(quota.to_page_quota());
        }
        self.quota.replace(FlashQuota { enabled: self.enabled, ..quota });
        Ok(())
    }

    /// Releases the volume's quota when the volume is detached.
    pub fn release_quota(&self) {
        if let Some(pages) = &self.pages {
            pages.set_quota(FlashQuota::default().to_page_quota());
        }
    }

    /// True if there is a flash cache.
    pub fn is_used(&self) -> bool {
        self.pages.is_some()
    }

    /// Reason why the pages were dropped, if they were.
    pub fn drop_reason(&self) -> Option<String> {
        self.drop_reason.borrow().clone()
    }

    /// Updates the list of blocks of which only a part was written and destaged, the newest last.
    fn set_partial_blocks<B>(&self, destaged: &DestagedBlocks<B>) {
        let mut partial = self.partial_blocks.borrow_mut();
        let is_whole = |block: &BlockNo| destaged.last.iter().any(|(last, _)| last == block);
        partial.retain(|block| !destaged.partial.contains(block) && !is_whole(block));
        partial.extend(&destaged.partial);
        let excess = partial.len().saturating_sub(PARTIAL_MAX);
        partial.drain(..excess);
    }

    /// Stops reads from flash, promotions and new entries in the ring of recent writes until [`FlashTier::resume`].
    pub fn suspend(&self) {
        self.suspended.set(true);
    }

    /// True from [`FlashTier::suspend`] to [`FlashTier::resume`].
    fn is_suspended(&self) -> bool {
        self.suspended.get()
    }

    /// Ends the effect of [`FlashTier::suspend`].
    pub fn resume(&self) {
        self.suspended.set(false);
    }

    /// The counters.
    pub fn stats(&self) -> FlashStats {
        let (counters, block) = (&self.counters, BLOCK_BYTES as u64);
        let PageUsage { pages, valid_blocks } = self.pages.as_ref().map_or_else(PageUsage::default, VolumePages::usage);
        let (pinned_pages, pinned_whole, pin_waits) = self.pins.stats();
        FlashStats {
            checked: self.checked.get(),
            read_bytes: counters.read_blocks.get() * block,
            kept_read_bytes: counters.kept_blocks_read.get() * block,
            bad_blocks: counters.bad_blocks.get(),
            pages,
            cached_bytes: valid_blocks * block,
            pinned_pages,
            pinned_whole,
            pin_waits,
            promotions: counters.promoted_pages.get(),
            promoted_bytes: counters.promoted_blocks.get() * block,
            logged_bytes: 0,
            not_hit: counters.miss_reasons(),
            not_promoted: counters.rejections(),
        }
    }

    /// True if pages of the volume may be read from flash.
    pub fn is_checked(&self) -> bool {
        self.checked.get()
    }
}

/// The page of a block, and the block's index in it.
fn page_and_index(block: BlockNo) -> (PageNo, u32) {
    let (page, index) = block.page();
    (page, index as u32)
}

impl<S: Seam> Shard<S> {
    /// True if reads may be served from flash.
    fn may_read_flash(&self) -> bool {
        !self.flash_tier.is_suspended()
            && self.flash_tier.enabled
            && self.mode.get() != CacheMode::Paused
            && self.policy.get() != WritePolicy::None
    }

    /// The pages, if reads may be served from them.
    fn readable_pages(&self) -> Option<&VolumePages<S>> {
        let is_readable = self.flash_tier.checked.get() && self.may_read_flash();
        self.flash_tier.pages.as_ref().filter(|_| is_readable)
    }

    /// True if records of clean blocks are kept for reads.
    pub fn keeps_records(&self) -> bool {
        self.flash_tier.pages.is_some() && self.may_read_flash()
    }

    /// The kept record of a block, if reads may be served from it.
    fn kept_position(&self, block: BlockNo) -> Option<Position> {
        let position = self.kept_records.borrow().get(block).filter(|_| self.may_read_flash())?;
        self.core.log().filter(|store| !store.has_expired(position)).map(|_| position)
    }

    /// The pages, if pages may be added to them.
    fn fillable_pages(&self) -> Option<&VolumePages<S>> {
        self.readable_pages().filter(|_| self.admits_reads() && !self.stopping.get())
    }

    /// Invalidates the flash copies of these blocks before newer content is acknowledged (R2, docs/rules.md).
    pub fn invalidate_flash(&self, blocks: Range<BlockNo>) {
        if let Some(pages) = &self.flash_tier.pages
            && !blocks.is_empty()
            && !self.sabotage(Sabotage::StaleOnFlash)
        {
            self.restore_pins(&blocks);
            if !self.sabotage(Sabotage::KeptOverWrite) {
                self.kept_records.borrow_mut().remove(blocks.clone());
            }
            pages.invalidate(blocks);
        }
    }

    /// Marks the regions of these blocks as dirty; completes before the blocks may change on the backing (R8). Returns
    /// `None` without a flash cache.
    pub async fn begin_write(&self, blocks: Range<BlockNo>) -> Option<WriteIntent> {
        let pages = self.flash_tier.pages.as_ref()?;
        if self.sabotage(Sabotage::StaleOnFlash) {
            return None;
        }
        if self.sabotage(Sabotage::NoDirtyRegions) {
            pages.invalidate(blocks);
            return None;
        }
        if pages.wants_flush() {
            self.core.flush_backings_to_free_dirty_regions();
        }
        Some(pages.begin_write(blocks).await)
    }

    /// Ends a write that [`Shard::begin_write`] announced. `succeeded` is true if the write succeeded in full.
    pub fn end_write(&self, write_intent: Option<WriteIntent>, succeeded: bool) {
        if self.flash_tier.pages.is_none() {
            return;
        }
        // The write gets its own completion number: no flush that began earlier covers it.
        let sequence = self.state.borrow_mut().next_completion();
        if !succeeded {
            self.flash_tier.settled.set(sequence.next());
        }
        if let (Some(pages), Some(write_intent)) = (&self.flash_tier.pages, write_intent) {
            pages.end_write(write_intent, sequence);
        }
    }

    /// Records that a flush of the backing has covered all completions below `covered`, and that `destaged` is durable
    /// there. While the flash tier is suspended, `destaged` leaves no evidence: the content of the backing may be about
    /// to change, and the entries of the ring that the change invalidates are already dropped.
    pub fn record_backing_flush(&self, covered: CompletionNo, destaged: DestagedBlocks<S::Block>) {
        if let Some(pages) = &self.flash_tier.pages {
            pages.record_flush(covered);
        }
        let refreshed = self.queue_refresh(&destaged.blocks);
        // Under a policy that caches no writes, a block leaves memory although a refresh of its page is queued.
        let retained = if self.keeps_writes() { refreshed } else { BTreeSet::new() };
        self.drop_transit(&destaged.transit, &retained);
        if let Some(pages) = &self.flash_tier.pages {
            if self.flash_tier.is_suspended() {
                return;
            }
            let zeroes = self.seam().zero_block();
            destaged
                .last
                .iter()
                .for_each(|(block, content)| pages.record_destaged(*block, content.as_ref().unwrap_or(&zeroes)));
            let lacks_content = &self.flash_tier.lacks_destaged_content;
            let has_content =
                |content: &Option<S::Block>| content.as_ref().is_some_and(|block| !block.is_zero(0, BLOCK_BYTES));
            if lacks_content.get() && destaged.last.iter().any(|(_, content)| has_content(content)) {
                lacks_content.set(false);
            }
            self.flash_tier.set_partial_blocks(&destaged);
        }
    }

    /// Drops blocks from memory that were in it only to be destaged, except those of `retained` pages, whose queued
    /// refreshes copy them from memory.
    fn drop_transit(&self, blocks: &[BlockNo], retained: &BTreeSet<PageNo>) {
        self.with(|_, memory| {
            for block in blocks.iter().filter(|block| !retained.contains(&block.page().0)) {
                if let Some(id) = memory.find(self.number, *block)
                    && memory.slot(id).is_clean()
                    && memory.slot(id).transit
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

    /// True if every write that was ever sent to the backing is durable there, apart from writes known to be in flight.
    fn is_settled(&self) -> bool {
        self.state.borrow().synced >= self.flash_tier.settled.get()
    }

    /// Flushes the backing if content read from it would otherwise not be durable. Returns true if it is durable.
    async fn flush_if_unsettled(self: &ShardRef<S>) -> bool {
        self.is_settled() || (self.sync().await.is_durable() && self.is_settled())
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

/// Flushes backings with dirty regions while few regions are free. A backing that cannot be flushed is skipped until
/// the next write: without a free region, a write waits until the invalidation of its blocks is durable in the map.
pub async fn free_dirty_regions<S: Seam>(shards: Vec<ShardRef<S>>) {
    for shard in shards {
        if shard.flash_tier.pages.as_ref().is_some_and(VolumePages::wants_flush) {
            shard.sync().await;
        }
    }
}

/// Starts the background tasks of a volume's pages after the attach.
pub fn start<S: Seam>(shard: &ShardRef<S>) {
    if shard.flash_tier.pages.is_some() {
        shard.restart_pinning();
        let shard = Rc::downgrade(shard);
        if let Some(strong) = shard.upgrade() {
            strong.seam().clone().spawn(check::check(shard));
        }
    }
}
