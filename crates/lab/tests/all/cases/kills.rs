//! Kill of a process whose memory survives: acknowledged data is there, at any step of its way to the backing.

use std::future::poll_fn;
use std::pin::pin;

use engine::{AttachError, Backing, ByteOffset, CoreSpec, Volume, VolumeSpec, WriteFlags, WriteSource};
use lab::fixture::{Fixture, out_of_order_disk, read, spec, write};
use seam::sim::{CrashMode, Fault, Ops, PersistedPool, Rule, SimBlockMut, SimDiskSpec, SimSeam, When, WorldSpec};
use seam::{Nanos, SECTOR_BYTES, SECTORS_PER_BLOCK, Seam};

const MIB: u64 = 1 << 20;

fn world() -> WorldSpec {
    WorldSpec { blocks: 4096, persists_memory: true, ..WorldSpec::new(1) }
}

fn fixture(disk: SimDiskSpec) -> (Fixture, Volume<SimSeam>) {
    let fixture = Fixture::new(world(), CoreSpec::default());
    fixture.add_disk("disk", disk);
    let volume = fixture.attach("disk", |_| ()).unwrap();
    (fixture, volume)
}

/// Content of a block: a tag per sector.
struct BlockTags([u64; SECTORS_PER_BLOCK]);

impl WriteSource<SimSeam> for BlockTags {
    fn fill(&mut self, _: usize, block: &mut SimBlockMut, at: usize, len: usize) {
        (at / SECTOR_BYTES..(at + len) / SECTOR_BYTES).for_each(|sector| block.set_tag(sector, self.0[sector]));
    }
}

/// Attaches the disk with the recovered memory image.
fn attach_with_memory(
    fixture: &Fixture,
    image: &PersistedPool,
    edit: fn(&mut VolumeSpec),
) -> impl Future<Output = Result<(Volume<SimSeam>, u64), AttachError>> + use<> {
    let (core, image) = (fixture.core.clone(), image.clone());
    let (spec, backing) = (spec("disk", edit), Backing::plain(fixture.open("disk")));
    async move {
        let volume_image = image.images_by_owner().into_values().next().expect("the image has one volume");
        core.attach_with_memory(spec, backing, &volume_image, |index| BlockTags(image.tags(index))).await
    }
}

/// Kills the process and attaches the volume in the next one, with a specification changed by `edit`.
fn kill(
    fixture: Fixture,
    volume: Volume<SimSeam>,
    edit: fn(&mut VolumeSpec),
) -> (Fixture, Volume<SimSeam>, PersistedPool) {
    let image = fixture.world.persisted_pool();
    drop(volume);
    let fixture = fixture.crash(CrashMode::Kill, world());
    let (volume, _) = fixture
        .world
        .block_on(attach_with_memory(&fixture, &image, edit))
        .expect("a backing without faults does not fail");
    (fixture, volume, image)
}

#[test]
fn acknowledged_writes_survive_repeated_kills() {
    let (fixture, volume) = fixture(SimDiskSpec::new(MIB));
    fixture.world.block_on(write(&volume, 3, 20, 7)).unwrap();
    fixture.world.block_on(volume.discard(ByteOffset(8 * 512), 8 * 512, WriteFlags::default())).unwrap();
    let (fixture, volume, _) = kill(fixture, volume, |_| ());
    fixture.world.block_on(write(&volume, 4, 1, 9)).unwrap();
    let (fixture, volume, _) = kill(fixture, volume, |_| ());
    let expected = [vec![0; 3], vec![7, 9, 7, 7, 7], vec![0; 8], vec![7; 7], vec![0; 1]].concat();
    assert_eq!(fixture.world.block_on(read(&volume, 0, 24)).unwrap(), expected);
}

#[test]
fn zeroes_and_a_write_into_them_survive_a_kill() {
    let (fixture, volume) = fixture(SimDiskSpec::new(MIB));
    fixture.world.block_on(write(&volume, 0, 64, 7)).unwrap();
    fixture.world.block_on(volume.flush()).unwrap();
    fixture.world.block_on(volume.discard(ByteOffset::ZERO, 64 * 512, WriteFlags::default())).unwrap();
    fixture.world.block_on(write(&volume, 17, 1, 9)).unwrap();
    let (fixture, volume, image) = kill(fixture, volume, |_| ());
    assert!(image.is_complete());
    let expected = [vec![0; 17], vec![9], vec![0; 46]].concat();
    assert_eq!(fixture.world.block_on(read(&volume, 0, 64)).unwrap(), expected);
}

/// A clean block belongs to the backing: an old tag must not bring older content back over it.
#[test]
fn destaged_data_leaves_no_tag() {
    let (fixture, volume) = fixture(out_of_order_disk(MIB));
    fixture.world.block_on(async {
        write(&volume, 0, 64, 7).await.unwrap();
        volume.discard(ByteOffset::ZERO, 32 * 512, WriteFlags::default()).await.unwrap();
        write(&volume, 5, 1, 8).await.unwrap();
        // The blocks are overwritten on their way to the backing, so that a new buffer replaces another one.
        let sending = volume.clone();
        fixture.seam.spawn(async move { sending.flush().await.unwrap() });
        fixture.seam.sleep(Nanos::from_micros(60)).await;
        write(&volume, 0, 64, 9).await.unwrap();
        volume.flush().await.unwrap();
    });
    assert!(fixture.world.persisted_pool().images_by_owner().is_empty(), "{:?}", fixture.world.persisted_pool());
    assert!(fixture.world.violations().is_empty(), "{:?}", fixture.world.violations());
}

#[test]
fn write_through_volume_destages_recovered_data_before_serving() {
    let (fixture, volume) = fixture(SimDiskSpec::new(MIB));
    fixture.world.block_on(write(&volume, 0, 8, 7)).unwrap();
    let (fixture, _volume, _) = kill(fixture, volume, |spec| spec.policy = engine::WritePolicy::WriteThrough);
    let disk = fixture.world.disk("disk").expect("the disks were adopted");
    assert_eq!(lab::fixture::durable_tags(&disk, 0, 8), [7; 8]);
}

/// A second recovery writes tags of its own. Tags of the first recovery beside them would bring old content back later.
#[test]
fn failed_recovery_leaves_tags_in_the_old_image_only() {
    let (fixture, volume) = fixture(SimDiskSpec::new(MIB));
    fixture.world.block_on(write(&volume, 0, 8, 7)).unwrap();
    let image = fixture.world.persisted_pool();
    drop(volume);
    let fixture = fixture.crash(CrashMode::Kill, world());
    let write_through = |spec: &mut VolumeSpec| spec.policy = engine::WritePolicy::WriteThrough;
    let disk = fixture.world.disk("disk").expect("the disks were adopted");
    disk.add_fault(Rule::new(Fault::Error, Ops::CHANGE | Ops::FLUSH, When::Always));
    let attached = fixture.world.block_on(attach_with_memory(&fixture, &image, write_through));
    assert!(matches!(attached, Err(AttachError::PersistedMemory(..))));
    assert!(fixture.core.find("disk").is_none());
    assert!(fixture.world.persisted_pool().images_by_owner().is_empty(), "{:?}", fixture.world.persisted_pool());
}

#[test]
fn volume_is_invisible_until_recovery_is_complete() {
    let (fixture, volume) = fixture(out_of_order_disk(MIB));
    fixture.world.block_on(write(&volume, 0, 64, 7)).unwrap();
    let image = fixture.world.persisted_pool();
    drop(volume);
    let fixture = fixture.crash(CrashMode::Kill, world());
    let attaching = attach_with_memory(&fixture, &image, |spec| spec.policy = engine::WritePolicy::WriteThrough);
    fixture.world.block_on(async {
        let mut attaching = pin!(attaching);
        let mut polls = 0;
        let (volume, _) = poll_fn(|context| {
            let polled = attaching.as_mut().poll(context);
            polls += usize::from(polled.is_pending());
            assert_eq!(fixture.core.find("disk").is_some(), polled.is_ready());
            polled
        })
        .await
        .unwrap();
        assert!(polls > 0, "the backing is slow");
        assert_eq!(read(&volume, 0, 64).await.unwrap(), [7; 64]);
    });
}

#[test]
fn block_past_a_moved_end_is_not_recovered() {
    let (fixture, volume) = fixture(SimDiskSpec::new(MIB));
    fixture.world.block_on(write(&volume, 0, 2048, 7)).unwrap();
    let image = fixture.world.persisted_pool();
    drop(volume);
    let fixture = fixture.crash(CrashMode::Kill, world());
    let volume = fixture.attach("disk", |_| ()).unwrap();
    fixture.world.block_on(volume.resize(Some(MIB / 2), false)).unwrap();
    drop(volume);
    let fixture = fixture.crash(CrashMode::Kill, world());
    let (volume, examined) = fixture.world.block_on(attach_with_memory(&fixture, &image, |_| ())).unwrap();
    assert_eq!(examined, 256, "all blocks were examined");
    assert_eq!(fixture.world.block_on(read(&volume, 1016, 8)).unwrap(), [7; 8]);
}

#[test]
fn zero_ranges_without_tags_mark_the_image_incomplete() {
    let (fixture, volume) = fixture(SimDiskSpec::new(64 * MIB));
    for position in 0..200 {
        fixture.world.block_on(volume.discard(ByteOffset(position * 16_384), 4096, WriteFlags::default())).unwrap();
    }
    assert!(!fixture.world.persisted_pool().is_complete());
}
