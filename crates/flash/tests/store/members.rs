//! Members that are missing, stale, diverged, damaged or foreign.

use flash::format::FIRST_SEGMENT_BYTES;
use flash::format::superblock::Role;
use flash::{
    BlockAddress, BlockNo, Content, Epoch, FormatOptions, MemberNo, MemberStatus, MembershipGeneration, OpenOptions,
    Position, Record, RecoveredRecord, Sequence, Store, StoreError, VolumeId,
};
use seam::sim::{CrashMode, DiskImages, Fault, Ops, Rule, SimDiskSpec, SimSeam, When, World};
use seam::{BlockMut, Seam};

use crate::model::{BlockContent, read_all};
use crate::world::{ALL, NAMES, SMALL, StoreShape, disks, empty, formatted, open, open_named, world_after_crash};

const ACCEPT: OpenOptions = OpenOptions {
    accept_missing: true,
    known_generation: None,
    ownership: None,
    sequence_min: Sequence(0),
    sabotage: flash::Sabotage::None,
};

fn address(block: u64) -> BlockAddress {
    BlockAddress { volume_id: VolumeId(5), block: BlockNo(block) }
}

async fn append(seam: &SimSeam, store: &Store<SimSeam>, block: u64, tag: u64) -> Result<Position, StoreError> {
    let mut buffer = seam.alloc().expect("the pool has a free buffer");
    (0..8).for_each(|sector| buffer.set_tag(sector, tag));
    let record = Record { address: address(block), epoch: Epoch(1), content: Content::Data(buffer.freeze()) };
    Ok(store.append(vec![record]).await?[0])
}

async fn read(seam: &SimSeam, store: &Store<SimSeam>, block: u64, position: Position) -> Result<u64, StoreError> {
    Ok(store.read(address(block), position, seam.alloc().expect("the pool has a free buffer")).await?.tags()[0])
}

/// A world in which blocks 0 to `count` - 1 were appended, one batch each, block *n* with tag *n* + 100.
fn written(count: u64) -> World {
    let world = formatted(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let (store, _) = open(&world, &seam, OpenOptions::default()).await.unwrap();
        for block in 0..count {
            append(&seam, &store, block, block + 100).await.unwrap();
        }
    });
    world_after_crash(2, world.crash(CrashMode::LoseAll))
}

/// Opens the store and checks that all blocks of [`written`] are found.
fn expect_all_blocks(world: &World, count: u64, options: OpenOptions) -> Vec<RecoveredRecord> {
    let seam = world.seam();
    world.block_on(async {
        let (store, recovered) = open(world, &seam, options).await.unwrap();
        let content = read_all(&seam, &store, &recovered).await.unwrap();
        let expected: Vec<_> = (0..count).map(|block| (address(block), BlockContent::Data(block + 100))).collect();
        assert_eq!(content.into_iter().collect::<Vec<_>>(), expected);
        recovered
    })
}

fn without(mut images: DiskImages, name: &str) -> World {
    assert!(images.remove(name));
    world_after_crash(3, images)
}

#[test]
fn missing_member_must_be_accepted_and_is_stale_when_it_returns() {
    let world = written(5);
    let seam = world.seam();
    world.block_on(async {
        let refused = open_named(&seam, &NAMES[..1], OpenOptions::default()).await.err();
        assert_eq!(refused, Some(StoreError::MemberMissing { member: MemberNo(1) }));
        let (store, recovered) = open_named(&seam, &NAMES[..1], ACCEPT).await.unwrap();
        assert_eq!((recovered.len(), store.copies()), (5, 1));
        append(&seam, &store, 0, 900).await.unwrap();
        drop(store);
        let (store, recovered) = open(&world, &seam, OpenOptions::default()).await.unwrap();
        assert_eq!(store.members()[1].status, MemberStatus::Stale);
        let content = read_all(&seam, &store, &recovered).await.unwrap();
        assert_eq!((content.len(), content[&address(0)]), (5, BlockContent::Data(900)));
        drop(store);
        let refused = open_named(&seam, &NAMES[1..], OpenOptions::default()).await.err();
        assert_eq!(refused, Some(StoreError::MemberMissing { member: MemberNo(0) }));
    });
}

#[test]
fn members_used_separately_are_refused_together() {
    let world = written(3);
    let seam = world.seam();
    world.block_on(async {
        for name in NAMES {
            let (store, _) = open_named(&seam, &[name], ACCEPT).await.unwrap();
            append(&seam, &store, 0, 7).await.unwrap();
        }
        for options in [OpenOptions::default(), ACCEPT] {
            assert_eq!(open(&world, &seam, options).await.err(), Some(StoreError::Diverged));
        }
    });
}

#[test]
fn device_that_was_used_apart_is_added_only_by_force() {
    let world = written(3);
    let seam = world.seam();
    world.block_on(async {
        for name in [NAMES[1], NAMES[0]] {
            let (store, _) = open_named(&seam, &[name], ACCEPT).await.expect("it opens alone");
            append(&seam, &store, 0, 7).await.expect("one copy is accepted");
            store.close().await.expect("nothing is in flight");
        }
        let (store, _) = open_named(&seam, &NAMES[..1], ACCEPT).await.expect("it opens alone");
        let apart = disks(&seam, &NAMES[1..]).await.remove(0);
        let refused = store.add(apart.clone(), false).await.expect_err("it may have newer data");
        assert!(refused.to_string().contains("used without the devices in service"), "{refused}");
        store.add(apart, true).await.expect("its data is given up");
        assert_eq!(store.copies(), 2);
    });
}

#[test]
fn append_fails_when_both_members_are_lost() {
    let world = written(1);
    let seam = world.seam();
    world.block_on(async {
        let (store, _) = open(&world, &seam, OpenOptions::default()).await.unwrap();
        for name in NAMES {
            world.disk(name).unwrap().add_fault(Rule::new(Fault::Error, Ops::FLUSH, When::Always));
        }
        for _ in 0..2 {
            assert!(matches!(append(&seam, &store, 1, 1).await, Err(StoreError::Failed(_))));
        }
        assert!(store.members().iter().all(|member| matches!(member.status, MemberStatus::Lost(_))));
    });
}

#[test]
fn damage_of_one_mirror_is_survived_and_repaired() {
    let count = 6;
    let world = written(count);
    // Mirror and byte offset of each damage: the superblocks of both mirrors, and each block of the segments in use, on
    // the mirror that is read first.
    let per_segment = SMALL.segment_bytes / 4096;
    let blocks = (0..2 * count).map(|block| (block / per_segment % 2, FIRST_SEGMENT_BYTES + block * 4096));
    let damages = [(0, 0), (1, 64 << 10), (1, 0), (0, 64 << 10)].into_iter().chain(blocks);
    let mut images = world.crash(CrashMode::LoseAll);
    for (number, (mirror, at)) in damages.enumerate() {
        let world = world_after_crash(9, images);
        let damaged = world.disk(NAMES[mirror as usize]).unwrap();
        (0..8).for_each(|sector| damaged.flip_bit(at / 512 + sector, number * 8 % 512));
        expect_all_blocks(&world, count, OpenOptions::default());
        world.run_for(seam::Nanos::from_millis(10)).unwrap();
        // The next opening flushes the repairs.
        images = world.crash(CrashMode::Kill);
    }
    let repaired = world_after_crash(10, images);
    let images = repaired.snapshot();
    for name in NAMES {
        let alone = without(images.images(|_| seam::sim::Survival::Lost), name);
        expect_all_blocks(&alone, count, ACCEPT);
    }
}

#[test]
fn repair_of_a_block_issues_no_flush() {
    let world = written(2);
    let seam = world.seam();
    let opened = world.block_on(open(&world, &seam, OpenOptions::default()));
    let (store, recovered) = opened.unwrap();
    // The data of the first batch, on the mirror that is read first.
    let (damaged, sector) = (world.disk(NAMES[0]).unwrap(), (FIRST_SEGMENT_BYTES + 4096) / 512);
    let intact_tag = damaged.tag(sector);
    damaged.flip_bit(sector, 9);
    let before = damaged.counts();
    assert_eq!(world.block_on(read(&seam, &store, 0, recovered[0].position)), Ok(100));
    world.run_for(seam::Nanos::from_millis(10)).unwrap();
    let after = damaged.counts();
    assert_eq!((damaged.tag(sector), after.writes, after.flushes), (intact_tag, before.writes + 1, before.flushes));
}

#[test]
fn mirror_with_a_thousand_random_blocks_loses_nothing() {
    let count = 6;
    let world = written(count);
    let control = world.disk(NAMES[1]).unwrap();
    let rng = seam::sim::Rng::new(4, 4);
    let blocks = (FIRST_SEGMENT_BYTES + SMALL.segments * SMALL.segment_bytes) / 4096;
    for _ in 0..1_000 {
        let block = rng.below(blocks);
        let tags: Vec<_> = (0..8).map(|_| rng.next()).collect();
        control.set_tags(block * 8, &tags);
    }
    let seam = world.seam();
    world.block_on(async {
        // Without both of its superblocks the device is not recognised as a member, and its absence must be accepted.
        let refused = open(&world, &seam, OpenOptions::default()).await.err();
        assert!(matches!(refused, Some(StoreError::NoStore { .. })));
    });
    expect_all_blocks(&world, count, ACCEPT);
}

#[test]
fn block_without_a_good_copy_fails_alone() {
    let world = written(4);
    let recovered = expect_all_blocks(&world, 4, OpenOptions::default());
    let seam = world.seam();
    // The second batch: a header and a data block.
    let sector = (FIRST_SEGMENT_BYTES + 3 * 4096) / 512;
    NAMES.iter().for_each(|name| world.disk(name).unwrap().flip_bit(sector, 9));
    world.block_on(async {
        let (store, again) = open(&world, &seam, OpenOptions::default()).await.unwrap();
        assert_eq!(again, recovered);
        for record in again {
            let tag = read(&seam, &store, record.address.block.0, record.position).await;
            match record.address.block.0 {
                1 => assert_eq!(tag, Err(StoreError::Lost { volume_id: VolumeId(5), block: BlockNo(1) })),
                block => assert_eq!(tag, Ok(block + 100)),
            }
        }
        assert_eq!(store.lost_blocks(), [address(1)], "the lost block is listed");
        let lost: Vec<_> = recovered
            .iter()
            .filter(|record| record.address.block == BlockNo(1))
            .map(|record| record.position)
            .collect();
        store.retire(&lost);
        assert_eq!(store.lost_blocks(), [], "a retired block is not lost");
    });
}

#[test]
fn lost_header_inside_the_log_is_not_taken_as_its_end() {
    let world = written(4);
    let sector = (FIRST_SEGMENT_BYTES + 2 * 4096) / 512;
    NAMES.iter().for_each(|name| world.disk(name).unwrap().flip_bit(sector, 9));
    let seam = world.seam();
    let refused = world.block_on(async { open(&world, &seam, OpenOptions::default()).await.err() });
    assert_eq!(refused, Some(StoreError::Damaged { sequence: Sequence(2) }));
}

#[test]
fn device_with_data_is_formatted_only_by_force() {
    let world = written(1);
    let seam = world.seam();
    let spec = || SimDiskSpec::new(FIRST_SEGMENT_BYTES + SMALL.segments * SMALL.segment_bytes);
    world.add_disk("other", spec()).set_tags(2047, &[1]);
    world.add_disk("small", SimDiskSpec::new(FIRST_SEGMENT_BYTES + 4096));
    world.block_on(async {
        let options = FormatOptions { segment_bytes: Some(SMALL.segment_bytes), force: false, journal_bytes: None };
        let force = FormatOptions { force: true, ..options };
        for name in ["other", NAMES[0]] {
            let disks = disks(&seam, &[name]).await;
            assert!(matches!(Store::format(&seam, &disks, options).await, Err(StoreError::NotEmpty { .. })));
        }
        let small = disks(&seam, &["small"]).await;
        assert!(matches!(Store::format(&seam, &small, force).await, Err(StoreError::TooSmall { .. })));
        let other = disks(&seam, &["other"]).await;
        Store::format(&seam, &other, force).await.unwrap();
        drop(other);
        let mixed = open_named(&seam, &["other", NAMES[0]], OpenOptions::default()).await.err();
        assert!(matches!(mixed, Some(StoreError::OtherStore { .. })));
        let (store, recovered) = open_named(&seam, &["other"], OpenOptions::default()).await.unwrap();
        assert_eq!((recovered.len(), store.copies()), (0, 1));
    });
}

#[test]
fn store_closed_without_live_records_opens_empty_and_works() {
    let world = formatted(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        for round in 0..20 {
            let (store, recovered) = open(&world, &seam, OpenOptions::default()).await.unwrap();
            assert!(recovered.is_empty(), "round {round}: {recovered:?}");
            let position = append(&seam, &store, 1, round + 1).await.unwrap();
            assert_eq!(read(&seam, &store, 1, position).await, Ok(round + 1));
            store.retire(&[position]);
            store.close().await.unwrap();
        }
    });
}

#[test]
fn full_log_refuses_appends_until_its_oldest_segment_is_retired() {
    let world = empty(1);
    world.add_disk("one", SimDiskSpec::new(FIRST_SEGMENT_BYTES + 4 * (32 << 10)));
    let seam = world.seam();
    world.block_on(async {
        let disk = disks(&seam, &["one"]).await;
        let options = FormatOptions { segment_bytes: Some(32 << 10), force: false, journal_bytes: None };
        Store::format(&seam, &disk, options).await.unwrap();
        let (store, _) = Store::open(&seam, &disk, OpenOptions::default()).await.unwrap();
        let mut positions = Vec::new();
        loop {
            match append(&seam, &store, positions.len() as u64, 1).await {
                Ok(position) => positions.push(position),
                Err(error) => break assert_eq!(error, StoreError::Full),
            }
        }
        assert_eq!((positions.len(), store.room().0), (16, 0), "four batches of two blocks a segment");
        let writes = world.disk("one").unwrap().counts().writes;
        assert_eq!(append(&seam, &store, 99, 1).await, Err(StoreError::Full));
        assert_eq!(world.disk("one").unwrap().counts().writes, writes);
        // Only the retirement of the oldest segment makes room.
        store.retire(&positions[4..]);
        assert_eq!(append(&seam, &store, 99, 1).await, Err(StoreError::Full));
        store.retire(&positions[..4]);
        for block in 0..40 {
            let position = append(&seam, &store, block, 2).await.unwrap();
            store.retire(&[position]);
        }
    });
}

#[test]
fn simultaneous_appends_share_a_batch() {
    let world = formatted(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let (store, _) = open(&world, &seam, OpenOptions::default()).await.unwrap();
        let before = world.disk(NAMES[0]).unwrap().counts();
        for block in 0..6 {
            let (seam, store) = (seam.clone(), store.clone());
            seam.clone().spawn(async move { append(&seam, &store, block, 1).await.map(drop).unwrap() });
        }
        seam.sleep(seam::Nanos::from_millis(5)).await;
        let after = world.disk(NAMES[0]).unwrap().counts();
        // The first append may go alone; the others then share the next batch.
        assert!((1..=2).contains(&(after.writes - before.writes)));
        assert_eq!(after.writes - before.writes, after.flushes - before.flushes);
    });
}

#[test]
fn removed_member_alone_is_refused_if_its_owner_saw_a_later_generation() {
    let world = written(5);
    let seam = world.seam();
    world.block_on(async {
        // The second device is used alone; the first one still considers itself current.
        let (store, _) = open_named(&seam, &NAMES[1..], ACCEPT).await.unwrap();
        let known_generation = Some((store.uuid(), store.generation()));
        drop(store);
        let refused = open_named(&seam, &NAMES[..1], OpenOptions { known_generation, ..ACCEPT }).await.err();
        assert!(matches!(refused, Some(StoreError::Outdated { .. })), "{refused:?}");
        let (store, _) = open(&world, &seam, OpenOptions { known_generation, ..OpenOptions::default() }).await.unwrap();
        assert_eq!(store.members()[0].status, MemberStatus::Stale, "the refusal has changed nothing");
        drop(store);
        let of_another_store = Some(([7; 16], MembershipGeneration(u64::MAX)));
        assert!(
            open_named(&seam, &NAMES[1..], OpenOptions { known_generation: of_another_store, ..ACCEPT }).await.is_ok()
        );
    });
}

#[test]
fn failure_of_all_devices_raises_no_generation() {
    let world = written(5);
    let seam = world.seam();
    world.block_on(async {
        let (store, _) = open(&world, &seam, OpenOptions::default()).await.unwrap();
        let known_generation = Some((store.uuid(), store.generation()));
        for name in &NAMES[..2] {
            world.disk(name).unwrap().add_fault(Rule::new(Fault::Error, Ops::ALL, When::Always));
        }
        append(&seam, &store, 0, 9).await.expect_err("no device answers");
        assert_eq!((store.copies(), Some((store.uuid(), store.generation()))), (0, known_generation));
        drop(store);
        NAMES[..2].iter().for_each(|name| world.disk(name).unwrap().clear_faults());
        let (store, _) = open(&world, &seam, OpenOptions { known_generation, ..OpenOptions::default() }).await.unwrap();
        assert_eq!(store.copies(), 2);
    });
}

#[test]
fn first_two_devices_carry_the_log_and_others_may_be_missing() {
    let world = formatted(1, StoreShape { devices: 4, ..SMALL });
    let seam = world.seam();
    world.block_on(async {
        let (store, _) = open(&world, &seam, OpenOptions::default()).await.unwrap();
        let roles: Vec<_> = store.members().iter().map(|member| member.role).collect();
        assert_eq!((roles, store.copies()), (vec![Role::Log, Role::Log, Role::Pages, Role::Pages], 2));
        for block in 0..5 {
            append(&seam, &store, block, block + 100).await.unwrap();
        }
        drop(store);
        for name in &ALL[2..] {
            assert_eq!(world.disk(name).unwrap().counts().writes, 2 + 2, "superblocks alone are written there");
        }
    });
    let mut images = world.crash(CrashMode::LoseAll);
    assert!(images.remove(ALL[2]));
    let world = world_after_crash(2, images);
    expect_all_blocks(&world, 5, OpenOptions::default());
    let seam = world.seam();
    world.block_on(async {
        let (store, _) = open(&world, &seam, OpenOptions::default()).await.unwrap();
        let status: Vec<_> = store.members().into_iter().map(|member| member.status).collect();
        assert!(matches!(&status[2], MemberStatus::Lost(_)) && status[3] == MemberStatus::InService, "{status:?}");
        world.disk(ALL[3]).unwrap().add_fault(Rule::new(Fault::Error, Ops::ALL, When::Always));
        append(&seam, &store, 9, 1).await.unwrap();
        assert_eq!(store.copies(), 2);
    });
}
