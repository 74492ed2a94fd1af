//! Misses against bytes written: flash at several prices of a promotion, and with other policies.

use lab::replay::recording::PAGE_BYTES;
use lab::replay::{Plan, Recording, Replacement, simulate};
use serde::Serialize;

use terminal::Failure;
use units::{show_bytes, show_percent};

/// The result of one policy.
#[derive(Serialize)]
pub struct Point {
    policy: String,
    accesses: u64,
    hits: u64,
    miss_ratio: f64,
    bytes_written: u64,
}

/// Replays the recording on the plan's flash with each policy.
pub fn run(recording: &Recording, plan: &Plan) -> Result<Vec<Point>, Failure> {
    if plan.flash.is_zero() || !plan.memory.is_zero() {
        return Err(Failure::usage("--frontier evaluates flash only: specify --flash and omit --memory"));
    }
    let point = |(name, policy): (String, Replacement)| {
        let outcome = simulate(recording, &Plan { policy, ..*plan }).flash.outcome;
        Point {
            policy: name,
            accesses: outcome.accesses,
            hits: outcome.hits,
            miss_ratio: outcome.miss_ratio(),
            bytes_written: outcome.admitted * PAGE_BYTES,
        }
    };
    Ok(Replacement::frontier().into_iter().map(point).collect())
}

/// Prints the results as a table.
pub fn print(points: &[Point]) {
    if !points.is_empty() {
        println!("\n{:20} {:>8} {:>12}", "flash with", "misses", "written");
    }
    for point in points {
        let missed = show_percent(point.accesses - point.hits, point.accesses);
        println!("{:20} {missed:>8} {:>12}", point.policy, show_bytes(point.bytes_written));
    }
}
