//! The queues of promotion, and the rule that admits pages to flash.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use seam::Seam;

use super::Shard;
use super::fill_guard::FillGuard;
use crate::CoreSpec;
use crate::flash_tier::budget::Budget;
use crate::memory::{BlockNo, PageNo};
use crate::policy::promotion::{Admission, LateReturn, ThirdTouch};
use crate::spec::AdmissionRule;

/// Limit of each queue.
const QUEUED_JOBS_MAX: usize = 1_024;

/// Kind of work for a page.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum PageJobKind {
    /// Put the page's blocks that are in memory on flash.
    Promote,
    /// The same for blocks that were overwritten, at lower priority.
    Refresh,
    /// Put the whole page on flash: blocks that memory lacks are read from the backing.
    Complete,
    /// Compare suspect blocks with the backing.
    VerifySuspect,
}

/// Work for a page of a volume.
pub struct PageJob<S: Seam> {
    /// The volume.
    pub shard: Weak<Shard<S>>,
    /// The page.
    pub page: PageNo,
    /// Kind of work.
    pub kind: PageJobKind,
    /// Content of the page if a page fill read it.
    pub page_read: Option<PageRead<S>>,
}

/// A page that was read for a client and is to be promoted.
pub struct PageRead<S: Seam> {
    /// Fill guard that reports which blocks have changed since; the receiver releases it.
    pub guard: Rc<FillGuard>,
    /// First block of the page.
    pub first_block: BlockNo,
    /// Content of its blocks.
    pub blocks: Vec<S::Block>,
}

/// The promotion state that the volumes of a core share.
pub struct Promoter<S: Seam> {
    /// The rule that chooses pages.
    pub admission: RefCell<Box<dyn Admission>>,
    /// Number of recorded uses.
    pub recorded_uses: Cell<u32>,
    budget: Budget,
    /// Pages to promote.
    queue: RefCell<VecDeque<PageJob<S>>>,
    /// Overwritten pages: most of them will be overwritten again, so they come after newly promoted ones.
    refreshes: RefCell<VecDeque<PageJob<S>>>,
    /// Work that waits until its backing is quiet.
    pub deferred_jobs: RefCell<VecDeque<PageJob<S>>>,
    /// The first task runs.
    pub is_running: Cell<bool>,
    /// Number of queued page reads: jobs that hold the content of their page.
    pub queued_page_reads: Cell<usize>,
    /// Number of tasks besides the first.
    pub helper_tasks: Cell<usize>,
}

impl<S: Seam> Promoter<S> {
    /// Creates the promoter of a core whose memory holds `memory_pages` whole pages.
    pub fn new(spec: &CoreSpec, memory_pages: u64) -> Self {
        let rule: Box<dyn Admission> = match spec.admission {
            AdmissionRule::LateReturn => Box::new(LateReturn::new(0, memory_pages)),
            AdmissionRule::ThirdTouch => Box::new(ThirdTouch::new(0)),
        };
        Promoter {
            admission: RefCell::new(rule),
            recorded_uses: Default::default(),
            budget: Budget::new(spec.flash_bytes_a_day),
            queue: Default::default(),
            refreshes: Default::default(),
            deferred_jobs: Default::default(),
            is_running: Default::default(),
            queued_page_reads: Default::default(),
            helper_tasks: Default::default(),
        }
    }

    /// Bytes of memory that the history of uses takes.
    pub fn history_bytes(&self) -> u64 {
        self.admission.borrow().history_bytes()
    }

    /// The budget that limits promotion.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Number of queued page reads: jobs that hold the content of their page.
    pub fn queued_page_reads(&self) -> usize {
        self.queued_page_reads.get()
    }

    /// Takes the next job that does not wait for a quiet backing.
    pub fn pop(&self) -> Option<PageJob<S>> {
        let job = self.queue.borrow_mut().pop_front();
        job.or_else(|| self.refreshes.borrow_mut().pop_front())
    }

    /// Queues the job, or returns it if its queue is full.
    pub fn push(&self, job: PageJob<S>) -> Result<(), PageJob<S>> {
        let queue = match job.kind {
            PageJobKind::Promote => &self.queue,
            PageJobKind::Refresh => &self.refreshes,
            PageJobKind::Complete | PageJobKind::VerifySuspect => &self.deferred_jobs,
        };
        let mut queue = queue.borrow_mut();
        let is_same = |other: &&PageJob<S>| {
            other.page == job.page && other.kind == job.kind && Weak::ptr_eq(&other.shard, &job.shard)
        };
        // Repeated jobs of one page follow each other closely.
        if job.page_read.is_none() && queue.iter().rev().take(8).find(is_same).is_some() {
            return Ok(());
        }
        if queue.len() >= QUEUED_JOBS_MAX {
            return Err(job);
        }
        self.queued_page_reads.set(self.queued_page_reads.get() + usize::from(job.page_read.is_some()));
        queue.push_back(job);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use seam::sim::SimSeam;

    use super::*;

    #[test]
    fn promotions_precede_refreshes_and_have_their_own_queue() {
        let promoter = Promoter::<SimSeam>::new(&CoreSpec::default(), 64);
        let push = |page, kind| {
            promoter.push(PageJob { shard: Weak::new(), page: PageNo(page), kind, page_read: None }).is_ok()
        };
        assert!((0..QUEUED_JOBS_MAX as u64).all(|page| push(page, PageJobKind::Refresh)));
        assert!(!push(5_000, PageJobKind::Refresh), "each queue is bounded");
        assert!(push(7_000, PageJobKind::Promote));
        let next: Vec<u64> = (0..2).filter_map(|_| promoter.pop()).map(|job| job.page.0).collect();
        assert_eq!(next, [7_000, 0]);
    }
}
