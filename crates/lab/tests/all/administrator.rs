//! Administrator actions between the sessions of simulated worlds: served volumes keep their promises after any change
//! of devices, records and backings, and a daemon without one of its checks is caught.

use engine::spec::Sabotage;
use lab::torture::{Options, Report, run};
use seam::sim::TraceMode;

/// Seeds within which a violated rule must be detected.
const SEEDS: u64 = 2_000;
/// Seeds that run without a violated rule.
const SEEDS_WITHOUT_SABOTAGE: u64 = 150;

fn assert_caught(sabotage: state::Sabotage) {
    assert_caught_from(0, sabotage);
}

/// Like [`assert_caught`] from this seed on: few lives detect the sabotage.
fn assert_caught_from(first: u64, sabotage: state::Sabotage) {
    for seed in first..first + SEEDS {
        let mut options = Options::draw_with_administrator(seed);
        if let Some(deployment) = &mut options.deployment {
            deployment.sabotage = sabotage;
        }
        let is_of_loss =
            |message: &str| message.contains("are not notified") == (sabotage == state::Sabotage::UnreportedLoss);
        if let Err(violation) = run(&options, Sabotage::None, TraceMode::Hash)
            && is_of_loss(&violation.message)
        {
            println!("{sabotage:?} is caught by seed {seed}: {}", violation.message);
            run(&Options::draw_with_administrator(seed), Sabotage::None, TraceMode::Hash)
                .expect("a seed passes without the sabotage");
            return;
        }
    }
    panic!("{sabotage:?} was not caught in {SEEDS} seeds from {first} on");
}

#[test]
fn volumes_served_after_administrator_actions_keep_promises() {
    let mut total = Report::default();
    for seed in 0..SEEDS_WITHOUT_SABOTAGE {
        match run(&Options::draw_with_administrator(seed), Sabotage::None, TraceMode::Hash) {
            Ok(report) => {
                total.administrator_actions += report.administrator_actions;
                total.refusals += report.refusals;
                total.operations += report.operations;
                total.promotions += report.promotions;
            }
            Err(violation) => panic!("{violation}"),
        }
    }
    println!("{total:?}");
    assert!(
        total.administrator_actions >= SEEDS_WITHOUT_SABOTAGE && total.refusals > SEEDS_WITHOUT_SABOTAGE / 4,
        "the administrator acts too rarely: {total:?}"
    );
    assert!(total.operations > SEEDS_WITHOUT_SABOTAGE * 300, "too little is served: {total:?}");
}

/// Seeds of past findings: marks from before a crash that hid data destaged after it; clients of an exchanged disk that
/// were not notified of a loss; pages past the end of a backing that shrank and grew; a new disk mistaken for one to
/// which zeroes had been destaged; an empty older copy of one mirror beside a store that had continued from it; pages
/// of a device restored from a copy; rebuilds and empty older stores that lost the records of unclaimed or abandoned
/// data; older copies of a store that were taken over, or rebuilt from, after a newer one had been refused; two state
/// directories of one start, of which each had used the store; an older copy of a backing that was then shrunk, so that
/// the newest writes were past its end; flushed zeroes that were on the backing alone when an older copy replaced it;
/// data given up past the end of a shrunk backing that came back after a crash and a growth; a longer older copy; a
/// name whose disk another volume had adopted; an older copy beside a volume without a destaged block; a copy that was
/// older in partial blocks alone; a volume that was served without its data on flash, removed, and restored by a second
/// rebuild of the records; a block cut short by a shrink, which a later growth completed with its former content; a
/// ring of destaged blocks of a former backing, because the volume stopped before it was compared; two quick restarts
/// after which an unchanged backing was refused, and older copies that were accepted, because the ring of an early stop
/// counted as unknown; an accepted discard of data past the end whose attach failed, after which a growth restored the
/// data; blocks read back after a session with another store, which an older copy of the backing had as well; reads and
/// comparisons of pages that held buffers while they waited for more; a partial last block that was destaged as the
/// only evidence of a disk.
const FOUND: [u64; 37] = [
    14,
    144,
    963,
    2_087,
    3_211,
    5_372,
    13_548,
    36_770,
    38_991,
    54_765,
    70_858,
    85_615,
    106_215,
    129_765,
    153_256,
    407_254,
    504_794,
    516_996,
    703_233,
    50_027_208,
    50_032_488,
    90_011_153,
    90_015_665,
    130_155_625,
    133_064_008,
    140_040_643,
    160_001_380,
    160_001_991,
    160_025_873,
    170_055_908,
    180_010_008,
    190_016_681,
    190_062_837,
    190_309_175,
    192_021_376,
    192_139_665,
    330_005_476,
];

#[test]
fn seeds_of_past_findings_pass() {
    for seed in FOUND {
        let mut options = Options::draw_with_administrator(seed);
        if let Some(deployment) = &mut options.deployment {
            // The findings are older than moves.
            deployment.moves_backings = false;
        }
        if let Err(violation) = run(&options, Sabotage::None, TraceMode::Hash) {
            panic!("{violation}");
        }
    }
}

#[test]
fn trusting_an_old_store_is_caught() {
    assert_caught(state::Sabotage::AnyStore);
}

#[test]
fn trusting_a_lost_or_old_state_directory_is_caught() {
    assert_caught(state::Sabotage::AnyState);
}

#[test]
fn trusting_a_backing_by_its_path_is_caught() {
    assert_caught(state::Sabotage::AnyContent);
}

#[test]
fn two_volumes_on_one_disk_are_caught() {
    assert_caught(state::Sabotage::SharedDisk);
}

#[test]
fn trusting_old_pages_is_caught() {
    assert_caught(state::Sabotage::StalePages);
}

#[test]
fn dropping_dirty_data_past_the_end_is_caught() {
    assert_caught(state::Sabotage::PastEnd);
}

#[test]
fn accepting_an_unnamed_loss_is_caught() {
    assert_caught(state::Sabotage::AdoptUnnamed);
}

#[test]
fn keeping_dirty_data_for_any_disk_is_caught() {
    assert_caught_from(990, state::Sabotage::AnyCopy);
}

#[test]
fn unreported_loss_is_caught() {
    assert_caught(state::Sabotage::UnreportedLoss);
}
