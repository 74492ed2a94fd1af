//! The clean stop: no new requests, drain, destage with progress, flush, note, end.

use std::rc::Rc;
use std::time::Duration;

use control::{Answer, Failure, ProgressSender};
use tokio::sync::watch;

use super::daemon::{Daemon, Placed, Standing};
use super::data_core::Local;
use crate::log;
use crate::units::show_bytes;

/// Time that clients have for the answers to what they asked before a stop or a removal.
pub const CLIENTS_PATIENCE: seam::Nanos = seam::Nanos::from_secs(5);
/// How often the stop says how far it is.
const PROGRESS_PAUSE: Duration = Duration::from_secs(1);
/// Pause before a failed destage is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(2);

/// How far a stop is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Nobody asked for one.
    #[default]
    Running,
    /// Under way.
    Stopping,
    /// The backings are complete; the process ends.
    Stopped,
}

/// A stop, from all sides.
pub struct Stop(watch::Sender<Phase>);

impl Default for Stop {
    fn default() -> Self {
        Stop(watch::Sender::new(Phase::Running))
    }
}

impl Stop {
    /// Asks for it; asking again changes nothing.
    pub fn ask(&self) {
        self.0.send_if_modified(|phase| {
            let first = *phase == Phase::Running;
            if first {
                *phase = Phase::Stopping;
            }
            first
        });
    }

    /// True once it was asked for.
    pub fn is_stopping(&self) -> bool {
        *self.0.borrow() != Phase::Running
    }

    /// Waits until it is asked for.
    pub async fn asked(&self) {
        self.reached(Phase::Stopping).await;
    }

    async fn reached(&self, phase: Phase) {
        let mut watched = self.0.subscribe();
        let reached = |now: &Phase| *now == phase || *now == Phase::Stopped;
        watched.wait_for(reached).await.expect("the sender lives as long as this");
    }

    fn finish(&self) {
        self.0.send_replace(Phase::Stopped);
    }
}

impl Daemon {
    /// `stop`: asks for it and answers when the backings are complete.
    pub async fn stop_and_wait(&self, progress: &ProgressSender) -> Result<Answer, Failure> {
        log::info("stop asked for by command");
        self.stop.ask();
        let mut tick = tokio::time::interval(PROGRESS_PAUSE);
        let stopped = self.stop.reached(Phase::Stopped);
        let mut stopped = std::pin::pin!(stopped);
        loop {
            tokio::select! {
                () = &mut stopped => return Ok(Answer::Said(vec!["stopped; the backings are complete".to_owned()])),
                _ = tick.tick() => {
                    if let Some(dirty_bytes) = self.dirty_bytes().await.filter(|dirty_bytes| *dirty_bytes > 0) {
                        progress.say("destaging", dirty_bytes);
                    }
                }
            }
        }
    }

    /// Dirty data of all volumes; `None` once a core has ended.
    async fn dirty_bytes(&self) -> Option<u64> {
        let mut dirty_bytes = 0;
        for core in &self.cores {
            let sum =
                |local: &Local| local.engine.volumes().iter().map(|volume| volume.stats().dirty_bytes).sum::<u64>();
            dirty_bytes += core.call(async move |local: Rc<Local>| sum(&local)).await.ok()?;
        }
        Some(dirty_bytes)
    }

    /// Sends all clients away, destages every volume however long it takes, and notes that they are clean.
    pub async fn drain(self: &Rc<Self>) {
        self.notifier.say("STOPPING=1\nSTATUS=waiting for requests under way");
        for core in &self.cores {
            // A core that is gone has no clients left.
            let _ = core.call(async |local: Rc<Local>| local.server.stop(CLIENTS_PATIENCE).await).await;
        }
        let mut volumes = tokio::task::JoinSet::new();
        for (name, known) in self.volumes.borrow().iter() {
            if let Standing::Serving(placed) | Standing::Removing(placed) = &known.standing {
                let (daemon, name, placed) = (self.clone(), name.clone(), placed.clone());
                volumes.spawn_local(async move { daemon.drain_volume(&name, &placed).await });
            }
        }
        let mut tick = tokio::time::interval(PROGRESS_PAUSE);
        while !volumes.is_empty() {
            tokio::select! {
                _ = volumes.join_next() => {}
                _ = tick.tick() => self.say_progress(volumes.len()).await,
            }
        }
        for core in &self.cores {
            core.join().await;
        }
        self.stop.finish();
    }

    async fn say_progress(&self, volumes: usize) {
        if let Some(dirty_bytes) = self.dirty_bytes().await
            && dirty_bytes > 0
        {
            let of = if volumes == 1 { "1 volume".to_owned() } else { format!("{volumes} volumes") };
            let text = format!("destaging: {} of {of} left", show_bytes(dirty_bytes));
            log::info(&text);
            self.notifier.patience(&text);
        }
    }

    async fn drain_volume(&self, name: &str, placed: &Placed) {
        let (progress, _) = ProgressSender::new();
        loop {
            let gone = self.cores[placed.core].call(async |_| ()).await.is_err();
            match self.detach(name, placed, &progress).await {
                Ok(()) => break,
                Err(_) if gone => {
                    return log::error(format!("volume {name}: its data core has ended; it is not clean"));
                }
                // A removal got there first.
                Err(_) if !self.volumes.borrow().contains_key(name) => return,
                Err(failure) => {
                    let patience = format!("{}; trying again, a second signal gives up", failure.message);
                    log::error(&patience);
                    self.notifier.patience(&patience);
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
            }
        }
        if let Err(error) = self.state.borrow_mut().change(|state| state.mark_clean(placed.incarnation)) {
            log::error(error.to_string());
        }
    }
}
