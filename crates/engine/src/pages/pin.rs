//! Pins: pages that stay on flash regardless of use. A background task copies them to flash, and again after a client
//! has changed them. The task ends when all are complete on flash, so that an idle volume has no timer. The store
//! exempts pinned pages from eviction.

use std::rc::{Rc, Weak};

use flash::{BlockNo, PageNo, VolumePages};
use seam::{Nanos, Seam};

use crate::shard::{Shard, ShardRef};

/// Pause after each filled page: at most 32 MiB per second.
const PAUSE_PER_PAGE: Nanos = Nanos::from_millis(2);
/// The same while clients use the backing: at most 3.2 MiB per second.
const PAUSE_PER_PAGE_WHILE_BUSY: Nanos = Nanos::from_millis(20);
/// Pages checked before the task yields.
const PAGES_BEFORE_YIELD: u64 = 1_024;
/// Pause before the next pass over the pins; it grows to the maximum while the passes fill no page.
const PASS_PAUSE_MIN: Nanos = Nanos::from_secs(1);
/// See [`PASS_PAUSE_MIN`].
const PASS_PAUSE_MAX: Nanos = Nanos::from_secs(60);

/// Result of one pass over all pinned pages.
struct PassResult {
    /// Pinned pages that are complete on flash.
    complete_pages: u64,
    /// Pages that got blocks in this pass.
    filled_pages: u64,
}

impl<S: Seam> Shard<S> {
    /// Reads the changed pins and starts the task.
    pub fn restart_pinning(&self) {
        let pinned = self.flash_tier.quota.borrow().to_page_quota().pinned_pages();
        self.flash_tier.pins.has_pins.set(pinned > 0 && self.flash_tier.pages.is_some());
        self.flash_tier.pins.pinned_pages.set(pinned);
        self.flash_tier.pins.complete_pages.set(0);
        self.flash_tier.pins.change_count.set(self.flash_tier.pins.change_count.get() + 1);
        self.start_pinning();
    }

    /// Records that flash copies of these blocks were invalidated: pinned ones are filled again when the blocks are
    /// clean.
    pub(super) fn restore_pins(&self, blocks: &std::ops::Range<BlockNo>) {
        if !self.flash_tier.pins.has_pins.get() {
            return;
        }
        let are_pinned = {
            let quota = self.flash_tier.quota.borrow();
            let pages = PageNo::covering(blocks);
            quota.pinned.iter().any(|range| range.start < pages.end && pages.start < range.end)
        };
        if are_pinned {
            self.start_pinning();
        }
    }

    /// Starts the task that fills pinned pages, unless it runs.
    fn start_pinning(&self) {
        let pins = &self.flash_tier.pins;
        pins.needs_recheck.set(true);
        if !pins.has_pins.get() || pins.is_running.replace(true) {
            return;
        }
        // A volume that is being attached may not be registered yet.
        let (core_state, number) = (Rc::clone(&self.core), self.volume_number);
        self.seam().spawn(async move {
            core_state.seam().sleep(PAUSE_PER_PAGE).await;
            if let Some(shard) = core_state.weak_shard(number) {
                run_pinning(shard).await;
            }
        });
    }

    /// Checks every pinned page once and fills missing blocks. `None`: no page can be filled now, or the pins have
    /// changed.
    async fn run_pass(self: &ShardRef<S>) -> Option<PassResult> {
        let ranges = self.flash_tier.quota.borrow().pinned.clone();
        let (mut pass, changes) =
            (PassResult { complete_pages: 0, filled_pages: 0 }, self.flash_tier.pins.change_count.get());
        let mut checked_pages = 0;
        for page in ranges.iter().flat_map(PageNo::each) {
            let pages: VolumePages<S> = self.fillable_pages().cloned()?;
            checked_pages += 1;
            if checked_pages % PAGES_BEFORE_YIELD == 0 {
                self.seam().sleep(Nanos::from_micros(100)).await;
            }
            let mut is_complete = self.is_complete(&pages, page);
            if !is_complete {
                if pages.suspect_blocks(page) != 0 {
                    self.verify_suspect(page).await;
                }
                let before = pages.valid_blocks(page);
                self.complete_page(page, true).await;
                pass.filled_pages += u64::from(pages.valid_blocks(page) & !before != 0);
                is_complete = self.is_complete(&pages, page);
                self.seam().sleep(if self.is_quiet() { PAUSE_PER_PAGE } else { PAUSE_PER_PAGE_WHILE_BUSY }).await;
            }
            if self.flash_tier.pins.change_count.get() != changes || self.is_stopping.get() {
                return None;
            }
            pass.complete_pages += u64::from(is_complete);
            self.flash_tier.pins.complete_pages.update(|shown| shown.max(pass.complete_pages));
        }
        self.flash_tier.pins.complete_pages.set(pass.complete_pages);
        Some(pass)
    }

    /// True if flash has all blocks of a page.
    fn is_complete(&self, pages: &VolumePages<S>, page: PageNo) -> bool {
        let blocks = self.page_blocks(page);
        let count = BlockNo::count(&blocks);
        u64::from(pages.valid_blocks(page).count_ones()) >= count
    }
}

/// Fills pinned pages until all are complete on flash.
async fn run_pinning<S: Seam>(shard: Weak<Shard<S>>) {
    let mut pause = PASS_PAUSE_MIN;
    loop {
        let Some(strong) = shard.upgrade().filter(|shard| !shard.is_stopping.get()) else { return };
        let pins = &strong.flash_tier.pins;
        pins.needs_recheck.set(false);
        pins.wait_reason.set(None);
        let pass = strong.run_pass().await;
        let are_complete = pins.complete_pages.get() == pins.pinned_pages.get();
        if !pins.has_pins.get() || (pass.is_some() && are_complete && !pins.needs_recheck.get()) {
            pins.is_running.set(false);
            return;
        }
        let made_progress = pass.is_none_or(|pass| pass.filled_pages > 0) || pins.needs_recheck.get();
        pause = if made_progress { PASS_PAUSE_MIN } else { Nanos(pause.0 * 2).min(PASS_PAUSE_MAX) };
        let seam = strong.seam().clone();
        drop(strong);
        seam.sleep(pause).await;
    }
}
