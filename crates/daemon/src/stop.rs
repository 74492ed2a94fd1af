//! The clean stop: clients are disconnected, dirty data goes to the flash log or is destaged, volumes are recorded as
//! clean, and the cores end.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use control::{Answer, ErrorKind, Failure, ProgressSender};
use tokio::sync::watch;

use super::daemon::Daemon;
use super::data_core::Local;
use super::handover::{Kept, to_keep};
use logging::{self as log, DAEMON, VOLUME};
use state::{State, draw_incarnation};
use units::show_bytes;

/// Time-out for answering the outstanding requests of clients at a stop or a removal.
pub const CLIENTS_PATIENCE: seam::Nanos = seam::Nanos::from_secs(5);
/// Interval of progress reports.
const PROGRESS_PAUSE: Duration = Duration::from_secs(1);
/// Pause before a failed destage is retried.
const RETRY_PAUSE: Duration = Duration::from_secs(2);

/// Time after which a stop gives up on a silent backing, if its volume has no dirty data or memory survives the daemon.
const HUNG_PATIENCE_MS: u64 = 10_000;
/// The limit if dirty data would be lost with the daemon: a storage server may take that long to restart.
const HUNG_PATIENCE_DIRTY_MS: u64 = 600_000;

/// Message of a stop that gave up on a silent backing.
const HUNG: &str = "stopped, but a backing did not answer: its volume was not brought there, and the next start \
                    recovers it as after a crash";
/// Message of a stop that failed because a data core had ended.
const INCOMPLETE: &str = "stopped, but a data core had ended before its volumes were destaged: what was flushed is on \
                          the backings, what was not is lost";

/// Phase of a stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// No stop was requested.
    #[default]
    Running,
    /// Under way.
    Stopping,
    /// All dirty data is on the backings or in the flash log; the process ends.
    Stopped,
    /// A data core ended or a backing stayed silent before all dirty data was safe; the process ends.
    Failed,
}

/// Treatment of clients at a stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clients {
    /// Clients are disconnected after their outstanding requests are answered.
    #[default]
    SendAway,
    /// As `SendAway`, except that NBD clients that the next daemon can continue to serve are handed over.
    HandOver,
}

/// Result of a stop for one volume.
enum Ended {
    /// Its backing is complete, and its record needs no change.
    Complete,
    /// Its backing is complete, which is to be recorded for its incarnation.
    Clean(u64),
    /// The data that its backing lacks is in the flash log.
    Parked(Parked),
    /// Its backing does not answer.
    Hung,
    /// Its data core has ended.
    Failed,
}

/// A volume that was left in the flash log.
struct Parked {
    incarnation: u64,
    name: String,
    /// Its dirty bytes in the flash log.
    bytes: u64,
    /// Destaged blocks whose content the store has recorded.
    destaged: u64,
}

/// Message of a stop that left nothing on flash.
const COMPLETE: &str = "stopped; the backings are complete";

/// State of a stop.
pub struct Stop {
    phase: watch::Sender<Phase>,
    /// Destage everything, even with a flash log.
    destage: Cell<bool>,
    clients: Cell<Clients>,
    said: RefCell<String>,
}

impl Default for Stop {
    fn default() -> Self {
        let said = RefCell::new(COMPLETE.to_owned());
        Stop { phase: watch::Sender::new(Phase::Running), destage: Cell::default(), clients: Cell::default(), said }
    }
}

impl Stop {
    /// Requests a stop. With `destage` the backings are complete afterwards; otherwise dirty data stays in the flash
    /// log, if there is one. A repeated request changes nothing.
    pub fn ask(&self, destage: bool, clients: Clients) {
        self.phase.send_if_modified(|phase| {
            let first = *phase == Phase::Running;
            if first {
                *phase = Phase::Stopping;
                self.destage.set(destage);
                self.clients.set(clients);
            }
            first
        });
    }

    /// Message about the end of the stop, or the reason of its failure.
    pub fn said(&self) -> String {
        self.said.borrow().clone()
    }

    /// True once a stop was requested.
    pub fn is_stopping(&self) -> bool {
        *self.phase.borrow() != Phase::Running
    }

    /// Waits until a stop is requested.
    pub async fn asked(&self) {
        self.reached(|phase| phase != Phase::Running).await;
    }

    async fn reached(&self, reached: impl Fn(Phase) -> bool) -> Phase {
        let mut watched = self.phase.subscribe();
        *watched.wait_for(|phase| reached(*phase)).await.expect("the sender lives as long as this")
    }

    fn finish(&self, complete: bool) {
        self.phase.send_replace(if complete { Phase::Stopped } else { Phase::Failed });
    }
}

/// Disconnects the clients of all front ends concurrently; returns the connections that the next daemon can continue.
async fn send_clients_away(local: &Local, clients: Clients) -> Vec<Kept> {
    local.engine.volumes().iter().for_each(|volume| volume.lift_limits());
    let initiators = async {
        if let Some(iscsi) = &local.iscsi {
            iscsi.stop(CLIENTS_PATIENCE).await;
        }
    };
    let guests = async {
        if let Some(vhost_user) = &local.vhost_user {
            vhost_user.server.stop(CLIENTS_PATIENCE).await;
        }
    };
    let nbd = async {
        match clients {
            Clients::HandOver => to_keep(local.server.hand_over(CLIENTS_PATIENCE).await),
            Clients::SendAway => {
                local.server.stop(CLIENTS_PATIENCE).await;
                Vec::new()
            }
        }
    };
    futures_util::join!(nbd, initiators, guests).0
}

impl Daemon {
    /// `stop`: requests a stop, and answers when the backings are complete or the data that they lack is on flash.
    pub async fn stop_and_wait(&self, destage: bool, progress: &ProgressSender) -> Result<Answer, Failure> {
        log::info!(target: DAEMON, "stop asked for by command");
        self.stop.ask(destage, Clients::SendAway);
        let mut tick = tokio::time::interval(PROGRESS_PAUSE);
        let ended = self.stop.reached(|phase| matches!(phase, Phase::Stopped | Phase::Failed));
        let mut ended = std::pin::pin!(ended);
        loop {
            tokio::select! {
                phase = &mut ended => return match phase {
                    Phase::Failed => Err(Failure::new(ErrorKind::Failed, self.stop.said())),
                    _ => Ok(Answer::Said(vec![self.stop.said()])),
                },
                _ = tick.tick() => {
                    if let Some(dirty_bytes) = self.dirty_bytes().await.filter(|dirty_bytes| *dirty_bytes > 0) {
                        progress.say("destaging", dirty_bytes);
                    }
                }
            }
        }
    }

    /// Dirty bytes of all volumes; `None` once a core has ended.
    async fn dirty_bytes(&self) -> Option<u64> {
        let mut dirty_bytes = 0;
        for core in &self.cores {
            let sum =
                |local: &Local| local.engine.volumes().iter().map(|volume| volume.stats().dirty_bytes).sum::<u64>();
            dirty_bytes += core.call(async move |local: Rc<Local>| sum(&local)).await.ok()?;
        }
        Some(dirty_bytes)
    }

    /// Disconnects all clients, and records volumes as clean or parked once their dirty data is in the flash log.
    /// Without a log, or if requested, they are destaged instead, however long it takes. False when a data core ended
    /// before that, or a backing stayed silent.
    pub async fn drain(self: &Rc<Self>) -> bool {
        let park = self.flash_store().is_some() && !self.stop.destage.get();
        self.notifier.say("STOPPING=1\nSTATUS=waiting for requests under way");
        let (clients, mut kept) = (self.stop.clients.get(), Vec::new());
        for core in &self.cores {
            // A core that has ended has no clients left.
            let left = core.call(async move |local: Rc<Local>| send_clients_away(&local, clients).await).await;
            kept.extend(left.unwrap_or_default());
        }
        let mut volumes = tokio::task::JoinSet::new();
        let (mut complete, mut clean, mut parked, mut left) = (true, Vec::new(), Vec::new(), Vec::new());
        let mut failure = INCOMPLETE;
        for core in &self.cores {
            // The engine's own list: every volume that it serves is drained, whatever the daemon's records say.
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
                volumes.spawn_local(async move {
                    let end = async {
                        match park {
                            true => daemon.park_volume(&name, core, incarnation).await,
                            false => daemon.drain_volume(&name, core, incarnation).await,
                        }
                    };
                    tokio::select! {
                        ended = end => ended,
                        () = daemon.hangs(&name, core) => Ended::Hung,
                    }
                });
            }
        }
        let mut tick = tokio::time::interval(PROGRESS_PAUSE);
        while !volumes.is_empty() {
            tokio::select! {
                ended = volumes.join_next() => match ended {
                    Some(Ok(Ended::Complete)) => {}
                    Some(Ok(Ended::Clean(incarnation))) => clean.push(incarnation),
                    Some(Ok(Ended::Parked(Parked { incarnation, name, bytes, destaged }))) => {
                        parked.push((incarnation, destaged));
                        left.extend((bytes > 0).then_some((name, bytes)));
                    }
                    Some(Ok(Ended::Hung)) => (complete, failure) = (false, HUNG),
                    _ => complete = false,
                },
                _ = tick.tick() => {
                    self.note_ended(&mut clean, &parked);
                    self.say_progress(volumes.len()).await;
                }
            }
        }
        let noted = self.note_ended(&mut clean, &parked);
        if self.close_flash().await && complete {
            // The log holds no needed data: a recovery would find nothing of these volumes.
            self.note(|state| parked.iter().for_each(|(incarnation, _)| state.mark_clean(*incarnation)));
        }
        if !left.is_empty() {
            left.sort();
            *self.stop.said.borrow_mut() = Daemon::left_on_flash(&left);
        }
        for core in &self.cores {
            core.join().await;
        }
        if complete {
            // If the records could not be saved, the persisted memory stays: it proves to the next start that nothing
            // was lost.
            if noted {
                self.end_kept();
            }
            self.keep_clients(kept).await;
        }
        if !complete {
            *self.stop.said.borrow_mut() = failure.to_owned();
        }
        self.stop.finish(complete);
        complete
    }

    /// Returns when a volume's backing has been silent for longer than a stop waits.
    async fn hangs(&self, name: &str, core: usize) {
        loop {
            tokio::time::sleep(PROGRESS_PAUSE).await;
            let volume = name.to_owned();
            let stats = async move |local: Rc<Local>| local.engine.find(&volume).map(|volume| volume.stats());
            let Ok(Some(stats)) = self.cores[core].call(stats).await else { continue };
            let is_safe = self.kept.is_some() || stats.dirty_bytes + stats.written_bytes == 0;
            let patience_ms = if is_safe { HUNG_PATIENCE_MS } else { HUNG_PATIENCE_DIRTY_MS };
            if stats.backing_unanswered_ms >= patience_ms {
                let age = Duration::from_secs(stats.backing_unanswered_ms / 1000);
                log::error!(
                    target: VOLUME, volume = name,
                    "volume {name}: its backing has not answered for {age:?} and is not waited for any longer"
                );
                return;
            }
        }
    }

    async fn say_progress(&self, volumes: usize) {
        if let Some(dirty_bytes) = self.dirty_bytes().await
            && dirty_bytes > 0
        {
            let of = if volumes == 1 { "1 volume".to_owned() } else { format!("{volumes} volumes") };
            let text = format!("destaging: {} of {of} left", show_bytes(dirty_bytes));
            log::info!(target: DAEMON, "{text}");
            self.notifier.patience(&text);
        }
    }

    /// Leaves a volume's dirty data in the flash log.
    async fn park_volume(&self, name: &str, core: usize, incarnation: u64) -> Ended {
        loop {
            let volume = name.to_owned();
            let park = async move |local: Rc<Local>| {
                let Some(volume) = local.engine.find(&volume) else { return Ok(None) };
                let parked = volume.park().await;
                let log_is_gone = local.engine.log().is_none_or(|log| log.copies() == 0);
                let destaged = local.engine.destaged_noted(incarnation);
                let parked = parked.map(|left| left.then(|| (volume.stats().flash_dirty_bytes, destaged)));
                parked.map_err(|error| (error, log_is_gone))
            };
            match self.cores[core].call(park).await {
                Ok(Ok(Some((bytes, destaged)))) => {
                    return Ended::Parked(Parked { incarnation, name: name.to_owned(), bytes, destaged });
                }
                Ok(Ok(None)) => return Ended::Clean(incarnation),
                Ok(Err((error, true))) => {
                    log::error!(
                        target: VOLUME, volume = name,
                        "volume {name}: the flash log is gone ({error}); destaging instead"
                    );
                    return self.drain_past_flash(name, core, incarnation).await;
                }
                Ok(Err((error, false))) => {
                    self.retry(name, &format!("volume {name} could not be left in the flash log ({error})")).await;
                }
                Err(_) => return Daemon::core_has_ended(name),
            }
        }
    }

    /// Destages a volume although the log, which cannot be written any more, holds data of it. The volume gets another
    /// incarnation, so that the old data in the log never comes back.
    async fn drain_past_flash(&self, name: &str, core: usize, incarnation: u64) -> Ended {
        self.give_up_map("no flash device is left in service").await;
        loop {
            let volume = name.to_owned();
            let destage = async move |local: Rc<Local>| match local.engine.find(&volume) {
                Some(volume) => volume.destage_past_log().await,
                None => Ok(()),
            };
            match (self.cores[core].call(destage).await, draw_incarnation()) {
                (Err(_), _) => return Daemon::core_has_ended(name),
                (Ok(Ok(())), Ok(drawn)) => {
                    self.note(|state| {
                        state.give_up_flash(incarnation, drawn);
                        state.mark_clean(drawn);
                    });
                    return Ended::Complete;
                }
                (Ok(Err(error)), _) => {
                    self.retry(name, &format!("volume {name} could not be destaged ({error})")).await
                }
                (_, Err(error)) => {
                    self.retry(name, &format!("volume {name}: no identity can be drawn ({error})")).await
                }
            }
        }
    }

    async fn retry(&self, name: &str, text: &str) {
        let text = format!("{text}; trying again, a second signal gives up");
        log::error!(target: VOLUME, volume = name, "{text}");
        self.notifier.patience(&text);
        tokio::time::sleep(RETRY_PAUSE).await;
    }

    fn core_has_ended(name: &str) -> Ended {
        log::error!(target: VOLUME, volume = name, "volume {name}: its data core has ended; it is not clean");
        Ended::Failed
    }

    /// Records many volumes with one write of the state file: volumes that became clean since the last call, and all
    /// volumes parked in the flash log. True when the write succeeded.
    fn note_ended(&self, clean: &mut Vec<u64>, parked: &[(u64, u64)]) -> bool {
        let noted = self.note(|state| {
            clean.iter().for_each(|incarnation| state.mark_clean(*incarnation));
            parked.iter().for_each(|(incarnation, destaged)| state.mark_parked(*incarnation, *destaged));
        });
        if noted {
            clean.clear();
        }
        noted
    }

    /// Changes the state directory; true on success. After a failure the next start recovers as after a crash.
    fn note(&self, change: impl FnOnce(&mut State)) -> bool {
        let noted = self.state.borrow_mut().change(change);
        if let Err(error) = &noted {
            log::error!(target: DAEMON, "{error}");
        }
        noted.is_ok()
    }

    /// Destages and detaches a volume.
    async fn drain_volume(&self, name: &str, core: usize, incarnation: u64) -> Ended {
        let (progress, _) = ProgressSender::new();
        loop {
            let result = self.detach(name, core, &progress).await;
            let volume = name.to_owned();
            let about = async move |local: Rc<Local>| {
                let log_is_gone = local.engine.log().is_some_and(|log| log.copies() == 0);
                local.engine.find(&volume).map(|_| log_is_gone)
            };
            match (result, self.cores[core].call(about).await) {
                (Ok(()), _) => break,
                (Err(_), Err(_)) => return Daemon::core_has_ended(name),
                // The volume was removed meanwhile.
                (Err(_), Ok(None)) => return Ended::Complete,
                (Err(_), Ok(Some(true))) => return self.drain_past_flash(name, core, incarnation).await,
                (Err(failure), Ok(Some(false))) => self.retry(name, &failure.message).await,
            }
        }
        Ended::Clean(incarnation)
    }
}
