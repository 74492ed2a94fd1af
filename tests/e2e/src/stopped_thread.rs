//! Stops single threads of a daemon.

use std::io;
use std::path::{Path, PathBuf};

use thread_stop::StoppedThread;

use crate::daemon::Daemon;

/// Stops the daemon's control thread, its first one. Returns `None` and prints the reason where threads of other
/// processes cannot be stopped.
pub fn stop_control(daemon: &Daemon) -> Option<StoppedThread> {
    stop(daemon, daemon.pid())
}

/// Stops the daemon's first data core thread.
pub fn stop_data_core(daemon: &Daemon) -> Option<StoppedThread> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).expect("the daemon runs");
    let is_core = |task: &Path| std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == "core-0");
    let tasks = tasks.map(|task| task.expect("a readable entry").path()).filter(|task| is_core(task));
    let thread_id = |task: PathBuf| task.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok());
    // Kernel workers that the thread created later have the same name and higher IDs.
    stop(daemon, tasks.filter_map(thread_id).min().expect("the daemon has a data core"))
}

fn stop(daemon: &Daemon, thread_id: u32) -> Option<StoppedThread> {
    match StoppedThread::stop(daemon.pid(), thread_id) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            // The error has been printed already.
            eprintln!("SKIPPED: threads of other processes cannot be stopped here");
            None
        }
        stopped => Some(stopped.expect("python3 is installed")),
    }
}
