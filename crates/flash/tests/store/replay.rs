//! Replay of a dead host's log onto the backings of its volumes: crashes at any point, and backings that reconnect.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::rc::Rc;

use flash::{
    BlockAddress, BlockNo, MemberDisk, OpenOptions, ReplayError, ReplayProgress, ReplayStats, VolumeId, inspect,
};
use seam::sim::{CrashMode, Fault, Ops, Rng, Rule, SimDisk, SimDiskSpec, SimSeam, Stop, Timing, When, World};
use seam::{Disk, DiskOpen, Nanos, Seam};

use crate::model::{BlockContent, LogModel, RecoveredBlocks};
use crate::workload::Workload;
use crate::world::{NAMES, SMALL, StoreShape, disks, formatted, open, world_after_crash};

/// The volumes of a [`Workload`] of three writers.
const VOLUMES: [u64; 4] = [1, 2, 3, 7];
/// Number of blocks in each volume.
const BLOCKS: u64 = 8;
const SECTORS: u64 = 8;
/// Content of backings that no record replaces.
const OLD: u64 = 0xbac0;

fn backing_name(volume: u64) -> String {
    format!("backing-{volume}")
}

fn add_backings(world: &World) {
    let seam = world.seam();
    for volume in VOLUMES {
        let timing = Timing::between(Nanos::from_micros(20), Nanos::from_micros(200));
        let spec = SimDiskSpec { timing, ..SimDiskSpec::new(BLOCKS * 4096) };
        let backing = world.add_disk(backing_name(volume), spec);
        backing.set_tags(0, &[OLD; (BLOCKS * SECTORS) as usize]);
        world.block_on(async { open_backing(&seam, volume).await.flush().await.expect("it has no fault") });
    }
}

async fn open_backing(seam: &SimSeam, volume: u64) -> SimDisk {
    let path = backing_name(volume).into();
    let open = DiskOpen { path, create_bytes: None, read_only: false, lock_wait_ms: 10 };
    seam.open_disk(&open).await.expect("the backing exists")
}

/// Replays all volumes; `observe` may cancel that.
async fn replay_all(
    seam: &SimSeam,
    devices: &[MemberDisk<SimSeam>],
    mut observe: impl FnMut(ReplayProgress) -> ControlFlow<()>,
) -> Result<ReplayStats, ReplayError> {
    let (_, inspection) = inspect(seam, devices).await;
    let inspection = inspection.expect("the store exists");
    let mut sum = ReplayStats::default();
    for volume in VOLUMES {
        let backing = open_backing(seam, volume).await;
        let replayed = inspection.replay(VolumeId(volume), &backing, &mut observe).await?;
        sum.data_blocks += replayed.data_blocks;
        sum.zero_blocks += replayed.zero_blocks;
    }
    Ok(sum)
}

/// The replayed content that a power cut of the backings leaves.
fn durable_content(world: &World) -> RecoveredBlocks {
    let mut content = RecoveredBlocks::new();
    for volume in VOLUMES {
        let backing = world.disk(backing_name(volume)).expect("it exists");
        for block in 0..BLOCKS {
            let tag = backing.durable_tag(block * SECTORS);
            let found = match tag {
                OLD => BlockContent::Absent,
                0 => BlockContent::Zero,
                tag => BlockContent::Data(tag),
            };
            let address = BlockAddress { volume_id: VolumeId(volume), block: BlockNo(block) };
            let is_whole = (0..SECTORS).all(|sector| backing.durable_tag(block * SECTORS + sector) == tag);
            assert!(is_whole, "{address:?} is torn");
            if found != BlockContent::Absent {
                content.insert(address, found);
            }
        }
    }
    content
}

/// A host dies at any I/O; another one replays its log, dies too or is cancelled, and replays again.
fn run_life(seed: u64) -> Result<ReplayStats, String> {
    let (rng, cancels) = (Rng::new(seed, 52), Rng::new(seed, 53));
    let shape = StoreShape { segment_bytes: 4096 << (3 + rng.below(3)), segments: 4 + rng.below(6), ..SMALL };
    let world = formatted(seed, shape);
    let (seam, model) = (world.seam(), Rc::<RefCell<LogModel>>::default());
    world.crash_at_io(world.io_count() + 20 + rng.below(400));
    let died = world.run_until(async {
        let (store, _) = open(&world, &seam, OpenOptions::default()).await.expect("a new store");
        let model = Rc::clone(&model);
        let workload = Workload {
            seam: seam.clone(),
            store,
            model,
            first_error: Rc::default(),
            full_without_live_record: Rc::default(),
        };
        workload.run(rng.next(), 3, 60).await;
    });
    if !matches!(died, Ok(()) | Err(Stop::CrashPoint)) {
        return Err(format!("the host did not die: {died:?}"));
    }
    let mut world = world_after_crash(rng.next(), world.crash(CrashMode::Any));
    add_backings(&world);
    loop {
        let (seam, is_last) = (world.seam(), rng.below(3) == 0);
        for volume in VOLUMES {
            let backing = world.disk(backing_name(volume)).expect("it exists");
            let probability = When::PerMillion(rng.below(50_000) as u32);
            backing.add_fault(Rule::new(Fault::Reconnect, Ops::WRITE | Ops::FLUSH, probability));
        }
        if !is_last {
            world.crash_at_io(world.io_count() + 1 + rng.below(80));
        }
        // The members' order does not matter: both have the whole log.
        let observe = |_| match cancels.below(8) == 0 {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        let replayed = world.run_until(async { replay_all(&seam, &disks(&seam, &NAMES).await, observe).await });
        match replayed {
            Ok(Ok(replayed)) => {
                model.borrow().check(&durable_content(&world))?;
                return Ok(replayed);
            }
            // A reconnect may fail the request during which it happens: the administrator tries again, and after a
            // cancellation too.
            Ok(Err(ReplayError::Backing(_) | ReplayError::Cancelled)) | Err(Stop::CrashPoint) => {}
            Ok(Err(error)) => return Err(error.to_string()),
            Err(stop) => return Err(stop.to_string()),
        }
        world = world_after_crash(rng.next(), world.crash(CrashMode::Any));
    }
}

#[test]
fn replay_after_any_crash_leaves_all_flushed_data_durable() {
    let mut sum = ReplayStats::default();
    for seed in 0..100 {
        let replayed = run_life(seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        sum.data_blocks += replayed.data_blocks;
        sum.zero_blocks += replayed.zero_blocks;
    }
    assert!(sum.data_blocks > 100 && sum.zero_blocks > 100, "{sum:?}");
}

#[test]
fn replay_cancelled_halfway_is_completed_by_the_next_one() {
    /// More than are read at a time.
    const WRITTEN: u64 = 300;
    let world = formatted(1, StoreShape { segment_bytes: 256 << 10, segments: 10, ..SMALL });
    let seam = world.seam();
    world.block_on(async {
        let (store, _) = open(&world, &seam, OpenOptions::default()).await.expect("a new store");
        for block in 0..WRITTEN {
            crate::service::append(&seam, &store, block).await;
        }
        store.close().await.expect("it closes");
    });
    let backing = world.add_disk(backing_name(5), SimDiskSpec::new(WRITTEN * 4096));
    let replay = async |limit_blocks: u64| {
        let (_, inspection) = inspect(&seam, &disks(&seam, &NAMES).await).await;
        let inspection = inspection.expect("the store exists");
        let mut seen = Vec::new();
        let observe = |progress: ReplayProgress| {
            seen.push((progress.done_blocks, progress.total_blocks));
            if progress.done_blocks >= limit_blocks { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let replayed = inspection.replay(VolumeId(5), &open_backing(&seam, 5).await, observe).await;
        (replayed, seen)
    };
    world.block_on(async {
        let steps = vec![(0, WRITTEN), (256, WRITTEN)];
        assert_eq!(replay(256).await, (Err(ReplayError::Cancelled), steps.clone()));
        let whole = ReplayStats { data_blocks: WRITTEN, zero_blocks: 0 };
        assert_eq!(replay(u64::MAX).await, (Ok(whole), steps));
    });
    let missing = (0..WRITTEN).find(|block| backing.durable_tag(block * SECTORS) == 0);
    assert_eq!(missing, None, "its content is not durable");
}

#[test]
fn cancelled_or_refused_replay_leaves_the_backing_untouched() {
    let world = formatted(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let (store, _) = open(&world, &seam, OpenOptions::default()).await.expect("a new store");
        for block in 0..4 {
            crate::service::append(&seam, &store, block).await;
        }
        store.close().await.expect("it closes");
    });
    add_backings(&world);
    // No volume of the workload has this number: the backing is smaller.
    world.add_disk(backing_name(5), SimDiskSpec::new(3 * 4096));
    let replay = async |volume: u64, is_cancelled: bool| {
        let (_, inspection) = inspect(&seam, &disks(&seam, &NAMES).await).await;
        let inspection = inspection.expect("the store exists");
        let mut progress = Vec::new();
        let observe = |seen| {
            progress.push(seen);
            if is_cancelled { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let replayed = inspection.replay(VolumeId(5), &open_backing(&seam, volume).await, observe).await;
        (replayed, progress)
    };
    world.block_on(async {
        let past_end = Err(ReplayError::PastEnd { block: BlockNo(3), backing_blocks: 3 });
        assert_eq!(replay(5, false).await, (past_end, Vec::new()));
        assert_eq!(world.disk(backing_name(5)).expect("it exists").counts().writes, 0);
    });
    world.block_on(async {
        let begin = ReplayProgress { done_blocks: 0, total_blocks: 4 };
        assert_eq!(replay(2, true).await, (Err(ReplayError::Cancelled), vec![begin]));
    });
    assert!(durable_content(&world).is_empty());
    let sector = (flash::format::FIRST_SEGMENT_BYTES + 2 * 4096) / 512;
    NAMES.iter().for_each(|name| world.disk(name).expect("it exists").flip_bit(sector, 9));
    world.block_on(async {
        let refused = replay(2, false).await;
        assert!(matches!(refused, (Err(ReplayError::Incomplete(_)), _)), "{refused:?}");
    });
    assert!(durable_content(&world).is_empty());
}
