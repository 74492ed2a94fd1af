//! `hotset simulate`: a trace against caches of given sizes. Without an array, only the policies are simulated, as fast
//! as the machine can. With an array or a pool, the whole engine runs in virtual time.

mod frontier;
mod pool;
mod timed;

use std::path::Path;

use clap::Args;
use lab::replay::{Layer, LayerSize, Plan, Recording, Replacement, Report, simulate};
use serde::Serialize;
use trace::{Format, Op, Request};

pub use pool::parse_slice;
use terminal::render::style::Style;
use terminal::{Failure, print_json};
use units::{parse_size, show_bytes, show_count, show_counted, show_percent};

/// Options of the command.
#[derive(Args)]
pub struct Options {
    /// The trace
    trace: std::path::PathBuf,
    /// Format of the trace, if detection fails
    #[arg(long, value_parser = parse_format)]
    format: Option<Format>,
    /// Accept a trace with a broken record; use the requests before it
    #[arg(long)]
    lenient: bool,
    /// Size of the memory cache (blocks of 4 KiB): 4 GiB, or 10% of the trace's footprint
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = parse_amount)]
    memory: LayerSize,
    /// Size of the flash cache (pages of 64 KiB), in the same format
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = parse_amount)]
    flash: LayerSize,
    /// Without --memory: size of the memory in front of flash, as a percentage of the flash size
    #[arg(long, value_name = "PERCENT", default_value = "10%", value_parser = parse_stage)]
    stage: u64,
    /// Admission and replacement policy
    #[arg(long, value_name = "NAME", default_value = "default", value_parser = parse_policy)]
    policy: Replacement,
    /// Also compare flash misses with bytes written to flash, for several promotion costs of the default policy and for
    /// other policies
    #[arg(long)]
    frontier: bool,
    #[command(flatten)]
    timed: timed::Options,
}

/// Parses the name of a trace format.
pub fn parse_format(text: &str) -> Result<Format, String> {
    text.parse().map_err(|error: trace::TraceError| error.to_string())
}

fn parse_amount(text: &str) -> Result<LayerSize, String> {
    let wrong = |_| {
        format!(
            "\"{text}\" is not a size; write it like \"512 MiB\", \"10 GiB\" or \"10%\" of the \
                             footprint"
        )
    };
    match text.strip_suffix('%') {
        Some(percent) => parse_millipercent(percent).map(LayerSize::OfFootprint).ok_or_else(|| wrong(String::new())),
        None => parse_size(text).map(LayerSize::Bytes).map_err(wrong),
    }
}

fn parse_stage(text: &str) -> Result<u64, String> {
    let stage = text.strip_suffix('%').and_then(parse_millipercent).filter(|millipercent| *millipercent < 100_000);
    stage.ok_or_else(|| format!("\"{text}\" is not a percentage; write it like \"10%\", below 100%"))
}

/// Parses a percentage with at most three decimals; returns thousandths of a percent.
fn parse_millipercent(percent: &str) -> Option<u64> {
    let (whole, fraction) = percent.trim().split_once('.').unwrap_or((percent.trim(), "0"));
    let digits = |text: &str| (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then_some(());
    digits(whole).and(digits(fraction))?;
    let thousandths = format!("{fraction:0<3}");
    if thousandths.len() > 3 {
        return None;
    }
    whole.parse::<u64>().ok()?.checked_mul(1_000)?.checked_add(thousandths.parse().ok()?)
}

fn parse_policy(text: &str) -> Result<Replacement, String> {
    let known = || Replacement::ALL.map(|(name, _)| name).join(", ");
    Replacement::named(text).ok_or_else(|| format!("unknown policy \"{text}\"; known policies: {}", known()))
}

/// Reads all requests of a trace.
pub fn read_requests(path: &Path, format: Option<Format>, lenient: bool) -> Result<Vec<Request>, Failure> {
    let name = path.display().to_string();
    let file = std::fs::File::open(path).map_err(|error| Failure::failed(format!("{name}: {error}")))?;
    let reader = trace::open(&name, Box::new(file), format).map_err(|error| Failure::failed(error.to_string()))?;
    let mut requests = Vec::new();
    for request in reader {
        match request {
            Ok(request) => requests.push(request),
            Err(error) if lenient => {
                eprintln!("{error}\nusing {}", show_counted(requests.len() as u64, "earlier request"));
                break;
            }
            Err(error) => return Err(Failure::failed(error.to_string())),
        }
    }
    if !requests.iter().any(|request| matches!(request.op, Op::Read | Op::Write)) {
        return Err(Failure::failed(format!("{name}: the trace has no reads or writes")));
    }
    Ok(requests)
}

/// The reads and writes of a trace.
pub fn to_recording(requests: &[Request]) -> Recording {
    let (recording, _) = Recording::of(requests.iter().map(|request| Ok::<_, std::convert::Infallible>(*request)));
    recording
}

/// Simulates and prints the result.
pub fn run(options: &Options, json: bool) -> Result<(), Failure> {
    let plan = Plan {
        memory: options.memory,
        flash: options.flash,
        stage_millipercent: options.stage,
        policy: options.policy,
    };
    check_plan(&plan, options.timed.has_pool())?;
    let requests = read_requests(&options.trace, options.format, options.lenient)?;
    let recording = to_recording(&requests);
    let report = simulate(&recording, &plan);
    let timed = timed::Timed::run(&options.timed, &requests, &report)?;
    let mut result = Outcome::new(options.trace.display().to_string(), &recording, &report, timed);
    result.pool = options.timed.run_on_pool(&requests, &report)?;
    result.frontier = if options.frontier { frontier::run(&recording, &plan)? } else { Vec::new() };
    if json {
        return print_json(&result);
    }
    result.print(&report);
    Ok(())
}

fn check_plan(plan: &Plan, has_pool: bool) -> Result<(), Failure> {
    let (memory, flash) = (!plan.memory.is_zero(), !plan.flash.is_zero());
    if !memory && !flash && !has_pool {
        return Err(Failure::usage(
            "nothing to simulate: specify --memory, --flash or both, for example --memory 10%, or a --pool",
        ));
    }
    match plan.policy {
        Replacement::Belady if memory && flash => {
            Err(Failure::usage("belady simulates one cache only: specify --memory or --flash, not both"))
        }
        Replacement::ThirdTouch if memory => {
            Err(Failure::usage("third-touch applies to flash only: omit --memory, or use another --policy"))
        }
        _ => Ok(()),
    }
}

#[derive(Serialize)]
struct Outcome {
    trace: String,
    requests: u64,
    block_accesses: u64,
    footprint_bytes: u64,
    memory: MemoryOutcome,
    flash: FlashOutcome,
    total: Total,
    #[serde(skip_serializing_if = "Option::is_none")]
    timed: Option<timed::Timed>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pool: Option<pool::OnPool>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    frontier: Vec<frontier::Point>,
}

#[derive(Serialize)]
struct MemoryOutcome {
    size_bytes: u64,
    accesses: u64,
    hits: u64,
    miss_ratio: f64,
}

#[derive(Serialize)]
struct FlashOutcome {
    #[serde(flatten)]
    layer: MemoryOutcome,
    bytes_written: u64,
    promotions: u64,
}

#[derive(Serialize)]
struct Total {
    hit_ratio: f64,
    partial_hits: u64,
    backing_reads: u64,
    backing_writes: u64,
}

impl MemoryOutcome {
    fn new(layer: &Layer) -> Self {
        let Layer { size_bytes, outcome } = *layer;
        let miss_ratio = outcome.miss_ratio();
        MemoryOutcome { size_bytes, accesses: outcome.accesses, hits: outcome.hits, miss_ratio }
    }
}

impl Outcome {
    fn new(trace: String, recording: &Recording, report: &Report, timed: Option<timed::Timed>) -> Self {
        let promotions = report.flash.outcome.admitted;
        Outcome {
            trace,
            requests: report.requests,
            block_accesses: recording.blocks.accesses.len() as u64,
            footprint_bytes: u64::from(recording.blocks.distinct) * lab::replay::recording::BLOCK_BYTES,
            memory: MemoryOutcome::new(&report.memory),
            flash: FlashOutcome {
                layer: MemoryOutcome::new(&report.flash),
                bytes_written: promotions * lab::replay::recording::PAGE_BYTES,
                promotions,
            },
            total: Total {
                hit_ratio: report.hits as f64 / report.requests.max(1) as f64,
                partial_hits: report.partial_hits,
                backing_reads: report.backing_reads,
                backing_writes: report.backing_writes,
            },
            timed,
            pool: None,
            frontier: Vec::new(),
        }
    }

    fn print(&self, report: &Report) {
        println!(
            "{}: {} requests, {} accesses to blocks of 4 KiB, footprint {}",
            self.trace,
            show_count(self.requests),
            show_count(self.block_accesses),
            show_bytes(self.footprint_bytes)
        );
        for (name, layer) in [("memory", &report.memory), ("flash", &report.flash)] {
            let Layer { size_bytes, outcome } = layer;
            if outcome.accesses > 0 {
                let (size, hits) = (show_bytes(*size_bytes), show_percent(outcome.hits, outcome.accesses));
                println!("{name:8} {size:>10}   {hits:>7} hits of {}", show_count(outcome.accesses));
            }
        }
        if report.flash.outcome.accesses > 0 {
            let written = show_bytes(self.flash.bytes_written);
            println!("written to flash: {written} in {}", show_counted(self.flash.promotions, "page"));
        }
        if report.memory.outcome.accesses > 0 || report.flash.outcome.accesses > 0 {
            self.print_requests(report);
        }
        self.timed.iter().for_each(timed::Timed::print);
        self.pool.iter().for_each(|pool| terminal::render::print(&pool.show(Style::of_stdout())));
        frontier::print(&self.frontier);
    }

    fn print_requests(&self, report: &Report) {
        println!(
            "requests: {} full hits, {} partial hits; {} backing reads and {} backing writes",
            show_percent(report.hits, report.requests),
            show_percent(report.partial_hits, report.requests),
            show_count(report.backing_reads),
            show_count(report.backing_writes)
        );
        if report.memory.outcome.accesses > 0 && report.flash.outcome.accesses > 0 && report.partial_hits > 0 {
            println!(
                "memory serves repeated accesses, so flash sees fewer of them: a request that lies in both is a \
                 partial hit, and full hits can be fewer than with flash alone"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_bytes_or_a_part_of_the_footprint() {
        assert_eq!(parse_amount("10%"), Ok(LayerSize::OfFootprint(10_000)));
        assert_eq!(parse_amount("0.125 %"), Ok(LayerSize::OfFootprint(125)));
        assert_eq!(parse_amount("1 GiB"), Ok(LayerSize::Bytes(1 << 30)));
        for wrong in ["", "%", "ten%", "1.%", "0.0001%", "-1%", "99999999999999999999%", "5 potatoes"] {
            assert!(parse_amount(wrong).is_err_and(|error| error.contains("10%")), "{wrong}");
        }
        assert_eq!(parse_stage("1%"), Ok(1_000));
        assert!(parse_stage("100%").is_err() && parse_stage("1").is_err());
    }

    #[test]
    fn impossible_simulations_are_refused_with_a_remedy() {
        let plan = |memory, flash, policy| Plan { memory, flash, stage_millipercent: 0, policy };
        let (empty, present) = (LayerSize::Bytes(0), LayerSize::OfFootprint(1));
        for (plan, word) in [
            (plan(empty, empty, Replacement::Default), "--memory 10%"),
            (plan(present, present, Replacement::Belady), "not both"),
            (plan(present, empty, Replacement::ThirdTouch), "omit --memory"),
        ] {
            assert!(check_plan(&plan, false).is_err_and(|failure| failure.message.contains(word)), "{word}");
        }
        assert!(check_plan(&plan(present, present, Replacement::Lru), false).is_ok());
        assert!(check_plan(&plan(empty, empty, Replacement::Default), true).is_ok());
        assert!(parse_policy("random").is_err_and(|error| error.contains("s3-fifo")));
    }
}
