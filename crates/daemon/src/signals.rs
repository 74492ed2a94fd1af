//! Signal handling on a thread of its own, so that a second stop signal ends the process even if all other threads are
//! blocked.
//!
//! The thread does no disk I/O, and takes no lock that another thread could hold during disk I/O.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use seam::real::{Signal, exit_now, hold_signals, obey_default, wait_for_signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use logging::{self as log, DAEMON};
use terminal::{EXIT_FAILED, Failure};

/// Time for the last log line of a process that ends at once: standard error may be stuck.
const LOG_FLUSH_TIMEOUT: Duration = Duration::from_millis(100);

/// The receiver of signals, and the message for a second stop signal.
static OBEYS: Mutex<Option<Obeys>> = Mutex::new(None);

struct Obeys {
    to: UnboundedSender<Signal>,
    /// A signal has requested a stop. A stop by command does not count.
    stopping: AtomicBool,
    /// The message says whether acknowledged writes survive an end without a stop.
    last_words: &'static str,
}

fn obeys() -> MutexGuard<'static, Option<Obeys>> {
    OBEYS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts to take signals; without a receiver they have their default effect. To be called before the process has other
/// threads, since signals would be delivered to them, too.
pub fn take() -> Result<(), Failure> {
    static STARTED: Once = Once::new();
    let failed = |error: std::io::Error| Failure::failed(format!("signals cannot be taken: {error}"));
    hold_signals().map_err(failed)?;
    let mut started = Ok(());
    STARTED.call_once(|| {
        let body = || {
            loop {
                pass_on(wait_for_signal());
            }
        };
        started = std::thread::Builder::new().name("signals".to_owned()).spawn(body).map(drop);
    });
    started.map_err(failed)
}

/// Returns the receiver of signals, which are obeyed as long as it lives. The second stop signal prints `last_words`
/// and ends the process at once.
pub fn obey(last_words: &'static str) -> UnboundedReceiver<Signal> {
    let (to, from) = unbounded_channel();
    *obeys() = Some(Obeys { to, stopping: AtomicBool::new(false), last_words });
    from
}

fn pass_on(signal: Signal) {
    let obeys = obeys();
    let is_obeyed = obeys.as_ref().is_some_and(|obeys| {
        let is_stop = signal != Signal::Hangup;
        if is_stop && obeys.stopping.swap(true, Ordering::Relaxed) {
            log::warn!(target: DAEMON, "{} again: ending at once; {}", signal.name(), obeys.last_words);
            log::flush(LOG_FLUSH_TIMEOUT);
            exit_now(i32::from(EXIT_FAILED));
        }
        obeys.to.send(signal).is_ok()
    });
    drop(obeys);
    if !is_obeyed {
        obey_default(signal);
    }
}
