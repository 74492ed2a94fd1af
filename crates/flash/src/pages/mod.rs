//! Clean pages on flash: what the owner of a store puts there, reads from there, and says about writes to its backing.
//!
//! A page is 64 KiB of a volume, aligned, of which any of the 16 blocks may be there. There is one copy: whoever has put it there can
//! read it from the backing again, so every error here is a miss and nothing else. What must never happen is that a block is served
//! which the backing does not hold any more:
//!
//! - **R2** [`PagesOf::invalidate`] takes blocks away at once, also from a `put` that is under way.
//! - **R8** [`PagesOf::begin_write`] returns when the regions of a write are durably *in flux*: after a crash nothing of them is trusted.
//! - **R11** each block is checked before anybody sees it.
//!
//! `table.rs` says which slot holds which page, `put.rs` and `read.rs` move data, `evict.rs` makes room, `share.rs` shares segments with
//! the log, `bypass.rs` marks what is written past the pages. What is durable of it is the map journal's (`journal/`).

mod api;
mod bypass;
mod evict;
mod put;
mod quota;
mod read;
pub(crate) mod share;
pub(crate) mod state;
pub(crate) mod table;

use std::ops::Range;
use std::rc::Rc;

use seam::{Block, Seam};

use crate::error::StoreError;
use crate::format::journal::Record;
use crate::journal::{load, wait_durable, write_soon};
use crate::store::Inner;
use state::MapPhase;
use table::{ADDING, Phase, SUSPECT};

pub use api::{MapLoaded, PAGE_BLOCKS, PageMember, PagesStats, PutError, REGION_BLOCKS, Unread, WriteMark};
pub use quota::{Amount, PageShare, ShareError};

/// The clean pages of a store. A clone is another handle.
pub struct Pages<S: Seam>(pub(crate) Rc<Inner<S>>);

impl<S: Seam> Clone for Pages<S> {
    fn clone(&self) -> Self {
        Pages(Rc::clone(&self.0))
    }
}

impl<S: Seam> Pages<S> {
    /// Reads the map, once after the store was opened. Until it has ended every look-up finds nothing, `put` says
    /// [`PutError::Busy`], and `begin_write` waits.
    ///
    /// # Panics
    /// When it is called twice.
    pub async fn load(&self) -> MapLoaded {
        load::load(&self.0).await
    }

    /// The map on the devices is void, as its owner had noted before he abandoned it: [`Pages::load`], which comes after this, begins a new
    /// one, and that is durable when it returns.
    pub fn distrust(&self) {
        self.0.pages.borrow_mut().distrusted = true;
    }

    /// The pages of a volume, for the request path.
    pub fn volume(&self, incarnation: u64) -> PagesOf<S> {
        PagesOf { inner: Rc::clone(&self.0), incarnation }
    }

    /// Drops all pages, marks and noted blocks of a volume, durably. An error leaves them dropped in memory alone.
    pub async fn forget(&self, incarnation: u64) -> Result<(), StoreError> {
        bypass::loaded(&self.0).await;
        {
            let mut state = self.0.pages.borrow_mut();
            let Some(number) = state.numbers.remove(&incarnation) else { return Ok(()) };
            state.volumes.remove(&number);
            state.limits_of = None;
            for slot in state.table.of_volume(number, 0..u64::MAX) {
                let lives = state.table.phase(slot) == Phase::Live && !state.table.has(slot, ADDING);
                if lives { state.kill(slot, true) } else { state.clear(slot, u16::MAX) }
            }
            state.marks.forget(number);
            state.rings.forget(number);
            state.journal.events.push(Record::VolumeGone { number });
        }
        if wait_durable(&self.0).await {
            return Ok(());
        }
        match &self.0.pages.borrow().phase {
            MapPhase::Void(why) => Err(StoreError::Failed(why.clone())),
            _ => Ok(()),
        }
    }

    /// The owner has durably noted that this map is void: it holds nothing any more and takes nothing, and `begin_write` returns at
    /// once.
    pub fn abandon(&self) {
        let mut state = self.0.pages.borrow_mut();
        state.abandoned = true;
        state.void("the map of clean pages was given up".to_owned());
    }

    /// Why the map is void, where it is: the log members have all failed. Writes to backings wait until it is abandoned.
    pub fn failed(&self) -> Option<String> {
        match &self.0.pages.borrow().phase {
            MapPhase::Void(why) => Some(why.clone()),
            _ => None,
        }
    }

    /// Slots that there could be while the log needs no more than its reserve.
    pub fn slots_max(&self) -> u64 {
        share::slots_max(&self.0, &self.0.pages.borrow()) as u64
    }

    /// Pages that have gone for others.
    pub fn evictions(&self) -> u64 {
        self.0.pages.borrow().counts.evictions
    }

    /// How it stands.
    pub fn stats(&self) -> PagesStats {
        let state = self.0.pages.borrow();
        let table = &state.table;
        let counts = table.counts();
        PagesStats {
            pages: counts.pages,
            valid_blocks: counts.blocks,
            suspect: counts.suspect,
            loaded: state.is_ready(),
            slots: table.slots() as u64,
            slots_max: share::slots_max(&self.0, &state) as u64,
            free: state.free.len() as u64,
            evictions: state.counts.evictions,
            regions_in_flux: state.marks.len() as u64,
            members: state.counts.written.values().copied().collect(),
            memory_bytes: state.memory_bytes(),
        }
    }
}

/// The pages of one volume. Pages and blocks are numbered from the volume's start; the blocks of a page from the page's.
pub struct PagesOf<S: Seam> {
    inner: Rc<Inner<S>>,
    incarnation: u64,
}

impl<S: Seam> Clone for PagesOf<S> {
    fn clone(&self) -> Self {
        PagesOf { inner: Rc::clone(&self.inner), incarnation: self.incarnation }
    }
}

impl<S: Seam> PagesOf<S> {
    /// The blocks of a page that can be read: bit *n* for block *n*, 0 where there is nothing. Counts no use.
    pub fn valid(&self, page: u64) -> u16 {
        self.mask(page, false)
    }

    fn mask(&self, page: u64, suspect: bool) -> u16 {
        let state = self.inner.pages.borrow();
        let slot = state.find(self.incarnation, page).filter(|slot| state.table.has(*slot, SUSPECT) == suspect);
        slot.map_or(0, |slot| state.table.valid(slot))
    }

    /// Changes what the volume may have of the pages; what it has too much goes when room is needed. Minima that there is no room for
    /// are held as far as there is.
    pub fn set_share(&self, share: PageShare) {
        let mut state = self.inner.pages.borrow_mut();
        if share == PageShare::default() {
            state.shares.remove(&self.incarnation);
        } else {
            state.shares.insert(self.incarnation, share);
        }
        state.limits_of = None;
        quota::refresh(&self.inner, &mut state);
    }

    /// Whether the volume can be promised that much, beside what others were promised.
    pub fn check_share(&self, share: &PageShare) -> Result<(), ShareError> {
        quota::check(&self.inner, &self.inner.pages.borrow(), self.incarnation, share)
    }

    /// Pages of the volume that are there, and their valid blocks.
    pub fn held(&self) -> (u64, u64) {
        let state = self.inner.pages.borrow();
        let counts = state.numbers.get(&self.incarnation).map(|number| state.table.counts_of(*number));
        counts.map_or((0, 0), |counts| (counts.pages, counts.blocks))
    }

    /// Counts a use of a page, where it is there.
    pub fn touch(&self, page: u64) {
        let mut state = self.inner.pages.borrow_mut();
        if let Some(slot) = state.find(self.incarnation, page) {
            state.table.touch(slot);
        }
    }

    /// True when the page is there and somebody has used it since room was last looked for at its place.
    pub fn is_used(&self, page: u64) -> bool {
        let state = self.inner.pages.borrow();
        state.find(self.incarnation, page).is_some_and(|slot| state.table.uses(slot) > 0)
    }

    /// Reads a run of blocks of a page, one buffer each. A block that is not valid, cannot be read or does not match its checksum
    /// (R11) gives its buffer back, and is not valid any more.
    ///
    /// # Panics
    /// When there are not as many buffers as blocks, or the run leaves the page.
    pub async fn read(
        &self,
        page: u64,
        blocks: Range<u32>,
        buffers: Vec<S::BlockMut>,
    ) -> Vec<Result<S::Block, Unread<S::BlockMut>>> {
        read::read(&self.inner, self.incarnation, page, blocks, buffers, false).await
    }

    /// These blocks of the volume are not valid any more, at once: not in the map, and not of a `put` that is under way (R2).
    pub fn invalidate(&self, blocks: Range<u64>) {
        let pending = {
            let mut state = self.inner.pages.borrow_mut();
            state.invalidate(self.incarnation, blocks);
            state.has_pending()
        };
        // Every write of a client comes here, and most change nothing.
        if pending {
            write_soon(&self.inner);
        }
    }

    /// Adds blocks of a page, each with what the backing durably holds of it at the time of this call, and returns which of them the
    /// map has now. Blocks that are there already stay as they are. The page is known before the first await, so that
    /// [`PagesOf::invalidate`] sees it.
    ///
    /// # Panics
    /// With no block, or one that is not in a page.
    pub async fn put(&self, page: u64, blocks: Vec<(u32, S::Block)>) -> Result<u16, PutError> {
        assert!(!blocks.is_empty() && blocks.iter().all(|(block, _)| *block < PAGE_BLOCKS), "blocks of a page");
        put::put(&self.inner, self.incarnation, page, blocks).await
    }

    /// To be awaited before these blocks of the backing are written or zeroed, for whatever reason: they are not valid any more, and
    /// when this returns it is durable that their regions are in flux, or that nothing durable speaks of them (R8).
    pub async fn begin_write(&self, blocks: Range<u64>) -> WriteMark {
        bypass::begin_write(&self.inner, self.incarnation, blocks).await
    }

    /// The write has ended, well or not, as completion number `sequence` of the volume: what [`PagesOf::flushed`] counts in.
    pub fn end_write(&self, mark: WriteMark, sequence: u64) {
        bypass::end_write(&self.inner, mark, sequence);
    }

    /// A flush of the backing has succeeded that was issued after all completions below `covered`.
    pub fn flushed(&self, covered: u64) {
        bypass::flushed(&self.inner, self.incarnation, covered);
    }

    /// Few regions are left that could be marked: a flush of the backing soon would free some.
    pub fn wants_flush(&self) -> bool {
        bypass::wants_flush(&self.inner, self.incarnation)
    }

    /// The backing durably holds this content of a block, which was destaged: noted for [`PagesOf::ring`].
    pub fn destaged(&self, block: u64, content: &S::Block) {
        {
            let mut state = self.inner.pages.borrow_mut();
            if !state.is_ready() {
                return;
            }
            let Some(number) = state.number_of(self.incarnation) else { return };
            state.rings.push(number, block, content.checksum(0));
        }
        write_soon(&self.inner);
    }

    /// Blocks of a page that are there and not trusted, since a crash came upon a write to their region: to be compared with the
    /// backing, and judged. The backing has to have been flushed since the opening.
    pub fn suspect(&self, page: u64) -> u16 {
        self.mask(page, true)
    }

    /// Reads suspect blocks of a page, like [`PagesOf::read`].
    pub async fn read_suspect(
        &self,
        page: u64,
        blocks: Range<u32>,
        buffers: Vec<S::BlockMut>,
    ) -> Vec<Result<S::Block, Unread<S::BlockMut>>> {
        read::read(&self.inner, self.incarnation, page, blocks, buffers, true).await
    }

    /// Of a page's suspect blocks those in `good` were found to be what the backing durably holds, and are valid from now on unless
    /// they were invalidated meanwhile; the others are gone.
    pub fn judge(&self, page: u64, good: u16) {
        {
            let mut state = self.inner.pages.borrow_mut();
            let slot = state.find(self.incarnation, page).filter(|slot| state.table.has(*slot, SUSPECT));
            let Some(slot) = slot else { return };
            state.table.flag(slot, SUSPECT, false);
            state.clear(slot, !good);
        }
        bypass::idle(&self.inner);
        write_soon(&self.inner);
    }

    /// The last blocks that were destaged, each with the checksum (from seed 0) that the backing must have of it.
    pub fn ring(&self) -> Vec<(u64, u32)> {
        let state = self.inner.pages.borrow();
        state.numbers.get(&self.incarnation).map(|number| state.rings.of(*number)).unwrap_or_default()
    }

    /// Up to `count` pages with valid blocks, spread over the slots from a place that `random` says: page and mask.
    pub fn sample(&self, random: u64, count: usize) -> Vec<(u64, u16)> {
        let state = self.inner.pages.borrow();
        let Some(number) = state.numbers.get(&self.incarnation).filter(|_| state.is_ready()) else { return Vec::new() };
        let slots = state.table.of_volume(*number, 0..u64::MAX);
        // A page that lost all its blocks while some were being added lives on, empty.
        let good = |slot: &table::SlotId| {
            let table = &state.table;
            table.phase(*slot) == Phase::Live && !table.has(*slot, SUSPECT) && table.valid(*slot) != 0
        };
        let slots: Vec<_> = slots.into_iter().filter(good).collect();
        let count = count.min(slots.len());
        let pick = |index: usize| {
            let slot = slots[(random as usize % slots.len() + index * slots.len() / count) % slots.len()];
            (table::page_of(state.table.key(slot)).1, state.table.valid(slot))
        };
        (0..count).map(pick).collect()
    }
}

/// Everything pending is durable, and no region is marked without need; then nothing more is taken.
pub(crate) async fn close<S: Seam>(inner: &Rc<Inner<S>>) {
    if inner.pages.borrow().is_ready() {
        {
            let mut state = inner.pages.borrow_mut();
            state.drop_suspects_beside_destaged();
            state.unmark_all = true;
        }
        wait_durable(inner).await;
    }
    inner.pages.borrow_mut().void("the store was closed".to_owned());
}
