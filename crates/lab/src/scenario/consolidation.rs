//! Consolidated servers: tiles of virtual machines on a decreasing number of disks, with flash and without.
//!
//! As published, each LUN lies on disks of its own: the first holds tiles 1 and 3, the second tiles 2 and 4, the third
//! what is being deployed. The rate of a tile is derived from the publication in [`tile`].

use seam::Nanos;
use seam::model::{ArraySpec, DiskType, RaidLevel};

use super::series::{Check, Outcome, Point, mean};
use super::test_bed::{Plan, TestBed};
use super::{Demo, Phase, Scenario, Setup};
use crate::fixture::FlashPlan;
use crate::workload::address_space::Layout;
use crate::workload::tile::{self, STREAMS, TILE_BYTES};
use crate::workload::{Job, Pace};

const SOURCE: &str = "consolidation tiles on FAST Cache, published 2011";
/// Factor by which the bytes of tiles, memory, flash and disks are reduced.
const SCALE: u64 = 30;
const MIB: u64 = 1 << 20;
/// A tile is carried when each of its streams reaches this fraction of its rate without any latency.
const CARRIED_FRACTION: f64 = 0.7;
/// Number of LUNs, each on its own disks: the first holds the odd tiles, the second the even ones, the third their
/// deployments.
const LUNS: usize = 3;
/// The LUN of deployments, whose pages are counted.
const DEPLOY_LUN: usize = LUNS - 1;
/// The stream of deployments.
const DEPLOY: usize = STREAMS.len() - 1;

/// The published tiles.
pub const TILES: Scenario = Scenario {
    name: "consolidation",
    title: "one to four tiles of servers on 20 or 11 disks, flash of 92 GB or 366 GB",
    source: SOURCE,
    setting: "a thirtieth of the bytes: SAS 10k in RAID 0 as 8 + 8 + 4 (odd tiles; even tiles; deployment) or 4 \
              + 4 + 3 disks of 20 GB, tiles of 9.1 GB with 0.8 GB hot, 133 MB memory; flash of 92 GB: two SSDs \
              of 3.1 GB with 3,500 requests per second each; of 366 GB: two of 12.2 GB with four times the rate; \
              five minutes to warm (two without flash), one to measure; carried: each stream does 70 % of what \
              it would do if requests took no time",
    run: tiles,
    demo: Some(Demo {
        part: "two tiles on 20 disks with flash of 92 GB, against the same with memory alone",
        timed: true,
        byte_divisor_min: SCALE,
        setup: |byte_divisor| {
            let (plan, jobs) =
                plan(1, byte_divisor, TWENTY, SHOWN_TILES as u64, Some(flash(SMALL_FLASH, byte_divisor)));
            let minutes = (WARM_MINUTES[1] + 1) * SCALE;
            let phases = vec![Phase::new(format!("{SHOWN_TILES} tiles"), minutes, jobs)];
            Setup::new(plan.clone(), Plan { flash: None, ..plan }, phases, byte_divisor)
        },
        checks: |with, without| {
            let last = |phases: &[Vec<Point>]| mean(&phases[0][phases[0].len() - SCALE as usize..], |point| point.iops);
            vec![gain(SHOWN_TILES, last(with) / last(without))]
        },
    }),
};

const TWENTY: [usize; 3] = [8, 8, 4];
const ELEVEN: [usize; 3] = [4, 4, 3];
/// Bytes of the flash, and its rate as a multiple of one SSD's.
const SMALL_FLASH: (u64, u64) = (92_000_000_000, 1);
const LARGE_FLASH: (u64, u64) = (366_000_000_000, 4);
/// Warm-up minutes without flash and with it, in reduced time.
const WARM_MINUTES: [u64; 2] = [2, 5];
const SHOWN_TILES: usize = 2;

/// Result of one configuration.
struct Run {
    last: Point,
    points: Vec<Point>,
    /// Lowest fraction, over all streams, of a stream's rate without any latency.
    fraction_min: f64,
    deploy_promotions: u64,
}

fn flash((bytes, times): (u64, u64), byte_divisor: u64) -> FlashPlan {
    FlashPlan { devices: 2, bytes: (bytes / byte_divisor).next_multiple_of(MIB), iops: 3_500 * times }
}

/// Check of the published gain of flash for `tiles` tiles.
fn gain(tiles: usize, ratio: f64) -> Check {
    let (name, ratio_min) = match tiles {
        1 => ("times the rate without flash, 1 tile", 1.26),
        _ => ("times the rate without flash, 2 tiles", 1.31),
    };
    Check::at_least(name, ratio, ratio_min, SOURCE)
}

/// Streams of all tiles in LUN order, and the size of each LUN.
fn layout(tiles: u64, byte_divisor: u64) -> (Vec<Job>, Vec<u64>) {
    let tile_bytes = TILE_BYTES / byte_divisor;
    let lun_of = |tile: u64, stream: usize| if stream == DEPLOY { DEPLOY_LUN } else { (tile % 2) as usize };
    let (mut jobs, mut sizes, mut end) = (Vec::new(), Vec::new(), 0);
    for lun in 0..LUNS {
        let lun_start = end;
        for (tile, stream) in (0..tiles).flat_map(|tile| (0..STREAMS.len()).map(move |stream| (tile, stream))) {
            if lun_of(tile, stream) == lun {
                let span = tile::span(stream, tile_bytes);
                jobs.push(tile::job(stream, end, span.end - span.start));
                end += span.end - span.start;
            }
        }
        // A LUN without a tile stays unused.
        end = end.max(lun_start + MIB);
        sizes.push(end - lun_start);
    }
    (jobs, sizes)
}

fn plan(seed: u64, byte_divisor: u64, disks: [usize; 3], tiles: u64, flash: Option<FlashPlan>) -> (Plan, Vec<Job>) {
    let (jobs, sizes) = layout(tiles, byte_divisor);
    let array = |disks: usize| ArraySpec {
        disk_bytes: Some(DiskType::Sas10k.capacity_bytes() / byte_divisor / (1 << 16) * (1 << 16)),
        ..ArraySpec::new(RaidLevel::Raid0, disks, DiskType::Sas10k)
    };
    let plan = Plan {
        seed,
        memory_bytes: 4_000_000_000 / byte_divisor,
        arrays: disks.map(array).into_iter().zip(sizes).collect(),
        layout: Layout::Concatenated,
        flash,
        policy: engine::WritePolicy::WriteBack,
        cached: true,
        speedup: 1,
    };
    (plan, jobs)
}

fn run(seed: u64, disks: [usize; 3], tiles: u64, flash: Option<FlashPlan>) -> Run {
    let (plan, jobs) = plan(seed, SCALE, disks, tiles, flash);
    let mut bed = TestBed::new(&plan);
    let clients = bed.start_clients(&jobs, seed);
    let warm = WARM_MINUTES[usize::from(flash.is_some())];
    let mut points: Vec<Point> = (0..warm).map(|_| bed.run_for(&clients, Nanos::from_secs(60))).collect();
    clients.take_job_requests();
    let last = bed.run_for(&clients, Nanos::from_secs(60));
    let counts = clients.take_job_requests();
    bed.stop_clients(clients);
    points.push(last);
    let fraction = |(job, count): (&Job, u64)| match job.pace {
        Pace::Think(think) => count as f64 / 60.0 * think.as_secs_f64() / f64::from(job.depth),
        Pace::ClosedLoop | Pace::Rate(_) => 1.0,
    };
    let fraction_min = jobs.iter().zip(counts).map(fraction).fold(f64::MAX, f64::min);
    let deploy_promotions = bed.volumes[DEPLOY_LUN].stats().flash.promotions;
    Run { last, points, fraction_min, deploy_promotions }
}

fn tiles(seed: u64) -> Outcome {
    let (last_stream, ..) = STREAMS[DEPLOY];
    assert_eq!(last_stream, "deploy", "the last LUN is the one of deployment");
    let small = Some(flash(SMALL_FLASH, SCALE));
    let without = [1, 2, 3].map(|tiles| run(seed, TWENTY, tiles, None));
    let eleven_without = run(seed, ELEVEN, 1, None);
    let with = [1, 2, 4].map(|tiles| run(seed, TWENTY, tiles, small));
    let eleven_with = run(seed, ELEVEN, 4, small);
    let large = run(seed, TWENTY, 4, Some(flash(LARGE_FLASH, SCALE)));
    let hits = |run: &Run| {
        mean(&run.points[run.points.len() - 3..], |point| 0.24 * point.read_hit_ratio + 0.76 * point.fast_write_ratio)
    };
    let gain = |index: usize| gain(index + 1, with[index].last.iops / without[index].last.iops);
    let checks = vec![
        Check::at_least(
            "20 disks without flash, 2 tiles: least part of a stream",
            without[1].fraction_min,
            CARRIED_FRACTION,
            SOURCE,
        ),
        Check::at_most(
            "20 disks without flash, 3 tiles: least part of a stream",
            without[2].fraction_min,
            CARRIED_FRACTION,
            SOURCE,
        ),
        Check::at_most(
            "11 disks without flash, 1 tile: least part of a stream",
            eleven_without.fraction_min,
            CARRIED_FRACTION,
            SOURCE,
        ),
        Check::at_least(
            "20 disks, flash of 92 GB, 4 tiles: least part of a stream",
            with[2].fraction_min,
            CARRIED_FRACTION,
            SOURCE,
        ),
        Check::at_least(
            "11 disks, flash of 92 GB, 4 tiles: least part of a stream",
            eleven_with.fraction_min,
            CARRIED_FRACTION,
            SOURCE,
        ),
        gain(0),
        gain(1),
        Check::at_least("requests from the cache, 4 tiles, flash of 92 GB", hits(&with[2]), 0.921, SOURCE),
        Check::at_least("requests from the cache, 4 tiles, flash of 366 GB", hits(&large), 0.921, SOURCE),
        Check::at_most("pages of the deploy stream that were promoted", with[2].deploy_promotions as f64, 0.0, SOURCE),
    ];
    let line = |name: &str, run: &Run| {
        let Point { iops, latency_ms, read_hit_ratio, .. } = run.last;
        let (reads, least) = (read_hit_ratio * 100.0, run.fraction_min * 100.0);
        format!("{name}: {iops:.0}/s, {latency_ms:.1} ms, {reads:.0} % read hits, least stream {least:.0} %")
    };
    let notes = vec![
        line("20 disks, 1 tile, without", &without[0]),
        line("20 disks, 2 tiles, without", &without[1]),
        line("20 disks, 3 tiles, without", &without[2]),
        line("11 disks, 1 tile, without", &eleven_without),
        line("20 disks, 1 tile, with", &with[0]),
        line("20 disks, 2 tiles, with", &with[1]),
        line("20 disks, 4 tiles, with", &with[2]),
        line("11 disks, 4 tiles, with", &eleven_with),
        line("20 disks, 4 tiles, 366 GB", &large),
    ];
    let [_, two_without, _] = without;
    let [_, two_with, four_with] = with;
    let mut outcome = Outcome { checks, notes, ..Outcome::default() };
    outcome.add_run("4 tiles, with", four_with.points).add_run("2 tiles, with", two_with.points);
    outcome.add_run("2 tiles, without", two_without.points);
    outcome
}
