//! A real trace on a modelled pool, and its tier curve.

use lab::advice::SliceLoads;
use lab::timed::pool::{PoolOutcome, PoolSetup, TierSetup};
use lab::timed::{Pace, PreparedTrace, ReplaySetup};
use pool::MoveRate;
use pool::planner::ClassCost;
use seam::model::{ArraySpec, DiskType, RaidLevel};
use trace::Request;

const MIB: u64 = 1 << 20;
/// One virtual machine's disk for two hours.
const TRACE: &str = "cloudphysics-vm.vscsi";

/// The requests of the trace; `None` without a directory of traces.
fn requests() -> Option<Vec<Request>> {
    let Some(directory) = std::env::var_os("HOTSET_TRACES").map(std::path::PathBuf::from) else {
        println!("not measured: HOTSET_TRACES is not set to the directory of the traces");
        return None;
    };
    #[expect(clippy::disallowed_types, reason = "the test reads its input")]
    let file = std::fs::File::open(directory.join(TRACE)).expect("the directory contains the trace");
    let reader = trace::open(TRACE, Box::new(file), None).expect("the trace format is known");
    Some(reader.map(|request| request.expect("the trace is intact")).collect())
}

/// The expected figures come from a program of its own (Python), which reads the records of the trace, counts accesses
/// and bytes by slice in a table, prices them by the data sheet figures and sorts the slices by their saving.
#[test]
fn tier_curve_of_a_real_trace_agrees_with_an_independent_count() {
    let Some(requests) = requests() else { return };
    let class = |name| (name, ClassCost::named(name).expect("a class of the list"));
    let advice = SliceLoads::of_trace(&requests, 4 * MIB).advise(&[class("ssd"), class("nl-sas")]);
    assert_eq!(advice.slices, 1_312);
    let near = |value: f64, expected: f64| (value - expected).abs() < 1e-4 * expected;
    assert!(near(advice.disk_time.as_secs_f64(), 668.7415), "{:?}", advice.disk_time);
    assert!(advice.busy_disks.is_some_and(|disks| near(disks, 0.092_879_6)), "{:?}", advice.busy_disks);
    for (slices, share, saved) in [(14, 0.257_023_4, 0.253_687_1), (40, 0.495_432_4, 0.487_680_2)] {
        let step = advice.steps.iter().find(|step| step.slices == slices).expect("a step of 1 % and one of 3 %");
        assert!(near(step.share, share) && near(step.saved, saved), "{step:?}");
    }
}

#[test]
fn moves_relieve_the_disks_under_a_real_trace() {
    let Some(requests) = requests() else { return };
    let trace = PreparedTrace::new(&requests).expect("the trace has one disk");
    let tier =
        |name: &str, array: ArraySpec, bytes| TierSetup { name: name.to_owned(), groups: vec![array.fitted(bytes)] };
    let pool = |rate| PoolSetup {
        tiers: vec![
            tier("ssd", ArraySpec::new(RaidLevel::Raid1, 2, DiskType::Ssd), 1_024 * MIB),
            tier("nl", ArraySpec::new(RaidLevel::Raid6, 6, DiskType::NlSas), 40_960 * MIB),
        ],
        slice_bytes: MIB,
        rate,
    };
    let setup = ReplaySetup {
        memory_bytes: 0,
        flash_bytes: 0,
        policy: engine::WritePolicy::WriteBack,
        pace: Pace::Arrivals,
        seed: 1,
    };
    let replay = |rate| trace.replay_on_pool(&pool(rate), &setup).expect("the pool has room for the trace");
    let (still, moved) = (replay(None), replay(Some(MoveRate::IdleShare(30))));
    let disk_time = |outcome: &PoolOutcome| {
        let half = outcome.second_half.as_ref().expect("the trace has times");
        half.disk_time.as_secs_f64()
    };
    println!(
        "second half: disk time {:.0} s without moves, {:.0} s with {} moves",
        disk_time(&still),
        disk_time(&moved),
        moved.moves
    );
    assert!(disk_time(&moved) < 0.5 * disk_time(&still));
    let sum = |outcome: &PoolOutcome| outcome.tiers.iter().map(|tier| tier.requests).sum::<u64>();
    assert_eq!(sum(&still), sum(&moved), "the same requests reach the pool");
}
