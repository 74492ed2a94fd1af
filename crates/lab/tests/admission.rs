//! Admission to flash, measured on real block traces: miss ratio and bytes written against an LRU that admits everything.
//!
//! The traces lie where `HOTSET_TRACES` says; without it, or without `zstd` and `xz` to unpack them, nothing is measured.

#[path = "admission/cache.rs"]
mod cache;
#[path = "admission/traces.rs"]
mod traces;

use cache::{Outcome, Staged, lru};
use engine::policy::promotion::{LateReturn, ThirdTouch};

/// Parts of the footprint that the cache is given, in percent.
const SIZES: [u64; 3] = [5, 10, 20];

/// Mean miss ratio over the rows, and flash bytes against the first column's.
fn mean(rows: &[[Outcome; 3]], column: usize) -> (f64, f64) {
    let ratios = rows.iter().map(|row| row[column].miss_ratio()).sum::<f64>() / rows.len() as f64;
    let writes = |column: usize| rows.iter().map(|row| row[column].writes).sum::<u64>();
    let share =
        rows.iter().map(|row| row[column].writes as f64 / row[0].writes as f64).sum::<f64>() / rows.len() as f64;
    println!("column {column}: {} of {} writes in all", writes(column), writes(0));
    (ratios, share)
}

#[test]
fn what_is_promoted_costs_a_seventh_of_the_writes_and_hits_more_often_than_lru() {
    let Some(traces) = traces::all() else { return };
    let mut rows = Vec::new();
    println!("{:24} {:>4}   {:>15} {:>15} {:>15}", "trace", "size", "LRU", "late return", "third touch");
    for (name, pages) in &traces {
        let footprint = traces::footprint(pages);
        for percent in SIZES {
            let slots = footprint * percent / 100;
            let stage = LateReturn::stage(slots);
            let row = [
                lru(pages, slots),
                Staged::new(LateReturn::new(slots, stage), stage, slots).play(pages),
                Staged::new(ThirdTouch::new(slots), 0, slots).play(pages),
            ];
            let shown = row.map(|outcome| {
                format!("{:.4} {:>6.1} %", outcome.miss_ratio(), outcome.writes as f64 * 100.0 / row[0].writes as f64)
            });
            println!("{name:24} {percent:>2} %   {:>15} {:>15} {:>15}", shown[0], shown[1], shown[2]);
            rows.push(row);
        }
    }
    let [(lru, _), (ours, writes), (third, _)] = [0, 1, 2].map(|column| mean(&rows, column));
    println!(
        "mean: LRU {lru:.4}, late return {ours:.4} with {:.1} % of the writes, third touch {third:.4}",
        writes * 100.0
    );
    assert!((lru - 0.2339).abs() < 0.0005, "LRU's miss ratio was published as 0.2339, this finds {lru:.4}");
    assert!(ours <= 0.2180, "the default misses {ours:.4}");
    assert!(writes <= 0.16, "the default writes {writes:.3} of what LRU writes");
    assert!(third > lru, "the third touch misses {third:.4}: it was expected to fail");
}
