//! The log of the daemon and of other long-running commands, on standard error. It holds log entries that concern an
//! administrator, never single requests. A log entry has a level, its subsystem as target, a sentence that can be read
//! without the fields, and fields for programs.
//!
//! ```text
//! filter.rs  levels by subsystem
//! format.rs  text and JSON
//! writer.rs  the thread that writes, and the bounded queue before it
//! ```
//!
//! A log entry takes no lock that is held during I/O: a data core may log.

mod filter;
mod format;
mod writer;

use std::io;
use std::sync::OnceLock;
use std::time::Duration;

pub use tracing::level_filters::LevelFilter;
pub use tracing::{debug, error, info, warn};

pub use self::filter::{Filter, FilterError};
pub use self::format::Format;
use self::writer::Writer;

/// Maximum wait for the last lines when the process ends.
const FINAL_FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

macro_rules! subsystems {
    ($($name:ident $text:literal $doc:literal)+) => {
        $(#[doc = $doc] pub const $name: &str = $text;)+

        /// Every subsystem and what it logs.
        pub const SUBSYSTEMS: &[(&str, &str)] = &[$(($text, $doc)),+];
    };
}

subsystems! {
    API "api" "the HTTP interface: changes with actor and result, logins, tokens"
    ATTACH "attach" "`hotset attach`, in its own log"
    CONFIG "config" "the configuration and its reload"
    CONTROL "control" "requests to the daemon, and jobs"
    DAEMON "daemon" "start, stop, signals, file descriptors, the log itself"
    EVENTS "events" "alerts as they are raised and cleared, with effect and remedy; the channels of alerts"
    FLASH "flash" "flash devices, the flash log, clean pages on flash"
    FLEET "fleet" "the link to other hosts: its listener, refused connections, requests"
    HISTORY "history" "history of metrics: errors of its thread and its file"
    ISCSI "iscsi" "the iSCSI target and its reservations"
    MEMORY "memory" "persisted memory"
    NBD "nbd" "handover of NBD connections across a restart"
    QOS "qos" "limits, shares, reservations"
    TRACE "trace" "recordings of requests"
    VHOST_USER "vhost_user" "vhost-user front ends"
    VOLUME "volume" "volumes: served, refused, changed, destaged at a stop"
}

struct Running {
    set_filter: format::FilterHandle,
    writer: Writer,
}

static RUNNING: OnceLock<Running> = OnceLock::new();

/// The log of this process. Dropping it waits for the last lines.
#[must_use]
pub struct Log(());

impl Drop for Log {
    fn drop(&mut self) {
        flush(FINAL_FLUSH_TIMEOUT);
    }
}

/// Starts the log of this process; without it log entries go nowhere. A process has one log: a second call only changes
/// the filter.
pub fn start(filter: &Filter, format: Format) -> io::Result<Log> {
    if RUNNING.get().is_none() {
        let writer = Writer::start(writer::standard_error()?, |lines| {
            warn!(target: DAEMON, lines, "{lines} log lines were dropped: standard error was blocked");
        })?;
        let is_journal = std::env::var_os("JOURNAL_STREAM").is_some();
        let (subscriber, set_filter) = format::subscriber(filter, format, is_journal, writer.clone());
        if tracing::subscriber::set_global_default(subscriber).is_ok() {
            RUNNING.get_or_init(|| Running { set_filter, writer });
        }
    }
    set_filter(filter);
    Ok(Log(()))
}

/// Replaces the filter.
pub fn set_filter(filter: &Filter) {
    if let Some(running) = RUNNING.get() {
        // It fails only when the subscriber no longer exists, and a global one is never dropped.
        let _ = running.set_filter.reload(filter.targets());
    }
}

/// Waits until all log entries so far are written, for `timeout` at most: standard error may be stuck.
pub fn flush(timeout: Duration) {
    if let Some(running) = RUNNING.get() {
        running.writer.flush(timeout);
    }
}
