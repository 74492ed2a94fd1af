//! `hotset simulate --array` and `--pool`: the trace through the real engine on modelled disks, in virtual time.

use std::path::Path;

use clap::Args;
use engine::WritePolicy;
use lab::replay::Report;
use lab::timed::{Counts, Outcome, Pace, PreparedTrace, ReplaySetup};
use lab::workload::quantile;
use seam::Nanos;
use seam::model::ArraySpec;
use serde::Serialize;
use trace::Request;

use super::pool::{self, OnPool};
use config::BackingSpec;
use terminal::Failure;
use units::{show_bytes, show_count, show_percent};

/// Options of the replay.
#[derive(Args)]
pub struct Options {
    /// Replay through the engine on this array, in virtual time: raid5, or raid10?disks=8&type=nlsas&stripe=64KiB
    #[arg(long, value_name = "ARRAY", group = "storage", value_parser = parse_array)]
    array: Option<ArraySpec>,
    #[command(flatten)]
    pool: pool::Options,
    /// With --array or --pool: keep N requests outstanding (closed loop) instead of replaying the recorded arrival
    /// times
    #[arg(long, value_name = "N", requires = "storage", value_parser = clap::value_parser!(u32).range(1..=1024))]
    depth: Option<u32>,
    /// With --array or --pool: when writes are acknowledged: write-back or write-through
    #[arg(long, value_name = "WHEN", requires = "storage", default_value = "write-back", value_parser = parse_writes)]
    writes: WritePolicy,
    /// With --array or --pool: seed of the modelled disks' random numbers
    #[arg(long, value_name = "N", requires = "storage", default_value_t = 1)]
    seed: u64,
}

/// Parses an array as after `sim://`.
pub(super) fn parse_array(text: &str) -> Result<ArraySpec, String> {
    match BackingSpec::parse(&format!("sim://{text}"), Path::new("/"))? {
        BackingSpec::Sim(array, None) => Ok(array),
        BackingSpec::Sim(array, Some(bytes)) => Ok(array.fitted(bytes)),
        _ => Err(format!("\"{text}\" is not an array; write it like raid5, or raid10?disks=8&type=nlsas")),
    }
}

fn parse_writes(text: &str) -> Result<WritePolicy, String> {
    match text {
        "write-back" => Ok(WritePolicy::WriteBack),
        "write-through" => Ok(WritePolicy::WriteThrough),
        _ => Err(format!("\"{text}\" is neither write-back nor write-through")),
    }
}

/// The results of the runs with and without the cache.
#[derive(Serialize)]
pub struct Timed {
    mode: &'static str,
    depth: Option<u32>,
    with: RunResult,
    without: RunResult,
}

#[derive(Serialize)]
struct RunResult {
    requests: u64,
    errors: u64,
    seconds: f64,
    iops: f64,
    read_latency_us: Latency,
    write_latency_us: Latency,
    array_utilization: f64,
    #[serde(flatten)]
    cache: Option<Cache>,
}

/// Counters of the cache.
#[derive(Serialize)]
pub(super) struct Cache {
    reads: u64,
    read_hit_ratio: f64,
    memory_hits: u64,
    flash_hits: u64,
    partial_hits: u64,
    misses: u64,
    backing_reads: u64,
    backing_writes: u64,
    written_bytes: u64,
    backing_write_bytes: u64,
    logged_bytes: u64,
    promoted_bytes: u64,
    drained_s: f64,
}

/// Latencies in microseconds.
#[derive(Serialize)]
pub(super) struct Latency {
    /// Mean.
    pub mean: f64,
    p50: u32,
    /// 99th percentile.
    pub p99: u32,
    max: u32,
}

impl Latency {
    /// Latencies of a sorted list.
    pub fn of(sorted: &[u32]) -> Latency {
        // The sum of an empty iterator is -0.0.
        let sum = sorted.iter().fold(0.0, |sum, micros| sum + f64::from(*micros));
        let mean = sum / sorted.len().max(1) as f64;
        let (p50, p99) = (quantile(sorted, 500), quantile(sorted, 990));
        Latency { mean, p50, p99, max: sorted.last().copied().unwrap_or(0) }
    }
}

impl Cache {
    /// The counters of a replay, and the time of the destage after it.
    pub fn new(counts: &Counts, drained: Nanos) -> Cache {
        Cache {
            reads: counts.reads,
            read_hit_ratio: counts.read_hit_ratio(),
            memory_hits: counts.memory_hits,
            flash_hits: counts.flash_hits,
            partial_hits: counts.partial_hits,
            misses: counts.misses,
            backing_reads: counts.backing_reads,
            backing_writes: counts.backing_writes,
            written_bytes: counts.written_bytes,
            backing_write_bytes: counts.backing_write_bytes,
            logged_bytes: counts.logged_bytes,
            promoted_bytes: counts.promoted_bytes,
            drained_s: drained.as_secs_f64(),
        }
    }
}

impl RunResult {
    fn new(outcome: &Outcome) -> RunResult {
        let figures = &outcome.figures;
        RunResult {
            requests: figures.requests(),
            errors: figures.errors,
            seconds: figures.elapsed.as_secs_f64(),
            iops: figures.iops(),
            read_latency_us: Latency::of(&figures.read_us),
            write_latency_us: Latency::of(&figures.write_us),
            array_utilization: outcome.utilization,
            cache: outcome.stats.map(|counts| Cache::new(&counts, outcome.drained)),
        }
    }

    fn print(&self, name: &str) {
        let Latency { mean, p50, p99, .. } = &self.read_latency_us;
        let busy = self.array_utilization * 100.0;
        println!(
            "{name:8} {:>9.0} requests/s   reads {mean:.0} us on average, {p50} median, {p99} p99   \
             writes {:.0} us   array busy {busy:.0} %",
            self.iops, self.write_latency_us.mean
        );
    }
}

impl Options {
    /// True if the trace is replayed on a pool.
    pub fn has_pool(&self) -> bool {
        self.pool.is_given()
    }

    /// Replays the requests on the pool of the options, if there is one, with the layers' sizes from `report`.
    pub fn run_on_pool(&self, requests: &[Request], report: &Report) -> Result<Option<OnPool>, Failure> {
        if !self.has_pool() {
            return Ok(None);
        }
        OnPool::run(&self.pool, &prepare(requests)?, &self.setup(report)).map(Some)
    }

    fn setup(&self, report: &Report) -> ReplaySetup {
        ReplaySetup {
            memory_bytes: report.memory.size_bytes,
            flash_bytes: report.flash.size_bytes,
            policy: self.writes,
            pace: self.depth.map_or(Pace::Arrivals, Pace::Depth),
            seed: self.seed,
        }
    }
}

fn prepare(requests: &[Request]) -> Result<PreparedTrace, Failure> {
    PreparedTrace::new(requests).map_err(|error| Failure::failed(error.to_string()))
}

impl Timed {
    /// Replays `requests` with the layers' sizes from `report`; `None` if no array is given.
    pub fn run(options: &Options, requests: &[Request], report: &Report) -> Result<Option<Timed>, Failure> {
        let Some(array) = options.array else { return Ok(None) };
        let (trace, setup) = (prepare(requests)?, options.setup(report));
        let outcome = |cached| trace.replay(array, &setup, cached).map_err(|error| Failure::failed(error.to_string()));
        let (with, without) = (outcome(true)?, outcome(false)?);
        let mode = if options.depth.is_some() { "closed" } else { "open" };
        Ok(Some(Timed { mode, depth: options.depth, with: RunResult::new(&with), without: RunResult::new(&without) }))
    }

    /// Prints the results as text.
    pub fn print(&self) {
        match self.depth {
            Some(depth) => println!("\nreplay with latencies, queue depth {depth}:"),
            None => println!("\nreplay with latencies, at the recorded times:"),
        }
        self.without.print("no cache");
        self.with.print("cache");
        if let Some(cache) = &self.with.cache {
            println!(
                "reads: {} from memory, {} from flash, {} partial hits; array: {} reads and {} writes, \
                 destage ended {:.1} s after the last request",
                show_percent(cache.memory_hits, cache.reads),
                show_percent(cache.flash_hits, cache.reads),
                show_percent(cache.partial_hits, cache.reads),
                show_count(cache.backing_reads),
                show_count(cache.backing_writes),
                cache.drained_s
            );
            println!(
                "clients wrote {}; written: {} to the array, {} to the flash log (on each device), {} to flash pages",
                show_bytes(cache.written_bytes),
                show_bytes(cache.backing_write_bytes),
                show_bytes(cache.logged_bytes),
                show_bytes(cache.promoted_bytes)
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn array_is_written_as_in_a_backing() {
        assert_eq!(parse_array("raid5").unwrap().disks, 5);
        assert_eq!(parse_array("raid10?disks=8&type=nlsas").unwrap().disks, 8);
        for (wrong, word) in [("shelf", "raid10?disks"), ("raid5?disks=1", "3 to 64"), ("", "raid5")] {
            let error = parse_array(wrong).unwrap_err();
            assert!(error.contains(word), "{wrong}: {error}");
        }
        assert_eq!(parse_writes("write-through"), Ok(WritePolicy::WriteThrough));
        assert!(parse_writes("none").is_err());
    }
}
