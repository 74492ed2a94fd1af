//! The second level: a volume's clean pages on flash. What is served from there, what earns a place there, and what keeps it true.
//!
//! - **R2** [`Shard::uncache`]: a write, a discard and an invalidation take the flash copy away before they are acknowledged.
//! - **R8** [`Shard::begin_write`]: no write goes to the backing before its region is durably in flux.
//! - **R11** is the store's: what it gives was checked.
//!
//! A page is put on flash only with what the backing *durably* holds: clean blocks of memory, or content that was read from the
//! backing under a ticket while nothing was unsettled there.

pub mod budget;
mod check;
pub mod figures;
mod pin;
mod promote;
mod read;
pub mod slow;
mod widen;

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use flash::{PagesOf, ShareError, WriteMark};
use seam::Seam;

use crate::memory::BLOCKS_PER_PAGE;
use crate::shard::state::Destaged;
use crate::shard::{Shard, ShardRef};
use crate::spec::Sabotage;
use crate::{CacheMode, FlashShare, FlashStats, WritePolicy};
use figures::Figures;
use pin::Pins;
pub use promote::Promoter;
use widen::Width;

/// A volume's part of the flash cache.
pub struct Level<S: Seam> {
    pages: Option<PagesOf<S>>,
    /// It may have any at all.
    enabled: bool,
    /// What is there from before may be old.
    drops: bool,
    /// How much of the flash it may have.
    share: RefCell<FlashShare>,
    /// What of it is pinned.
    pins: Pins,
    /// The pages were compared with the backing since it was attached.
    checked: Cell<bool>,
    /// What is cached is being dropped.
    suspended: Cell<bool>,
    /// What was read from the backing is durable there once a flush has covered this completion: an earlier life may have written, and a
    /// write may have failed in part.
    settled: Cell<u64>,
    /// Why its pages were dropped, for people.
    dropped: RefCell<Option<String>>,
    /// What its backing has lately been asked for.
    pub width: Width,
    /// What it has done.
    pub figures: Figures,
}

impl<S: Seam> Level<S> {
    /// For a volume over these pages.
    pub fn new(pages: Option<PagesOf<S>>, share: FlashShare, drops: bool) -> Self {
        let (checked, suspended, dropped, width, figures) = Default::default();
        if let Some(pages) = &pages {
            pages.set_share(share.of_pages());
        }
        let (enabled, share) = (share.enabled, RefCell::new(share));
        Level {
            pages,
            enabled,
            drops,
            share,
            pins: Pins::default(),
            checked,
            suspended,
            settled: Cell::new(1),
            dropped,
            width,
            figures,
        }
    }

    /// What it may have of the flash.
    pub fn share(&self) -> FlashShare {
        self.share.borrow().clone()
    }

    /// Changes what it may have of the flash, where that can be promised beside what others were; whether it may have any at all stays.
    pub fn set_share(&self, share: FlashShare) -> Result<(), ShareError> {
        if let Some(pages) = &self.pages {
            pages.check_share(&share.of_pages())?;
            pages.set_share(share.of_pages());
        }
        self.share.replace(FlashShare { enabled: self.enabled, ..share });
        Ok(())
    }

    /// Promises the volume nothing any more: it leaves.
    pub fn give_up_share(&self) {
        if let Some(pages) = &self.pages {
            pages.set_share(FlashShare::default().of_pages());
        }
    }

    /// True when there is a flash cache.
    pub fn is_used(&self) -> bool {
        self.pages.is_some()
    }

    /// Why the pages were dropped, if they were.
    pub fn dropped(&self) -> Option<String> {
        self.dropped.borrow().clone()
    }

    /// Nothing is read from flash and nothing put there until [`Level::resume`].
    pub fn suspend(&self) {
        self.suspended.set(true);
    }

    /// Ends what [`Level::suspend`] began.
    pub fn resume(&self) {
        self.suspended.set(false);
    }

    /// What it has done.
    pub fn stats(&self) -> FlashStats {
        let (figures, block) = (&self.figures, seam::BLOCK_BYTES as u64);
        let (pages, blocks) = self.pages.as_ref().map_or((0, 0), PagesOf::held);
        let (pinned_pages, pinned_whole, pin_waits) = self.pins.stats();
        FlashStats {
            checked: self.checked.get(),
            read_bytes: figures.read_blocks.get() * block,
            bad_blocks: figures.bad_blocks.get(),
            pages,
            cached_bytes: blocks * block,
            pinned_pages,
            pinned_whole,
            pin_waits,
            promotions: figures.pages.get(),
            promoted_bytes: figures.blocks.get() * block,
            logged_bytes: 0,
            not_hit: figures.why_not_hit(),
            not_promoted: figures.why_not_promoted(),
        }
    }

    /// True when a page of the volume may be read from flash.
    pub fn is_checked(&self) -> bool {
        self.checked.get()
    }
}

/// The page and the place in it of a block.
fn place_of(block: u64) -> (u64, u32) {
    (block / BLOCKS_PER_PAGE as u64, (block % BLOCKS_PER_PAGE as u64) as u32)
}

impl<S: Seam> Shard<S> {
    /// The pages, where a read may be served from them.
    fn readable_pages(&self) -> Option<&PagesOf<S>> {
        let serves = self.level.checked.get()
            && !self.level.suspended.get()
            && self.level.enabled
            && self.mode.get() != CacheMode::Paused
            && self.policy.get() != WritePolicy::None;
        self.level.pages.as_ref().filter(|_| serves)
    }

    /// The pages, where one may be added to them.
    fn growing_pages(&self) -> Option<&PagesOf<S>> {
        self.readable_pages().filter(|_| self.admits_reads() && !self.stopping.get())
    }

    /// The newest content of these blocks is not what flash has (R2).
    pub fn uncache(&self, blocks: Range<u64>) {
        if let Some(pages) = &self.level.pages
            && !blocks.is_empty()
            && !self.sabotage(Sabotage::StaleOnFlash)
        {
            self.unpinned(&blocks);
            pages.invalidate(blocks);
        }
    }

    /// To be awaited before blocks of the backing are changed (R8); `None` where there is no flash cache.
    pub async fn begin_write(&self, blocks: Range<u64>) -> Option<WriteMark> {
        let pages = self.level.pages.as_ref()?;
        if self.sabotage(Sabotage::StaleOnFlash) {
            return None;
        }
        if self.sabotage(Sabotage::NoMarks) {
            pages.invalidate(blocks);
            return None;
        }
        if pages.wants_flush() {
            self.core.press_marks();
        }
        Some(pages.begin_write(blocks).await)
    }

    /// The write has ended. `well`: it did all that it was to do.
    pub fn end_write(&self, mark: Option<WriteMark>, well: bool) {
        if self.level.pages.is_none() {
            return;
        }
        // A number of its own: a flush that began before now does not cover it.
        let sequence = self.state.borrow_mut().next_completion();
        if !well {
            self.level.settled.set(sequence + 1);
        }
        if let (Some(pages), Some(mark)) = (&self.level.pages, mark) {
            pages.end_write(mark, sequence);
        }
    }

    /// A flush of the backing has covered all completions below `covered`, and `destaged` is durable there.
    pub fn note_flushed(&self, covered: u64, destaged: Destaged<S::Block>) {
        if let Some(pages) = &self.level.pages {
            pages.flushed(covered);
            self.refresh(&destaged.blocks);
            let zeroes = self.seam().zero_block();
            destaged
                .last
                .iter()
                .for_each(|(block, content)| pages.destaged(*block, content.as_ref().unwrap_or(&zeroes)));
        }
    }

    /// The backing durably holds all that was ever sent to it and is not known to be on its way.
    fn is_settled(&self) -> bool {
        self.state.borrow().synced >= self.level.settled.get()
    }

    /// Flushes the backing if that is what it takes for what is read there to be durable; true when it is.
    async fn settle(self: &ShardRef<S>) -> bool {
        self.is_settled() || (self.sync().await.is_durable() && self.is_settled())
    }

    /// The size of the backing is about to change, so that blocks from `from` on may become something else: nothing of them is trusted
    /// any more, now and after a crash. What is marked for that is to be given to [`Shard::end_write`], and [`Level::resume`] called.
    pub async fn begin_resize(&self, from: u64, shrinks: bool) -> Result<Option<WriteMark>, crate::RequestError> {
        self.level.suspend();
        if shrinks {
            // So much may be past the new end that it cannot be marked. A volume shrinks seldom: all goes.
            self.forget_pages().await?;
        }
        Ok(self.begin_write(from..from + 1).await)
    }

    /// Drops the pages of the volume, durably.
    pub async fn forget_pages(&self) -> Result<(), crate::RequestError> {
        let Some(pages) = self.core.pages() else { return Ok(()) };
        self.uncache(0..self.blocks());
        let forgotten = pages.forget(self.incarnation).await;
        forgotten.map_err(|error| seam::DiskError::Io(format!("the flash cache cannot drop pages: {error}")).into())
    }
}

/// Flushes backings whose regions are in flux while marks are scarce. One that cannot be flushed is left alone until the next write:
/// writes that find no mark wait until the map durably says nothing of their blocks.
pub async fn free_marks<S: Seam>(shards: Vec<ShardRef<S>>) {
    for shard in shards {
        if shard.level.pages.as_ref().is_some_and(PagesOf::wants_flush) {
            shard.sync().await;
        }
    }
}

/// Starts what a volume's pages need once it is attached.
pub fn start<S: Seam>(shard: &ShardRef<S>) {
    if shard.level.pages.is_some() {
        shard.repin();
        let shard = Rc::downgrade(shard);
        if let Some(strong) = shard.upgrade() {
            strong.seam().clone().spawn(check::check(shard));
        }
    }
}
