//! Actions: the output of the state machine, to be executed in order.

use crate::event::CommandError;
use crate::ids::{CommandId, ConnectionId, Epoch, NodeId, OpId, RequestId, StorageClient};
use crate::peer::PeerMessage;
use crate::record::{Expected, OwnerRecord};
use crate::request::RequestError;

/// An action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read the owner's record, the lock's owner and the watches of the image.
    ReadHeader {
        /// Number of the operation.
        op: OpId,
    },
    /// Read the owner's record and the end of the log. The result is `Stale` if the log does not end where the data
    /// path believes, or after an append in flight.
    ReadRecord {
        /// Number of the operation.
        op: OpId,
    },
    /// Block a client at the storage, wait for the map that says so, and break the client's lock if it has it.
    Fence {
        /// Number of the operation.
        op: OpId,
        /// The client.
        client: StorageClient,
    },
    /// Acquire the managed exclusive lock.
    AcquireLock {
        /// Number of the operation.
        op: OpId,
    },
    /// Raise the log's epoch, then read the log to its end: the storage refuses appends of earlier epochs from then on.
    ReplayLog {
        /// Number of the operation.
        op: OpId,
        /// The new epoch.
        epoch: Epoch,
    },
    /// Replace the owner's record if it is the expected one, in one operation of the storage.
    WriteRecord {
        /// Number of the operation.
        op: OpId,
        /// The expected record.
        expected: Expected,
        /// The new record.
        new: OwnerRecord,
    },
    /// Complete every write in flight, and append all dirty data to the log. Destage may make room for it. After the
    /// end the data path ignores `Action::Destage`.
    Quiesce {
        /// Number of the operation.
        op: OpId,
    },
    /// Release the managed exclusive lock.
    ReleaseLock {
        /// Number of the operation.
        op: OpId,
    },
    /// End the session with the storage and open another one; a session that is being opened already is abandoned.
    /// Operations of the old one may still arrive there.
    ReplaceClient,
    /// Serve the volume from the replayed log.
    Serve {
        /// The epoch, which every write and append carries.
        epoch: Epoch,
    },
    /// The lease has run out: answers are withheld.
    StopAcknowledging,
    /// The lease is valid again.
    ResumeAcknowledging,
    /// Many requests wait: stop reading from the connections of the volume.
    StopReading,
    /// Read from the connections again.
    ResumeReading,
    /// Close every connection of the volume.
    CloseFrontEnds,
    /// Close a connection: the volume was lost since it began, maybe with writes of its client.
    CloseConnection(ConnectionId),
    /// Discard the cached state and the dirty data.
    Discard,
    /// Begin one batch of writes of dirty data to the image.
    Destage,
    /// Execute a request.
    Execute {
        /// Its number.
        request: RequestId,
    },
    /// Let another node execute a request.
    Forward {
        /// Its number.
        request: RequestId,
        /// The other node.
        to: NodeId,
        /// The epoch in which the other node owns the volume: in another one it refuses.
        epoch: Epoch,
    },
    /// Answer a request.
    Answer {
        /// Its number.
        request: RequestId,
        /// The answer.
        result: Result<(), RequestError>,
    },
    /// Answer an order: it is carried out, or refused.
    AnswerCommand {
        /// Its number.
        id: CommandId,
        /// The answer.
        result: Result<(), CommandError>,
    },
    /// Send a message to another node.
    Send {
        /// The other node.
        to: NodeId,
        /// The message.
        message: PeerMessage,
    },
    /// Report to the administrator that the ownership was lost. Acknowledged writes without a flush may be lost.
    ReportLoss(LossReason),
}

/// Why an ownership was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossReason {
    /// The storage has blocked this client (`ESHUTDOWN`).
    Blocked,
    /// Another client has the lock (`EROFS`).
    LockedByOther,
    /// A compare failed: another node has claimed the volume, or this process went back in time.
    Stale,
    /// The machine was restored from a snapshot.
    Restored,
    /// The session with the storage ended without an order.
    SessionLost,
}
