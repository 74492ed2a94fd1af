//! Moves under load: clients wait for the last pass alone, the pace decides about every copy, and the content is right.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use pool::{
    Flow, GroupNo, LAST_PASS_BLOCKS, MoveError, MoveOutcome, OpenOptions, Pace, SliceAddress, SliceNo, TierPolicy,
    VolumeSpec, unpaced,
};
use seam::sim::{Rng, SimDiskSpec, SimSeam, Timing, World, WorldSpec};
use seam::{BlockMut, Disk, Nanos, Piece, Seam};

use crate::model::read_sectors;
use crate::world::{ALL, SimPool, disks};

/// Bytes of a large slice: its copy takes many requests.
const LARGE: u64 = 4 << 20;
const BLOCKS: u64 = LARGE / 4096;

/// A pool with slices of 4 MiB on disks that answer each request after 100 microseconds.
fn large_pool() -> (World, SimSeam) {
    let world = World::new(WorldSpec { time_max: Nanos::from_secs(3600), ..WorldSpec::new(1) });
    for name in &ALL[..3] {
        let timing = Timing::between(Nanos::from_micros(100), Nanos::from_micros(100));
        world.add_disk(name, SimDiskSpec { timing, ..SimDiskSpec::new((4 << 20) + 8 * LARGE) });
    }
    let seam = world.seam();
    (world, seam)
}

async fn open_large(seam: &SimSeam) -> SimPool {
    let disks = disks(seam, &ALL[..3]).await;
    let tiers = [
        pool::TierSpec { name: "fast".to_owned(), disks: disks[..2].to_vec() },
        pool::TierSpec { name: "slow".to_owned(), disks: disks[2..].to_vec() },
    ];
    SimPool::create(seam, &tiers, pool::CreateOptions::default()).await.expect("empty disks become a pool");
    SimPool::open(seam, &disks, OpenOptions::default()).await.expect("the pool opens")
}

/// A writer of random blocks of one slice, until `ends`. Notes its longest write.
async fn write_blocks(
    seam: SimSeam,
    disk: pool::PoolDisk<SimSeam, seam::sim::SimDisk>,
    tags: Rc<RefCell<Vec<u64>>>,
    ends: Rc<Cell<bool>>,
    longest: Rc<Cell<Nanos>>,
    pause: Nanos,
) {
    let rng = Rng::new(5, 5);
    let mut tag = 1_000;
    while !ends.get() {
        let index = rng.below(BLOCKS);
        tag += 1;
        let mut block = seam.alloc().expect("a buffer is free");
        (0..8).for_each(|sector| block.set_tag(sector, tag));
        let start = seam.now();
        disk.write(index * 4096, vec![Piece::whole(block.freeze())]).await.expect("sound disks");
        longest.set(longest.get().max(seam.now().since(start)));
        tags.borrow_mut()[index as usize] = tag;
        seam.sleep(pause).await;
    }
}

/// Moves a slice under a writer that pauses for `pause`. Returns the outcome, the longest write, and the pool's
/// counters.
fn move_under_writes(pause: Nanos) -> (Result<MoveOutcome, MoveError>, Nanos, pool::PoolCounts) {
    let (world, seam) = large_pool();
    world.block_on(async {
        let pool = open_large(&seam).await;
        let spec = VolumeSpec { policy: TierPolicy::Highest, ..VolumeSpec::thin("a", LARGE) };
        let id = pool.create_volume(spec).await.expect("the volume is created");
        let disk = pool.volume(id).expect("the volume exists");
        disk.reserve(0, LARGE).await.expect("room");
        let tags = Rc::new(RefCell::new(vec![0; BLOCKS as usize]));
        let (ends, longest) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(Nanos::ZERO)));
        let (written, stop, noted) = (Rc::clone(&tags), Rc::clone(&ends), Rc::clone(&longest));
        seam.spawn(write_blocks(seam.clone(), disk.clone(), written, stop, noted, pause));
        let slice = SliceAddress { volume: id, slice: SliceNo(0) };
        let outcome = pool.move_slice(slice, GroupNo(2), unpaced()).await;
        seam.sleep(Nanos::from_millis(5)).await;
        ends.set(true);
        seam.sleep(Nanos::from_millis(5)).await;
        for index in 0..BLOCKS {
            let read = read_sectors(&seam, &disk, index * 8, 8).await.expect("sound disks");
            assert_eq!(read, [tags.borrow()[index as usize]; 8], "block {index}");
        }
        (outcome, longest.get(), pool.counts())
    })
}

#[test]
fn writes_during_a_move_are_kept_and_wait_only_for_the_last_pass() {
    let (outcome, longest, counts) = move_under_writes(Nanos::from_micros(300));
    assert_eq!((outcome, counts.moves), (Ok(MoveOutcome::Moved), 1));
    assert!(counts.blocks_copied_again > 0, "{counts:?}");
    // The last pass reads and writes each of its blocks, at most 100 microseconds each way, and a write is in flight.
    assert!(longest <= Nanos::from_micros(200 * u64::from(LAST_PASS_BLOCKS) + 200), "{longest}");
    println!("longest write {longest}, {counts:?}");
    assert!(longest < Nanos::from_millis(10), "{longest}");
}

#[test]
fn pace_decides_about_every_copy_and_sees_its_size() {
    let (world, seam) = large_pool();
    world.block_on(async {
        let pool = open_large(&seam).await;
        let spec = VolumeSpec { policy: TierPolicy::Highest, ..VolumeSpec::thin("a", LARGE) };
        let id = pool.create_volume(spec).await.expect("the volume is created");
        pool.volume(id).expect("the volume exists").reserve(0, LARGE).await.expect("room");
        let (bytes, clock) = (Rc::new(Cell::new(0)), seam.clone());
        let seen = Rc::clone(&bytes);
        let pace: Pace = Rc::new(move |request| {
            assert_eq!(request.target, GroupNo(2));
            seen.set(seen.get() + request.bytes);
            let clock = clock.clone();
            Box::pin(async move {
                clock.sleep(Nanos::from_millis(10)).await;
                Flow::Continue
            })
        });
        let start = seam.now();
        let slice = SliceAddress { volume: id, slice: SliceNo(0) };
        assert_eq!(pool.move_slice(slice, GroupNo(2), pace).await, Ok(MoveOutcome::Moved));
        assert_eq!(bytes.get(), LARGE);
        assert!(seam.now().since(start) >= Nanos::from_millis(160), "16 copies of 256 KiB, each after its pause");
    });
}

#[test]
fn freed_slice_ends_its_move_and_leaks_nothing() {
    let (world, seam) = large_pool();
    world.block_on(async {
        let pool = open_large(&seam).await;
        let id = pool.create_volume(VolumeSpec::thin("a", LARGE)).await.expect("the volume is created");
        let disk = pool.volume(id).expect("the volume exists");
        disk.reserve(0, LARGE).await.expect("room");
        let slice = SliceAddress { volume: id, slice: SliceNo(0) };
        let (mover, done) = (pool.clone(), Rc::new(RefCell::new(None)));
        let outcome = Rc::clone(&done);
        let target = GroupNo(if pool.group_of(slice) == Some(GroupNo(2)) { 0 } else { 2 });
        seam.spawn(async move {
            let moved = mover.move_slice(slice, target, unpaced()).await;
            *outcome.borrow_mut() = Some(moved);
        });
        seam.sleep(Nanos::from_micros(500)).await;
        disk.zero(0, LARGE, true).await.expect("sound disks");
        disk.flush().await.expect("sound disks");
        seam.sleep(Nanos::from_millis(50)).await;
        assert_eq!(*done.borrow(), Some(Ok(MoveOutcome::Unallocated)));
        pool.commit().await.expect("sound disks");
        assert!(pool.check_open().findings.is_empty(), "{:?}", pool.check_open());
        assert_eq!(pool.group_of(slice), None);
    });
}
