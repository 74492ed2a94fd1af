//! Benchmark of loading a full map. Two sparse files are formatted, and pages are put until no slot is left; their data
//! costs only time. The store is dropped without a close, as a kill leaves it, and opened again.
//!
//! `cargo run --release -p flash --example mapload GIB [FOLDER]` prints the pages, the bytes of the journal, and the
//! times.

use flash::{FormatOptions, MemberDisk, OpenOptions, PageNo, PutError, Store, VolumeId};
use seam::real::{RealCoreSpec, RealSeam, run_core};
use seam::{BlockMut, DiskOpen, Nanos, Seam};

/// Puts pages until one is evicted. Returns the number of pages.
async fn fill(seam: &RealSeam, store: &Store<RealSeam>) -> u64 {
    let pages = store.pages();
    pages.load().await;
    let volume = pages.volume(VolumeId(1));
    let mut block = seam.alloc().expect("the pool has a free buffer");
    block.write_bytes(0, &[7; 4096]);
    let block = block.freeze();
    let mut page = 0;
    // One block per page: the map is as full as with all sixteen.
    while pages.stats().evictions == 0 {
        for _ in 0..1_000 {
            match volume.put(PageNo(page), vec![(0, block.clone())]).await {
                Ok(_) => page += 1,
                Err(PutError::DeviceFailed(error)) => panic!("{error}"),
                Err(_) => seam.sleep(Nanos::from_millis(1)).await,
            }
        }
    }
    seam.sleep(Nanos::from_secs(3)).await;
    pages.stats().pages
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let gib: u64 = arguments.next().and_then(|gib| gib.parse().ok()).unwrap_or(16);
    let folder = match arguments.next() {
        Some(folder) => tempfile::tempdir_in(folder),
        None => tempfile::tempdir(),
    };
    let folder = folder.expect("a temporary directory");
    let path = |name: &str| DiskOpen {
        path: folder.path().join(name),
        create_bytes: Some(gib << 30),
        read_only: false,
        lock_wait_ms: 0,
    };
    let files = [path("flash-0"), path("flash-1")];
    let run = run_core(RealCoreSpec::new(64 << 20), |seam| async move {
        let mut disks = Vec::new();
        for file in &files {
            disks.push(MemberDisk::Local(seam.open_disk(file).await.expect("a new file")));
        }
        Store::format(&seam, &disks, FormatOptions::default()).await.expect("empty files");
        let (store, _) = Store::open(&seam, &disks, OpenOptions::default()).await.expect("a new store");
        let start = seam.now();
        let full = fill(&seam, &store).await;
        let filled = seam.now().since(start);
        let journal: u64 = store.pages().stats().members.iter().map(|member| member.journal_bytes).sum();
        let memory = store.pages().stats().memory_bytes;
        println!("{full} pages in {:.1} s, {} KiB of journal written", filled.as_secs_f64(), journal >> 10);
        println!("{:.1} bytes of memory a page", memory as f64 / full as f64);
        drop(store);
        let start = seam.now();
        let (store, _) = Store::open(&seam, &disks, OpenOptions::default()).await.expect("the same store");
        let opened = seam.now().since(start);
        let start = seam.now();
        let loaded = store.pages().load().await;
        let read = seam.now().since(start);
        println!("opened in {:.3} s, map read in {:.3} s: {loaded:?}", opened.as_secs_f64(), read.as_secs_f64());
        assert!(loaded.pages * 100 >= full * 95, "the map is warm");
    });
    run.expect("io_uring is allowed here");
}
