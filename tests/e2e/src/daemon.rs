//! A running `hotset serve`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::client::{Client, Endpoint};
use crate::fixture::Fixture;

/// Pauses between two polls of a wait: the first, and the longest. A poll often is a process, whose start costs as much
/// as the work that is waited for.
const POLL_PAUSE_MIN: Duration = Duration::from_millis(5);
const POLL_PAUSE_MAX: Duration = Duration::from_millis(100);
/// Timeout of a start, a stop and other waits.
const TIMEOUT: Duration = Duration::from_secs(180);

/// Environment variable that names a deliberate fault of a daemon with the feature `sabotage`.
pub const SABOTAGE: &str = "HOTSET_SABOTAGE";
/// Lines of the daemon's log in a failure message.
const LOG_LINES_SHOWN: usize = 40;

/// A running daemon, killed when dropped.
pub struct Daemon {
    child: Child,
    log: PathBuf,
    /// Length of the log before the start, in bytes.
    log_before: usize,
    endpoint: Endpoint,
    socket: PathBuf,
    /// The program that runs, which also runs its commands.
    binary: PathBuf,
}

/// The binary under test: `HOTSET_BIN`, or one built now in the profile of this test.
pub fn binary() -> &'static PathBuf {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| std::env::var_os("HOTSET_BIN").map_or_else(build, PathBuf::from))
}

fn build() -> PathBuf {
    // …/target/PROFILE/deps/this-test
    let test = std::env::current_exe().expect("the path of the test binary");
    let folder = test.parent().and_then(|deps| deps.parent()).expect("the test binary is two folders deep");
    let profile = match folder.file_name().and_then(|name| name.to_str()).expect("profile names are UTF-8") {
        "debug" => "dev",
        other => other,
    };
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["build", "--quiet", "--package", "hotset", "--package", "rbd", "--profile", profile]);
    command.arg("--target-dir").arg(folder.parent().expect("the profile is inside the target folder"));
    let status = command.current_dir(env!("CARGO_MANIFEST_DIR")).status().expect("cargo runs");
    assert!(status.success(), "the daemon cannot be built");
    folder.join("hotset")
}

/// Runs a command of the binary to its end.
pub fn hotset(args: &[&str]) -> Output {
    run_to_its_end(binary(), args)
}

fn run_to_its_end(binary: &Path, args: &[&str]) -> Output {
    Command::new("timeout").arg("60").arg(binary).args(args).stdin(Stdio::null()).output().expect("hotset runs")
}

/// Standard output and standard error of a command as one text.
pub fn text_of(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Waits until `ready` returns a value.
pub fn wait_for<T>(event: &str, ready: impl FnMut() -> Option<T>) -> T {
    wait_at_most(TIMEOUT, event, ready)
}

/// Like [`wait_for`], with another timeout.
pub fn wait_at_most<T>(timeout: Duration, event: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let (end, mut pause) = (Instant::now() + timeout, POLL_PAUSE_MIN);
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(Instant::now() < end, "timed out after {timeout:?} waiting for {event}");
        std::thread::sleep(pause);
        pause = (pause * 2).min(POLL_PAUSE_MAX);
    }
}

impl Daemon {
    /// Starts a daemon and waits until its socket answers.
    pub fn start(fixture: &Fixture) -> Daemon {
        let mut daemon = Daemon::launch(fixture);
        daemon.wait_until_ready();
        daemon
    }

    /// Starts a daemon without waiting.
    pub fn launch(fixture: &Fixture) -> Daemon {
        fs::write(fixture.config(), fixture.config_text()).expect("the folder can be written");
        Daemon::launch_with(fixture, &fixture.config())
    }

    /// Like [`Daemon::launch`], with another configuration in the fixture's folder.
    pub fn launch_with(fixture: &Fixture, config: &Path) -> Daemon {
        let log = fixture.folder.join("daemon.log");
        let out = File::options().append(true).create(true).open(&log).expect("the folder can be written");
        let log_before = out.metadata().expect("the log is open").len() as usize;
        let binary = fixture.binary.as_ref().unwrap_or_else(|| binary());
        let program = fixture.wrapper.as_ref().unwrap_or(binary);
        let mut command =
            fixture.service_manager.as_ref().map_or_else(|| Command::new(program), |service| service.command(program));
        command.args(fixture.wrapper.as_ref().map(|_| binary));
        command.envs(fixture.sabotage.map(|fault| (SABOTAGE, fault)));
        if let Some(manager) = &fixture.watchdog_socket {
            command.env("NOTIFY_SOCKET", manager).env("WATCHDOG_USEC", "500000");
        }
        if let Some(programs) = &fixture.programs {
            let path = std::env::var("PATH").unwrap_or_default();
            command.env("PATH", format!("{}:{path}", programs.display()));
        }
        command.arg("serve").arg("--config").arg(config).stdin(Stdio::null());
        command.stdout(out.try_clone().expect("a descriptor is free")).stderr(out);
        let child = command.spawn().expect("the daemon can be started");
        let (endpoint, socket) = (fixture.endpoint(), fixture.folder.join("control.sock"));
        Daemon { child, log, log_before, endpoint, socket, binary: binary.clone() }
    }

    /// Waits until the daemon's socket answers, and for a second at most until its log says so: a thread of its own
    /// writes the log, and some tests configure a log without that line.
    pub fn wait_until_ready(&mut self) {
        let (endpoint, log) = (self.endpoint.clone(), self.log.clone());
        let child = &mut self.child;
        wait_for("the daemon's socket", || {
            if let Some(status) = child.try_wait().expect("the daemon is a child process") {
                panic!("the daemon ended with {status}:\n{}", fs::read_to_string(&log).unwrap_or_default());
            }
            // A reply about an unknown export also proves that the daemon answers.
            match Client::connect(&endpoint, "\u{1}") {
                Ok(_) => Some(()),
                Err(error) => (error.kind() == std::io::ErrorKind::InvalidData).then_some(()),
            }
        });
        let is_logged = || self.log().get(self.log_before..).is_some_and(|text| text.contains("serving "));
        for _ in 0..200 {
            if is_logged() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Log of this daemon and of its predecessors in the same folder.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Process ID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal by name (`TERM`, `HUP`).
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").arg(format!("-{name}")).arg(self.pid().to_string()).status();
        assert!(status.expect("kill runs").success(), "the daemon has ended:\n{}", self.log());
    }

    /// Sends SIGKILL and waits for the end of the process.
    pub fn kill(mut self) {
        self.child.kill().expect("the daemon is a child process");
        self.child.wait().expect("the daemon is a child process");
    }

    /// Waits for the end of the process.
    pub fn wait(&mut self) -> ExitStatus {
        let child = &mut self.child;
        wait_for("the daemon's end", || child.try_wait().expect("the daemon is a child process"))
    }

    /// True while the process runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("the daemon is a child process").is_none()
    }

    /// Sends SIGTERM and checks for a clean exit.
    pub fn stop(mut self) {
        self.signal("TERM");
        let status = self.wait();
        assert!(status.success(), "the daemon ended with {status}:\n{}", self.log());
    }

    /// Runs a command against this daemon; it must succeed.
    pub fn command(&self, args: &[&str]) -> String {
        let output = self.try_command(args);
        assert!(output.status.success(), "hotset {args:?}: {}\n{}", output.status, text_of(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs a command against this daemon.
    pub fn try_command(&self, args: &[&str]) -> Output {
        let socket = self.socket.to_string_lossy();
        run_to_its_end(&self.binary, &[args, &["--socket", &socket]].concat())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let last = lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n");
            eprintln!("--- end of the daemon's log ---\n{last}");
        }
    }
}
