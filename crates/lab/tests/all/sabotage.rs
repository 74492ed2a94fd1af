//! Proof that the harness can fail: each deliberate fault in the engine is caught within a bounded range of seeds, and
//! the same seeds pass without the fault.

use engine::spec::Sabotage;
use engine::{Backing, CoreSpec, Volume, VolumeId, VolumeSpec};
use lab::fixture::{Fixture, read, write};
use lab::torture::flash::FlashOptions;
use lab::torture::{Options, run};
use seam::sim::{CrashMode, Fault, Ops, Rule, SimDiskSpec, SimSeam, TraceMode, When, WorldSpec};
use seam::{Nanos, Seam};

/// Seeds within which a sabotage must be caught.
const SEEDS: u64 = 200;

fn assert_caught(sabotage: Sabotage) {
    for seed in 0..SEEDS {
        let options = Options::draw(seed);
        if let Err(violation) = run(&options, sabotage, TraceMode::Hash) {
            println!("{sabotage:?} is caught by seed {seed}: {}", violation.message);
            run(&options, Sabotage::None, TraceMode::Hash).expect("a seed passes without the sabotage");
            return;
        }
    }
    panic!("{sabotage:?} was not caught in {SEEDS} seeds");
}

#[test]
fn missing_mark_of_undestaged_data_is_caught() {
    assert_caught(Sabotage::NoUndestagedMark);
}

#[test]
fn early_flush_acknowledgement_is_caught() {
    assert_caught(Sabotage::FlushEarly);
}

#[test]
fn flush_acknowledged_before_the_log_write_is_caught() {
    assert_caught(Sabotage::AckBeforeLog);
}

#[test]
fn fill_over_a_spilled_block_is_caught() {
    assert_caught(Sabotage::FillOverSpilled);
}

#[test]
fn reload_over_a_newer_write_is_caught() {
    assert_caught(Sabotage::ReloadOverWrite);
}

#[test]
fn buffer_without_its_tag_is_caught() {
    assert_caught(Sabotage::NoPersistenceTags);
}

#[test]
fn unrecorded_outdated_log_record_is_caught() {
    assert_caught(Sabotage::OldRecords);
}

#[test]
fn missing_tombstone_is_caught() {
    assert_caught(Sabotage::NoTombstones);
}

/// Rewrites and flushes a block while its older content is being written to the backing, which afterwards fails all
/// writes. Returns the block's content after a power cut, once the log has wrapped around.
fn rewrite_during_destage(sabotage: Sabotage) -> Vec<u64> {
    let spec = |seed| WorldSpec { blocks: 4096, ..WorldSpec::new(seed) };
    let log = FlashOptions::plain(2, 64 << 10, 6);
    let fixture = Fixture::new(spec(1), CoreSpec { sabotage, ..CoreSpec::default() });
    let disk = fixture.add_disk("disk", SimDiskSpec::new(8 << 20));
    log.add_disks(&fixture.world);
    let volume = serve(&fixture, &log, true);
    fixture.world.block_on(async {
        // The ring of recent writes has content, so that no flush destages any as evidence.
        fixture.seam.sleep(Nanos::from_secs(1)).await;
        write(&volume, 800, 8, 9).await.unwrap();
        volume.destage_all().await.unwrap();
        disk.add_fault(Rule::new(Fault::Stall(Nanos::from_secs(1)), Ops::WRITE, When::Nth(0)));
        write(&volume, 0, 8, 1).await.unwrap();
        let sending = volume.clone();
        fixture
            .seam
            .spawn(async move { sending.destage_all().await.expect("a slow disk without faults does not fail") });
        fixture.seam.sleep(Nanos::from_millis(100)).await;
        write(&volume, 0, 8, 2).await.unwrap();
        volume.flush().await.unwrap();
        disk.add_fault(Rule::new(Fault::Error, Ops::CHANGE, When::Always));
        fixture.seam.sleep(Nanos::from_secs(1)).await;
        for content in 3..60 {
            write(&volume, 8, 8, content).await.unwrap();
            // In a full log the flush waits for the failing backing.
            if volume.flush().await.is_err() {
                break;
            }
        }
    });
    drop(volume);
    let fixture = fixture.crash(CrashMode::LoseAll, spec(2));
    let volume = serve(&fixture, &log, false);
    fixture.world.block_on(read(&volume, 0, 8)).unwrap()
}

/// Opens the flash store, which the first session formats, and attaches the volume.
fn serve(fixture: &Fixture, log: &FlashOptions, first: bool) -> Volume<SimSeam> {
    fixture.world.block_on(log.open(&fixture.seam, &fixture.core, first, false)).unwrap();
    let disk = Backing::plain(fixture.open("disk"));
    fixture.world.block_on(fixture.core.attach_recovered(VolumeSpec::new("disk", VolumeId(1)), disk)).unwrap()
}

#[test]
fn record_retired_by_an_older_write_is_caught() {
    assert_eq!(rewrite_during_destage(Sabotage::None), [2; 8]);
    assert_eq!(rewrite_during_destage(Sabotage::TrustOldWrite), [1; 8], "the harness detects the fault");
}

/// Reads a whole page, which then waits for a slow flash device, while a block of it is written and destaged. Returns
/// the block's content once memory has evicted it.
fn write_during_promotion(sabotage: Sabotage) -> Vec<u64> {
    const PAGE_SECTORS: u64 = 128;
    // More pages than are written to flash at once.
    const LAST_PAGE: u64 = 12;
    let fixture =
        Fixture::new(WorldSpec { blocks: 1024, ..WorldSpec::new(1) }, CoreSpec { sabotage, ..CoreSpec::default() });
    fixture.add_disk("disk", SimDiskSpec::new(32 << 20));
    let devices = FlashOptions::plain(2, 1 << 20, 24);
    devices.add_disks(&fixture.world);
    let volume = serve(&fixture, &devices, true);
    fixture.world.block_on(async {
        while !volume.stats().flash.is_checked {
            fixture.seam.sleep(Nanos::from_millis(10)).await;
        }
        volume.set_policy(engine::WritePolicy::WriteThrough).await.unwrap();
        let scattered = |page: u64| page * 37 % 400 * PAGE_SECTORS;
        for sector in (0..60).map(scattered) {
            read(&volume, sector, 8).await.unwrap();
        }
        write(&volume, 0, 8, 1).await.unwrap();
        volume.destage_all().await.unwrap();
        // The first promotion finds no slot and makes the store look for a segment.
        read(&volume, scattered(0) + 8, 8).await.unwrap();
        fixture.seam.sleep(Nanos::from_secs(1)).await;
        for name in ["flash1", "flash2"] {
            let soon = When::Between(fixture.seam.now(), fixture.seam.now() + Nanos::from_millis(500));
            let stall = Rule::new(Fault::Stall(Nanos::from_secs(1)), Ops::WRITE, soon);
            fixture.world.disk(name).unwrap().add_fault(stall);
        }
        // The other pages keep the devices busy while the last one waits.
        for page in 1..=LAST_PAGE {
            read(&volume, scattered(page) + 8, 8).await.unwrap();
        }
        let block = scattered(LAST_PAGE) + 40;
        write(&volume, block, 8, 7).await.unwrap();
        assert_eq!(volume.stats().flash.promotions, 0, "the device is not slow enough for this test");
        fixture.seam.sleep(Nanos::from_secs(5)).await;
        assert!(volume.stats().flash.promotions >= LAST_PAGE, "{:?}", volume.stats().flash);
        for page in 100..350 {
            for block in 0..16 {
                read(&volume, scattered(page) + (block * 5 % 16) * 8, 8).await.unwrap();
            }
        }
        read(&volume, block, 8).await.unwrap()
    })
}

#[test]
fn promotion_over_a_newer_write_is_caught() {
    assert_eq!(write_during_promotion(Sabotage::None), [7; 8]);
    assert_eq!(write_during_promotion(Sabotage::PageOverWrite), [0; 8], "the harness detects the fault");
}

#[test]
fn stale_flash_copy_after_a_write_is_caught() {
    assert_caught(Sabotage::StaleOnFlash);
}

#[test]
fn kept_record_of_an_overwritten_block_is_caught() {
    assert_caught(Sabotage::KeptOverWrite);
}

#[test]
fn kept_record_of_a_changed_block_is_caught() {
    assert_caught(Sabotage::KeepChangedBlock);
}

#[test]
fn lost_partial_write_is_caught() {
    assert_caught(Sabotage::LosePartialWrite);
}

#[test]
fn stale_block_after_a_discard_is_caught() {
    assert_caught(Sabotage::StaleAfterDiscard);
}

#[test]
fn written_data_dropped_at_a_reconnect_is_caught() {
    assert_caught(Sabotage::DropWrittenAtReconnect);
}

#[test]
fn old_fill_over_newer_data_is_caught() {
    assert_caught(Sabotage::NoFillGuards);
}

#[test]
fn buffer_overwritten_in_flight_is_caught() {
    assert_caught(Sabotage::OverwriteInFlight);
}

#[test]
fn zero_reported_for_a_dirty_block_is_caught() {
    assert_caught(Sabotage::ZeroForDirty);
}
