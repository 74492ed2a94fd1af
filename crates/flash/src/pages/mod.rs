//! Clean pages on flash: writes and reads of pages, and the record of writes to their backings.
//!
//! A page is 64 KiB of a volume, aligned; any subset of its 16 blocks may be valid. Flash holds one copy, and the
//! backing has the same content, so every error here is a miss. A block that differs from the backing must never be
//! served:
//!
//! - **R2** [`PagesOf::invalidate`] removes blocks at once, also from a `put` in progress.
//! - **R8** [`PagesOf::begin_write`] returns when the regions of a write are durably *dirty*: after a crash their pages
//!   are not trusted.
//! - **R11** Each block is checked before it is returned.
//!
//! `table.rs` maps pages to slots, `put.rs` and `read.rs` move data, `evict.rs` and `quota.rs` make room, `share.rs`
//! lends segments between the log and the pages, `bypass.rs` is the write-intent log. The map journal (`journal/`)
//! makes the map durable.

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
use crate::number::{BlockNo, CompletionNo, PageNo, VolumeId};
use crate::store::Inner;
use state::MapPhase;
use table::{ADDING, Phase, SUSPECT};

pub use api::{MapLoaded, PAGE_BLOCKS, PageMember, PagesStats, PutError, REGION_BLOCKS, Unread, WriteMark};
pub use quota::{Amount, PageShare, ShareError};

/// The clean pages of a store. Clones are handles to the same pages.
pub struct Pages<S: Seam>(pub(crate) Rc<Inner<S>>);

impl<S: Seam> Clone for Pages<S> {
    fn clone(&self) -> Self {
        Pages(Rc::clone(&self.0))
    }
}

impl<S: Seam> Pages<S> {
    /// Loads the map, once after the store was opened. Until it has ended every look-up finds nothing, `put` returns
    /// [`PutError::Busy`], and `begin_write` waits.
    ///
    /// # Panics
    /// If it is called twice.
    pub async fn load(&self) -> MapLoaded {
        load::load(&self.0).await
    }

    /// Declares the map on the devices void, because its owner noted so before it abandoned the map. [`Pages::load`],
    /// which follows, begins a new map that is durable when it returns.
    pub fn distrust(&self) {
        self.0.pages.borrow_mut().distrusted = true;
    }

    /// The pages of a volume, for the request path.
    pub fn volume(&self, incarnation: VolumeId) -> PagesOf<S> {
        PagesOf { inner: Rc::clone(&self.0), incarnation }
    }

    /// Drops all pages, marks and recent writes of a volume, durably. After an error they are dropped in memory alone.
    pub async fn forget(&self, incarnation: VolumeId) -> Result<(), StoreError> {
        bypass::loaded(&self.0).await;
        {
            let mut state = self.0.pages.borrow_mut();
            let Some(number) = state.numbers.remove(&incarnation) else { return Ok(()) };
            state.volumes.remove(&number);
            state.limits_of = None;
            for slot in state.table.of_volume(number, PageNo::ALL) {
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

    /// Abandons a void map, after the owner has noted it durably. The map is empty and accepts nothing, and
    /// `begin_write` returns at once.
    pub fn abandon(&self) {
        let mut state = self.0.pages.borrow_mut();
        state.abandoned = true;
        state.void("the map of clean pages was given up".to_owned());
    }

    /// The reason why the map is void, if it is: all log members have failed. Writes to backings wait until it is
    /// abandoned.
    pub fn failed(&self) -> Option<String> {
        match &self.0.pages.borrow().phase {
            MapPhase::Void(why) => Some(why.clone()),
            _ => None,
        }
    }

    /// The most slots that are possible while the log needs no more than its reserve.
    pub fn slots_max(&self) -> u64 {
        share::slots_max(&self.0, &self.0.pages.borrow()) as u64
    }

    /// The number of evicted pages.
    pub fn evictions(&self) -> u64 {
        self.0.pages.borrow().counts.evictions
    }

    /// State and counters.
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

/// The pages of one volume. Pages and blocks are numbered from the start of the volume, the blocks of a page from the
/// start of the page.
pub struct PagesOf<S: Seam> {
    inner: Rc<Inner<S>>,
    incarnation: VolumeId,
}

impl<S: Seam> Clone for PagesOf<S> {
    fn clone(&self) -> Self {
        PagesOf { inner: Rc::clone(&self.inner), incarnation: self.incarnation }
    }
}

impl<S: Seam> PagesOf<S> {
    /// The valid blocks of a page: bit *n* for block *n*, 0 for an absent page. Does not count as a use.
    pub fn valid(&self, page: PageNo) -> u16 {
        self.mask(page, false)
    }

    fn mask(&self, page: PageNo, suspect: bool) -> u16 {
        let state = self.inner.pages.borrow();
        let slot = state.find(self.incarnation, page).filter(|slot| state.table.has(*slot, SUSPECT) == suspect);
        slot.map_or(0, |slot| state.table.valid(slot))
    }

    /// Sets the volume's quota of pages. Pages above the quota are evicted when room is needed. If all minima together
    /// exceed the room, each is reduced in proportion.
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

    /// Checks whether the volume can be promised this quota, beside the promises of other volumes.
    pub fn check_share(&self, share: &PageShare) -> Result<(), ShareError> {
        quota::check(&self.inner, &self.inner.pages.borrow(), self.incarnation, share)
    }

    /// The number of the volume's pages, and of their valid blocks.
    pub fn held(&self) -> (u64, u64) {
        let state = self.inner.pages.borrow();
        let counts = state.numbers.get(&self.incarnation).map(|number| state.table.counts_of(*number));
        counts.map_or((0, 0), |counts| (counts.pages, counts.blocks))
    }

    /// Counts a use of a page, if it is present.
    pub fn touch(&self, page: PageNo) {
        let mut state = self.inner.pages.borrow_mut();
        if let Some(slot) = state.find(self.incarnation, page) {
            state.table.touch(slot);
        }
    }

    /// True when the page is present and was used since the clock last passed its slot.
    pub fn is_used(&self, page: PageNo) -> bool {
        let state = self.inner.pages.borrow();
        state.find(self.incarnation, page).is_some_and(|slot| state.table.uses(slot) > 0)
    }

    /// Reads a run of blocks of a page, one buffer each. A block that is invalid, unreadable or fails its check (R11)
    /// returns its buffer, and is no longer valid.
    ///
    /// # Panics
    /// If the numbers of buffers and blocks differ, or the run leaves the page.
    pub async fn read(
        &self,
        page: PageNo,
        blocks: Range<u32>,
        buffers: Vec<S::BlockMut>,
    ) -> Vec<Result<S::Block, Unread<S::BlockMut>>> {
        read::read(&self.inner, self.incarnation, page, blocks, buffers, false).await
    }

    /// Invalidates these blocks of the volume at once: in the map, and in a `put` in progress (R2).
    pub fn invalidate(&self, blocks: Range<BlockNo>) {
        let pending = {
            let mut state = self.inner.pages.borrow_mut();
            state.invalidate(self.incarnation, blocks);
            state.has_pending()
        };
        // Every client write calls this, and most calls change nothing.
        if pending {
            write_soon(&self.inner);
        }
    }

    /// Adds blocks of a page, each with the content that the backing durably holds at the time of this call. Returns
    /// the blocks that the map has now. Blocks that are already valid are not rewritten. The page is registered before
    /// the first await, so that [`PagesOf::invalidate`] sees it.
    ///
    /// # Panics
    /// If there is no block, or one outside a page.
    pub async fn put(&self, page: PageNo, blocks: Vec<(u32, S::Block)>) -> Result<u16, PutError> {
        assert!(!blocks.is_empty() && blocks.iter().all(|(block, _)| *block < PAGE_BLOCKS), "blocks of a page");
        put::put(&self.inner, self.incarnation, page, blocks).await
    }

    /// Prepares a write or a zeroing of these blocks on the backing, whatever its cause; it is awaited first. It
    /// invalidates the blocks. When it returns, their regions are durably dirty, or no durable record lists the blocks
    /// (R8).
    pub async fn begin_write(&self, blocks: Range<BlockNo>) -> WriteMark {
        bypass::begin_write(&self.inner, self.incarnation, blocks).await
    }

    /// Ends a write, whatever its outcome, as completion number `sequence` of the volume, in the numbering of
    /// [`PagesOf::flushed`].
    pub fn end_write(&self, mark: WriteMark, sequence: CompletionNo) {
        bypass::end_write(&self.inner, mark, sequence);
    }

    /// Notes a successful flush of the backing that was issued after all completions below `covered`.
    pub fn flushed(&self, covered: CompletionNo) {
        bypass::flushed(&self.inner, self.incarnation, covered);
    }

    /// True when marks are scarce and a flush of the backing would free some.
    pub fn wants_flush(&self) -> bool {
        bypass::wants_flush(&self.inner, self.incarnation)
    }

    /// Notes a destaged block in [`PagesOf::ring`]: the backing durably holds this content.
    pub fn destaged(&self, block: BlockNo, content: &S::Block) {
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

    /// The suspect blocks of a page: present but not trusted, since a crash interrupted a write to their region. They
    /// must be compared with the backing, which was flushed since the opening, and then judged.
    pub fn suspect(&self, page: PageNo) -> u16 {
        self.mask(page, true)
    }

    /// Reads suspect blocks of a page, like [`PagesOf::read`].
    pub async fn read_suspect(
        &self,
        page: PageNo,
        blocks: Range<u32>,
        buffers: Vec<S::BlockMut>,
    ) -> Vec<Result<S::Block, Unread<S::BlockMut>>> {
        read::read(&self.inner, self.incarnation, page, blocks, buffers, true).await
    }

    /// Ends the suspicion of a page: its blocks in `good` equal the durable content of the backing. They are valid from
    /// now on, unless they were invalidated meanwhile; the other blocks are dropped.
    pub fn judge(&self, page: PageNo, good: u16) {
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

    /// Recent writes: the last destaged blocks, each with the checksum (seed 0) that the backing must have.
    pub fn ring(&self) -> Vec<(BlockNo, u32)> {
        let state = self.inner.pages.borrow();
        state.numbers.get(&self.incarnation).map(|number| state.rings.of(*number)).unwrap_or_default()
    }

    /// Up to `count` pages with valid blocks, spread over the slots from an offset that `random` chooses: page and
    /// mask.
    pub fn sample(&self, random: u64, count: usize) -> Vec<(PageNo, u16)> {
        let state = self.inner.pages.borrow();
        let Some(number) = state.numbers.get(&self.incarnation).filter(|_| state.is_ready()) else { return Vec::new() };
        let slots = state.table.of_volume(*number, PageNo::ALL);
        // A page that lost all its blocks during an addition stays live, without a block.
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

/// Makes all pending records durable and removes marks that are not needed. Then the map accepts nothing more.
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
