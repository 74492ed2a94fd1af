//! Benchmark of layouts for a page's checksums. It compares three reads of 4 KiB: with an adjacent checksum
//! sector (4.5 KiB in one request), with a separate checksum block (two requests), and bare.
//!
//! `cargo run --release -p flash --example layout [FOLDER]` prints reads per second at depths 1 and 32, run
//! alternately, with direct I/O.

use std::cell::Cell;
use std::rc::Rc;

use seam::real::{RealCoreSpec, RealSeam, run_core};
use seam::{BlockMut, Disk, DiskOpen, Nanos, Piece, Seam};

const FILE_BYTES: u64 = 1 << 30;
const ROUNDS: usize = 5;
const RUN_TIME: Nanos = Nanos::from_millis(800);
/// Two blocks and the sector between them.
const PAIR_BYTES: u64 = 8_704;

type RealDisk = <RealSeam as Seam>::Disk;

/// The position of the checksum.
#[derive(Clone, Copy, Debug)]
enum Layout {
    /// No checksum.
    Bare,
    /// In a sector between two blocks.
    Between,
    /// In a separate block.
    Separate,
}

/// Reads a block at random, with its checksum.
async fn read(seam: &RealSeam, disk: &RealDisk, layout: Layout, draw: u64) {
    let buffer = || seam.alloc().expect("the pool has a free buffer");
    match layout {
        Layout::Bare => {
            let at = draw % (FILE_BYTES / 4096) * 4096;
            disk.read(at, vec![Piece::whole(buffer())]).await.0.expect("a healthy file");
        }
        Layout::Between => {
            let pair = draw % (FILE_BYTES / PAIR_BYTES) * PAIR_BYTES;
            let (at, pieces) = if draw >> 40 & 1 == 0 {
                (pair, vec![Piece::whole(buffer()), Piece::new(buffer(), 0, 512)])
            } else {
                (pair + 4096, vec![Piece::new(buffer(), 0, 512), Piece::whole(buffer())])
            };
            disk.read(at, pieces).await.0.expect("a healthy file");
        }
        Layout::Separate => {
            let at = draw % (FILE_BYTES / 4096) * 4096;
            disk.read(at, vec![Piece::whole(buffer())]).await.0.expect("a healthy file");
            let sums = at / (17 * 4096) * (17 * 4096);
            disk.read(sums, vec![Piece::whole(buffer())]).await.0.expect("a healthy file");
        }
    }
}

/// Reads per second at this depth.
async fn measure_rate(seam: &RealSeam, disk: &RealDisk, layout: Layout, depth: u64) -> f64 {
    let (completed, running) = (Rc::new(Cell::new(0_u64)), Rc::new(Cell::new(depth)));
    let start = seam.now();
    for _ in 0..depth {
        let (seam, disk, completed, running) = (seam.clone(), disk.clone(), Rc::clone(&completed), Rc::clone(&running));
        seam.clone().spawn(async move {
            while seam.now().since(start) < RUN_TIME {
                read(&seam, &disk, layout, seam.random() >> 8).await;
                completed.set(completed.get() + 1);
            }
            running.set(running.get() - 1);
        });
    }
    while running.get() > 0 {
        seam.sleep(Nanos::from_millis(1)).await;
    }
    completed.get() as f64 / seam.now().since(start).as_secs_f64()
}

fn main() {
    let folder = match std::env::args().nth(1) {
        Some(folder) => tempfile::tempdir_in(folder),
        None => tempfile::tempdir(),
    };
    let folder = folder.expect("a temporary directory");
    let file = DiskOpen {
        path: folder.path().join("flash"),
        create_bytes: Some(FILE_BYTES),
        read_only: false,
        lock_wait_ms: 0,
    };
    let run = run_core(RealCoreSpec::new(64 << 20), |seam| async move {
        let disk = seam.open_disk(&file).await.expect("a new file");
        let mut filler = seam.alloc().expect("the pool has a free buffer");
        filler.write_bytes(0, &[7; 4096]);
        let filler = filler.freeze();
        for at in (0..FILE_BYTES).step_by(1 << 20) {
            disk.write(at, (0..256).map(|_| Piece::whole(filler.clone())).collect()).await.expect("room for the file");
        }
        disk.flush().await.expect("a healthy file");
        let mut rates = Vec::new();
        for depth in [1, 32] {
            for _ in 0..ROUNDS {
                let mut round_rates = Vec::new();
                for layout in [Layout::Bare, Layout::Between, Layout::Separate] {
                    round_rates.push(measure_rate(&seam, &disk, layout, depth).await);
                }
                rates.push((depth, round_rates));
            }
        }
        rates
    });
    let rates = run.expect("io_uring is allowed here");
    for depth in [1, 32] {
        let mut medians = Vec::new();
        for layout in 0..3 {
            let mut sorted: Vec<f64> = rates
                .iter()
                .filter(|(measured, _)| *measured == depth)
                .map(|(_, round_rates)| round_rates[layout])
                .collect();
            sorted.sort_by(f64::total_cmp);
            medians.push(sorted[ROUNDS / 2]);
        }
        let [bare, between, separate] = medians[..] else { unreachable!("three layouts") };
        println!(
            "depth {depth:>2}: bare {bare:>8.0}  between {between:>8.0} ({:.2})  separate {separate:>8.0} ({:.2})",
            between / bare,
            separate / bare
        );
    }
}
