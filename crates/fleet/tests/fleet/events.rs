//! Events of the simulated world.

use fleet::{Command, Epoch, NodeId, PeerMessage, RequestError, RequestId, RequestKind, StorageError};

use crate::storage::{Sender, StorageOp, StorageResult};

/// A request of a client as it travels.
#[derive(Clone, Copy, Debug)]
pub enum ClientOp {
    Write { block: usize, value: u32 },
    Read { block: usize },
    Flush,
}

impl ClientOp {
    pub fn kind(self) -> RequestKind {
        match self {
            ClientOp::Write { .. } => RequestKind::Write,
            ClientOp::Read { .. } => RequestKind::Read,
            ClientOp::Flush => RequestKind::Flush,
        }
    }
}

/// Answer to a client or to a node that forwarded a request, with the value of a read.
pub type Reply = Result<u32, RequestError>;

/// Life of a node's process between starts and restored snapshots: messages of an earlier one are lost with its
/// sessions.
pub type Session = u64;

/// An event.
#[derive(Clone, Debug)]
pub enum WorldEvent {
    Tick {
        node: usize,
        session: Session,
    },
    AtStorage {
        node: usize,
        session: Session,
        volume: usize,
        sender: Sender,
        op: StorageOp,
    },
    StorageReply {
        node: usize,
        session: Session,
        volume: usize,
        sender: Sender,
        result: Result<StorageResult, StorageError>,
    },
    ClientReplaced {
        node: usize,
        session: Session,
        volume: usize,
    },
    Peer {
        from: usize,
        to: usize,
        volume: usize,
        message: PeerMessage,
    },
    Forward {
        from: usize,
        session: Session,
        to: usize,
        volume: usize,
        epoch: Epoch,
        request: RequestId,
        op: ClientOp,
    },
    ForwardReply {
        to: usize,
        session: Session,
        volume: usize,
        request: RequestId,
        reply: Reply,
    },
    ForwardTimeout {
        node: usize,
        session: Session,
        volume: usize,
        request: RequestId,
    },
    Connect {
        connection: u64,
    },
    Request {
        connection: u64,
        tag: usize,
        op: ClientOp,
    },
    Disconnect {
        connection: u64,
    },
    Reply {
        connection: u64,
        tag: usize,
        reply: Reply,
    },
    ConnectionReset {
        connection: u64,
    },
    ClientStep {
        client: usize,
    },
    RequestTimeout {
        client: usize,
        tag: usize,
    },
    SwitchOver {
        client: usize,
        migration: usize,
    },
    OldFlush {
        connection: u64,
    },
    OldClose {
        connection: u64,
    },
    SpreadMap {
        osd: usize,
        map: u64,
    },
    Fault(Fault),
    Order {
        node: usize,
        volume: usize,
        command: Command,
    },
    Rescue,
}

/// A fault, or an order of the administrator.
#[derive(Clone, Debug)]
pub enum Fault {
    CutStorage {
        node: usize,
        until: u64,
    },
    CutLink {
        a: usize,
        b: usize,
        until: u64,
    },
    Pause {
        node: usize,
        until: u64,
    },
    StopClock {
        node: usize,
    },
    StartClock {
        node: usize,
    },
    Kill {
        node: usize,
    },
    Start {
        node: usize,
    },
    TakeSnapshot {
        node: usize,
    },
    RestoreSnapshot {
        node: usize,
    },
    Move {
        node: usize,
        volume: usize,
        to: NodeId,
    },
    /// Takes over from the owner of so many epochs ago.
    TakeOver {
        node: usize,
        volume: usize,
        age: u64,
    },
    /// The process that has the volume's session ends.
    CrashHelper {
        node: usize,
        volume: usize,
    },
    /// Cuts the owner of a volume off the storage, and lets another node take over.
    Isolate {
        volume: usize,
        until: u64,
        cuts_links: bool,
        take_over_after: u64,
    },
    /// Restores a snapshot of the owner that is taken now.
    RewindOwner {
        volume: usize,
        after: u64,
    },
    /// Restores a snapshot of the owner that is taken when its next batch of destage begins.
    RewindDestage {
        volume: usize,
        after: u64,
    },
    /// Another program blocks the owner's session for a short time.
    BlockShortly {
        volume: usize,
        duration: u64,
    },
    /// Another process starts on the owner's node, which is stopped for a while.
    SecondProcess {
        volume: usize,
        pause: u64,
    },
    /// Kills a node for good, and orders the others to take its volumes over.
    FenceNode {
        node: usize,
    },
    Migrate {
        client: usize,
        to: usize,
        called_off: bool,
        stay: u64,
    },
    End,
}

/// The identity of a simulated node.
pub fn node_id(node: usize) -> NodeId {
    NodeId(node as u32)
}
