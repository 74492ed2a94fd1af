//! Server processes: start, CPU binding, monitoring, stop.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time within which a server must answer.
const READY_TIMEOUT: Duration = Duration::from_secs(20);
/// Length of the kernel's clock tick, the unit of CPU times: 1/100 s on every known Linux.
const TICK_US: f64 = 10_000.0;

/// Binds all threads of a process to these CPUs.
fn bind(pid: u32, cpu_list: &str) -> io::Result<()> {
    let status =
        Command::new("taskset").args(["-a", "-c", "-p", cpu_list, &pid.to_string()]).stdout(Stdio::null()).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("taskset ended with {status}"))) }
}

/// Binds this process to one CPU until dropped.
pub struct Bound {
    /// Number of CPUs.
    processors: usize,
}

impl Bound {
    /// Binds this process to `processor`.
    pub fn to(processor: usize) -> io::Result<Bound> {
        let processors = std::thread::available_parallelism()?.get();
        bind(std::process::id(), &processor.to_string())?;
        Ok(Bound { processors })
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // A failure only slows later measurements down, which is visible.
        let _ = bind(std::process::id(), &format!("0-{}", self.processors - 1));
    }
}

/// A running server, stopped when dropped.
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts `command` and waits until the server answers on `socket`.
    pub fn start(command: Command, socket: &Path) -> io::Result<Process> {
        Process::start_until(command, || answers(socket))
    }

    /// Starts `command` and waits until `is_ready` returns true.
    pub fn start_until(mut command: Command, is_ready: impl Fn() -> bool) -> io::Result<Process> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().map_err(|error| {
            io::Error::other(format!("{} does not start: {error}", command.get_program().display()))
        })?;
        let mut process = Process { child };
        let deadline = Instant::now() + READY_TIMEOUT;
        while !is_ready() {
            if let Some(status) = process.child.try_wait()? {
                return Err(io::Error::other(format!("{command:?} ended with {status}")));
            }
            if Instant::now() > deadline {
                return Err(io::Error::other(format!("{command:?} does not answer within {READY_TIMEOUT:?}")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(process)
    }

    /// Binds all threads of the process to one CPU.
    pub fn bind(&self, processor: usize) -> io::Result<()> {
        bind(self.child.id(), &processor.to_string())
    }

    /// Process ID.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// CPU time used so far, in microseconds.
    pub fn cpu_us(&self) -> f64 {
        cpu_us(&format!("/proc/{}/stat", self.child.id()))
    }

    /// CPU time of each thread by name; the first thread is called `control`.
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

    /// Resident memory in bytes.
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) << 10
    }
}

/// CPU time of the calling thread, in microseconds.
pub fn this_thread_cpu_us() -> f64 {
    scheduled_us(Path::new("/proc/thread-self/schedstat"))
}

/// CPU time of a thread in microseconds, with nanosecond resolution; [`cpu_us`] counts ticks.
fn scheduled_us(schedstat: &Path) -> f64 {
    let text = std::fs::read_to_string(schedstat).unwrap_or_default();
    text.split_whitespace().next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0) / 1e3
}

/// CPU time of the process with this `stat` file, in microseconds.
pub(crate) fn cpu_us(stat: &str) -> f64 {
    let stat = std::fs::read_to_string(stat).unwrap_or_default();
    // The name in parentheses may contain spaces; user and system time are the 12th and 13th field after it.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() * TICK_US
}

/// True when the server on `socket` sends a greeting. Reading all of it avoids an error message of the server.
fn answers(socket: &Path) -> bool {
    let mut greeting = [0; 18];
    UnixStream::connect(socket).and_then(|mut stream| stream.read_exact(&mut greeting)).is_ok()
}

impl Drop for Process {
    fn drop(&mut self) {
        // An error means that the server has already ended.
        let _ = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        let deadline = Instant::now() + READY_TIMEOUT;
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
