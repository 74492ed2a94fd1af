//! Notifications to systemd: READY, STOPPING, STATUS, WATCHDOG, EXTEND_TIMEOUT; and descriptors that it keeps over a
//! restart: FDSTORE. Without NOTIFY_SOCKET nothing is sent.

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

/// Connection to systemd's notification socket, if there is one.
pub struct Notifier {
    socket: Option<(OwnedFd, SocketAddrUnix)>,
    flags: SendFlags,
}

impl Notifier {
    /// Connects to the socket that the environment names.
    pub fn from_environment() -> Notifier {
        let address = std::env::var_os("NOTIFY_SOCKET").and_then(|path| match path.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddrUnix::new_abstract_name(name).ok(),
            None => SocketAddrUnix::new(path).ok(),
        });
        let make_socket = || socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok();
        let socket = address.and_then(|address| Some((make_socket()?, address)));
        Notifier { socket, flags: SendFlags::NOSIGNAL }
    }

    /// Like [`Notifier::from_environment`], but drops a message if the socket's buffer is full: a data core must not
    /// block.
    pub fn nonblocking() -> Notifier {
        Notifier { flags: SendFlags::NOSIGNAL | SendFlags::DONTWAIT, ..Notifier::from_environment() }
    }

    /// True when there is a service manager.
    pub fn is_connected(&self) -> bool {
        self.socket.is_some()
    }

    /// The watchdog's time-out, if the watchdog is on.
    pub fn watchdog_timeout() -> Option<Duration> {
        let micros = std::env::var("WATCHDOG_USEC").ok()?.parse::<u64>().ok()?;
        (micros > 0).then(|| Duration::from_micros(micros))
    }

    /// Sends lines of the protocol.
    pub fn notify(&self, lines: &str) {
        // A failure is ignored: an unresponsive service manager must not stop the service.
        let _ = self.send(lines, &[]);
    }

    fn send(&self, lines: &str, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let Some((socket, address)) = &self.socket else { return Err(Errno::NOTCONN) };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)), "one descriptor at most");
        let lines = IoSlice::new(lines.as_bytes());
        rustix::io::retry_on_intr(|| sendmsg_addr(socket, address, &[lines], &mut control, self.flags)).map(drop)
    }

    /// Stores a descriptor with the service manager, which passes it to the next process that it starts for this
    /// service.
    pub fn store_fd(&self, fd: BorrowedFd<'_>, name: &str) {
        // If storing fails, the descriptor is closed, so the peer sees the connection end.
        let _ = self.send(&format!("FDSTORE=1\nFDNAME={name}"), &[fd]);
    }

    /// Removes all stored descriptors of a name.
    pub fn remove_fds(&self, name: &str) {
        self.notify(&format!("FDSTOREREMOVE=1\nFDNAME={name}"));
    }

    /// Waits until the service manager has processed all messages; false after `timeout`, or without a service manager.
    pub async fn barrier(&self, timeout: Duration) -> bool {
        let Ok((read_end, write_end)) = pipe_with(PipeFlags::CLOEXEC) else { return false };
        if self.send("BARRIER=1", &[write_end.as_fd()]).is_err() {
            return false;
        }
        // The service manager closes its end of the pipe when it reaches this message.
        drop(write_end);
        let timeout = Timespec::try_from(timeout).unwrap_or_default();
        let wait = move || {
            let mut closed = [PollFd::new(&read_end, PollFlags::empty())];
            rustix::io::retry_on_intr(|| poll(&mut closed, Some(&timeout))).is_ok_and(|count| count > 0)
        };
        tokio::task::spawn_blocking(wait).await.unwrap_or(false)
    }

    /// Sets the status text of `systemctl status`.
    pub fn status(&self, text: &str) {
        self.notify(&format!("STATUS={text}"));
    }

    /// Like [`Notifier::status`], and extends the time-out of a slow start or stop.
    pub fn status_extending_timeout(&self, text: &str) {
        self.status(text);
        self.extend_timeout();
    }

    /// Extends the time-out by half a minute.
    pub fn extend_timeout(&self) {
        self.notify("EXTEND_TIMEOUT_USEC=30000000");
    }
}
