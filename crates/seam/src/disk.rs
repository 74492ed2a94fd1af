//! Storage as the engine sees it: reads, writes, flushes and zero-ranges at byte offsets.

use std::future::Future;
use std::path::PathBuf;

use crate::{Nanos, Piece, PieceMut, Seam};

/// What a disk operation ends in.
pub type DiskResult<T> = Result<T, DiskError>;

/// Why a disk operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskError {
    /// The medium cannot give or take these bytes; others may be fine.
    #[error("input/output error ({0})")]
    Io(String),
    /// No room is left for a write.
    #[error("no space left on the backing")]
    NoSpace,
    /// The disk is not there (unplugged, disconnected past its patience).
    #[error("the disk is gone")]
    Gone,
    /// The disk cannot do this operation at all; the caller has to do it another way.
    #[error("not supported by the disk")]
    Unsupported,
    /// The disk may not be written.
    #[error("the disk is read-only")]
    ReadOnly,
    /// Somebody else holds the disk.
    #[error("in use by another process ({0}); stop it first, two daemons on one backing destroy its data")]
    Busy(String),
    /// It reaches storage that another open disk reaches.
    #[error(
        "{} and {} lie on the same storage ({on}), and the second is open already: give each volume and each flash device storage of its own",
        path.display(), other.display()
    )]
    Shared {
        /// What was to be opened.
        path: PathBuf,
        /// What is open.
        other: PathBuf,
        /// What both reach.
        on: String,
    },
    /// It cannot be opened as what it was asked to be.
    #[error("{0}")]
    Open(String),
}

/// What is to be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskOpen {
    /// Path of a file or block device in the real world, name of a disk in the simulated one.
    pub path: PathBuf,
    /// Create it, sparse, with this many bytes if it is missing; grow it never.
    pub create_bytes: Option<u64>,
    /// Open without the right to write.
    pub read_only: bool,
    /// Milliseconds to wait for another holder's lock (a killed predecessor's last I/O) before [`DiskError::Busy`].
    pub lock_wait_ms: u64,
}

/// Fixed facts of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes in all; a multiple of `logical_block`.
    pub size_bytes: u64,
    /// Smallest unit that can be read or written: 512 or 4096.
    pub logical_block: u32,
    /// Unit that is written whole or not at all.
    pub physical_block: u32,
    /// Best size and alignment of a large write (a RAID stripe); 0 where unknown.
    pub stripe_bytes: u32,
    /// Requests that it works on at once with profit.
    pub queue_depth: u32,
    /// True when `zero` works without writing zeroes through.
    pub fast_zero: bool,
}

/// A run of bytes with one allocation status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationExtent {
    /// Length.
    pub len_bytes: u64,
    /// Nothing is allocated there.
    pub hole: bool,
    /// It reads as zeroes.
    pub zero: bool,
}

/// Storage.
///
/// An operation that was submitted completes and owns its buffers, whatever becomes of its future. Offsets and lengths
/// are multiples of [`Geometry::logical_block`]; a caller that breaks this is a programmer's error and panics.
pub trait Disk<S: Seam>: Clone + 'static {
    /// Its fixed facts; the size is the current one.
    fn geometry(&self) -> Geometry;

    /// Names the storage itself, not the path to it: stays the same over a restart, differs for a clone where the world can tell.
    fn identity(&self) -> String;

    /// True when the identity lies in the storage itself (a serial number, a file's inode and birth), so that no other storage has it. Else it is the
    /// name of a place, where another disk may be by now.
    fn is_identity_unique(&self) -> bool {
        false
    }

    /// Tells this attachment of a device from every other one of the same boot; `None` where nothing does.
    fn instance(&self) -> Option<String> {
        None
    }

    /// What earlier versions called it where they called it something else: what they have noted under such a name is this disk's.
    fn former_identities(&self) -> Vec<String> {
        Vec::new()
    }

    /// Changes whenever the disk may have lost what was written and not flushed (a reconnect): such data counts as dirty again.
    fn incarnation(&self) -> u64;

    /// When the oldest request began that it has not answered, up to a tenth of a second early; `None`: it has answered all.
    fn oldest_unanswered(&self) -> Option<Nanos>;

    /// To how many places its disks have to go for a request, with what they must read before they write; `None` where it does not know.
    fn accesses(&self, write: bool, at: u64, len: u64) -> Option<u64> {
        let _ = (write, at, len);
        None
    }

    /// Fills `into` from byte `at` on. The pieces come back in any case, in order.
    fn read(
        &self,
        at: u64,
        into: Vec<PieceMut<S::BlockMut>>,
    ) -> impl Future<Output = (DiskResult<()>, Vec<PieceMut<S::BlockMut>>)>;

    /// Writes `from` at byte `at`. Success means that a later read returns it, not that it survives a crash.
    fn write(&self, at: u64, from: Vec<Piece<S::Block>>) -> impl Future<Output = DiskResult<()>>;

    /// Makes every write and zero-range that completed before this call durable.
    fn flush(&self) -> impl Future<Output = DiskResult<()>>;

    /// Makes `len` bytes from `at` on read as zeroes; may release their space if `may_unmap`.
    fn zero(&self, at: u64, len: u64, may_unmap: bool) -> impl Future<Output = DiskResult<()>>;

    /// Allocation of `len` bytes from `at` on, as runs that cover all of it (or a prefix, at least one run).
    fn allocation(&self, at: u64, len: u64) -> impl Future<Output = DiskResult<Vec<AllocationExtent>>>;

    /// Looks at the size again (a file or device that grew) and returns it.
    fn refresh_size(&self) -> impl Future<Output = DiskResult<u64>>;

    /// Changes the size, where the disk can (a file); data past a smaller size is gone.
    fn set_size(&self, size_bytes: u64) -> impl Future<Output = DiskResult<()>>;
}
