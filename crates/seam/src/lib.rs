//! The seam: the traits through which the engine reaches the operating system.
//!
//! They cover disks, byte streams, the clock, task spawning, random numbers and the buffers of all transfers. Two
//! implementations stand side by side: `real` (io_uring, direct I/O, one thread per core) and `sim` (virtual time from
//! one seed, modelled disks, injected faults). Nothing above this crate calls the operating system.

pub mod bell;
pub mod block;
pub mod buffered_reader;
pub mod conformance;
pub mod disk;
mod forward;
pub mod gather;
pub mod hint;
pub mod mailbox;
pub mod model;
pub mod pending;
pub mod persist;
pub mod real;
mod rng;
pub mod sim;
pub mod stream;
pub mod time;

use std::future::Future;

pub use bell::Bell;
pub use block::{BLOCK_BYTES, Block, BlockMut, Piece, PieceMut, SECTOR_BYTES, SECTORS_PER_BLOCK};
pub use buffered_reader::BufferedReader;
pub use disk::{AllocationExtent, ContentKey, Disk, DiskError, DiskOpen, DiskResult, Geometry, Lineage};
pub use gather::{Gather, Part};
pub use pending::{PendingRequest, PendingRequests};
pub use persist::{BlockTag, RangeKind, RangeTag};
pub use stream::{Address, ByteStream, Listener, StreamReader, StreamWriter};
pub use time::Nanos;

/// One core of one world: the runtime of a single-threaded part of the engine.
///
/// Handles are cheap to clone and stay on the thread that made them.
pub trait Seam: Clone + Sized + 'static {
    /// A frozen 4 KiB buffer (R1: its content never changes while a holder exists).
    type Block: Block<Mut = Self::BlockMut>;
    /// A 4 KiB buffer with one owner, still being filled.
    type BlockMut: BlockMut<Frozen = Self::Block>;
    /// Storage, slow or fast.
    type Disk: Disk<Self>;
    /// A connected byte stream.
    type Stream: ByteStream<Self>;
    /// A listening socket.
    type Listener: Listener<Self>;

    /// Time since an arbitrary start; never goes back.
    fn now(&self) -> Nanos;

    /// Completes at `at`, or as soon afterwards as the world can.
    fn sleep_until(&self, at: Nanos) -> impl Future<Output = ()>;

    /// Completes `after` from now.
    fn sleep(&self, after: Nanos) -> impl Future<Output = ()> {
        self.sleep_until(self.now() + after)
    }

    /// Runs `task` on this core, detached. A crash of the world discards it; nothing else does.
    fn spawn(&self, task: impl Future<Output = ()> + 'static);

    /// Runs every other ready task once before the caller continues.
    fn yield_now(&self) -> impl Future<Output = ()>;

    /// A random number: from the operating system in the real world, from the seed in the simulated one.
    fn random(&self) -> u64;

    /// Charges CPU time to this core: moves the virtual clock; does nothing in the real world, where work takes its own
    /// time.
    fn spend(&self, cost: Nanos);

    /// A buffer from this core's pool with unspecified content; `None` at the pool's ceiling.
    fn alloc(&self) -> Option<Self::BlockMut>;

    /// Blocks that `alloc` can still hand out.
    fn blocks_free(&self) -> usize;

    /// Capacity of the pool in blocks.
    fn blocks_total(&self) -> usize;

    /// The shared block of zeroes; not counted in the pool.
    fn zero_block(&self) -> Self::Block;

    /// True if buffers and their persistence tags survive a restart of the process.
    fn survives_restart(&self) -> bool;

    /// Tags `block` as the newest content of the block that `tag` names, after that content has been written to it. A
    /// later tag of the same buffer may only add sectors. Returns the tag's number.
    fn tag(&self, block: &Self::Block, tag: BlockTag) -> u64;

    /// Number of the tag of `block`; 0 if it has none.
    fn tag_of(&self, block: &Self::Block) -> u64;

    /// Removes the tag of `block` if it has this number.
    fn untag(&self, block: &Self::Block, number: u64);

    /// Tags the state of a run of blocks and returns the tag's index. `None` if the table of range tags is full:
    /// recovery then reports the persisted memory as incomplete.
    fn tag_range(&self, tag: RangeTag) -> Option<u32>;

    /// Removes the range tag at this index.
    fn untag_range(&self, index: u32);

    /// Opens the storage that `spec` describes.
    fn open_disk(&self, spec: &DiskOpen) -> impl Future<Output = DiskResult<Self::Disk>>;

    /// Connects to a server as a client.
    fn connect(&self, to: &Address) -> impl Future<Output = std::io::Result<Self::Stream>>;

    /// Starts to listen as a server.
    fn listen(&self, at: &Address) -> impl Future<Output = std::io::Result<Self::Listener>>;
}
