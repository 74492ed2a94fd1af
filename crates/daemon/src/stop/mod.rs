//! The clean stop: clients are disconnected, dirty data goes to the flash log or is destaged, volumes are recorded as
//! clean, and the cores end.

mod drain;

use std::cell::{Cell, RefCell};
use std::time::Duration;

use messages::{ErrorKind, Failure};
use tokio::sync::watch;

pub use self::drain::{Drain, DrainFault, DrainResult};

/// Interval of progress reports.
pub const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

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
    /// A data core ended or a backing did not answer before all dirty data was safe; the process ends.
    Failed,
}

/// Treatment of clients at a stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clients {
    /// Clients are disconnected after their outstanding requests are answered.
    #[default]
    Disconnect,
    /// As `Disconnect`, except that NBD clients that the next daemon can continue to serve are handed over.
    HandOver,
}

/// Message of a stop that left nothing on flash.
const COMPLETE_MESSAGE: &str = "stopped; the backings are complete";

/// Treatment of dirty data by a stop, for progress reports.
pub fn activity(uses_flash_log: bool) -> &'static str {
    if uses_flash_log { "leaving dirty data in the flash log" } else { "destaging" }
}

/// State of a stop.
pub struct Stop {
    phase: watch::Sender<Phase>,
    /// Destage everything, even with a flash log.
    destage: Cell<bool>,
    clients: Cell<Clients>,
    message: RefCell<String>,
    /// Backings may lack data that is in the flash log or in persisted memory.
    is_incomplete: Cell<bool>,
}

impl Default for Stop {
    fn default() -> Self {
        let message = RefCell::new(COMPLETE_MESSAGE.to_owned());
        Stop {
            phase: watch::Sender::new(Phase::Running),
            destage: Cell::default(),
            clients: Cell::default(),
            message,
            is_incomplete: Cell::default(),
        }
    }
}

impl Stop {
    /// Requests a stop. With `destage` the backings are complete afterwards; otherwise dirty data stays in the flash
    /// log, if there is one. A repeated request changes nothing.
    pub fn request(&self, destage: bool, clients: Clients) {
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

    /// True when everything is to be destaged, even with a flash log.
    pub fn destages(&self) -> bool {
        self.destage.get()
    }

    /// Treatment of clients.
    pub fn clients(&self) -> Clients {
        self.clients.get()
    }

    /// Message about the end of the stop, or the reason of its failure.
    pub fn message(&self) -> String {
        self.message.borrow().clone()
    }

    /// True once a stop was requested.
    pub fn is_stopping(&self) -> bool {
        *self.phase.borrow() != Phase::Running
    }

    /// Waits until a stop is requested.
    pub async fn requested(&self) {
        self.wait_for_phase(|phase| phase != Phase::Running).await;
    }

    /// Runs `work` to its end, or drops it when a stop is requested: a backing may never answer.
    pub async fn interrupt<T>(&self, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        tokio::select! {
            result = work => result,
            () = self.requested() => Err(Failure::new(ErrorKind::Unavailable, "the daemon is stopping")),
        }
    }

    /// Waits until the stop reaches a phase.
    pub async fn wait_for_phase(&self, is_reached: impl Fn(Phase) -> bool) -> Phase {
        let mut watched = self.phase.subscribe();
        *watched.wait_for(|phase| is_reached(*phase)).await.expect("the sender lives as long as this")
    }

    /// Sets the message about the end of the stop.
    pub fn set_message(&self, text: String) {
        *self.message.borrow_mut() = text;
    }

    /// Records that backings may lack data that is in the flash log or in persisted memory.
    pub fn set_incomplete(&self) {
        self.is_incomplete.set(true);
    }

    /// True if backings may lack data that is in the flash log or in persisted memory.
    pub fn is_incomplete(&self) -> bool {
        self.is_incomplete.get()
    }

    /// Ends the stop; `is_complete` if all dirty data is safe.
    pub fn finish(&self, is_complete: bool) {
        self.phase.send_replace(if is_complete { Phase::Stopped } else { Phase::Failed });
    }
}
