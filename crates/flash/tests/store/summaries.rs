//! Summaries of segments: recovery reads them instead of headers, and without them finds the same.

use flash::format::FIRST_SEGMENT_BYTES;
use flash::{OpenOptions, RecoveredRecord, Sabotage};
use seam::sim::{CrashMode, World};

use crate::crash_points::crash_at_every_io;
use crate::service::{append, opened};
use crate::world::{NAMES, SMALL, SUMMARIZED, StoreShape, formatted, open, world_after_crash};

/// Blocks of a segment, and of its summary at the end.
const SEGMENT_BLOCKS: u64 = 64;
const SUMMARY_BLOCKS: u64 = 1;
/// Batches of one block that fill nine segments, and a part of a tenth.
const BATCHES: u64 = 300;

/// A crashed world with a log of batches of one block.
fn crashed_with_small_batches() -> World {
    let shape = StoreShape { segment_bytes: SEGMENT_BLOCKS * 4096, segments: 20, ..SMALL };
    let world = formatted(1, shape);
    let seam = world.seam();
    world.block_on(async {
        let store = opened(&world, &seam).await;
        for block in 0..BATCHES {
            append(&seam, &store, block).await;
        }
    });
    world_after_crash(2, world.crash(CrashMode::LoseAll))
}

/// Opens the store. Returns its live records, and the number of reads that the opening took on both devices.
fn recover(world: &World) -> (Vec<RecoveredRecord>, u64) {
    let seam = world.seam();
    let reads = || NAMES.map(|name| world.disk(name).expect("the disk exists").counts().reads).iter().sum::<u64>();
    let before = reads();
    let recovered = world.block_on(async { open(world, &seam, OpenOptions::default()).await.expect("it opens").1 });
    (recovered, reads() - before)
}

#[test]
fn recovery_reads_summaries_instead_of_headers() {
    let (recovered, reads) = recover(&crashed_with_small_batches());
    assert_eq!(recovered.len() as u64, BATCHES);
    assert!(reads < BATCHES, "{reads} reads for {BATCHES} batches");
}

#[test]
fn recovery_with_damaged_summaries_finds_the_same_by_headers() {
    let (expected, _) = recover(&crashed_with_small_batches());
    let last_block = SEGMENT_BLOCKS - SUMMARY_BLOCKS;
    let damage = |world: &World, name: &str| {
        for segment in 0..20 {
            let sector = (FIRST_SEGMENT_BYTES + (segment * SEGMENT_BLOCKS + last_block) * 4096) / 512;
            world.disk(name).expect("the disk exists").flip_bit(sector + 1, 9);
        }
    };
    let world = crashed_with_small_batches();
    damage(&world, NAMES[0]);
    let (recovered, reads) = recover(&world);
    assert_eq!(recovered, expected);
    assert!(reads < BATCHES, "the other device has summaries: {reads} reads");
    let world = crashed_with_small_batches();
    NAMES.iter().for_each(|name| damage(&world, name));
    let (recovered, reads) = recover(&world);
    assert_eq!(recovered, expected);
    assert!(reads > BATCHES, "recovery reads each header: {reads} reads");
}

/// More segments than recovery reads ahead at once.
#[test]
fn recovery_of_a_long_log_reads_ahead_in_every_part() {
    let shape = StoreShape { segment_bytes: SEGMENT_BLOCKS * 4096, segments: 170, ..SMALL };
    let world = formatted(1, shape);
    let seam = world.seam();
    // Batches of one block: 31 fill a segment. The second opening begins a segment, and repeats some blocks.
    let (batches, distinct) = (4_600, 4_000);
    for range in [0..1_000, 1_000..batches] {
        world.block_on(async {
            let store = opened(&world, &seam).await;
            for number in range {
                append(&seam, &store, number % distinct).await;
            }
        });
    }
    let world = world_after_crash(2, world.crash(CrashMode::LoseAll));
    let (recovered, reads) = recover(&world);
    let blocks: Vec<_> = recovered.iter().map(|record| record.address.block.0).collect();
    assert_eq!(blocks, (0..distinct).collect::<Vec<_>>());
    // The first block of each segment on both devices, and a summary for each.
    assert!(reads < 4 * 170, "{reads} reads for {batches} batches");
}

#[test]
fn summarized_records_survive_a_crash_at_any_io() {
    for seed in 0..2 {
        let counts = crash_at_every_io(seed, SUMMARIZED, Sabotage::None, 160)
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        println!("seed {seed}: {counts:?}");
        assert!(counts.boundaries > 300 && counts.crashes_in_recovery > 1_000, "{counts:?}");
    }
}

#[test]
fn lying_summary_is_caught() {
    let caught = (0..6)
        .find_map(|seed| Some((seed, crash_at_every_io(seed, SUMMARIZED, Sabotage::WrongSummary, u64::MAX).err()?)));
    let (seed, error) = caught.expect("a lying summary is detected in six scenarios");
    println!("seed {seed}: {error}");
    crash_at_every_io(seed, SUMMARIZED, Sabotage::None, u64::MAX).expect("the same scenario passes without it");
}
