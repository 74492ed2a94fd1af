//! A service manager's part in a restart, as in systemd: it stores file descriptors of a service that stops, and passes
//! them to the next process.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use command_fds::{CommandFdExt, FdMapping};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// Interval at which the thread checks whether the manager still exists.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// First passed file descriptor.
const FIRST_PASSED_FD: i32 = 3;

/// Stored descriptors and their names.
type StoredFds = Vec<(String, OwnedFd)>;

/// A service manager that implements only the descriptor store.
pub struct Manager {
    path: PathBuf,
    stored: Arc<Mutex<StoredFds>>,
}

impl Manager {
    /// Starts a manager that listens in the folder.
    pub fn start(folder: &Path) -> Manager {
        let path = folder.join("manager.sock");
        let socket = UnixDatagram::bind(&path).expect("the folder can be written");
        socket.set_read_timeout(Some(POLL_INTERVAL)).expect("a positive time");
        let stored = Arc::new(Mutex::new(StoredFds::new()));
        let weak = Arc::downgrade(&stored);
        std::thread::spawn(move || {
            while let Some(stored) = weak.upgrade() {
                if let Some((text, fds)) = receive(&socket) {
                    apply(&mut stored.lock().expect("no thread panics with the lock held"), &text, fds);
                }
            }
        });
        Manager { path, stored }
    }

    /// Number of stored descriptors.
    pub fn count(&self) -> usize {
        self.stored.lock().expect("no thread panics with the lock held").len()
    }

    /// Drops all descriptors, as after a permanent stop of the service.
    pub fn release(&self) {
        self.stored.lock().expect("no thread panics with the lock held").clear();
    }

    /// Command that starts `program` with the stored descriptors. They stay stored until the service removes them.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        // The shell sets LISTEN_PID to its own process ID, which `exec` keeps.
        command.args(["-c", "LISTEN_PID=$$ exec \"$0\" \"$@\""]).arg(program).env("NOTIFY_SOCKET", &self.path);
        let stored = self.stored.lock().expect("no thread panics with the lock held");
        if !stored.is_empty() {
            let names: Vec<&str> = stored.iter().map(|(name, _)| name.as_str()).collect();
            command.env("LISTEN_FDS", stored.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
            let mapping = |(child_fd, (_, fd)): (i32, &(String, OwnedFd))| FdMapping {
                parent_fd: fd.try_clone().expect("a descriptor is free"),
                child_fd,
            };
            let mappings = (FIRST_PASSED_FD..).zip(stored.iter()).map(mapping).collect();
            command.fd_mappings(mappings).expect("the child descriptors differ");
        }
        command
    }
}

/// Receives the next message with its descriptors; `None` after a time-out.
fn receive(socket: &UnixDatagram) -> Option<(String, Vec<OwnedFd>)> {
    let mut bytes = [0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC).ok()?;
    let fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let fds = fds.flatten().collect();
    Some((String::from_utf8_lossy(&bytes[..message.bytes]).into_owned(), fds))
}

/// Applies a message. Dropping the descriptors closes that of a barrier, which the sender waits for.
fn apply(stored: &mut StoredFds, text: &str, fds: Vec<OwnedFd>) {
    let name = text.lines().find_map(|line| line.strip_prefix("FDNAME=")).unwrap_or("stored");
    if text.lines().any(|line| line == "FDSTORE=1") {
        stored.extend(fds.into_iter().map(|fd| (name.to_owned(), fd)));
    } else if text.lines().any(|line| line == "FDSTOREREMOVE=1") {
        stored.retain(|(other, _)| other != name);
    }
}
