//! A connected byte stream: a Unix or TCP socket in the real world, a pipe with delays in the simulated one.

use std::fmt;
use std::future::Future;
use std::io;
use std::path::PathBuf;

use crate::{Gather, PieceMut, Seam};

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// Host (name or address) and port.
    Tcp(String, u16),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp(host, port) if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Address::Tcp(host, port) => write!(f, "tcp:{host}:{port}"),
        }
    }
}

/// A connected stream; splits into its two directions.
pub trait ByteStream<S: Seam>: Sized + 'static {
    /// Incoming direction.
    type Reader: StreamReader<S>;
    /// Outgoing direction; closes that direction when dropped.
    type Writer: StreamWriter<S>;

    /// The address to which the client connected, as this end knows it; `None` if it has no host and port.
    fn local_address(&self) -> Option<Address>;

    /// True if this process itself is the server at the other end, as far as this can be determined.
    fn connects_to_self(&self) -> bool {
        false
    }

    /// Splits the stream into its directions.
    fn split(self) -> (Self::Reader, Self::Writer);

    /// Joins both directions of one stream, which stays open. No operation may be pending on either.
    fn join(reader: Self::Reader, writer: Self::Writer) -> io::Result<Self>;
}

/// A listening socket; stops listening when dropped.
pub trait Listener<S: Seam>: 'static {
    /// Accepts the next client.
    fn accept(&self) -> impl Future<Output = io::Result<S::Stream>>;
}

/// Incoming bytes.
pub trait StreamReader<S: Seam>: 'static {
    /// Appends arrived bytes to `buffer`: at least one, at most the room left in its capacity (not zero). `Ok(0)`: the
    /// peer has closed. [`io::ErrorKind::Interrupted`]: an interrupter was called; no bytes were taken.
    fn read(&mut self, buffer: Vec<u8>) -> impl Future<Output = (io::Result<usize>, Vec<u8>)>;

    /// Returns a function that interrupts a pending [`StreamReader::read`], or possibly a later one. Dropping a pending
    /// read instead may lose bytes that it has taken.
    fn interrupter(&self) -> Box<dyn Fn()>;

    /// Fills `pieces` completely and ignores interrupters; an early end is [`io::ErrorKind::UnexpectedEof`].
    fn read_pieces(
        &mut self,
        pieces: Vec<PieceMut<S::BlockMut>>,
    ) -> impl Future<Output = (io::Result<()>, Vec<PieceMut<S::BlockMut>>)>;
}

/// Outgoing bytes.
pub trait StreamWriter<S: Seam>: 'static {
    /// Sends all of `gather` and returns it unchanged. Its blocks stay frozen until the caller clears it (R1,
    /// docs/rules.md).
    fn send(&mut self, gather: Gather<S>) -> impl Future<Output = (io::Result<()>, Gather<S>)>;

    /// Ends both directions at once; a pending read returns.
    fn shutdown(&mut self);
}
