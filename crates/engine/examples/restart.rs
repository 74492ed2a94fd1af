//! Measures the start with a large log. Formats flash files, appends `GIB` of dirty blocks at random addresses of a
//! volume of twice that size, and drops the store without closing it, as after a kill. Then opens it again and attaches
//! the volume, which adopts the records.
//!
//! `cargo run --release -p engine --example restart GIB [BLOCKS [COPIES [FOLDER]]]`: `BLOCKS` (99) in a batch, in
//! `COPIES` (2) files. Takes `GIB` times `COPIES` of the folder's space, and a tenth more. Files in a named folder
//! stay, and the next run with the same arguments opens them again: a disk that has just taken many gigabytes may be
//! slow for a while.
//!
//! The time that the thread waits for a processor shows how much other programs disturb the measurement.

use engine::{Backing, Core, CoreSpec, VolumeSpec};
use flash::{BlockAddress, BlockNo, Content, Epoch, FormatOptions, MemberDisk, OpenOptions, Record, Store, VolumeId};
use seam::real::{RealCoreSpec, RealSeam, run_core};
use seam::{BlockMut, DiskOpen, Seam};

/// Number of openings.
const ROUNDS: usize = 3;

/// Appends `blocks` records in batches of `batch`. The block numbers are scattered, and none repeats.
async fn append_records(seam: &RealSeam, store: &Store<RealSeam>, blocks: u64, batch: u64) {
    let mut block = seam.alloc().expect("the pool has room");
    block.write_bytes(0, &[7; 4096]);
    let block = block.freeze();
    // The factor is a prime, so that no block number repeats.
    let scatter = |number: u64| number * 2_654_435_761 % (2 * blocks - 1);
    for first in (0..blocks).step_by(batch as usize) {
        let record = |number| {
            let address = BlockAddress { volume_id: VolumeId(1), block: BlockNo(scatter(number)) };
            Record { address, epoch: Epoch(1), content: Content::Data(block.clone()) }
        };
        store.append((first..blocks.min(first + batch)).map(record).collect()).await.expect("room in the files");
    }
}

/// Seconds since `start` as text: wall time, and this thread's time on a processor and waiting for one.
fn format_elapsed(seam: &RealSeam, start: (seam::Nanos, [f64; 2])) -> String {
    let wall = seam.now().since(start.0).as_secs_f64();
    let [running, waiting] = processor_times();
    format!("{wall:.3} s ({:.3} on a processor, {:.3} waiting for one)", running - start.1[0], waiting - start.1[1])
}

/// Seconds that this thread ran on a processor, and that it waited for one.
#[expect(clippy::disallowed_methods, reason = "the kernel's scheduling statistics of this thread")]
fn processor_times() -> [f64; 2] {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let mut nanos = text.split_whitespace().map(|number| number.parse::<f64>().unwrap_or_default() / 1e9);
    std::array::from_fn(|_| nanos.next().unwrap_or_default())
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut next_number = |default: u64| arguments.next().and_then(|number| number.parse().ok()).unwrap_or(default);
    let (gib, batch, copies) = (next_number(1), next_number(99), next_number(2));
    let named_folder = arguments.next().map(std::path::PathBuf::from);
    let temporary_folder = tempfile::tempdir().expect("a temporary directory");
    let folder = named_folder.as_deref().unwrap_or(temporary_folder.path());
    let is_filled = folder.join("flash-0").exists();
    let bytes = gib << 30;
    let disk_open = |name: String, bytes| DiskOpen {
        path: folder.join(name),
        create_bytes: Some(bytes),
        read_only: false,
        lock_wait_ms: 0,
    };
    let log_bytes = (bytes + bytes / batch + bytes / 32 + (1 << 30)).next_multiple_of(1 << 20);
    let files: Vec<_> = (0..copies).map(|copy| disk_open(format!("flash-{copy}"), log_bytes)).collect();
    let backing = disk_open("backing".to_owned(), 2 * bytes);
    let run = run_core(RealCoreSpec::new(64 << 20), |seam| async move {
        let mut disks = Vec::new();
        for file in &files {
            disks.push(MemberDisk::Local(seam.open_disk(file).await.expect("a file of this size, or none")));
        }
        if !is_filled {
            Store::format(&seam, &disks, FormatOptions::default()).await.expect("empty files");
            let (store, _) = Store::open(&seam, &disks, OpenOptions::default()).await.expect("a new store");
            let start = (seam.now(), processor_times());
            append_records(&seam, &store, bytes / 4096, batch).await;
            println!("{gib} GiB in batches of {batch}: {}", format_elapsed(&seam, start));
        }
        let mut last = None;
        for round in 1..=ROUNDS {
            drop(last.take());
            let start = (seam.now(), processor_times());
            let (store, recovered) = Store::open(&seam, &disks, OpenOptions::default()).await.expect("the same store");
            println!("round {round}: opened in {}", format_elapsed(&seam, start));
            last = Some((store, recovered));
        }
        let (store, recovered) = last.expect("at least one round");
        let backing = Backing::plain(seam.open_disk(&backing).await.expect("a new file"));
        let (start, records) = ((seam.now(), processor_times()), recovered.len());
        let core = Core::new(seam.clone(), CoreSpec::default());
        core.open_log(store, recovered);
        let volume = core.attach_recovered(VolumeSpec::new("volume", VolumeId(1)), backing).await;
        let elapsed = format_elapsed(&seam, start);
        let stats = volume.expect("a backing as large as the volume was").stats();
        assert_eq!(stats.spilled_bytes, records as u64 * 4096, "all blocks are spilled");
        println!("{records} records taken over in {elapsed}");
    });
    run.expect("io_uring is allowed here");
}
