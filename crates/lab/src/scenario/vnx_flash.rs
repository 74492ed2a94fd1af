//! The array of `vnx.rs` with two flash devices of 100 GB, and a file that fits on them, does not fit, or just fits.
//!
//! The test bed is a ninth of the published one: one of three RAID 5 groups with a third of the requests outstanding,
//! so a rate is a third of the published one. Bytes (of file, memory, flash and the disks' span) and time are reduced
//! to a third again, so a published minute takes 20 s. An SSD serves a third of its requests per second. Figures are
//! scaled back to the whole array, and minutes are those of the publication.
//!
//! Files of 150 GB and 80 GB run for the 75 minutes of all five steps, with flash and without, and are compared minute
//! by minute. FAST Cache held each page twice, 100 GB in all, and Hotset holds each clean page once. Two more files
//! have the same ratio to Hotset's clean capacity as the published ones to FAST Cache's: one that spills and one that
//! just fits.
//!
//! The SSDs' own ceiling: two of 3,500 requests per second serve a read once and a write twice, because dirty data is
//! mirrored. Memory serves 4 of the file's 15 GB. That gives 7,000 / (0.67 x 11/15 + 0.33 x 2) = 6,080 per second, less
//! than the 10,000 that follow from 10 ms at 96 outstanding. By the same arithmetic 96 outstanding then take 15.8 ms.

use super::series::{Check, Outcome, Point, mean};
use super::test_bed::{Plan, TestBed};
use super::vnx::{
    GB, MIB, OUTSTANDING, QUEUEING, SOURCE, STEP_MINUTES, STRIPE_BYTES, STROKE_PART, database, phases, plan,
};
use super::{Demo, Scenario, Setup};
use crate::fixture::FlashPlan;

/// Number of published RAID 5 groups, of which one is simulated: divisor of rates, bytes and requests outstanding.
const PARTS: u64 = 3;
/// Divisor of the time, and a further divisor of the bytes.
const SPEEDUP: u64 = 3;
/// Points per minute of the array's own time. Destage comes in waves of ten seconds and more, so shorter intervals of
/// two runs differ by whether they lie in a wave.
const MINUTE_POINTS: usize = SPEEDUP as usize;
const PROMISED: &str = "promised: never slower than without flash";

/// A file that fits on flash.
pub const FITS: Scenario = Scenario {
    name: "vnx-flash-fits",
    title: "a file of 15 GB before 4 GB of memory and flash of 2 x 100 GB",
    source: SOURCE,
    setting: "a third of the rates, one RAID 5 group 4+1 of SAS 10k as in vnx-spill, two SSDs with 1,166 requests a \
              second each, 4 to 64 requests outstanding; a ninth of the bytes: a file of 1.67 GB, 0.44 GB memory, 2 x \
              11.1 GB flash; a third of the time, a minute is 20 s; from cold, at most 15 minutes a step, less once \
              three differ by less than 1 %",
    run: fits,
    demo: Some(Demo {
        part: THIRD,
        timed: true,
        byte_divisor_min: BYTE_DIVISOR_MIN,
        setup: |byte_divisor| setup(FITTING_FILE_BYTES, byte_divisor),
        checks: fits_checks,
    }),
};

/// Files larger than flash.
pub const SPILLS: Scenario = Scenario {
    name: "vnx-flash-spills",
    title: "files of 150 GB, and of 1.5 times what flash of 2 x 100 GB holds clean: with flash never slower than \
            without",
    source: SOURCE,
    setting: "scaled as vnx-flash-fits: files of 16.7 GB and of 1.5 times what two SSDs of 11.1 GB hold clean, the \
              LUN on the first twelfth of its disks; five steps of 15 minutes of 20 s, from cold",
    run: spills,
    demo: Some(Demo {
        part: FILE_ALONE,
        timed: true,
        byte_divisor_min: BYTE_DIVISOR_MIN,
        setup: |byte_divisor| setup(SPILLING_FILE.1, byte_divisor),
        checks: |with, without| {
            let pair = Pair { with: with.concat(), without: without.concat() };
            vec![pair.never_slower_check(SPILLING_FILE.0, ("quarter of an hour", STEP_MINUTES as usize))]
        },
    }),
};

/// Files that nearly fill flash.
pub const JUST_FITS: Scenario = Scenario {
    name: "vnx-flash-just-fits",
    title: "files of 80 GB, and of 0.95 times what flash of 2 x 100 GB holds clean: hits climb, and the rate with them",
    source: SOURCE,
    setting: "as vnx-flash-spills with files of 8.9 GB and of 0.95 times what two SSDs of 11.1 GB hold clean",
    run: just_fits,
    demo: Some(Demo {
        part: FILE_ALONE,
        timed: true,
        byte_divisor_min: BYTE_DIVISOR_MIN,
        setup: |byte_divisor| setup(JUST_FITTING_FILE.1, byte_divisor),
        checks: |with, without| {
            let pair = Pair { with: with.concat(), without: without.concat() };
            pair.climb_checks(JUST_FITTING_FILE.0, ("quarter of an hour", STEP_MINUTES as usize))
        },
    }),
};

const THIRD: &str = "one of three RAID 5 groups with a third of file, memory, flash and requests outstanding; figures \
                     at the end are of all three";
const FILE_ALONE: &str =
    "the published file alone; one of three RAID 5 groups with a third of file, memory, flash and requests outstanding";
/// Smallest reduction for a live demonstration: the largest file is then 2.5 GB, and so is each SSD.
const BYTE_DIVISOR_MIN: u64 = 20;
const FITTING_FILE_BYTES: u64 = 15 * GB;
/// The published files.
const SPILLING_FILE: (&str, u64) = ("150 GB", 150 * GB);
const JUST_FITTING_FILE: (&str, u64) = ("80 GB", 80 * GB);

fn flash(byte_divisor: u64) -> FlashPlan {
    FlashPlan { devices: 2, bytes: (100 * GB / PARTS / byte_divisor).next_multiple_of(1 << 20), iops: 3_500 / PARTS }
}

/// One RAID 5 group with its part of the disks, memory and flash, divided by `byte_divisor`.
fn scaled_plan(seed: u64, byte_divisor: u64, file_bytes: u64, stripe_bytes: u64, flash: Option<FlashPlan>) -> Plan {
    Plan {
        flash,
        memory_bytes: 4 * GB / PARTS / byte_divisor,
        speedup: byte_divisor,
        ..plan(seed, 1, file_bytes, stripe_bytes, STROKE_PART)
    }
}

fn setup(published_bytes: u64, byte_divisor: u64) -> Setup {
    let file_bytes = (published_bytes / PARTS / byte_divisor).next_multiple_of(MIB);
    let plan = |flash| scaled_plan(1, byte_divisor, file_bytes, MIB, flash);
    Setup::new(plan(Some(flash(byte_divisor))), plan(None), phases(file_bytes, PARTS), byte_divisor)
}

/// Runs the published steps of 15 minutes, with flash or without. With `steady` a step ends once its rate is steady.
fn steps(seed: u64, file_bytes: u64, flash: Option<FlashPlan>, steady: bool) -> Vec<Vec<Point>> {
    let mut bed = TestBed::new(&scaled_plan(seed, SPEEDUP, file_bytes, STRIPE_BYTES, flash));
    let mut step = |(step, depth): (u64, u32)| {
        bed.run_pattern(&database(file_bytes), depth / PARTS as u32, STEP_MINUTES, steady, seed * 100 + step)
    };
    (1..).zip(OUTSTANDING).map(&mut step).collect()
}

/// Mean of a figure over the last three minutes of a step.
fn mean_of_last_minutes(steps: &[Vec<Point>], step: usize, figure: fn(&Point) -> f64) -> f64 {
    let points = &steps[step];
    mean(&points[points.len().saturating_sub(3)..], figure)
}

fn fits(seed: u64) -> Outcome {
    let file_bytes = FITTING_FILE_BYTES / PARTS / SPEEDUP;
    let (with, without) = (steps(seed, file_bytes, Some(flash(SPEEDUP)), true), steps(seed, file_bytes, None, true));
    let line = |(step, depth): (usize, u32)| {
        let (iops, latency) = (
            mean_of_last_minutes(&with, step, |point| point.iops),
            mean_of_last_minutes(&with, step, |point| point.latency_ms),
        );
        format!("{depth} outstanding: {:.0}/s, {latency:.1} ms", iops * PARTS as f64)
    };
    let lines: Vec<String> = OUTSTANDING.into_iter().enumerate().map(line).collect();
    let notes = vec![format!("with flash: {}", lines.join("; "))];
    let mut outcome = Outcome { checks: fits_checks(&with, &without), notes, ..Outcome::default() };
    outcome.add_run("with", with.concat()).add_run("without", without.concat());
    outcome
}

fn fits_checks(with: &[Vec<Point>], without: &[Vec<Point>]) -> Vec<Check> {
    let iops = mean_of_last_minutes(with, 3, |point| point.iops) * PARTS as f64;
    let ceiling = 7_000.0 / (0.67 * (1.0 - 4.0 / 15.0) + 0.33 * 2.0);
    let bound = f64::min(10_000.0, ceiling);
    let latency = mean_of_last_minutes(with, 3, |point| point.latency_ms);
    let mut checks = vec![
        Check::at_least("requests per second at 96 outstanding", iops, bound, QUEUEING),
        Check::at_most("mean latency at 96 outstanding, ms", latency, 96_000.0 / bound, QUEUEING),
    ];
    let ratio = mean_of_last_minutes(with, 0, |point| point.latency_ms) / with[0][0].latency_ms;
    checks.push(Check::at_most("latency at the end of the first step against its beginning", ratio, 1.0, SOURCE));
    for (step, depth) in OUTSTANDING.into_iter().enumerate() {
        let ratio = mean_of_last_minutes(with, step, |point| point.iops)
            / mean_of_last_minutes(without, step, |point| point.iops);
        checks.push(Check::at_least(format!("with flash against without, {depth} outstanding"), ratio, 0.98, PROMISED));
    }
    checks
}

/// Points of all steps, minute by minute, with flash and without.
struct Pair {
    with: Vec<Point>,
    without: Vec<Point>,
}

impl Pair {
    fn run(seed: u64, file_bytes: u64) -> Pair {
        let file_bytes = file_bytes.next_multiple_of(MIB);
        let run_steps = |flash| steps(seed, file_bytes, flash, false).concat();
        Pair { with: run_steps(Some(flash(SPEEDUP))), without: run_steps(None) }
    }

    /// Rate with flash relative to the rate without, for each interval of `points` points, starting at point `from`.
    fn gains(&self, from: usize, points: usize) -> impl Iterator<Item = f64> {
        let rate = |points: &[Point]| mean(points, |point| point.iops);
        let intervals = self.with[from..].chunks(points).zip(self.without[from..].chunks(points));
        intervals.map(move |(with, without)| rate(with) / rate(without))
    }

    /// The lowest gain of an interval.
    fn gain_min(&self, from: usize, points: usize) -> f64 {
        self.gains(from, points).fold(f64::MAX, f64::min)
    }

    /// The check that flash never slows the volume, over intervals of this name and number of points.
    fn never_slower_check(&self, name: &str, (interval, points): (&str, usize)) -> Check {
        let name = format!("{name}: with flash against without, the worst {interval}");
        Check::at_least(name, self.gain_min(0, points), 0.98, PROMISED)
    }

    /// Checks that hits rise, and that the rate rises with them; intervals as above.
    fn climb_checks(&self, name: &str, (interval, points): (&str, usize)) -> Vec<Check> {
        /// Minute from which on hits must rise.
        const CLIMB_START: usize = 15;
        /// Read hits from which on they need not rise further.
        const NEARLY_ALL: f64 = 0.95;
        let hit_ratios: Vec<f64> =
            self.with[CLIMB_START..].chunks(5).map(|minutes| mean(minutes, |point| point.read_hit_ratio)).collect();
        let climb = hit_ratios.windows(2).filter(|pair| pair[0] < NEARLY_ALL);
        // A file that is nearly all in the cache before minute 15 need not climb any more.
        let rise = climb.map(|pair| pair[1] - pair[0]).fold(1.0, f64::min);
        let best = |hits: &[f64]| hits.iter().copied().fold(0.0, f64::max);
        let falls = (1..hit_ratios.len()).filter(|end| best(&hit_ratios[..*end]) >= NEARLY_ALL);
        let fall = falls.map(|end| best(&hit_ratios[..end]) - hit_ratios[end]).fold(0.0, f64::max);
        let gain_at_hour = self.gains(59, 1).next().expect("the steps take 75 minutes");
        vec![
            Check::at_least(
                format!("{name}: least rise of read hits in five minutes, from minute 15 on and below 95 %"),
                rise,
                1e-6,
                SOURCE,
            ),
            Check::at_most(format!("{name}: read hits below their best, from 95 % on"), fall, 0.02, SOURCE),
            Check::at_least(
                format!("{name}: with flash against without, the worst {interval} from minute 15 on"),
                self.gain_min(CLIMB_START, points),
                1.0,
                SOURCE,
            ),
            Check::at_least(format!("{name}: with flash against without, minute 60"), gain_at_hour, 1.05, SOURCE),
        ]
    }

    fn note(&self, name: &str) -> String {
        let last = self.with[self.with.len() - 1];
        let (fill, hits) = (last.flash_fill_ratio * 100.0, last.read_hit_ratio * 100.0);
        let (gain, gain_min) = (self.gains(0, 1).sum::<f64>() / self.with.len() as f64, self.gain_min(0, 1));
        format!(
            "{name}: flash {fill:.0} % filled and {hits:.0} % read hits at the end; {gain:.2} times the rate without \
             on average, {gain_min:.3} in the worst 20 s"
        )
    }
}

/// The published file, and a file of `clean_percent` of flash's clean capacity.
fn pairs(seed: u64, published: (&'static str, u64), clean_percent: u64) -> [(String, Pair); 2] {
    let clean_bytes =
        TestBed::new(&Plan { flash: Some(flash(SPEEDUP)), ..plan(seed, 1, MIB, STRIPE_BYTES, STROKE_PART) })
            .page_capacity_bytes();
    let (name, bytes) = published;
    let scaled_name = format!("{:.2} of what flash holds", clean_percent as f64 / 100.0);
    [
        (name.to_owned(), Pair::run(seed, bytes / PARTS / SPEEDUP)),
        (scaled_name, Pair::run(seed + 1, clean_bytes / 100 * clean_percent)),
    ]
}

fn outcome_of(pairs: [(String, Pair); 2], checks: Vec<Check>) -> Outcome {
    let notes = pairs.iter().map(|(name, pair)| pair.note(name)).collect();
    let mut outcome = Outcome { checks, notes, ..Outcome::default() };
    for (name, pair) in pairs {
        outcome.add_run(&format!("{name}, with"), pair.with).add_run(&format!("{name}, without"), pair.without);
    }
    outcome
}

fn spills(seed: u64) -> Outcome {
    let pairs = pairs(seed, SPILLING_FILE, 150);
    // The engine's own times are not reduced with the minutes: destage waves are longer than 20 s.
    let intervals = [("published minute, shortened to 20 s", 1), ("60 s", MINUTE_POINTS)];
    let check = |(name, pair): &(String, Pair)| intervals.map(|interval| pair.never_slower_check(name, interval));
    let checks = pairs.iter().flat_map(check).collect();
    outcome_of(pairs, checks)
}

fn just_fits(seed: u64) -> Outcome {
    let pairs = pairs(seed, JUST_FITTING_FILE, 95);
    let checks = pairs.iter().flat_map(|(name, pair)| pair.climb_checks(name, ("60 s", MINUTE_POINTS))).collect();
    outcome_of(pairs, checks)
}
