//! One thread of a process that stands still while all others go on, as if the machine had forgotten it.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::daemon::Daemon;

/// A held thread; it goes on when this is dropped.
pub struct Held {
    holder: Child,
    stat: String,
}

impl Held {
    /// Holds the daemon's control thread, its first one. None, with the reason printed, where threads of others may not be held.
    pub fn control(daemon: &Daemon) -> Option<Held> {
        Held::thread(daemon, daemon.pid())
    }

    /// The same with its first data core.
    pub fn core(daemon: &Daemon) -> Option<Held> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).expect("the daemon runs");
        let is_core =
            |task: &Path| std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == "core-0");
        let tasks = tasks.map(|task| task.expect("an entry").path()).filter(|task| is_core(task));
        let number = |task: PathBuf| task.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok());
        // Those that the kernel has made for it since are called the same.
        Held::thread(daemon, tasks.filter_map(number).min().expect("it has one"))
    }

    fn thread(daemon: &Daemon, number: u32) -> Option<Held> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/hold-thread");
        let mut command = Command::new(script);
        let mut holder = command
            .arg(number.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 is there");
        let mut said = [0; 5];
        let says = holder.stdout.take().expect("it is piped").read_exact(&mut said);
        if says.is_err() || said != *b"held\n" {
            // It has said why.
            eprintln!("SKIPPED: threads of other processes may not be held here");
            holder.wait().expect("it is our child");
            return None;
        }
        Some(Held { holder, stat: format!("/proc/{}/task/{number}/stat", daemon.pid()) })
    }

    /// True while it stands still.
    pub fn stands_still(&self) -> bool {
        let stat = std::fs::read_to_string(&self.stat).expect("the daemon runs");
        // The state stands behind the name, which may hold anything.
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('t'))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}
