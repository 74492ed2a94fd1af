//! The flash tier of a volume: its clean pages on flash, their quota, and counters.

pub mod budget;
pub mod counters;
pub mod destaged;
pub mod evidence;
pub mod page_fill_budget;
pub mod pins;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use flash::{CompletionNo, PageUsage, QuotaError, VolumePages};
use seam::{BLOCK_BYTES, Seam};

use crate::memory::{BlockNo, PageNo};
use crate::{FlashQuota, FlashStats};
use counters::TierCounters;
use destaged::{DestagedBlocks, PARTIAL_BLOCKS_MAX};
use evidence::EvidenceAttempt;
use page_fill_budget::PageFillBudget;
use pins::Pins;

/// The flash tier of a volume.
pub struct FlashTier<S: Seam> {
    /// The volume's pages; `None` without a flash cache.
    pub pages: Option<VolumePages<S>>,
    /// True if the volume may use flash at all.
    pub is_enabled: bool,
    /// True if pages from before the attach may be stale and are dropped.
    pub drops_old_pages: bool,
    /// True if no content was destaged since the attach, or since the ring was dropped. The blocks of the ring may then
    /// be ones that were read back: they identify the backing, but may be the same in an older copy of it.
    pub lacks_destaged_content: Cell<bool>,
    /// The latest attempt to destage evidence of the backing.
    pub evidence: EvidenceAttempt,
    /// The volume's quota of flash.
    pub quota: RefCell<FlashQuota>,
    /// The pinned pages of the quota.
    pub pins: Pins,
    /// True once the pages have been compared with the backing after the attach.
    pub is_checked: Cell<bool>,
    /// True while the cached pages are being dropped.
    is_suspended: Cell<bool>,
    /// Completion number that a flush of the backing must cover before content read from the backing counts as durable.
    /// An earlier process may have left unflushed writes, and a write may have failed in part.
    pub settled_completion: Cell<CompletionNo>,
    /// The last blocks of which only a part was written and destaged, oldest first.
    pub partial_blocks: RefCell<VecDeque<BlockNo>>,
    /// Reason why the pages were dropped, as text for users.
    pub drop_reason: RefCell<Option<String>>,
    /// Rate limit of page fills.
    pub page_fill_budget: PageFillBudget,
    /// A backing flush runs, so that later page fills read durable content.
    pub is_settling_flush_running: Cell<bool>,
    /// Counters of the flash tier.
    pub counters: TierCounters,
}

impl<S: Seam> FlashTier<S> {
    /// Creates the flash tier of a volume over these pages.
    pub fn new(pages: Option<VolumePages<S>>, quota: FlashQuota, drops_old_pages: bool) -> Self {
        if let Some(pages) = &pages {
            pages.set_quota(quota.to_page_quota());
        }
        let (enabled, quota) = (quota.is_enabled, RefCell::new(quota));
        FlashTier {
            pages,
            is_enabled: enabled,
            drops_old_pages,
            lacks_destaged_content: Cell::new(true),
            evidence: EvidenceAttempt::default(),
            quota,
            pins: Pins::default(),
            is_checked: Default::default(),
            is_suspended: Default::default(),
            settled_completion: Cell::new(CompletionNo(1)),
            partial_blocks: RefCell::default(),
            drop_reason: Default::default(),
            page_fill_budget: Default::default(),
            is_settling_flush_running: Default::default(),
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
        self.quota.replace(FlashQuota { is_enabled: self.is_enabled, ..quota });
        Ok(())
    }

    /// Releases the volume's quota when the volume is detached.
    pub fn release_quota(&self) {
        if let Some(pages) = &self.pages {
            pages.set_quota(FlashQuota::default().to_page_quota());
        }
    }

    /// True if there is a flash cache.
    pub fn has_flash_cache(&self) -> bool {
        self.pages.is_some()
    }

    /// Reason why the pages were dropped, if they were.
    pub fn drop_reason(&self) -> Option<String> {
        self.drop_reason.borrow().clone()
    }

    /// Updates the list of blocks of which only a part was written and destaged, the newest last.
    pub fn record_partial_blocks<B>(&self, destaged: &DestagedBlocks<B>) {
        let mut partial = self.partial_blocks.borrow_mut();
        let is_whole = |block: &BlockNo| destaged.last_blocks.iter().any(|(last, _)| last == block);
        partial.retain(|block| !destaged.partial_blocks.contains(block) && !is_whole(block));
        partial.extend(&destaged.partial_blocks);
        let excess = partial.len().saturating_sub(PARTIAL_BLOCKS_MAX);
        partial.drain(..excess);
    }

    /// Stops reads from flash, promotions and new entries in the ring of recent writes until [`FlashTier::resume`].
    pub fn suspend(&self) {
        self.is_suspended.set(true);
    }

    /// True from [`FlashTier::suspend`] to [`FlashTier::resume`].
    pub fn is_suspended(&self) -> bool {
        self.is_suspended.get()
    }

    /// Ends the effect of [`FlashTier::suspend`].
    pub fn resume(&self) {
        self.is_suspended.set(false);
    }

    /// The counters.
    pub fn stats(&self) -> FlashStats {
        let (counters, block) = (&self.counters, BLOCK_BYTES as u64);
        let PageUsage { pages, valid_blocks } = self.pages.as_ref().map_or_else(PageUsage::default, VolumePages::usage);
        let (pinned_pages, complete_pinned_pages, pin_wait_reason) = self.pins.stats();
        FlashStats {
            is_checked: self.is_checked.get(),
            read_bytes: counters.read_blocks.get() * block,
            kept_read_bytes: counters.kept_blocks_read.get() * block,
            bad_blocks: counters.bad_blocks.get(),
            page_count: pages,
            cached_bytes: valid_blocks * block,
            pinned_pages,
            complete_pinned_pages,
            pin_wait_reason,
            promotions: counters.promoted_pages.get(),
            promoted_bytes: counters.promoted_blocks.get() * block,
            logged_bytes: 0,
            miss_reasons: counters.miss_reasons(),
            rejection_reasons: counters.rejection_reasons(),
        }
    }

    /// True if pages of the volume may be read from flash.
    pub fn is_checked(&self) -> bool {
        self.is_checked.get()
    }
}

/// The page of a block, and the block's index in it.
pub fn page_and_index(block: BlockNo) -> (PageNo, u32) {
    let (page, index) = block.page();
    (page, index as u32)
}
