//! Stop and reload by signal.

use std::rc::Rc;

use seam::real::Signal;

use super::super::signals;
use super::super::stop::Clients;
use super::Daemon;
use logging::{self as log, CONFIG, DAEMON};

/// Handles signals: SIGTERM and SIGINT stop the daemon, a second one ends it at once, SIGHUP reloads the configuration.
pub async fn handle_signals(daemon: Rc<Daemon>) {
    let mut signals = signals::subscribe(match daemon.memory.survives_restart() {
        true => "acknowledged writes stay in memory for the next start",
        false => "flushed data is safe, unflushed data is lost",
    });
    while let Some(signal) = signals.recv().await {
        match signal {
            Signal::Terminate | Signal::Interrupt => stop_by_signal(&daemon, signal),
            Signal::Hangup => {
                let daemon = daemon.clone();
                tokio::task::spawn_local(async move { reload_by_signal(&daemon).await });
            }
        }
    }
}

fn stop_by_signal(daemon: &Daemon, signal: Signal) {
    let action = match daemon.flash.store() {
        Some(_) => "leaving dirty data in the flash log",
        None => "destaging dirty data",
    };
    let name = signal.name();
    log::info!(target: DAEMON, "{name}: stopping; {action}, a second signal ends at once");
    daemon.journal.record_change(Some(name.to_owned()), None, "stop".to_owned());
    // A stop by the service manager may be followed by a start, so clients are handed over. Without a start the service
    // manager closes their connections.
    let hands_over = signal == Signal::Terminate && daemon.notifier.is_connected();
    daemon.stop.request(false, if hands_over { Clients::HandOver } else { Clients::Disconnect });
}

async fn reload_by_signal(daemon: &Daemon) {
    if daemon.stop.is_stopping() {
        return log::warn!(target: DAEMON, "SIGHUP: ignored, the daemon is stopping");
    }
    log::info!(target: CONFIG, "SIGHUP: reading the configuration again");
    match daemon.reload_as("SIGHUP").await {
        Ok(outcomes) => outcomes.iter().for_each(|outcome| log::info!(target: CONFIG, "{outcome}")),
        Err(failure) => {
            log::error!(target: CONFIG, "{}", failure.message);
            daemon.notifier.status("the configuration has errors; the previous one stays in effect");
        }
    }
}
