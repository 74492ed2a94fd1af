//! Signals: a thread of their own takes them, so that a second stop ends the process whatever its other threads wait for.
//!
//! The thread touches no disk and takes no lock that a thread could hold while it waits for one.

use std::io::Write;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use seam::real::{Signal, exit_now, hold_signals, obey_default, wait_for_signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use terminal::{EXIT_FAILED, Failure};

/// The receiver of signals, and the last words where it does not act on a second one.
static OBEYS: Mutex<Option<Obeys>> = Mutex::new(None);

struct Obeys {
    to: UnboundedSender<Signal>,
    /// A signal has asked for a stop. A stop by command does not count.
    stopping: AtomicBool,
    /// Says whether acknowledged writes survive an end without a stop.
    last_words: &'static str,
}

fn obeys() -> MutexGuard<'static, Option<Obeys>> {
    OBEYS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes signals from now on; until there is a receiver they have their default effect. To be called before there are
/// other threads, which would be given signals as well.
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

/// Obeys signals from now on, as long as what is returned lives. The second one that asks for a stop ends the process at once, saying
/// `last_words`.
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
            say(&format!("hotset: warning: {} again: ending at once; {}\n", signal.name(), obeys.last_words));
            exit_now(i32::from(EXIT_FAILED));
        }
        obeys.to.send(signal).is_ok()
    });
    drop(obeys);
    if !is_obeyed {
        obey_default(signal);
    }
}

/// Writes to standard error if that needs no waiting: its reader, or a thread in the middle of a line, may never go on.
fn say(line: &str) {
    let error = std::io::stderr();
    let mut writable = [PollFd::from_borrowed_fd(error.as_fd(), PollFlags::OUT)];
    if poll(&mut writable, Some(&Timespec::default())).is_ok_and(|count| count > 0) {
        // Past the lock of the standard library's own handle.
        if let Ok(file) = error.as_fd().try_clone_to_owned() {
            let _ = std::fs::File::from(file).write_all(line.as_bytes());
        }
    }
}
