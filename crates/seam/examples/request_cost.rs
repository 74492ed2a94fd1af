//! Cost of a disk request: CPU time of the whole process, including io_uring's workers, and wall time.
//!
//! `cargo run --release -p seam --example request_cost -- FOLDER [REQUESTS [CASE]]` creates files in FOLDER, which lies
//! on the disk under test, and leaves them there. FOLDER may be a block device, whose content is lost. Each case prints
//! a line: its name, then microseconds of CPU time and of wall time per request. To compare two commits, run their
//! examples alternately and take medians. The flash cache's files are reserved; a thin volume's are sparse.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use seam::real::{RealCoreSpec, RealDisk, RealSeam, run_core};
use seam::{BLOCK_BYTES, BlockMut, Disk, DiskOpen, Piece, Seam};

const FILE_BYTES: u64 = 256 << 20;
/// Size of a sparse file, so large that random writes seldom hit allocated blocks.
const SPARSE_BYTES: u64 = 4 << 30;
/// Number of a writer's requests between two flushes.
const FLUSH_EVERY: u64 = 32;
const DEPTHS: [u64; 3] = [1, 32, 128];
const POOL_BYTES: usize = 16 << 20;

/// State of the blocks at the requests' offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockState {
    /// Written blocks.
    Written,
    /// Allocated and unwritten blocks.
    Reserved,
    /// Holes.
    Sparse,
}

/// One kind of load.
#[derive(Clone, Copy, Debug)]
struct Case {
    is_write: bool,
    block_state: BlockState,
    depth: u64,
    flushes: bool,
}

impl Case {
    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        for depth in DEPTHS {
            cases.push(Case { is_write: false, block_state: BlockState::Written, depth, flushes: false });
            for block_state in [BlockState::Written, BlockState::Reserved, BlockState::Sparse] {
                cases.push(Case { is_write: true, block_state, depth, flushes: false });
            }
            cases.push(Case { is_write: true, block_state: BlockState::Written, depth, flushes: true });
        }
        cases
    }

    fn name(&self) -> String {
        let kind = if self.is_write { "write" } else { "read" };
        let flushes = if self.flushes { "-flush" } else { "" };
        format!("{kind}-{:?}-{}{flushes}", self.block_state, self.depth).to_lowercase()
    }
}

/// CPU time and wall time so far.
fn clocks() -> (Duration, Duration) {
    let read = |clock| {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the call writes one timespec, and the pointer refers to one.
        let failed = unsafe { libc::clock_gettime(clock, &raw mut time) };
        assert_eq!(failed, 0, "every Linux has this clock");
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    (read(libc::CLOCK_PROCESS_CPUTIME_ID), read(libc::CLOCK_MONOTONIC))
}

fn open(path: &Path, create_bytes: Option<u64>) -> DiskOpen {
    DiskOpen { path: path.to_owned(), create_bytes, read_only: false, lock_wait_ms: 1000 }
}

/// Opens a disk and brings its blocks into the state `block_state`.
#[allow(clippy::disallowed_methods, reason = "the file of an earlier run has to go before there is a disk")]
async fn prepare(seam: &RealSeam, target: &Path, block_state: BlockState) -> RealDisk {
    if !target.is_dir() {
        return seam.open_disk(&open(target, None)).await.expect("the device can be opened");
    }
    let path = target.join(format!("request_cost.{block_state:?}"));
    let bytes = if block_state == BlockState::Sparse { SPARSE_BYTES } else { FILE_BYTES };
    let is_kept = block_state == BlockState::Written && path.exists();
    if !is_kept && path.exists() {
        std::fs::remove_file(&path).expect("the file of an earlier run can be removed");
    }
    let disk = seam.open_disk(&open(&path, Some(bytes))).await.expect("a file can be made");
    if block_state != BlockState::Sparse {
        disk.reserve(&path).await.expect("the file system has room");
    }
    if block_state == BlockState::Written && !is_kept {
        let run_blocks = 256;
        for at in (0..bytes).step_by(run_blocks * BLOCK_BYTES) {
            disk.write(at, (0..run_blocks).map(|_| Piece::whole(block(seam).freeze())).collect())
                .await
                .expect("a healthy disk");
        }
    }
    disk.flush().await.expect("a healthy disk");
    disk
}

fn block(seam: &RealSeam) -> <RealSeam as Seam>::BlockMut {
    let mut block = seam.alloc().expect("the pool has room");
    block.zero(0, BLOCK_BYTES);
    block
}

/// Sends requests to random offsets at depth `case.depth`.
async fn load(seam: &RealSeam, disk: &RealDisk, case: Case, requests: u64) {
    let blocks = disk.geometry().size_bytes / BLOCK_BYTES as u64;
    let (remaining, waiter) = (Rc::new(Cell::new(case.depth)), Rc::new(RefCell::new(None::<Waker>)));
    for _ in 0..case.depth {
        let (seam, disk, remaining, waiter) = (seam.clone(), disk.clone(), Rc::clone(&remaining), Rc::clone(&waiter));
        seam.clone().spawn(async move {
            for number in 1..=requests / case.depth {
                let at = seam.random() % blocks * BLOCK_BYTES as u64;
                if case.is_write {
                    disk.write(at, vec![Piece::whole(block(&seam).freeze())]).await.expect("a healthy disk");
                } else {
                    disk.read(at, vec![Piece::whole(block(&seam))]).await.0.expect("a healthy disk");
                }
                if case.flushes && number % FLUSH_EVERY == 0 {
                    disk.flush().await.expect("a healthy disk");
                }
            }
            remaining.set(remaining.get() - 1);
            if remaining.get() == 0 {
                waiter.take().into_iter().for_each(Waker::wake);
            }
        });
    }
    // Only the last client wakes this future, so the wait costs no CPU time.
    std::future::poll_fn(|context| {
        *waiter.borrow_mut() = Some(context.waker().clone());
        if remaining.get() == 0 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

fn measure(target: PathBuf, case: Case, requests: u64) -> (Duration, Duration) {
    // Without spinning: a spinning core would count the wait as CPU time.
    let spec = RealCoreSpec { spin_ns: 0, ..RealCoreSpec::new(POOL_BYTES) };
    let run = run_core(spec, move |seam| async move {
        let disk = prepare(&seam, &target, case.block_state).await;
        load(&seam, &disk, case, requests / 10).await;
        let (cpu, wall) = clocks();
        load(&seam, &disk, case, requests).await;
        let (cpu_after, wall_after) = clocks();
        (cpu_after - cpu, wall_after - wall)
    });
    run.expect("io_uring is allowed here")
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let target = PathBuf::from(arguments.next().expect("a folder or a block device is named"));
    let requests = arguments.next().map_or(4096, |count| count.parse().expect("a count of requests"));
    let name_filter = arguments.next();
    for case in Case::cases() {
        let name = case.name();
        if name_filter.as_ref().is_some_and(|name_filter| !name.contains(name_filter))
            || !target.is_dir() && case.block_state != BlockState::Written
        {
            continue;
        }
        let (cpu, wall) = measure(target.clone(), case, requests);
        let per_request_us = |time: Duration| time.as_secs_f64() * 1e6 / requests as f64;
        println!("{name:<24} {:>8.2} {:>8.2}", per_request_us(cpu), per_request_us(wall));
    }
}
