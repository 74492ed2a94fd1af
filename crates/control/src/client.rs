//! Client side of the control socket: blocking, one request at a time.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use messages::{Answer, Failure, Progress, Reply, Request};

use crate::wire::{REPLY_BYTES_MAX, encode_line, too_long};

/// Reason why a request returned no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No server listens at the path.
    #[error(
        "no daemon answers at {path} ({error}); start one with `hotset serve`, or specify its socket with --socket"
    )]
    NoDaemon {
        /// The socket.
        path: PathBuf,
        /// Error of `connect`.
        error: io::Error,
    },
    /// No permission to connect to the socket.
    #[error("not allowed to talk to the daemon at {path}; use the user or group that the daemon runs as, or root")]
    Forbidden {
        /// The socket.
        path: PathBuf,
    },
    /// The connection broke.
    #[error("the connection to the daemon at {path} failed: {error}")]
    Broken {
        /// The socket.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// The daemon refused or failed.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// A connection to a daemon.
pub struct Client {
    path: PathBuf,
    stream: BufReader<UnixStream>,
}

impl AsFd for Client {
    /// Exposes the socket, so that callers can read the peer's credentials (`SO_PEERCRED`).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.get_ref().as_fd()
    }
}

impl Client {
    /// Connects to the daemon's socket.
    pub fn connect(path: &Path) -> Result<Client, ClientError> {
        let stream = UnixStream::connect(path).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => ClientError::Forbidden { path: path.to_owned() },
            _ => ClientError::NoDaemon { path: path.to_owned(), error },
        })?;
        Ok(Client { path: path.to_owned(), stream: BufReader::new(stream) })
    }

    /// Sets the time-out of each read from and each write to the socket.
    pub fn with_timeout(self, timeout: Duration) -> Result<Client, ClientError> {
        let socket = self.stream.get_ref();
        let result = socket.set_read_timeout(Some(timeout)).and_then(|()| socket.set_write_timeout(Some(timeout)));
        result.map_err(|error| self.broken(error))?;
        Ok(self)
    }

    /// Sends a request and waits for its result; only [`Client::with_timeout`] bounds the wait.
    pub fn request(&mut self, request: &Request, mut on_progress: impl FnMut(Progress)) -> Result<Answer, ClientError> {
        self.stream.get_mut().write_all(&encode_line(request)).map_err(|error| self.broken(error))?;
        loop {
            match self.receive_reply().map_err(|error| self.broken(error))? {
                Reply::Progress(progress) => on_progress(progress),
                Reply::Done(answer) => return Ok(answer),
                Reply::Failed(failure) => return Err(failure.into()),
            }
        }
    }

    fn receive_reply(&mut self) -> io::Result<Reply> {
        let mut line = Vec::new();
        (&mut self.stream).take(REPLY_BYTES_MAX as u64).read_until(b'\n', &mut line)?;
        match line.last() {
            Some(b'\n') => Ok(serde_json::from_slice(&line)?),
            _ if line.len() == REPLY_BYTES_MAX => Err(too_long(REPLY_BYTES_MAX)),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn broken(&self, error: io::Error) -> ClientError {
        let error = match error.kind() {
            io::ErrorKind::WouldBlock => io::Error::new(io::ErrorKind::TimedOut, "no reply within the time-out"),
            _ => error,
        };
        ClientError::Broken { path: self.path.clone(), error }
    }
}
