//! What all connections of a server share: limits, and among whom they are split.

use std::rc::Rc;

use front::{Clients, Limits};

use crate::Options;
use crate::options::{READ_PIECE_BYTES, WRITE_PIECE_BYTES};

/// What all connections of a server share.
pub(crate) struct Shares {
    /// The limits.
    pub(crate) options: Options,
    /// Who is connected, and what their replies hold.
    pub(crate) clients: Rc<Clients>,
}

impl Shares {
    /// No connections yet, on a core with `pool_bytes` of buffers.
    pub(crate) fn new(options: Options, pool_bytes: usize) -> Shares {
        let limits = Limits { held_bytes_max: options.held_bytes_max, stall_timeout: options.stall_timeout };
        Shares { options, clients: Rc::new(Clients::new(limits, pool_bytes)) }
    }

    /// Bytes of requests and replies past which one connection's socket is not read; waiting requests hold no buffers.
    pub(crate) fn held_bytes(&self) -> usize {
        self.clients.share_bytes().max(READ_PIECE_BYTES)
    }

    /// Bytes of waiting writes that one connection may hold.
    pub(crate) fn payload_bytes(&self) -> usize {
        (self.options.payload_bytes_max / self.clients.count().max(1)).max(WRITE_PIECE_BYTES)
    }
}
