//! A connected byte stream: a Unix or TCP socket in the real world, a pipe with delays in the simulated one.

use std::fmt;
use std::future::Future;
use std::io;
use std::path::PathBuf;

use crate::{Gather, PieceMut, Seam};

/// Where a server listens.
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

    /// Where the client connected to, as this end knows it; `None` where that has no host and port.
    fn local_address(&self) -> Option<Address>;

    /// True when this process itself is the server at the other end, as far as the world can tell.
    fn leads_home(&self) -> bool {
        false
    }

    /// The two directions.
    fn split(self) -> (Self::Reader, Self::Writer);

    /// The stream whose directions these are, open as before. Neither has anything under way.
    fn join(reader: Self::Reader, writer: Self::Writer) -> io::Result<Self>;
}

/// Where clients connect; stops listening when dropped.
pub trait Listener<S: Seam>: 'static {
    /// The next client.
    fn accept(&self) -> impl Future<Output = io::Result<S::Stream>>;
}

/// Incoming bytes.
pub trait StreamReader<S: Seam>: 'static {
    /// Appends what has arrived, at least one byte, at most the room left in `buffer`'s capacity (not zero). `Ok(0)`: the
    /// peer has closed. [`io::ErrorKind::Interrupted`]: an interrupter was called; nothing was taken.
    fn read(&mut self, buffer: Vec<u8>) -> impl Future<Output = (io::Result<usize>, Vec<u8>)>;

    /// What interrupts a [`StreamReader::read`] that waits, or perhaps a later one. Dropping such a read instead may lose what it has taken.
    fn interrupter(&self) -> Box<dyn Fn()>;

    /// Fills `pieces` whole, interrupted or not; an early end is [`io::ErrorKind::UnexpectedEof`].
    fn read_pieces(
        &mut self,
        pieces: Vec<PieceMut<S::BlockMut>>,
    ) -> impl Future<Output = (io::Result<()>, Vec<PieceMut<S::BlockMut>>)>;
}

/// Outgoing bytes.
pub trait StreamWriter<S: Seam>: 'static {
    /// Sends all of `gather`, which comes back uncleared. R1 holds: its blocks are frozen until it is cleared.
    fn send(&mut self, gather: Gather<S>) -> impl Future<Output = (io::Result<()>, Gather<S>)>;

    /// Ends both directions at once; a pending read returns.
    fn shutdown(&mut self);
}
