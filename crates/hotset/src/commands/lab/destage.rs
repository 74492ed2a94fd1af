//! `hotset lab destage`: orders and paces of destage, compared.

use std::path::PathBuf;

use clap::Args;
use lab::destage::{Comparison, Load, compare};
use seam::Nanos;
use serde_json::json;
use trace::Format;

use super::super::simulate::{parse_format, read_requests};
use terminal::{Failure, print_json};
use units::{parse_size, show_bytes, show_counted};

/// Default size of the cache in front of a trace's disks.
const CACHE_BYTES: u64 = 64 << 20;

/// Options of the command.
#[derive(Args)]
pub struct Options {
    /// Compare under this trace instead of the two patterns
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Format of the trace, if detection fails
    #[arg(long, value_parser = parse_format, requires = "trace")]
    format: Option<Format>,
    /// Size of the write cache in front of the trace's disks (default: 64 MiB)
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "trace")]
    cache: Option<u64>,
    /// Length of each pattern in minutes
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1_440))]
    minutes: u64,
    /// Seed of the patterns
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs the command.
pub fn run(options: &Options, json: bool) -> Result<(), Failure> {
    let comparisons: Vec<Comparison> = loads(options)?.iter().map(compare).collect();
    if json {
        return print_json(&json!({ "seed": options.seed, "loads": comparisons }));
    }
    comparisons.iter().for_each(print);
    Ok(())
}

fn loads(options: &Options) -> Result<Vec<Load>, Failure> {
    let Some(path) = &options.trace else {
        let time = Nanos::from_secs(60 * options.minutes);
        return Ok(vec![Load::desktops(options.seed, time), Load::database(options.seed, time)]);
    };
    let name = path.file_name().map_or_else(|| path.display().to_string(), |name| name.display().to_string());
    let requests = read_requests(path, options.format, false)?;
    let load = Load::of_trace(&name, &requests, options.cache.unwrap_or(CACHE_BYTES)).map_err(|missing| {
        Failure::failed(format!("{name}: the trace has no {missing}, which the comparison needs"))
    })?;
    Ok(vec![load])
}

fn print(comparison: &Comparison) {
    println!(
        "{}: {}, {:.0} % writes, volume {}, cache {}; five SAS 15k in RAID 5",
        comparison.load,
        show_counted(comparison.requests, "request"),
        comparison.write_ratio * 100.0,
        show_bytes(comparison.volume_bytes),
        show_bytes(comparison.cache_bytes)
    );
    println!(
        "{:24} {:>12} {:>10} {:>8} {:>9} {:>9} {:>9} {:>10} {:>12}",
        "order and pace",
        "array writes",
        "disk time",
        "read",
        "read",
        "read p99",
        "write p99",
        "depth 16",
        "array writes"
    );
    println!(
        "{:24} {:>12} {:>10} {:>8} {:>9} {:>9} {:>9} {:>10} {:>12}",
        "", "per write", "ms/request", "hits", "mean, ms", "ms", "ms", "requests/s", "per write"
    );
    for row in &comparison.policies {
        println!(
            "{:24} {:>12.3} {:>10.2} {:>7.1}% {:>9.2} {:>9.1} {:>9.1} {:>10.0} {:>12.3}",
            row.policy,
            row.array_writes_per_client_write,
            row.disk_time_ms_per_request,
            row.read_hit_ratio * 100.0,
            row.read_mean_ms,
            row.read_p99_ms,
            row.write_p99_ms,
            row.requests_per_s,
            row.busy_array_writes_per_client_write
        );
    }
    println!();
}
