//! The slow storage under a volume. The engine does not distinguish files, devices and arrays.

mod datastore;
mod dispatch;
pub mod nbd;
mod pool_member;

use std::ops::Range;

use pool::PoolDisk;
use seam::model::ModelledDisk;
use seam::{AllocationExtent, Disk, DiskResult, Geometry, Nanos, Piece, PieceMut, Seam};

use self::nbd::NbdDisk;

pub use datastore::{Datastore, DatastoreStats, Episode, IoSlot, MemberStats, ReservationError};
pub use dispatch::{Cause, DestageDemand, Dispatch, Op, Permit};
pub use pool_member::PoolMember;
pub use qos::Priority;

/// Storage of any kind for a volume.
pub enum AnyDisk<S: Seam> {
    /// A file, a block device or a simulated disk, opened through the seam.
    Plain(S::Disk),
    /// A window of a modelled array: its timing, with the content of a plain disk.
    Modelled(ModelledDisk<S, S::Disk>),
    /// Another server's NBD export.
    Nbd(NbdDisk<S>),
    /// A volume of a pool.
    Pool(PoolDisk<S, S::Disk>),
    /// A volume of a pool on modelled hardware.
    ModelledPool(PoolDisk<S, PoolMember<S>>),
}

impl<S: Seam> Clone for AnyDisk<S> {
    fn clone(&self) -> Self {
        match self {
            AnyDisk::Plain(disk) => AnyDisk::Plain(disk.clone()),
            AnyDisk::Modelled(disk) => AnyDisk::Modelled(disk.clone()),
            AnyDisk::Nbd(disk) => AnyDisk::Nbd(disk.clone()),
            AnyDisk::Pool(disk) => AnyDisk::Pool(disk.clone()),
            AnyDisk::ModelledPool(disk) => AnyDisk::ModelledPool(disk.clone()),
        }
    }
}

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

    /// A backing that is a window of a modelled array.
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

/// Forwards a call to the actual disk.
macro_rules! forward {
    ($self:expr, $disk:ident => $call:expr) => {
        match $self {
            AnyDisk::Plain($disk) => $call,
            AnyDisk::Modelled($disk) => $call,
            AnyDisk::Nbd($disk) => $call,
            AnyDisk::Pool($disk) => $call,
            AnyDisk::ModelledPool($disk) => $call,
        }
    };
}

impl<S: Seam> Disk<S> for AnyDisk<S> {
    fn geometry(&self) -> Geometry {
        forward!(self, disk => disk.geometry())
    }

    fn identity(&self) -> String {
        forward!(self, disk => disk.identity())
    }

    fn is_identity_unique(&self) -> bool {
        forward!(self, disk => disk.is_identity_unique())
    }

    fn instance(&self) -> Option<String> {
        forward!(self, disk => disk.instance())
    }

    fn former_identities(&self) -> Vec<String> {
        forward!(self, disk => disk.former_identities())
    }

    fn connection_epoch(&self) -> u64 {
        forward!(self, disk => disk.connection_epoch())
    }

    fn oldest_unanswered(&self) -> Option<Nanos> {
        forward!(self, disk => disk.oldest_unanswered())
    }

    fn accesses(&self, write: bool, at: u64, len: u64) -> Option<u64> {
        forward!(self, disk => disk.accesses(write, at, len))
    }

    fn allocates_at_first_write(&self) -> bool {
        forward!(self, disk => disk.allocates_at_first_write())
    }

    fn has_space_for(&self, at: u64, len: u64) -> bool {
        forward!(self, disk => disk.has_space_for(at, len))
    }

    fn part_to_reserve_for_zeroes(&self, at: u64, len: u64) -> Option<Range<u64>> {
        forward!(self, disk => disk.part_to_reserve_for_zeroes(at, len))
    }

    async fn reserve(&self, at: u64, len: u64) -> DiskResult<()> {
        forward!(self, disk => disk.reserve(at, len).await)
    }

    async fn read(&self, at: u64, into: Vec<PieceMut<S::BlockMut>>) -> (DiskResult<()>, Vec<PieceMut<S::BlockMut>>) {
        forward!(self, disk => disk.read(at, into).await)
    }

    async fn write(&self, at: u64, from: Vec<Piece<S::Block>>) -> DiskResult<()> {
        forward!(self, disk => disk.write(at, from).await)
    }

    async fn flush(&self) -> DiskResult<()> {
        forward!(self, disk => disk.flush().await)
    }

    async fn zero(&self, at: u64, len: u64, may_unmap: bool) -> DiskResult<()> {
        forward!(self, disk => disk.zero(at, len, may_unmap).await)
    }

    async fn allocation(&self, at: u64, len: u64) -> DiskResult<Vec<AllocationExtent>> {
        forward!(self, disk => disk.allocation(at, len).await)
    }

    async fn refresh_size(&self) -> DiskResult<u64> {
        forward!(self, disk => disk.refresh_size().await)
    }

    async fn set_size(&self, size_bytes: u64) -> DiskResult<()> {
        forward!(self, disk => disk.set_size(size_bytes).await)
    }
}
