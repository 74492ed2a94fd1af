//! Connections of clients to this node.

/// A client's connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connection {
    /// Its requests may be executed once this many renewals have been completed: the renewal must have begun after the
    /// connection. A process whose memory went back in time has no connections, and so executes nothing before it has
    /// noticed.
    pub needs_renewal: u64,
    /// The volume has been handed over to another node since the connection began. All of its writes were drained.
    pub is_superseded: bool,
}
