//! `hotset stop`: stops the daemon cleanly and waits until its process has ended.
//!
//! The process holds the lock of the state directory until it ends, which is after its answer. The next step (a start
//! by hand, `hotset undestaged`, a removal) needs that lock.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use control::Client;
use messages::{Answer, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::daemon::{connect, send_request_on, unexpected};
use terminal::{Failure, print_json};

/// Time-out from the reply to the end of the process.
const EXIT_TIMEOUT: Duration = Duration::from_secs(60);

/// Requests the stop and waits until the backings are complete and the process has ended.
pub fn run(socket: Option<&Path>, destage: bool, json: bool) -> Result<(), Failure> {
    let mut client = connect(socket)?;
    let process = Process::of(&client)?;
    let answer = send_request_on(&mut client, &Request::Stop { destage });
    // The command waits after an error as well: a failed stop ends the process too, and the connection may have broken
    // because the process ended.
    process.wait()?;
    match answer? {
        Answer::Said(said) if json => print_json(&said),
        Answer::Said(said) => {
            said.iter().for_each(|line| println!("{line}"));
            Ok(())
        }
        _ => Err(unexpected()),
    }
}

/// The daemon's process.
enum Process {
    /// A descriptor that reports its end, and its number.
    Running(OwnedFd, Pid),
    /// The process has ended already.
    Ended,
}

impl Process {
    /// The process at the other end of the connection.
    fn of(client: &Client) -> Result<Process, Failure> {
        let unknown = |error: Errno| {
            Failure::failed(format!("cannot wait for the daemon's process ({error}); nothing was stopped"))
        };
        let pid = socket_peercred(client.as_fd()).map_err(unknown)?.pid;
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(descriptor) => Ok(Process::Running(descriptor, pid)),
            Err(Errno::SRCH) => Ok(Process::Ended),
            Err(error) => Err(unknown(error)),
        }
    }

    fn wait(&self) -> Result<(), Failure> {
        let Process::Running(descriptor, pid) = self else { return Ok(()) };
        let timeout = Timespec::try_from(EXIT_TIMEOUT).expect("a minute is representable");
        let mut ended = [PollFd::new(descriptor, PollFlags::IN)];
        let count = rustix::io::retry_on_intr(|| poll(&mut ended, Some(&timeout)));
        match count {
            Ok(1..) => Ok(()),
            _ => Err(Failure::failed(format!(
                "the daemon acknowledged the stop, but process {} is still running after {} s; see its log",
                pid.as_raw_nonzero(),
                EXIT_TIMEOUT.as_secs()
            ))),
        }
    }
}
