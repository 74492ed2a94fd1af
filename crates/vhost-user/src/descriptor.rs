//! What a front end's descriptors may be: nothing whose use, or close, waits for a file system or for another machine.
//!
//! Looked at on the front end's own thread, and closed there where it is refused: of a file on FUSE or NFS even the close asks a server, and
//! the data core would stand as long as that does not answer. The questions asked here go to no file system.

use std::os::fd::{AsFd, AsRawFd};

use rustix::net::AddressFamily;
use seam::real::check_eventfd;

use crate::message::Message;

/// Why a descriptor is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    #[error(
        "its memory in {0} is neither a memfd nor a file on tmpfs or hugetlbfs, and a file system that hangs would stop all volumes: use \
         memory-backend-memfd, or memory-backend-file with a mem-path on one of these (see docs/admin/vhost-user.md)"
    )]
    Memory(String),
    #[error("a bell is no eventfd: {0}")]
    Bell(std::io::Error),
    #[error("the socket on which the device speaks first is {0}, and no Unix socket")]
    Socket(String),
}

/// Refuses a message with a descriptor that the data core must not touch.
pub(crate) fn check(message: &Message) -> Result<(), Refused> {
    match message {
        Message::SetMemTable(list) => list.iter().try_for_each(|(_, file)| check_memory(file)),
        Message::AddMemReg(_, file) | Message::SetLogBase { file, .. } | Message::SetInflightFd { file, .. } => {
            check_memory(file)
        }
        Message::SetVringBell { fd: Some(fd), .. } => check_eventfd(fd).map_err(Refused::Bell),
        Message::SetBackendReqFd(socket) => match rustix::net::sockopt::socket_domain(socket) {
            Ok(AddressFamily::UNIX) => Ok(()),
            _ => Err(Refused::Socket(path_of(socket))),
        },
        _ => Ok(()),
    }
}

/// Files in memory have seals, on tmpfs and hugetlbfs as in a memfd; all others do not know the question.
fn check_memory(file: impl AsFd) -> Result<(), Refused> {
    let seals = rustix::fs::fcntl_get_seals(&file);
    seals.map(drop).map_err(|_| Refused::Memory(path_of(file)))
}

fn path_of(file: impl AsFd) -> String {
    // Read of what the kernel knows of the descriptor, not of the file.
    let path = rustix::fs::readlink(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()), Vec::new());
    path.map_or_else(|_| "an unknown file".to_owned(), |path| path.to_string_lossy().into_owned())
}

#[cfg(test)]
#[expect(clippy::disallowed_types, reason = "descriptors that a front end may send")]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create, open};

    use super::*;
    use crate::message::Which;

    fn opened(path: &str) -> OwnedFd {
        open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).expect("it is there")
    }

    #[test]
    fn memory_is_a_memfd_or_on_a_file_system_in_memory() {
        let log = |file| check(&Message::SetLogBase { len: 1, offset: 0, file });
        log(memfd_create("memory", MemfdFlags::CLOEXEC).expect("a file")).expect("a memfd");
        let shared = tempfile::tempfile_in("/dev/shm").expect("a file");
        log(shared.into()).expect("on tmpfs");
        for other in ["/dev/zero", "/proc/self/status", env!("CARGO_MANIFEST_DIR")] {
            let refused = log(opened(other)).expect_err("it is no memory").to_string();
            assert!(refused.contains("memory-backend-memfd"), "{refused}");
        }
    }

    #[test]
    fn a_bell_is_an_eventfd_and_a_socket_is_a_unix_socket() {
        let bell = |fd| check(&Message::SetVringBell { which: Which::Kick, index: 0, fd: Some(fd) });
        bell(eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd")).expect("a bell");
        assert!(matches!(bell(opened("/dev/zero")), Err(Refused::Bell(_))));
        let (socket, _other) = UnixStream::pair().expect("a pair");
        check(&Message::SetBackendReqFd(socket.into())).expect("a Unix socket");
        assert!(matches!(check(&Message::SetBackendReqFd(opened("/dev/zero"))), Err(Refused::Socket(_))));
        let tcp = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        assert!(check(&Message::SetBackendReqFd(tcp.into())).is_err());
    }
}
