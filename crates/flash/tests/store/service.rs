//! Slow and hung devices, the scrub, and the recording of member changes.

use std::cell::Cell;
use std::rc::Rc;

use flash::{
    BlockAddress, BlockNo, Content, Epoch, MemberNo, MemberStatus, MembershipGeneration, OpenOptions, Position, Record,
    Store, StoreError, VolumeId,
};
use seam::model::{DiskType, SsdSpec};
use seam::sim::{Fault, Ops, Rule, SimSeam, Timing, When, World};
use seam::{BlockMut, Nanos, Seam};

use crate::world::{NAMES, SMALL, StoreShape, formatted, formatted_on, open};

/// A record of a block.
pub fn record(seam: &SimSeam, block: u64) -> Record<SimSeam> {
    let mut buffer = seam.alloc().expect("the pool has a free buffer");
    (0..8).for_each(|sector| buffer.set_tag(sector, block + 100));
    let address = BlockAddress { volume_id: VolumeId(5), block: BlockNo(block) };
    Record { address, epoch: Epoch(1), content: Content::Data(buffer.freeze()) }
}

pub async fn append(seam: &SimSeam, store: &Store<SimSeam>, block: u64) -> Position {
    store.append(vec![record(seam, block)]).await.expect("a copy is in service")[0]
}

pub async fn read(seam: &SimSeam, store: &Store<SimSeam>, block: u64, position: Position) -> u64 {
    let buffer = seam.alloc().expect("the pool has a free buffer");
    let read = store.read(BlockAddress { volume_id: VolumeId(5), block: BlockNo(block) }, position, buffer).await;
    read.expect("a copy is good").tags()[0]
}

/// Appends blocks and retires each at once, so that the log never fills.
async fn append_and_retire(seam: &SimSeam, store: &Store<SimSeam>, count: u64) {
    for block in 0..count {
        let position = append(seam, store, block).await;
        store.retire(&[position]);
    }
}

fn slow_down(world: &World, name: &str) {
    world.disk(name).unwrap().set_timing(Timing::between(Nanos::from_millis(3), Nanos::from_millis(6)));
}

pub async fn opened(world: &World, seam: &SimSeam) -> Store<SimSeam> {
    open(world, seam, OpenOptions::default()).await.unwrap().0
}

#[test]
fn device_ten_times_slower_than_its_history_is_removed() {
    let world = formatted(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let store = opened(&world, &seam).await;
        append_and_retire(&seam, &store, 100).await;
        slow_down(&world, NAMES[1]);
        let started_at = seam.now();
        append_and_retire(&seam, &store, 10).await;
        assert!(seam.now().since(started_at) < Nanos::from_millis(150), "all flushes waited for the slow device");
        assert_eq!(store.copies(), 1);
        let MemberStatus::Lost(reason) = &store.members()[1].status else { panic!("the slow device is in service") };
        assert!(reason.contains("ten times slower"), "{reason}");
        // The last log member stays, however slow it is.
        slow_down(&world, NAMES[0]);
        append_and_retire(&seam, &store, 100).await;
        assert_eq!(store.copies(), 1);
    });
}

#[test]
fn common_slowness_and_a_single_stall_remove_no_device() {
    let world = formatted(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let store = opened(&world, &seam).await;
        append_and_retire(&seam, &store, 100).await;
        let stall = Fault::Stall(Nanos::from_millis(900));
        world.disk(NAMES[0]).unwrap().add_fault(Rule::new(stall, Ops::FLUSH, When::Nth(0)));
        append_and_retire(&seam, &store, 100).await;
        NAMES.iter().for_each(|name| slow_down(&world, name));
        append_and_retire(&seam, &store, 200).await;
        assert_eq!(store.copies(), 2);
    });
}

#[test]
fn device_that_never_answers_is_removed() {
    let world = formatted(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let store = opened(&world, &seam).await;
        let stall = Fault::Stall(Nanos::from_secs(600));
        world.disk(NAMES[0]).unwrap().add_fault(Rule::new(stall, Ops::FLUSH, When::Always));
        let started_at = seam.now();
        append_and_retire(&seam, &store, 3).await;
        assert!(seam.now().since(started_at) < Nanos::from_secs(3));
        assert_eq!(store.copies(), 1);
    });
}

#[test]
fn slow_reads_remove_a_device_and_many_concurrent_reads_do_not() {
    let world = formatted(1, StoreShape { segments: 40, ..SMALL });
    let seam = world.seam();
    world.block_on(async {
        let store = opened(&world, &seam).await;
        let mut positions = Vec::new();
        for block in 0..100 {
            positions.push(append(&seam, &store, block).await);
        }
        for _ in 0..3 {
            for (block, position) in (0..).zip(&positions) {
                assert_eq!(read(&seam, &store, block, *position).await, block + 100);
            }
        }
        for (block, position) in (0..).zip(positions.clone()) {
            let (seam, store) = (seam.clone(), store.clone());
            seam.clone().spawn(async move { assert_eq!(read(&seam, &store, block, position).await, block + 100) });
        }
        seam.sleep(Nanos::from_secs(1)).await;
        assert_eq!(store.copies(), 2);
        let stall = Fault::Stall(Nanos::from_millis(5));
        world.disk(NAMES[0]).unwrap().add_fault(Rule::new(stall, Ops::READ, When::Always));
        for (block, position) in (0..).zip(&positions) {
            assert_eq!(read(&seam, &store, block, *position).await, block + 100);
        }
        assert_eq!(store.copies(), 1);
    });
}

#[test]
fn one_stall_of_many_reads_removes_no_device() {
    let world = formatted(1, StoreShape { segments: 40, ..SMALL });
    let seam = world.seam();
    world.block_on(async {
        let store = opened(&world, &seam).await;
        let mut positions = Vec::new();
        for block in 0..100 {
            positions.push(append(&seam, &store, block).await);
        }
        for _ in 0..3 {
            for (block, position) in (0..).zip(&positions) {
                assert_eq!(read(&seam, &store, block, *position).await, block + 100);
            }
        }
        // Like a drive that collects garbage under load: all requests of that time wait at once.
        let until = seam.now() + Nanos::from_millis(2);
        let stall = Fault::Stall(Nanos::from_millis(300));
        world.disk(NAMES[0]).unwrap().add_fault(Rule::new(stall, Ops::READ, When::Between(Nanos::ZERO, until)));
        for (block, position) in (0..).zip(positions) {
            let (seam, store) = (seam.clone(), store.clone());
            seam.clone().spawn(async move { assert_eq!(read(&seam, &store, block, position).await, block + 100) });
        }
        seam.sleep(Nanos::from_secs(1)).await;
        assert_eq!(store.copies(), 2);
    });
}

#[test]
fn load_that_slows_both_members_becomes_the_usual_latency() {
    let world = formatted(1, StoreShape { segments: 40, ..SMALL });
    let seam = world.seam();
    world.block_on(async {
        let store = opened(&world, &seam).await;
        let mut positions = Vec::new();
        for block in 0..100 {
            positions.push(append(&seam, &store, block).await);
        }
        let read_all = async |times: usize| {
            for _ in 0..times {
                for (block, position) in (0..).zip(&positions) {
                    assert_eq!(read(&seam, &store, block, *position).await, block + 100);
                }
            }
        };
        read_all(3).await;
        NAMES.iter().for_each(|name| slow_down(&world, name));
        read_all(3).await;
        // The first member is now much slower than its mirror, but not slower than usual under this load.
        let quick = Timing::between(Nanos::from_micros(300), Nanos::from_micros(600));
        world.disk(NAMES[1]).unwrap().set_timing(quick);
        read_all(3).await;
        assert_eq!(store.copies(), 2);
    });
}

/// Makes all later requests of these kinds to a member hang.
fn hang(world: &World, name: &str, ops: Ops) {
    world.disk(name).unwrap().add_fault(Rule::new(Fault::Hang, ops, When::Always));
}

#[test]
fn reads_of_a_hung_member_come_from_its_mirror_within_three_seconds() {
    let world = formatted(1, StoreShape { segments: 40, ..SMALL });
    let seam = world.seam();
    world.block_on(async {
        let store = opened(&world, &seam).await;
        let mut positions = Vec::new();
        for block in 0..100 {
            positions.push(append(&seam, &store, block).await);
        }
        hang(&world, NAMES[0], Ops::READ);
        let started_at = seam.now();
        for (block, position) in (0..).zip(&positions) {
            assert_eq!(read(&seam, &store, block, *position).await, block + 100);
        }
        assert!(seam.now().since(started_at) < Nanos::from_secs(3), "{}", seam.now().since(started_at));
        assert_eq!(store.copies(), 1);
        let MemberStatus::Lost(reason) = &store.members()[0].status else { panic!("the hung member is in service") };
        assert!(reason.contains("no answer to a request"), "{reason}");
        assert!(store.unanswered()[&MemberNo(0)] > Nanos::from_secs(1), "the request is still unanswered");
        let before = world.disk(NAMES[0]).unwrap().counts();
        append_and_retire(&seam, &store, 10).await;
        assert_eq!(world.disk(NAMES[0]).unwrap().counts(), before, "the hung member gets no more requests");
    });
}

#[test]
fn hung_superblock_write_delays_appends_by_less_than_three_seconds() {
    let world = formatted(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let store = opened(&world, &seam).await;
        // Append until a tail has to be made durable, which writes superblocks.
        hang(&world, NAMES[1], Ops::WRITE);
        let started_at = seam.now();
        append_and_retire(&seam, &store, 200).await;
        assert!(seam.now().since(started_at) < Nanos::from_secs(3));
        assert_eq!(store.copies(), 1);
    });
}

#[test]
fn appends_fail_thirty_seconds_after_both_members_hang() {
    let world = formatted(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let store = opened(&world, &seam).await;
        append_and_retire(&seam, &store, 10).await;
        NAMES.iter().for_each(|name| hang(&world, name, Ops::ALL));
        let started_at = seam.now();
        let error = try_append(&seam, &store, 1).await.expect_err("no member is in service");
        let waited = seam.now().since(started_at);
        assert!(matches!(error, StoreError::Failed(_)), "{error}");
        assert!((Nanos::from_secs(29)..Nanos::from_secs(32)).contains(&waited), "{waited}");
        assert_eq!(store.copies(), 0);
        try_append(&seam, &store, 2).await.expect_err("the store has failed");
        assert!(seam.now().since(started_at) < waited + Nanos::from_secs(1), "a later append does not wait");
    });
}

#[test]
fn last_member_that_answers_in_time_stays() {
    let world = formatted(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let store = opened(&world, &seam).await;
        NAMES.iter().for_each(|name| hang(&world, name, Ops::ALL));
        let (task_seam, has_ended) = (seam.clone(), Rc::new(Cell::new(false)));
        let (task_store, flag) = (store.clone(), Rc::clone(&has_ended));
        seam.spawn(async move {
            append(&task_seam, &task_store, 1).await;
            flag.set(true);
        });
        seam.sleep(Nanos::from_secs(25)).await;
        assert!(!has_ended.get());
        // All requests complete late, as after a reset of the disks by the kernel.
        for name in NAMES {
            let disk = world.disk(name).unwrap();
            disk.clear_faults();
            disk.complete_hung(Nanos::from_millis(1));
        }
        seam.sleep(Nanos::from_secs(1)).await;
        assert!(has_ended.get());
        assert_eq!(store.copies(), 2);
    });
}

/// A small SSD whose two channels may lag 26 ms behind its acknowledgements.
fn buffered() -> Timing {
    Timing::of_ssd(SsdSpec { channels: 2, ..DiskType::Ssd.ssd().expect("the type is an SSD") })
}

/// Keeps the buffers of both devices full of programs, until the returned flag is set.
fn keep_programming(seam: &SimSeam, store: &Store<SimSeam>) -> Rc<Cell<bool>> {
    let stop = Rc::<Cell<bool>>::default();
    for writer in 0..4 {
        let (seam, store, stop) = (seam.clone(), store.clone(), Rc::clone(&stop));
        seam.clone().spawn(async move {
            while !stop.get() {
                let record = |number: u64| {
                    let address = BlockAddress { volume_id: VolumeId(6), block: BlockNo(writer * 100 + number) };
                    let content = Content::Data(seam.alloc().expect("the pool has a free buffer").freeze());
                    Record { address, epoch: Epoch(1), content }
                };
                let positions = store.append((0..40).map(record).collect()).await.expect("a copy is in service");
                store.retire(&positions);
            }
        });
    }
    stop
}

#[test]
fn reads_behind_buffered_programs_remove_no_device() {
    let world = formatted_on(1, StoreShape { segment_bytes: 256 << 10, segments: 1_000, ..SMALL }, buffered());
    let seam = world.seam();
    world.block_on(async {
        let store = opened(&world, &seam).await;
        let mut positions = Vec::new();
        for block in 0..100 {
            positions.push(append(&seam, &store, block).await);
        }
        let slowest_read = async |count: usize| {
            let mut slowest = Nanos::ZERO;
            for (block, position) in (0..).zip(&positions[..count]) {
                let started_at = seam.now();
                assert_eq!(read(&seam, &store, block, *position).await, block + 100);
                slowest = slowest.max(seam.now().since(started_at));
            }
            slowest
        };
        seam.sleep(Nanos::from_secs(1)).await;
        for _ in 0..2 {
            assert!(slowest_read(100).await < Nanos::from_millis(1));
        }
        let stop = keep_programming(&seam, &store);
        // The log has room for this time: the blocks that are read hold its tail.
        let slowest = slowest_read(60).await;
        assert!(slowest > Nanos::from_millis(20), "no read waited for programs: {slowest}");
        assert_eq!(store.copies(), 2);
        // Without programs the same latency is the device's own.
        stop.set(true);
        seam.sleep(Nanos::from_secs(1)).await;
        let stall = Fault::Stall(Nanos::from_millis(20));
        world.disk(NAMES[0]).unwrap().add_fault(Rule::new(stall, Ops::READ, When::Always));
        slowest_read(100).await;
        assert_eq!(store.copies(), 1);
    });
}

#[test]
fn scrub_repairs_silent_damage_before_the_other_copy_is_lost() {
    let world = formatted(1, StoreShape { segments: 20, ..SMALL });
    let seam = world.seam();
    world.block_on(async {
        let store = opened(&world, &seam).await;
        let mut positions = Vec::new();
        for block in 0..30 {
            positions.push(append(&seam, &store, block).await);
        }
        let before = world.disk(NAMES[0]).unwrap().counts().reads;
        seam.sleep(Nanos::from_secs(1000)).await;
        assert_eq!(world.disk(NAMES[0]).unwrap().counts().reads, before, "without a scrub nothing is read");
        // Damage headers and data, some on each mirror.
        let first = flash::format::FIRST_SEGMENT_BYTES / 512;
        for block in 0..40 {
            world.disk(NAMES[block as usize / 3 % 2]).unwrap().flip_bit(first + block * 8 + block % 8, 77);
        }
        store.set_scrub(Some(1 << 20));
        let started_at = seam.now();
        while store.scrub_stats().rounds == 0 {
            seam.sleep(Nanos::from_millis(10)).await;
        }
        let stats = store.scrub_stats();
        assert_eq!((stats.damaged_blocks, stats.repaired_copies, stats.lost_blocks), (40, 40, 0), "{stats:?}");
        let least = Nanos(stats.read_bytes * 1_000_000_000 / (1 << 20));
        assert!(seam.now().since(started_at) >= least, "faster than allowed: {stats:?}");
        append_and_retire(&seam, &store, 1).await;
        world.disk(NAMES[1]).unwrap().add_fault(Rule::new(Fault::Error, Ops::ALL, When::Always));
        for (block, position) in (0..).zip(&positions) {
            assert_eq!(read(&seam, &store, block, *position).await, block + 100);
        }
        store.set_scrub(None);
        seam.sleep(Nanos::from_secs(5)).await;
        let before = world.disk(NAMES[0]).unwrap().counts().reads;
        seam.sleep(Nanos::from_secs(1000)).await;
        assert_eq!(world.disk(NAMES[0]).unwrap().counts().reads, before);
    });
}

#[test]
fn scrub_counts_blocks_without_a_good_copy() {
    let world = formatted(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let store = opened(&world, &seam).await;
        for block in 0..4 {
            append(&seam, &store, block).await;
        }
        let sector = (flash::format::FIRST_SEGMENT_BYTES + 3 * 4096) / 512;
        NAMES.iter().for_each(|name| world.disk(name).unwrap().flip_bit(sector, 9));
        store.set_scrub(Some(64 << 20));
        seam.sleep(Nanos::from_secs(5)).await;
        let stats = store.scrub_stats();
        assert_eq!(
            (stats.rounds, stats.damaged_blocks, stats.repaired_copies, stats.lost_blocks),
            (1, 1, 0, 1),
            "{stats:?}"
        );
    });
}

#[test]
fn append_on_fewer_copies_waits_until_the_owner_recorded_it() {
    let world = formatted(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let store = opened(&world, &seam).await;
        let (recorded, own) = (Rc::new(Cell::new(MembershipGeneration(0))), seam.clone());
        let flag = Rc::clone(&recorded);
        store.set_generation_recorder(move |generation| {
            let (flag, seam) = (Rc::clone(&flag), own.clone());
            Box::pin(async move {
                seam.sleep(Nanos::from_millis(700)).await;
                flag.set(generation);
                Ok(())
            })
        });
        world.disk(NAMES[0]).unwrap().add_fault(Rule::new(Fault::Error, Ops::FLUSH, When::Always));
        let started_at = seam.now();
        append(&seam, &store, 1).await;
        assert_eq!((store.copies(), recorded.get()), (1, store.generation()));
        assert!(seam.now().since(started_at) >= Nanos::from_millis(700));
    });
}

/// A store that loses a device with the next batch; its owner records that by `record`.
async fn losing_a_device(
    world: &World,
    seam: &SimSeam,
    record: impl Fn(MembershipGeneration) -> std::pin::Pin<Box<dyn Future<Output = Result<(), String>>>> + 'static,
) -> Store<SimSeam> {
    let store = opened(world, seam).await;
    store.set_generation_recorder(record);
    world.disk(NAMES[0]).unwrap().add_fault(Rule::new(Fault::Error, Ops::FLUSH, When::Always));
    store
}

/// Appends a block, and returns the outcome.
async fn try_append(seam: &SimSeam, store: &Store<SimSeam>, block: u64) -> Result<Vec<Position>, StoreError> {
    let mut buffer = seam.alloc().expect("the pool has a free buffer");
    (0..8).for_each(|sector| buffer.set_tag(sector, block));
    let address = BlockAddress { volume_id: VolumeId(5), block: BlockNo(block) };
    store.append(vec![Record { address, epoch: Epoch(1), content: Content::Data(buffer.freeze()) }]).await
}

#[test]
fn appends_fail_until_the_owner_has_recorded_the_generation() {
    let world = formatted(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let recorded = std::rc::Rc::new(std::cell::Cell::new(Err("the disk is full".to_owned())));
        let result = std::rc::Rc::clone(&recorded);
        let record = move |_| {
            let outcome = result.replace(Ok(()));
            result.set(outcome.clone());
            let recorded: std::pin::Pin<Box<dyn Future<Output = Result<(), String>>>> =
                Box::pin(std::future::ready(outcome));
            recorded
        };
        let store = losing_a_device(&world, &seam, record).await;
        for block in 0..3 {
            let error =
                try_append(&seam, &store, block).await.expect_err("the owner has not recorded that one copy is left");
            let StoreError::Unrecorded { reason, positions } = &error else { panic!("{error}") };
            assert_eq!((reason.as_str(), positions.len(), store.copies()), ("the disk is full", 1, 1));
            assert_eq!(store.unrecorded_reason().as_deref(), Some("the disk is full"));
            seam.sleep(Nanos::from_secs(3)).await;
        }
        recorded.set(Ok(()));
        seam.sleep(Nanos::from_secs(2)).await;
        assert_eq!(store.unrecorded_reason(), None);
        let positions = try_append(&seam, &store, 9).await.expect("the owner has recorded the membership");
        assert_eq!(positions.len(), 1);
    });
}

#[test]
fn recording_that_never_ends_fails_appends_without_blocking_them() {
    let world = formatted(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let store = losing_a_device(&world, &seam, |_| Box::pin(std::future::pending())).await;
        let started_at = seam.now();
        for block in 0..3 {
            let error = try_append(&seam, &store, block).await.expect_err("the owner does not return in time");
            assert!(matches!(error, StoreError::Unrecorded { .. }), "{error}");
        }
        assert!(seam.now().since(started_at) < Nanos::from_secs(20), "only one attempt is in flight");
    });
}
