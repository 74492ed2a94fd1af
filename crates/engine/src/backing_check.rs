//! Detects a backing that changed while the volume was not attached. Pages from before the attach serve reads only
//! after a sample of them matches the backing.
//!
//! Two samples are compared. One is the ring of recent writes: the blocks destaged last, up to 256, by their checksums.
//! The other is about 1,200 blocks by default (`CoreSpec::flash_check_blocks`), or all if there are fewer, spread
//! evenly over the slots of the cached pages, whose order is not that of the addresses. If a part *p* of the cached
//! blocks has changed, the check misses the change with probability (1 - *p*)^1200. For 1 % that is once in 170,000
//! times, for 0.1 % three times in ten.
//!
//! Entries of the ring are *unproven* if their region was dirty at a crash, and are dropped if the backing has changed.
//! Their blocks are read from the backing and entered again with their present content, so that the next start can
//! recognise this backing.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};

use flash::VolumePages;
use seam::{Block, Nanos, Seam};

use crate::backing::Cause;
use crate::flash_tier::destaged::PARTIAL_BLOCKS_MAX;
use crate::flash_tier::page_and_index;
use crate::memory::{BLOCKS_PER_PAGE, BlockNo, PageNo, Sectors};
use crate::shard::{Shard, ShardRef};
use crate::wait::Signal;

/// Maximum number of ring entries compared with a backing before it is written, counted separately for blocks with data
/// and for zero blocks, newest first. At a stop, up to [`PARTIAL_BLOCKS_MAX`] blocks are read back and become the
/// newest entries, however long ago they were written. The limit is twice that, so that at least half of the compared
/// entries are ordinary recent destages.
const COMPARED_BLOCKS_MAX: usize = 2 * PARTIAL_BLOCKS_MAX;
/// Concurrent comparisons.
const CONCURRENT_COMPARISONS_MAX: usize = 8;
/// Maximum number of unproven blocks that are read before a stop.
const REREAD_BLOCKS_MAX: usize = PARTIAL_BLOCKS_MAX;
/// Pause before the next attempt if the backing or the flash store has failed.
const RETRY_PAUSE: Nanos = Nanos::from_secs(1);

/// Result of a comparison.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ComparisonResult {
    /// All compared blocks have the same content.
    Same,
    /// A block has another content.
    Different,
    /// The backing could not be read.
    Unknown,
}

/// A unit of comparison with the backing.
#[derive(Clone, Copy)]
enum Candidate {
    /// An entry of the ring of recent writes: a block and its checksum.
    RecentWrite(BlockNo, u32),
    /// Blocks of a page on flash, as a mask.
    Page(PageNo, u16),
}

impl Candidate {
    fn first_block(self) -> BlockNo {
        match self {
            Candidate::RecentWrite(block, _) => block,
            Candidate::Page(page, _) => page.first_block(),
        }
    }
}

/// The items that the tasks of [`Shard::for_each_concurrently`] handle.
struct SharedItems<T, H> {
    items: Vec<T>,
    handle: H,
    /// Index of the next item that no task has taken.
    next_index: Cell<usize>,
    running_tasks: Cell<usize>,
    task_ended: Signal,
}

/// Starts the background tasks of a volume's pages after the attach.
pub fn start_page_tasks<S: Seam>(shard: &ShardRef<S>) {
    if shard.flash_tier.pages.is_some() {
        shard.restart_pinning();
        let shard = Rc::downgrade(shard);
        if let Some(strong) = shard.upgrade() {
            strong.seam().clone().spawn(check_backing(shard));
        }
    }
}

/// Compares the pages with the backing, and then admits or drops them; ends with the volume.
async fn check_backing<S: Seam>(shard: Weak<Shard<S>>) {
    let Some(core) = shard.upgrade().map(|shard| Rc::clone(&shard.core)) else { return };
    core.wait_for_map().await;
    let recorded_blocks = shard.upgrade().map(|shard| shard.recent_write_blocks()).unwrap_or_default();
    loop {
        let Some(strong) = shard.upgrade().filter(|shard| !shard.is_stopping.get()) else { return };
        let result = strong.compare_with_backing().await;
        if strong.is_stopping.get() {
            // The stop itself verifies the ring (`verify_recent_writes`) and relies on the order of its entries, so
            // nothing is added to it now.
            return;
        }
        match result {
            ComparisonResult::Same => break strong.flash_tier.is_checked.set(true),
            ComparisonResult::Different => {
                let text = "the backing changed while the volume was not attached: its pages on flash were dropped";
                *strong.flash_tier.drop_reason.borrow_mut() = Some(text.to_owned());
                strong.flash_tier.lacks_destaged_content.set(true);
                if strong.drop_pages().await.is_ok() {
                    break strong.flash_tier.is_checked.set(true);
                }
            }
            ComparisonResult::Unknown => {}
        }
        drop(strong);
        core.seam().sleep(RETRY_PAUSE).await;
    }
    loop {
        let Some(strong) = shard.upgrade().filter(|shard| !shard.is_stopping.get()) else { return };
        if strong.restore_recent_writes(&recorded_blocks).await {
            return;
        }
        drop(strong);
        core.seam().sleep(RETRY_PAUSE).await;
    }
}

impl<S: Seam> Shard<S> {
    /// Compares the ring and a sample of the pages with the backing. Drops pages that must not be trusted.
    async fn compare_with_backing(self: &ShardRef<S>) -> ComparisonResult {
        let Some(pages) = self.flash_tier.pages.clone() else { return ComparisonResult::Same };
        if !self.flash_tier.is_enabled || self.flash_tier.drops_old_pages {
            // Flash is disabled for the volume, or its pages are not trusted: pages from before are dropped and never
            // read.
            return if self.drop_pages().await.is_ok() { ComparisonResult::Same } else { ComparisonResult::Unknown };
        }
        let sample_blocks = self.core.spec().flash_check_blocks;
        let sample = pages.sample(self.seam().random(), sample_blocks);
        let recent_writes = if sample_blocks > 0 { pages.recent_writes() } else { Vec::new() };
        if sample.is_empty() && recent_writes.is_empty() {
            return ComparisonResult::Same;
        }
        // The comparison must see content that survives a power cut, since it decides whether pages are trusted.
        if !self.flush_backing().await.is_durable() {
            return ComparisonResult::Unknown;
        }
        let blocks_per_page = sample_blocks.div_ceil(sample.len().max(1)).min(BLOCKS_PER_PAGE) as u32;
        let recent_writes = recent_writes.into_iter().map(|(block, checksum)| Candidate::RecentWrite(block, checksum));
        let page_candidates = sample
            .into_iter()
            .map(|(page, mask)| Candidate::Page(page, sample_bits(mask, blocks_per_page, self.seam().random())));
        let mut candidates: Vec<Candidate> = recent_writes.chain(page_candidates).collect();
        candidates.sort_by_key(|candidate| candidate.first_block());
        let result = Rc::new(Cell::new(ComparisonResult::Same));
        let shared_result = Rc::clone(&result);
        self.for_each_concurrently(candidates, async move |shard, candidate| {
            if shared_result.get() == ComparisonResult::Same {
                // A stop ends the check without a result.
                let result = match shard.is_stopping.get() {
                    true => ComparisonResult::Unknown,
                    false => shard.compare_one(candidate).await,
                };
                if result != ComparisonResult::Same && shared_result.get() != ComparisonResult::Different {
                    shared_result.set(result);
                }
            }
        })
        .await;
        result.get()
    }

    /// Handles the items with [`CONCURRENT_COMPARISONS_MAX`] tasks, and waits for their end.
    async fn for_each_concurrently<T: Copy + 'static>(
        self: &ShardRef<S>,
        items: Vec<T>,
        handle: impl AsyncFn(&ShardRef<S>, T) + 'static,
    ) {
        let shared = Rc::new(SharedItems {
            items,
            handle,
            next_index: Cell::new(0),
            running_tasks: Cell::new(CONCURRENT_COMPARISONS_MAX),
            task_ended: Signal::default(),
        });
        for _ in 0..CONCURRENT_COMPARISONS_MAX {
            let (shard, shared) = (Rc::clone(self), Rc::clone(&shared));
            self.seam().spawn(async move {
                let next = &shared.next_index;
                while next.get() < shared.items.len() {
                    (shared.handle)(&shard, shared.items[next.replace(next.get() + 1)]).await;
                }
                shared.running_tasks.update(|running| running - 1);
                shared.task_ended.notify();
            });
        }
        shared.task_ended.wait_for(|| (shared.running_tasks.get() == 0).then_some(())).await;
    }

    /// Blocks in the ring of recent writes, proven and unproven.
    fn recent_write_blocks(&self) -> BTreeSet<BlockNo> {
        let Some(pages) = &self.flash_tier.pages else { return BTreeSet::new() };
        let proven = pages.recent_writes().into_iter().map(|(block, _)| block);
        proven.chain(pages.unproven_blocks()).collect()
    }

    /// Adds to the ring each of `blocks` without a proven entry, with the checksum of the backing's present content.
    /// Returns false if the backing cannot be flushed now.
    async fn restore_recent_writes(self: &ShardRef<S>, blocks: &BTreeSet<BlockNo>) -> bool {
        let Some(pages) = self.flash_tier.pages.clone() else { return true };
        let present: BTreeSet<BlockNo> = pages.recent_writes().into_iter().map(|(block, _)| block).collect();
        let without_proven_entry: Vec<BlockNo> = blocks.difference(&present).copied().collect();
        if without_proven_entry.is_empty() {
            return true;
        }
        // Flush first: a checksum of content that a power cut then undoes would make a healthy backing look changed.
        if !self.flush_backing().await.is_durable() {
            return false;
        }
        let ring_pages = pages.clone();
        self.for_each_concurrently(without_proven_entry, async move |shard, block| {
            if !shard.is_stopping.get() {
                shard.record_backing_content(&ring_pages, block, false).await;
            }
        })
        .await;
        // Their regions would otherwise stay dirty on an idle volume, so that a second crash made them unproven again.
        pages.schedule_clearing();
        true
    }

    /// Reads a block from the backing and records its checksum in the ring: as the newest entry (`is_new`), at the
    /// position of its old entry, or as the oldest without one.
    async fn record_backing_content(&self, pages: &VolumePages<S>, block: BlockNo, is_new: bool) {
        // The check at a start ignores a partial last block, so the ring does not keep it.
        if block.next().offset() > self.size_bytes.get() {
            return pages.drop_recent_write(block);
        }
        // If a client overwrote the block meanwhile, the destage of the newer content records it.
        let guard =
            self.with_state(|state, memory| state.issue_fill_guard(memory, self.volume_number, block.single(), false));
        let read = self.read_backing(block.single()).await;
        if let Ok([content]) = read.as_deref()
            && guard.invalidated(block) == Sectors::NONE
            && !self.flash_tier.is_suspended()
        {
            match is_new {
                true => pages.record_destaged(block, content),
                false => pages.record_reread(block, content),
            }
        }
        self.state.borrow_mut().release_fill_guard(&guard);
    }

    /// Compares the ring with the backing, and drops the pages and the ring's entries if they differ. It runs before a
    /// stop that leaves dirty data in the log, if the check has not ended since the attach. At the next start the ring
    /// identifies the backing, and its state in time, to which that dirty data belongs. If the volume's backing was
    /// replaced, a stale ring would accept the former backing and refuse the present one. Only the newest entries are
    /// compared, as at a start. No write is in flight, and the caller has flushed the backing, so even a block with
    /// newer dirty data in the log still has its recorded content on the backing.
    pub async fn verify_recent_writes(self: &ShardRef<S>) {
        let Some(pages) = self.flash_tier.pages.clone() else { return };
        if self.core.map_loaded().is_none() {
            return;
        }
        let zeroes = self.seam().zero_block().checksum(0);
        let entries: Vec<_> =
            newest_recent_writes(pages.recent_writes(), self.end_block(), zeroes).into_iter().collect();
        let is_different = Rc::new(Cell::new(false));
        let found = Rc::clone(&is_different);
        self.for_each_concurrently(entries, async move |shard, (block, checksum)| {
            // An unreadable block proves nothing.
            if let Ok([content]) = shard.read_backing(block.single()).await.as_deref()
                && content.checksum(0) != checksum
            {
                found.set(true);
            }
        })
        .await;
        if !is_different.get() {
            return;
        }
        let recorded_blocks = self.recent_write_blocks();
        self.flash_tier.lacks_destaged_content.set(true);
        if self.drop_pages().await.is_err() {
            return;
        }
        self.for_each_concurrently(recorded_blocks.into_iter().collect(), async move |shard, block| {
            if block.next().offset() <= shard.size_bytes.get()
                && let Ok([content]) = shard.read_backing(block.single()).await.as_deref()
            {
                pages.record_reread(block, content);
            }
        })
        .await;
    }

    /// Reads two kinds of blocks from the backing before a stop, because their destaged content is unknown: blocks of
    /// which only some sectors were written, and blocks not read since a crash. Without them, an older copy of the
    /// backing that differs only there would pass the check. The caller has flushed the backing.
    pub async fn record_unknown_blocks(self: &ShardRef<S>) {
        let Some(pages) = self.flash_tier.pages.clone() else { return };
        let partial = self.flash_tier.partial_blocks.take().into_iter().map(|block| (block, true));
        let unproven = pages.unproven_blocks().into_iter().rev().take(REREAD_BLOCKS_MAX).map(|block| (block, false));
        let blocks: Vec<(BlockNo, bool)> = partial.chain(unproven).collect();
        self.for_each_concurrently(blocks, async move |shard, (block, is_new)| {
            shard.record_backing_content(&pages, block, is_new).await;
        })
        .await;
    }

    /// Compares one candidate. A block written since the attach proves nothing and is skipped.
    async fn compare_one(&self, candidate: Candidate) -> ComparisonResult {
        loop {
            match self.try_compare(candidate).await {
                Some(result) => return result,
                None if self.is_stopping.get() => return ComparisonResult::Unknown,
                // A comparison that waits for buffers holds none: otherwise comparisons could hold all buffers that
                // reads of clients need.
                None => self.core.wait_for_buffers().await,
            }
        }
    }

    /// Like [`Shard::compare_one`]; `None`: too few buffers are free.
    async fn try_compare(&self, candidate: Candidate) -> Option<ComparisonResult> {
        let (blocks, mask) = match candidate {
            Candidate::RecentWrite(block, _) => (block.single(), 1),
            Candidate::Page(page, mask) => {
                let first = page.first_block();
                let end = first.plus(u64::from(16 - mask.leading_zeros()));
                (first.plus(u64::from(mask.trailing_zeros()))..end, mask >> mask.trailing_zeros())
            }
        };
        if blocks.end > self.end_block() {
            // The volume shrank just before it stopped. Pages past the new end are stale, but prove nothing about the
            // rest.
            if let Some(pages) = &self.flash_tier.pages {
                pages.invalidate(blocks);
            }
            return Some(ComparisonResult::Same);
        }
        let buffers = self.core.alloc_all(BlockNo::count(&blocks) as usize, false).await?;
        // The guard installs nothing: it only detects writes during the comparison.
        let guard =
            self.with_state(|state, memory| state.issue_fill_guard(memory, self.volume_number, blocks.clone(), false));
        let (mut result, mut lacks_buffers) = (ComparisonResult::Same, false);
        match self.read_backing_blocks(blocks.start, buffers, Cause::Promotion).await {
            Err(_) => result = ComparisonResult::Unknown,
            Ok((backing, _)) => {
                for (offset, content) in (0..).zip(&backing) {
                    let block = blocks.start.plus(offset);
                    if mask >> offset & 1 == 0 {
                        continue;
                    }
                    let is_same = match candidate {
                        Candidate::RecentWrite(_, checksum) => Some(content.checksum(0) == checksum),
                        Candidate::Page(..) => self.matches_flash(block, content).await,
                    };
                    lacks_buffers |= is_same.is_none();
                    if is_same == Some(false) && guard.invalidated(block) == Sectors::NONE && self.is_current(candidate)
                    {
                        result = ComparisonResult::Different;
                    }
                }
            }
        }
        self.state.borrow_mut().release_fill_guard(&guard);
        (result == ComparisonResult::Different || !lacks_buffers).then_some(result)
    }

    /// False if the block was destaged again before the fill guard was issued, so that the ring holds a newer checksum.
    fn is_current(&self, candidate: Candidate) -> bool {
        match candidate {
            Candidate::RecentWrite(block, checksum) => {
                self.flash_tier.pages.as_ref().is_some_and(|pages| pages.recent_writes().contains(&(block, checksum)))
            }
            Candidate::Page(..) => true,
        }
    }

    /// True if flash holds the same content, or no readable copy that could be wrong. `None`: no buffer is free. It
    /// does not wait for one: the caller holds buffers, which others may be waiting for.
    async fn matches_flash(&self, block: BlockNo, content: &S::Block) -> Option<bool> {
        let Some(pages) = self.flash_tier.pages.clone() else { return Some(true) };
        let (page, index) = page_and_index(block);
        if pages.valid_blocks(page) >> index & 1 == 0 {
            return Some(true);
        }
        let buffer = self.with_state(|_, memory| memory.alloc())?;
        Some(match pages.read(page, index..index + 1, vec![buffer]).await.pop() {
            Some(Ok(copy)) => copy.has_same_content(content),
            _ => true,
        })
    }
}

/// The entries of a ring of recent writes, oldest first, that are compared with a backing that ends at `end`. `zeroes`
/// is the checksum of a zero block.
pub fn newest_recent_writes(recent_writes: Vec<(BlockNo, u32)>, end: BlockNo, zeroes: u32) -> BTreeMap<BlockNo, u32> {
    // A shrunk backing is detected by its size. Blocks past its end must not use up the comparisons: an older copy of
    // the backing could differ in earlier writes alone.
    let inside = recent_writes.into_iter().rev().filter(|(block, _)| *block < end);
    // Zeroes are compared separately: they may be many, and the backing often held zeroes there before.
    let (zeroed, written): (Vec<_>, Vec<_>) = inside.partition(|(_, checksum)| *checksum == zeroes);
    [zeroed, written].into_iter().flat_map(|blocks| blocks.into_iter().take(COMPARED_BLOCKS_MAX)).collect()
}

/// Up to `count` of the set bits, starting at a random position.
fn sample_bits(mask: u16, count: u32, random: u64) -> u16 {
    let from = (random % 16) as u32;
    let indexes = (0..16).map(|index| (index + from) % 16).filter(|index| mask >> index & 1 == 1);
    indexes.take(count as usize).fold(0, |chosen, index| chosen | 1 << index)
}
