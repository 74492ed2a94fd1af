//! Jobs: a change of the flash devices, and flushes of volumes on request. A job has an ID, by which it can be
//! cancelled. A job that has ended leaves the list; its outcome is reported for a while.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

use messages::report::{EndedJobReport, FlashJobReport, JobKind, JobOutcome, JobReport};
use messages::{Answer, ErrorKind, Failure, FlashReport, VolumeReport, unix_time};
use tokio::sync::watch;

/// ID of a change of the flash devices; there is at most one.
pub const FLASH_JOB_ID: &str = "flash";
/// Prefix of the ID of a flush.
const FLUSH_ID_PREFIX: &str = "flush";
/// Maximum of concurrent flushes: each is part of the status report that is sampled every second.
const FLUSHES_MAX: usize = 64;
/// Time for which the outcome of a job is reported.
const OUTCOME_RETENTION: Duration = Duration::from_secs(30);
/// Maximum of outcomes that are kept; the oldest are dropped.
const OUTCOMES_MAX: usize = 64;

/// A flush that is under way.
struct RunningFlush {
    volume: String,
    began: Instant,
    /// Dirty bytes of the volume at the start of the flush.
    total_bytes: u64,
    cancel: watch::Sender<bool>,
}

/// Known jobs, except the change of the flash devices, which the flash store tracks.
#[derive(Default)]
pub struct Jobs {
    /// Number of the newest flush.
    last_number: Cell<u64>,
    /// Running flushes, by number.
    flushes: RefCell<BTreeMap<u64, RunningFlush>>,
    /// Outcomes of ended jobs, oldest first.
    ended: RefCell<VecDeque<(Instant, EndedJobReport)>>,
}

impl Jobs {
    /// Outcomes of jobs that ended recently.
    pub fn ended(&self) -> Vec<EndedJobReport> {
        let ended = self.ended.borrow();
        let recent = ended.iter().filter(|(ended_at, _)| ended_at.elapsed() < OUTCOME_RETENTION);
        recent.map(|(_, report)| report.clone()).collect()
    }

    /// Records the outcome of a job.
    fn end(&self, id: String, kind: JobKind, subject: &str, outcome: JobOutcome, reason: &str) {
        let mut ended = self.ended.borrow_mut();
        if ended.len() == OUTCOMES_MAX {
            ended.pop_front();
        }
        let ended_unix_ms = unix_time::now().as_millis() as u64;
        let [subject, reason] = [subject, reason].map(str::to_owned);
        ended.push_back((Instant::now(), EndedJobReport { id, kind, subject, ended_unix_ms, outcome, reason }));
    }

    /// Adds a flush of `volume`, which has `total_bytes` of dirty data, to the list; fails if the list is full.
    pub fn add_flush(self: &Rc<Self>, volume: &str, total_bytes: u64) -> Result<FlushEntry, Failure> {
        let jobs = self.clone();
        let mut flushes = jobs.flushes.borrow_mut();
        if flushes.len() >= FLUSHES_MAX {
            let text = format!(
                "volume {volume} is not flushed: {FLUSHES_MAX} flushes are in progress, which is the maximum; try \
                 again when one has ended (`hotset job list`), or cancel one (`hotset job cancel ID`)"
            );
            return Err(Failure::new(ErrorKind::Unavailable, text));
        }
        let number = jobs.last_number.get() + 1;
        jobs.last_number.set(number);
        let (cancel, cancelled) = watch::channel(false);
        let (volume, began) = (volume.to_owned(), Instant::now());
        flushes.insert(number, RunningFlush { volume, began, total_bytes, cancel });
        drop(flushes);
        Ok(FlushEntry { jobs, number, cancelled })
    }

    /// Running jobs, with their progress from the reports of flash and volumes.
    pub fn running_jobs(&self, flash: Option<&FlashReport>, volumes: &[VolumeReport]) -> Vec<JobReport> {
        let flash_job = flash.and_then(|flash| flash.job.clone()).map(flash_job);
        let flushes = self.flushes.borrow();
        let flush_jobs = flushes.iter().map(|(number, flush)| {
            let volume = volumes.iter().find(|volume| volume.name == flush.volume);
            flush_report(*number, flush, volume)
        });
        flash_job.into_iter().chain(flush_jobs).collect()
    }

    /// Cancels a flush; fails if it is not running.
    pub fn cancel(&self, id: &str) -> Result<Answer, Failure> {
        let flushes = self.flushes.borrow();
        let flush = flushes.iter().find(|(number, _)| id == format!("{FLUSH_ID_PREFIX}-{number}"));
        let flush = flush.map(|(_, flush)| flush);
        let flush = flush.ok_or_else(|| {
            Failure::new(ErrorKind::NotFound, format!("no job \"{id}\"; `hotset job list` lists the jobs in progress"))
        })?;
        flush.cancel.send_replace(true);
        let volume = &flush.volume;
        Ok(Answer::Said(vec![format!(
            "{id}: cancelled; the dirty data of volume {volume} is destaged in the background"
        )]))
    }

    /// Records the outcome of a change of the flash devices that had begun.
    pub fn end_flash(&self, kind: JobKind, device: &str, outcome: JobOutcome, reason: &str) {
        self.end(FLASH_JOB_ID.to_owned(), kind, device, outcome, reason);
    }
}

/// Guard of a flush in the list.
pub struct FlushEntry {
    jobs: Rc<Jobs>,
    number: u64,
    cancelled: watch::Receiver<bool>,
}

impl Drop for FlushEntry {
    fn drop(&mut self) {
        self.jobs.flushes.borrow_mut().remove(&self.number);
    }
}

impl FlushEntry {
    /// Returns when the flush is cancelled.
    pub async fn cancelled(&mut self) {
        // The sender is in the list as long as this guard lives.
        let _ = self.cancelled.wait_for(|cancelled| *cancelled).await;
    }

    /// Report of the flush at its start.
    pub fn report(&self) -> JobReport {
        flush_report(self.number, &self.jobs.flushes.borrow()[&self.number], None)
    }

    /// Records the outcome of the flush.
    pub fn end(&self, volume: &str, outcome: JobOutcome, reason: &str) {
        self.jobs.end(format!("{FLUSH_ID_PREFIX}-{}", self.number), JobKind::Flush, volume, outcome, reason);
    }
}

/// Report of a flush; `volume` is the volume's report, if known.
fn flush_report(number: u64, flush: &RunningFlush, volume: Option<&VolumeReport>) -> JobReport {
    let RunningFlush { volume: name, began, total_bytes, .. } = flush;
    let done_bytes = total_bytes.saturating_sub(volume.map_or(*total_bytes, |volume| volume.dirty_bytes));
    let remaining_seconds =
        || (began.elapsed().as_secs_f64() * (total_bytes - done_bytes) as f64 / done_bytes as f64) as u64;
    JobReport {
        id: format!("{FLUSH_ID_PREFIX}-{number}"),
        kind: JobKind::Flush,
        subject: name.clone(),
        done_bytes,
        total_bytes: *total_bytes,
        left_seconds: (done_bytes > 0).then(remaining_seconds),
        paused: false,
    }
}

fn flash_job(job: FlashJobReport) -> JobReport {
    let FlashJobReport { kind, device, done_bytes, total_bytes, left_seconds, paused } = job;
    JobReport { id: FLASH_JOB_ID.to_owned(), kind, subject: device, done_bytes, total_bytes, left_seconds, paused }
}
