//! Kill of a process with surviving memory and a flash log: neither brings older content back over newer content of the
//! other or of the backing.

use engine::spec::Sabotage;
use engine::{AttachError, Backing, ByteOffset, CoreSpec, Volume, VolumeId, VolumeSpec, WriteFlags, WriteSource};
use lab::fixture::{Fixture, durable_tags, read, write};
use lab::torture::flash::FlashOptions;
use seam::sim::{CrashMode, Fault, Ops, PersistedPool, Rule, SimBlockMut, SimDiskSpec, SimSeam, When, WorldSpec};
use seam::{Nanos, SECTOR_BYTES, SECTORS_PER_BLOCK, Seam};

const MIB: u64 = 1 << 20;

fn log() -> FlashOptions {
    FlashOptions::plain(2, 256 << 10, 100)
}

fn world(blocks: usize) -> WorldSpec {
    WorldSpec { blocks, persists_memory: true, ..WorldSpec::new(1) }
}

/// Content of a block: a tag per sector.
struct BlockTags([u64; SECTORS_PER_BLOCK]);

impl WriteSource<SimSeam> for BlockTags {
    fn fill(&mut self, _: usize, block: &mut SimBlockMut, at: usize, len: usize) {
        (at / SECTOR_BYTES..(at + len) / SECTOR_BYTES).for_each(|sector| block.set_tag(sector, self.0[sector]));
    }
}

/// Creates a world with a disk of 16 MiB, a log, and a volume over both.
fn first_session(blocks: usize, sabotage: Sabotage) -> (Fixture, Volume<SimSeam>) {
    let fixture = Fixture::new(world(blocks), CoreSpec { sabotage, ..CoreSpec::default() });
    fixture.add_disk("disk", SimDiskSpec::new(16 * MIB));
    log().add_disks(&fixture.world);
    let backing = Backing::plain(fixture.open("disk"));
    let volume = fixture.world.block_on(async {
        log().open(&fixture.seam, &fixture.core, true, false).await.expect("healthy devices can be formatted");
        fixture.core.attach_recovered(VolumeSpec::new("disk", VolumeId(1)), backing).await
    });
    (fixture, volume.expect("healthy devices can be formatted"))
}

/// Kills the process and attaches the volume in the next one.
fn kill(fixture: Fixture, volume: Volume<SimSeam>, blocks: usize) -> (Fixture, Volume<SimSeam>) {
    assert!(fixture.world.violations().is_empty(), "{:?}", fixture.world.violations());
    let image = fixture.world.persisted_pool();
    assert!(image.is_complete());
    drop(volume);
    let fixture = fixture.crash(CrashMode::Kill, world(blocks));
    let volume = attach(&fixture, &image).expect("a backing without faults does not fail");
    (fixture, volume)
}

/// Attaches the volume with its data from the log and from `image`.
fn attach(fixture: &Fixture, image: &PersistedPool) -> Result<Volume<SimSeam>, AttachError> {
    let volume_image = image.images_by_owner().remove(&1).unwrap_or_default();
    let backing = Backing::plain(fixture.open("disk"));
    let attached = fixture.world.block_on(async {
        log().open(&fixture.seam, &fixture.core, false, false).await.expect("the devices are intact");
        fixture
            .core
            .attach_with_memory(VolumeSpec::new("disk", VolumeId(1)), backing, &volume_image, |index| {
                BlockTags(image.tags(index))
            })
            .await
    });
    attached.map(|(volume, _)| volume)
}

/// Waits until all dirty data has been destaged by age, without a client flush that would record it in the log.
async fn wait_until_destaged_by_age(fixture: &Fixture, volume: &Volume<SimSeam>) {
    while volume.stats().dirty_bytes + volume.stats().written_bytes > 0 {
        fixture.seam.sleep(Nanos::from_secs(1)).await;
    }
}

/// Writes a block whose older content is in the log and whose newer content is destaged without a client flush. Returns
/// the content that the next daemon reads, and the one after it.
fn rewrite_and_destage(sabotage: Sabotage) -> [Vec<u64>; 2] {
    let (fixture, volume) = first_session(4096, sabotage);
    fixture.world.block_on(async {
        write(&volume, 0, 64, 1).await.unwrap();
        volume.flush().await.unwrap();
        write(&volume, 8, 8, 2).await.unwrap();
        volume.discard(ByteOffset(16 * 512), 8 * 512, WriteFlags::default()).await.unwrap();
        wait_until_destaged_by_age(&fixture, &volume).await;
    });
    assert_eq!(durable_tags(&fixture.world.disk("disk").unwrap(), 0, 32), [[1; 8], [2; 8], [0; 8], [1; 8]].concat());
    let (fixture, volume) = kill(fixture, volume, 4096);
    let first = fixture.world.block_on(read(&volume, 0, 32)).unwrap();
    let (fixture, volume) = kill(fixture, volume, 4096);
    [first, fixture.world.block_on(read(&volume, 0, 32)).unwrap()]
}

#[test]
fn old_record_does_not_replace_destaged_data() {
    let expected = [[1; 8], [2; 8], [0; 8], [1; 8]].concat();
    assert_eq!(rewrite_and_destage(Sabotage::None), [expected.clone(), expected.clone()]);
    let sabotaged = rewrite_and_destage(Sabotage::OldRecords);
    assert_eq!(sabotaged[0], [[1; 8]; 4].concat(), "without its tag the old record is recovered");
}

#[test]
fn flush_removes_tags_of_outdated_records() {
    let (fixture, volume) = first_session(4096, Sabotage::None);
    fixture.world.block_on(async {
        write(&volume, 0, 64, 1).await.unwrap();
        volume.flush().await.unwrap();
        write(&volume, 8, 8, 2).await.unwrap();
        wait_until_destaged_by_age(&fixture, &volume).await;
        assert!(!fixture.world.persisted_pool().images_by_owner()[&1].outdated.is_empty());
        volume.flush().await.unwrap();
    });
    assert!(fixture.world.persisted_pool().images_by_owner().is_empty(), "{:?}", fixture.world.persisted_pool());
}

/// A spilled block exists only on flash, so a tag that its record is outdated would lose it.
#[test]
fn spilled_blocks_survive_a_destage_of_older_versions() {
    /// Blocks of memory, few enough that written blocks must spill.
    const MEMORY_BLOCKS: usize = 512;
    let (mut fixture, mut volume) = first_session(MEMORY_BLOCKS, Sabotage::None);
    fixture.world.block_on(async {
        for block in 0..1_000 {
            write(&volume, block * 8, 8, 10_000 + block).await.unwrap();
            // More outdated records than the list holds would be written through to the backing.
            if block % 100 == 99 {
                volume.flush().await.unwrap();
            }
        }
        wait_until_destaged_by_age(&fixture, &volume).await;
        // Few enough that they are destaged before the log is flushed for them.
        for block in 0..10 {
            write(&volume, block * 8, 8, 20_000 + block).await.unwrap();
        }
        wait_until_destaged_by_age(&fixture, &volume).await;
        assert!(!fixture.world.persisted_pool().images_by_owner()[&1].outdated.is_empty());
        fixture.world.disk("disk").unwrap().add_fault(Rule::new(Fault::Error, Ops::CHANGE, When::Always));
        for block in 0..200 {
            write(&volume, block * 8, 8, 30_000 + block).await.unwrap();
        }
        let spilled = volume.stats().spilled_bytes / 4096;
        assert!((50..200).contains(&spilled), "{spilled} blocks are spilled");
        // Overwrites some blocks in part after the log has them.
        for block in 0..20 {
            write(&volume, block * 8, 1, 40_000 + block).await.unwrap();
        }
    });
    for session in 0..3 {
        (fixture, volume) = kill(fixture, volume, MEMORY_BLOCKS);
        fixture.world.block_on(async {
            for block in 0..300 {
                let version = if block < 200 { 30_000 } else { 10_000 };
                let mut expected = [version + block; 8];
                expected[0] += if block < 20 { 10_000 } else { 0 };
                assert_eq!(read(&volume, block * 8, 8).await.unwrap(), expected, "block {block} in session {session}");
            }
        });
    }
}

#[test]
fn outdated_records_stay_retired_without_surviving_memory() {
    let (fixture, volume) = first_session(4096, Sabotage::None);
    fixture.world.block_on(async {
        write(&volume, 0, 64, 1).await.unwrap();
        volume.flush().await.unwrap();
        write(&volume, 8, 8, 2).await.unwrap();
        wait_until_destaged_by_age(&fixture, &volume).await;
    });
    let image = fixture.world.persisted_pool();
    assert!(!image.images_by_owner()[&1].has_content(), "the image holds only tags about the log");
    drop(volume);
    let without_memory = WorldSpec { persists_memory: false, ..world(4096) };
    let fixture = fixture.crash(CrashMode::Kill, without_memory.clone());
    drop(attach(&fixture, &image).expect("a backing without faults does not fail"));
    // The tags no longer exist in this session.
    let fixture = fixture.crash(CrashMode::Kill, without_memory);
    let volume = attach(&fixture, &PersistedPool::default()).expect("a backing without faults does not fail");
    assert_eq!(fixture.world.block_on(read(&volume, 0, 24)).unwrap(), [[1; 8], [2; 8], [1; 8]].concat());
}
