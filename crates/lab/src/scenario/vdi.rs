//! Two hundred linked-clone desktops on five disks, with memory and flash in front.
//!
//! Disk arithmetic: five 15k disks of 180 accesses per second each give 900. Of the desktops' requests 15 % read and 85
//! % write, with four accesses per write in RAID 5: 900 / (0.15 + 0.85 x 4) = 253 requests per second. 200 desktops
//! issue 1,784.
//!
//! The cache cannot avoid all writes. 152 per second go to places that are not rewritten for hours, and at four
//! accesses each they take 608 of the disks' 900. The cache must absorb the others and destage them in runs.

use engine::{ByteOffset, WriteFlags};
use seam::Nanos;
use seam::model::{ArraySpec, DiskType, RaidLevel};

use super::series::{Check, Outcome, Point, mean};
use super::test_bed::{Plan, TestBed};
use super::{Demo, Phase, Scenario, Setup};
use crate::fixture::FlashPlan;
use crate::workload::address_space::Layout;
use crate::workload::vdi::{Desktops, READ_BYTES, READS_PER_S, WRITE_BYTES, WRITES_PER_S};
use crate::workload::{Job, Pattern};

/// Factor by which bytes and time are reduced.
const SPEEDUP: u64 = 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const DESKTOP_COUNT: u64 = 200;
/// Time between two log-ons: each of three launchers starts one every five seconds.
const LOG_ON_GAP_NS: u64 = 5_000_000_000 / 3;
const MINUTES: u64 = 90;
/// Minutes of the boot storm before the measurement.
const BOOT_MINUTES: u64 = 10;
/// Minutes after which all desktops have logged on.
const LOG_ON_MINUTES: usize = 6;
/// The last of this many minutes is a burst.
const BURST_PERIOD_MINUTES: usize = 15;
/// Rate of a burst relative to the steady rate: 3,848 / 1,784.
const BURST_FACTOR: f64 = 2.157;
/// Requests per second by the disk arithmetic. A calibrated disk serves 180 accesses per second one by one, and 324
/// with ten to choose from.
const DISK_RULE_IOPS: f64 = 253.0;
const SOURCE: &str = "200 linked-clone desktops on an array with FAST Cache, published 2010";

/// The published desktops.
pub const DESKTOPS: Scenario = Scenario {
    name: "vdi-200",
    title: "200 desktops on five disks in RAID 5, 12 GB memory, flash of 2 x 100 GB; then all of them recreated on \
            the same blocks",
    source: SOURCE,
    setting: "a tenth of the bytes and of the time, a minute is 6 s; figures of the whole: 4+1 SAS 15k in RAID 5, an \
              image of 8 GiB that all read and 512 MiB for each desktop spread over all of the disks, 90 % of the \
              requests to a tenth of either; 1.34 reads of 14 KB and 7.58 writes of 12 KB per second and desktop, all \
              started for 10 minutes, then a log-on every 5 s by each of three launchers, 2.16 times the rate in the \
              last of each 15 minutes; after 90 minutes every desktop is discarded, and the same again",
    run: desktops,
    demo: Some(Demo {
        part: "up to the desktops' end, not their recreation",
        timed: true,
        byte_divisor_min: 25,
        setup: |byte_divisor| {
            Setup::new(plan(1, true, byte_divisor), plan(1, false, byte_divisor), phases(byte_divisor), byte_divisor)
        },
        checks: |with, _| checks_of("first", &with[1..].concat()),
    }),
};

fn disk_bytes(byte_divisor: u64) -> u64 {
    DiskType::Sas15k.capacity_bytes() / byte_divisor / (1 << 16) * (1 << 16)
}

fn scaled_desktops(byte_divisor: u64) -> Desktops {
    let image_bytes = 8 * GIB / byte_divisor / MIB * MIB;
    // Spreads the desktops over all of the disks.
    let stride_bytes = (4 * disk_bytes(byte_divisor) - image_bytes) / DESKTOP_COUNT / MIB * MIB;
    Desktops { count: DESKTOP_COUNT, image_bytes, own_bytes: 512 * MIB / byte_divisor / MIB * MIB, stride_bytes }
}

/// The published test bed, with bytes and time divided by `byte_divisor`.
fn plan(seed: u64, cached: bool, byte_divisor: u64) -> Plan {
    let disk_bytes = Some(disk_bytes(byte_divisor));
    let array = ArraySpec { disk_bytes, ..ArraySpec::new(RaidLevel::Raid5, 5, DiskType::Sas15k) };
    let flash = FlashPlan { devices: 2, bytes: (100_000_000_000 / byte_divisor).next_multiple_of(MIB), iops: 3_500 };
    Plan {
        seed,
        memory_bytes: 12_000_000_000 / byte_divisor,
        arrays: vec![(array, scaled_desktops(byte_divisor).bytes())],
        layout: Layout::Concatenated,
        flash: cached.then_some(flash),
        policy: engine::WritePolicy::WriteBack,
        cached,
        speedup: byte_divisor,
    }
}

fn log_on(byte_divisor: u64) -> Vec<Job> {
    scaled_desktops(byte_divisor).steady(1.0, Nanos(LOG_ON_GAP_NS / byte_divisor))
}

fn at_work(times: f64, byte_divisor: u64) -> Vec<Job> {
    scaled_desktops(byte_divisor).steady(times, Nanos::ZERO)
}

/// The phases: the desktops boot, then work with a burst in the last of each `BURST_PERIOD_MINUTES` minutes.
fn phases(byte_divisor: u64) -> Vec<Phase> {
    let period = BURST_PERIOD_MINUTES as u64;
    let mut phases = vec![Phase::new("all start", BOOT_MINUTES, scaled_desktops(byte_divisor).boot_storm())];
    for round in 0..MINUTES / period {
        let (name, jobs) =
            if round == 0 { ("log-on", log_on(byte_divisor)) } else { ("at work", at_work(1.0, byte_divisor)) };
        phases.push(Phase::new(name, period - 1, jobs));
        phases.push(Phase::new("burst", 1, at_work(BURST_FACTOR, byte_divisor)));
    }
    phases
}

/// Boots the desktops, then logs them on and works; returns a point per minute after the boot.
fn run_desktops(bed: &mut TestBed, minutes: u64, seed: u64) -> Vec<Point> {
    let mut points = Vec::new();
    let booting = bed.start_clients(&scaled_desktops(SPEEDUP).boot_storm(), seed + 500);
    bed.run_for(&booting, Nanos::from_secs(BOOT_MINUTES * 60 / SPEEDUP));
    bed.stop_clients(booting);
    bed.restart_clock();
    let time = Nanos::from_secs(60 / SPEEDUP);
    let mut clients = bed.start_clients(&log_on(SPEEDUP), seed);
    for minute in 1..=minutes {
        let burst = (minute as usize).is_multiple_of(BURST_PERIOD_MINUTES);
        if burst {
            let next = bed.start_clients(&at_work(BURST_FACTOR, SPEEDUP), seed + minute);
            bed.stop_clients(std::mem::replace(&mut clients, next));
        }
        points.push(bed.run_for(&clients, time));
        if burst {
            let next = bed.start_clients(&at_work(1.0, SPEEDUP), seed + minute + 1);
            bed.stop_clients(std::mem::replace(&mut clients, next));
        }
    }
    bed.stop_clients(clients);
    points
}

fn is_burst(index: usize) -> bool {
    (index + 1).is_multiple_of(BURST_PERIOD_MINUTES)
}

fn checks_of(run: &str, points: &[Point]) -> Vec<Check> {
    let rate = (READS_PER_S + WRITES_PER_S) * DESKTOP_COUNT as f64;
    let (bursts, steady): (Vec<_>, Vec<_>) = points.iter().enumerate().partition(|(index, _)| is_burst(*index));
    let bursts: Vec<Point> = bursts.into_iter().map(|(_, point)| *point).collect();
    let steady: Vec<Point> =
        steady.into_iter().filter(|(index, _)| *index >= LOG_ON_MINUTES).map(|(_, point)| *point).collect();
    let latency_max = |points: &[Point]| points.iter().map(|point| point.latency_ms).fold(0.0, f64::max);
    let weighted = points.iter().map(|point| point.latency_ms * point.iops).sum::<f64>();
    let requests = points.iter().map(|point| point.iops).sum::<f64>();
    let burst_min = bursts.iter().map(|point| point.iops).fold(f64::MAX, f64::min);
    let last = &points[points.len() - points.len() / 3..];
    let hits = |point: &Point| {
        (READS_PER_S * point.read_hit_ratio + WRITES_PER_S * point.fast_write_ratio) * DESKTOP_COUNT as f64 / rate
    };
    vec![
        Check::at_least(
            format!("{run}: requests per second"),
            mean(&steady, |point| point.iops),
            0.99 * 1_784.0,
            SOURCE,
        ),
        Check::at_least(format!("{run}: requests per second, least burst"), burst_min, 0.98 * 3_848.0, SOURCE),
        Check::at_most(format!("{run}: mean latency, ms"), weighted / requests, 2.0, SOURCE),
        Check::at_most(format!("{run}: latency of the slowest minute, ms"), latency_max(points), 3.17, SOURCE),
        Check::at_least(format!("{run}: requests from the cache, last half hour"), mean(last, hits), 0.98, SOURCE),
        Check::at_most(
            format!("{run}: requests that failed"),
            last.last().map_or(f64::NAN, |point| point.errors as f64),
            0.0,
            "promised",
        ),
    ]
}

fn desktops(seed: u64) -> Outcome {
    let mut bare = TestBed::new(&plan(seed, false, SPEEDUP));
    let reads_percent = (READS_PER_S / (READS_PER_S + WRITES_PER_S) * 100.0).round() as u32;
    let mix = Pattern::reads_and_writes(scaled_desktops(SPEEDUP).bytes(), READ_BYTES, WRITE_BYTES, reads_percent);
    let bare_iops = bare.measure_rate(&mix, 16, 60, seed).iops;
    let without = run_desktops(&mut bare, 10, seed);
    let mut bed = TestBed::new(&plan(seed, true, SPEEDUP));
    let with = run_desktops(&mut bed, MINUTES, seed);
    let volume = bed.volumes[0].clone();
    let recreated = scaled_desktops(SPEEDUP);
    for desktop in 0..recreated.count {
        let discarded =
            volume.discard(ByteOffset(recreated.start(desktop)), recreated.own_bytes, WriteFlags::default());
        bed.fixture.world.block_on(discarded).expect("the array accepts discards");
    }
    let again = run_desktops(&mut bed, MINUTES, seed + 1_000);
    let mut checks = vec![Check::between(
        "requests per second of the bare disks, 16 outstanding",
        bare_iops,
        DISK_RULE_IOPS,
        DISK_RULE_IOPS * 324.0 / 180.0,
        SOURCE,
    )];
    checks.extend(checks_of("first", &with));
    checks.extend(checks_of("recreated", &again));
    let reads = |name: &str, points: &[Point]| {
        let last = &points[points.len() - points.len() / 3..];
        let (hits, writes) = (mean(last, |point| point.read_hit_ratio), mean(last, |point| point.fast_write_ratio));
        let (dirty, busy) = (mean(last, |point| point.dirty_ratio), mean(last, |point| point.backing_utilization));
        format!(
            "{name}, last half hour: {:.1} % of reads from the cache, {:.1} % of writes within a millisecond, dirty \
             {:.1} % of memory and a flash device, disks {:.0} % busy",
            hits * 100.0,
            writes * 100.0,
            dirty * 100.0,
            busy * 100.0
        )
    };
    let bare = mean(&without[LOG_ON_MINUTES..], |point| point.iops);
    let bare = format!("bare disks under all desktops, up to 4,800 requests outstanding: {bare:.0}/s");
    let notes = vec![bare, reads("first", &with), reads("recreated", &again)];
    let mut outcome = Outcome { checks, notes, ..Outcome::default() };
    outcome.add_run("with", with).add_run("recreated", again).add_run("without", without);
    outcome
}
