//! `hotset advise`: the miss-ratio curves of a trace or a live volume, and the sizes of memory and flash worth buying.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use lab::advice::of_trace;
use lab::replay::recording::BLOCK_BYTES;
use messages::report::{Assumptions, AssumptionsReport, SideAdvice, VolumeAdvice};
use messages::{Answer, Request};
use serde::Serialize;
use trace::Format;

use super::daemon::{send_request, unexpected};
use super::simulate::{parse_format, read};
use lab::report::advice::{side, to_assumptions};
use lab::report::curves;
use terminal::{Failure, print_json};
use units::{parse_time, show_bytes, show_counted, show_micros};

/// Options of the command.
#[derive(Args)]
pub struct Options {
    /// Volume in service, or trace file
    #[arg(value_name = "VOLUME|TRACE")]
    subject: String,
    /// Format of the trace, if detection fails
    #[arg(long, value_parser = parse_format)]
    format: Option<Format>,
    /// Accept a trace with a broken record; use the requests before it
    #[arg(long)]
    lenient: bool,
    /// Write a chart of the curves to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Assumed IOPS of one disk
    #[arg(long, value_name = "RATE", default_value_t = 180, value_parser = clap::value_parser!(u32).range(1..))]
    spindle_iops: u32,
    /// Assumed latency of the array
    #[arg(long, value_name = "TIME", default_value = "8ms", value_parser = parse_time)]
    array_latency: Duration,
    /// Assumed latency of a flash hit
    #[arg(long, value_name = "TIME", default_value = "200us", value_parser = parse_time)]
    flash_latency: Duration,
    /// Assumed latency of a memory hit
    #[arg(long, value_name = "TIME", default_value = "20us", value_parser = parse_time)]
    memory_latency: Duration,
}

#[derive(Serialize)]
struct Output {
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    volume: Option<String>,
    requests: u64,
    footprint_bytes: u64,
    requests_per_s: Option<f64>,
    assumptions: AssumptionsReport,
    memory: SideAdvice,
    flash: SideAdvice,
}

/// Advice for a trace or a volume.
struct Advice {
    /// The trace's file or the volume.
    name: String,
    live: bool,
    requests: u64,
    /// For a volume, the recently used part.
    footprint_bytes: u64,
    /// Mean requests per second; `None` if the times are unknown.
    rate: Option<f64>,
    memory: SideAdvice,
    flash: SideAdvice,
}

/// Computes the advice, prints it, and draws the curves if `--svg` is given.
pub fn run(socket: Option<&Path>, options: &Options, json: bool) -> Result<(), Failure> {
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let assumptions = Assumptions {
        spindle_iops: options.spindle_iops,
        array_ns: nanos(options.array_latency),
        flash_ns: nanos(options.flash_latency),
        memory_ns: nanos(options.memory_latency),
    };
    let path = Path::new(&options.subject);
    let advised = if path.is_file() {
        trace(path, options, &assumptions)?
    } else {
        volume(socket, &options.subject, &assumptions)?
    };
    if let Some(path) = &options.svg {
        let file = Path::new(&advised.name).file_name();
        let title = file.map_or(advised.name.clone(), |file| file.to_string_lossy().into_owned());
        let picture = curves::draw(&title, &advised.memory, &advised.flash);
        std::fs::write(path, picture).map_err(|error| Failure::failed(format!("{}: {error}", path.display())))?;
    }
    if json {
        return print_json(&output(advised, &assumptions));
    }
    print(&advised, &assumptions);
    Ok(())
}

fn trace(path: &Path, options: &Options, assumptions: &Assumptions) -> Result<Advice, Failure> {
    let recording = read(path, options.format, options.lenient)?;
    let advice = of_trace(&recording, &to_assumptions(assumptions));
    Ok(Advice {
        name: path.display().to_string(),
        live: false,
        requests: recording.requests.len() as u64,
        footprint_bytes: u64::from(recording.blocks.distinct) * BLOCK_BYTES,
        rate: advice.rate,
        memory: side(&advice.memory),
        flash: side(&advice.flash),
    })
}

fn volume(socket: Option<&Path>, name: &str, assumptions: &Assumptions) -> Result<Advice, Failure> {
    let (volume, assumptions) = (Some(name.to_owned()), *assumptions);
    let reply = send_request(socket, &Request::Advice { limit: 1, after: None, volume, assumptions });
    let answer = reply.map_err(|failure| Failure {
        message: format!("{} (and no file is named \"{name}\")", failure.message),
        ..failure
    })?;
    let Answer::Advice(page) = answer else { return Err(unexpected()) };
    let [advice] = <[VolumeAdvice; 1]>::try_from(page.volumes).map_err(|_| unexpected())?;
    let VolumeAdvice { volume: name, nothing, requests, footprint_bytes, requests_per_s: rate, memory, flash } = advice;
    match nothing {
        Some(reason) => Err(Failure::failed(format!("volume {name}: {reason}"))),
        None => Ok(Advice { name, live: true, requests, footprint_bytes, rate, memory, flash }),
    }
}

fn output(advised: Advice, assumptions: &Assumptions) -> Output {
    let Advice { name, live, requests, footprint_bytes, rate, memory, flash } = advised;
    Output {
        trace: (!live).then(|| name.clone()),
        volume: live.then_some(name),
        requests,
        footprint_bytes,
        requests_per_s: rate,
        assumptions: (*assumptions).into(),
        memory,
        flash,
    }
}

/// Indexes of the steps to print: each at least a quarter larger and one percentage point better than the last one, and
/// the knee and the largest step.
fn lines(side: &SideAdvice) -> Vec<usize> {
    let mut lines: Vec<usize> = Vec::new();
    for (at, step) in side.steps.iter().enumerate() {
        let is_step = lines.last().is_none_or(|last| {
            let last = &side.steps[*last];
            step.size_bytes * 4 >= last.size_bytes * 5 && step.hit_ratio >= last.hit_ratio + 0.01
        });
        if is_step || side.knee_bytes == Some(step.size_bytes) || at + 1 == side.steps.len() {
            lines.push(at);
        }
    }
    lines
}

fn print(advised: &Advice, assumptions: &Assumptions) {
    let Advice { name, live, requests, footprint_bytes, rate, memory, flash } = advised;
    let size_name = if *live { "working set" } else { "footprint" };
    println!("{name}: {}, {size_name} {}", show_counted(*requests, "request"), show_bytes(*footprint_bytes));
    for (name, side) in [("memory", memory), ("flash", flash)] {
        println!("\n{:>12} {:>12} {:>9} {:>11} {:>9}", name, "served whole", "more", "latency", "spindles");
        let mut before = 0.0;
        for at in lines(side) {
            let step = &side.steps[at];
            let spindles = step.saved_spindles.map_or("-".to_owned(), |saved| format!("-{saved:.1}"));
            println!(
                "{:>12} {:>10.1} % {:>+7.1} % {:>11} {spindles:>9}{}",
                show_bytes(step.size_bytes),
                step.hit_ratio * 100.0,
                (step.hit_ratio - before) * 100.0,
                show_micros(step.latency_us),
                if side.knee_bytes == Some(step.size_bytes) { "  <- knee: larger sizes gain less" } else { "" }
            );
            before = step.hit_ratio;
        }
        if let Some(today) = side.today {
            let served = today.hit_ratio * 100.0;
            println!("       current: {}, hit ratio {served:.1} %", show_bytes(today.size_bytes));
        }
    }
    let knee = |side: &SideAdvice| {
        side.knee()
            .map_or("none: the hit ratio grows evenly with the size".to_owned(), |step| show_bytes(step.size_bytes))
    };
    println!("\nworth buying: memory {}, or flash {}", knee(memory), knee(flash));
    let micros = |nanos: u64| show_micros(nanos as f64 / 1e3);
    println!(
        "assumed latency: array {}, flash {}, memory {}; {} IOPS per disk; memory and flash are rated separately",
        micros(assumptions.array_ns),
        micros(assumptions.flash_ns),
        micros(assumptions.memory_ns),
        assumptions.spindle_iops
    );
    if *live {
        println!(
            "the curves of a volume assume LRU replacement and estimate the hit ratio of requests from that of blocks"
        );
    }
    match rate {
        Some(rate) => println!("disks saved are based on the mean rate of {rate:.0} requests/s"),
        None => println!("the trace has no times, so disks saved are unknown"),
    }
}
