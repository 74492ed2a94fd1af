//! The clean stop: no new requests, drain, destage with progress, flush, note, end.

use std::rc::Rc;
use std::time::Duration;

use control::{Answer, ErrorKind, Failure, ProgressSender};
use tokio::sync::watch;

use super::daemon::Daemon;
use super::data_core::Local;
use crate::log;
use crate::units::show_bytes;

/// Time that clients have for the answers to what they asked before a stop or a removal.
pub const CLIENTS_PATIENCE: seam::Nanos = seam::Nanos::from_secs(5);
/// How often the stop says how far it is.
const PROGRESS_PAUSE: Duration = Duration::from_secs(1);
/// Pause before a failed destage is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(2);

/// Why a stop failed.
pub const INCOMPLETE: &str = "stopped, but a data core had ended before its volumes were destaged: what was flushed is on the backings, what was not is lost";

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
    /// A data core ended before its volumes' backings were complete; the process ends.
    Failed,
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
        self.reached(|phase| phase != Phase::Running).await;
    }

    async fn reached(&self, reached: impl Fn(Phase) -> bool) -> Phase {
        let mut watched = self.0.subscribe();
        *watched.wait_for(|phase| reached(*phase)).await.expect("the sender lives as long as this")
    }

    fn finish(&self, complete: bool) {
        self.0.send_replace(if complete { Phase::Stopped } else { Phase::Failed });
    }
}

impl Daemon {
    /// `stop`: asks for it and answers when the backings are complete.
    pub async fn stop_and_wait(&self, progress: &ProgressSender) -> Result<Answer, Failure> {
        log::info("stop asked for by command");
        self.stop.ask();
        let mut tick = tokio::time::interval(PROGRESS_PAUSE);
        let ended = self.stop.reached(|phase| matches!(phase, Phase::Stopped | Phase::Failed));
        let mut ended = std::pin::pin!(ended);
        loop {
            tokio::select! {
                phase = &mut ended => return match phase {
                    Phase::Failed => Err(Failure::new(ErrorKind::Failed, INCOMPLETE)),
                    _ => Ok(Answer::Said(vec!["stopped; the backings are complete".to_owned()])),
                },
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

    /// Sends all clients away, destages every volume however long it takes, and notes that they are clean. False when a data core
    /// ended before that was done.
    pub async fn drain(self: &Rc<Self>) -> bool {
        self.notifier.say("STOPPING=1\nSTATUS=waiting for requests under way");
        for core in &self.cores {
            // A core that is gone has no clients left.
            let _ = core.call(async |local: Rc<Local>| local.server.stop(CLIENTS_PATIENCE).await).await;
        }
        let mut volumes = tokio::task::JoinSet::new();
        let mut complete = true;
        for core in &self.cores {
            // The engine's own list: what it serves is drained, whatever the daemon believes.
            let list = |local: &Local| -> Vec<_> {
                let named = |volume: &engine::Volume<_>| (volume.name().to_owned(), volume.spec().incarnation);
                local.engine.volumes().iter().map(named).collect()
            };
            let Ok(served) = core.call(async move |local: Rc<Local>| list(&local)).await else {
                complete = false;
                continue;
            };
            for (name, incarnation) in served {
                let (daemon, core) = (self.clone(), core.index());
                volumes.spawn_local(async move { daemon.drain_volume(&name, core, incarnation).await });
            }
        }
        let mut tick = tokio::time::interval(PROGRESS_PAUSE);
        while !volumes.is_empty() {
            tokio::select! {
                drained = volumes.join_next() => complete &= matches!(drained, Some(Ok(true))),
                _ = tick.tick() => self.say_progress(volumes.len()).await,
            }
        }
        for core in &self.cores {
            core.join().await;
        }
        self.stop.finish(complete);
        complete
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

    /// True when the volume's backing is complete.
    async fn drain_volume(&self, name: &str, core: usize, incarnation: u64) -> bool {
        let (progress, _) = ProgressSender::new();
        loop {
            let result = self.detach(name, core, &progress).await;
            let volume = name.to_owned();
            let attached =
                self.cores[core].call(async move |local: Rc<Local>| local.engine.find(&volume).is_some()).await;
            match (result, attached) {
                (Ok(()), _) => break,
                (Err(_), Err(_)) => {
                    log::error(format!("volume {name}: its data core has ended; it is not clean"));
                    return false;
                }
                // A removal got there first.
                (Err(_), Ok(false)) => return true,
                (Err(failure), Ok(true)) => {
                    let patience = format!("{}; trying again, a second signal gives up", failure.message);
                    log::error(&patience);
                    self.notifier.patience(&patience);
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
            }
        }
        if let Err(error) = self.state.borrow_mut().change(|state| state.mark_clean(incarnation)) {
            log::error(error.to_string());
        }
        true
    }
}
