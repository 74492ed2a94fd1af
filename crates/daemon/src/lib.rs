//! `hotset serve`: the start and the end of the daemon, with its data cores, volumes, listeners and control thread.
//!
//! The calling thread becomes the control thread: it owns files, signals and the control socket. Data cores are threads
//! of their own that never wait for it; every action reaches them as a message.
//!
//! No module uses a module above it: `daemon` is on top, the parts of the control thread (`flash`, `iscsi_units`,
//! `stop` and others) are below it, then `cores`, and at the bottom the servers that a core runs (`iscsi`,
//! `vhost_user`).

mod attachments;
mod certificates;
mod cores;
mod daemon;
mod descriptor_shortage;
mod device_paths;
mod engine_reports;
mod events;
mod flash;
mod fleet_link;
mod fleet_peers;
mod foreign_log;
mod forwarding;
mod handover;
mod http;
mod iscsi;
mod iscsi_units;
mod jobs;
mod listen;
mod listen_retry;
mod loss;
mod overlap;
mod persisted_memory;
mod port_holder;
mod progress;
mod rbd_helper;
mod records;
mod reload_outcome;
#[cfg(feature = "sabotage")]
mod sabotage;
mod settings;
mod signals;
mod socket_access;
mod standby;
mod stop;
mod telemetry;
mod vhost_user;
mod volume_settings;
mod volumes;

use std::path::Path;
use std::thread::JoinHandle;

use rustix::process::{Resource, Rlimit};
use tokio::task::LocalSet;

pub use self::daemon::override_reports;
use self::daemon::serve;
pub use self::events::DIRECTORY as EVENTS_DIRECTORY;
pub use self::port_holder::{PortHolder, show_in_use};
use config::{Config, LOOK_UP_TIMEOUT};
use logging::{self as log, CONFIG};
use terminal::Failure;

/// Umask: new files are writable by the daemon's user alone, and readable by its group.
const UMASK: u32 = 0o027;

/// Serves the configuration in `file` until stopped.
pub fn run(file: &Path) -> Result<(), Failure> {
    let inherited = handover::inherited();
    signals::start_thread()?;
    let config = Config::load_within(file, LOOK_UP_TIMEOUT).map_err(|problems| Failure::usage(problems.to_string()))?;
    // The log starts a thread, which must inherit the blocked signals of `signals::start_thread`.
    let _log = log::start(&config.log.filter, config.log.format)
        .map_err(|error| Failure::failed(format!("the log cannot be started: {error}")))?;
    config.exposed_secrets().iter().for_each(|text| log::warn!(target: CONFIG, "{text}"));
    raise_open_files();
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(UMASK));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::failed(format!("cannot start the control thread: {error}")))?;
    let ended = LocalSet::new().block_on(&runtime, serve(config, inherited, || ()));
    rbd_helper::wait_for_end();
    ended
}

/// Raises the limit of open files to the hard limit: every client needs a descriptor.
fn raise_open_files() {
    let limits = rustix::process::getrlimit(Resource::Nofile);
    // If the limit cannot be raised, the present one stays.
    let _ = rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, ..limits });
}

/// A daemon on a thread of its own in this process.
pub struct Background(JoinHandle<Result<(), Failure>>);

impl Background {
    /// Starts a daemon; returns when clients can connect.
    pub fn start(config: Config) -> Result<Background, Failure> {
        signals::start_thread()?;
        let (ready, ready_receiver) = std::sync::mpsc::channel();
        let body = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime =
                runtime.map_err(|error| Failure::failed(format!("cannot start the control thread: {error}")))?;
            // The receiver is gone if the starting thread has given up.
            let ready = move || ready.send(()).unwrap_or_default();
            LocalSet::new().block_on(&runtime, serve(config, Vec::new(), ready))
        };
        let thread = std::thread::Builder::new().name("control".to_owned()).spawn(body);
        let daemon =
            Background(thread.map_err(|error| Failure::failed(format!("cannot start the control thread: {error}")))?);
        match ready_receiver.recv() {
            Ok(()) => Ok(daemon),
            Err(_) => Err(daemon.join().err().unwrap_or_else(|| Failure::failed("the daemon ended at once"))),
        }
    }

    /// True when its thread has ended.
    pub fn has_ended(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits for its end.
    pub fn join(self) -> Result<(), Failure> {
        self.0.join().unwrap_or_else(|_| Err(Failure::failed("the control thread panicked")))
    }
}
