//! Look-ups of flash copies: the pages and the kept records that may serve reads now.

use flash::{Position, VolumePages};
use seam::Seam;

use super::Shard;
use crate::flash_tier::page_and_index;
use crate::memory::BlockNo;
use crate::{CacheMode, WritePolicy};

impl<S: Seam> Shard<S> {
    /// True if reads may be served from flash.
    pub fn may_read_flash(&self) -> bool {
        !self.flash_tier.is_suspended()
            && self.flash_tier.is_enabled
            && self.mode.get() != CacheMode::Paused
            && self.policy.get() != WritePolicy::None
    }

    /// The pages, if reads may be served from them.
    pub fn readable_pages(&self) -> Option<&VolumePages<S>> {
        let is_readable = self.flash_tier.is_checked.get() && self.may_read_flash();
        self.flash_tier.pages.as_ref().filter(|_| is_readable)
    }

    /// True if records of clean blocks are kept for reads.
    pub fn keeps_records(&self) -> bool {
        self.flash_tier.pages.is_some() && self.may_read_flash()
    }

    /// The kept record of a block, if reads may be served from it.
    pub fn kept_position(&self, block: BlockNo) -> Option<Position> {
        let position = self.kept_records.borrow().get(block).filter(|_| self.may_read_flash())?;
        self.core.log().filter(|store| !store.has_expired(position)).map(|_| position)
    }

    /// True if reads may be served from a flash copy of the block.
    pub fn is_on_flash(&self, block: BlockNo) -> bool {
        let (page, index) = page_and_index(block);
        self.readable_pages().is_some_and(|pages| pages.valid_blocks(page) >> index & 1 == 1)
            || self.kept_position(block).is_some()
    }

    /// The pages, if pages may be added to them.
    pub fn fillable_pages(&self) -> Option<&VolumePages<S>> {
        self.readable_pages().filter(|_| self.admits_reads() && !self.is_stopping.get())
    }
}
