//! `hotset advise`: the miss-ratio curves of a trace or a live volume, and the sizes of memory and flash worth buying;
//! the tier curve of a trace or a pool.

mod tiers;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use config::BackingSpec;
use lab::advice::of_trace;
use lab::replay::Recording;
use lab::replay::recording::BLOCK_BYTES;
use messages::report::{
    Assumptions, AssumptionsReport, PurchaseAdvice, QuotaAdvice, SideAdvice, StepAdvice, VolumeAdvice,
};
use messages::{Answer, Request};
use serde::Serialize;
use serde_json::{Map, Value};
use tiers::TraceTiers;
use trace::Format;

use super::daemon::{send_request, unexpected};
use super::simulate::{parse_format, read_requests, to_recording};
use lab::report::advice::{of_load, to_assumptions};
use lab::report::curves;
use terminal::render::style::Style;
use terminal::{Failure, print_json};
use units::{parse_time, show_bytes, show_counted, show_micros};

/// Options of the command.
#[derive(Args)]
pub struct Options {
    /// Volume in service, pool://POOL, or trace file
    #[arg(value_name = "VOLUME|POOL|TRACE")]
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
    /// Assumed latency of the array [default: measured for a volume, otherwise 8ms]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    array_latency: Option<Duration>,
    /// Assumed latency of a flash hit
    #[arg(long, value_name = "TIME", default_value = "200us", value_parser = parse_time)]
    flash_latency: Duration,
    /// Assumed latency of a memory hit
    #[arg(long, value_name = "TIME", default_value = "20us", value_parser = parse_time)]
    memory_latency: Duration,
    #[command(flatten)]
    tiers: tiers::Options,
}

#[derive(Serialize)]
struct Output {
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<String>,
    assumptions: AssumptionsReport,
    #[serde(flatten)]
    advice: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pool: Option<TraceTiers>,
}

/// Computes the advice, prints it, and draws the curves if `--svg` is given.
pub fn run(socket: Option<&Path>, options: &Options, json: bool) -> Result<(), Failure> {
    if let Ok(BackingSpec::Pool(name)) = BackingSpec::parse(&options.subject, Path::new("/")) {
        return tiers::run_pool(socket, &name, json);
    }
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let assumptions = Assumptions {
        spindle_iops: options.spindle_iops,
        array_ns: options.array_latency.map(nanos),
        flash_ns: nanos(options.flash_latency),
        memory_ns: nanos(options.memory_latency),
    };
    let path = Path::new(&options.subject);
    let is_trace = path.is_file();
    let (advice, pool) = if is_trace {
        let requests = read_requests(path, options.format, options.lenient)?;
        let pool = TraceTiers::new(&options.tiers, &requests);
        (advise_trace(path, &to_recording(&requests), &assumptions), Some(pool))
    } else {
        (advise_volume(socket, &options.subject, &assumptions)?, None)
    };
    if let Some(path) = &options.svg {
        let file = Path::new(&advice.volume).file_name();
        let title = file.map_or(advice.volume.clone(), |file| file.to_string_lossy().into_owned());
        let picture = curves::draw(&title, &advice.memory, &advice.flash);
        std::fs::write(path, picture).map_err(|error| Failure::failed(format!("{}: {error}", path.display())))?;
    }
    if json {
        return print_json(&Output { pool, ..output(advice, is_trace, &assumptions) });
    }
    print(&advice, is_trace, &assumptions);
    pool.iter().for_each(|pool| terminal::render::print(&pool.show(Style::of_stdout())));
    Ok(())
}

/// Advice for the load of a trace, under the name of its file.
fn advise_trace(path: &Path, recording: &Recording, assumptions: &Assumptions) -> VolumeAdvice {
    let assumptions = to_assumptions(assumptions, None);
    let head = VolumeAdvice {
        volume: path.display().to_string(),
        requests: recording.requests.len() as u64,
        footprint_bytes: u64::from(recording.blocks.distinct) * BLOCK_BYTES,
        ..VolumeAdvice::default()
    };
    of_load(&of_trace(recording, &assumptions), &assumptions, head)
}

/// Advice of the daemon for a volume.
fn advise_volume(socket: Option<&Path>, name: &str, assumptions: &Assumptions) -> Result<VolumeAdvice, Failure> {
    let (volume, assumptions) = (Some(name.to_owned()), *assumptions);
    let reply = send_request(socket, &Request::Advice { limit: 1, after: None, volume, assumptions });
    let answer = reply.map_err(|failure| Failure {
        message: format!("{} (and no file is named \"{name}\")", failure.message),
        ..failure
    })?;
    let Answer::Advice(page) = answer else { return Err(unexpected()) };
    let [advice] = <[VolumeAdvice; 1]>::try_from(page.volumes).map_err(|_| unexpected())?;
    match &advice.nothing {
        Some(reason) => Err(Failure::failed(format!("volume {name}: {reason}"))),
        None => Ok(advice),
    }
}

/// The fields of the HTTP interface, with the trace's file in place of the volume and without a reason for missing
/// advice.
fn output(advice: VolumeAdvice, is_trace: bool, assumptions: &Assumptions) -> Output {
    let trace = is_trace.then(|| advice.volume.clone());
    let mut fields = match serde_json::to_value(advice) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    };
    fields.remove("nothing");
    if is_trace {
        fields.remove("volume");
    }
    Output { trace, assumptions: (*assumptions).into(), advice: fields, pool: None }
}

/// Indexes of the steps to print: those that are larger than the present cache, each at least a quarter larger and one
/// percentage point better than the last one, and the knee and the largest step.
fn select_steps(side: &SideAdvice) -> Vec<usize> {
    let present_bytes = side.today.map_or(0, |today| today.size_bytes);
    let mut selected: Vec<usize> = Vec::new();
    for (index, step) in side.steps.iter().enumerate().filter(|(_, step)| step.size_bytes > present_bytes) {
        let is_better = selected.last().is_none_or(|last| {
            let last = &side.steps[*last];
            step.size_bytes * 4 >= last.size_bytes * 5 && step.hit_ratio >= last.hit_ratio + 0.01
        });
        if is_better || side.knee_bytes == Some(step.size_bytes) || index + 1 == side.steps.len() {
            selected.push(index);
        }
    }
    selected
}

fn print(advice: &VolumeAdvice, is_trace: bool, assumptions: &Assumptions) {
    let VolumeAdvice { volume: name, requests, footprint_bytes, reads_per_s, memory, flash, .. } = advice;
    let size_name = if is_trace { "footprint" } else { "working set" };
    println!("{name}: {}, {size_name} {}", show_counted(*requests, "request"), show_bytes(*footprint_bytes));
    for (name, side) in [("memory", memory), ("flash", flash)] {
        print_steps(name, side);
    }
    println!();
    print_recommendation(advice, is_trace);
    let source = if advice.array_latency_measured { "measured" } else { "assumed" };
    println!(
        "latency: array {} ({source}), flash {}, memory {} (assumed); {} IOPS per disk; memory and flash are rated \
         separately",
        show_micros(advice.array_latency_us),
        show_micros(assumptions.flash_ns as f64 / 1e3),
        show_micros(assumptions.memory_ns as f64 / 1e3),
        assumptions.spindle_iops
    );
    if !is_trace {
        println!(
            "the curves of a volume assume LRU replacement and estimate the hit ratio of requests from that of blocks"
        );
    }
    match reads_per_s {
        Some(rate) => println!("disks saved are based on the mean rate of {rate:.0} reads/s"),
        None => println!("the trace has no times, so disks saved are unknown"),
    }
}

fn print_steps(name: &str, side: &SideAdvice) {
    println!("\n{:>12} {:>12} {:>9} {:>11} {:>9}", name, "served whole", "more", "latency", "spindles");
    let mut hit_ratio_before = 0.0;
    if let Some(today) = side.today {
        println!("{:>12} {:>10.1} %  measured now", show_bytes(today.size_bytes), today.hit_ratio * 100.0);
        let below = side.steps.iter().rfind(|step| step.size_bytes <= today.size_bytes);
        hit_ratio_before = below.map_or(0.0, |step| step.hit_ratio);
    }
    for index in select_steps(side) {
        let step = &side.steps[index];
        // A smaller number is printed as "-" instead of 0.0.
        let spindles = step.saved_spindles.filter(|saved| *saved >= 0.05);
        println!(
            "{:>12} {:>10.1} % {:>+7.1} % {:>11} {:>9}{}",
            show_bytes(step.size_bytes),
            step.hit_ratio * 100.0,
            (step.hit_ratio - hit_ratio_before) * 100.0,
            show_micros(step.latency_us),
            spindles.map_or("-".to_owned(), |saved| format!("-{saved:.1}")),
            step_note(side, step)
        );
        hit_ratio_before = step.hit_ratio;
    }
}

/// Marks the knee, and sizes that the quota does not permit.
fn step_note(side: &SideAdvice, step: &StepAdvice) -> String {
    let knee = if side.knee_bytes == Some(step.size_bytes) { "  <- knee: larger sizes gain less" } else { "" };
    let exceeded = side.quota.as_ref().filter(|quota| quota.limit_bytes.is_some_and(|limit| step.size_bytes > limit));
    let quota = exceeded.map_or(String::new(), |quota| match quota.setting.as_str() {
        "flash" => "  flash = false".to_owned(),
        setting => format!("  above {setting} = {}", quota.value),
    });
    format!("{knee}{quota}")
}

/// The purchase of each kind, or the reason why there is none.
fn print_recommendation(advice: &VolumeAdvice, is_trace: bool) {
    let because = match advice.confidence.as_str() {
        "high" => "confidence high",
        "medium" if is_trace => "confidence medium: less than a day is recorded",
        "low" if is_trace => "confidence low: less than an hour is recorded",
        "medium" => "confidence medium: in service for less than a day",
        "low" => "confidence low: in service for less than an hour",
        "few-accesses" => {
            println!("recommendation: none yet, with fewer than 10,000 block accesses or 1,000 reads");
            return;
        }
        _ => {
            println!(
                "recommendation: none yet, the measured hit ratio ({:.1} %) does not match the curve: the load has \
                 changed, or the cache is not warm yet",
                advice.hit_ratio * 100.0
            );
            return;
        }
    };
    println!("recommendation ({because}):");
    for (kind, side) in [("memory", &advice.memory), ("flash", &advice.flash)] {
        let raise = side.quota.as_ref().and_then(|quota| Some(raise_text(&advice.volume, kind, quota, &quota.raise?)));
        match &side.purchase {
            None if raise.is_some() => println!("  {kind:7} nothing to buy within the quota"),
            None => println!("  {kind:7} nothing to buy yet"),
            Some(purchase) => println!("  {kind:7} {}", purchase_text(kind, purchase)),
        }
        if let Some(raise) = raise {
            println!("  {:7} {raise}", "");
        }
    }
}

/// The quota that binds, the setting to change, and the effect.
fn raise_text(volume: &str, kind: &str, quota: &QuotaAdvice, raise: &PurchaseAdvice) -> String {
    let (limit, change) = match quota.setting.as_str() {
        "flash" => ("flash = false".to_owned(), "set flash = true and restart".to_owned()),
        setting => (format!("{kind} quota"), format!("raise {setting} (now {})", quota.value)),
    };
    let purchase = if raise.size_bytes == 0 { String::new() } else { format!(", with {}", size_text(kind, raise)) };
    format!("{limit} of volume {volume} binds: {change}{purchase}: {}", effect_text(raise))
}

fn purchase_text(kind: &str, purchase: &PurchaseAdvice) -> String {
    format!("{}: {}", size_text(kind, purchase), effect_text(purchase))
}

fn size_text(kind: &str, purchase: &PurchaseAdvice) -> String {
    match kind {
        "flash" => format!("a {} SSD", show_capacity(purchase.size_bytes)),
        _ => format!("{} more", show_bytes(purchase.size_bytes)),
    }
}

fn effect_text(purchase: &PurchaseAdvice) -> String {
    let (before, after) = (purchase.hit_ratio_before * 100.0, purchase.hit_ratio * 100.0);
    let mut text = format!("hits {before:.0} -> {after:.0} %");
    if purchase.latency_us > 0.0 {
        text += &format!(", reads about {:.1} times faster", purchase.latency_before_us / purchase.latency_us);
    }
    if let Some(saved) = purchase.saved_reads_per_s.filter(|saved| *saved >= 0.5) {
        text += &format!(", {saved:.0} array reads/s saved");
    }
    if let Some(saved) = purchase.saved_spindles.filter(|saved| *saved >= 0.05) {
        text += &format!(" ({saved:.1} disks)");
    }
    text
}

/// Capacity as it is printed on a drive, in decimal units.
fn show_capacity(bytes: u64) -> String {
    let gigabytes = bytes / 1_000_000_000;
    if gigabytes < 1_000 { format!("{gigabytes} GB") } else { format!("{:.2} TB", gigabytes as f64 / 1e3) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purchase_text_names_the_size_and_the_effect() {
        let purchase = PurchaseAdvice {
            size_bytes: 480_000_000_000,
            hit_ratio_before: 0.71,
            latency_before_us: 2_400.0,
            hit_ratio: 0.88,
            latency_us: 800.0,
            saved_reads_per_s: Some(170.4),
            saved_spindles: Some(0.94),
        };
        assert_eq!(
            purchase_text("flash", &purchase),
            "a 480 GB SSD: hits 71 -> 88 %, reads about 3.0 times faster, 170 array reads/s saved (0.9 disks)"
        );
        let memory = PurchaseAdvice {
            size_bytes: 16 << 30,
            latency_us: 0.0,
            saved_reads_per_s: Some(0.1),
            saved_spindles: Some(0.0),
            ..purchase
        };
        assert_eq!(purchase_text("memory", &memory), format!("{} more: hits 71 -> 88 %", show_bytes(16 << 30)));
        assert_eq!(show_capacity(1_920_000_000_000), "1.92 TB");
    }

    #[test]
    fn quota_that_binds_is_named_with_its_setting_and_the_effect() {
        let purchase = PurchaseAdvice {
            size_bytes: 480_000_000_000,
            hit_ratio_before: 0.71,
            latency_before_us: 2_400.0,
            hit_ratio: 0.88,
            latency_us: 800.0,
            saved_reads_per_s: None,
            saved_spindles: None,
        };
        let quota = |setting: &str, value: &str| QuotaAdvice {
            setting: setting.to_owned(),
            value: value.to_owned(),
            limit_bytes: Some(8 << 30),
            raise: None,
        };
        let present = PurchaseAdvice { size_bytes: 0, ..purchase };
        assert_eq!(
            raise_text("v", "memory", &quota("memory_max", "8 GiB"), &present),
            "memory quota of volume v binds: raise memory_max (now 8 GiB): hits 71 -> 88 %, reads about \
             3.0 times faster"
        );
        assert_eq!(
            raise_text("v", "flash", &quota("flash", "false"), &purchase),
            "flash = false of volume v binds: set flash = true and restart, with a 480 GB SSD: hits 71 -> 88 %, reads \
             about 3.0 times faster"
        );
        let side = SideAdvice { quota: Some(quota("memory_max", "50%")), ..SideAdvice::default() };
        let step = |size_bytes| StepAdvice { size_bytes, ..StepAdvice::default() };
        assert_eq!(step_note(&side, &step(8 << 30)), "");
        assert_eq!(step_note(&side, &step(9 << 30)), "  above memory_max = 50%");
    }
}
