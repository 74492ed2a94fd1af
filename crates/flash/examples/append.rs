//! Benchmark of the log's appends against a bare loop with the same I/O on files: 8 blocks and a header to two files,
//! both flushed.
//!
//! `cargo run --release -p flash --example append [FOLDER]` prints batches per second of both, run alternately, and
//! their ratio.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use flash::{BlockAddress, BlockNo, Content, Epoch, FormatOptions, MemberDisk, OpenOptions, Record, Store, VolumeId};
use seam::real::{RealCoreSpec, RealSeam, run_core};
use seam::{BlockMut, Disk, DiskOpen, Nanos, Piece, Seam};

const FILE_BYTES: u64 = 256 << 20;
/// Data blocks of a batch.
const BLOCKS: u64 = 8;
const ROUNDS: usize = 5;
const RUN_TIME: Nanos = Nanos::from_secs(1);

type RealBlock = <RealSeam as Seam>::Block;

fn block(seam: &RealSeam, number: u64) -> RealBlock {
    let mut block = seam.alloc().expect("the pool has a free buffer");
    block.write_bytes(0, &number.to_le_bytes().repeat(seam::BLOCK_BYTES / 8));
    block.freeze()
}

/// Batches per second, appended to the log.
async fn measure_log(seam: &RealSeam, store: &Store<RealSeam>) -> f64 {
    let (start, mut appended) = (seam.now(), 0);
    while seam.now().since(start) < RUN_TIME {
        let record = |number| {
            let address = BlockAddress { volume_id: VolumeId(1), block: BlockNo(appended * BLOCKS + number) };
            Record { address, epoch: Epoch(1), content: Content::Data(block(seam, appended + number)) }
        };
        let positions = store.append((0..BLOCKS).map(record).collect()).await.expect("healthy files");
        store.retire(&positions);
        appended += 1;
    }
    appended as f64 / seam.now().since(start).as_secs_f64()
}

/// Batches per second, written and flushed without the log.
async fn measure_bare(seam: &RealSeam, disks: &[<RealSeam as Seam>::Disk]) -> f64 {
    let (start, mut written) = (seam.now(), 0);
    while seam.now().since(start) < RUN_TIME {
        let at = (1 << 20) + written * (BLOCKS + 1) * 4096 % (FILE_BYTES - (2 << 20));
        let blocks: Vec<_> = (0..=BLOCKS).map(|number| block(seam, written + number)).collect();
        let write = async |disk: &<RealSeam as Seam>::Disk| {
            disk.write(at, blocks.iter().cloned().map(Piece::whole).collect()).await.expect("a healthy file");
            disk.flush().await.expect("a healthy file");
        };
        let (mut first, mut second) = (pin!(write(&disks[0])), pin!(write(&disks[1])));
        let (mut first_done, mut second_done) = (false, false);
        poll_fn(|context| {
            first_done = first_done || first.as_mut().poll(context).is_ready();
            second_done = second_done || second.as_mut().poll(context).is_ready();
            if first_done && second_done { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        written += 1;
    }
    written as f64 / seam.now().since(start).as_secs_f64()
}

fn main() {
    let folder = match std::env::args().nth(1) {
        Some(folder) => tempfile::tempdir_in(folder),
        None => tempfile::tempdir(),
    };
    let folder = folder.expect("a temporary directory");
    let path = |name| DiskOpen {
        path: folder.path().join(name),
        create_bytes: Some(FILE_BYTES),
        read_only: false,
        lock_wait_ms: 0,
    };
    let (log_files, bare_files) = ([path("log-0"), path("log-1")], [path("bare-0"), path("bare-1")]);
    let run = run_core(RealCoreSpec::new(64 << 20), |seam| async move {
        let mut disks = Vec::new();
        for options in log_files.iter().chain(&bare_files) {
            let disk = seam.open_disk(options).await.expect("a new file");
            // Write the files once, so that neither side pays for the file system's allocation.
            for at in (0..FILE_BYTES).step_by(1 << 20) {
                let blocks = (0..256).map(|_| Piece::whole(seam.zero_block())).collect();
                disk.write(at, blocks).await.expect("room for four files");
            }
            disk.flush().await.expect("a healthy file");
            disks.push(disk);
        }
        let bare_disks = disks.split_off(2);
        let disks: Vec<_> = disks.into_iter().map(MemberDisk::Local).collect();
        Store::format(&seam, &disks, FormatOptions::default()).await.expect("empty files");
        let (store, _) = Store::open(&seam, &disks, OpenOptions::default()).await.expect("a new store");
        let mut rates = Vec::new();
        for _ in 0..ROUNDS {
            rates.push((measure_log(&seam, &store).await, measure_bare(&seam, &bare_disks).await));
        }
        rates
    });
    let rates = run.expect("io_uring is allowed here");
    for (log, bare) in &rates {
        println!("log {log:>8.0}  bare {bare:>8.0}  ratio {:.2}", log / bare);
    }
    let mut ratios: Vec<_> = rates.iter().map(|(log, bare)| log / bare).collect();
    ratios.sort_by(f64::total_cmp);
    println!("median ratio {:.2}", ratios[ROUNDS / 2]);
}
