//! One thread of a daemon that stands still.

use std::io;
use std::path::{Path, PathBuf};

use held::Held;

use crate::daemon::Daemon;

/// Holds the daemon's control thread, its first one. None, with the reason printed, where threads of others may not be held.
pub fn control(daemon: &Daemon) -> Option<Held> {
    thread(daemon, daemon.pid())
}

/// The same with its first data core.
pub fn core(daemon: &Daemon) -> Option<Held> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).expect("the daemon runs");
    let is_core = |task: &Path| std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == "core-0");
    let tasks = tasks.map(|task| task.expect("an entry").path()).filter(|task| is_core(task));
    let number = |task: PathBuf| task.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok());
    // Those that the kernel has made for it since are called the same.
    thread(daemon, tasks.filter_map(number).min().expect("it has one"))
}

fn thread(daemon: &Daemon, number: u32) -> Option<Held> {
    match Held::thread(daemon.pid(), number) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            // It has said why.
            eprintln!("SKIPPED: threads of other processes may not be held here");
            None
        }
        held => Some(held.expect("python3 is there")),
    }
}
