//! `hotset advise`: the miss-ratio curves of a trace, and the sizes of memory and flash worth buying.

mod svg;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use lab::advice::{Advice, Assumptions, Side, Step, advise};
use lab::replay::recording::BLOCK_BYTES;
use serde::Serialize;
use trace::Format;

use super::simulate::{parse_format, read};
use crate::cli::{Failure, print_json};
use crate::units::{parse_time, show_bytes, show_count, show_micros};

/// What is asked.
#[derive(Args)]
pub struct Options {
    /// The trace
    trace: PathBuf,
    /// Its format, where it is not recognised
    #[arg(long, value_parser = parse_format)]
    format: Option<Format>,
    /// Keep what comes before a broken record
    #[arg(long)]
    lenient: bool,
    /// Draw the curves into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Assumed: requests a second of one disk
    #[arg(long, value_name = "RATE", default_value_t = 180, value_parser = clap::value_parser!(u32).range(1..))]
    spindle_iops: u32,
    /// Assumed: latency of a request that the array answers
    #[arg(long, value_name = "TIME", default_value = "8ms", value_parser = parse_time)]
    array_latency: Duration,
    /// Assumed: latency of one that flash answers
    #[arg(long, value_name = "TIME", default_value = "200us", value_parser = parse_time)]
    flash_latency: Duration,
    /// Assumed: latency of one that memory answers
    #[arg(long, value_name = "TIME", default_value = "20us", value_parser = parse_time)]
    memory_latency: Duration,
}

#[derive(Serialize)]
struct Output {
    trace: String,
    requests: u64,
    footprint_bytes: u64,
    requests_per_s: Option<f64>,
    assumptions: Assumed,
    memory: Curve,
    flash: Curve,
}

#[derive(Serialize)]
struct Assumed {
    spindle_requests_per_s: f64,
    array_latency_us: f64,
    flash_latency_us: f64,
    memory_latency_us: f64,
}

#[derive(Serialize)]
struct Curve {
    knee_bytes: Option<u64>,
    steps: Vec<Point>,
}

#[derive(Serialize)]
struct Point {
    size_bytes: u64,
    hit_ratio: f64,
    miss_ratio: f64,
    lru_miss_ratio: f64,
    latency_us: f64,
    saved_spindles: Option<f64>,
}

/// Works it out, prints it, and draws it where that was asked for.
pub fn run(options: &Options, json: bool) -> Result<(), Failure> {
    let recording = read(&options.trace, options.format, options.lenient)?;
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let assumptions = Assumptions {
        spindle_rate: f64::from(options.spindle_iops),
        array_ns: nanos(options.array_latency),
        flash_ns: nanos(options.flash_latency),
        memory_ns: nanos(options.memory_latency),
    };
    let advice = advise(&recording, &assumptions);
    let name = options.trace.display().to_string();
    if let Some(path) = &options.svg {
        let title = options.trace.file_name().map_or(name.clone(), |file| file.to_string_lossy().into_owned());
        let picture = svg::draw(&title, &advice);
        std::fs::write(path, picture).map_err(|error| Failure::failed(format!("{}: {error}", path.display())))?;
    }
    let footprint_bytes = u64::from(recording.blocks.distinct) * BLOCK_BYTES;
    let requests = recording.requests.len() as u64;
    if json {
        let (rate, memory, flash) = (advice.rate, curve(&advice.memory), curve(&advice.flash));
        let assumptions = assumed(&assumptions);
        return print_json(&Output {
            trace: name,
            requests,
            footprint_bytes,
            requests_per_s: rate,
            assumptions,
            memory,
            flash,
        });
    }
    println!("{name}: {} requests, footprint {}", show_count(requests), show_bytes(footprint_bytes));
    print(&advice, &assumptions);
    Ok(())
}

fn assumed(assumptions: &Assumptions) -> Assumed {
    let micros = |nanos: u64| nanos as f64 / 1e3;
    Assumed {
        spindle_requests_per_s: assumptions.spindle_rate,
        array_latency_us: micros(assumptions.array_ns),
        flash_latency_us: micros(assumptions.flash_ns),
        memory_latency_us: micros(assumptions.memory_ns),
    }
}

fn curve(side: &Side) -> Curve {
    let point = |step: &Step| Point {
        size_bytes: step.size_bytes,
        hit_ratio: step.hit_ratio,
        miss_ratio: step.miss_ratio,
        lru_miss_ratio: step.lru_miss_ratio,
        latency_us: step.latency_ns / 1e3,
        saved_spindles: step.saved_spindles,
    };
    Curve { knee_bytes: knee(side).map(|step| step.size_bytes), steps: side.steps.iter().map(point).collect() }
}

fn knee(side: &Side) -> Option<&Step> {
    side.knee.map(|at| &side.steps[at])
}

fn print(advice: &Advice, assumptions: &Assumptions) {
    for (name, side) in [("memory", &advice.memory), ("flash", &advice.flash)] {
        println!("\n{:>12} {:>12} {:>9} {:>11} {:>9}", name, "served whole", "more", "latency", "spindles");
        let mut before = 0.0;
        for (at, step) in side.steps.iter().enumerate() {
            let spindles = step.saved_spindles.map_or("-".to_owned(), |saved| format!("-{saved:.1}"));
            println!(
                "{:>12} {:>10.1} % {:>+7.1} % {:>11} {spindles:>9}{}",
                show_bytes(step.size_bytes),
                step.hit_ratio * 100.0,
                (step.hit_ratio - before) * 100.0,
                show_micros(step.latency_ns / 1e3),
                if side.knee == Some(at) { "  <- more pays less from here on" } else { "" }
            );
            before = step.hit_ratio;
        }
    }
    let worth = |side: &Side| {
        knee(side).map_or("none: it grows evenly with the size".to_owned(), |step| show_bytes(step.size_bytes))
    };
    println!("\nworth buying: memory {}, or flash {}", worth(&advice.memory), worth(&advice.flash));
    let micros = |nanos: u64| show_micros(nanos as f64 / 1e3);
    println!(
        "assumed: an answer of the array {}, of flash {}, of memory {}; {} requests/s a disk; each kind of cache alone",
        micros(assumptions.array_ns),
        micros(assumptions.flash_ns),
        micros(assumptions.memory_ns),
        assumptions.spindle_rate
    );
    match advice.rate {
        Some(rate) => println!("the trace's mean rate is {rate:.0} requests/s; spindles are counted for that"),
        None => println!("the trace has no times, so nothing can be said of spindles"),
    }
}
