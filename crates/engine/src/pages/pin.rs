//! Pins: pages that are to be on flash whoever uses them. A task brings them there in the background, and again when a client has changed
//! them; it ends when all are there, so that an idle volume has no timer. That they stay is the store's business.

use std::cell::Cell;
use std::rc::{Rc, Weak};

use flash::PagesOf;
use seam::{Nanos, Seam};

use super::figures::NotPromoted;
use crate::shard::{Shard, ShardRef};

/// Pause after a page that was brought: at most 32 MiB a second.
const PACE: Nanos = Nanos::from_millis(2);
/// The same while clients use the backing: at most 3.2 MiB a second.
const PACE_BUSY: Nanos = Nanos::from_millis(20);
/// Pages that are looked at before others get their turn.
const LOOKED_AT_ONCE: u64 = 1_024;
/// Pause before what was missing is looked for again, and the longest, while nothing comes of it.
const PAUSE: Nanos = Nanos::from_secs(1);
const PAUSE_MAX: Nanos = Nanos::from_secs(60);

/// How far the pins of a volume have come.
#[derive(Default)]
pub struct Pins {
    /// There are any.
    any: Cell<bool>,
    /// A task is bringing them.
    running: Cell<bool>,
    /// How often they have changed.
    changes: Cell<u64>,
    /// Something of them may be missing that was looked for already.
    changed: Cell<bool>,
    /// Pinned pages, and those of them that are whole on flash, as last seen.
    pages: Cell<(u64, u64)>,
    /// Why the last page could not be brought.
    waits: Cell<Option<NotPromoted>>,
}

impl Pins {
    /// Pinned pages, how many of them are whole on flash, and why the others are not, for people.
    pub fn stats(&self) -> (u64, u64, Option<&'static str>) {
        let (all, whole) = self.pages.get();
        let name = |why: NotPromoted| NotPromoted::ALL[why as usize].0;
        (all, whole, self.waits.get().filter(|_| whole < all).map(name))
    }

    /// Something could not be put on flash.
    pub fn wait_for(&self, why: NotPromoted) {
        self.waits.set(Some(why));
    }
}

/// What a look at all pinned pages has brought.
struct Pass {
    whole: u64,
    brought: u64,
}

impl<S: Seam> Shard<S> {
    /// The pins are others than before.
    pub fn repin(&self) {
        let all = self.level.share.borrow().of_pages().pinned_pages();
        self.level.pins.any.set(all > 0 && self.level.pages.is_some());
        self.level.pins.pages.set((all, 0));
        self.level.pins.changes.set(self.level.pins.changes.get() + 1);
        self.bring_pins();
    }

    /// What flash had of these blocks is gone: pinned ones come back when they are clean.
    pub(super) fn unpinned(&self, blocks: &std::ops::Range<u64>) {
        if !self.level.pins.any.get() {
            return;
        }
        let pages = flash::PAGE_BLOCKS as u64;
        let touches = {
            let share = self.level.share.borrow();
            let (first, end) = (blocks.start / pages, blocks.end.div_ceil(pages));
            share.pinned.iter().any(|range| range.start < end && first < range.end)
        };
        if touches {
            self.bring_pins();
        }
    }

    fn bring_pins(&self) {
        let pins = &self.level.pins;
        pins.changed.set(true);
        if !pins.any.get() || pins.running.replace(true) {
            return;
        }
        // A volume that is being attached is known in a moment.
        let (common, number) = (Rc::clone(&self.core), self.number);
        self.seam().spawn(async move {
            common.seam().sleep(PACE).await;
            if let Some(shard) = common.weak_of(number) {
                keep(shard).await;
            }
        });
    }

    /// Looks at every pinned page once and brings what is missing. `None`: nothing can be brought now, or the pins have changed.
    async fn pass(self: &ShardRef<S>) -> Option<Pass> {
        let ranges = self.level.share.borrow().pinned.clone();
        let (mut pass, changes) = (Pass { whole: 0, brought: 0 }, self.level.pins.changes.get());
        let mut looked = 0;
        for page in ranges.iter().flat_map(Clone::clone) {
            let pages: PagesOf<S> = self.growing_pages().cloned()?;
            looked += 1;
            if looked % LOOKED_AT_ONCE == 0 {
                self.seam().sleep(Nanos::from_micros(100)).await;
            }
            let mut whole = self.is_whole(&pages, page);
            if !whole {
                if pages.suspect(page) != 0 {
                    self.judge(page).await;
                }
                let before = pages.valid(page);
                self.complete(page, true).await;
                pass.brought += u64::from(pages.valid(page) & !before != 0);
                whole = self.is_whole(&pages, page);
                self.seam().sleep(if self.is_quiet() { PACE } else { PACE_BUSY }).await;
            }
            if self.level.pins.changes.get() != changes || self.stopping.get() {
                return None;
            }
            pass.whole += u64::from(whole);
            let (all, shown) = self.level.pins.pages.get();
            self.level.pins.pages.set((all, shown.max(pass.whole)));
        }
        let (all, _) = self.level.pins.pages.get();
        self.level.pins.pages.set((all, pass.whole));
        Some(pass)
    }

    fn is_whole(&self, pages: &PagesOf<S>, page: u64) -> bool {
        let blocks = self.page_blocks(page);
        let count = blocks.end.saturating_sub(blocks.start);
        u64::from(pages.valid(page).count_ones()) >= count
    }
}

/// Brings pinned pages until all are there.
async fn keep<S: Seam>(shard: Weak<Shard<S>>) {
    let mut pause = PAUSE;
    loop {
        let Some(strong) = shard.upgrade().filter(|shard| !shard.stopping.get()) else { return };
        let pins = &strong.level.pins;
        pins.changed.set(false);
        pins.waits.set(None);
        let pass = strong.pass().await;
        let (all, whole) = pins.pages.get();
        if !pins.any.get() || (pass.is_some() && whole == all && !pins.changed.get()) {
            pins.running.set(false);
            return;
        }
        let moved = pass.is_none_or(|pass| pass.brought > 0) || pins.changed.get();
        pause = if moved { PAUSE } else { Nanos(pause.0 * 2).min(PAUSE_MAX) };
        let seam = strong.seam().clone();
        drop(strong);
        seam.sleep(pause).await;
    }
}
