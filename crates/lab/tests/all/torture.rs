//! The engine in a simulated world with faults and crashes: no seed violates a promise, and every seed is repeatable.

use engine::spec::Sabotage;
use lab::torture::{Campaign, Options, campaign, run};
use seam::sim::{Fault, TraceMode};

/// Seeds of every test run; `hotset torture` takes a range.
const SEEDS: u64 = 1_000;

#[test]
fn thousand_seeds_violate_no_promise() {
    let parameters =
        Campaign { seeds: 0..SEEDS, time_max: None, threads: 2, sabotage: Sabotage::None, with_administrator: false };
    let summary = campaign(&parameters, |_| ());
    if let Some(violation) = summary.violation {
        panic!("{violation}");
    }
    let report = summary.report;
    assert_eq!(report.seeds, SEEDS);
    assert!(report.sessions > 2 * SEEDS && report.operations > 900 * SEEDS, "{report:?}");
    assert!(report.backing_requests > 100 * SEEDS, "{report:?}");
    assert!(report.recovered_from_memory > 4 * SEEDS, "no memory survived a process: {report:?}");
    assert!(report.share_waits > 10 * SEEDS && report.limit_waits > SEEDS, "no volume contended: {report:?}");
}

/// Seeds of past findings. Most of them draw different runs now; each finding has its own test in
/// `cases/torture_regressions.rs`, except 350000685 (a flush of the backing without room to reload blocks from the
/// log).
#[rustfmt::skip]
const FOUND: [u64; 41] = [
    0, 30, 111, 172, 256, 1_047, 1_514, 2_648, 3_681, 4_401, 18_845, 30_824, 52_107, 710_692, 2_023_375, 3_019_900,
    6_033_915, 10_063_722, 10_067_613, 10_149_725, 20_000_073, 20_000_683,
    20_094_254, 30_002_058, 40_033_668, 40_035_815, 70_129_087,
    91_001_431, 130_000_490, 140_002_369, 140_006_584, 200_038_683,
    230_051_936, 250_005_369, 250_007_818, 260_023_487,
    60_004_375, 60_016_335, 60_024_010, 205_017_897, 350_000_685,
];

#[test]
fn seeds_of_past_findings_pass() {
    for seed in FOUND {
        lab::torture::run_seed(seed, Sabotage::None).unwrap_or_else(|violation| panic!("{violation}"));
    }
}

#[test]
fn equal_seeds_give_equal_traces() {
    for seed in 0..20 {
        let options = Options::draw(seed);
        let run_once =
            || run(&options, Sabotage::None, TraceMode::Log).unwrap_or_else(|violation| panic!("{violation}"));
        let (first, second) = (run_once(), run_once());
        assert!(first.trace == second.trace, "seed {seed}: two traces of {} bytes differ", first.trace.len());
        assert_eq!(first, second);
        assert!(!first.trace.is_empty());
    }
}

#[test]
fn silent_corruption_and_false_flushes_are_caught() {
    for fault in [Fault::Lost, Fault::Torn, Fault::BitFlip, Fault::Misdirected, Fault::FlushLies] {
        let caught = (0..30).find_map(|seed| {
            let options = Options { canary: Some(fault), ..Options::draw(seed) };
            run(&options, Sabotage::None, TraceMode::Hash).err()
        });
        let violation = caught.unwrap_or_else(|| panic!("{fault:?} was never detected"));
        assert!(violation.message.contains("sector"), "{fault:?}: {violation}");
    }
}

#[test]
fn violation_shrinks_and_still_fails() {
    let violation_of = |seed| {
        let options = Options { canary: Some(Fault::Lost), ..Options::draw(seed) };
        run(&options, Sabotage::None, TraceMode::Hash).err()
    };
    let violation = (0..30).find_map(violation_of).expect("lost writes are detected within 30 seeds");
    let before = violation.options.operations;
    let small = lab::torture::shrink(violation);
    assert!(small.options.operations < before / 2, "{small}");
    let again = run(&small.options, Sabotage::None, TraceMode::Hash).expect_err("a shrunk run is repeatable");
    assert_eq!(again.message, small.message);
}
