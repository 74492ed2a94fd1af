//! A group of a pool on modelled hardware: a simulated disk, or a window of a modelled array.

use seam::model::ModelledDisk;
use seam::{AllocationExtent, Disk, DiskResult, Geometry, Nanos, Piece, PieceMut, Seam};

/// A disk of a pool whose groups differ in kind.
pub enum PoolMember<S: Seam> {
    /// A disk that was opened through the seam.
    Plain(S::Disk),
    /// A window of a modelled array.
    Modelled(ModelledDisk<S, S::Disk>),
}

impl<S: Seam> Clone for PoolMember<S> {
    fn clone(&self) -> Self {
        match self {
            PoolMember::Plain(disk) => PoolMember::Plain(disk.clone()),
            PoolMember::Modelled(disk) => PoolMember::Modelled(disk.clone()),
        }
    }
}

/// Forwards a call to the actual disk.
macro_rules! forward {
    ($self:expr, $disk:ident => $call:expr) => {
        match $self {
            PoolMember::Plain($disk) => $call,
            PoolMember::Modelled($disk) => $call,
        }
    };
}

impl<S: Seam> Disk<S> for PoolMember<S> {
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
