//! Requests of clients, as far as ownership is concerned. Addresses and data stay with the data path.

use crate::ids::{ConnectionId, NodeId};
use seam::Nanos;

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// Changes nothing; the owner may execute it for another node.
    Read,
    /// A write, zeroes or trim: only the owner's own clients change the volume.
    Write,
    /// Makes acknowledged writes durable; the owner may execute it for another node.
    Flush,
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// This node does not own the volume; the answer to a forwarded request.
    NotOwner,
    /// The volume has another writer, or no owner, for too long.
    NoOwnership,
    /// Too many writes wait on connections from which the volume was taken.
    QueueFull,
    /// The owner has too many requests of other nodes; the answer to a forwarded request, which is forwarded again.
    Busy,
    /// The data path failed.
    Failed,
}

/// Where a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Connection(ConnectionId),
    Peer(NodeId),
}

/// Stage of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Waits for the ownership, for its confirmation, or for an answerable owner.
    Waiting,
    /// The data path executes it.
    Executing,
    /// Executed successfully; the answer waits for a valid lease.
    Withheld,
    /// Another node executes it.
    Forwarded,
}

/// A request that has not been answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub source: Source,
    pub kind: RequestKind,
    pub stage: Stage,
    pub arrived_at: Nanos,
    /// The request may be executed once this many renewals have been completed.
    pub needs_renewal: u64,
    /// The request may be forwarded from then on.
    pub forward_at: Nanos,
}
