//! Listening sockets, Unix and TCP.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use compio::BufResult;

use super::RealSeam;
use super::descriptor_shortage::count_accept_error;
use super::op::{Action, Operation, submit};
use super::stream::RealStream;
use crate::{Address, Listener};

/// A listening socket; dropping a Unix socket removes its file.
pub struct RealListener {
    socket: Rc<OwnedFd>,
    /// The socket's file, removed on drop.
    _file: Option<SocketFile>,
}

/// The file of a Unix socket, with its identity at creation.
struct SocketFile {
    path: PathBuf,
    device_and_inode: (u64, u64),
}

/// Device and inode of the file at `path`.
fn device_and_inode(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|meta| (meta.dev(), meta.ino()))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // A successor may have created its own file at the same path.
        if device_and_inode(&self.path).is_ok_and(|present| present == self.device_and_inode) {
            // An error is ignored: the next start replaces the file.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl RealListener {
    /// A listening stream socket created elsewhere (in blocking mode), for example by the service manager.
    pub fn from_fd(socket: OwnedFd) -> RealListener {
        RealListener { socket: Rc::new(socket), _file: None }
    }

    /// The TCP port, for a listener that requested port 0; `None` for a Unix socket.
    pub fn port(&self) -> Option<u16> {
        let copy = self.socket.try_clone().ok()?;
        TcpListener::from(copy).local_addr().ok().map(|address: SocketAddr| address.port())
    }
}

impl Listener<RealSeam> for RealListener {
    async fn accept(&self) -> io::Result<RealStream> {
        loop {
            // SAFETY: the socket is open while its Rc lives; no buffers are involved.
            let operation =
                unsafe { Operation::new(Action::Accept, self.socket.as_raw_fd(), self.socket.clone(), Vec::new(), ()) };
            let BufResult(result, operation) = submit(operation).await;
            match (result, operation.into_parts().2) {
                (Ok(_), Some(connection)) => return Ok(RealStream::from_fd(connection)),
                // The client has disconnected before the accept.
                (Err(error), _) if error.raw_os_error() == Some(libc::ECONNABORTED) => {}
                (Err(error), _) if error.kind() == io::ErrorKind::Interrupted => {}
                (Err(error), _) => {
                    count_accept_error(&error);
                    return Err(error);
                }
                (Ok(_), None) => unreachable!("a successful accept returns a connection"),
            }
        }
    }
}

/// Listens at `at`. The socket file of a dead server is replaced; the file of a live server is not.
pub(super) async fn listen(at: &Address) -> io::Result<RealListener> {
    let at = at.clone();
    // Name resolution and the probe of a stale socket may block.
    let listening = compio::runtime::spawn_blocking(move || -> io::Result<(OwnedFd, Option<SocketFile>)> {
        match at {
            Address::Unix(path) => {
                let socket = bind_unix(&path)?;
                let device_and_inode = device_and_inode(&path)?;
                Ok((socket.into(), Some(SocketFile { path, device_and_inode })))
            }
            Address::Tcp(host, port) => Ok((TcpListener::bind((host.as_str(), port))?.into(), None)),
        }
    });
    let (socket, file) = listening.await??;
    Ok(RealListener { socket: Rc::new(socket), _file: file })
}

fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
        other => return other,
    }
    if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
        let text = format!("{} exists and is not a socket: remove it or listen elsewhere", path.display());
        return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        _ => {
            let text = format!("another server answers on {}: stop it or listen elsewhere", path.display());
            Err(io::Error::new(io::ErrorKind::AddrInUse, text))
        }
    }
}
