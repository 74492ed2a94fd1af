//! Events: the input of the state machine.

use crate::ids::{CommandId, ConnectionId, Epoch, NodeId, OpId, RequestId, StorageClient};
use crate::peer::PeerMessage;
use crate::record::{Header, Owner, OwnerRecord};
use crate::request::{RequestError, RequestKind};

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Time has passed. At least two a second.
    Tick,
    /// A client has connected.
    Connected(ConnectionId),
    /// A client's connection has ended.
    Closed(ConnectionId),
    /// A client has sent a request.
    Request {
        /// Its connection.
        connection: ConnectionId,
        /// Its number.
        request: RequestId,
        /// Its kind.
        kind: RequestKind,
    },
    /// Another node has forwarded a read or a flush.
    Forwarded {
        /// The other node.
        from: NodeId,
        /// The epoch in which it takes this node for the owner.
        epoch: Epoch,
        /// Its number at this node.
        request: RequestId,
        /// Its kind.
        kind: RequestKind,
    },
    /// The data path has executed a request of `Action::Execute`.
    Executed {
        /// Its number.
        request: RequestId,
        /// Its result.
        result: Result<(), RequestError>,
    },
    /// The owner has answered a request of `Action::Forward`, or it is unreachable (`NotOwner`).
    ForwardAnswered {
        /// Its number.
        request: RequestId,
        /// The owner's answer.
        result: Result<(), RequestError>,
    },
    /// The data path wants to write dirty data to the image.
    DestageWanted,
    /// The result of a storage operation.
    Storage {
        /// Number of the operation.
        op: OpId,
        /// Its result.
        result: Result<StorageAnswer, StorageError>,
    },
    /// The storage refused an operation of the data path.
    DataPathRefused {
        /// The client of the operation.
        client: StorageClient,
        /// The reason.
        error: StorageError,
    },
    /// The operation has not ended, but has come further (a long replay).
    Progress {
        /// Number of the operation.
        op: OpId,
    },
    /// The session with the storage has been replaced, as ordered by `Action::ReplaceClient`.
    ClientReplaced(StorageClient),
    /// A session with the storage has ended without an order, or a new one could not be opened.
    ClientLost(StorageClient),
    /// A message of another node.
    Peer {
        /// The sender.
        from: NodeId,
        /// The message.
        message: PeerMessage,
    },
    /// An order of an administrator or of the configuration. It is answered once, with `Action::AnswerCommand`.
    Command {
        /// Its number.
        id: CommandId,
        /// The order.
        command: Command,
    },
}

/// An order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Take the volume over from the owner that the record named when the order was given. It is refused if the record
    /// names another one by now: an order that comes late fences no later owner.
    TakeOver {
        /// The owner's epoch.
        epoch: Epoch,
        /// The owner; `None` for a volume that is released or has had none, but whose lock a living client keeps.
        owner: Option<Owner>,
        /// The owner's node has ended for certain (fencing of the hypervisor): its lease need not run out.
        is_dead: bool,
    },
    /// Hand the volume over to another node.
    Move {
        /// The other node.
        to: NodeId,
    },
}

/// Why an order was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandError {
    /// Only the owner hands a volume over, and this node is not the owner.
    NotOwner,
    /// The order names this node.
    SameNode,
    /// This node owns the volume.
    IsOwner,
    /// A claim or a hand-over is in progress, or a session is being opened.
    Busy,
    /// The record names another owner, or none: nothing was fenced.
    OtherOwner(OwnerRecord),
    /// The storage did not answer, or refused the session: nothing was fenced.
    NoAnswer,
}

/// The successful result of a storage operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StorageAnswer {
    /// `Action::ReadHeader`.
    Header(Header),
    /// `Action::ReadRecord`.
    Record(OwnerRecord),
    /// `Action::WriteRecord`: the record was the expected one, and is now the new one.
    RecordWritten,
    /// `Action::ReplayLog`.
    LogReplayed {
        /// The log's epoch as it was read back.
        epoch: Epoch,
        /// Epoch of the last append.
        last_append: Epoch,
    },
    /// `Action::Fence`, `AcquireLock`, `Quiesce` or `ReleaseLock`.
    Done,
}

/// The failure of a storage operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageError {
    /// The client is blocked (`ESHUTDOWN`).
    Blocked,
    /// Another client has the lock (`EROFS`).
    LockedByOther,
    /// No answer within the storage's limit: the operation may still have effect.
    TimedOut,
    /// Any other error: the operation may have had effect.
    Other,
    /// A compare failed: the epoch, the record or the position in the log is another.
    Stale,
}
