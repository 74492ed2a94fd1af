//! Volumes on a pool: an acknowledged write has its place, also in a pool that fills up, beside discards, and after a
//! crash.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use engine::spec::Sabotage;
use engine::{Backing, ByteOffset, CoreSpec, RequestError, Volume, VolumeId, VolumeSpec, WriteFlags};
use lab::fixture::{Fixture, out_of_order_disk, read, write};
use lab::torture::flash::FlashOptions;
use pool::{CreateOptions, OpenOptions, Pool, TierSpec, VolumeSpec as PoolVolumeSpec};
use seam::sim::{CrashMode, Fault, Ops, Rule, SimDisk, SimSeam, When, WorldSpec};
use seam::{DiskError, Nanos, Seam};

const MIB: u64 = 1 << 20;
const SLICE_BYTES: u64 = 256 << 10;
const SLICE_SECTORS: u64 = SLICE_BYTES / 512;
/// Slices of each volume: together three times those of the pool.
const VOLUME_SLICES: u64 = 96;
/// Slices of the first volume that are discarded.
const SLICES_IN_USE: u64 = 12;
const NAMES: [&str; 2] = ["first", "second"];

type SimPool = Pool<SimSeam, SimDisk>;

fn world(seed: u64) -> WorldSpec {
    WorldSpec { blocks: 8_192, time_max: Nanos::from_secs(100_000), ..WorldSpec::new(seed) }
}

fn log() -> FlashOptions {
    FlashOptions::plain(2, MIB, 32)
}

/// A world with a pool of about 64 slices on two tiers, and a flash log.
fn with_pool(seed: u64, sabotage: Sabotage) -> Fixture {
    let fixture = Fixture::new(world(seed), CoreSpec { sabotage, ..CoreSpec::default() });
    for (name, mib) in [("ssd", 10), ("hdd", 10)] {
        fixture.add_disk(name, out_of_order_disk(mib * MIB));
    }
    log().add_disks(&fixture.world);
    let tier = |name: &str| TierSpec { name: name.to_owned(), disks: vec![fixture.open(name)] };
    let tiers = [tier("ssd"), tier("hdd")];
    fixture.world.block_on(async {
        let options = CreateOptions { slice_bytes: SLICE_BYTES, ..CreateOptions::default() };
        SimPool::create(&fixture.seam, &tiers, options).await.expect("the disks are empty");
        let pool = open_pool(&fixture, &tiers.map(|tier| tier.disks[0].clone())).await;
        for name in NAMES {
            let spec = PoolVolumeSpec::thin(name, VOLUME_SLICES * SLICE_BYTES);
            pool.create_volume(spec).await.expect("the name is free");
        }
        pool.commit().await.expect("the disks are healthy");
    });
    fixture
}

async fn open_pool(fixture: &Fixture, disks: &[SimDisk]) -> SimPool {
    SimPool::open(&fixture.seam, disks, OpenOptions::default()).await.expect("the metadata is whole")
}

/// Opens the pool and the log, and serves both volumes.
fn serve(fixture: &Fixture, is_first: bool) -> (SimPool, [Volume<SimSeam>; 2]) {
    let disks = ["ssd", "hdd"].map(|name| fixture.open(name));
    fixture.world.block_on(async {
        let pool = open_pool(fixture, &disks).await;
        log().open(&fixture.seam, &fixture.core, is_first, false).await.expect("the devices are intact");
        let mut volumes = Vec::new();
        for (id, name) in (1..).zip(NAMES) {
            let disk = pool.volume(pool.volume_named(name).expect("it was created")).expect("it was created");
            let spec = VolumeSpec::new(name, VolumeId(id));
            volumes.push(fixture.core.attach_recovered(spec, Backing::pool(disk)).await.expect("the log is intact"));
        }
        (pool, volumes.try_into().unwrap_or_else(|_| unreachable!("two volumes")))
    })
}

/// Writes one block to each slice in turn until the pool is full. Returns the written slices.
async fn fill(volume: &Volume<SimSeam>, tag: u64) -> Vec<u64> {
    let mut written = Vec::new();
    for slice in 0..VOLUME_SLICES {
        match write(volume, slice * SLICE_SECTORS + 8, 8, tag + slice).await {
            Ok(()) => written.push(slice),
            Err(error) => assert_eq!(error, RequestError::Disk(DiskError::NoSpace)),
        }
    }
    written
}

#[test]
fn acknowledged_writes_have_their_place_in_a_pool_that_fills_up() {
    let fixture = with_pool(1, Sabotage::None);
    let (pool, [first, second]) = serve(&fixture, true);
    let slots: u64 = pool.groups().iter().map(|group| u64::from(group.slots)).sum();
    let written = fixture.world.block_on(async {
        let written = [fill(&first, 1_000).await, fill(&second, 2_000).await];
        let counts = [written[0].len() as u64, written[1].len() as u64];
        assert_eq!(counts.iter().sum::<u64>(), slots, "every slot is used, and no write more is acknowledged");
        // An overwrite needs no space.
        write(&first, written[0][0] * SLICE_SECTORS + 64, 8, 77).await.expect("its slice is allocated");
        first.flush().await.expect("the log has room");
        second.flush().await.expect("the log has room");
        written
    });
    drop((pool, first, second));
    let fixture = fixture.crash(CrashMode::LoseAll, world(2));
    let (pool, [first, second]) = serve(&fixture, false);
    fixture.world.block_on(async {
        first.destage_all().await.expect("every block has its slice");
        second.destage_all().await.expect("every block has its slice");
        for (volume, (written, tag)) in [&first, &second].into_iter().zip(written.iter().zip([1_000, 2_000])) {
            for slice in written {
                assert_eq!(read(volume, slice * SLICE_SECTORS + 8, 1).await, Ok(vec![tag + slice]));
            }
        }
        assert_eq!(read(&first, written[0][0] * SLICE_SECTORS + 64, 1).await, Ok(vec![77]));
    });
    assert_eq!(pool.check_open().findings, []);
}

/// In a full pool, discards slices of the first volume and writes to them, while the second one takes every free slot.
/// Fails if an acknowledged write has no place.
fn discards_beside_writes(seed: u64, sabotage: Sabotage) -> Result<(), String> {
    let fixture = with_pool(seed, sabotage);
    let (pool, [first, second]) = serve(&fixture, true);
    let is_contended = Rc::new(Cell::new(false));
    // Discards are on their way to the pool at any moment, and freed slots are taken at once.
    let (flag, seam, destaging) = (Rc::clone(&is_contended), fixture.seam.clone(), first.clone());
    fixture.seam.spawn(async move {
        loop {
            seam.sleep(Nanos::from_micros(50)).await;
            if flag.get() {
                // A failure shows at the end of a round.
                let _ = destaging.destage_all().await;
            }
        }
    });
    let (flag, seam, greedy) = (Rc::clone(&is_contended), fixture.seam.clone(), second.clone());
    fixture.seam.spawn(async move {
        loop {
            seam.sleep(Nanos::from_micros(20)).await;
            if flag.get() {
                fill(&greedy, 5_000).await;
            }
        }
    });
    let discard = |volume: &Volume<SimSeam>, slice: u64, slices: u64| {
        let volume = volume.clone();
        async move {
            let (at, len) = (ByteOffset(slice * SLICE_BYTES), slices * SLICE_BYTES);
            volume.discard(at, len, WriteFlags::default()).await.expect("a discard needs no space");
        }
    };
    fixture.world.block_on(async {
        for round in 0..10 {
            discard(&second, 0, VOLUME_SLICES).await;
            second.destage_all().await.map_err(|error| format!("an acknowledged write has no place: {error}"))?;
            for slice in 0..SLICES_IN_USE {
                write(&first, slice * SLICE_SECTORS, 8, 1).await.map_err(|error| error.to_string())?;
            }
            first.destage_all().await.map_err(|error| format!("an acknowledged write has no place: {error}"))?;
            is_contended.set(true);
            fill(&second, 5_000).await;
            let mut acknowledged: BTreeMap<u64, u64> = BTreeMap::new();
            for slice in 0..SLICES_IN_USE {
                discard(&first, slice, 1).await;
                fixture.seam.sleep(Nanos::from_micros(97 * (round * SLICES_IN_USE + slice) % 3_000)).await;
                let tag = round * 100 + slice + 2;
                if write(&first, slice * SLICE_SECTORS, 8, tag).await.is_ok() {
                    acknowledged.insert(slice, tag);
                }
            }
            is_contended.set(false);
            fixture.seam.sleep(Nanos::from_millis(50)).await;
            first.destage_all().await.map_err(|error| format!("an acknowledged write has no place: {error}"))?;
            for (slice, tag) in acknowledged {
                let found = read(&first, slice * SLICE_SECTORS, 1).await.map_err(|error| error.to_string())?;
                assert_eq!(found, [tag], "slice {slice}");
            }
            assert_eq!(pool.check_open().findings, []);
        }
        Ok(())
    })
}

#[test]
fn write_beside_a_discard_of_its_slice_keeps_its_place() {
    for seed in 0..10 {
        discards_beside_writes(seed, Sabotage::None).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

/// Writes to a slice whose discard is on its way to the pool and waits for the flash devices. Returns how often the
/// pool allocated a slice afterwards: an acknowledged write keeps the space on which it counts.
fn allocations_after_a_write_during_a_discard(sabotage: Sabotage) -> u64 {
    let fixture = with_pool(1, sabotage);
    let (pool, [first, _second]) = serve(&fixture, true);
    fixture.world.block_on(async {
        write(&first, 0, 8, 1).await.expect("the pool has room");
        first.destage_all().await.expect("every block has its slice");
        // The mark of the dirty region expires, so that the discard needs another one.
        fixture.seam.sleep(Nanos::from_secs(60)).await;
        let flash = ["flash1", "flash2"].map(|name| fixture.world.disk(name).expect("the device exists"));
        let stall = || Rule::new(Fault::Stall(Nanos::from_millis(50)), Ops::WRITE, When::Always);
        first.discard(ByteOffset(0), SLICE_BYTES, WriteFlags::default()).await.expect("a discard needs no space");
        // The record of the discard, without which it releases no space.
        first.flush().await.expect("the log has room");
        flash.iter().for_each(|device| device.add_fault(stall()));
        let destaging = first.clone();
        fixture.seam.spawn(async move { destaging.destage_all().await.expect("every block has its slice") });
        fixture.seam.sleep(Nanos::from_millis(20)).await;
        assert_eq!(pool.volumes()[0].allocated, 1, "the discard is on its way");
        write(&first, 0, 8, 2).await.expect("its slice is allocated");
        let before = pool.counts().allocations;
        fixture.seam.sleep(Nanos::from_secs(1)).await;
        first.destage_all().await.expect("every block has its slice");
        assert_eq!(read(&first, 0, 1).await, Ok(vec![2]));
        pool.counts().allocations - before
    })
}

#[test]
fn write_during_a_discard_of_its_slice_keeps_its_space() {
    assert_eq!(allocations_after_a_write_during_a_discard(Sabotage::None), 0);
    let allocations = allocations_after_a_write_during_a_discard(Sabotage::UnmapOverWrite);
    assert_eq!(allocations, 1, "a discard that releases written space is noticed");
}

#[test]
fn discard_of_a_whole_volume_frees_all_its_slices() {
    let fixture = with_pool(1, Sabotage::None);
    let (pool, [first, _second]) = serve(&fixture, true);
    fixture.world.block_on(async {
        // More than 64 MiB, after which a zero-range goes to the backing in several steps.
        let size_bytes = 256 * MIB;
        first.resize(Some(size_bytes), false).await.expect("a thin volume needs no space to grow");
        for mib in [0, 70, 140, 210] {
            write(&first, mib * MIB / 512, 8, 1).await.expect("the pool has room");
        }
        first.flush().await.expect("the log has room");
        first.destage_all().await.expect("the pool has room");
        assert_eq!(pool.volumes()[0].allocated, 4);
        first.discard(ByteOffset(0), size_bytes, WriteFlags::default()).await.expect("a discard needs no space");
        first.flush().await.expect("the log has room");
        first.destage_all().await.expect("a discard needs no space");
        assert_eq!(pool.volumes()[0].allocated, 0);
    });
}

/// Crashes after a discard that has reached the pool, but was not flushed: the log has older data, which `destages`
/// says to be on the pool, too.
fn crash_after_an_unflushed_discard(destages: bool) {
    let fixture = with_pool(1, Sabotage::None);
    let (pool, [first, second]) = serve(&fixture, true);
    fixture.world.block_on(async {
        write(&first, 0, 8, 5).await.expect("the pool has room");
        first.flush().await.expect("the log has room");
        if destages {
            first.destage_all().await.expect("the pool has room");
        }
        first.discard(ByteOffset(0), SLICE_BYTES, WriteFlags::default()).await.expect("a discard needs no space");
        fixture.seam.sleep(Nanos::from_secs(2)).await;
        fill(&second, 2_000).await;
    });
    drop((pool, first, second));
    let fixture = fixture.crash(CrashMode::LoseAll, world(2));
    let (_pool, [first, second]) = serve(&fixture, false);
    fixture.world.block_on(async {
        second.destage_all().await.expect("every block has its slice");
        first.destage_all().await.expect("every block has its slice");
        let content = read(&first, 0, 1).await.expect("the pool is whole");
        assert!([0, 5].contains(&content[0]), "{content:?}");
    });
}

#[test]
fn data_that_a_recovery_finds_beside_an_unflushed_discard_has_its_place() {
    crash_after_an_unflushed_discard(false);
}

#[test]
fn destaged_data_in_the_log_beside_an_unflushed_discard_has_its_place() {
    crash_after_an_unflushed_discard(true);
}

#[test]
fn write_that_reserves_nothing_is_caught() {
    let fixture = with_pool(1, Sabotage::NoReservation);
    let (_pool, [first, second]) = serve(&fixture, true);
    fixture.world.block_on(async {
        fill(&first, 1_000).await;
        fill(&second, 2_000).await;
        let destaged = [first.destage_all().await, second.destage_all().await];
        assert!(destaged.contains(&Err(RequestError::Disk(DiskError::NoSpace))), "{destaged:?}");
    });
}
