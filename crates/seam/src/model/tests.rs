//! Tests of the modelled disk, in virtual time.

use std::cell::Cell;
use std::rc::Rc;

use super::*;
use crate::sim::{SimDisk, SimDiskSpec, SimSeam, StoredContent, Timing, World, WorldSpec};
use crate::{BlockMut, Disk, DiskOpen, DiskResult, Piece, Seam};

const SIZE: u64 = 64 << 20;

async fn content(world: &World, name: &str, size_bytes: u64) -> SimDisk {
    world.add_disk(name, SimDiskSpec { timing: Timing::INSTANT, ..SimDiskSpec::new(size_bytes) });
    let spec = DiskOpen { path: name.into(), create_bytes: None, read_only: false, lock_wait_ms: 0 };
    world.seam().open_disk(&spec).await.expect("the disk was just added")
}

fn array(world: &World, spec: ArraySpec) -> SharedArray<SimSeam> {
    SharedArray::new(world.seam(), spec).expect("the specification is valid")
}

fn raid5() -> ArraySpec {
    ArraySpec::new(RaidLevel::Raid5, 5, DiskType::Sas15k)
}

async fn write(world: &World, disk: &impl Disk<SimSeam>, at: u64, tag: u64) -> DiskResult<()> {
    disk.write(at, vec![Piece::whole(world.block([tag; 8]).expect("the pool has a free buffer").freeze())]).await
}

#[test]
fn modelled_disk_passes_the_conformance_suite() {
    let world = World::new(WorldSpec::new(1));
    world.block_on(async {
        for (number, level) in RaidLevel::ALL.into_iter().map(|(_, level)| level).enumerate() {
            let array = array(&world, ArraySpec::new(level, 4, DiskType::Ssd));
            let content = content(&world, &number.to_string(), SIZE).await;
            let disk = ModelledDisk::new(&array, content).expect("the array has free space");
            crate::conformance::disk(&world.seam(), &disk).await;
        }
    });
    assert_eq!(world.blocks_out(), 0);
}

#[test]
fn requests_take_the_time_of_the_array() {
    let world = World::new(WorldSpec::new(1));
    let seam = world.seam();
    world.block_on(async {
        let array = array(&world, raid5().fitted(SIZE));
        let disk = ModelledDisk::new(&array, content(&world, "a", SIZE).await).expect("the volume fits exactly");
        assert_eq!(disk.geometry().stripe_bytes, 256 << 10);
        let start = seam.now();
        for number in 0..50 {
            write(&world, &disk, number * 7919 % (SIZE / 4096) * 4096, 1).await.unwrap();
        }
        let mean_ns = seam.now().since(start).0 / 50;
        // Two concurrent reads, then a revolution until the same places pass again.
        assert!((6_000_000..14_000_000).contains(&mean_ns), "{mean_ns} ns a small write");
        assert!(array.busy() > seam.now());
    });
}

#[test]
fn volumes_on_one_array_share_its_spindles() {
    let time = |volumes: u64| {
        let world = World::new(WorldSpec::new(1));
        let seam = world.seam();
        world.block_on(async {
            let array = array(&world, raid5());
            let remaining = Rc::new(Cell::new(volumes));
            for number in 0..volumes {
                let content = content(&world, &number.to_string(), SIZE).await;
                let disk = ModelledDisk::new(&array, content).expect("the array has free space");
                let (seam, remaining) = (seam.clone(), Rc::clone(&remaining));
                seam.clone().spawn(async move {
                    for _ in 0..200 {
                        let at = seam.random() % (SIZE / 4096) * 4096;
                        let block = seam.alloc().expect("the pool has a free buffer");
                        disk.read(at, vec![Piece::whole(block)]).await.0.unwrap();
                    }
                    remaining.set(remaining.get() - 1);
                });
            }
            while remaining.get() > 0 {
                seam.sleep(crate::Nanos::from_millis(1)).await;
            }
            seam.now().0
        })
    };
    let (alone, crowded) = (time(1), time(40));
    assert!(crowded > 4 * alone, "forty volumes on five spindles took {crowded} ns, one took {alone}");
}

#[test]
fn array_without_room_refuses_volumes_and_growth() {
    let world = World::new(WorldSpec::new(1));
    world.block_on(async {
        let array = array(&world, raid5().fitted(3 * SIZE));
        let first = ModelledDisk::new(&array, content(&world, "a", SIZE).await).unwrap();
        let second = ModelledDisk::new(&array, content(&world, "b", SIZE).await).unwrap();
        let third = ModelledDisk::new(&array, content(&world, "c", SIZE + 4096).await);
        assert!(matches!(third, Err(ModelError::Full { .. })));
        assert_eq!(first.set_size(SIZE + 4096).await, Err(crate::DiskError::NoSpace));
        second.set_size(2 * SIZE).await.unwrap();
        assert_eq!(second.set_size(3 * SIZE).await, Err(crate::DiskError::NoSpace));
        write(&world, &second, 2 * SIZE - 4096, 1).await.unwrap();
    });
}

#[test]
fn removed_volume_frees_its_room() {
    let world = World::new(WorldSpec::new(1));
    world.block_on(async {
        let array = array(&world, raid5().fitted(2 * SIZE));
        let kept = ModelledDisk::new(&array, content(&world, "kept", SIZE).await).unwrap();
        for round in 0..10 {
            let other = ModelledDisk::new(&array, content(&world, &round.to_string(), SIZE).await).unwrap();
            write(&world, &other, SIZE - 4096, 1).await.unwrap();
        }
        kept.set_size(2 * SIZE).await.unwrap();
        assert!(ModelledDisk::new(&array, content(&world, "late", SIZE).await).is_err());
    });
}

#[test]
fn impossible_arrays_are_refused_with_a_reason() {
    let text = |spec: ArraySpec| spec.check().unwrap_err().to_string();
    assert!(text(ArraySpec { disks: 2, ..raid5() }).contains("RAID 5 of 2 disks"));
    assert!(text(ArraySpec::new(RaidLevel::Raid10, 5, DiskType::Ssd)).contains("even number"));
    assert!(text(ArraySpec { stripe_unit_bytes: 5_000, ..raid5() }).contains("power of two"));
}

#[test]
fn same_seed_takes_the_same_time_with_or_without_content() {
    let run = |stored| {
        let world = World::new(WorldSpec { content: stored, ..WorldSpec::new(3) });
        let seam = world.seam();
        world.block_on(async {
            let array = array(&world, raid5());
            let disk = ModelledDisk::new(&array, content(&world, "a", SIZE).await).unwrap();
            for _ in 0..100 {
                write(&world, &disk, seam.random() % (SIZE / 4096) * 4096, 1).await.unwrap();
            }
            seam.now()
        })
    };
    assert_eq!(run(StoredContent::Tags), run(StoredContent::Tags));
    assert_eq!(run(StoredContent::Tags), run(StoredContent::MetadataOnly));
}
