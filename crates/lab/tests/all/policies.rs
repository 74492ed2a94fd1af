//! Replacement and admission policies on real block traces, compared with the published figures and with bounds: the
//! figures of `docs/user/simulate.md` with a small reserve.
//!
//! `HOTSET_TRACES` names the directory of the traces; without it nothing is measured. Command for the table:
//! `cargo test --release -p lab --test all -- --nocapture policies::`.

mod traces;

use engine::policy::curve::Curve;
use lab::curve::LruCurve;
use lab::replay::engine_policy::mix_bits;
use lab::replay::staged::Staged;
use lab::replay::{LayerSize, Outcome, PageTrace, Plan, Recording, Replacement, simulate};
use traces::{Row, Traces};

/// Cache sizes in percent of the footprint.
const SIZES: [u64; 3] = [5, 10, 20];
/// Bound of the default's mean miss ratio in memory; measured 0.4378.
const MEMORY_MISS_RATIO_MAX: f64 = 0.4400;
/// Bound of the default's mean miss ratio on flash, with a stage of 10 %; measured 0.2158.
const FLASH_MISS_RATIO_MAX: f64 = 0.2160;
/// Bound of its pages written, relative to LRU; measured 0.12.
const FLASH_WRITTEN_MAX: f64 = 0.15;
/// Bound of the default's mean miss ratio on flash, with a stage of 1 %; measured 0.2302.
const SMALL_STAGE_MISS_RATIO_MAX: f64 = 0.2325;
/// Bound of its pages written, relative to LRU; measured 0.20.
const SMALL_STAGE_WRITTEN_MAX: f64 = 0.21;
/// Published mean miss ratio of LRU on flash.
const LRU_MISS_RATIO: f64 = 0.2339;
/// Ten percent, in thousandths of a percent.
const TEN_PERCENT: u64 = 10_000;

fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.into_iter().collect();
    values.iter().sum::<f64>() / values.len() as f64
}

#[test]
fn lab_policies_match_the_published_miss_ratios() {
    let Some(traces) = Traces::open() else { return };
    let policies = [
        ("LRU", Replacement::Lru),
        ("ARC", Replacement::Arc),
        ("LIRS", Replacement::Lirs),
        ("TwoQ", Replacement::TwoQ),
        ("S3FIFO", Replacement::S3Fifo),
        ("Sieve", Replacement::Sieve),
        ("Belady", Replacement::Belady),
    ];
    for row in traces.published() {
        let pages = traces.pages(&row);
        assert_eq!(
            pages.percent_of_footprint(row.percent),
            row.slots,
            "{} has a different footprint than published",
            row.trace
        );
        for (column, policy) in policies {
            let (measured, published) = (policy.run(row.slots, pages).miss_ratio(), row.miss_ratio(column));
            let difference = (measured - published).abs();
            assert!(
                difference <= 0.001,
                "{column} on {} at {} %: {measured:.4}, published {published:.4}",
                row.trace,
                row.percent
            );
        }
    }
}

/// The nine policies are those of the published table, of which the best is chosen per row.
#[test]
fn memory_replacement_beats_the_best_of_nine_policies_per_row() {
    let Some(traces) = Traces::open() else { return };
    let mut rows = Vec::new();
    println!("{:28} {:>4} {:>8} {:>8} {:>8} {:>8}", "4 KiB", "size", "default", "S3-FIFO", "LRU", "Belady");
    for row in traces.published().into_iter().filter(|row| !row.is_page_sized) {
        let measured = Replacement::Default.run(row.slots, traces.pages(&row)).miss_ratio();
        let [s3_fifo, lru, belady] = ["S3FIFO", "LRU", "Belady"].map(|column| row.miss_ratio(column));
        println!("{:28} {:>2} % {measured:>8.4} {s3_fifo:>8.4} {lru:>8.4} {belady:>8.4}", row.trace, row.percent);
        assert!(measured <= s3_fifo + 0.01, "{} at {} %: {measured:.4}, S3-FIFO {s3_fifo:.4}", row.trace, row.percent);
        if SIZES.contains(&row.percent) {
            rows.push(measured);
        }
    }
    let measured = mean(rows);
    println!("mean at 5, 10, 20 %: {measured:.4}");
    assert!(
        measured <= MEMORY_MISS_RATIO_MAX,
        "the default misses {measured:.4}; the best of nine policies a row misses 0.4474"
    );
}

/// Result of one admission policy of a flash cache over all rows.
struct AdmissionResult {
    name: &'static str,
    /// Mean miss ratio.
    miss_ratio: f64,
    /// Mean of the pages written, relative to an LRU's.
    written: f64,
    /// Largest excess over the miss ratio of an LRU.
    worse_than_lru: f64,
}

fn measure_admission(name: &'static str, rows: &[(Row, Outcome)], run: impl Fn(&Row) -> Outcome) -> AdmissionResult {
    let outcomes: Vec<_> = rows.iter().map(|(row, lru)| (run(row), lru)).collect();
    let worse = outcomes.iter().map(|(measured, lru)| measured.miss_ratio() - lru.miss_ratio());
    AdmissionResult {
        name,
        miss_ratio: mean(outcomes.iter().map(|(measured, _)| measured.miss_ratio())),
        written: mean(outcomes.iter().map(|(measured, lru)| measured.admitted as f64 / lru.admitted as f64)),
        worse_than_lru: worse.fold(f64::MIN, f64::max),
    }
}

#[test]
fn flash_default_misses_less_than_lru_with_few_writes() {
    let Some(traces) = Traces::open() else { return };
    let rows: Vec<_> =
        traces.published().into_iter().filter(|row| row.is_page_sized && SIZES.contains(&row.percent)).collect();
    let rows: Vec<_> = rows
        .into_iter()
        .map(|row| {
            let lru = Replacement::Lru.run(row.slots, traces.pages(&row));
            (row, lru)
        })
        .collect();
    // The stage is the part of the size that is memory: pages wait in it for their promotion. There is no memory cache
    // in front.
    let memory = 0;
    let run_staged = |policy: Replacement, row: &Row, percent: usize| {
        let pages: &PageTrace = traces.pages(row);
        let stage = row.slots * percent / 100;
        lab::replay::run_accesses(&mut *policy.flash(row.slots, stage, memory, pages), &pages.accesses)
    };
    let staged = |percent: usize| move |row: &Row| run_staged(Replacement::Default, row, percent);
    let plain = |policy: Replacement| {
        let traces = &traces;
        move |row: &Row| policy.run(row.slots, traces.pages(row))
    };
    let default = measure_admission("default, stage 10 %", &rows, staged(10));
    let stage_5 = measure_admission("default, stage 5 %", &rows, staged(5));
    let stage_2 = measure_admission("default, stage 2 %", &rows, staged(2));
    let small_stage = measure_admission("default, stage 1 %", &rows, staged(1));
    let lru = measure_admission("LRU", &rows, plain(Replacement::Lru));
    let s3_fifo = measure_admission("S3-FIFO", &rows, plain(Replacement::S3Fifo));
    let two_q = measure_admission("2Q", &rows, plain(Replacement::TwoQ));
    let third_touch = measure_admission("third touch and LRU", &rows, plain(Replacement::ThirdTouch));
    println!("{:24} {:>10} {:>22} {:>22}", "64 KiB", "miss ratio", "written against LRU", "worst row against LRU");
    let results = [&default, &stage_5, &stage_2, &small_stage, &lru, &s3_fifo, &two_q, &third_touch];
    for AdmissionResult { name, miss_ratio, written, worse_than_lru } in results {
        println!("{name:24} {miss_ratio:>10.4} {:>20.1} % {worse_than_lru:>+22.4}", written * 100.0);
    }
    for percent in [10, 1] {
        println!("variants of the promotion condition, with a stage of {percent} %:");
        for (name, policy) in Replacement::frontier() {
            let AdmissionResult { miss_ratio, written, worse_than_lru, .. } =
                measure_admission("", &rows, |row| run_staged(policy, row, percent));
            println!("{name:24} {miss_ratio:>10.4} {:>20.1} % {worse_than_lru:>+22.4}", written * 100.0);
        }
    }
    assert!(
        default.miss_ratio <= FLASH_MISS_RATIO_MAX && default.written <= FLASH_WRITTEN_MAX,
        "the default has become worse"
    );
    assert!(default.worse_than_lru <= 0.02, "on some row the default is worse than LRU by {}", default.worse_than_lru);
    assert!(
        small_stage.miss_ratio <= SMALL_STAGE_MISS_RATIO_MAX && small_stage.written <= SMALL_STAGE_WRITTEN_MAX,
        "the default with little memory has become worse"
    );
    assert!(
        (lru.miss_ratio - LRU_MISS_RATIO).abs() < 0.0005,
        "LRU misses {:.4}, published {LRU_MISS_RATIO}",
        lru.miss_ratio
    );
    assert!(third_touch.miss_ratio > lru.miss_ratio, "the third-touch rule misses no more than LRU");
}

#[test]
fn sampled_curve_is_close_to_the_exact_one() {
    let Some(traces) = Traces::open() else { return };
    for row in traces.published().into_iter().filter(|row| row.percent == 10) {
        let pages = traces.pages(&row);
        let (exact, mut sampled) = (LruCurve::of(pages), Curve::default());
        pages.accesses.iter().for_each(|page| sampled.record_use(mix_bits(*page)));
        let error_at = |percent| {
            let slots = pages.percent_of_footprint(percent);
            (exact.miss_ratio(slots) - sampled.miss_ratio(slots as u64)).abs()
        };
        let error = mean((1..=100).map(error_at));
        println!("{:28} {:>6} KiB: off by {error:.4}", row.trace, row.unit_kib());
        assert!(error <= 0.03, "{}: the curve is off by {error:.4}", row.trace);
        let difference = (exact.miss_ratio(row.slots) - row.miss_ratio("LRU")).abs();
        assert!(difference <= 0.0002, "the exact curve differs from the published one by {difference:.4}");
    }
}

#[test]
fn simulated_layers_match_the_policies_alone() {
    let Some(traces) = Traces::open() else { return };
    let recording: Recording = traces.recording("cloudphysics-vm.vscsi");
    let plan = |memory, flash| Plan { memory, flash, stage_millipercent: TEN_PERCENT, policy: Replacement::Default };
    let (none, tenth) = (LayerSize::Bytes(0), LayerSize::OfFootprint(TEN_PERCENT));
    let memory = simulate(&recording, &plan(tenth, none)).memory;
    let slots = recording.blocks.percent_of_footprint(10);
    assert_eq!(memory.outcome, Replacement::Default.run(slots, &recording.blocks));
    let flash = simulate(&recording, &plan(none, tenth)).flash;
    let (slots, stage) = (recording.pages.percent_of_footprint(10), recording.pages.percent_of_footprint(10) / 10);
    let admission = engine::policy::promotion::LateReturn::new(slots as u64, stage as u64);
    let mut staged = Staged::new(admission, stage, slots, recording.pages.distinct);
    assert_eq!(flash.outcome, lab::replay::run_accesses(&mut staged, &recording.pages.accesses));
}
