//! Named cases: what a clone gets from the cache of its master, and what it must not get.

use std::rc::Rc;

use engine::spec::Sabotage;
use engine::{AdmissionRule, ByteOffset, CacheMode, CoreSpec, Volume, WriteFlags, WritePolicy};
use lab::fixture::{Target, read, write};
use lab::workload::{Load, Pattern, run_load};
use pool::{GroupNo, MoveOutcome, SliceAddress, SliceNo, unpaced};
use seam::sim::SimSeam;
use seam::{Nanos, Seam};

use super::{BLOCK_SECTORS, Family, SLICE_BLOCKS, SLICE_BYTES, Work};

/// Slices of the master, all of them written.
const SLICES: u64 = 8;
const BLOCKS: u64 = SLICES * SLICE_BLOCKS;
const BYTES: u64 = SLICES * SLICE_BYTES;
/// Blocks of one request.
const RUN: u64 = 8;
/// Blocks of memory that holds all volumes, and of memory that holds a small part of one.
const LARGE: usize = 8_192;
const SMALL: usize = 192;

fn core() -> CoreSpec {
    CoreSpec { readahead_max_bytes: 0, admission: AdmissionRule::ThirdTouch, ..CoreSpec::default() }
}

/// A family whose master has all blocks written, each with the tag 1,000 plus its number, and has a snapshot of that.
fn with_master(core: CoreSpec, blocks: usize) -> (Family, Volume<SimSeam>, pool::VolumeId) {
    let family = Family::new(1, core, blocks, SLICES);
    let (master, snapshot) = family.run(async {
        let master = family.attach("master").await;
        for block in 0..BLOCKS {
            write(&master, block * BLOCK_SECTORS, BLOCK_SECTORS, 1_000 + block).await.expect("the pool has room");
        }
        let snapshot = family.snapshot(&master, "s").await;
        (master, snapshot)
    });
    (family, master, snapshot)
}

/// Reads a block.
async fn tag_of(volume: &Volume<SimSeam>, block: u64) -> u64 {
    read(volume, block * BLOCK_SECTORS, 1).await.expect("sound disks")[0]
}

/// Reads all blocks and checks that they have the tags of the snapshot.
async fn assert_is_snapshot(volume: &Volume<SimSeam>, when: &str) {
    for first in (0..BLOCKS).step_by(RUN as usize) {
        let tags = read(volume, first * BLOCK_SECTORS, RUN * BLOCK_SECTORS).await.expect("sound disks");
        let expected: Vec<u64> =
            (0..RUN * BLOCK_SECTORS).map(|sector| 1_000 + first + sector / BLOCK_SECTORS).collect();
        assert_eq!(tags, expected, "block {first} of {} {when}", volume.name());
    }
}

/// Bytes that clients of a volume have read from its backing.
fn backing_bytes(volume: &Volume<SimSeam>) -> u64 {
    volume.stats().source_bytes.backing
}

#[test]
fn clones_read_the_memory_of_their_master_without_a_copy() {
    let (family, master, snapshot) = with_master(core(), LARGE);
    family.run(async {
        let held = master.stats().memory_bytes;
        for name in ["c1", "c2", "c3"] {
            let clone = family.clone_of(snapshot, name).await;
            assert_is_snapshot(&clone, "from its master").await;
            let stats = clone.stats();
            assert_eq!((stats.source_bytes.backing, stats.misses, stats.partial_hits), (0, 0, 0));
            assert_eq!((stats.sibling_read_bytes, stats.source_bytes.memory, stats.memory_bytes), (BYTES, BYTES, 0));
        }
        let stats = master.stats();
        assert_eq!((stats.memory_bytes, stats.sibling_read_bytes), (held, 0));
    });
}

#[test]
fn master_reads_what_a_clone_has_read_before() {
    let (family, master, snapshot) = with_master(core(), LARGE);
    family.run(async {
        family.fixture.core.detach("master").await.expect("sound disks");
        drop(master);
        let clone = family.clone_of(snapshot, "c1").await;
        assert_is_snapshot(&clone, "from the pool").await;
        let stats = clone.stats();
        assert_eq!((stats.sibling_read_bytes, stats.source_bytes.backing, stats.memory_bytes), (0, BYTES, BYTES));
        let master = family.attach("master").await;
        assert_is_snapshot(&master, "from its clone").await;
        assert_eq!((master.stats().sibling_read_bytes, master.stats().memory_bytes), (BYTES, 0));
    });
}

/// Overwrites block 5 of each slice of a volume with the tag 7.
async fn overwrite(volume: &Volume<SimSeam>) {
    for slice in 0..SLICES {
        let block = slice * SLICE_BLOCKS + 5;
        write(volume, block * BLOCK_SECTORS, BLOCK_SECTORS, 7).await.expect("the pool has room");
    }
}

async fn assert_overwritten(volume: &Volume<SimSeam>, when: &str) {
    for slice in 0..SLICES {
        assert_eq!(tag_of(volume, slice * SLICE_BLOCKS + 5).await, 7, "slice {slice} of {} {when}", volume.name());
        assert_eq!(tag_of(volume, slice * SLICE_BLOCKS + 6).await, 1_006 + slice * SLICE_BLOCKS, "{when}");
    }
}

#[test]
fn clone_keeps_the_snapshot_s_content_beside_overwrites_of_its_master() {
    for blocks in [LARGE, SMALL] {
        let (family, master, snapshot) = with_master(core(), blocks);
        family.run(async {
            let [c1, c2] = [family.clone_of(snapshot, "c1").await, family.clone_of(snapshot, "c2").await];
            overwrite(&master).await;
            assert_is_snapshot(&c1, "beside dirty data").await;
            master.flush().await.expect("the log has room");
            assert_is_snapshot(&c2, "beside logged data").await;
            master.destage_all().await.expect("the pool has room");
            for clone in [&c1, &c2] {
                clone.invalidate();
                assert_is_snapshot(clone, "beside destaged data").await;
            }
            assert_overwritten(&master, "after the destage").await;
            overwrite(&c1).await;
            for when in ["in memory", "in the log", "on the pool"] {
                assert_overwritten(&c1, when).await;
                assert_is_snapshot(&c2, when).await;
                match when {
                    "in memory" => c1.flush().await.expect("the log has room"),
                    _ => c1.destage_all().await.expect("the pool has room"),
                }
                c2.invalidate();
            }
        });
    }
}

#[test]
fn discarded_slices_of_a_master_stay_in_its_clones() {
    let (family, master, snapshot) = with_master(core(), LARGE);
    family.run(async {
        let clone = family.clone_of(snapshot, "c1").await;
        master.discard(ByteOffset(0), BYTES / 2, WriteFlags::default()).await.expect("a discard needs no space");
        assert_is_snapshot(&clone, "beside the discard").await;
        master.destage_all().await.expect("a discard needs no space");
        clone.invalidate();
        assert_is_snapshot(&clone, "after the discard").await;
        assert_eq!(tag_of(&master, 0).await, 0);
        let later = family.clone_of(snapshot, "c2").await;
        assert_is_snapshot(&later, "from the other clone").await;
        assert_eq!(backing_bytes(&later), 0);
    });
}

#[test]
fn roll_back_of_a_master_and_its_deletion_leave_the_clones_whole() {
    let (family, master, snapshot) = with_master(core(), LARGE);
    family.run(async {
        let clone = family.clone_of(snapshot, "c1").await;
        overwrite(&master).await;
        master.destage_all().await.expect("the pool has room");
        let newer = family.snapshot(&master, "newer").await;
        let overwritten = family.clone_of(newer, "c2").await;
        assert_overwritten(&overwritten, "from its master").await;
        let master = family.roll_back(master, snapshot).await;
        assert_is_snapshot(&clone, "after the roll back").await;
        assert_is_snapshot(&master, "after the roll back").await;
        assert_overwritten(&overwritten, "after the roll back").await;
        assert_eq!(backing_bytes(&master), 0, "the clone had read all of it");
        drop(master);
        family.pool.delete_snapshot(newer).await.expect("sound disks");
        family.pool.delete_snapshot(snapshot).await.expect("sound disks");
        family.delete("master").await;
        for clone in [&clone, &overwritten] {
            clone.invalidate();
        }
        assert_is_snapshot(&clone, "without its master").await;
        assert_overwritten(&overwritten, "without its master").await;
        family.delete("c1").await;
        overwritten.invalidate();
        assert_overwritten(&overwritten, "alone").await;
        assert_eq!(family.pool.check_open().findings, []);
    });
}

#[test]
fn moved_slices_stay_shared() {
    let (family, _master, snapshot) = with_master(core(), LARGE);
    family.run(async {
        let clone = family.clone_of(snapshot, "c1").await;
        let volume = family.pool.volume_named("c1").expect("it exists");
        for slice in (0..SLICES as u32).map(SliceNo) {
            let slice = SliceAddress { volume, slice };
            let target = GroupNo(1 - family.pool.group_of(slice).expect("it is allocated").0);
            let moved = family.pool.move_slice(slice, target, unpaced()).await.expect("the target has room");
            assert_eq!(moved, MoveOutcome::Moved);
        }
        assert_is_snapshot(&clone, "after the moves").await;
        assert_eq!(backing_bytes(&clone), 0);
    });
}

#[test]
fn clones_respect_the_policies_of_both_volumes() {
    let (family, master, snapshot) = with_master(core(), LARGE);
    family.run(async {
        let clone = family.clone_of(snapshot, "c1").await;
        clone.set_mode(CacheMode::Paused).await.expect("sound disks");
        assert_is_snapshot(&clone, "paused").await;
        clone.set_mode(CacheMode::Active).await.expect("sound disks");
        let uncached = family.pool.clone_snapshot(snapshot, "c2").await.map(|_| "c2").expect("the name is free");
        let uncached = family.attach_with(uncached, |spec| spec.policy = WritePolicy::None).await;
        assert_is_snapshot(&uncached, "without a cache").await;
        master.set_mode(CacheMode::Paused).await.expect("sound disks");
        assert_is_snapshot(&clone, "beside a paused master").await;
        assert_eq!([&clone, &uncached].map(|volume| volume.stats().sibling_read_bytes), [0, 0]);
        assert_eq!([&clone, &uncached].map(backing_bytes), [2 * BYTES, BYTES]);
    });
}

#[test]
fn readahead_of_a_clone_brings_no_second_copy() {
    let core = CoreSpec { readahead_max_bytes: 1 << 20, ..core() };
    let (family, _master, snapshot) = with_master(core, LARGE);
    family.run(async {
        let clone = family.clone_of(snapshot, "c1").await;
        assert_is_snapshot(&clone, "in order").await;
        let stats = clone.stats();
        assert_eq!((stats.sibling_read_bytes, stats.readahead_bytes, stats.memory_bytes), (BYTES, 0, 0));
    });
}

/// Reads all of a volume at random until memory and flash serve all of it.
fn warm_flash(family: &Family, volume: &Volume<SimSeam>) {
    let load =
        |seed| Load { pattern: Pattern::random(BYTES, 4096, 100), depth: 4, time: Nanos::from_millis(400), seed };
    for round in 0..20 {
        family.run(run_load(&family.fixture.seam, &Target::Volume(volume.clone()), &load(round)));
        family.fixture.world.run_for(Nanos::from_secs(2)).expect("no task is stuck");
        let before = volume.stats().backing_reads;
        family.run(run_load(&family.fixture.seam, &Target::Volume(volume.clone()), &load(1_000 + round)));
        if volume.stats().backing_reads == before {
            return;
        }
    }
    panic!("not all of the volume is on flash: {:?}", volume.stats());
}

#[test]
fn clones_read_the_flash_of_their_master_without_a_copy() {
    let (family, master, snapshot) = with_master(core(), SMALL);
    warm_flash(&family, &master);
    family.run(async {
        for name in ["c1", "c2"] {
            let clone = family.clone_of(snapshot, name).await;
            for _ in 0..3 {
                assert_is_snapshot(&clone, "from the master's flash").await;
            }
            let stats = clone.stats();
            assert_eq!((stats.source_bytes.backing, stats.flash.page_count, stats.memory_bytes), (0, 0, 0));
            assert_eq!(stats.sibling_read_bytes, 3 * BYTES);
            assert!(stats.source_bytes.flash > BYTES && stats.flash_hits > 0, "{stats:?}");
        }
        assert!(master.stats().flash.read_bytes > 0);
    });
}

#[test]
fn clones_read_kept_records_of_their_master() {
    let family = Family::new(1, core(), SMALL, SLICES);
    family.run(async {
        let master = family.attach("master").await;
        for block in 0..BLOCKS {
            write(&master, block * BLOCK_SECTORS, BLOCK_SECTORS, 1_000 + block).await.expect("the pool has room");
            if block % 16 == 15 {
                master.flush().await.expect("the log has room");
            }
        }
        master.destage_all().await.expect("the pool has room");
        let snapshot = family.snapshot(&master, "s").await;
        let clone = family.clone_of(snapshot, "c1").await;
        let before = master.stats().flash.kept_read_bytes;
        assert_is_snapshot(&clone, "from the log").await;
        assert!(master.stats().flash.kept_read_bytes > before, "{:?}", master.stats());
        assert!(clone.stats().sibling_read_bytes > BYTES / 2, "{:?}", clone.stats());
    });
}

#[test]
fn storm_of_clones_reads_each_block_about_once() {
    let (family, master, snapshot) = with_master(core(), LARGE);
    family.run(async {
        family.fixture.core.detach("master").await.expect("sound disks");
        drop(master);
        let mut clones = Vec::new();
        for number in 0..24 {
            clones.push(family.clone_of(snapshot, &format!("c{number}")).await);
        }
        let boot = |number: usize, clone: Volume<SimSeam>| -> Work {
            Box::pin(async move {
                for step in 0..BLOCKS / RUN {
                    // Each clone starts at another place.
                    let first = (step + number as u64 * 5) * RUN % BLOCKS;
                    let tags = read(&clone, first * BLOCK_SECTORS, RUN * BLOCK_SECTORS).await.expect("sound disks");
                    assert_eq!(tags[0], 1_000 + first);
                }
            })
        };
        family.at_once(clones.iter().cloned().enumerate().map(|(number, clone)| boot(number, clone)).collect()).await;
        let held: u64 = clones.iter().map(|clone| clone.stats().memory_bytes).sum();
        let read_bytes: u64 = clones.iter().map(|clone| clone.stats().backing_read_bytes).sum();
        assert!(
            held <= BYTES * 5 / 4 && read_bytes <= BYTES * 5 / 4,
            "{held} held, {read_bytes} read of {BYTES} bytes"
        );
    });
}

#[test]
fn write_of_a_master_during_a_read_of_its_flash_stays_its_own() {
    let (family, master, snapshot) = with_master(core(), SMALL);
    warm_flash(&family, &master);
    family.run(async {
        let clone = Rc::new(family.clone_of(snapshot, "c1").await);
        for round in 0..60 {
            let first = round * 7 % (BLOCKS / RUN) * RUN;
            let (reading, writing, seam) = (Rc::clone(&clone), master.clone(), family.fixture.seam.clone());
            let reads: Work = Box::pin(async move {
                let tags = read(&reading, first * BLOCK_SECTORS, RUN * BLOCK_SECTORS).await.expect("sound disks");
                assert_eq!((tags[0], tags[63]), (1_000 + first, 1_007 + first), "round {round}");
            });
            let writes: Work = Box::pin(async move {
                seam.sleep(Nanos::from_micros(round * 5)).await;
                write(&writing, first * BLOCK_SECTORS, RUN * BLOCK_SECTORS, 9).await.expect("the pool has room");
                writing.destage_all().await.expect("the pool has room");
            });
            family.at_once(vec![reads, writes]).await;
        }
    });
}

#[test]
fn dirty_block_that_is_served_to_a_clone_is_noticed() {
    let served = |sabotage| {
        let (family, master, _) = with_master(CoreSpec { sabotage, ..core() }, LARGE);
        family.run(async {
            // The slice is the master's own before its write, and shared again by a snapshot that no cache knows of.
            let volume = family.pool.volume_named("master").expect("it exists");
            write(&master, 5 * BLOCK_SECTORS, BLOCK_SECTORS, 7).await.expect("the pool has room");
            let newer = family.pool.create_snapshot(volume, "newer", 0).await.expect("sound disks");
            let clone = family.clone_of(newer, "c1").await;
            assert_eq!(tag_of(&clone, 6).await, 1_006);
            tag_of(&clone, 5).await
        })
    };
    assert_eq!(served(Sabotage::None), 1_005);
    assert_eq!(served(Sabotage::ShareDirtyBlock), 7, "the case cannot fail");
}

#[test]
fn content_that_is_served_without_its_key_is_noticed() {
    let served = |sabotage| {
        let (family, master, snapshot) = with_master(CoreSpec { sabotage, ..core() }, LARGE);
        family.run(async {
            let clone = family.clone_of(snapshot, "c1").await;
            overwrite(&master).await;
            // The master's new slices are shared, too, but not with the first clone.
            let newer = family.snapshot(&master, "newer").await;
            let _other = family.clone_of(newer, "c2").await;
            tag_of(&clone, 5).await
        })
    };
    assert_eq!(served(Sabotage::None), 1_005);
    assert_eq!(served(Sabotage::ShareOtherContent), 7, "the case cannot fail");
}
