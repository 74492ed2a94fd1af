//! Properties that the scenarios rely on: a run depends only on its seed, and clients with a fixed rate keep it.

use engine::WritePolicy;
use lab::fixture::FlashPlan;
use lab::scenario::test_bed::{Plan, TestBed};
use lab::scenario::{Point, report};
use lab::workload::address_space::Layout;
use lab::workload::{Job, Pace, Pattern};
use seam::Nanos;
use seam::model::{ArraySpec, DiskType, RaidLevel};

const MIB: u64 = 1 << 20;

fn plan(seed: u64) -> Plan {
    let array = ArraySpec::new(RaidLevel::Raid5, 5, DiskType::Sas15k);
    Plan {
        seed,
        memory_bytes: 32 * MIB,
        arrays: vec![(array, 128 * MIB), (array, 128 * MIB)],
        layout: Layout::Striped(64 << 20),
        flash: Some(FlashPlan { devices: 2, bytes: 512 * MIB, iops: 3_500 }),
        policy: WritePolicy::WriteBack,
        cached: true,
        speedup: 10,
    }
}

fn run(seed: u64) -> Vec<Point> {
    let mut bed = TestBed::new(&plan(seed));
    let mut points = bed.run_pattern(&Pattern::random(256 * MIB, 8192, 67), 8, 3, false, seed);
    let jobs = [Job::closed_loop("a", Pattern::random(64 * MIB, 4096, 50), 4).paced(Pace::Rate(300.0))];
    let clients = bed.start_clients(&jobs, seed);
    points.push(bed.run_for(&clients, Nanos::from_secs(6)));
    bed.stop_clients(clients);
    points
}

#[test]
fn equal_seeds_run_equally_and_others_differ() {
    let first = run(1);
    assert_eq!(first, run(1));
    assert_ne!(first, run(2));
    assert!(first.iter().all(|point| point.errors == 0 && point.iops > 0.0));
}

#[test]
fn rate_clients_keep_their_rate_and_latency_counts_from_due_time() {
    let jobs = |rate| [Job::closed_loop("a", Pattern::random(128 * MIB, 4096, 100), 8).paced(Pace::Rate(rate))];
    let run_at_rate = |rate| {
        let mut bed = TestBed::new(&Plan { cached: false, flash: None, ..plan(3) });
        let clients = bed.start_clients(&jobs(rate), 3);
        let point = bed.run_for(&clients, Nanos::from_secs(20));
        bed.stop_clients(clients);
        point
    };
    let (light, overloaded) = (run_at_rate(200.0), run_at_rate(20_000.0));
    assert!((190.0..210.0).contains(&light.iops), "{} a second of 200", light.iops);
    assert!(overloaded.iops < 5_000.0, "{} a second of five disks", overloaded.iops);
    assert!(
        overloaded.latency_ms > 1_000.0 && light.latency_ms < 50.0,
        "{} ms, {} ms",
        overloaded.latency_ms,
        light.latency_ms
    );
}

#[test]
fn percentiles_of_the_slowest_reads_match_the_histogram() {
    let mut bed = TestBed::new(&Plan { cached: false, flash: None, ..plan(4) });
    let jobs = [Job::closed_loop("a", Pattern::random(128 * MIB, 4096, 100), 8).paced(Pace::Rate(400.0))];
    let clients = bed.start_clients(&jobs, 4);
    let point = bed.run_for(&clients, Nanos::from_secs(60));
    for (above, bucket_end_ms) in [(0.01, point.read_p99_ms), (0.001, point.read_p999_ms)] {
        let exact_ms = clients.percentile_of_slowest(clients.reads(), above).as_secs_f64() * 1e3;
        assert!((bucket_end_ms / 1.13..=bucket_end_ms).contains(&exact_ms), "{exact_ms} ms, up to {bucket_end_ms} ms");
    }
    bed.stop_clients(clients);
}

#[test]
fn scenarios_have_unique_names_and_a_setting() {
    let names: std::collections::BTreeSet<_> = lab::scenario::ALL.iter().map(|scenario| scenario.name).collect();
    assert_eq!(names.len(), lab::scenario::ALL.len());
    assert!(lab::scenario::ALL.iter().all(|scenario| !scenario.setting.is_empty() && !scenario.source.is_empty()));
    assert!(report::html(&[]).contains("</html>"));
}
