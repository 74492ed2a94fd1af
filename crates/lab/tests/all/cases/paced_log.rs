//! The pace of the flash log: dirty data that nothing waits for is appended in small batches, so that reads do not wait
//! behind the programs of large ones. A flush of a client ends the pace.

use engine::{CoreSpec, VolumeId, VolumeSpec};
use lab::fixture::{Fixture, write};
use lab::torture::flash::FlashOptions;
use seam::Nanos;
use seam::Seam;
use seam::sim::{Fault, Ops, Rule, SimDiskSpec, When, WorldSpec};

const MIB: u64 = 1 << 20;
/// Blocks of memory: 64 MiB.
const MEMORY_BLOCKS: usize = 16_384;
/// Blocks written: enough to be logged in the background, and too few to be spilled.
const WRITTEN_BLOCKS: u64 = 2_600;
/// Blocks of a background batch with its header.
const BATCH_BLOCKS: u64 = 33;

#[test]
fn background_batches_are_small_until_a_client_flushes() {
    let log = FlashOptions::plain(2, 4 << 20, 20);
    let world = WorldSpec { blocks: MEMORY_BLOCKS, ..WorldSpec::new(1) };
    let fixture = Fixture::new(world, CoreSpec::default());
    fixture.add_disk("disk", SimDiskSpec::new(64 * MIB));
    log.add_disks(&fixture.world);
    let disk = fixture.open("disk");
    let flash = fixture.world.disk("flash1").expect("the disk was added");
    fixture.world.block_on(async {
        log.open(&fixture.seam, &fixture.core, true, false).await.expect("the devices are empty");
        let backing = engine::Backing::plain(disk);
        let spec = VolumeSpec::new("disk", VolumeId(1));
        let volume = fixture.core.attach_recovered(spec, backing).await.expect("the log is empty");
        fixture.world.disk("disk").unwrap().add_fault(Rule::new(Fault::Error, Ops::CHANGE, When::Always));
        for block in 0..WRITTEN_BLOCKS {
            write(&volume, block * 8, 8, block + 1).await.unwrap();
        }
        let before = flash.counts();
        fixture.seam.sleep(Nanos::from_millis(100)).await;
        let after = flash.counts();
        let blocks = (after.write_bytes - before.write_bytes) / 4096;
        // One batch in each interval of 2 ms.
        assert!((500..=51 * BATCH_BLOCKS).contains(&blocks), "{blocks} blocks in 100 ms");
        let begin = fixture.seam.now();
        volume.flush().await.unwrap();
        let (took, flushed) = (fixture.seam.now().since(begin), flash.counts());
        let (blocks, batches) = ((flushed.write_bytes - after.write_bytes) / 4096, flushed.writes - after.writes);
        assert!(blocks > WRITTEN_BLOCKS / 4 && blocks > batches * 50, "{blocks} blocks in {batches} batches");
        assert!(took < Nanos::from_millis(WRITTEN_BLOCKS / 2 / 32), "the flush took {took}");
    });
}
