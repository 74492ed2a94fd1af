//! One run of fio, and its relevant figures.

use std::io;
use std::process::Command;

use serde_json::Value;

use crate::cells::Cell;

/// Target of the client.
#[derive(Clone, Debug)]
pub enum Target {
    /// An NBD export.
    Nbd(String),
    /// A file with direct I/O through io_uring.
    File(String),
}

/// Figures of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Requests per second.
    pub iops: f64,
    /// Total number of requests.
    pub requests: f64,
    /// Median latency in microseconds.
    pub median_us: f64,
    /// 99th percentile of the latency in microseconds.
    pub p99_us: f64,
}

/// Runs `cell` for `seconds` (0: once through) on the first `size_bytes` of `target`, optionally bound to a CPU.
pub fn run(
    cell: &Cell,
    target: &Target,
    size_bytes: u64,
    seconds: u32,
    processor: Option<usize>,
) -> io::Result<Outcome> {
    let mut command = match processor {
        Some(processor) => {
            let mut command = Command::new("taskset");
            command.args(["-c", &processor.to_string(), "fio"]);
            command
        }
        None => Command::new("fio"),
    };
    command.args(["--name=bench", "--group_reporting", "--output-format=json", "--norandommap"]);
    command.arg("--randrepeat=0");
    command.arg(format!("--rw={}", cell.pattern)).arg(format!("--bs={}", cell.bytes));
    command.arg(format!("--iodepth={}", cell.depth)).arg(format!("--numjobs={}", cell.connections));
    command.arg(format!("--size={size_bytes}"));
    if cell.flush_every > 0 {
        command.arg(format!("--fsync={}", cell.flush_every));
    }
    if seconds > 0 {
        command.arg("--time_based").arg(format!("--runtime={seconds}"));
    }
    match target {
        Target::Nbd(uri) => command.arg("--ioengine=nbd").arg(format!("--uri={uri}")),
        Target::File(path) => command.args(["--ioengine=io_uring", "--direct=1"]).arg(format!("--filename={path}")),
    };
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let failed = || io::Error::other(format!("{command:?} failed: {text}{}", String::from_utf8_lossy(&output.stderr)));
    if !output.status.success() {
        return Err(failed());
    }
    parse(&text).ok_or_else(failed)
}

/// Parses fio's JSON, which text lines may precede.
fn parse(text: &str) -> Option<Outcome> {
    let value: Value = serde_json::from_str(&text[text.find('{')?..]).ok()?;
    let job = value["jobs"].get(0)?;
    let directions = ["read", "write"].map(|name| &job[name]);
    let used = directions.iter().find(|figures| figures["total_ios"].as_f64().is_some_and(|total| total > 0.0))?;
    let percentile_us = |percentile: &str| Some(used["clat_ns"]["percentile"][percentile].as_f64()? / 1000.0);
    Some(Outcome {
        iops: used["iops"].as_f64()?,
        requests: used["total_ios"].as_f64()?,
        median_us: percentile_us("50.000000")?,
        p99_us: percentile_us("99.000000")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_parsed_after_text_in_the_used_direction() {
        let text = r#"fio: connected to NBD server
            {"jobs": [{"read": {"total_ios": 0, "iops": 0},
                       "write": {"total_ios": 50, "iops": 25.0, "clat_ns":
                                 {"percentile": {"50.000000": 1500, "99.000000": 2500}}}}]}"#;
        assert_eq!(parse(text), Some(Outcome { iops: 25.0, requests: 50.0, median_us: 1.5, p99_us: 2.5 }));
        assert_eq!(parse("fio: failed"), None);
    }
}
