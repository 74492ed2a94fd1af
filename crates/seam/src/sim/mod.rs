//! The simulated world: virtual nanoseconds, one thread, and all randomness drawn from one seed.
//!
//! It runs the same engine as production. Hours pass in seconds, every failure is reproducible from its seed, and a
//! crash, torn write or lost flush can occur at any I/O.

mod block;
mod disk;
mod disk_control;
mod disk_spec;
mod executor;
mod fault;
mod image;
mod listener;
mod metadata_sectors;
mod persist;
mod snapshot;
mod stream;
mod timer;
mod trace;
mod world;

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

pub use crate::rng::Rng;
pub use block::{POISON, SimBlock, SimBlockMut, StoredContent};
pub use disk::SimDisk;
pub use disk_control::DiskControl;
pub use disk_spec::{DiskCounts, Latency, SimDiskSpec, Timing, WriteCache};
pub use executor::TaskOrder;
pub use fault::{Fault, Ops, Rule, When};
pub use image::{CrashMode, DiskImages};
pub use listener::{SimListener, WireSpec};
pub use persist::PersistedPool;
pub use snapshot::{Snapshot, Survival, UnflushedChange};
pub use stream::{SimReader, SimStream, SimWriter};
pub use trace::{Trace, TraceEntry, TraceMode, TraceOp, TracePhase};
pub use world::{LeakCheck, Stop, World, WorldSpec};

use crate::{Address, BlockTag, DiskOpen, DiskResult, Nanos, RangeTag, Seam};

/// One core of a simulated world.
#[derive(Clone)]
pub struct SimSeam {
    world: Rc<world::WorldState>,
    pool: Rc<block::Pool>,
}

impl Seam for SimSeam {
    type Block = SimBlock;
    type BlockMut = SimBlockMut;
    type Disk = SimDisk;
    type Stream = SimStream;
    type Listener = SimListener;

    fn now(&self) -> Nanos {
        self.world.now()
    }

    fn sleep_until(&self, at: Nanos) -> impl Future<Output = ()> {
        timer::Sleep::new(Rc::clone(&self.world), at)
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.world.spawn(Box::pin(task));
    }

    fn yield_now(&self) -> impl Future<Output = ()> {
        YieldNow(false)
    }

    fn random(&self) -> u64 {
        self.world.engine_rng.next()
    }

    fn spend(&self, cost: Nanos) {
        self.world.spend(cost);
    }

    fn alloc(&self) -> Option<SimBlockMut> {
        self.pool.alloc()
    }

    fn blocks_free(&self) -> usize {
        self.pool.total - self.pool.allocated.get()
    }

    fn blocks_total(&self) -> usize {
        self.pool.total
    }

    fn zero_block(&self) -> SimBlock {
        SimBlock::Zero
    }

    fn survives_restart(&self) -> bool {
        self.pool.persist_tags.is_some()
    }

    fn tag(&self, block: &SimBlock, tag: BlockTag) -> u64 {
        self.pool.persist_tags.as_ref().map_or(0, |tags| tags.tag(block, tag))
    }

    fn tag_of(&self, block: &SimBlock) -> u64 {
        block.persist_tag_number()
    }

    fn untag(&self, block: &SimBlock, number: u64) {
        self.pool.persist_tags.iter().for_each(|tags| tags.untag(block, number));
    }

    fn tag_range(&self, tag: RangeTag) -> Option<u32> {
        self.pool.persist_tags.as_ref().and_then(|tags| tags.tag_range(tag))
    }

    fn untag_range(&self, index: u32) {
        self.pool.persist_tags.iter().for_each(|tags| tags.untag_range(index));
    }

    async fn open_disk(&self, spec: &DiskOpen) -> DiskResult<SimDisk> {
        disk::open(&self.world, spec).await
    }

    async fn connect(&self, to: &Address) -> std::io::Result<SimStream> {
        listener::connect(&self.world, to).await
    }

    async fn listen(&self, at: &Address) -> std::io::Result<SimListener> {
        listener::listen(&self.world, at)
    }
}

/// Pending once, and woken at once.
struct YieldNow(bool);

impl Future for YieldNow {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests;
