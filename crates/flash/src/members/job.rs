//! What is being done to the members: one thing at a time, seen, held and called off by its owner.

use std::rc::Rc;

use seam::{DiskError, Nanos, Seam};

use crate::error::StoreError;
use crate::format::superblock::MemberEntry;
use crate::store::Inner;

/// Between two looks of somebody who waits.
const PAUSE: Nanos = Nanos::from_millis(1);

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobKind {
    /// A device comes.
    Add,
    /// A member goes.
    Remove,
    /// A device comes for a member that goes.
    Replace,
    /// A member that held pages alone is going to carry the log.
    TakeOver,
}

/// How far it has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobReport {
    /// What is being done.
    pub kind: JobKind,
    /// To which member; `None` as long as it has no number.
    pub member: Option<u32>,
    /// Bytes copied.
    pub done_bytes: u64,
    /// Of so many.
    pub total_bytes: u64,
    /// How long it has been at it.
    pub age: Nanos,
    /// It waits to be told to go on.
    pub paused: bool,
}

struct Job {
    report: JobReport,
    begun: Nanos,
    cancelled: bool,
    /// The newcomer did not take a batch.
    failed: Option<DiskError>,
}

/// The one that runs, if any.
#[derive(Default)]
pub struct Jobs {
    current: Option<Job>,
    /// A take-over was called off: none begins by itself.
    declined: bool,
    /// What the newcomer will be as a member.
    prepared: Option<MemberEntry>,
}

impl Jobs {
    /// True when a take-over may begin.
    pub fn may_take_over(&self) -> bool {
        self.current.is_none() && !self.declined
    }

    /// How far the one that runs has come.
    pub fn report(&self, now: Nanos) -> Option<JobReport> {
        self.current.as_ref().map(|job| JobReport { age: now.since(job.begun), ..job.report.clone() })
    }

    /// What the newcomer will be as a member.
    pub fn prepared(&mut self, entry: MemberEntry) {
        self.prepared = Some(entry);
    }

    /// True when the newcomer is no member yet.
    pub fn has_prepared(&self) -> bool {
        self.prepared.is_some()
    }

    /// What the newcomer will be, when it becomes a member.
    pub fn take_prepared(&mut self) -> Option<MemberEntry> {
        self.prepared.take()
    }

    /// Holds it, or lets it go on; false when there is none.
    pub fn pause(&mut self, paused: bool) -> bool {
        self.current.as_mut().map(|job| job.report.paused = paused).is_some()
    }

    /// Calls it off; false when there is none.
    pub fn cancel(&mut self) -> bool {
        self.declined |= self.current.as_ref().is_some_and(|job| job.report.kind == JobKind::TakeOver);
        self.current.as_mut().map(|job| job.cancelled = true).is_some()
    }
}

/// A job under way: the only one, until it is dropped.
pub struct Running<S: Seam> {
    pub(super) inner: Rc<Inner<S>>,
}

impl<S: Seam> Running<S> {
    /// Begins one, if none is under way.
    pub fn begin(inner: &Rc<Inner<S>>, kind: JobKind) -> Result<Running<S>, StoreError> {
        let now = inner.seam.now();
        let mut state = inner.state.borrow_mut();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        if state.jobs.current.is_some() {
            let why = "another device is being added, removed or replaced: wait for that, or cancel it";
            return Err(StoreError::Refused(why.to_owned()));
        }
        if kind != JobKind::TakeOver {
            state.jobs.declined = false;
        }
        let report =
            JobReport { kind, member: None, done_bytes: 0, total_bytes: 0, age: Nanos::default(), paused: false };
        state.jobs.current = Some(Job { report, begun: now, cancelled: false, failed: None });
        Ok(Running { inner: Rc::clone(inner) })
    }

    fn change(&self, change: impl FnOnce(&mut JobReport)) {
        if let Some(job) = &mut self.inner.state.borrow_mut().jobs.current {
            change(&mut job.report);
        }
    }

    /// Which member it is about.
    pub fn of(&self, member: u32) {
        self.change(|report| report.member = Some(member));
    }

    /// So much is to be copied.
    pub fn total(&self, bytes: u64) {
        self.change(|report| report.total_bytes = bytes);
    }

    /// So much more has been.
    pub fn advance(&self, bytes: u64) {
        self.change(|report| report.done_bytes += bytes);
    }

    /// Waits while it is held. Fails when it shall not or cannot go on.
    pub async fn go_on(&self, newcomer: &str) -> Result<(), StoreError> {
        loop {
            {
                let state = self.inner.state.borrow();
                if let Some(error) = &state.failed {
                    return Err(error.clone());
                }
                let job = state.jobs.current.as_ref().expect("it runs until it is dropped");
                if let Some(error) = &job.failed {
                    return Err(StoreError::Disk { device: newcomer.to_owned(), error: error.clone() });
                }
                if job.cancelled {
                    return Err(StoreError::Cancelled);
                }
                if !job.report.paused {
                    return Ok(());
                }
            }
            self.inner.seam.sleep(PAUSE).await;
        }
    }
}

impl<S: Seam> Drop for Running<S> {
    fn drop(&mut self) {
        {
            let mut state = self.inner.state.borrow_mut();
            state.jobs.current = None;
            state.jobs.prepared = None;
            state.joining = None;
            state.segments.limit = state.superblock.segments;
        }
        super::take_over_soon(&self.inner);
    }
}

/// The newcomer did not take a batch: the job fails, the batch does not.
pub fn newcomer_failed<S: Seam>(inner: &Inner<S>, error: &DiskError) {
    let mut state = inner.state.borrow_mut();
    state.joining = None;
    if let Some(job) = &mut state.jobs.current {
        job.failed.get_or_insert(error.clone());
    }
}

/// Calls off what is under way and waits for its end.
pub async fn end_jobs<S: Seam>(inner: &Inner<S>) {
    loop {
        {
            let mut state = inner.state.borrow_mut();
            state.jobs.declined = true;
            if !state.jobs.cancel() {
                return;
            }
        }
        inner.seam.sleep(PAUSE).await;
    }
}
