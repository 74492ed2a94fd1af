//! The cache: a client that streams through it or writes at full speed does not displace the hot set of others.

use e2e::daemon::Daemon;
use e2e::fixture::Fixture;
use e2e::load::{CompletedRequest, Job, Log, run};

use super::{figure, fixture_on_array, seconds};

const STEADY: [&str; 3] = ["one", "two", "three"];
/// Small, so that the fill and a scan of four times the size finish quickly.
const MEMORY_BYTES: u64 = 16 << 20;
/// Hot set: 92 % of the requests go to the first 2 MiB of 100 MiB, 8 % to the rest.
const HOT_READS: &str = "rw=randread bs=4k size=100m random_distribution=zoned:92/2:8/98";
/// A rate at which the disks are mostly idle.
const STEADY_RATE: &str = "iodepth=4 rate_iops=250";
/// Seconds until memory is full and the policy has detected the repeated blocks.
const FILL_SECONDS: u64 = 6;
/// More than four times the memory, with no block read twice.
const STREAM: &str = "rw=read bs=256k iodepth=8 size=100g";
/// A low threshold: clients that mostly hit memory have few requests in flight, and congestion must be detected early.
const EARLY_CONGESTION: Option<&str> = Some("congestion_threshold = \"5ms\"");
/// A scan of four times the memory, repeated.
const LOOP_SCAN: &str = "rw=read bs=256k iodepth=8 size=64m";
const WRITES: &str = "rw=randwrite bs=64k iodepth=32 size=1g";

/// Hit ratio and p99 latency of all steady clients.
#[derive(Clone, Copy, Debug)]
struct SteadyFigures {
    hit_ratio: f64,
    p99_us: u64,
}

fn hits_and_reads(daemon: &Daemon) -> (u64, u64) {
    let sum = |name| STEADY.iter().map(|volume| figure(daemon, volume, name)).sum();
    (sum("memory_hits"), sum("reads"))
}

fn run_steady_clients(fixture: &Fixture, daemon: &Daemon, neighbour: Option<&str>, duration_s: u64) -> SteadyFigures {
    let options = format!("{HOT_READS} {STEADY_RATE}");
    let mut jobs: Vec<Job> =
        STEADY.iter().map(|name| Job::new(name, fixture.uri(name), &options, 0, duration_s)).collect();
    jobs.extend(neighbour.map(|options| Job::new("neighbour", fixture.uri("neighbour"), options, 0, duration_s)));
    let before = hits_and_reads(daemon);
    let logs = run(fixture.folder.path(), &jobs);
    if let Some(log) = logs.get("neighbour") {
        let bytes: u64 = log.0.iter().map(|request| request.bytes).sum();
        assert!(bytes >= 4 * MEMORY_BYTES, "the neighbour transferred only {bytes} bytes: too little load");
    }
    let after = hits_and_reads(daemon);
    let mut completions: Vec<CompletedRequest> = STEADY.iter().flat_map(|name| logs[*name].0.iter().copied()).collect();
    completions.sort_by_key(|request| request.at_ms);
    let log = Log(completions);
    SteadyFigures {
        hit_ratio: (after.0 - before.0) as f64 / (after.1 - before.1) as f64,
        p99_us: log.quantile_us(0, log.end_ms() + 1, 0.99),
    }
}

/// Three steady clients alone, then beside a neighbour with each of `loads` in turn.
fn measure_beside(datastore: Option<&str>, loads: &[&str], duration_s: u64) -> Vec<SteadyFigures> {
    let volumes: Vec<(&str, &str)> = STEADY.iter().chain(&["neighbour"]).map(|name| (*name, "")).collect();
    let fixture = fixture_on_array(&MEMORY_BYTES.to_string(), datastore, &volumes);
    let daemon = fixture.start();
    let fill = format!("{HOT_READS} iodepth=8");
    run(fixture.folder.path(), &STEADY.map(|name| Job::new(name, fixture.uri(name), &fill, 0, FILL_SECONDS)));
    let neighbours = std::iter::once(None).chain(loads.iter().map(|options| Some(*options)));
    let figures = neighbours.map(|neighbour| run_steady_clients(&fixture, &daemon, neighbour, duration_s)).collect();
    daemon.stop();
    figures
}

fn assert_isolation(loads: &[&str], duration_s: u64) {
    let (with, without) = std::thread::scope(|scope| {
        let without = scope.spawn(|| measure_beside(None, loads, duration_s));
        (measure_beside(EARLY_CONGESTION, loads, duration_s), without.join().expect("the thread does not panic"))
    });
    for (name, figures) in [("with", &with), ("without", &without)] {
        println!("{name} QoS: {:?} alone", figures[0]);
        loads.iter().zip(&figures[1..]).for_each(|(load, figures)| println!("{name} QoS: {figures:?} beside {load}"));
    }
    let alone = with[0];
    for (load, loaded) in loads.iter().zip(&with[1..]) {
        assert!(loaded.hit_ratio >= alone.hit_ratio - 0.02, "{alone:?} alone, {loaded:?} beside {load}");
        assert!(loaded.p99_us * 2 <= alone.p99_us * 3, "{alone:?} alone, {loaded:?} beside {load}");
    }
}

#[test]
#[ignore = "needs an idle machine; scripts/torture runs it"]
fn stream_does_not_displace_the_hot_set() {
    assert_isolation(&[STREAM, LOOP_SCAN], seconds(6));
}

#[test]
#[ignore = "needs an idle machine; scripts/torture runs it"]
fn heavy_writer_does_not_displace_the_hot_set() {
    assert_isolation(&[WRITES], seconds(15));
}
