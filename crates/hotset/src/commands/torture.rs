//! `hotset torture`: the engine in a hostile simulated world, checked against its promises.

use std::ops::Range;
use std::time::Duration;

use engine::spec::Sabotage;
use lab::torture::{Campaign, campaign};
use serde::Serialize;

use terminal::{Failure, print_json};

/// Seeds to run if neither seeds nor minutes are given.
const DEFAULT_SEEDS: Range<u64> = 0..1_000;

/// Parses `A..B`: the seeds from `A` on, below `B`.
pub fn parse_seeds(text: &str) -> Result<Range<u64>, String> {
    let invalid = || format!("\"{text}\" is not a range of seeds; write it as 0..1000, end exclusive");
    let (first, end) = text.split_once("..").ok_or_else(invalid)?;
    let range = first.parse().map_err(|_| invalid())?..end.parse().map_err(|_| invalid())?;
    if range.is_empty() { Err(invalid()) } else { Ok(range) }
}

#[derive(Serialize)]
struct Outcome {
    passed: bool,
    seeds: u64,
    lives: u64,
    operations: u64,
    backing_requests: u64,
    virtual_seconds: f64,
    violation: Option<String>,
}

/// Runs seeds until all are done, one violates a promise, or time is up.
pub fn run(seeds: Option<Range<u64>>, minutes: Option<u64>, administrator: bool, json: bool) -> Result<(), Failure> {
    // With minutes alone, the time ends the run before the seeds do.
    let default_seeds = if minutes.is_some() { 0..u64::MAX } else { DEFAULT_SEEDS };
    let spec = Campaign {
        with_administrator: administrator,
        seeds: seeds.unwrap_or(default_seeds),
        time_max: minutes.map(|minutes| Duration::from_secs(minutes * 60)),
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        sabotage: Sabotage::None,
    };
    let summary = campaign(&spec, |completed| {
        if !json && completed > 0 && completed.is_multiple_of(1_000) {
            eprintln!("{completed} seeds");
        }
    });
    let report = summary.report;
    let violation = summary.violation.map(|violation| violation.to_string());
    let passed = violation.is_none();
    if json {
        let (seeds, lives, operations) = (report.seeds, report.sessions, report.operations);
        let virtual_seconds = report.virtual_time.as_secs_f64();
        let backing_requests = report.backing_requests;
        let result = Outcome { passed, seeds, lives, operations, backing_requests, virtual_seconds, violation };
        print_json(&result)?;
        return if passed { Ok(()) } else { Err(Failure::failed("")) };
    }
    if let Some(violation) = violation {
        return Err(Failure::failed(format!("a promise is violated\n{violation}")));
    }
    println!(
        "{} seeds, {} lives, {} operations, {} requests to backings, {:.0} s of virtual time: no promise violated",
        report.seeds,
        report.sessions,
        report.operations,
        report.backing_requests,
        report.virtual_time.as_secs_f64()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_a_half_open_range() {
        assert_eq!(parse_seeds("3..7"), Ok(3..7));
        for wrong in ["", "7", "7..3", "3..3", "a..b", "3..=7"] {
            assert!(parse_seeds(wrong).is_err_and(|error| error.contains("write it as")), "{wrong}");
        }
    }

    #[test]
    fn a_few_seeds_run_and_pass() {
        run(Some(0..3), None, false, true).unwrap();
    }
}
