//! The harness must be able to fail: each deliberate fault in the engine is caught within a bounded range of seeds, the same
//! seeds that pass without it.

use engine::spec::Sabotage;
use engine::{Backing, CoreSpec, Volume, VolumeSpec};
use lab::rig::{Rig, read, write};
use lab::torture::flash::FlashOptions;
use lab::torture::{Options, run};
use seam::sim::{CrashMode, Fault, Ops, Rule, SimDiskSpec, SimSeam, TraceMode, When, WorldSpec};
use seam::{Nanos, Seam};

/// Seeds that a sabotage has to be caught in.
const SEEDS: u64 = 200;

fn is_caught(sabotage: Sabotage) {
    for seed in 0..SEEDS {
        let options = Options::draw(seed);
        if let Err(violation) = run(&options, sabotage, TraceMode::Hash) {
            println!("{sabotage:?} is caught by seed {seed}: {}", violation.what);
            run(&options, Sabotage::None, TraceMode::Hash).expect("the same seed passes without the sabotage");
            return;
        }
    }
    panic!("{sabotage:?} was not noticed in {SEEDS} seeds");
}

#[test]
fn a_flush_acknowledged_early_is_caught() {
    is_caught(Sabotage::FlushEarly);
}

#[test]
fn a_flush_acknowledged_before_the_flash_log_has_it_is_caught() {
    is_caught(Sabotage::AckBeforeLog);
}

#[test]
fn a_fill_over_a_block_that_rests_on_flash_is_caught() {
    is_caught(Sabotage::FillOverResting);
}

#[test]
fn a_recall_over_a_newer_write_is_caught() {
    is_caught(Sabotage::RecallOverWrite);
}

#[test]
fn a_buffer_without_its_note_is_caught() {
    is_caught(Sabotage::NoNotes);
}

#[test]
fn an_old_record_of_the_log_that_nobody_noted_is_caught() {
    is_caught(Sabotage::OldRecords);
}

#[test]
fn a_missing_tombstone_is_caught() {
    is_caught(Sabotage::NoTombstones);
}

/// A block is written again and flushed while its older content is on its way to the backing, which then takes nothing more. What a
/// power cut leaves of it once the log has gone around.
fn rewritten_on_its_way(sabotage: Sabotage) -> Vec<u64> {
    let spec = |seed| WorldSpec { blocks: 4096, ..WorldSpec::new(seed) };
    let log = FlashOptions::plain(2, 64 << 10, 6);
    let rig = Rig::new(spec(1), CoreSpec { sabotage, ..CoreSpec::default() });
    let disk = rig.add_disk("disk", SimDiskSpec::new(8 << 20));
    log.add_disks(&rig.world);
    let stall = Fault::Stall(Nanos::from_secs(1));
    disk.add_fault(Rule::new(stall, Ops::WRITE, When::Nth(0)));
    let volume = serve(&rig, &log, true);
    rig.world.block_on(async {
        write(&volume, 0, 8, 1).await.unwrap();
        let sending = volume.clone();
        rig.seam.spawn(async move { sending.destage_all().await.expect("slow, and sound") });
        rig.seam.sleep(Nanos::from_millis(100)).await;
        write(&volume, 0, 8, 2).await.unwrap();
        volume.flush().await.unwrap();
        disk.add_fault(Rule::new(Fault::Error, Ops::CHANGE, When::Always));
        rig.seam.sleep(Nanos::from_secs(1)).await;
        for content in 3..60 {
            write(&volume, 8, 8, content).await.unwrap();
            // In a full log it waits for the backing in vain.
            if volume.flush().await.is_err() {
                break;
            }
        }
    });
    drop(volume);
    let rig = rig.crash(CrashMode::LoseAll, spec(2));
    let volume = serve(&rig, &log, false);
    rig.world.block_on(read(&volume, 0, 8)).unwrap()
}

fn serve(rig: &Rig, log: &FlashOptions, first: bool) -> Volume<SimSeam> {
    rig.world.block_on(log.open(&rig.seam, &rig.core, first, false)).unwrap();
    let disk = Backing::plain(rig.open("disk"));
    rig.world.block_on(rig.core.attach_recovered(VolumeSpec::new("disk", 1), disk)).unwrap()
}

#[test]
fn a_record_let_go_by_a_write_that_was_sent_before_is_caught() {
    assert_eq!(rewritten_on_its_way(Sabotage::None), [2; 8]);
    assert_eq!(rewritten_on_its_way(Sabotage::TrustOldWrite), [1; 8], "the harness would not have noticed");
}

/// A page is read whole for a client and waits for a device that is slow; meanwhile a block of it is written and destaged. What the block
/// reads as once memory has let it go.
fn written_while_its_page_waited(sabotage: Sabotage) -> Vec<u64> {
    const PAGE: u64 = 128;
    // More than are put on flash at once.
    const LAST: u64 = 12;
    let rig = Rig::new(WorldSpec { blocks: 1024, ..WorldSpec::new(1) }, CoreSpec { sabotage, ..CoreSpec::default() });
    rig.add_disk("disk", SimDiskSpec::new(32 << 20));
    let devices = FlashOptions::plain(2, 1 << 20, 24);
    devices.add_disks(&rig.world);
    let volume = serve(&rig, &devices, true);
    rig.world.block_on(async {
        while !volume.stats().flash.checked {
            rig.seam.sleep(Nanos::from_millis(10)).await;
        }
        volume.set_policy(engine::WritePolicy::WriteThrough).await.unwrap();
        let scattered = |page: u64| page * 37 % 400 * PAGE;
        for sector in (0..60).map(scattered) {
            read(&volume, sector, 8).await.unwrap();
        }
        write(&volume, 0, 8, 1).await.unwrap();
        volume.destage_all().await.unwrap();
        // The first finds no slot, and makes the store look for a segment.
        read(&volume, scattered(0) + 8, 8).await.unwrap();
        rig.seam.sleep(Nanos::from_secs(1)).await;
        for name in ["flash1", "flash2"] {
            let soon = When::Between(rig.seam.now(), rig.seam.now() + Nanos::from_millis(500));
            let stall = Rule::new(Fault::Stall(Nanos::from_secs(1)), Ops::WRITE, soon);
            rig.world.disk(name).unwrap().add_fault(stall);
        }
        // The others are what the devices are busy with while the last one waits.
        for page in 1..=LAST {
            read(&volume, scattered(page) + 8, 8).await.unwrap();
        }
        let block = scattered(LAST) + 40;
        write(&volume, block, 8, 7).await.unwrap();
        assert_eq!(volume.stats().flash.promotions, 0, "the device is not slow enough for this");
        rig.seam.sleep(Nanos::from_secs(5)).await;
        assert!(volume.stats().flash.promotions >= LAST, "{:?}", volume.stats().flash);
        for page in 100..350 {
            for at in 0..16 {
                read(&volume, scattered(page) + (at * 5 % 16) * 8, 8).await.unwrap();
            }
        }
        read(&volume, block, 8).await.unwrap()
    })
}

#[test]
fn a_page_that_goes_to_flash_over_a_newer_write_is_caught() {
    assert_eq!(written_while_its_page_waited(Sabotage::None), [7; 8]);
    assert_eq!(written_while_its_page_waited(Sabotage::PageOverWrite), [0; 8], "the harness would not have noticed");
}

#[test]
fn a_write_that_leaves_its_old_copy_on_flash_is_caught() {
    is_caught(Sabotage::StaleOnFlash);
}

#[test]
fn a_lost_partial_write_is_caught() {
    is_caught(Sabotage::LosePartialWrite);
}

#[test]
fn a_stale_block_after_a_discard_is_caught() {
    is_caught(Sabotage::StaleAfterDiscard);
}

#[test]
fn written_data_dropped_at_a_reconnect_is_caught() {
    is_caught(Sabotage::DropWrittenAtReconnect);
}

#[test]
fn an_old_fill_on_newer_data_is_caught() {
    is_caught(Sabotage::NoTickets);
}

#[test]
fn a_buffer_overwritten_in_flight_is_caught() {
    is_caught(Sabotage::OverwriteInFlight);
}

#[test]
fn zero_reported_for_a_dirty_block_is_caught() {
    is_caught(Sabotage::ZeroForDirty);
}
