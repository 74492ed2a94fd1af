//! Connections of clients to this node.

use crate::ids::Epoch;

/// A client's connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connection {
    /// Its requests may be executed once this many renewals have been completed: the renewal must have begun after the
    /// connection. A process whose memory went back in time has no connections, and so executes nothing before it has
    /// noticed.
    pub needs_renewal: u64,
    /// The latest epoch that this node knew when the connection began: the true one, or an earlier one.
    pub epoch: Epoch,
    /// The client has sent a write.
    pub has_written: bool,
    /// The connection was there when a hand-over began.
    pub precedes_drain: bool,
    /// The volume has been handed over to another node since the connection began: its writes do not move the volume
    /// back while the owner has a client that has written.
    pub is_superseded: bool,
    /// The client has written, and nothing but flushes has arrived since the volume was handed over: the source of a
    /// migration. All of its writes were drained, and it has seen no later ones.
    pub is_departing: bool,
}
