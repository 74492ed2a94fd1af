//! What a server is told to be: limits and time-outs.

use seam::Nanos;

use crate::Tls;

/// A server's limits. The defaults fit a daemon that serves some hundred clients.
#[derive(Clone, Debug)]
pub struct Options {
    /// Clients at once that have chosen an export; past it a new one is sent away.
    pub connections_max: usize,
    /// Of those, how many places are kept for clients on this machine (Unix sockets).
    pub local_connections: usize,
    /// Clients at once that have chosen none yet, of those on this machine and of others each; past it the oldest silent one is closed.
    pub handshakes_max: usize,
    /// Time that a client has to choose an export.
    pub handshake_timeout: Nanos,
    /// Requests of one client that are under way at once; past it its socket is not read.
    pub requests_max: usize,
    /// Bytes of one client's requests and replies that are held at once; past it its socket is not read. The replies of all
    /// clients together hold at most a quarter of the core's buffers (or one reply alone, where that is less).
    pub held_bytes_max: usize,
    /// Time that a client has to take what was sent to it while others wait for the buffers which that holds; then it is sent
    /// away.
    pub stall_timeout: Nanos,
    /// Bytes of writes that wait for the engine, of all clients together, shared evenly.
    pub payload_bytes_max: usize,
    /// Encryption; `None`: not offered.
    pub tls: Option<Tls>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            connections_max: 1024,
            local_connections: 64,
            handshakes_max: 128,
            handshake_timeout: Nanos::from_secs(30),
            requests_max: 256,
            held_bytes_max: 4 << 20,
            stall_timeout: Nanos::from_secs(5),
            payload_bytes_max: 16 << 20,
            tls: None,
        }
    }
}

/// Longest read or write that a client may send, in bytes.
pub(crate) const REQUEST_BYTES_MAX: u32 = nbd_protocol::limits::DATA_BYTES_MAX;
/// Longest read that is held whole before its head is sent, in bytes, where the answer is in one piece. A longer simple reply leaves
/// piece by piece; a longer chunk that must not be fragmented is refused.
pub(crate) const WHOLE_READ_BYTES_MAX: u32 = 4 << 20;
/// A longer read is answered in pieces of this many bytes.
pub(crate) const READ_PIECE_BYTES: usize = 256 << 10;
/// A longer write is taken in pieces of this many bytes, which with its head is less than is taken from the socket at once.
pub(crate) const WRITE_PIECE_BYTES: usize = 128 << 10;
/// The data of a write at least this long, of whole blocks, is taken from the socket into the blocks that keep it; for a shorter one
/// copying costs less than a call of its own.
pub(crate) const STRAIGHT_BYTES_MIN: usize = 32 << 10;
/// Bytes taken from the socket at once.
pub(crate) const RECEIVE_BYTES: usize = 256 << 10;
/// Extents in one answer to a block status request.
pub(crate) const EXTENTS_MAX: usize = 1024;
/// What a request costs in simulated time, besides the engine's part: decoding, encoding, and its part of two system calls.
pub(crate) const REQUEST_COST: Nanos = Nanos(1_500);
