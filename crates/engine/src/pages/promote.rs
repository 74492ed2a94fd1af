//! Promotion: background tasks copy pages to flash that the admission rule chose, and compare suspect pages with the
//! backing.
//!
//! Each core runs a few tasks, which end when their queues are empty. The blocks of a page that are in memory are
//! written at once. The rest is read from the backing after clients have left it idle for a while, so that promotion
//! never delays them.

use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use flash::{PutError, VolumePages};
use seam::{Block, DiskResult, Nanos, Seam};

use crate::backing::Cause;
use crate::flash_tier::counters::RejectReason;
use crate::flash_tier::page_and_index;
use crate::memory::{BlockNo, PageNo, Sectors};
use crate::page_hash::page_hash;
use crate::policy::promotion::Verdict;
use crate::shard::core_state::CoreState;
use crate::shard::promoter::{PageJob, PageJobKind, PageRead};
use crate::shard::{Shard, ShardRef};

/// Limit of helper tasks: each writes one page at a time, and a device needs several requests in its queue for full
/// speed.
const HELPER_TASKS_MAX: usize = 7;
/// A kept record makes a refresh of its block unnecessary while at least this part of the segments is free for the log:
/// the log fills the free segments before it reuses the segment of the record.
const RETENTION_MIN_PERCENT: u64 = 25;
/// A backing without client requests for this long counts as idle and may be read in the background.
const QUIET_AFTER: Nanos = Nanos::from_millis(20);
/// Pause before the next check whether a backing is quiet.
const QUIET_PAUSE: Nanos = Nanos::from_millis(50);
/// Uses between two updates of the number of slots.
const USES_PER_RESIZE: u32 = 1024;

/// Carries out jobs until the queues are empty. The first task also does those that wait for a quiet backing.
async fn run_jobs<S: Seam>(core_state: Rc<CoreState<S>>, is_first: bool) {
    let promoter = core_state.promoter();
    loop {
        let job = promoter.pop();
        if let Some(job) = job {
            promoter.queued_page_reads.set(promoter.queued_page_reads.get() - usize::from(job.page_read.is_some()));
            if let Some(shard) = job.shard.upgrade() {
                shard.promote_page(job.page, job.page_read).await;
            }
            continue;
        }
        if !is_first {
            break;
        }
        let Some(job) = promoter.deferred_jobs.borrow_mut().pop_front() else { break };
        let Some(shard) = job.shard.upgrade().filter(|shard| !shard.is_stopping.get()) else { continue };
        if !shard.is_quiet() {
            promoter.deferred_jobs.borrow_mut().push_back(job);
            drop(shard);
            core_state.seam().sleep(QUIET_PAUSE).await;
            continue;
        }
        match job.kind {
            PageJobKind::VerifySuspect => shard.verify_suspect(job.page).await,
            PageJobKind::Complete => shard.complete_page(job.page, false).await,
            PageJobKind::Promote | PageJobKind::Refresh => {
                unreachable!("these jobs are in queues that do not wait for a quiet backing")
            }
        }
    }
    if is_first {
        promoter.is_running.set(false);
    } else {
        promoter.helper_tasks.set(promoter.helper_tasks.get() - 1);
    }
}

impl<S: Seam> Shard<S> {
    /// Counts uses of the pages whose `missing` blocks a client's read did not find in memory. Returns the pages to
    /// promote once they are read, for [`Shard::queue_promotions`].
    pub fn record_misses(&self, missing: impl Iterator<Item = BlockNo>, is_sequential: bool) -> Vec<PageNo> {
        let mut chosen = Vec::new();
        let counters = &self.flash_tier.counters;
        if self.flash_tier.pages.is_none() {
            return chosen;
        }
        let Some(pages) = self.fillable_pages() else {
            counters.count_rejection(RejectReason::Off);
            return chosen;
        };
        let mut last = None;
        for block in missing {
            let (page, index) = page_and_index(block);
            let valid = pages.valid_blocks(page);
            let is_on_flash = valid >> index & 1 == 1;
            if !is_on_flash && self.has_young_record(block) {
                if valid != 0 {
                    pages.touch(page);
                }
                continue;
            }
            if !is_on_flash && valid != 0 && chosen.last() != Some(&page) {
                // The page is on flash already; its missing blocks are promoted without earning it again.
                chosen.push(page);
            }
            let is_first_of_page = last.replace(page) != Some(page);
            if is_first_of_page && self.earns_promotion(pages, page, valid, is_sequential) {
                chosen.push(page);
            }
        }
        chosen
    }

    /// True if a kept record serves reads of the block and is in the first half of its lifetime. In the second half a
    /// read counts as a miss, so that the block's page takes it over before the record expires.
    fn has_young_record(&self, block: BlockNo) -> bool {
        self.kept_position(block).is_some_and(|position| !self.core.log().is_some_and(|log| log.expires_soon(position)))
    }

    /// Counts a read of a page that missed memory. True if the page is not on flash and the admission rule promotes it.
    fn earns_promotion(&self, pages: &VolumePages<S>, page: PageNo, valid: u16, is_sequential: bool) -> bool {
        let counters = &self.flash_tier.counters;
        if valid != 0 {
            pages.touch(page);
            return false;
        }
        if pages.suspect_blocks(page) != 0 {
            counters.count_rejection(RejectReason::Suspect);
            self.queue_job(page, PageJobKind::VerifySuspect);
            return false;
        }
        if is_sequential {
            counters.count_rejection(RejectReason::Stream);
            return false;
        }
        match self.record_use(page) {
            Verdict::Promote => return true,
            Verdict::First => counters.count_rejection(RejectReason::FirstUse),
            Verdict::Burst => counters.count_rejection(RejectReason::Burst),
        }
        false
    }

    /// Records a client's write that missed memory. It counts as a first use of the page, but never promotes: a write
    /// needs no content.
    pub fn record_write_miss(&self, block: BlockNo) {
        if let Some(pages) = self.fillable_pages() {
            let (page, _) = page_and_index(block);
            if pages.valid_blocks(page) == 0 {
                self.core.promoter().admission.borrow_mut().record_first_use(self.page_key(page));
            }
        }
    }

    /// Queues new flash copies of `blocks`, which a write invalidated and which are durable on the backing now. Only
    /// pages in use get new copies; without them, each write would cost a read of the backing later. A block whose kept
    /// record lasts long needs no copy. Returns the pages.
    pub(super) fn queue_refresh(&self, blocks: &[BlockNo]) -> BTreeSet<PageNo> {
        let mut queued = BTreeSet::new();
        let Some(pages) = self.fillable_pages() else { return queued };
        let is_retention_long = self.core.log().is_some_and(|log| log.retention_percent() >= RETENTION_MIN_PERCENT);
        let has_lasting_record = |block: &BlockNo| is_retention_long && self.kept_position(*block).is_some();
        let blocks: Vec<BlockNo> = blocks.iter().copied().filter(|block| !has_lasting_record(block)).collect();
        for blocks in blocks.chunk_by(|block, next| page_and_index(*block).0 == page_and_index(*next).0) {
            let page = page_and_index(blocks[0]).0;
            let written = blocks.iter().fold(0, |mask, block| mask | 1 << page_and_index(*block).1);
            let is_due = !pages.valid_blocks(page) & written != 0 && pages.is_used(page);
            if is_due && self.queue_job(page, PageJobKind::Refresh) {
                queued.insert(page);
            }
        }
        queued
    }

    /// Queues the pages that [`Shard::record_misses`] chose.
    pub fn queue_promotions(self: &ShardRef<S>, pages: Vec<PageNo>) {
        for page in pages {
            self.queue_job(page, PageJobKind::Promote);
        }
    }

    /// Queues a page that a page fill read.
    pub fn queue_page_read(&self, page: PageNo, page_read: PageRead<S>) {
        self.push_job(page, PageJobKind::Promote, Some(page_read));
    }

    /// Queues a job without content. Returns false if the queue is full.
    fn queue_job(&self, page: PageNo, kind: PageJobKind) -> bool {
        self.push_job(page, kind, None)
    }

    /// Queues a job, and starts a task unless enough of them run. Returns false if the queue is full.
    fn push_job(&self, page: PageNo, kind: PageJobKind, page_read: Option<PageRead<S>>) -> bool {
        let promoter = self.core.promoter();
        let shard = self.core.weak_shard(self.volume_number).unwrap_or_default();
        let pushed = promoter.push(PageJob { shard, page, kind, page_read });
        let is_queued = pushed.is_ok();
        if let Err(job) = pushed {
            self.flash_tier.counters.count_rejection(RejectReason::QueueFull);
            self.release_fill_guards(job.page_read.iter().map(|read| &read.guard));
        }
        if !promoter.is_running.replace(true) {
            self.seam().spawn(run_jobs(Rc::clone(&self.core), true));
        } else if matches!(kind, PageJobKind::Promote | PageJobKind::Refresh)
            && promoter.helper_tasks.get() < HELPER_TASKS_MAX
        {
            promoter.helper_tasks.set(promoter.helper_tasks.get() + 1);
            self.seam().spawn(run_jobs(Rc::clone(&self.core), false));
        }
        is_queued
    }

    /// Key of a page in the admission rule.
    fn page_key(&self, page: PageNo) -> u64 {
        page_hash(self.volume_number, page)
    }

    /// Records a use of a page that is not on flash. Returns what the admission rule decides.
    fn record_use(&self, page: PageNo) -> Verdict {
        let promoter = self.core.promoter();
        let mut rule = promoter.admission.borrow_mut();
        let uses = promoter.recorded_uses.get();
        promoter.recorded_uses.set(uses.wrapping_add(1));
        if uses.is_multiple_of(USES_PER_RESIZE)
            && let Some(pages) = self.core.pages()
        {
            rule.resize(pages.slots_max());
        }
        rule.set_condition(promoter.budget().promotion_condition());
        rule.record_use(self.page_key(page))
    }

    /// True if the backing has had no client requests for a while.
    pub(super) fn is_quiet(&self) -> bool {
        self.seam().now().since(self.last_request_at.get()) >= QUIET_AFTER && self.dispatch.is_idle()
    }

    /// Number of pages that were evicted for others.
    fn evicted_pages(&self) -> u64 {
        self.core.pages().map_or(0, |pages| pages.evictions())
    }

    /// The blocks of a page that lie inside the volume; none if the page is past its end.
    pub(super) fn page_blocks(&self, page: PageNo) -> Range<BlockNo> {
        let first = page.first_block();
        first..page.next().first_block().min(self.end_block()).max(first)
    }

    /// Clean whole blocks of a page that are in memory and not on flash.
    fn clean_blocks_in_memory(&self, page: PageNo, valid: u16) -> Vec<(u32, S::Block)> {
        self.with_state(|_, memory| {
            let slots = memory.page_slots(self.volume_number, page).unwrap_or_default();
            let absent = (0..).zip(slots).filter(|(index, _)| valid >> index & 1 == 0);
            let clean = absent.filter_map(|(index, slot)| {
                let slot = memory.slot(slot?);
                let is_whole = slot.is_clean() && slot.present == Sectors::ALL;
                let content = slot.data.clone().filter(|_| is_whole);
                content.map(|content| (index, content))
            });
            clean.collect()
        })
    }

    /// Puts a page on flash: the content that a page fill has read, or otherwise the page's clean blocks in memory. A
    /// further job completes a page of which only some blocks are then on flash.
    async fn promote_page(&self, page: PageNo, page_read: Option<PageRead<S>>) {
        let counters = &self.flash_tier.counters;
        let Some(pages) = self.fillable_pages().cloned() else {
            return self.release_fill_guards(page_read.iter().map(|read| &read.guard));
        };
        let blocks = self.page_blocks(page);
        let valid = pages.valid_blocks(page);
        let content = match page_read {
            Some(read) => self.blocks_to_promote(read, valid),
            None => self.clean_blocks_in_memory(page, valid),
        };
        if content.is_empty() {
            if valid == 0 {
                counters.count_rejection(RejectReason::NoContent);
            }
            return;
        }
        if let Err(reason) =
            self.core.promoter().budget().request_write(self.seam().now(), valid == 0, self.evicted_pages())
        {
            return counters.count_rejection(reason);
        }
        self.put_page(page, content, true).await;
        if pages.valid_blocks(page).count_ones() < BlockNo::count(&blocks) as u32 {
            self.queue_job(page, PageJobKind::Complete);
        }
    }

    /// Puts the missing blocks of a page on flash, if the page is pinned or partly on flash. A pinned page does not
    /// wait for a quiet backing.
    pub(super) async fn complete_page(self: &ShardRef<S>, page: PageNo, is_pinned: bool) {
        let Some(pages) = self.fillable_pages().cloned() else { return };
        let valid = pages.valid_blocks(page);
        let blocks = self.page_blocks(page);
        if (valid == 0 && !is_pinned) || blocks.is_empty() || !self.flush_if_unsettled().await {
            return;
        }
        let guard =
            self.with_state(|state, memory| state.issue_fill_guard(memory, self.volume_number, blocks.clone(), false));
        let in_memory = self.clean_blocks_in_memory(page, valid);
        let absent = |block: &BlockNo| {
            let (_, index) = page_and_index(*block);
            valid >> index & 1 == 0 && !in_memory.iter().any(|(other, _)| *other == index)
        };
        let missing = BlockNo::each(&blocks).find(absent).map(|first| {
            let last = BlockNo::each(&blocks).rev().find(absent).expect("the first absent block exists");
            first..last.next()
        });
        let read = match missing.clone() {
            Some(missing) => self.read_backing(missing).await,
            None => Ok(Vec::new()),
        };
        let mut content = self.clean_blocks_in_memory(page, valid);
        if let (Some(missing), Ok(read)) = (missing, read) {
            for (block, data) in BlockNo::each(&missing).zip(read) {
                let (_, index) = page_and_index(block);
                let is_valid = guard.invalidated(block) == Sectors::NONE && self.is_settled();
                let is_known = valid >> index & 1 == 1 || content.iter().any(|(other, _)| *other == index);
                if is_valid && !is_known {
                    content.push((index, data));
                }
            }
        }
        self.state.borrow_mut().release_fill_guard(&guard);
        if content.is_empty() {
            return;
        }
        match self.core.promoter().budget().request_write(self.seam().now(), false, self.evicted_pages()) {
            Ok(()) => {
                content.sort_by_key(|(index, _)| *index);
                self.put_page(page, content, !is_pinned).await;
            }
            Err(reason) => self.flash_tier.pins.set_wait_reason(reason),
        }
    }

    /// Compares the suspect blocks of a page with the backing.
    pub(super) async fn verify_suspect(self: &ShardRef<S>, page: PageNo) {
        let Some(pages) = self.readable_pages().cloned() else { return };
        let blocks = self.page_blocks(page);
        let suspect = pages.suspect_blocks(page);
        if suspect == 0 || blocks.is_empty() || !self.flush_if_unsettled().await {
            return;
        }
        let Ok(backing) = self.read_backing(blocks.clone()).await else { return };
        let mut verified = 0;
        for (index, content) in (0..).zip(&backing) {
            if suspect >> index & 1 == 0 {
                continue;
            }
            let Some(buffer) = self.with_state(|_, memory| memory.alloc()) else { return };
            let read = pages.read_suspect(page, index..index + 1, vec![buffer]).await.pop();
            if matches!(read, Some(Ok(copy)) if copy.has_same_content(content)) {
                verified |= 1 << index;
            }
        }
        if self.is_settled() {
            pages.resolve_suspect(page, verified);
        }
    }

    /// Reads a few blocks of the backing in the background.
    pub async fn read_backing(&self, blocks: Range<BlockNo>) -> DiskResult<Vec<S::Block>> {
        let count = (BlockNo::count(&blocks)) as usize;
        let Some(buffers) = self.core.alloc_all(count, false).await else {
            return Err(seam::DiskError::Io("no buffers are free for background reads".into()));
        };
        Ok(self.read_backing_blocks(blocks.start, buffers, Cause::Promotion).await?.0)
    }

    /// Puts blocks on flash. The caller must not await between reading `content` and this call: `put` registers the
    /// page before its first await, and from then on a write invalidates it (R2, docs/rules.md). `is_by_use`: the page
    /// is promoted because of its uses, not because it is pinned.
    async fn put_page(&self, page: PageNo, content: Vec<(u32, S::Block)>, is_by_use: bool) {
        let counters = &self.flash_tier.counters;
        let Some(pages) = self.fillable_pages().cloned() else { return };
        let new = pages.valid_blocks(page) == 0;
        let blocks = content.len() as u64;
        match pages.put(page, content).await {
            Ok(_) => {
                counters.count_promotion(new, blocks);
                self.core.promoter().budget().record_write(new && is_by_use, blocks, self.evicted_pages());
            }
            Err(error) => {
                let reason = match error {
                    PutError::NoSlot => RejectReason::NoSlot,
                    PutError::AllHot => RejectReason::AllHot,
                    PutError::QuotaUsed => RejectReason::QuotaUsed,
                    PutError::DeviceFailed(_) => RejectReason::DeviceFailed,
                };
                if !is_by_use {
                    return self.flash_tier.pins.set_wait_reason(reason);
                }
                counters.count_rejection(reason);
                if new {
                    // The admission rule has cleared the page's uses when it chose the page. Without this one, the page
                    // would begin anew.
                    self.core.promoter().admission.borrow_mut().record_first_use(self.page_key(page));
                }
            }
        }
    }
}
