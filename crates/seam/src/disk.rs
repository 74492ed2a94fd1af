//! Storage as the engine sees it: reads, writes, flushes and zero-ranges at byte offsets.

use std::future::Future;
use std::ops::Range;
use std::path::PathBuf;

use crate::{Nanos, Piece, PieceMut, Seam};

/// Result of a disk operation.
pub type DiskResult<T> = Result<T, DiskError>;

/// Reason why a disk operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskError {
    /// The medium cannot read or write these bytes; other bytes may be fine.
    #[error("input/output error ({0})")]
    Io(String),
    /// No space is left for a write.
    #[error("no space left")]
    NoSpace,
    /// The disk is missing (unplugged, or disconnected for longer than the time-out).
    #[error("the disk is gone")]
    Gone,
    /// The disk cannot do this operation at all; the caller has to use another operation.
    #[error("not supported by the disk")]
    Unsupported,
    /// The disk is read-only.
    #[error("the disk is read-only")]
    ReadOnly,
    /// Another process holds the disk.
    #[error("in use by another process ({0}); stop it first, two daemons on one backing destroy its data")]
    Busy(String),
    /// The disk shares its storage with a disk that is already open.
    #[error(
        "{} and {} lie on the same storage ({on}), and the second is open already: give each volume and each flash \
         device storage of its own",
        path.display(), other.display()
    )]
    Shared {
        /// Path of the disk to be opened.
        path: PathBuf,
        /// Path of the disk that is open.
        other: PathBuf,
        /// The storage that both reach.
        on: String,
    },
    /// The disk cannot be opened in the requested form.
    #[error("{0}")]
    Open(String),
    /// The path of the disk does not answer.
    #[error("{0}")]
    Hung(String),
    /// The storage lacks flushed writes that this host may have.
    #[error("it lacks flushed writes {data} that host {host} may have")]
    Undestaged {
        /// Name of the writes.
        data: String,
        /// Name of the host.
        host: String,
        /// The image with that host's log, if it lies on one.
        log: Option<String>,
    },
    /// Another host owns the storage.
    #[error("host {owner} owns it")]
    Standby {
        /// Name of that host.
        owner: String,
        /// A report of the owner, for the caller that opens the storage.
        report: String,
    },
    /// This process has lost the storage to another one for good.
    #[error("{0}")]
    Lost(String),
}

/// Request to open a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskOpen {
    /// Path of a file or block device in the real world, name of a disk in the simulated one.
    pub path: PathBuf,
    /// If the file is missing, create it sparse with this many bytes; an existing file never grows.
    pub create_bytes: Option<u64>,
    /// Open read-only.
    pub read_only: bool,
    /// Milliseconds to wait for another holder's lock (a killed predecessor's last I/O) before [`DiskError::Busy`].
    pub lock_wait_ms: u64,
}

/// Fixed facts of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Capacity in bytes; a multiple of `logical_block`.
    pub size_bytes: u64,
    /// Smallest unit of reads and writes: 512 or 4096 bytes.
    pub logical_block: u32,
    /// Unit that is written completely or not at all.
    pub physical_block: u32,
    /// Best size and alignment of a large write (a RAID stripe); 0 if unknown.
    pub stripe_bytes: u32,
    /// Number of concurrent requests from which the disk profits.
    pub queue_depth: u32,
    /// True if `zero` works without writing zeroes.
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

/// Identifies stored bytes that several disks may share. Compare keys of the same offset only, and at one moment: a
/// write or a move of the content changes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContentKey {
    /// The open storage that holds the bytes.
    pub store: u64,
    /// The place in it.
    pub place: u64,
}

/// The sequence of ownerships of a storage that the present one continues: no other process can have written between
/// them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lineage {
    /// Identifies it among all of the storage.
    pub id: String,
    /// Why the one before it ended, as a clause; empty if there was none.
    pub reason: String,
}

/// Storage.
///
/// A submitted operation completes and owns its buffers, even if its future is dropped. Offsets and lengths are
/// multiples of [`Geometry::logical_block`]; a caller that breaks this has a bug, and the call panics.
pub trait Disk<S: Seam>: Clone + 'static {
    /// The disk's fixed facts, with the current size.
    fn geometry(&self) -> Geometry;

    /// Identifies the storage itself, not the path to it. The identity survives a restart, and differs for a copy of
    /// the storage where the world can distinguish the two.
    fn identity(&self) -> String;

    /// True if the identity lies in the storage itself (a serial number, a file's inode and birth time), so that no
    /// other storage has it. False if it names a location, where another disk may be by now.
    fn is_identity_unique(&self) -> bool {
        false
    }

    /// Identifies this attachment of a device among all attachments of one boot; `None` if nothing identifies it.
    fn instance(&self) -> Option<String> {
        None
    }

    /// Identities that earlier versions gave to this disk; records under such a name belong to it.
    fn former_identities(&self) -> Vec<String> {
        Vec::new()
    }

    /// Changes whenever the disk may have lost unflushed writes (a reconnect); such data counts as dirty again.
    fn connection_epoch(&self) -> u64;

    /// Why this process may never use the storage again: another one has taken it over. All requests fail from then on.
    fn lost(&self) -> Option<DiskError> {
        None
    }

    /// Time since the last proof that this process owns the storage, once that is too long: another process may own it
    /// by now. Requests, also those that a cache or a log could answer, wait for the next proof or the loss.
    fn unproven_for(&self) -> Option<Nanos> {
        None
    }

    /// The lineage of this process's ownership, for storage that several processes may own one after the other.
    fn lineage(&self) -> Option<Lineage> {
        None
    }

    /// Ends the connection of a disk on a server, while handles to it exist: open requests fail, and later ones too. A
    /// server that exists for this disk alone ends with it.
    fn abandon(&self) {}

    /// Marks the storage as lacking flushed writes that only a log of this process may have, or removes the mark. Other
    /// machines do not use marked storage. When this succeeds, the change is durable. For storage that several machines
    /// may own one after the other.
    fn mark_undestaged(&self, is_marked: bool) -> impl Future<Output = DiskResult<()>> {
        let _ = is_marked;
        std::future::ready(Ok(()))
    }

    /// Start of the oldest unanswered request, up to a tenth of a second early; `None` if all are answered.
    fn oldest_unanswered(&self) -> Option<Nanos>;

    /// Number of accesses at the disks of the array below that a request costs, including reads before a write; `None`
    /// if unknown.
    fn accesses(&self, write: bool, at: u64, len: u64) -> Option<u64> {
        let _ = (write, at, len);
        None
    }

    /// True if the disk allocates space at the first write, from space that it shares with other disks and that may be
    /// used up.
    fn allocates_at_first_write(&self) -> bool {
        false
    }

    /// True if a write of `len` bytes from `at` on needs no space that the disk lacks. False on a disk whose space is
    /// allocated at the first write, until [`Disk::reserve`] has succeeded.
    fn has_space_for(&self, at: u64, len: u64) -> bool {
        let _ = (at, len);
        true
    }

    /// Allocates the space of a range. When this succeeds, the allocation is durable: a later write there cannot fail
    /// with [`DiskError::NoSpace`], unless the range is zeroed with `may_unmap` before.
    fn reserve(&self, at: u64, len: u64) -> impl Future<Output = DiskResult<()>> {
        let _ = (at, len);
        std::future::ready(Ok(()))
    }

    /// A part of a range that cannot be zeroed without space that the disk lacks, until [`Disk::reserve`] has succeeded
    /// for it: its content is shared, and a part of it stays.
    fn part_to_reserve_for_zeroes(&self, at: u64, len: u64) -> Option<Range<u64>> {
        let _ = (at, len);
        None
    }

    /// The key of `len` bytes from `at` on, if other open disks may share their storage. Two disks have the same key at
    /// the same offset exactly if they would read the same stored bytes there now.
    fn shared_content(&self, at: u64, len: u64) -> Option<ContentKey> {
        let _ = (at, len);
        None
    }

    /// Fills `into`, starting at byte `at`. The pieces come back in order, even after an error.
    fn read(
        &self,
        at: u64,
        into: Vec<PieceMut<S::BlockMut>>,
    ) -> impl Future<Output = (DiskResult<()>, Vec<PieceMut<S::BlockMut>>)>;

    /// Writes `from` at byte `at`. Success means that a later read returns the data, not that the data survives a
    /// crash.
    fn write(&self, at: u64, from: Vec<Piece<S::Block>>) -> impl Future<Output = DiskResult<()>>;

    /// Makes every write and zero-range that completed before this call durable.
    fn flush(&self) -> impl Future<Output = DiskResult<()>>;

    /// Makes `len` bytes from `at` on read as zeroes; may release their space if `may_unmap`. From the first poll on,
    /// [`Disk::has_space_for`] is false for space that may be released.
    fn zero(&self, at: u64, len: u64, may_unmap: bool) -> impl Future<Output = DiskResult<()>>;

    /// Allocation of `len` bytes from `at` on, as runs that cover all of it (or a prefix, at least one run).
    fn allocation(&self, at: u64, len: u64) -> impl Future<Output = DiskResult<Vec<AllocationExtent>>>;

    /// Reads the size anew (a file or device may have grown) and returns it.
    fn refresh_size(&self) -> impl Future<Output = DiskResult<u64>>;

    /// Changes the size, if the disk can (a file); data past a smaller size is lost.
    fn set_size(&self, size_bytes: u64) -> impl Future<Output = DiskResult<()>>;
}
