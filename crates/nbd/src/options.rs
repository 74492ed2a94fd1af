//! Options of a server: limits and time-outs.

use seam::Nanos;

use crate::Tls;

/// Options of a server. The defaults fit a daemon that serves some hundred clients.
#[derive(Clone, Debug)]
pub struct Options {
    /// Maximum number of clients in the transmission phase; a further client is disconnected.
    pub connections_max: usize,
    /// Number of connections of [`Options::connections_max`] that are reserved for local clients (Unix sockets).
    pub local_connections: usize,
    /// Maximum number of clients in the handshake phase, local and remote each; beyond it the oldest silent client is
    /// disconnected.
    pub handshakes_max: usize,
    /// Time limit of the handshake phase.
    pub handshake_timeout: Nanos,
    /// Maximum number of a client's requests in flight; beyond it the socket is not read.
    pub requests_max: usize,
    /// Maximum bytes of a client's requests and replies; beyond it the socket is not read. The replies of all clients
    /// together hold at most a quarter of the core's buffers, or one reply if that is more.
    pub held_bytes_max: usize,
    /// Time after which a client that does not receive its replies is disconnected, if other clients wait for the
    /// buffers of these replies.
    pub stall_timeout: Nanos,
    /// Maximum bytes of write data waiting for the engine, of all clients, divided evenly.
    pub payload_bytes_max: usize,
    /// TLS; `None` if it is not configured.
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

/// Longest read or write of a request, in bytes.
pub(crate) const REQUEST_BYTES_MAX: u32 = nbd_protocol::limits::DATA_BYTES_MAX;
/// Longest read that is held whole for a reply in one piece, in bytes. A longer simple reply is sent in pieces; a
/// longer read that must not be fragmented is refused.
pub(crate) const WHOLE_READ_BYTES_MAX: u32 = 4 << 20;
/// Bytes of a piece of a longer read.
pub(crate) const READ_PIECE_BYTES: usize = 256 << 10;
/// Bytes of a piece of a longer write; with its header a piece is shorter than one receive.
pub(crate) const WRITE_PIECE_BYTES: usize = 128 << 10;
/// Shortest write of whole blocks whose data is received directly into blocks; for a shorter write a copy costs less
/// than a system call.
pub(crate) const DIRECT_WRITE_BYTES_MIN: usize = 32 << 10;
/// Bytes received at once.
pub(crate) const RECEIVE_BYTES: usize = 256 << 10;
/// Maximum number of extents in a reply to a block status request.
pub(crate) const EXTENTS_MAX: usize = 1024;
/// Simulated processor time of a request outside the engine: decoding, encoding, and its fraction of the two
/// system calls.
pub(crate) const REQUEST_COST: Nanos = Nanos(1_500);
