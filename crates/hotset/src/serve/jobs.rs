//! Long work that is under way: a change of the flash devices, and flushes of volumes that somebody asked for. Each has a name by which it is
//! called off, and goes from the list when it ends.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Instant;

use control::report::{FlashJobReport, JobReport};
use control::{Answer, ErrorKind, Failure, ProgressSender};
use engine::Volume;
use seam::real::RealSeam;
use tokio::sync::watch;

use super::daemon::{Daemon, Placed};
use super::data_core::Local;
use super::status::CORE_PATIENCE;
use crate::log;

/// There is one change of the flash devices at a time.
const FLASH: &str = "flash";
/// What flushes are called, each with a number of its own behind it.
const FLUSH: &str = "flush";

/// A flush that is under way.
struct Flushing {
    volume: String,
    core: usize,
    began: Instant,
    /// What was dirty when it began.
    total_bytes: u64,
    called_off: watch::Sender<bool>,
}

/// The flushes that are under way, by number.
#[derive(Default)]
pub struct Flushes {
    last: Cell<u64>,
    under_way: RefCell<BTreeMap<u64, Flushing>>,
}

/// A flush is in the list as long as this lives.
struct Listed {
    flushes: Rc<Flushes>,
    number: u64,
    called_off: watch::Receiver<bool>,
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.flushes.under_way.borrow_mut().remove(&self.number);
    }
}

impl Listed {
    /// Returns when it is called off.
    async fn called_off(&mut self) {
        // The sender is in the list as long as this lives.
        let _ = self.called_off.wait_for(|called_off| *called_off).await;
    }

    /// What it is called.
    fn id(&self) -> String {
        format!("{FLUSH}-{}", self.number)
    }
}

impl Daemon {
    /// Puts a flush of `volume` on `core` into the list.
    async fn list_flush(&self, volume: &str, core: usize) -> Listed {
        let total_bytes = self.dirty_bytes_of(volume, core).await;
        let flushes = self.flushes.clone();
        let number = flushes.last.get() + 1;
        flushes.last.set(number);
        let (sender, called_off) = watch::channel(false);
        let (volume, began) = (volume.to_owned(), Instant::now());
        let flushing = Flushing { volume, core, began, total_bytes, called_off: sender };
        flushes.under_way.borrow_mut().insert(number, flushing);
        Listed { flushes, number, called_off }
    }

    /// What is dirty of a volume now; nothing where its core does not answer.
    async fn dirty_bytes_of(&self, volume: &str, core: usize) -> u64 {
        let volume = volume.to_owned();
        let dirty =
            async move |local: Rc<Local>| local.engine.find(&volume).map_or(0, |found| found.stats().dirty_bytes);
        let told = tokio::time::timeout(CORE_PATIENCE, self.cores[core].call(dirty)).await;
        told.ok().and_then(Result::ok).unwrap_or(0)
    }

    /// `volume flush`: afterwards the backing alone is the complete data, as of now.
    pub async fn flush(&self, name: &str, progress: &ProgressSender) -> Result<Answer, Failure> {
        let placed = self.placed(name)?;
        let listed = self.list_flush(name, placed.core).await;
        self.flush_listed(listed, name, &placed, progress).await?;
        self.show(name).await
    }

    /// As [`Daemon::flush`], and answers with the job that it is, once it has begun.
    pub async fn flush_aside(self: &Rc<Self>, name: &str) -> Result<Answer, Failure> {
        let placed = self.placed(name)?;
        let listed = self.list_flush(name, placed.core).await;
        let (id, daemon, volume) = (listed.id(), self.clone(), name.to_owned());
        tokio::task::spawn_local(async move {
            let (progress, _) = ProgressSender::new();
            if let Err(failure) = daemon.flush_listed(listed, &volume, &placed, &progress).await {
                log::warn(failure.message);
            }
        });
        let job = self.jobs().await.into_iter().find(|job| job.id == id);
        // It may have ended meanwhile.
        let ended = || JobReport { id, kind: FLUSH.to_owned(), subject: name.to_owned(), ..JobReport::default() };
        Ok(Answer::Job(job.unwrap_or_else(ended)))
    }

    async fn flush_listed(
        &self,
        mut listed: Listed,
        name: &str,
        placed: &Placed,
        progress: &ProgressSender,
    ) -> Result<(), Failure> {
        let work = async |volume: Volume<RealSeam>| volume.destage_all().await;
        tokio::select! {
            flushed = self.on_volume(name, placed, "destaging", progress, work) => flushed,
            () = listed.called_off() => {
                let text = format!("volume {name}: its flush was called off; what is dirty stays so until it is written");
                Err(Failure::new(ErrorKind::Conflict, text))
            }
        }
    }

    /// `job list`.
    pub async fn jobs(&self) -> Vec<JobReport> {
        let flash = self.flash_report().await.and_then(|flash| flash.job);
        let mut jobs: Vec<JobReport> = flash.into_iter().map(of_flash).collect();
        let under_way: Vec<_> = {
            let flushes = self.flushes.under_way.borrow();
            let told = |(number, flushing): (&u64, &Flushing)| {
                (*number, flushing.volume.clone(), flushing.core, flushing.began, flushing.total_bytes)
            };
            flushes.iter().map(told).collect()
        };
        for (number, volume, core, began, total_bytes) in under_way {
            let done_bytes = total_bytes.saturating_sub(self.dirty_bytes_of(&volume, core).await);
            let left = |done: u64| (began.elapsed().as_secs_f64() * (total_bytes - done) as f64 / done as f64) as u64;
            jobs.push(JobReport {
                id: format!("{FLUSH}-{number}"),
                kind: FLUSH.to_owned(),
                subject: volume,
                done_bytes,
                total_bytes,
                left_seconds: (done_bytes > 0).then(|| left(done_bytes)),
                paused: false,
            });
        }
        jobs
    }

    /// `job cancel`.
    pub async fn cancel_job(&self, id: &str) -> Result<Answer, Failure> {
        if id == FLASH && self.flash_report().await.is_some_and(|flash| flash.job.is_some()) {
            return self.steer_flash(|store| store.cancel_job()).await;
        }
        let flushes = self.flushes.under_way.borrow();
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

fn of_flash(job: FlashJobReport) -> JobReport {
    let FlashJobReport { kind, device, done_bytes, total_bytes, left_seconds, paused } = job;
    JobReport { id: FLASH.to_owned(), kind, subject: device, done_bytes, total_bytes, left_seconds, paused }
}
