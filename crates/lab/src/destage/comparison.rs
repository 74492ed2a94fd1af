//! The comparison of all policies under one load, and its figures.

use seam::Nanos;
use seam::model::{ArraySpec, DiskType, RaidLevel};

use super::simulation::{Arrival, Setup, SimulationResults, simulate};
use super::{Load, Policy};
use crate::workload::load::quantile;

/// Requests in flight for the throughput.
const DEPTH: u32 = 16;

/// Figures of a policy.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ComparisonRow {
    /// Name of the policy.
    pub policy: &'static str,
    /// Writes to the array for each write of a client, the final destage of all dirty data included.
    pub array_writes_per_client_write: f64,
    /// Blocks written to the array for each block that clients wrote.
    pub array_blocks_per_client_block: f64,
    /// Busy time of the disks for each request of a client in milliseconds, the final destage of all dirty data
    /// included.
    pub disk_time_ms_per_request: f64,
    /// Part of the reads that the cache served.
    pub read_hit_ratio: f64,
    /// Mean latency of reads in milliseconds.
    pub read_mean_ms: f64,
    /// 99th percentile of the latency of reads in milliseconds.
    pub read_p99_ms: f64,
    /// 99th percentile of the latency of writes in milliseconds.
    pub write_p99_ms: f64,
    /// Requests per second with 16 in flight.
    pub requests_per_s: f64,
    /// Writes to the array for each write of a client, with 16 in flight.
    pub busy_array_writes_per_client_write: f64,
}

/// The policies under one load.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Comparison {
    /// Name of the load.
    pub load: String,
    /// Number of requests.
    pub requests: u64,
    /// Part of them that are writes.
    pub write_ratio: f64,
    /// Size of the cache in bytes.
    pub cache_bytes: u64,
    /// Size of the volume in bytes.
    pub volume_bytes: u64,
    /// One row for each policy.
    pub policies: Vec<ComparisonRow>,
}

/// Runs all policies on five SAS 15k disks in RAID 5: once at the arrival times, and once with 16 requests in flight.
pub fn compare(load: &Load) -> Comparison {
    let array = ArraySpec::new(RaidLevel::Raid5, 5, DiskType::Sas15k);
    let writes = load.requests.iter().filter(|request| request.is_write).count();
    let row = |(name, policy): (&'static str, Policy)| {
        let [timed, busy] =
            [Arrival::Recorded, Arrival::Depth(DEPTH)].map(|arrival| simulate(load, &Setup { array, arrival }, policy));
        ComparisonRow::of(name, &timed, &busy)
    };
    Comparison {
        load: load.name.clone(),
        requests: load.requests.len() as u64,
        write_ratio: writes as f64 / load.requests.len().max(1) as f64,
        cache_bytes: load.cache_blocks * super::BLOCK_BYTES,
        volume_bytes: load.volume_blocks * super::BLOCK_BYTES,
        policies: Policy::ALL.into_iter().map(row).collect(),
    }
}

impl ComparisonRow {
    fn of(policy: &'static str, timed: &SimulationResults, busy: &SimulationResults) -> ComparisonRow {
        let writes_per_write =
            |results: &SimulationResults| results.array_writes as f64 / results.write_us.len().max(1) as f64;
        let requests = |results: &SimulationResults| (results.read_us.len() + results.write_us.len()).max(1) as f64;
        let milliseconds = |micros: u32| f64::from(micros) / 1e3;
        let reads = timed.read_us.len().max(1) as f64;
        let disk_time = Nanos(timed.busy.0 + timed.drain_busy.0);
        ComparisonRow {
            policy,
            array_writes_per_client_write: writes_per_write(timed),
            array_blocks_per_client_block: timed.array_written_blocks as f64 / timed.written_blocks.max(1) as f64,
            disk_time_ms_per_request: disk_time.as_secs_f64() * 1e3 / requests(timed),
            read_hit_ratio: timed.read_hits as f64 / reads,
            read_mean_ms: timed.read_us.iter().map(|micros| f64::from(*micros)).sum::<f64>() / reads / 1e3,
            read_p99_ms: milliseconds(quantile(&timed.read_us, 990)),
            write_p99_ms: milliseconds(quantile(&timed.write_us, 990)),
            requests_per_s: requests(busy) / busy.elapsed.as_secs_f64().max(1e-9),
            busy_array_writes_per_client_write: writes_per_write(busy),
        }
    }
}
