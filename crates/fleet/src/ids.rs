//! Numbers of nodes, clients, epochs, operations, connections and requests.

/// A node of the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// The lock of a node that a process holds for its life: the boot, the file system and the inode of the locked file. A
/// process that has a lock has outlived every other one that had it in the same generation of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeLock(pub u128);

/// An image of the storage: its pool and its number, which no copy shares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ImageId(pub u128);

/// One session of a process with the storage: the address of a Ceph client with its nonce. A new process, and a session
/// opened after blocking, has another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StorageClient(pub u64);

/// Generation of a machine: another one after the machine was restored from a snapshot (VM generation ID). A machine
/// that has no such number keeps one value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MachineGeneration(pub u128);

/// Number of an ownership. It rises with every change of the owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The epoch after this one.
    pub const fn next(self) -> Epoch {
        Epoch(self.0.saturating_add(1))
    }
}

/// Number of a storage operation. Its result carries the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// Number of an order of an administrator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub u64);

/// A client's connection to a front end of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// A request at this node, from a connection or from another node. Numbers rise in the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);
