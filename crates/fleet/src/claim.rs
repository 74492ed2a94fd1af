//! An attempt to become the owner.

use crate::ids::{CommandId, Epoch, ImageId, StorageClient};
use crate::record::{Owner, OwnerRecord};
use seam::Nanos;

/// The reason of an attempt, which decides whether a living owner may be fenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trigger {
    /// A request waits: claims a volume that is free, and else learns the owner.
    Request,
    /// Another node takes this one for the owner: claims a volume that this node has lost without a release.
    Peer,
    /// An order to take over.
    Command(TakeOver),
}

/// An order to take over from the owner of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TakeOver {
    pub id: CommandId,
    pub epoch: Epoch,
    pub owner: Option<Owner>,
    pub is_dead: bool,
    /// The order was answered: it is carried out.
    pub is_accepted: bool,
}

/// An attempt to become the owner.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub trigger: Trigger,
    /// Time of the last result or progress of its operations.
    pub progress_at: Nanos,
    /// Another living client that has the lock, and the time of the first look that found it.
    pub rival: Option<(StorageClient, Nanos)>,
    /// The epoch of the record as it was read.
    pub old_epoch: Epoch,
    /// The last epoch that ended without a release.
    pub lost_epoch: Epoch,
    /// The image whose header was read.
    pub image: ImageId,
    /// The session of an owner that has released the volume, to fence once this node serves it.
    pub unfenced: Option<StorageClient>,
    /// Clients to fence, one after the other.
    pub fences: Vec<StorageClient>,
    /// The old owner may be alive: after it is fenced, its lease must run out before the record is written.
    pub awaits_lease: bool,
    /// End of the old owner's lease, known once the lock is acquired.
    pub lease_ends_at: Nanos,
}

impl Claim {
    pub fn new(trigger: Trigger, now: Nanos) -> Claim {
        Claim {
            trigger,
            progress_at: now,
            rival: None,
            old_epoch: Epoch::default(),
            lost_epoch: Epoch::default(),
            image: ImageId::default(),
            unfenced: None,
            fences: Vec::new(),
            awaits_lease: false,
            lease_ends_at: Nanos::default(),
        }
    }

    /// True if the volume is taken from an owner that has not released it.
    pub fn is_take_over(&self) -> bool {
        self.old_epoch != Epoch::default() && self.lost_epoch == self.old_epoch
    }

    /// The epoch that is claimed.
    pub fn epoch(&self) -> Epoch {
        self.old_epoch.next()
    }
}

/// A claim whose record is being written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recording {
    pub record: OwnerRecord,
    pub is_written: bool,
    /// Start of the operation in progress.
    pub started_at: Nanos,
}
