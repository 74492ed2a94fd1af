//! Promotion: pages that have earned it are copied to flash, in the background, and pages that a crash left in doubt are judged.
//!
//! A few tasks a core, which end when there is nothing left to do. A page goes with what memory holds of it; the rest is read from the
//! backing only once clients have left that alone for a while, so that promotion is never in their way.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::{Rc, Weak};

use flash::PutError;
use seam::{Block, DiskResult, Nanos, Seam};

use super::budget::Budget;
use super::figures::NotPromoted;
use super::place_of;
use super::widen::PageRead;
use crate::CoreSpec;
use crate::backing::Cause;
use crate::memory::{BLOCKS_PER_PAGE, BlockNo, PageNo, Sectors, hash};
use crate::policy::promotion::{Admission, LateReturn, ThirdTouch, Verdict};
use crate::shard::common::Common;
use crate::shard::{Shard, ShardRef};
use crate::spec::AdmissionRule;

/// Pages that are put on flash at once, besides the first: a device that is asked for one thing at a time shows little of what it can.
const HELPERS: usize = 7;
/// Pages that wait, of each kind.
const QUEUE_MAX: usize = 1_024;
/// Clients have left a backing alone for this long: what nobody waits for may be read.
const QUIET: Nanos = Nanos::from_millis(20);
/// Pause before looking again whether a backing is quiet.
const QUIET_PAUSE: Nanos = Nanos::from_millis(50);
/// Uses between two looks at how many slots there are.
const RESIZE_EVERY: u32 = 1024;

/// What is to be done for a page.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Task {
    /// Put what memory holds of it on flash.
    Promote,
    /// The same for what was written over, when nothing else is to be promoted.
    Refresh,
    /// Put all of it there: what memory lacks is read from the backing.
    Complete,
    /// Compare what is in doubt with the backing.
    Judge,
}

struct Job<S: Seam> {
    shard: Weak<Shard<S>>,
    page: u64,
    task: Task,
    /// All of the page, where it was read for a client.
    read: Option<PageRead<S>>,
}

/// What the volumes of a core share for promotion.
pub struct Promoter<S: Seam> {
    rule: RefCell<Box<dyn Admission>>,
    uses: Cell<u32>,
    budget: Budget,
    queue: RefCell<VecDeque<Job<S>>>,
    /// What was written over: most of it will be again, so it goes after what has earned its place.
    refreshes: RefCell<VecDeque<Job<S>>>,
    /// What waits until its backing is quiet.
    patient: RefCell<VecDeque<Job<S>>>,
    running: Cell<bool>,
    held: Cell<usize>,
    /// Tasks besides the first.
    helping: Cell<usize>,
}

impl<S: Seam> Promoter<S> {
    /// As the core was told, beside a memory with room for so many whole pages.
    pub fn new(spec: &CoreSpec, memory_pages: u64) -> Self {
        let rule: Box<dyn Admission> = match spec.admission {
            AdmissionRule::LateReturn => Box::new(LateReturn::new(0, memory_pages)),
            AdmissionRule::ThirdTouch => Box::new(ThirdTouch::new(0)),
        };
        let (queue, refreshes, patient, running, held, helping, uses) = Default::default();
        Promoter {
            rule: RefCell::new(rule),
            uses,
            budget: Budget::new(spec.flash_bytes_a_day),
            queue,
            refreshes,
            patient,
            running,
            held,
            helping,
        }
    }

    /// Bytes that the history of uses takes.
    pub fn bytes(&self) -> u64 {
        self.rule.borrow().bytes()
    }

    /// What limits it.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Whole pages that wait with their content.
    pub fn held(&self) -> usize {
        self.held.get()
    }

    /// What is to be done next that need not wait for quiet.
    fn next(&self) -> Option<Job<S>> {
        let job = self.queue.borrow_mut().pop_front();
        job.or_else(|| self.refreshes.borrow_mut().pop_front())
    }

    /// The job, if there is no room for it.
    fn push(&self, job: Job<S>) -> Result<(), Job<S>> {
        let queue = match job.task {
            Task::Promote => &self.queue,
            Task::Refresh => &self.refreshes,
            Task::Complete | Task::Judge => &self.patient,
        };
        let mut queue = queue.borrow_mut();
        let same = |other: &&Job<S>| {
            other.page == job.page && other.task == job.task && Weak::ptr_eq(&other.shard, &job.shard)
        };
        if job.read.is_none() && queue.iter().rev().take(8).find(same).is_some() {
            return Ok(());
        }
        if queue.len() >= QUEUE_MAX {
            return Err(job);
        }
        self.held.set(self.held.get() + usize::from(job.read.is_some()));
        queue.push_back(job);
        Ok(())
    }
}

/// Runs until there is nothing to promote. `first`: it does what waits for quiet, too.
async fn work<S: Seam>(common: Rc<Common<S>>, first: bool) {
    let promoter = common.promoter();
    loop {
        let job = promoter.next();
        if let Some(job) = job {
            promoter.held.set(promoter.held.get() - usize::from(job.read.is_some()));
            if let Some(shard) = job.shard.upgrade() {
                shard.promote(job.page, job.read).await;
            }
            continue;
        }
        if !first {
            break;
        }
        let Some(job) = promoter.patient.borrow_mut().pop_front() else { break };
        let Some(shard) = job.shard.upgrade().filter(|shard| !shard.stopping.get()) else { continue };
        if !shard.is_quiet() {
            promoter.patient.borrow_mut().push_back(job);
            drop(shard);
            common.seam().sleep(QUIET_PAUSE).await;
            continue;
        }
        match job.task {
            Task::Judge => shard.judge(job.page).await,
            Task::Complete => shard.complete(job.page, false).await,
            Task::Promote | Task::Refresh => unreachable!("what need not wait for quiet is in another queue"),
        }
    }
    if first {
        promoter.running.set(false);
    } else {
        promoter.helping.set(promoter.helping.get() - 1);
    }
}

impl<S: Seam> Shard<S> {
    /// Counts the use of pages of which a client's read found `missing` not in memory, and says which are to be promoted once they
    /// were read: to be given to [`Shard::promote_soon`].
    pub fn note_misses(&self, missing: impl Iterator<Item = u64>, sequential: bool) -> Vec<u64> {
        let mut chosen = Vec::new();
        let figures = &self.level.figures;
        if self.level.pages.is_none() {
            return chosen;
        }
        let Some(pages) = self.growing_pages() else {
            figures.not_promoted(NotPromoted::Off);
            return chosen;
        };
        let mut last = None;
        for block in missing {
            let (page, place) = place_of(block);
            let valid = pages.valid(page);
            if valid >> place & 1 == 0 && valid != 0 && chosen.last() != Some(&page) {
                // The page is there; what it lacks has earned its place with it.
                chosen.push(page);
            }
            if last.replace(page) == Some(page) {
                continue;
            }
            if valid != 0 {
                pages.touch(page);
                continue;
            }
            if pages.suspect(page) != 0 {
                figures.not_promoted(NotPromoted::Suspect);
                self.later(page, Task::Judge);
                continue;
            }
            if sequential {
                figures.not_promoted(NotPromoted::Stream);
                continue;
            }
            match self.use_of(page) {
                Verdict::Earned => chosen.push(page),
                Verdict::First => figures.not_promoted(NotPromoted::FirstUse),
                Verdict::Burst => figures.not_promoted(NotPromoted::Burst),
            }
        }
        chosen
    }

    /// A client's write found nothing of a block in memory: a use, but one that asks for no content.
    pub fn note_write_miss(&self, block: u64) {
        if let Some(pages) = self.growing_pages() {
            let (page, _) = place_of(block);
            if pages.valid(page) == 0 {
                self.core.promoter().rule.borrow_mut().prepare(self.page_key(page));
            }
        }
    }

    /// What was written has taken the copies of `blocks` on flash away, and is durable on the backing now: where their pages are read,
    /// memory's content goes there again, or each write would cost a read of the backing later.
    pub(super) fn refresh(&self, blocks: &[u64]) {
        let Some(pages) = self.growing_pages() else { return };
        for blocks in blocks.chunk_by(|block, next| place_of(*block).0 == place_of(*next).0) {
            let page = place_of(blocks[0]).0;
            let written = blocks.iter().fold(0, |mask, block| mask | 1 << place_of(*block).1);
            if !pages.valid(page) & written != 0 && pages.is_used(page) {
                self.later(page, Task::Refresh);
            }
        }
    }

    /// Promotes pages that [`Shard::note_misses`] chose.
    pub fn promote_soon(self: &ShardRef<S>, pages: Vec<u64>) {
        for page in pages {
            self.later(page, Task::Promote);
        }
    }

    /// Promotes a page that was read for a client.
    pub fn promote_read(&self, page: u64, read: PageRead<S>) {
        self.queue(page, Task::Promote, Some(read));
    }

    fn later(&self, page: u64, task: Task) {
        self.queue(page, task, None);
    }

    fn queue(&self, page: u64, task: Task, read: Option<PageRead<S>>) {
        let promoter = self.core.promoter();
        let shard = self.core.weak_of(self.number).unwrap_or_default();
        if let Err(job) = promoter.push(Job { shard, page, task, read }) {
            self.level.figures.not_promoted(NotPromoted::QueueFull);
            self.return_tickets(job.read.iter().map(|read| &read.ticket));
        }
        if !promoter.running.replace(true) {
            self.seam().spawn(work(Rc::clone(&self.core), true));
        } else if matches!(task, Task::Promote | Task::Refresh) && promoter.helping.get() < HELPERS {
            promoter.helping.set(promoter.helping.get() + 1);
            self.seam().spawn(work(Rc::clone(&self.core), false));
        }
    }

    fn page_key(&self, page: u64) -> u64 {
        hash(self.number, PageNo(page))
    }

    fn use_of(&self, page: u64) -> Verdict {
        let promoter = self.core.promoter();
        let mut rule = promoter.rule.borrow_mut();
        let uses = promoter.uses.get();
        promoter.uses.set(uses.wrapping_add(1));
        if uses.is_multiple_of(RESIZE_EVERY)
            && let Some(pages) = self.core.pages()
        {
            rule.resize(pages.slots_max());
        }
        rule.set_price(promoter.budget.price());
        rule.used(self.page_key(page))
    }

    /// True when nothing that clients want has been asked of the backing for a while.
    pub(super) fn is_quiet(&self) -> bool {
        self.seam().now().since(self.last_request.get()) >= QUIET && self.dispatch.is_idle()
    }

    /// Pages that had to go for others.
    fn evictions(&self) -> u64 {
        self.core.pages().map_or(0, |pages| pages.evictions())
    }

    /// The blocks of a page inside the volume.
    pub(super) fn page_blocks(&self, page: u64) -> Range<u64> {
        let first = page * BLOCKS_PER_PAGE as u64;
        first..(first + BLOCKS_PER_PAGE as u64).min(self.blocks())
    }

    /// Clean whole blocks of a page that are in memory and not on flash.
    fn clean_in_memory(&self, page: u64, valid: u16) -> Vec<(u32, S::Block)> {
        self.with(|_, memory| {
            let slots = memory.page_slots(self.number, PageNo(page)).unwrap_or_default();
            let absent = (0..).zip(slots).filter(|(place, _)| valid >> place & 1 == 0);
            let clean = absent.filter_map(|(place, slot)| {
                let slot = memory.slot(slot?);
                let whole = slot.is_clean() && slot.present == Sectors::ALL;
                let content = slot.data.clone().filter(|_| whole);
                content.map(|content| (place, content))
            });
            clean.collect()
        })
    }

    /// Puts on flash what was read of a page, or what memory has of it.
    async fn promote(&self, page: u64, read: Option<PageRead<S>>) {
        let figures = &self.level.figures;
        let Some(pages) = self.growing_pages().cloned() else {
            return self.return_tickets(read.iter().map(|read| &read.ticket));
        };
        let blocks = self.page_blocks(page);
        let known = pages.valid(page);
        let content = match read {
            Some(read) => self.usable(read, known),
            None => self.clean_in_memory(page, known),
        };
        if content.is_empty() {
            if known == 0 {
                figures.not_promoted(NotPromoted::NoContent);
            }
            return;
        }
        if let Err(why) = self.core.promoter().budget.ask(self.seam().now(), known == 0, self.evictions()) {
            return figures.not_promoted(why);
        }
        self.put(page, content, true).await;
        if pages.valid(page).count_ones() < (blocks.end.saturating_sub(blocks.start)) as u32 {
            self.later(page, Task::Complete);
        }
    }

    /// Puts on flash what is missing of a page that is there, or that is pinned; in the latter case also while the backing is not quiet.
    pub(super) async fn complete(self: &ShardRef<S>, page: u64, pinned: bool) {
        let Some(pages) = self.growing_pages().cloned() else { return };
        let valid = pages.valid(page);
        let blocks = self.page_blocks(page);
        if (valid == 0 && !pinned) || blocks.is_empty() || !self.settle().await {
            return;
        }
        let ticket = self.with(|state, memory| state.issue_ticket(memory, self.number, blocks.clone(), false));
        let in_memory = self.clean_in_memory(page, valid);
        let absent = |block: &u64| {
            let (_, place) = place_of(*block);
            valid >> place & 1 == 0 && !in_memory.iter().any(|(other, _)| *other == place)
        };
        let missing = blocks.clone().find(absent).map(|first| {
            let last = blocks.clone().rev().find(absent).expect("there is a first one");
            first..last + 1
        });
        let read = match missing.clone() {
            Some(missing) => self.read_backing(missing).await,
            None => Ok(Vec::new()),
        };
        let mut content = self.clean_in_memory(page, valid);
        if let (Some(missing), Ok(read)) = (missing, read) {
            for (block, data) in missing.zip(read) {
                let (_, place) = place_of(block);
                let counts = ticket.voided(BlockNo(block)) == Sectors::NONE && self.is_settled();
                let known = valid >> place & 1 == 1 || content.iter().any(|(other, _)| *other == place);
                if counts && !known {
                    content.push((place, data));
                }
            }
        }
        self.state.borrow_mut().return_ticket(&ticket);
        if content.is_empty() {
            return;
        }
        match self.core.promoter().budget.ask(self.seam().now(), false, self.evictions()) {
            Ok(()) => {
                content.sort_by_key(|(place, _)| *place);
                self.put(page, content, !pinned).await;
            }
            Err(why) => self.level.pins.wait_for(why),
        }
    }

    /// Compares what is in doubt of a page with the backing; the backing is quiet.
    pub(super) async fn judge(self: &ShardRef<S>, page: u64) {
        let Some(pages) = self.readable_pages().cloned() else { return };
        let blocks = self.page_blocks(page);
        let suspect = pages.suspect(page);
        if suspect == 0 || blocks.is_empty() || !self.settle().await {
            return;
        }
        let Ok(backing) = self.read_backing(blocks.clone()).await else { return };
        let mut good = 0;
        for (place, content) in (0..).zip(&backing) {
            if suspect >> place & 1 == 0 {
                continue;
            }
            let Some(buffer) = self.with(|_, memory| memory.alloc()) else { return };
            let read = pages.read_suspect(page, place..place + 1, vec![buffer]).await.pop();
            if matches!(read, Some(Ok(found)) if found.same(content)) {
                good |= 1 << place;
            }
        }
        if self.is_settled() {
            pages.judge(page, good);
        }
    }

    /// Content of a few blocks, for nobody who waits.
    pub(super) async fn read_backing(&self, blocks: Range<u64>) -> DiskResult<Vec<S::Block>> {
        let count = (blocks.end - blocks.start) as usize;
        let Some(buffers) = self.core.alloc_all(count, false).await else {
            return Err(seam::DiskError::Io("no memory is free for what nobody waits for".into()));
        };
        Ok(self.read_blocks(blocks.start, buffers, Cause::Promotion).await?.0)
    }

    /// Nothing may be awaited between taking `content` and this: `put` knows the page from its first step on (R2). `earned`: by its uses.
    async fn put(&self, page: u64, content: Vec<(u32, S::Block)>, earned: bool) {
        let figures = &self.level.figures;
        let Some(pages) = self.growing_pages().cloned() else { return };
        let new = pages.valid(page) == 0;
        let blocks = content.len() as u64;
        match pages.put(page, content).await {
            Ok(_) => {
                figures.promoted(new, blocks);
                self.core.promoter().budget.spent(new && earned, blocks, self.evictions());
            }
            Err(error) => {
                let why = match error {
                    PutError::Busy => NotPromoted::Busy,
                    PutError::Hot => NotPromoted::Hot,
                    PutError::Share => NotPromoted::Share,
                    PutError::Failed(_) => NotPromoted::Failed,
                };
                if !earned {
                    return self.level.pins.wait_for(why);
                }
                figures.not_promoted(why);
                if new {
                    // What it had earned is not lost: its next use but one brings it back.
                    self.core.promoter().rule.borrow_mut().prepare(self.page_key(page));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use seam::sim::SimSeam;

    use super::*;

    #[test]
    fn what_earned_its_place_goes_before_what_is_refreshed_and_finds_room_whatever_waits_there() {
        let promoter = Promoter::<SimSeam>::new(&CoreSpec::default(), 64);
        let push = |page, task| promoter.push(Job { shard: Weak::new(), page, task, read: None }).is_ok();
        assert!((0..QUEUE_MAX as u64).all(|page| push(page, Task::Refresh)));
        assert!(!push(5_000, Task::Refresh), "each queue has an end");
        assert!(push(7_000, Task::Promote));
        let next: Vec<u64> = (0..2).filter_map(|_| promoter.next()).map(|job| job.page).collect();
        assert_eq!(next, [7_000, 0]);
    }
}
