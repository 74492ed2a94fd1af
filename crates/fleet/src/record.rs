//! The owner's record in the metadata of an image.

use crate::ids::{Epoch, NodeId, StorageClient};

/// The owner of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Its node.
    pub node: NodeId,
    /// Its session with the storage.
    pub client: StorageClient,
}

/// The durable record of a volume's owner. It is changed only by compare-and-write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerRecord {
    /// Epoch of the owner.
    pub epoch: Epoch,
    /// The owner, or the last one.
    pub owner: Option<Owner>,
    /// Number of the last batch of destage in this epoch. A process whose memory went back in time before it has an
    /// older number.
    pub mark: u64,
    /// The owner has drained: everything that it acknowledged is durable, and it writes no more.
    pub is_released: bool,
    /// The last epoch that ended without a release, or 0. A connection that began then or earlier may have acknowledged
    /// writes that are lost, also at another node: every node closes it.
    pub lost_epoch: Epoch,
}

/// The state of the record that a compare-and-write expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Any record of this epoch: the old owner may still write marks.
    Epoch(Epoch),
    /// Exactly this record: a mark or a release.
    Record(OwnerRecord),
}

impl Expected {
    /// True if `record` is the expected one.
    pub fn matches(&self, record: &OwnerRecord) -> bool {
        match self {
            Expected::Epoch(epoch) => record.epoch == *epoch,
            Expected::Record(expected) => record == expected,
        }
    }
}

/// The state of an image's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The owner's record.
    pub record: OwnerRecord,
    /// The owner of the managed exclusive lock (`rbd_lock_get_owners`).
    pub lock_owner: Option<StorageClient>,
    /// Clients with a watch that has not expired (`rbd_watchers_list`).
    pub watchers: Vec<StorageClient>,
}
