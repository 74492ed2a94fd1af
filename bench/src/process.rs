//! Server processes: started, bound to processors, watched, stopped.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take until it answers.
const PATIENCE: Duration = Duration::from_secs(20);
/// Length of the kernel's clock tick, in which it counts CPU time: 1/100 s on every Linux that we know of.
const TICK_US: f64 = 10_000.0;

/// Binds all threads of a process to these processors.
fn bind(pid: u32, list: &str) -> io::Result<()> {
    let status =
        Command::new("taskset").args(["-a", "-c", "-p", list, &pid.to_string()]).stdout(Stdio::null()).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("taskset ended with {status}"))) }
}

/// This process on one processor, until dropped.
pub struct Bound {
    /// How many there are.
    processors: usize,
}

impl Bound {
    /// Binds it.
    pub fn to(processor: usize) -> io::Result<Bound> {
        let processors = std::thread::available_parallelism()?.get();
        bind(std::process::id(), &processor.to_string())?;
        Ok(Bound { processors })
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // What cannot be undone only makes what is measured afterwards slower, and shows.
        let _ = bind(std::process::id(), &format!("0-{}", self.processors - 1));
    }
}

/// A running server; stopped when dropped.
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts `command` and waits until it answers on `socket`.
    pub fn start(command: Command, socket: &Path) -> io::Result<Process> {
        Process::start_until(command, || answers(socket))
    }

    /// Starts `command` and waits until `is_ready`.
    pub fn start_until(mut command: Command, is_ready: impl Fn() -> bool) -> io::Result<Process> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().map_err(|error| {
            io::Error::other(format!("{} does not start: {error}", command.get_program().display()))
        })?;
        let mut process = Process { child };
        let deadline = Instant::now() + PATIENCE;
        while !is_ready() {
            if let Some(status) = process.child.try_wait()? {
                return Err(io::Error::other(format!("{command:?} ended with {status}")));
            }
            if Instant::now() > deadline {
                return Err(io::Error::other(format!("{command:?} does not answer within {PATIENCE:?}")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(process)
    }

    /// Binds all of its threads to one processor.
    pub fn bind(&self, processor: usize) -> io::Result<()> {
        bind(self.child.id(), &processor.to_string())
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// CPU time that it has used so far, in microseconds.
    pub fn cpu_us(&self) -> f64 {
        cpu_us(&format!("/proc/{}/stat", self.child.id()))
    }

    /// The same of its threads, by name; the first one is called `control`.
    pub fn threads_cpu_us(&self) -> io::Result<BTreeMap<String, f64>> {
        let mut threads = BTreeMap::new();
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let thread = thread?.path();
            let name = match thread.ends_with(self.child.id().to_string()) {
                true => "control".to_owned(),
                false => std::fs::read_to_string(thread.join("comm"))?.trim().to_owned(),
            };
            *threads.entry(name).or_default() += scheduled_us(&thread.join("schedstat"));
        }
        Ok(threads)
    }

    /// Memory that it has resident, in bytes.
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) << 10
    }
}

/// CPU time of the thread that asks, in microseconds.
pub fn this_thread_cpu_us() -> f64 {
    scheduled_us(Path::new("/proc/thread-self/schedstat"))
}

/// CPU time of a thread, in microseconds: to the nanosecond, where [`cpu_us`] knows ticks.
fn scheduled_us(schedstat: &Path) -> f64 {
    let text = std::fs::read_to_string(schedstat).unwrap_or_default();
    text.split_whitespace().next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0) / 1e3
}

pub(crate) fn cpu_us(stat: &str) -> f64 {
    let stat = std::fs::read_to_string(stat).unwrap_or_default();
    // The name in parentheses may hold spaces; user and system time are the 12th and 13th field behind it.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() * TICK_US
}

/// True when somebody greets; a server that can finish its greeting has nothing to complain about.
fn answers(socket: &Path) -> bool {
    let mut greeting = [0; 18];
    UnixStream::connect(socket).and_then(|mut stream| stream.read_exact(&mut greeting)).is_ok()
}

impl Drop for Process {
    fn drop(&mut self) {
        // A server that is gone already is stopped.
        let _ = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
