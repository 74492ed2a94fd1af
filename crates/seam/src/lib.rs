//! The seam: everything that the engine asks of the world outside it.
//!
//! A disk, a byte stream, a clock, a spawner, a source of random numbers and the buffers that travel between them are
//! traits here. Two worlds implement them side by side: `real` (io_uring, direct I/O, one thread a core) and `sim`
//! (virtual time from one seed, modelled disks, injected faults). Nothing above this crate calls the operating system.

pub mod bell;
pub mod block;
pub mod conformance;
pub mod disk;
pub mod gather;
pub mod hint;
pub mod incoming;
pub mod kept;
pub mod mailbox;
pub mod model;
pub mod pending;
pub mod real;
mod rng;
pub mod sim;
pub mod stream;
pub mod time;

use std::future::Future;

pub use bell::Bell;
pub use block::{BLOCK_BYTES, Block, BlockMut, Piece, PieceMut, SECTOR_BYTES, SECTORS_PER_BLOCK};
pub use disk::{AllocationExtent, Disk, DiskError, DiskOpen, DiskResult, Geometry};
pub use gather::{Gather, Part};
pub use incoming::Incoming;
pub use kept::{BlockNote, RangeKind, RangeNote};
pub use pending::{PendingRequest, PendingRequests};
pub use stream::{Address, ByteStream, Listener, StreamReader, StreamWriter};
pub use time::Nanos;

/// One core of one world: what a single-threaded part of the engine runs on.
///
/// Handles are cheap to clone and stay on the thread that made them.
pub trait Seam: Clone + Sized + 'static {
    /// A frozen 4 KiB buffer (R1: it never changes while anybody holds it).
    type Block: Block<Mut = Self::BlockMut>;
    /// A 4 KiB buffer with one owner, still being filled.
    type BlockMut: BlockMut<Frozen = Self::Block>;
    /// Slow or fast storage.
    type Disk: Disk<Self>;
    /// A connected byte stream.
    type Stream: ByteStream<Self>;
    /// Where clients connect.
    type Listener: Listener<Self>;

    /// Time since an arbitrary start; never goes back.
    fn now(&self) -> Nanos;

    /// Completes at `at` or as soon afterwards as the world can.
    fn sleep_until(&self, at: Nanos) -> impl Future<Output = ()>;

    /// Completes `after` from now.
    fn sleep(&self, after: Nanos) -> impl Future<Output = ()> {
        self.sleep_until(self.now() + after)
    }

    /// Runs `task` on this core, detached. A crash of the world discards it; nothing else does.
    fn spawn(&self, task: impl Future<Output = ()> + 'static);

    /// Lets every other task that is ready run once before the caller goes on.
    fn yield_now(&self) -> impl Future<Output = ()>;

    /// A random number: from the operating system in the real world, from the seed in the simulated one.
    fn random(&self) -> u64;

    /// Charges CPU time to this core: moves the virtual clock, does nothing in the real world (where work takes its own time).
    fn spend(&self, cost: Nanos);

    /// A buffer from this core's pool with unspecified content, or `None` when the pool's ceiling is reached.
    fn alloc(&self) -> Option<Self::BlockMut>;

    /// Blocks that `alloc` could still hand out.
    fn blocks_free(&self) -> usize;

    /// Blocks that the pool may hand out in all.
    fn blocks_total(&self) -> usize;

    /// The block of zeroes that everybody shares; not counted in the pool.
    fn zero_block(&self) -> Self::Block;

    /// True when buffers outlive the process, with the notes that are made here.
    fn keeps(&self) -> bool;

    /// Notes what `block` holds, once its content is there; a note of the same that is there already may only grow. Returns its number.
    fn note(&self, block: &Self::Block, note: BlockNote) -> u64;

    /// The number of the note on `block`; 0: there is none.
    fn noted(&self, block: &Self::Block) -> u64;

    /// Forgets the note on `block`, unless it has been given another one than `number`.
    fn forget(&self, block: &Self::Block, number: u64);

    /// Notes something of a run of blocks. Returns its place; `None`: there is no room, and what is left behind will be said not to be whole.
    fn note_range(&self, note: RangeNote) -> Option<u32>;

    /// Forgets the note on a run of blocks at `place`.
    fn forget_range(&self, place: u32);

    /// Opens the storage that `what` describes.
    fn open_disk(&self, what: &DiskOpen) -> impl Future<Output = DiskResult<Self::Disk>>;

    /// Connects to a server as a client.
    fn connect(&self, to: &Address) -> impl Future<Output = std::io::Result<Self::Stream>>;

    /// Starts to listen as a server.
    fn listen(&self, at: &Address) -> impl Future<Output = std::io::Result<Self::Listener>>;
}
