//! Rejects file descriptors of a front end on which I/O or close could block the data core, such as files on FUSE or
//! NFS.
//!
//! The checks run on the front end's thread, which also closes refused descriptors. Closing a file on FUSE or NFS waits
//! for a server. The checks themselves cause no file-system I/O.

use std::os::fd::{AsFd, AsRawFd};

use rustix::net::AddressFamily;
use seam::real::check_eventfd;

use crate::message::Message;

/// Reason for refusing a file descriptor.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RefusedDescriptor {
    #[error(
        "the memory in {0} is neither a memfd nor a file on tmpfs or hugetlbfs, and a hanging file system would stop \
         all volumes: use memory-backend-memfd, or memory-backend-file with a mem-path on tmpfs or hugetlbfs (see \
         docs/admin/vhost-user.md)"
    )]
    Memory(String),
    #[error("the descriptor of a kick, call or error notification is not an eventfd: {0}")]
    VringEventfd(std::io::Error),
    #[error("the back-end request channel is {0}, not a Unix socket")]
    Socket(String),
}

/// Refuses a message with a file descriptor that the data core must not touch.
pub(crate) fn check(message: &Message) -> Result<(), RefusedDescriptor> {
    match message {
        Message::SetMemTable(list) => list.iter().try_for_each(|(_, file)| check_memory(file)),
        Message::AddMemReg(_, file) | Message::SetLogBase { file, .. } | Message::SetInflightFd { file, .. } => {
            check_memory(file)
        }
        Message::SetVringFd { fd: Some(fd), .. } => check_eventfd(fd).map_err(RefusedDescriptor::VringEventfd),
        Message::SetBackendReqFd(socket) => match rustix::net::sockopt::socket_domain(socket) {
            Ok(AddressFamily::UNIX) => Ok(()),
            _ => Err(RefusedDescriptor::Socket(path_of(socket))),
        },
        _ => Ok(()),
    }
}

/// Checks that a file is in memory: only memfds and files on tmpfs or hugetlbfs support seals.
fn check_memory(file: impl AsFd) -> Result<(), RefusedDescriptor> {
    let seals = rustix::fs::fcntl_get_seals(&file);
    seals.map(drop).map_err(|_| RefusedDescriptor::Memory(path_of(file)))
}

fn path_of(file: impl AsFd) -> String {
    // This reads the kernel's record of the descriptor, not the file.
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
    use crate::message::VringFdKind;

    fn opened(path: &str) -> OwnedFd {
        open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).expect("the file exists")
    }

    #[test]
    fn memory_is_a_memfd_or_on_a_file_system_in_memory() {
        let log = |file| check(&Message::SetLogBase { len: 1, offset: 0, file });
        log(memfd_create("memory", MemfdFlags::CLOEXEC).expect("a file")).expect("a memfd is accepted");
        let shared = tempfile::tempfile_in("/dev/shm").expect("a file");
        log(shared.into()).expect("a file on tmpfs is accepted");
        for other in ["/dev/zero", "/proc/self/status", env!("CARGO_MANIFEST_DIR")] {
            let refused = log(opened(other)).expect_err("the file is not in memory").to_string();
            assert!(refused.contains("memory-backend-memfd"), "{refused}");
        }
    }

    #[test]
    fn notifications_need_an_eventfd_and_requests_a_unix_socket() {
        let vring_fd = |fd| check(&Message::SetVringFd { kind: VringFdKind::Kick, index: 0, fd: Some(fd) });
        vring_fd(eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd")).expect("an eventfd is accepted");
        assert!(matches!(vring_fd(opened("/dev/zero")), Err(RefusedDescriptor::VringEventfd(_))));
        let (socket, _other) = UnixStream::pair().expect("a socket pair");
        check(&Message::SetBackendReqFd(socket.into())).expect("a Unix socket is accepted");
        assert!(matches!(check(&Message::SetBackendReqFd(opened("/dev/zero"))), Err(RefusedDescriptor::Socket(_))));
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        assert!(check(&Message::SetBackendReqFd(udp.into())).is_err());
    }
}
