//! Flushes of volumes on request, and the list of jobs.

use std::rc::Rc;

use control::{Actor, ProgressSender};
use engine::Volume;
use messages::report::{JobOutcome, JobReport};
use messages::{Answer, ErrorKind, Failure};
use seam::real::RealSeam;

use super::super::jobs::{FLASH_JOB_ID, FlushEntry};
use super::super::volumes::Placement;
use super::Daemon;
use super::pools::drain_jobs;
use logging::{self as log, CONTROL};

impl Daemon {
    /// `volume flush`: afterwards the backing alone holds the complete data as of the start of the flush.
    pub async fn flush(&self, name: &str, progress: &ProgressSender) -> Result<Answer, Failure> {
        let placement = self.volumes.placement(name)?;
        let entry = self.jobs.add_flush(name, self.cores.dirty_bytes_of(name, placement.core).await)?;
        self.run_flush(entry, name, &placement, progress).await?;
        self.show(name).await
    }

    /// Like [`Daemon::flush`] for `actor`, but returns the job once the flush has begun. A failure of the flush becomes
    /// an event.
    pub async fn flush_in_background(self: &Rc<Self>, actor: &Actor, name: &str) -> Result<Answer, Failure> {
        let placement = self.volumes.placement(name)?;
        let entry = self.jobs.add_flush(name, self.cores.dirty_bytes_of(name, placement.core).await)?;
        let job = entry.report();
        let (daemon, volume, requester) = (self.clone(), name.to_owned(), actor.show());
        tokio::task::spawn_local(async move {
            let (progress, _) = ProgressSender::new();
            let flushed = daemon.run_flush(entry, &volume, &placement, &progress).await;
            let Err(failure) = flushed else { return };
            log::warn!(target: CONTROL, volume, "{}", failure.message);
            if failure.kind == ErrorKind::Failed {
                daemon.journal.record_change(requester, Some(volume), format!("flush failed: {failure}"));
            }
        });
        Ok(Answer::Job(job))
    }

    async fn run_flush(
        &self,
        mut entry: FlushEntry,
        name: &str,
        placement: &Placement,
        progress: &ProgressSender,
    ) -> Result<(), Failure> {
        let work = async |volume: Volume<RealSeam>| volume.destage_all().await;
        let flushed = tokio::select! {
            flushed = self.cores.on_volume(name, placement, "destaging", progress, work) => flushed,
            () = entry.cancelled() => {
                let text = format!("volume {name}: the flush was cancelled; its dirty data is destaged in the \
                                    background");
                Err(Failure::new(ErrorKind::Conflict, text))
            }
        };
        let (outcome, reason) = match &flushed {
            Ok(()) => (JobOutcome::Done, ""),
            Err(failure) if failure.kind == ErrorKind::Conflict => (JobOutcome::Cancelled, failure.message.as_str()),
            Err(failure) => (JobOutcome::Failed, failure.message.as_str()),
        };
        entry.end(name, outcome, reason);
        flushed
    }

    /// `job list`.
    pub async fn job_list(&self) -> Vec<JobReport> {
        let (flash, volumes) = (self.flash.report(&self.volumes).await, self.volume_reports().await);
        let mut jobs = self.jobs.running_jobs(flash.as_ref(), &volumes);
        jobs.extend(drain_jobs(&self.cores.pools(false).await));
        jobs
    }

    /// `job cancel`.
    pub async fn cancel_job(&self, id: &str) -> Result<Answer, Failure> {
        if id == FLASH_JOB_ID && self.flash.report(&self.volumes).await.is_some_and(|flash| flash.job.is_some()) {
            self.flash.control_job(|store| store.cancel_job()).await?;
            return Ok(self.flash_answer().await);
        }
        match self.cancel_drain_job(id).await {
            Some(cancelled) => cancelled,
            None => self.jobs.cancel(id),
        }
    }
}
