//! Benchmark of a start with very large devices, on two simulated SSDs. They hold `GIB` of pages, and `PERCENT` of that
//! as dirty data. The store is dropped without a close, as a kill leaves it, and opened again.
//!
//! `cargo run --release -p flash --example terabyte GIB [PERCENT]` prints the pages, the dirty blocks, and the times of
//! opening and of loading the map: of the devices (virtual time) and of this thread on a processor (other processes do
//! not count). A start takes at most their sum. The simulation of the devices is part of the latter.

use flash::{
    BlockAddress, BlockNo, Content, Epoch, FormatOptions, MemberDisk, OpenOptions, PageNo, PutError, Record, Store,
    VolumeId,
};
use seam::model::DiskType;
use seam::sim::{SimDiskSpec, SimSeam, Timing, World, WorldSpec, WriteCache};
use seam::{BlockMut, DiskOpen, Nanos, Seam};

/// Records of a batch.
const BATCH_RECORDS: u64 = 99;
const PAGE_BYTES: u64 = 64 << 10;

/// Appends this number of dirty blocks, in random order.
async fn fill_log(seam: &SimSeam, store: &Store<SimSeam>, blocks: u64) {
    let block = seam.alloc().expect("the pool has a free buffer").freeze();
    // The factor is prime, so no block repeats.
    let block_of = |number: u64| number * 2_654_435_761 % (2 * blocks - 1);
    for first in (0..blocks).step_by(BATCH_RECORDS as usize) {
        let record = |number| {
            let address = BlockAddress { volume_id: VolumeId(1), block: BlockNo(block_of(number)) };
            Record { address, epoch: Epoch(1), content: Content::Data(block.clone()) }
        };
        store
            .append((first..blocks.min(first + BATCH_RECORDS)).map(record).collect())
            .await
            .expect("room on the devices");
    }
}

/// Puts pages up to `target`, or until one is evicted. Returns the number of pages.
async fn fill_pages(seam: &SimSeam, store: &Store<SimSeam>, target: u64) -> u64 {
    let pages = store.pages();
    pages.load().await;
    let volume = pages.volume(VolumeId(1));
    let block = seam.alloc().expect("the pool has a free buffer").freeze();
    let mut page = 0;
    // One block per page: the map is as full as with all sixteen.
    while page < target && pages.stats().evictions == 0 {
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

/// Seconds that this thread ran on a processor.
#[expect(clippy::disallowed_methods, reason = "the kernel's scheduling statistics of this thread")]
fn processor_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().next().and_then(|nanos| nanos.parse::<f64>().ok()).unwrap_or_default() / 1e9
}

/// Virtual and processor seconds since `start`.
fn times(seam: &SimSeam, start: (Nanos, f64)) -> String {
    let (devices, processor) = (seam.now().since(start.0).as_secs_f64(), processor_seconds() - start.1);
    format!("{devices:.3} s of the devices and {processor:.3} s of a processor")
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: u64| arguments.next().and_then(|number| number.parse().ok()).unwrap_or(default);
    let (gib, percent) = (number(1_024), number(0));
    let (pages, dirty) = ((gib << 30) / PAGE_BYTES, (gib << 30) * percent / 100 / 4096);
    let content = seam::sim::StoredContent::MetadataOnly;
    let world = World::new(WorldSpec { content, time_max: Nanos::from_secs(1 << 30), ..WorldSpec::new(1) });
    let seam = world.seam();
    // Each device holds half of the pages, all dirty data, and a twentieth for metadata.
    let bytes = (((gib << 30) / 2 + dirty * 4096) / 20 * 21 + (2 << 30)).next_multiple_of(1 << 20);
    let ssd = seam::model::SsdSpec { capacity_bytes: bytes, ..DiskType::Ssd.ssd().expect("it is flash") };
    let disks: Vec<_> = ["flash-0", "flash-1"]
        .into_iter()
        .map(|name| {
            let timing = Timing::of_ssd(ssd);
            world.add_disk(name, SimDiskSpec { timing, cache: WriteCache::Through, ..SimDiskSpec::new(bytes) });
            let open = DiskOpen { path: name.into(), create_bytes: None, read_only: false, lock_wait_ms: 0 };
            MemberDisk::Local(world.block_on(seam.open_disk(&open)).expect("it is there"))
        })
        .collect();
    world.block_on(async {
        // A world without content cannot tell whether a device is empty.
        let format = FormatOptions { force: true, ..FormatOptions::default() };
        Store::format(&seam, &disks, format).await.expect("new devices");
        let (store, _) = Store::open(&seam, &disks, OpenOptions::default()).await.expect("a new store");
        if dirty > 0 {
            fill_log(&seam, &store, dirty).await;
        }
        let full = fill_pages(&seam, &store, pages).await;
        println!("{full} pages ({:.1} % of {gib} GiB), {dirty} dirty blocks", full as f64 * 100.0 / pages as f64);
        drop(store);
        let start = (seam.now(), processor_seconds());
        let (store, recovered) = Store::open(&seam, &disks, OpenOptions::default()).await.expect("the same store");
        println!("opened in {}: {} dirty blocks found", times(&seam, start), recovered.len());
        assert_eq!(recovered.len() as u64, dirty, "nothing dirty is lost");
        let start = (seam.now(), processor_seconds());
        let loaded = store.pages().load().await;
        println!("map read in {}: {loaded:?}", times(&seam, start));
        assert!(loaded.pages * 100 >= full * 95, "the map is warm");
        println!("{:.1} bytes of memory a page", store.pages().stats().memory_bytes as f64 / full as f64);
    });
}
