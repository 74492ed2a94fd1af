//! The slow storage under a volume. The engine does not distinguish files, devices and arrays.

mod datastore;
mod dispatch;
mod group_disk;

use nbd_client::NbdDisk;
use pool::PoolDisk;
use seam::model::ModelledDisk;
use seam::{Seam, forward_to_variants};

pub use datastore::{Datastore, DatastoreStats, DatastoreVolumeStats, Episode, IoSlot, ReservationError};
pub use dispatch::{BackingOp, Cause, DestageConditions, Dispatch, Permit};
pub use group_disk::GroupDisk;
pub use qos::Priority;

/// Storage of any kind for a volume.
pub enum AnyDisk<S: Seam> {
    /// A file, a block device or a simulated disk, opened through the seam.
    Plain(S::Disk),
    /// An address range of a modelled array: its timing, with the content of a plain disk.
    Modelled(ModelledDisk<S, S::Disk>),
    /// Another server's NBD export.
    Nbd(NbdDisk<S>),
    /// A volume of a pool.
    Pool(PoolDisk<S, S::Disk>),
    /// A volume of a pool on modelled hardware.
    ModelledPool(PoolDisk<S, GroupDisk<S>>),
}

forward_to_variants!(AnyDisk: Plain, Modelled, Nbd, Pool, ModelledPool);

/// The backing of a volume.
pub struct Backing<S: Seam> {
    /// The storage.
    pub disk: AnyDisk<S>,
}

impl<S: Seam> Backing<S> {
    /// A backing that is a file, a block device or a simulated disk.
    pub fn plain(disk: S::Disk) -> Self {
        Backing { disk: AnyDisk::Plain(disk) }
    }

    /// A backing that is an address range of a modelled array.
    pub fn modelled(disk: ModelledDisk<S, S::Disk>) -> Self {
        Backing { disk: AnyDisk::Modelled(disk) }
    }

    /// A backing that is another server's NBD export.
    pub fn nbd(disk: NbdDisk<S>) -> Self {
        Backing { disk: AnyDisk::Nbd(disk) }
    }

    /// A backing that is a volume of a pool.
    pub fn pool(disk: PoolDisk<S, S::Disk>) -> Self {
        Backing { disk: AnyDisk::Pool(disk) }
    }
}
