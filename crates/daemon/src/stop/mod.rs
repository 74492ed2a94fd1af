//! The clean stop: clients are disconnected, dirty data goes to the flash log or is destaged, volumes are recorded as
//! clean, and the cores end.

mod drain;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use control::{Answer, ErrorKind, Failure, ProgressSender};
use tokio::sync::watch;

use self::drain::{Drain, Drained, Fault};
use super::daemon::Daemon;
use super::handover::keep_clients;
use terminal::log;
use units::show_bytes;

/// Time-out for answering the outstanding requests of clients at a stop or a removal.
pub const CLIENTS_PATIENCE: seam::Nanos = seam::Nanos::from_secs(5);
/// Interval of progress reports.
const PROGRESS_PAUSE: Duration = Duration::from_secs(1);
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

    fn say(&self, text: String) {
        *self.said.borrow_mut() = text;
    }

    fn finish(&self, complete: bool) {
        self.phase.send_replace(if complete { Phase::Stopped } else { Phase::Failed });
    }
}

impl Daemon {
    /// `stop`: requests a stop, and answers when the backings are complete or the data that they lack is on flash.
    pub async fn stop_and_wait(&self, destage: bool, progress: &ProgressSender) -> Result<Answer, Failure> {
        log::info("stop asked for by command");
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
                    if let Some(dirty_bytes) = self.cores.dirty_bytes().await.filter(|dirty_bytes| *dirty_bytes > 0) {
                        progress.say("destaging", dirty_bytes);
                    }
                }
            }
        }
    }

    /// Disconnects all clients, and records volumes as clean or parked once their dirty data is in the flash log.
    /// Without a log, or if requested, they are destaged instead, however long it takes. False when a data core ended
    /// before that, or a backing stayed silent.
    pub async fn drain(&self) -> bool {
        let parks = self.flash.store().is_some() && !self.stop.destage.get();
        self.notifier.say("STOPPING=1\nSTATUS=waiting for requests under way");
        let (records, cores) = (self.records.clone(), self.cores.clone());
        let (flash, notifier) = (self.flash.clone(), self.notifier.clone());
        let drain = Rc::new(Drain::new(records, cores, flash, notifier, self.memory.survives()));
        let kept = drain.send_clients_away(self.stop.clients.get()).await;
        let Drained { fault, is_recorded, left } = drain.run(parks).await;
        if !left.is_empty() {
            self.stop.say(left_on_flash(&left));
        }
        for core in self.cores.iter() {
            core.join().await;
        }
        match fault {
            None => {
                // If the records could not be saved, the persisted memory stays: it proves to the next start that
                // nothing was lost.
                if is_recorded {
                    self.memory.end();
                }
                keep_clients(&self.notifier, kept).await;
            }
            Some(Fault::CoreEnded) => self.stop.say(INCOMPLETE.to_owned()),
            Some(Fault::BackingHung) => self.stop.say(HUNG.to_owned()),
        }
        self.stop.finish(fault.is_none());
        fault.is_none()
    }

    /// Records how the daemon ended, and flushes the event log.
    pub fn end_events(&self) {
        self.journal.end(&self.stop.said());
    }
}

/// Message of a stop that leaves data in the flash log.
fn left_on_flash(left: &[(String, u64)]) -> String {
    let bytes = left.iter().map(|(_, bytes)| bytes).sum();
    let names: Vec<_> = left.iter().map(|(name, _)| name.as_str()).collect();
    format!(
        "stopped; {} of {} are in the flash log and not on the backing: the next start takes them over; `hotset \
         stop --destage` would \
         have brought them there",
        show_bytes(bytes),
        names.join(", ")
    )
}
