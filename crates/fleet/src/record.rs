//! The owner's record in the metadata of an image.

use crate::ids::{Epoch, ImageId, MachineGeneration, NodeId, NodeLock, StorageClient};

/// The owner of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Its node.
    pub node: NodeId,
    /// Its session with the storage.
    pub client: StorageClient,
    /// The lock that its process holds.
    pub lock: NodeLock,
    /// The generation of its machine.
    pub generation: MachineGeneration,
}

/// The durable record of a volume's owner. It is changed only by compare-and-write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerRecord {
    /// The image that the record belongs to. A clone has a copy of its parent's record, which says nothing about it.
    pub image: ImageId,
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
    /// The owner's machine can be restored from a snapshot: a virtual machine.
    pub is_restorable: bool,
    /// The session of the owner before, which has released the volume and may not be fenced yet. If its machine is
    /// restored, its operations may be sent once more, after the storage has forgotten their numbers.
    pub unfenced: Option<StorageClient>,
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
    /// The image.
    pub image: ImageId,
    /// The owner's record.
    pub record: OwnerRecord,
    /// The owner of the managed exclusive lock (`rbd_lock_get_owners`).
    pub lock_owner: Option<StorageClient>,
    /// Clients with a watch that has not expired (`rbd_watchers_list`).
    pub watchers: Vec<StorageClient>,
}

impl Header {
    /// The record, if it is the image's own. A copy counts as no owner, but the epochs rise from it.
    pub(crate) fn own_record(&self) -> OwnerRecord {
        if self.record.image == self.image {
            return self.record;
        }
        OwnerRecord { image: self.image, epoch: self.record.epoch, ..OwnerRecord::default() }
    }
}
