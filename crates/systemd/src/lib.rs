//! Telling systemd how far we are: READY, STOPPING, STATUS, WATCHDOG, EXTEND_TIMEOUT; and what it keeps for us over a restart: FDSTORE.
//! Without NOTIFY_SOCKET nothing happens.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    sendmsg_addr, socket_with,
};
use rustix::pipe::{PipeFlags, pipe_with};

/// Where systemd listens, if it does.
pub struct Notifier {
    to: Option<(OwnedFd, SocketAddrUnix)>,
    flags: SendFlags,
}

impl Notifier {
    /// From the environment.
    pub fn from_environment() -> Notifier {
        let address = std::env::var_os("NOTIFY_SOCKET").and_then(|path| match path.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddrUnix::new_abstract_name(name).ok(),
            None => SocketAddrUnix::new(path).ok(),
        });
        let socket = || socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok();
        let to = address.and_then(|address| Some((socket()?, address)));
        Notifier { to, flags: SendFlags::NOSIGNAL }
    }

    /// As [`Notifier::from_environment`], for a data core: what a service manager has no room for is not said.
    pub fn that_never_waits() -> Notifier {
        Notifier { flags: SendFlags::NOSIGNAL | SendFlags::DONTWAIT, ..Notifier::from_environment() }
    }

    /// True where there is a service manager to talk to.
    pub fn is_there(&self) -> bool {
        self.to.is_some()
    }

    /// The time within which the watchdog has to be fed, where one is on.
    pub fn watchdog_time() -> Option<Duration> {
        let micros = std::env::var("WATCHDOG_USEC").ok()?.parse::<u64>().ok()?;
        (micros > 0).then(|| Duration::from_micros(micros))
    }

    /// Sends lines of the protocol.
    pub fn say(&self, lines: &str) {
        // A service manager that does not listen must not stop the service.
        let _ = self.send(lines, &[]);
    }

    fn send(&self, lines: &str, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let Some((socket, address)) = &self.to else { return Err(Errno::NOTCONN) };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)), "one descriptor at most");
        let lines = IoSlice::new(lines.as_bytes());
        rustix::io::retry_on_intr(|| sendmsg_addr(socket, address, &[lines], &mut control, self.flags)).map(drop)
    }

    /// Gives a descriptor into the service manager's keeping, which hands it to the next process that it starts for this service.
    pub fn keep(&self, fd: BorrowedFd<'_>, name: &str) {
        // One that is not kept is closed, and whoever is at its other end hears of it.
        let _ = self.send(&format!("FDSTORE=1\nFDNAME={name}"), &[fd]);
    }

    /// Has it let go of all that it keeps under a name.
    pub fn forget(&self, name: &str) {
        self.say(&format!("FDSTOREREMOVE=1\nFDNAME={name}"));
    }

    /// Waits until the service manager has heard all that was said; false when it has not after `patience`, or there is none.
    pub async fn heard(&self, patience: Duration) -> bool {
        let Ok((waits, told)) = pipe_with(PipeFlags::CLOEXEC) else { return false };
        if self.send("BARRIER=1", &[told.as_fd()]).is_err() {
            return false;
        }
        // It closes its end when it has come so far.
        drop(told);
        let patience = Timespec::try_from(patience).unwrap_or_default();
        let wait = move || {
            let mut closed = [PollFd::new(&waits, PollFlags::empty())];
            rustix::io::retry_on_intr(|| poll(&mut closed, Some(&patience))).is_ok_and(|count| count > 0)
        };
        tokio::task::spawn_blocking(wait).await.unwrap_or(false)
    }

    /// What is being done, for `systemctl status`.
    pub fn status(&self, text: &str) {
        self.say(&format!("STATUS={text}"));
    }

    /// As [`Notifier::status`], for something that takes long.
    pub fn patience(&self, text: &str) {
        self.status(text);
        self.more_time();
    }

    /// Asks for another half minute.
    pub fn more_time(&self) {
        self.say("EXTEND_TIMEOUT_USEC=30000000");
    }
}
