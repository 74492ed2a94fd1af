//! A short read-only probe of a device: the costs of its class, for a tier without a configured one.
//!
//! Random reads of 4 KiB one after the other, then sequential reads, then random reads by several readers at once.
//! Reads of a file's holes say nothing about its disk.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use seam::{BLOCK_BYTES, Disk, Nanos, Piece, Seam};

use crate::planner::ClassCost;

/// Time of each of the three parts.
const PART: Nanos = Nanos::from_millis(250);
/// Time after the parts for which reads in flight are awaited.
const GRACE: Nanos = Nanos::from_millis(200);
/// Most reads of a part: a fast device needs no more.
const READS_MAX: u64 = 2_000;
/// Blocks of a sequential read.
const SEQUENTIAL_BLOCKS: u64 = 32;
/// Readers at once in the last part.
const READERS: u32 = 16;
/// Time between two looks at the result.
const STEP: Nanos = Nanos::from_millis(5);

/// Result of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeResult {
    /// Costs by the measured reads. A write is taken to cost as much as a read.
    pub cost: ClassCost,
    /// Random reads measured.
    pub reads: u64,
}

/// Reads of a part.
#[derive(Clone, Copy, Default)]
struct Measured {
    reads: u64,
    time: Nanos,
}

/// Probes a device for at most a second. `None` if it does not answer in that time, fails, or has less than 1 MiB.
pub async fn probe<S: Seam, D: Disk<S>>(seam: &S, disk: &D) -> Option<ProbeResult> {
    let blocks = disk.geometry().size_bytes / BLOCK_BYTES as u64;
    if blocks < 256 {
        return None;
    }
    let end = seam.now() + Nanos(3 * PART.0) + GRACE;
    let result = Rc::<RefCell<Option<Option<ProbeResult>>>>::default();
    let (task_seam, disk, sender) = (seam.clone(), disk.clone(), Rc::clone(&result));
    // A task of its own: a device that does not answer holds up nothing but its probe.
    seam.spawn(async move {
        let measured = measure(&task_seam, &disk, blocks).await;
        *sender.borrow_mut() = Some(measured);
    });
    while seam.now() < end {
        if let Some(measured) = *result.borrow() {
            return measured;
        }
        seam.sleep(STEP).await;
    }
    None
}

async fn measure<S: Seam, D: Disk<S>>(seam: &S, disk: &D, blocks: u64) -> Option<ProbeResult> {
    let random = read_for(seam, disk, 1, || seam.random() % blocks).await?;
    let next = Cell::new(seam.random() % (blocks / 2));
    let sequential = read_for(seam, disk, SEQUENTIAL_BLOCKS, || {
        let at = next.get() % (blocks - SEQUENTIAL_BLOCKS);
        next.set(at + SEQUENTIAL_BLOCKS);
        at
    })
    .await?;
    let (start, left, counted) = (seam.now(), Rc::new(Cell::new(READERS)), Rc::new(Cell::new(0)));
    for _ in 0..READERS {
        let (seam, disk, left, counted) = (seam.clone(), disk.clone(), Rc::clone(&left), Rc::clone(&counted));
        seam.clone().spawn(async move {
            if let Some(measured) = read_for(&seam, &disk, 1, || seam.random() % blocks).await {
                counted.set(counted.get() + measured.reads);
            }
            left.set(left.get() - 1);
        });
    }
    while left.get() > 0 {
        seam.sleep(Nanos::from_millis(1)).await;
    }
    let at_once = Measured { reads: counted.get(), time: seam.now().since(start) };
    let read_access = Nanos((random.time.0 / random.reads).max(1_000));
    let bytes = u128::from(sequential.reads) * u128::from(SEQUENTIAL_BLOCKS) * BLOCK_BYTES as u128;
    let byte_ps = (u128::from(sequential.time.0) * 1_000 / bytes).max(1) as u64;
    // Disk time of all reads in the time in which they ended.
    let parallel = u128::from(at_once.reads) * u128::from(read_access.0) / u128::from(at_once.time.0.max(1));
    let parallel = (parallel as u32).clamp(1, READERS);
    let cost = ClassCost { read_access, write_access: read_access, byte_ps, parallel };
    Some(ProbeResult { cost, reads: random.reads + at_once.reads })
}

/// Reads of `count` blocks one after the other, for the time of a part. `None` after an error, and without buffers.
async fn read_for<S: Seam, D: Disk<S>>(seam: &S, disk: &D, count: u64, block: impl Fn() -> u64) -> Option<Measured> {
    let (start, mut measured) = (seam.now(), Measured::default());
    let mut buffers: Vec<_> = std::iter::from_fn(|| seam.alloc()).take(count as usize).collect();
    if (buffers.len() as u64) < count {
        return None;
    }
    while seam.now().since(start) < PART && measured.reads < READS_MAX {
        let pieces = buffers.into_iter().map(Piece::whole).collect();
        let (result, pieces) = disk.read(block() * BLOCK_BYTES as u64, pieces).await;
        result.ok()?;
        buffers = pieces.into_iter().map(|piece| piece.block).collect();
        measured.reads += 1;
    }
    measured.time = seam.now().since(start);
    Some(measured)
}
