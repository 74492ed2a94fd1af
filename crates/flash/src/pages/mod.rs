//! Clean pages on flash: writes and reads of pages, and the write-intent log.
//!
//! A page is 64 KiB of a volume, aligned; any subset of its 16 blocks may be valid. Flash holds one copy, and the
//! backing has the same content, so every error here is a miss. A block that differs from the backing must never be
//! served:
//!
//! - **R2** [`VolumePages::invalidate`] removes blocks at once, also from a `put` in progress.
//! - **R8** [`VolumePages::begin_write`] returns when the regions of a write are durably *dirty*: after a crash their
//!   pages are suspect.
//! - **R11** Each block is checked before it is returned.
//!
//! `page_map/` maps pages to slots, `put.rs` and `read.rs` move data, and `evict.rs` and `quota.rs` make room.
//! `relocate.rs` moves pages off a member that leaves. `segment_lending.rs` lends segments between the log and the
//! pages, `slot_room.rs` computes their room, and `closed_member.rs` keeps new pages off a member. `write_intent.rs` is
//! the write-intent log. The map journal (`journal/`) makes the map durable.

mod api;
pub(crate) mod closed_member;
mod evict;
mod put;
mod quota;
mod read;
pub(crate) mod relocate;
pub(crate) mod segment_lending;
pub(crate) mod slot_room;
mod write_intent;

use std::ops::Range;
use std::rc::Rc;

use seam::{Block, Seam};

use crate::error::StoreError;
use crate::format::journal::JournalRecord;
use crate::journal::{load, schedule_commit, wait_durable};
use crate::number::{BlockNo, CompletionNo, MemberNo, PAGE_BLOCKS, PageNo, VolumeId};
use crate::page_map::dirty_regions::{REGION_BLOCKS, Region};
use crate::page_map::quota::PageQuota;
use crate::page_map::table::{self, ADDING, SUSPECT, SlotPhase};
use crate::page_map::{ALL_BLOCKS, DropRecord, MapPhase, PageTrust};
use crate::state::Inner;
use slot_room::PlannedChange;

pub use api::{PageReadError, PageUsage, PagesStats, PutError, WriteIntent};
pub use quota::QuotaError;
pub use slot_room::SlotRoom;
pub(crate) use write_intent::wait_loaded_if_begun;

/// The clean pages of a store. Clones are handles to the same pages.
pub struct Pages<S: Seam>(pub(crate) Rc<Inner<S>>);

impl<S: Seam> Clone for Pages<S> {
    fn clone(&self) -> Self {
        Pages(Rc::clone(&self.0))
    }
}

impl<S: Seam> Pages<S> {
    /// Loads the map, once after the store was opened. Until the map is loaded, every look-up is a miss, `put` returns
    /// [`PutError::NoSlot`], and `begin_write` waits.
    ///
    /// # Panics
    /// If it is called twice.
    pub async fn load(&self) -> load::MapLoadOutcome {
        load::load(&self.0).await
    }

    /// Ignores the map on the devices: the state directory has recorded that this map was abandoned. The following
    /// [`Pages::load`] starts an empty map, which is durable when `load` returns.
    pub fn ignore_persisted_map(&self) {
        self.0.pages.borrow_mut().is_persisted_map_ignored = true;
    }

    /// The pages of a volume, for the request path.
    pub fn volume(&self, volume_id: VolumeId) -> VolumePages<S> {
        VolumePages { inner: Rc::clone(&self.0), volume_id }
    }

    /// Drops all pages, dirty regions and recent writes of a volume, durably. After an error they are dropped in
    /// memory, but not durably.
    pub async fn remove_volume(&self, volume_id: VolumeId) -> Result<(), StoreError> {
        write_intent::wait_loaded(&self.0).await;
        {
            let mut state = self.0.pages.borrow_mut();
            let Some(number) = state.volume_numbers.remove(&volume_id) else { return Ok(()) };
            state.volumes.remove(&number);
            state.request_limits_update();
            for slot in state.table.slots_of_volume(number, PageNo::ALL) {
                // A slot with a put or an addition in progress is freed when that ends.
                let can_drop = state.table.phase(slot) == SlotPhase::Live && !state.table.has_flag(slot, ADDING);
                if can_drop {
                    state.drop_page(slot, DropRecord::Implied);
                } else {
                    state.invalidate_blocks(slot, ALL_BLOCKS);
                }
            }
            state.dirty_regions.remove_volume(number);
            state.recent_writes.remove_volume(number);
            state.journal.pending_records.push(JournalRecord::VolumeRemoved { number });
            state.record_removed_slots();
        }
        if wait_durable(&self.0).await {
            return Ok(());
        }
        // Only an unusable map ends the wait with the record still pending.
        self.unusable_reason().map_or(Ok(()), |reason| Err(StoreError::MapUnusable(reason)))
    }

    /// Abandons an unusable map, after the owner has durably recorded that it is abandoned. The map is empty and
    /// rejects all pages, and `begin_write` returns at once.
    pub fn abandon(&self) {
        let mut state = self.0.pages.borrow_mut();
        state.is_abandonment_recorded = true;
        state.disable_map("the map of clean pages was abandoned".to_owned());
    }

    /// The reason why the map is unusable, if it is: all log members have failed, the map was abandoned, or the store
    /// was closed. After a failure, writes to backings wait until the map is abandoned.
    pub fn unusable_reason(&self) -> Option<String> {
        match &self.0.pages.borrow().phase {
            MapPhase::Unusable(reason) => Some(reason.clone()),
            _ => None,
        }
    }

    /// Maximum number of slots while the log needs no more than its reserve.
    pub fn slots_max(&self) -> u64 {
        slot_room::slots_max(&self.0, &self.0.pages.borrow()) as u64
    }

    /// The number of pages on a member.
    pub fn pages_on(&self, member: MemberNo) -> u64 {
        self.0.pages.borrow().table.pages_on(member)
    }

    /// Pages that the removal of a member drops, because the others have no room for them.
    pub fn pages_lost_without(&self, member: MemberNo) -> u64 {
        relocate::pages_lost_without(&self.0, member)
    }

    /// The number of evicted pages.
    pub fn evictions(&self) -> u64 {
        self.0.pages.borrow().counters.evictions
    }

    /// State and counters.
    pub fn stats(&self) -> PagesStats {
        let state = self.0.pages.borrow();
        let table = &state.table;
        let counts = table.counts();
        let room = slot_room::slot_room(&self.0, &state, PlannedChange::default());
        PagesStats {
            pages: counts.pages,
            valid_blocks: counts.valid_blocks,
            suspect_pages: counts.suspect_pages,
            is_loaded: state.is_ready(),
            slots: table.slot_count() as u64,
            slots_max: room.usable_slots(),
            unmapped_slots: room.unmapped_slots(),
            free_slots: state.slot_lists.free.len() as u64,
            evictions: state.counters.evictions,
            dirty_regions: state.dirty_regions.len() as u64,
            members: state.counters.written.values().copied().collect(),
            memory_bytes: state.memory_bytes(),
        }
    }
}

/// The pages of one volume. Pages and blocks are numbered from the start of the volume, the blocks of a page from the
/// start of the page.
pub struct VolumePages<S: Seam> {
    inner: Rc<Inner<S>>,
    volume_id: VolumeId,
}

impl<S: Seam> Clone for VolumePages<S> {
    fn clone(&self) -> Self {
        VolumePages { inner: Rc::clone(&self.inner), volume_id: self.volume_id }
    }
}

impl<S: Seam> VolumePages<S> {
    /// The valid blocks of a page: bit *n* for block *n*, 0 for an absent page. Does not count as a use.
    pub fn valid_blocks(&self, page: PageNo) -> u16 {
        self.blocks_of_page(page, PageTrust::Trusted)
    }

    /// The blocks of a page; 0 if its trust differs.
    fn blocks_of_page(&self, page: PageNo, trust: PageTrust) -> u16 {
        let state = self.inner.pages.borrow();
        let slot = state.find(self.volume_id, page).filter(|slot| state.trust_of(*slot) == trust);
        slot.map_or(0, |slot| state.table.valid_mask(slot))
    }

    /// Sets the volume's quota of pages. Pages above the quota are evicted when room is needed. If all minima together
    /// exceed the room, each is reduced in proportion.
    pub fn set_quota(&self, quota: PageQuota) {
        let mut state = self.inner.pages.borrow_mut();
        if quota == PageQuota::default() {
            state.quotas.remove(&self.volume_id);
        } else {
            state.quotas.insert(self.volume_id, quota);
        }
        state.request_limits_update();
        quota::refresh_limits(&self.inner, &mut state);
    }

    /// Checks whether this quota can be granted in addition to the quotas of other volumes.
    pub fn check_quota(&self, quota: &PageQuota) -> Result<(), QuotaError> {
        quota::check_quota(&self.inner, &self.inner.pages.borrow(), self.volume_id, quota)
    }

    /// The volume's cached pages.
    pub fn usage(&self) -> PageUsage {
        let state = self.inner.pages.borrow();
        let counts = state.volume_numbers.get(&self.volume_id).map(|number| state.table.counts_of(*number));
        counts
            .map_or(PageUsage::default(), |counts| PageUsage { pages: counts.pages, valid_blocks: counts.valid_blocks })
    }

    /// Counts a use of a page, if it is present.
    pub fn touch(&self, page: PageNo) {
        let mut state = self.inner.pages.borrow_mut();
        if let Some(slot) = state.find(self.volume_id, page) {
            state.table.touch(slot);
        }
    }

    /// True when the page is present and was used since the CLOCK hand last passed its slot.
    pub fn is_used(&self, page: PageNo) -> bool {
        let state = self.inner.pages.borrow();
        state.find(self.volume_id, page).is_some_and(|slot| state.table.uses(slot) > 0)
    }

    /// Reads a run of blocks of a page, one buffer each. A block that is invalid, unreadable or fails its check (R11,
    /// docs/rules.md) returns its buffer, and is no longer valid.
    ///
    /// # Panics
    /// If the numbers of buffers and blocks differ, or the run leaves the page.
    pub async fn read(
        &self,
        page: PageNo,
        blocks: Range<u32>,
        buffers: Vec<S::BlockMut>,
    ) -> Vec<Result<S::Block, PageReadError<S::BlockMut>>> {
        read::read(&self.inner, self.volume_id, page, blocks, buffers, PageTrust::Trusted).await
    }

    /// Invalidates these blocks of the volume at once: in the map, and in a `put` in progress (R2).
    pub fn invalidate(&self, blocks: Range<BlockNo>) {
        let pending = {
            let mut state = self.inner.pages.borrow_mut();
            state.invalidate(self.volume_id, blocks);
            state.has_pending()
        };
        // Every client write calls this, and most calls change nothing.
        if pending {
            schedule_commit(&self.inner);
        }
    }

    /// Adds blocks of a page. The caller guarantees that the backing durably holds their content at the time of this
    /// call. Returns the blocks that are now valid. Blocks that are already valid are not rewritten. The page is
    /// registered before the first await, so that [`VolumePages::invalidate`] sees it.
    ///
    /// # Panics
    /// If there is no block, or one outside a page.
    pub async fn put(&self, page: PageNo, blocks: Vec<(u32, S::Block)>) -> Result<u16, PutError> {
        assert!(!blocks.is_empty() && blocks.iter().all(|(block, _)| *block < PAGE_BLOCKS), "blocks of a page");
        put::put(&self.inner, self.volume_id, page, blocks).await
    }

    /// Prepares a write or a zeroing of these blocks on the backing: invalidates the blocks and marks their regions
    /// dirty. Callers await it before the write, for every cause of writes. When it returns, the regions are durably
    /// dirty, or no durable record lists the blocks (R8).
    pub async fn begin_write(&self, blocks: Range<BlockNo>) -> WriteIntent {
        write_intent::begin_write(&self.inner, self.volume_id, blocks).await
    }

    /// Ends a write, successful or not. `completion` is its number in the volume's order of completed writes, as in
    /// [`VolumePages::record_flush`].
    pub fn end_write(&self, intent: WriteIntent, completion: CompletionNo) {
        write_intent::end_write(&self.inner, intent, completion);
    }

    /// Records a successful flush of the backing that was issued after all completions below `covered`.
    pub fn record_flush(&self, covered: CompletionNo) {
        write_intent::record_flush(&self.inner, self.volume_id, covered);
    }

    /// True when the write-intent log is nearly full and a flush of the backing would let regions be cleared.
    pub fn wants_flush(&self) -> bool {
        write_intent::wants_flush(&self.inner, self.volume_id)
    }

    /// Adds a destaged block to [`VolumePages::recent_writes`]: the backing durably holds this content.
    pub fn record_destaged(&self, block: BlockNo, content: &S::Block) {
        {
            let mut state = self.inner.pages.borrow_mut();
            if !state.is_ready() {
                return;
            }
            let Some(number) = state.get_or_assign_number(self.volume_id) else { return };
            state.recent_writes.push(number, block, content.checksum(0));
        }
        schedule_commit(&self.inner);
    }

    /// True once the map is read and usable.
    pub fn is_loaded(&self) -> bool {
        self.inner.pages.borrow().is_ready()
    }

    /// Makes the pending records of the map durable, recent writes included. Returns false if the map is
    /// unusable.
    pub async fn make_records_durable(&self) -> bool {
        wait_durable(&self.inner).await
    }

    /// Records a block among the recent writes, with the content that was read from the backing after a crash. A block
    /// that was destaged since keeps its entry.
    pub fn record_reread(&self, block: BlockNo, content: &S::Block) {
        {
            let mut state = self.inner.pages.borrow_mut();
            if !state.is_ready() {
                return;
            }
            let Some(number) = state.get_or_assign_number(self.volume_id) else { return };
            if state.recent_writes.proven(number).iter().any(|(recent, _)| *recent == block) {
                return;
            }
            state.recent_writes.record_reread(number, block, content.checksum(0));
        }
        schedule_commit(&self.inner);
    }

    /// Clears the settled regions once no write has begun for some seconds.
    pub fn schedule_clearing(&self) {
        write_intent::schedule_clearing(&self.inner);
    }

    /// Recent writes in regions that were dirty at a crash: the backing has this content or newer one. The caller reads
    /// them from the backing and calls [`VolumePages::record_reread`] or [`VolumePages::drop_recent_write`].
    pub fn unproven_blocks(&self) -> Vec<BlockNo> {
        self.unproven_recent_writes().into_iter().map(|(block, _)| block).collect()
    }

    /// Drops a block from the recent writes.
    pub fn drop_recent_write(&self, block: BlockNo) {
        let mut state = self.inner.pages.borrow_mut();
        let Some(number) = state.volume_numbers.get(&self.volume_id).copied() else { return };
        let removed = state.recent_writes.remove(number, block.single());
        state.journal.pending_records.extend(removed);
    }

    /// The suspect blocks of a page: their region was dirty at a crash, so they may differ from the backing. The caller
    /// flushes the backing, compares the blocks with it and calls [`VolumePages::resolve_suspect`].
    pub fn suspect_blocks(&self, page: PageNo) -> u16 {
        self.blocks_of_page(page, PageTrust::Suspect)
    }

    /// Reads suspect blocks of a page, like [`VolumePages::read`].
    pub async fn read_suspect(
        &self,
        page: PageNo,
        blocks: Range<u32>,
        buffers: Vec<S::BlockMut>,
    ) -> Vec<Result<S::Block, PageReadError<S::BlockMut>>> {
        read::read(&self.inner, self.volume_id, page, blocks, buffers, PageTrust::Suspect).await
    }

    /// Resolves a suspect page. Its blocks in `good` equal the durable content of the backing: they become valid unless
    /// they were invalidated meanwhile. The other blocks are dropped.
    pub fn resolve_suspect(&self, page: PageNo, good: u16) {
        {
            let mut state = self.inner.pages.borrow_mut();
            let slot = state.find(self.volume_id, page).filter(|slot| state.table.has_flag(*slot, SUSPECT));
            let Some(slot) = slot else { return };
            state.table.set_flag(slot, SUSPECT, false);
            state.invalidate_blocks(slot, !good);
        }
        write_intent::schedule_clearing(&self.inner);
        schedule_commit(&self.inner);
    }

    /// Recent writes: the last destaged blocks, each with the checksum (seed 0) that the backing must have.
    pub fn recent_writes(&self) -> Vec<(BlockNo, u32)> {
        let state = self.inner.pages.borrow();
        state.volume_numbers.get(&self.volume_id).map(|number| state.recent_writes.proven(*number)).unwrap_or_default()
    }

    /// Recent writes in regions that were dirty at a crash, with their checksums: the backing had this content, and has
    /// it or newer one.
    pub fn unproven_recent_writes(&self) -> Vec<(BlockNo, u32)> {
        let state = self.inner.pages.borrow();
        let number = state.volume_numbers.get(&self.volume_id);
        number.map(|number| state.recent_writes.unproven(*number)).unwrap_or_default()
    }

    /// Number of recent writes, zeroes excluded: other disks have zeroes, too, so they prove nothing about a backing.
    pub fn nonzero_recent_writes(&self) -> usize {
        let state = self.inner.pages.borrow();
        state.volume_numbers.get(&self.volume_id).map_or(0, |number| state.recent_writes.nonzero(*number).count())
    }

    /// True if the journal has a record of a recent write with content, which the next opening can compare.
    pub fn has_recorded_content(&self) -> bool {
        let state = self.inner.pages.borrow();
        let number = state.volume_numbers.get(&self.volume_id);
        number.is_some_and(|number| state.recent_writes.has_recorded_content(*number))
    }

    /// Number of recent writes by which the next opening can recognise the backing as unchanged: like
    /// [`VolumePages::nonzero_recent_writes`], without those in regions that a close leaves dirty, which the next
    /// opening does not trust.
    pub fn provable_recent_writes(&self) -> usize {
        let state = self.inner.pages.borrow();
        let Some(number) = state.volume_numbers.get(&self.volume_id).copied() else { return 0 };
        let region_of = |block: &BlockNo| Region { volume_number: number, index: block.0 / REGION_BLOCKS };
        let is_left_dirty = |block: &BlockNo| state.dirty_regions.is_unsettled(region_of(block));
        state.recent_writes.nonzero(number).filter(|block| !is_left_dirty(block)).count()
    }

    /// Up to `count` pages with valid blocks, each with the mask of these blocks. They are spread evenly over the
    /// slots, from an offset that `random` chooses.
    pub fn sample(&self, random: u64, count: usize) -> Vec<(PageNo, u16)> {
        let state = self.inner.pages.borrow();
        let Some(number) = state.volume_numbers.get(&self.volume_id).filter(|_| state.is_ready()) else {
            return Vec::new();
        };
        let slots = state.table.slots_of_volume(*number, PageNo::ALL);
        // A page that lost all its blocks during an addition stays live, without a block.
        let has_trusted_blocks = |slot: &table::SlotId| {
            let table = &state.table;
            table.phase(*slot) == SlotPhase::Live
                && state.trust_of(*slot) == PageTrust::Trusted
                && table.valid_mask(*slot) != 0
        };
        let slots: Vec<_> = slots.into_iter().filter(has_trusted_blocks).collect();
        let count = count.min(slots.len());
        let pick = |index: usize| {
            let slot = slots[(random as usize % slots.len() + index * slots.len() / count) % slots.len()];
            (table::page_of(state.table.key(slot)).1, state.table.valid_mask(slot))
        };
        (0..count).map(pick).collect()
    }
}

/// Makes all pending records durable and clears settled dirty regions. Afterwards the map rejects all pages.
pub(crate) async fn close<S: Seam>(inner: &Rc<Inner<S>>) {
    if inner.pages.borrow().is_ready() {
        {
            let mut state = inner.pages.borrow_mut();
            state.drop_suspects_near_recent_writes();
            state.should_clear_all_settled = true;
        }
        wait_durable(inner).await;
    }
    inner.pages.borrow_mut().disable_map("the store was closed".to_owned());
}
