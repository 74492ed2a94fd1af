//! Kept records: blocks that were destaged are read from the log until its segments are reused.

use engine::{CoreSpec, Volume, WritePolicy};
use lab::fixture::{Fixture, FlashPlan, out_of_order_disk, read, write, write_evidence};
use seam::sim::{SimSeam, WorldSpec};
use seam::{Nanos, Seam};

const MIB: u64 = 1 << 20;
const FLASH_BYTES: u64 = 64 * MIB;
/// Blocks that are written, flushed and destaged; half of memory.
const BLOCKS: u64 = 128;
const SECTORS_PER_BLOCK: u64 = 8;

/// A volume on a disk of this size, with memory for 256 blocks and flash of 64 MiB.
fn served(seed: u64, disk_bytes: u64) -> (Fixture, Volume<SimSeam>) {
    let spec = WorldSpec { blocks: 256, time_max: Nanos::from_secs(100_000), ..WorldSpec::new(seed) };
    let fixture = Fixture::new(spec, CoreSpec { readahead_max_bytes: 0, ..CoreSpec::default() });
    fixture.add_disk("disk", out_of_order_disk(disk_bytes));
    fixture.open_flash(&FlashPlan { devices: 2, bytes: FLASH_BYTES, iops: 20_000 });
    let volume = fixture.attach("disk", |_| ()).expect("the first volume can be attached");
    fixture.wait_until_checked(std::slice::from_ref(&volume));
    (fixture, volume)
}

/// Writes every other block with its number plus `first_tag`, flushes after every 16, and destages all.
fn write_and_destage(fixture: &Fixture, volume: &Volume<SimSeam>, first_tag: u64) {
    fixture.world.block_on(async {
        for number in 0..BLOCKS {
            write(volume, number * 2 * SECTORS_PER_BLOCK, SECTORS_PER_BLOCK, first_tag + number).await.unwrap();
            if number % 16 == 15 {
                volume.flush().await.unwrap();
            }
        }
        volume.destage_all().await.unwrap();
        fixture.seam.sleep(Nanos::from_secs(1)).await;
    });
}

/// Reads other blocks until memory holds none of the written ones.
fn evict(fixture: &Fixture, volume: &Volume<SimSeam>) {
    fixture.world.block_on(read_others(volume, 1_000));
}

/// Reads `count` blocks that no test writes, twice.
async fn read_others(volume: &Volume<SimSeam>, count: u64) {
    for _ in 0..2 {
        for block in 1_000..1_000 + count {
            read(volume, block * SECTORS_PER_BLOCK, SECTORS_PER_BLOCK).await.unwrap();
        }
    }
}

fn read_tags(fixture: &Fixture, volume: &Volume<SimSeam>) -> Vec<u64> {
    fixture.world.block_on(async {
        let mut tags = Vec::new();
        for number in 0..BLOCKS {
            tags.push(read(volume, number * 2 * SECTORS_PER_BLOCK, SECTORS_PER_BLOCK).await.unwrap()[0]);
        }
        tags
    })
}

#[test]
fn destaged_blocks_are_read_from_the_log() {
    let (fixture, volume) = served(1, 16 * MIB);
    write_and_destage(&fixture, &volume, 1_000);
    evict(&fixture, &volume);
    let before = volume.stats();
    assert_eq!(read_tags(&fixture, &volume), (1_000..1_000 + BLOCKS).collect::<Vec<_>>());
    let after = volume.stats();
    let block_bytes = seam::BLOCK_BYTES as u64;
    let kept_blocks = (after.flash.kept_read_bytes - before.flash.kept_read_bytes) / block_bytes;
    // Some blocks were destaged before the flush, which then logged nothing of them.
    assert!(kept_blocks > BLOCKS * 9 / 10 && kept_blocks == after.flash.logged_bytes / block_bytes, "{kept_blocks}");
    assert_eq!(after.flash_hits - before.flash_hits, kept_blocks);
    assert_eq!(after.backing_reads - before.backing_reads, BLOCKS - kept_blocks, "{after:?}");
}

#[test]
fn newer_content_replaces_a_kept_record() {
    let (fixture, volume) = served(2, 16 * MIB);
    write_and_destage(&fixture, &volume, 1_000);
    fixture.world.block_on(async {
        // Not logged: destaged without a flush of the client.
        write(&volume, 0, SECTORS_PER_BLOCK, 7).await.unwrap();
        volume.destage_all().await.unwrap();
        let flags = engine::WriteFlags::default();
        volume.discard(engine::ByteOffset(2 * 4096), 4096, flags).await.unwrap();
        volume.destage_all().await.unwrap();
    });
    evict(&fixture, &volume);
    let tags = read_tags(&fixture, &volume);
    assert_eq!(tags[..3], [7, 0, 1_002]);
    write_and_destage(&fixture, &volume, 5_000);
    evict(&fixture, &volume);
    assert_eq!(read_tags(&fixture, &volume), (5_000..5_000 + BLOCKS).collect::<Vec<_>>());
}

#[test]
fn index_of_kept_records_is_bounded() {
    let (fixture, volume) = served(3, 256 * MIB);
    let memory_bytes = 256 * seam::BLOCK_BYTES as u64;
    let mut largest = 0;
    // Twice as many blocks as the log has, each once.
    for round in 0..2 * FLASH_BYTES / MIB {
        fixture.world.block_on(async {
            for number in 0..256 {
                write(&volume, (round * 256 + number) * SECTORS_PER_BLOCK, SECTORS_PER_BLOCK, round).await.unwrap();
            }
            volume.flush().await.unwrap();
            volume.destage_all().await.unwrap();
        });
        largest = largest.max(volume.stats().kept_index_bytes);
    }
    // Without the bound, it would have about 16,000 entries.
    assert!((memory_bytes / 16..memory_bytes / 6).contains(&largest), "{largest} bytes beside {memory_bytes}");
}

/// The backing is changed from outside.
#[test]
fn kept_records_end_when_cached_data_is_dropped() {
    let (fixture, volume) = served(4, 16 * MIB);
    write_and_destage(&fixture, &volume, 1_000);
    fixture.world.disk("disk").unwrap().set_tags(0, &[9; 2 * SECTORS_PER_BLOCK as usize]);
    fixture.world.block_on(volume.drop_cached_data(false)).unwrap();
    assert_eq!(read_tags(&fixture, &volume)[..2], [9, 1_001]);
}

/// The last block of a volume is partly past its end, and the backing has other content there once it has grown.
#[test]
fn kept_record_of_a_partial_last_block_ends_with_a_growth() {
    let (fixture, volume) = served(5, 8 * MIB + 512);
    let last = 8 * MIB / 512;
    fixture.world.block_on(async {
        write_evidence(&fixture.seam, &volume, 0).await;
        write(&volume, last, 1, 4).await.unwrap();
        volume.flush().await.unwrap();
        volume.destage_all().await.unwrap();
    });
    evict(&fixture, &volume);
    let before = volume.stats().flash.kept_read_bytes;
    assert_eq!(fixture.world.block_on(read(&volume, last, 1)).unwrap(), [4]);
    assert!(volume.stats().flash.kept_read_bytes > before, "the block was kept");
    fixture.world.block_on(volume.resize(Some(8 * MIB + 8_192), false)).unwrap();
    fixture.world.disk("disk").unwrap().set_tags(last + 1, &[9; 7]);
    assert_eq!(fixture.world.block_on(read(&volume, last, 8)).unwrap(), [4, 9, 9, 9, 9, 9, 9, 9]);
}

#[test]
fn write_around_leaves_blocks_of_pages_on_flash_uncached() {
    let (fixture, volume) = served(8, 16 * MIB);
    fixture.world.block_on(async {
        for _ in 0..6 {
            read(&volume, 0, 16 * SECTORS_PER_BLOCK).await.unwrap();
            read_others(&volume, 400).await;
        }
        fixture.seam.sleep(Nanos::from_secs(1)).await;
        assert!(volume.stats().flash.page_count > 0, "no page is on flash");
        volume.set_policy(WritePolicy::WriteAround).await.unwrap();
        write(&volume, 0, SECTORS_PER_BLOCK, 7).await.unwrap();
        volume.flush().await.unwrap();
        let before = volume.stats().memory_hits;
        assert_eq!(read(&volume, 0, 1).await.unwrap(), [7]);
        assert_eq!(volume.stats().memory_hits, before, "the written block is in memory");
    });
}

/// Block 0 of a page on flash is written and destaged. Later blocks fill the log past the reuse of its record; with
/// `is_read`, it is read on the way. Returns the number of its reads that went to the backing.
fn misses_past_the_record(seed: u64, is_read: bool) -> usize {
    let (fixture, volume) = served(seed, 256 * MIB);
    let kept_reads = || volume.stats().flash.kept_read_bytes;
    fixture.world.block_on(async {
        // Enough uses for a promotion, with other reads between them.
        for _ in 0..6 {
            read(&volume, 0, 16 * SECTORS_PER_BLOCK).await.unwrap();
            read_others(&volume, 400).await;
        }
        write_evidence(&fixture.seam, &volume, 60_000).await;
        write(&volume, 0, SECTORS_PER_BLOCK, 7).await.unwrap();
        volume.flush().await.unwrap();
        volume.destage_all().await.unwrap();
        let (rounds, mut misses) = (FLASH_BYTES / MIB * 4, 0);
        for round in 1..=rounds {
            for block in 0..256 {
                let at = 4_096 + (round * 256 + block) % 32_768;
                write(&volume, at * SECTORS_PER_BLOCK, SECTORS_PER_BLOCK, 8).await.unwrap();
            }
            volume.flush().await.unwrap();
            volume.destage_all().await.unwrap();
            if is_read || round == rounds {
                read_others(&volume, 400).await;
                let (kept_before, hits_before) = (kept_reads(), volume.stats().flash_hits);
                assert_eq!(read(&volume, 0, 1).await.unwrap(), [7]);
                misses += usize::from(volume.stats().flash_hits == hits_before);
                assert!(round < rounds || kept_reads() == kept_before, "the record has not expired");
                fixture.seam.sleep(Nanos::from_millis(100)).await;
            }
        }
        misses
    })
}

#[test]
fn page_takes_over_a_block_that_is_read_before_its_record_expires() {
    assert_eq!(misses_past_the_record(6, true), 0, "misses of a block that is read often");
    assert_eq!(
        misses_past_the_record(7, false),
        1,
        "misses of a block that is read once, after its record has expired"
    );
}
