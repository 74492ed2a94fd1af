//! The process is killed, its memory is kept, and beside it lies a flash log: neither brings anything old back over what the other, or the
//! backing, has newer.

use engine::spec::Sabotage;
use engine::{AttachError, Backing, CoreSpec, Volume, VolumeSpec, WriteFlags, WriteSource};
use lab::rig::{Rig, durable, read, write};
use lab::torture::flash::FlashOptions;
use seam::sim::{CrashMode, Fault, LeftBehind, Ops, Rule, SimBlockMut, SimDiskSpec, SimSeam, When, WorldSpec};
use seam::{Nanos, SECTOR_BYTES, SECTORS_PER_BLOCK, Seam};

const MIB: u64 = 1 << 20;

fn log() -> FlashOptions {
    FlashOptions::plain(2, 256 << 10, 100)
}

fn world(blocks: usize) -> WorldSpec {
    WorldSpec { blocks, keeps: true, ..WorldSpec::new(1) }
}

struct Tags([u64; SECTORS_PER_BLOCK]);

impl WriteSource<SimSeam> for Tags {
    fn fill(&mut self, _: usize, block: &mut SimBlockMut, at: usize, len: usize) {
        (at / SECTOR_BYTES..(at + len) / SECTOR_BYTES).for_each(|sector| block.set_tag(sector, self.0[sector]));
    }
}

/// A world with a disk of 16 MiB, a log, and a volume over both.
fn first_life(blocks: usize, sabotage: Sabotage) -> (Rig, Volume<SimSeam>) {
    let rig = Rig::new(world(blocks), CoreSpec { sabotage, ..CoreSpec::default() });
    rig.add_disk("disk", SimDiskSpec::new(16 * MIB));
    log().add_disks(&rig.world);
    let backing = Backing::plain(rig.open("disk"));
    let volume = rig.world.block_on(async {
        log().open(&rig.seam, &rig.core, true, false).await.expect("new devices");
        rig.core.attach_recovered(VolumeSpec::new("disk", 1), backing).await
    });
    (rig, volume.expect("nothing is there"))
}

/// Kills the process and starts the next one.
fn kill(rig: Rig, volume: Volume<SimSeam>, blocks: usize) -> (Rig, Volume<SimSeam>) {
    assert!(rig.world.violations().is_empty(), "{:?}", rig.world.violations());
    let kept = rig.world.left_behind();
    assert!(kept.is_whole());
    drop(volume);
    let rig = rig.crash(CrashMode::Kill, world(blocks));
    let volume = attach(&rig, &kept).expect("the backing is well");
    (rig, volume)
}

/// Serves the volume with what the log and `kept` have of it.
fn attach(rig: &Rig, kept: &LeftBehind) -> Result<Volume<SimSeam>, AttachError> {
    let left = kept.sorted().remove(&1).unwrap_or_default();
    let backing = Backing::plain(rig.open("disk"));
    let attached = rig.world.block_on(async {
        log().open(&rig.seam, &rig.core, false, false).await.expect("the devices are whole");
        rig.core.attach_left(VolumeSpec::new("disk", 1), backing, &left, |place| Tags(kept.tags(place))).await
    });
    attached.map(|(volume, _)| volume)
}

/// All of it reaches the backing, and no flush of a client's says so to the log.
async fn destaged_by_age(rig: &Rig, volume: &Volume<SimSeam>) {
    while volume.stats().dirty_bytes + volume.stats().written_bytes > 0 {
        rig.seam.sleep(Nanos::from_secs(1)).await;
    }
}

/// A block whose older content is in the log, and whose newer content went to the backing without a flush of the client's. What the next
/// daemon reads, and the one after it.
fn rewritten_and_destaged(sabotage: Sabotage) -> [Vec<u64>; 2] {
    let (rig, volume) = first_life(4096, sabotage);
    rig.world.block_on(async {
        write(&volume, 0, 64, 1).await.unwrap();
        volume.flush().await.unwrap();
        write(&volume, 8, 8, 2).await.unwrap();
        volume.discard(16 * 512, 8 * 512, WriteFlags::default()).await.unwrap();
        destaged_by_age(&rig, &volume).await;
    });
    assert_eq!(durable(&rig.world.disk("disk").unwrap(), 0, 32), [[1; 8], [2; 8], [0; 8], [1; 8]].concat());
    let (rig, volume) = kill(rig, volume, 4096);
    let first = rig.world.block_on(read(&volume, 0, 32)).unwrap();
    let (rig, volume) = kill(rig, volume, 4096);
    [first, rig.world.block_on(read(&volume, 0, 32)).unwrap()]
}

#[test]
fn an_old_record_comes_not_back_over_what_was_acknowledged_and_destaged() {
    let expected = [[1; 8], [2; 8], [0; 8], [1; 8]].concat();
    assert_eq!(rewritten_and_destaged(Sabotage::None), [expected.clone(), expected.clone()]);
    let caught = rewritten_and_destaged(Sabotage::OldRecords);
    assert_eq!(caught[0], [[1; 8]; 4].concat(), "the note is what kept the old record away");
}

#[test]
fn what_a_flush_said_of_the_log_is_forgotten_with_it() {
    let (rig, volume) = first_life(4096, Sabotage::None);
    rig.world.block_on(async {
        write(&volume, 0, 64, 1).await.unwrap();
        volume.flush().await.unwrap();
        write(&volume, 8, 8, 2).await.unwrap();
        destaged_by_age(&rig, &volume).await;
        assert!(!rig.world.left_behind().sorted()[&1].outdated.is_empty());
        volume.flush().await.unwrap();
    });
    assert!(rig.world.left_behind().sorted().is_empty(), "{:?}", rig.world.left_behind());
}

/// What rests on flash is nowhere else: word that its record is out of date would lose it.
#[test]
fn what_rests_on_flash_is_there_though_an_older_version_was_destaged_since_the_last_flush() {
    /// Blocks of memory, so few that what is written has to rest.
    const MEMORY: usize = 512;
    let (mut rig, mut volume) = first_life(MEMORY, Sabotage::None);
    rig.world.block_on(async {
        for block in 0..1_000 {
            write(&volume, block * 8, 8, 10_000 + block).await.unwrap();
            // More than could be listed would go through the backing.
            if block % 100 == 99 {
                volume.flush().await.unwrap();
            }
        }
        for block in 0..60 {
            write(&volume, block * 8, 8, 20_000 + block).await.unwrap();
        }
        destaged_by_age(&rig, &volume).await;
        assert!(!rig.world.left_behind().sorted()[&1].outdated.is_empty());
        rig.world.disk("disk").unwrap().add_fault(Rule::new(Fault::Error, Ops::CHANGE, When::Always));
        for block in 0..200 {
            write(&volume, block * 8, 8, 30_000 + block).await.unwrap();
        }
        let rested = volume.stats().resting_bytes / 4096;
        assert!((50..200).contains(&rested), "{rested} blocks rest");
        // Some in part, and after the log had them.
        for block in 0..20 {
            write(&volume, block * 8, 1, 40_000 + block).await.unwrap();
        }
    });
    for life in 0..3 {
        (rig, volume) = kill(rig, volume, MEMORY);
        rig.world.block_on(async {
            for block in 0..300 {
                let version = if block < 200 { 30_000 } else { 10_000 };
                let mut expected = [version + block; 8];
                expected[0] += if block < 20 { 10_000 } else { 0 };
                assert_eq!(read(&volume, block * 8, 8).await.unwrap(), expected, "block {block} in life {life}");
            }
        });
    }
}

#[test]
fn what_was_left_out_as_old_does_not_come_back_though_the_next_daemon_keeps_no_memory() {
    let (rig, volume) = first_life(4096, Sabotage::None);
    rig.world.block_on(async {
        write(&volume, 0, 64, 1).await.unwrap();
        volume.flush().await.unwrap();
        write(&volume, 8, 8, 2).await.unwrap();
        destaged_by_age(&rig, &volume).await;
    });
    let kept = rig.world.left_behind();
    assert!(!kept.sorted()[&1].has_content(), "what is left is word of the log alone");
    drop(volume);
    let forgetful = WorldSpec { keeps: false, ..world(4096) };
    let rig = rig.crash(CrashMode::Kill, forgetful.clone());
    drop(attach(&rig, &kept).expect("the backing is well"));
    // By now nobody has the notes.
    let rig = rig.crash(CrashMode::Kill, forgetful);
    let volume = attach(&rig, &LeftBehind::default()).expect("the backing is well");
    assert_eq!(rig.world.block_on(read(&volume, 0, 24)).unwrap(), [[1; 8], [2; 8], [1; 8]].concat());
}
