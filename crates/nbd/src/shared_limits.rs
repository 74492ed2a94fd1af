//! Limits shared by all connections of a server.

use std::rc::Rc;

use connection::{Clients, Limits};

use crate::Options;
use crate::options::{READ_PIECE_BYTES, WRITE_PIECE_BYTES};

/// Options and clients of a server, from which each connection's limits follow.
pub(crate) struct SharedLimits {
    /// The options.
    pub(crate) options: Options,
    /// Clients and the buffers of their replies.
    pub(crate) clients: Rc<Clients>,
}

impl SharedLimits {
    /// Limits without clients, on a core with `pool_bytes` of buffers.
    pub(crate) fn new(options: Options, pool_bytes: usize) -> SharedLimits {
        let limits = Limits { held_bytes_max: options.held_bytes_max, stall_timeout: options.stall_timeout };
        SharedLimits { options, clients: Rc::new(Clients::new(limits, pool_bytes)) }
    }

    /// Limit in bytes of the requests and replies that a connection holds. At the limit its socket is not read. Waiting
    /// requests hold no buffers.
    pub(crate) fn held_quota_bytes(&self) -> usize {
        self.clients.client_quota_bytes().max(READ_PIECE_BYTES)
    }

    /// A connection's quota of write data that waits for the engine, in bytes.
    pub(crate) fn payload_quota_bytes(&self) -> usize {
        (self.options.payload_bytes_max / self.clients.count().max(1)).max(WRITE_PIECE_BYTES)
    }
}
