//! Detection of connections that lead back to this process: a volume on an export of its own daemon would wait for
//! itself.

use std::ffi::c_int;
use std::fs;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

/// Address of one end of a socket.
#[derive(Debug, PartialEq, Eq)]
enum SocketEnd {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// True if the server at the other end of `socket` is this process.
pub(super) fn connects_to_self(socket: &OwnedFd) -> bool {
    let Some(server) = peer_end(socket) else { return peer_process(socket.as_raw_fd()) == Some(std::process::id()) };
    if matches!(server, SocketEnd::Unix(_)) && peer_process(socket.as_raw_fd()) == Some(std::process::id()) {
        return true;
    }
    own_sockets()
        .into_iter()
        .filter(is_listening)
        .filter_map(|socket| local_end(&socket))
        .any(|own| reaches(&own, &server))
}

/// True if process `pid` is a client of this process's Unix sockets.
pub fn has_client(pid: u32) -> bool {
    own_sockets()
        .into_iter()
        .filter(|socket| !is_listening(socket))
        .any(|socket| peer_process(socket.as_raw_fd()) == Some(pid))
}

/// True if a client of address `server` reaches the listener at `own`.
fn reaches(own: &SocketEnd, server: &SocketEnd) -> bool {
    let (own, server) = match (own, server) {
        (SocketEnd::Tcp(own), SocketEnd::Tcp(server)) => (own, server),
        (own, server) => return own == server,
    };
    let (listener_ip, server_ip) = (own.ip().to_canonical(), server.ip().to_canonical());
    own.port() == server.port()
        && (listener_ip == server_ip || (listener_ip.is_unspecified() && is_of_this_machine(server_ip)))
}

/// True if the address belongs to this machine: a socket can be bound to it.
fn is_of_this_machine(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// Duplicates of this process's open sockets.
fn own_sockets() -> Vec<OwnedFd> {
    let entries = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let sockets = entries.filter(|entry| {
        fs::read_link(entry.path()).is_ok_and(|target| target.to_string_lossy().starts_with("socket:"))
    });
    let numbers = sockets.filter_map(|entry| entry.file_name().to_str()?.parse::<RawFd>().ok());
    // SAFETY: the descriptor is duplicated at once and not used itself; if it was closed meanwhile, the duplication
    // fails.
    numbers.filter_map(|fd| unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().ok()).collect()
}

fn socket_option<T: Default>(fd: RawFd, name: c_int) -> Option<T> {
    let mut value = T::default();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to a value of that length.
    let status = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut len) };
    (status == 0).then_some(value)
}

fn is_listening(socket: &OwnedFd) -> bool {
    socket_option::<c_int>(socket.as_raw_fd(), libc::SO_ACCEPTCONN) == Some(1)
}

/// The process at the other end of a Unix socket.
fn peer_process(fd: RawFd) -> Option<u32> {
    // `ucred`: process, user, group.
    let [pid, ..] = socket_option::<[c_int; 3]>(fd, libc::SO_PEERCRED)?;
    u32::try_from(pid).ok().filter(|pid| *pid > 0)
}

fn local_end(socket: &OwnedFd) -> Option<SocketEnd> {
    let tcp = TcpListener::from(socket.try_clone().ok()?).local_addr().ok().map(SocketEnd::Tcp);
    let unix = || {
        UnixListener::from(socket.try_clone().ok()?)
            .local_addr()
            .ok()?
            .as_pathname()
            .map(|path| SocketEnd::Unix(path.into()))
    };
    tcp.or_else(unix)
}

fn peer_end(socket: &OwnedFd) -> Option<SocketEnd> {
    let tcp = TcpStream::from(socket.try_clone().ok()?).peer_addr().ok().map(SocketEnd::Tcp);
    let unix = || {
        UnixStream::from(socket.try_clone().ok()?)
            .peer_addr()
            .ok()?
            .as_pathname()
            .map(|path| SocketEnd::Unix(path.into()))
    };
    tcp.or_else(unix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_to_an_own_listener_is_detected() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let (path, link) = (folder.path().join("own.sock"), folder.path().join("link.sock"));
        let listener = UnixListener::bind(&path).expect("the folder can be written");
        std::os::unix::fs::symlink(&path, &link).expect("the folder can be written");
        for path in [&path, &link] {
            let client = UnixStream::connect(path).expect("the listener is open");
            assert!(connects_to_self(&client.into()), "{}", path.display());
        }
        drop(listener);
        for address in ["127.0.0.1:0", "[::]:0", "0.0.0.0:0"] {
            let listener = TcpListener::bind(address).expect("a port is free");
            let port = listener.local_addr().expect("the listener is bound").port();
            let client = TcpStream::connect(("127.0.0.1", port)).expect("the listener is open");
            assert!(connects_to_self(&client.into()), "{address}");
        }
    }

    #[test]
    fn listeners_are_reached_only_by_their_own_port_and_address() {
        let tcp = |text: &str| SocketEnd::Tcp(text.parse().expect("an address"));
        assert!(reaches(&tcp("0.0.0.0:10809"), &tcp("127.0.0.1:10809")));
        assert!(reaches(&tcp("[::]:10809"), &tcp("[::ffff:127.0.0.1]:10809")));
        assert!(!reaches(&tcp("0.0.0.0:10809"), &tcp("127.0.0.1:10810")), "another port");
        assert!(!reaches(&tcp("0.0.0.0:10809"), &tcp("192.0.2.7:10809")), "another machine");
        assert!(!reaches(&tcp("127.0.0.1:10809"), &tcp("127.0.0.2:10809")), "another address");
        assert!(!reaches(&SocketEnd::Unix("/a".into()), &tcp("127.0.0.1:1")));
    }

    #[test]
    fn client_process_is_known_by_its_unix_socket() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let listener = UnixListener::bind(folder.path().join("s")).expect("the folder can be written");
        let client = UnixStream::connect(folder.path().join("s")).expect("the listener is open");
        let (accepted, _) = listener.accept().expect("a client waits");
        assert!(has_client(std::process::id()) && !has_client(1));
        drop((client, accepted));
    }
}
