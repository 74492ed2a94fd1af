//! The supervisor of a helper process: a thread that starts it, reads its messages, and starts it again after a crash.

use std::fs::DirBuilder;
use std::io::{self, BufReader};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use rbd::{Invocation, Mark, Purpose, Status, show_mark_id};
use seam::DiskError;
use tokio::sync::oneshot;

use super::standby::{OrderedService, Process};
use super::{HelperPlan, Shared};
use logging::{self as log, VOLUME};

/// Name of the program.
const PROGRAM: &str = "hotset-rbd";
/// Its folder in a package, from the folder of the daemon's program.
const PACKAGE_FOLDER: &str = "../lib/hotset";
/// Folder of the records of owners, beside the sockets.
const RECORDS_FOLDER: &str = "owners";
/// First pause before a restart; it doubles.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Longest pause before a restart.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// Time in service after which the pauses start again from the first one.
const STABLE_AFTER: Duration = Duration::from_secs(60);
/// Time that a process has to end after its control channel was closed; the process itself takes 5 s at most.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(7);
/// Interval at which the end of a process, or that of the handle during a pause, is polled.
const POLL_PAUSE: Duration = Duration::from_millis(10);

/// The first opening of the image.
type Opened = oneshot::Sender<Result<(), DiskError>>;

/// End of a process.
enum Outcome {
    /// The image was served until this error; `None` for an end without a message.
    Served(Option<String>),
    /// It was not.
    NotServed(DiskError),
}

/// Supervises the process of one image.
pub struct Supervisor {
    plan: HelperPlan,
    socket: PathBuf,
    /// Time without a message from a process that opens the image, at the first start.
    limit: Duration,
    shared: Arc<Shared>,
}

impl Supervisor {
    pub fn new(plan: HelperPlan, limit: Duration, socket: PathBuf, shared: Arc<Shared>) -> Supervisor {
        Supervisor { plan, socket, limit, shared }
    }

    /// Supervises until the handle is dropped, or the image cannot be served any more. The first process is the one
    /// that was `ordered`, if it serves the image. The result of the first opening goes to `opened`.
    pub fn run(mut self, ordered: Option<OrderedService>, opened: Opened) {
        let begun = match ordered {
            Some(ordered) => Ok(ordered.begin()),
            None => listen(&self.socket).map(|listener| (listener, None)),
        };
        let (listener, first) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                let text = format!("cannot listen at {} for {PROGRAM}: {error}", self.socket.display());
                // The receiver has given up if this fails.
                let (Ok(()) | Err(_)) = opened.send(Err(DiskError::Open(text)));
                return;
            }
        };
        self.serve(&listener, first, opened);
        let (Ok(()) | Err(_)) = std::fs::remove_file(&self.socket);
    }

    fn serve(&mut self, listener: &UnixListener, mut first: Option<Process>, opened: Opened) {
        let (mut opened, mut pause, mut failing_since) = (Some(opened), PAUSE_MIN, None);
        loop {
            let (started_at, is_first, is_ordered) = (Instant::now(), opened.is_some(), first.is_some());
            let process = first.take().map_or_else(|| self.spawn(listener), Ok);
            let outcome = self.run_once(process, &mut opened);
            // Its connection to the cluster may be days old: a new process may open the image.
            if is_ordered && matches!(outcome, Outcome::NotServed(DiskError::Open(_))) && !self.shared.is_closing() {
                continue;
            }
            if let (Outcome::NotServed(error), Some(opened)) = (&outcome, opened.take()) {
                // The receiver has given up if this fails.
                let (Ok(()) | Err(_)) = opened.send(Err(error.clone()));
            }
            let is_refused = is_first && matches!(outcome, Outcome::NotServed(_));
            if is_refused || self.shared.is_closing() || self.shared.lost.get().is_some() {
                return;
            }
            let reason = match outcome {
                Outcome::Served(reason) => {
                    failing_since = None;
                    reason.unwrap_or_else(|| "it crashed or was killed".to_owned())
                }
                Outcome::NotServed(error) => {
                    let failing_for = failing_since.get_or_insert_with(Instant::now).elapsed();
                    if self.plan.fails_after.is_some_and(|fails_after| failing_for >= fails_after) {
                        self.shared.set_failure(Some(error.clone()));
                        self.shared.orders().fail(error.clone());
                    }
                    error.to_string()
                }
            };
            if started_at.elapsed() >= STABLE_AFTER {
                pause = PAUSE_MIN;
            }
            log::warn!(
                target: VOLUME,
                "{}: {PROGRAM} has ended ({reason}); requests wait, and it is started again in {} ms",
                self.plan.image, pause.as_millis()
            );
            let end = Instant::now() + pause;
            while Instant::now() < end && !self.shared.is_closing() {
                std::thread::sleep(POLL_PAUSE);
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Runs a process to its end. `opened` learns that it serves the image.
    fn run_once(&mut self, process: io::Result<Process>, opened: &mut Option<Opened>) -> Outcome {
        let (child, outcome) = match process {
            Ok((child, reports)) => (Some(child), self.follow(reports, opened)),
            Err(error) => {
                let text = format!("cannot start {PROGRAM}, which the package of hotset contains: {error}");
                (None, Outcome::NotServed(DiskError::Open(text)))
            }
        };
        // A watch may have another handle of the channel.
        self.shared.close(Shutdown::Both);
        *self.shared.control() = None;
        drop(self.shared.released.lock().unwrap_or_else(PoisonError::into_inner).take());
        child.into_iter().for_each(end);
        outcome
    }

    fn spawn(&self, listener: &UnixListener) -> io::Result<Process> {
        let (control, its_end) = UnixStream::pair()?;
        let purpose = match self.shared.ownership.get().map(|ownership| ownership.image.clone()) {
            Some(expected) => Purpose::Again { expected, reads_log: self.plan.reads_log },
            None => self.plan.purpose(),
        };
        let child = spawn_helper(&self.plan, purpose, listener, its_end)?;
        Ok((child, BufReader::new(control)))
    }

    /// Follows the messages of a process until its channel ends.
    fn follow(&mut self, mut control: BufReader<UnixStream>, opened: &mut Option<Opened>) -> Outcome {
        let limit = opened.is_some().then_some(self.limit);
        match control.get_ref().try_clone() {
            Ok(orders) => *self.shared.control() = Some(orders),
            Err(error) => return Outcome::NotServed(DiskError::Open(format!("{PROGRAM} cannot get orders: {error}"))),
        }
        if self.shared.is_closing() || control.get_ref().set_read_timeout(limit).is_err() {
            return Outcome::NotServed(DiskError::Gone);
        }
        let mut outcome = Outcome::NotServed(DiskError::Open(format!("{PROGRAM} has ended at once")));
        loop {
            let status = match read_status(&mut control) {
                Ok(Some(status)) => status,
                Ok(None) => return outcome,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Outcome::NotServed(DiskError::Hung(format!("{} does not answer", self.plan.image)));
                }
                Err(_) => return outcome,
            };
            match status {
                Status::Progress(_) => {}
                // The first proof comes with `Ready`.
                Status::Renewed(proven_ms) if matches!(outcome, Outcome::Served(_)) => self.shared.renew(proven_ms),
                Status::Renewed(_) => {}
                Status::Ready(ownership) => {
                    outcome = Outcome::Served(None);
                    if self.shared.ownership.get_or_init(|| ownership.clone()).image != ownership.image {
                        self.lose(format!("another client may have written to it: {}", ownership.reason));
                        return outcome;
                    }
                    self.shared.renew(ownership.proven_ms);
                    self.shared.set_failure(None);
                    self.shared.repeat_order();
                    let is_unlimited = control.get_ref().set_read_timeout(None).is_ok();
                    let is_awaited = opened.take().is_none_or(|opened| opened.send(Ok(())).is_ok());
                    if !is_unlimited || !is_awaited {
                        return outcome;
                    }
                }
                // The process ends, or hangs and is killed.
                Status::Busy(text) => return Outcome::NotServed(DiskError::Busy(text)),
                Status::Standby(report) => {
                    let (owner, report) = (report.owner.clone(), report.encode());
                    return Outcome::NotServed(DiskError::Standby { owner, report });
                }
                Status::Released(version) => self.shared.end_release(Ok(version)),
                Status::NotReleased(text) => self.shared.end_release(Err(text)),
                Status::LogToRead(mark) => {
                    self.shared.log_to_read.get_or_init(|| mark);
                }
                Status::Undestaged(Mark { id, host, log }) => {
                    return Outcome::NotServed(DiskError::Undestaged { data: show_mark_id(id), host, log });
                }
                Status::Marked(number) => self.shared.orders().end(number, &Ok(())),
                Status::NotMarked(number, text) => {
                    let image = &self.plan.image;
                    log::warn!(target: VOLUME, "{image}: its mark of undestaged data stays as it was: {text}");
                    self.shared.orders().end(number, &Err(DiskError::Open(format!("{image}: {text}"))));
                }
                Status::Failed(text) if matches!(outcome, Outcome::Served(_)) => return Outcome::Served(Some(text)),
                Status::Failed(text) => return Outcome::NotServed(DiskError::Open(text)),
                Status::Lost(text) => self.lose(text),
            }
        }
    }

    /// Records that the image can never be served again by this process.
    fn lose(&self, text: String) {
        let text = format!("{}: {text}", self.plan.image);
        if self.shared.lost.set(DiskError::Lost(text.clone())).is_ok() {
            log::error!(target: VOLUME, "{text}; all requests to its volume fail from now on");
            self.shared.orders().fail(DiskError::Lost(text));
        }
    }
}

/// The arguments of a process for the image of a plan.
pub fn invocation_of(HelperPlan { image, folder, host, log, .. }: &HelperPlan, purpose: Purpose) -> Invocation {
    let (host, log) = (host.clone(), log.clone());
    Invocation { image: image.to_string(), folder: folder.join(RECORDS_FOLDER), host, log, purpose }
}

/// Starts the program for a plan, with the listening socket as its standard input.
pub fn spawn_helper(
    plan: &HelperPlan,
    purpose: Purpose,
    listener: &UnixListener,
    control: UnixStream,
) -> io::Result<Child> {
    Command::new(program()?)
        .args(invocation_of(plan, purpose).arguments())
        .stdin(Stdio::from(OwnedFd::from(listener.try_clone()?)))
        .stdout(Stdio::from(OwnedFd::from(control)))
        // A terminal's interrupt is for the daemon alone.
        .process_group(0)
        .spawn()
}

/// The path of the program: beside the daemon's own, or in the package's folder.
fn program() -> io::Result<PathBuf> {
    let beside = std::env::current_exe()?.with_file_name(PROGRAM);
    let packaged = beside.with_file_name(PACKAGE_FOLDER).join(PROGRAM);
    Ok(if beside.exists() { beside } else { packaged })
}

/// Listens at a socket that only this user reaches.
pub fn listen(socket: &Path) -> io::Result<UnixListener> {
    if let Some(folder) = socket.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    UnixListener::bind(socket)
}

/// The next message; `None` at the end of the channel. Unknown lines are skipped.
fn read_status(control: &mut BufReader<UnixStream>) -> io::Result<Option<Status>> {
    loop {
        match rbd::read_line(control)? {
            None => return Ok(None),
            Some(line) => match Status::parse(&line) {
                Some(status) => return Ok(Some(status)),
                None => continue,
            },
        }
    }
}

/// Waits for the end of a process whose control channel is closed, and kills it if that takes too long.
pub fn end(mut child: Child) {
    let deadline = Instant::now() + CLOSE_TIMEOUT;
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
        std::thread::sleep(POLL_PAUSE);
    }
    let (Ok(()) | Err(_)) = child.kill();
    let (Ok(_) | Err(_)) = child.wait();
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use rbd::{Expected, Ownership};

    use super::*;

    fn ready() -> Status {
        let image = Expected { identity: "rbd:f/1/a".to_owned(), lineage: 7 };
        let (given_up, is_destaged, reason) = (None, false, String::new());
        Status::Ready(Ownership {
            image,
            proven_ms: 5,
            given_up,
            epoch: 1,
            is_destaged,
            released_version: None,
            reason,
        })
    }

    #[test]
    fn late_answer_to_a_former_order_is_ignored() {
        let plan = HelperPlan::for_test();
        let shared = Arc::new(Shared::default());
        let mut supervisor = Supervisor::new(plan, Duration::ZERO, PathBuf::new(), Arc::clone(&shared));
        let mut follow = |answers: &[Status]| {
            let (control, mut helper) = UnixStream::pair().expect("a descriptor is free");
            for status in [&[ready()], answers].concat() {
                helper.write_all((status.encode() + "\n").as_bytes()).expect("the channel is open");
            }
            drop(helper);
            assert!(matches!(supervisor.follow(BufReader::new(control), &mut None), Outcome::Served(None)));
        };
        let [_, _, mut marked] = [true, false, true].map(|is_marked| shared.orders().begin(is_marked));
        let text = || "the cluster does not answer".to_owned();
        follow(&[Status::Marked(1), Status::NotMarked(2, text())]);
        assert!(marked.try_recv().is_err(), "the last order has no answer");
        follow(&[Status::Marked(3)]);
        assert_eq!(marked.try_recv(), Ok(Ok(())));
        let mut unmarked = shared.orders().begin(false);
        follow(&[Status::NotMarked(4, text())]);
        assert!(unmarked.try_recv().expect("it has ended").is_err());
    }
}
