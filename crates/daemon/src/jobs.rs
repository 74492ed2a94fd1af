//! Jobs: a change of the flash devices, and flushes of volumes on request. A job has an id, by which it can be
//! cancelled. A job that has ended leaves the list; its outcome is reported for a while.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

use control::report::{EndedJobReport, FlashJobReport, JobOutcome, JobReport};
use control::{Actor, Answer, ErrorKind, Failure, FlashReport, ProgressSender, VolumeReport, moment};
use engine::Volume;
use seam::real::RealSeam;
use tokio::sync::watch;

use super::daemon::{Daemon, Placed};
use super::data_core::Local;
use super::status::CORE_PATIENCE;
use logging::{self as log, CONTROL};

/// Id of a change of the flash devices; there is at most one.
const FLASH: &str = "flash";
/// Kind of a flush, and prefix of its id.
const FLUSH: &str = "flush";
/// Maximum of concurrent flushes: each is part of the report of every second.
const FLUSHES_MAX: usize = 64;
/// Time for which the outcome of a job is reported.
const ENDED_KEPT: Duration = Duration::from_secs(30);
/// Maximum of outcomes that are kept; the oldest are dropped.
const ENDED_MAX: usize = 64;

/// A flush that is under way.
struct Flushing {
    volume: String,
    began: Instant,
    /// Dirty bytes of the volume at its begin.
    total_bytes: u64,
    called_off: watch::Sender<bool>,
}

/// Known jobs, except the change of the flash devices, which the flash store tracks.
#[derive(Default)]
pub struct Jobs {
    last: Cell<u64>,
    /// Running flushes, by number.
    flushes: RefCell<BTreeMap<u64, Flushing>>,
    /// Outcomes of ended jobs, oldest first.
    ended: RefCell<VecDeque<(Instant, EndedJobReport)>>,
}

impl Jobs {
    /// Outcomes of jobs that ended recently.
    pub fn ended(&self) -> Vec<EndedJobReport> {
        let ended = self.ended.borrow();
        let kept = ended.iter().filter(|(at, _)| at.elapsed() < ENDED_KEPT);
        kept.map(|(_, report)| report.clone()).collect()
    }

    fn end(&self, id: String, kind: &str, subject: &str, outcome: JobOutcome, reason: &str) {
        let mut ended = self.ended.borrow_mut();
        if ended.len() == ENDED_MAX {
            ended.pop_front();
        }
        let ended_unix_ms = moment::since_1970().as_millis() as u64;
        let [kind, subject, reason] = [kind, subject, reason].map(str::to_owned);
        ended.push_back((Instant::now(), EndedJobReport { id, kind, subject, ended_unix_ms, outcome, reason }));
    }

    /// Records the outcome of a change of the flash devices that had begun.
    pub fn end_flash(&self, kind: &str, device: &str, outcome: JobOutcome, reason: &str) {
        self.end(FLASH.to_owned(), kind, device, outcome, reason);
    }
}

/// Guard of a flush in the list.
struct Listed {
    jobs: Rc<Jobs>,
    number: u64,
    called_off: watch::Receiver<bool>,
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.jobs.flushes.borrow_mut().remove(&self.number);
    }
}

impl Listed {
    /// Returns when the flush is cancelled.
    async fn called_off(&mut self) {
        // The sender is in the list as long as this guard lives.
        let _ = self.called_off.wait_for(|called_off| *called_off).await;
    }

    /// Id of the job.
    fn id(&self) -> String {
        format!("{FLUSH}-{}", self.number)
    }
}

impl Daemon {
    /// Adds a flush of `volume` on `core` to the list; fails if the list is full.
    async fn list_flush(&self, volume: &str, core: usize) -> Result<Listed, Failure> {
        let total_bytes = self.dirty_bytes_of(volume, core).await;
        let jobs = self.jobs.clone();
        let mut flushes = jobs.flushes.borrow_mut();
        if flushes.len() >= FLUSHES_MAX {
            let text = format!(
                "volume {volume} is not flushed: {FLUSHES_MAX} flushes are under way, and no more can be; try again \
                 when one has ended \
                 (`hotset job list`), or call one off (`hotset job cancel ID`)"
            );
            return Err(Failure::new(ErrorKind::Unavailable, text));
        }
        let number = jobs.last.get() + 1;
        jobs.last.set(number);
        let (sender, called_off) = watch::channel(false);
        let (volume, began) = (volume.to_owned(), Instant::now());
        flushes.insert(number, Flushing { volume, began, total_bytes, called_off: sender });
        drop(flushes);
        Ok(Listed { jobs, number, called_off })
    }

    /// Dirty bytes of a volume now; 0 if its core does not answer.
    async fn dirty_bytes_of(&self, volume: &str, core: usize) -> u64 {
        let volume = volume.to_owned();
        let dirty =
            async move |local: Rc<Local>| local.engine.find(&volume).map_or(0, |found| found.stats().dirty_bytes);
        let told = tokio::time::timeout(CORE_PATIENCE, self.cores[core].call(dirty)).await;
        told.ok().and_then(Result::ok).unwrap_or(0)
    }

    /// `volume flush`: afterwards the backing alone holds the complete data as of the begin of the flush.
    pub async fn flush(&self, name: &str, progress: &ProgressSender) -> Result<Answer, Failure> {
        let placed = self.placed(name)?;
        let listed = self.list_flush(name, placed.core).await?;
        self.flush_listed(listed, name, &placed, progress).await?;
        self.show(name).await
    }

    /// As [`Daemon::flush`] for `actor`, but returns the job once the flush has begun. A failure of the flush becomes
    /// an event.
    pub async fn flush_aside(self: &Rc<Self>, actor: &Actor, name: &str) -> Result<Answer, Failure> {
        let placed = self.placed(name)?;
        let listed = self.list_flush(name, placed.core).await?;
        let job = flush_report(listed.number, &listed.jobs.flushes.borrow()[&listed.number], None);
        let (daemon, volume, whom) = (self.clone(), name.to_owned(), actor.show());
        tokio::task::spawn_local(async move {
            let (progress, _) = ProgressSender::new();
            let flushed = daemon.flush_listed(listed, &volume, &placed, &progress).await;
            let Err(failure) = flushed else { return };
            log::warn!(target: CONTROL, volume, "{}", failure.message);
            if failure.kind == ErrorKind::Failed {
                daemon.journal.note_change(whom, Some(volume), format!("flush failed: {failure}"));
            }
        });
        Ok(Answer::Job(job))
    }

    async fn flush_listed(
        &self,
        mut listed: Listed,
        name: &str,
        placed: &Placed,
        progress: &ProgressSender,
    ) -> Result<(), Failure> {
        let work = async |volume: Volume<RealSeam>| volume.destage_all().await;
        let flushed = tokio::select! {
            flushed = self.on_volume(name, placed, "destaging", progress, work) => flushed,
            () = listed.called_off() => {
                let text = format!("volume {name}: its flush was called off; what is dirty stays so until it is \
                                    written");
                Err(Failure::new(ErrorKind::Conflict, text))
            }
        };
        let (outcome, reason) = match &flushed {
            Ok(()) => (JobOutcome::Done, ""),
            Err(failure) if failure.kind == ErrorKind::Conflict => (JobOutcome::CalledOff, failure.message.as_str()),
            Err(failure) => (JobOutcome::Failed, failure.message.as_str()),
        };
        self.jobs.end(listed.id(), FLUSH, name, outcome, reason);
        flushed
    }

    /// `job list`.
    pub async fn job_list(&self) -> Vec<JobReport> {
        let (flash, volumes) = (self.flash_report().await, self.volume_reports().await);
        self.jobs_under_way(flash.as_ref(), &volumes)
    }

    /// Running jobs, with their progress from the reports of flash and volumes.
    pub(super) fn jobs_under_way(&self, flash: Option<&FlashReport>, volumes: &[VolumeReport]) -> Vec<JobReport> {
        let of_flash = flash.and_then(|flash| flash.job.clone()).map(of_flash);
        let flushes = self.jobs.flushes.borrow();
        let of_flushes = flushes.iter().map(|(number, flushing)| {
            let volume = volumes.iter().find(|volume| volume.name == flushing.volume);
            flush_report(*number, flushing, volume)
        });
        of_flash.into_iter().chain(of_flushes).collect()
    }

    /// `job cancel`.
    pub async fn cancel_job(&self, id: &str) -> Result<Answer, Failure> {
        if id == FLASH && self.flash_report().await.is_some_and(|flash| flash.job.is_some()) {
            return self.steer_flash(|store| store.cancel_job()).await;
        }
        let flushes = self.jobs.flushes.borrow();
        let flushing = flushes.iter().find(|(number, _)| id == format!("{FLUSH}-{number}"));
        let flushing = flushing.map(|(_, flushing)| flushing);
        let flushing = flushing.ok_or_else(|| {
            Failure::new(
                ErrorKind::NotFound,
                format!("there is no job \"{id}\"; `hotset job list` shows those under way"),
            )
        })?;
        flushing.called_off.send_replace(true);
        let volume = &flushing.volume;
        Ok(Answer::Said(vec![format!(
            "{id}: nobody waits for it any more; volume {volume} keeps what is dirty until it is written"
        )]))
    }
}

/// Report of a flush; `volume` is the volume's report, if known.
fn flush_report(number: u64, flushing: &Flushing, volume: Option<&VolumeReport>) -> JobReport {
    let Flushing { volume: name, began, total_bytes, .. } = flushing;
    let done_bytes = total_bytes.saturating_sub(volume.map_or(*total_bytes, |volume| volume.dirty_bytes));
    let left = || (began.elapsed().as_secs_f64() * (total_bytes - done_bytes) as f64 / done_bytes as f64) as u64;
    JobReport {
        id: format!("{FLUSH}-{number}"),
        kind: FLUSH.to_owned(),
        subject: name.clone(),
        done_bytes,
        total_bytes: *total_bytes,
        left_seconds: (done_bytes > 0).then(left),
        paused: false,
    }
}

fn of_flash(job: FlashJobReport) -> JobReport {
    let FlashJobReport { kind, device, done_bytes, total_bytes, left_seconds, paused } = job;
    JobReport { id: FLASH.to_owned(), kind, subject: device, done_bytes, total_bytes, left_seconds, paused }
}
