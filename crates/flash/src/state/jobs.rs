//! The job that changes the members: one at a time. Its owner can observe, pause and cancel it.

use std::rc::Rc;

use seam::{DiskError, Nanos, Seam};

use super::{Inner, State};
use crate::error::StoreError;
use crate::format::superblock::MemberEntry;
use crate::number::{MemberNo, SegmentNo};

/// Pause between two checks of a waiting task.
const CHECK_INTERVAL: Nanos = Nanos::from_millis(1);

/// The kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobKind {
    /// A device joins.
    Add,
    /// A member leaves.
    Remove,
    /// A device replaces a member.
    Replace,
    /// A member that holds only pages begins to carry the log.
    TakeOver,
}

/// Progress of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobReport {
    /// The kind of change.
    pub kind: JobKind,
    /// The member that it changes; `None` until it has a number.
    pub member: Option<MemberNo>,
    /// Bytes copied.
    pub done_bytes: u64,
    /// Bytes to copy in total.
    pub total_bytes: u64,
    /// Time since it began.
    pub age: Nanos,
    /// It is paused.
    pub is_paused: bool,
}

/// A running job.
struct Job {
    /// Its progress; the age is filled in when it is reported.
    report: JobReport,
    started_at: Nanos,
    is_cancelled: bool,
    /// The error of a joining device that failed a batch.
    device_failure: Option<DiskError>,
}

/// The job that runs, if there is one, and the conditions under which another one may begin.
#[derive(Default)]
pub struct Jobs {
    current_job: Option<Job>,
    /// A take-over was cancelled, so none starts automatically.
    is_take_over_cancelled: bool,
    /// The store is closing: a cancelled job ends as fast as it can.
    is_closing: bool,
    /// The entry of the joining device, until it becomes a member.
    prepared_entry: Option<MemberEntry>,
}

impl Jobs {
    /// True when a take-over may begin.
    pub fn may_take_over(&self) -> bool {
        self.current_job.is_none() && !self.is_take_over_cancelled
    }

    /// Progress of the job that runs.
    pub fn report(&self, now: Nanos) -> Option<JobReport> {
        self.current_job.as_ref().map(|job| JobReport { age: now.since(job.started_at), ..job.report.clone() })
    }

    /// True when the store is closing.
    pub fn is_closing(&self) -> bool {
        self.is_closing
    }

    /// Stores the entry of a joining device until it becomes a member.
    pub fn set_prepared(&mut self, entry: MemberEntry) {
        self.prepared_entry = Some(entry);
    }

    /// True when the joining device is not yet a member.
    pub fn has_prepared(&self) -> bool {
        self.prepared_entry.is_some()
    }

    /// Takes the entry of the joining device, which becomes a member.
    pub fn take_prepared(&mut self) -> Option<MemberEntry> {
        self.prepared_entry.take()
    }

    /// Pauses or resumes the job; false when there is none.
    pub fn set_paused(&mut self, is_paused: bool) -> bool {
        self.current_job.as_mut().map(|job| job.report.is_paused = is_paused).is_some()
    }

    /// Cancels the job; false when there is none.
    pub fn cancel(&mut self) -> bool {
        self.is_take_over_cancelled |=
            self.current_job.as_ref().is_some_and(|job| job.report.kind == JobKind::TakeOver);
        self.current_job.as_mut().map(|job| job.is_cancelled = true).is_some()
    }
}

/// Guard of the running job: the job ends when the guard is dropped.
pub struct RunningJob<S: Seam> {
    pub(crate) inner: Rc<Inner<S>>,
}

impl<S: Seam> RunningJob<S> {
    /// Begins a job, if none is running.
    pub fn begin(inner: &Rc<Inner<S>>, kind: JobKind) -> Result<RunningJob<S>, StoreError> {
        let now = inner.seam.now();
        let mut state = inner.state.borrow_mut();
        if let Some(error) = &state.failure {
            return Err(error.clone());
        }
        if state.jobs.current_job.is_some() {
            let reason = "another device is being added, removed or replaced: wait for that, or cancel it";
            return Err(StoreError::Refused(reason.to_owned()));
        }
        if kind != JobKind::TakeOver {
            state.jobs.is_take_over_cancelled = false;
        }
        let report =
            JobReport { kind, member: None, done_bytes: 0, total_bytes: 0, age: Nanos::default(), is_paused: false };
        state.jobs.current_job = Some(Job { report, started_at: now, is_cancelled: false, device_failure: None });
        Ok(RunningJob { inner: Rc::clone(inner) })
    }

    /// Changes the progress of the job.
    fn update_report(&self, update: impl FnOnce(&mut JobReport)) {
        if let Some(job) = &mut self.inner.state.borrow_mut().jobs.current_job {
            update(&mut job.report);
        }
    }

    /// Sets the member that the job changes.
    pub fn set_member(&self, member: MemberNo) {
        self.update_report(|report| report.member = Some(member));
    }

    /// Sets the bytes to copy in total.
    pub fn set_total_bytes(&self, bytes: u64) {
        self.update_report(|report| report.total_bytes = bytes);
    }

    /// Adds to the bytes to copy in total.
    pub fn add_total_bytes(&self, bytes: u64) {
        self.update_report(|report| report.total_bytes += bytes);
    }

    /// Adds to the bytes copied.
    pub fn add_done_bytes(&self, bytes: u64) {
        self.update_report(|report| report.done_bytes += bytes);
    }

    /// Waits while the job is paused. Fails when it is cancelled, or when the store or the joining device has failed.
    /// `joining` is the joining device's name, for the error.
    pub async fn wait_if_paused(&self, joining: &str) -> Result<(), StoreError> {
        self.wait_if_paused_unless(joining, |_| None).await
    }

    /// Like [`RunningJob::wait_if_paused`]; fails also when `stop` returns an error.
    pub async fn wait_if_paused_unless(
        &self,
        joining: &str,
        stop: impl Fn(&State<S>) -> Option<StoreError>,
    ) -> Result<(), StoreError> {
        loop {
            {
                let state = self.inner.state.borrow();
                if let Some(error) = &state.failure {
                    return Err(error.clone());
                }
                let job = state.jobs.current_job.as_ref().expect("the job runs while its guard exists");
                if let Some(error) = &job.device_failure {
                    return Err(StoreError::Disk { device: joining.to_owned(), error: error.clone() });
                }
                if job.is_cancelled {
                    return Err(StoreError::Cancelled);
                }
                if let Some(error) = stop(&state) {
                    return Err(error);
                }
                if !job.report.is_paused {
                    return Ok(());
                }
            }
            self.inner.seam.sleep(CHECK_INTERVAL).await;
        }
    }
}

impl<S: Seam> Drop for RunningJob<S> {
    fn drop(&mut self) {
        {
            let mut state = self.inner.state.borrow_mut();
            state.jobs.current_job = None;
            state.jobs.prepared_entry = None;
            (state.joining_device, state.resyncing_device) = (None, None);
            state.segments.limit_segment = SegmentNo(state.superblock.log_segment_count);
        }
        (self.inner.tasks.take_over)(&self.inner);
    }
}

/// Records that the joining device failed a batch: the job fails, the batch does not.
pub fn fail_joining_member<S: Seam>(inner: &Inner<S>, error: &DiskError) {
    let mut state = inner.state.borrow_mut();
    state.joining_device = None;
    if let Some(job) = &mut state.jobs.current_job {
        job.device_failure.get_or_insert(error.clone());
    }
}

/// Cancels the running job and waits for its end.
pub async fn cancel_jobs<S: Seam>(inner: &Inner<S>) {
    loop {
        {
            let mut state = inner.state.borrow_mut();
            (state.jobs.is_take_over_cancelled, state.jobs.is_closing) = (true, true);
            if !state.jobs.cancel() {
                return;
            }
        }
        inner.seam.sleep(CHECK_INTERVAL).await;
    }
}
