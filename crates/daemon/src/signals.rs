//! Signal handling on a thread of its own, so that a second stop signal ends the process even if all other threads are
//! blocked.
//!
//! The thread does no disk I/O, and takes no lock that another thread could hold during disk I/O.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use seam::real::{Signal, apply_default_action, block_signals, exit_now, wait_for_signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use logging::{self as log, DAEMON};
use terminal::{EXIT_FAILED, Failure};

/// Time for the last log line of a process that ends at once: standard error may be stuck.
const LOG_FLUSH_TIMEOUT: Duration = Duration::from_millis(100);

/// The receiver of signals, and the message for a second stop signal.
static SUBSCRIBER: Mutex<Option<Subscriber>> = Mutex::new(None);

struct Subscriber {
    sender: UnboundedSender<Signal>,
    /// A signal has requested a stop. A stop by command does not count.
    stopping: AtomicBool,
    /// States whether acknowledged writes survive an end without a clean stop.
    final_message: &'static str,
}

fn subscriber() -> MutexGuard<'static, Option<Subscriber>> {
    SUBSCRIBER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the signal thread; without a subscriber signals have their default effect. Must be called before the process
/// has other threads, since the kernel could deliver signals to them.
pub fn start_thread() -> Result<(), Failure> {
    static STARTED: Once = Once::new();
    let failed = |error: std::io::Error| Failure::failed(format!("cannot handle signals: {error}"));
    block_signals().map_err(failed)?;
    let mut started = Ok(());
    STARTED.call_once(|| {
        let body = || {
            loop {
                deliver(wait_for_signal());
            }
        };
        started = std::thread::Builder::new().name("signals".to_owned()).spawn(body).map(drop);
    });
    started.map_err(failed)
}

/// Returns the receiver of signals. They are delivered to it as long as it lives. The second stop signal prints
/// `final_message` and ends the process at once.
pub fn subscribe(final_message: &'static str) -> UnboundedReceiver<Signal> {
    let (sender, receiver) = unbounded_channel();
    *subscriber() = Some(Subscriber { sender, stopping: AtomicBool::new(false), final_message });
    receiver
}

fn deliver(signal: Signal) {
    let subscriber = subscriber();
    let is_delivered = subscriber.as_ref().is_some_and(|subscriber| {
        let is_stop = signal != Signal::Hangup;
        if is_stop && subscriber.stopping.swap(true, Ordering::Relaxed) {
            log::warn!(target: DAEMON, "{} again: ending at once; {}", signal.name(), subscriber.final_message);
            log::flush(LOG_FLUSH_TIMEOUT);
            exit_now(i32::from(EXIT_FAILED));
        }
        subscriber.sender.send(signal).is_ok()
    });
    drop(subscriber);
    if !is_delivered {
        apply_default_action(signal);
    }
}
