//! Runs the jobs of a workload against an NBD export, on a core of their own.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::Mutex;

use engine::{FineLatencyHistogram, LatencySummary};
use lab::workload::address_space::{AddressSpace, Layout};
use lab::workload::{Completion, RunningJobs, Spec, Step};
use nbd_client::{NbdDisk, NbdOptions, NbdTarget};
use seam::real::{RealCoreSpec, RealSeam, run_core};
use seam::{BLOCK_BYTES, Disk, Nanos, Seam};
use serde::Serialize;

use lab::workload::exports::Exports;
use terminal::Failure;

pub use nbd_client::NbdTargetError as TargetError;

/// Memory for the data of requests in flight, at most.
const POOL_BYTES_MAX: u64 = 1 << 30;

/// Figures of a set of requests.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Figures {
    /// Successful requests.
    pub requests: u64,
    /// Successful requests per second.
    pub iops: f64,
    /// 10^6 bytes per second.
    pub mb_s: f64,
    /// Ratio of reads among successful requests.
    pub read_ratio: f64,
    /// Mean latency.
    pub mean_us: f64,
    /// Median latency.
    pub p50_us: f64,
    /// 99th percentile of latency.
    pub p99_us: f64,
    /// 99.9th percentile of latency.
    pub p999_us: f64,
    /// Requests that failed.
    pub errors: u64,
}

/// Figures of a step.
#[derive(Clone, Debug, Serialize)]
pub struct StepFigures {
    /// Its name.
    pub name: String,
    /// Its duration.
    pub seconds: f64,
    /// All jobs together.
    pub all: Figures,
    /// Jobs by name.
    pub jobs: BTreeMap<String, Figures>,
}

/// Counters of completed requests.
#[derive(Default)]
struct Counters {
    latencies: FineLatencyHistogram,
    requests: u64,
    waited: Nanos,
    bytes: u64,
    reads: u64,
    errors: u64,
}

impl Counters {
    fn record(&mut self, completion: &Completion) {
        if !completion.ok {
            self.errors += 1;
            return;
        }
        self.latencies.add(completion.latency);
        self.requests += 1;
        self.waited += completion.latency;
        self.bytes += u64::from(completion.access.len);
        self.reads += u64::from(!completion.access.write);
    }

    fn figures(&self, seconds: f64) -> Figures {
        let LatencySummary { p50_us, p99_us, p999_us } = self.latencies.summary();
        let per_request = 1.0 / self.requests.max(1) as f64;
        Figures {
            requests: self.requests,
            iops: self.requests as f64 / seconds,
            mb_s: self.bytes as f64 / 1e6 / seconds,
            read_ratio: self.reads as f64 * per_request,
            mean_us: self.waited.0 as f64 / 1e3 * per_request,
            p50_us,
            p99_us,
            p999_us,
            errors: self.errors,
        }
    }
}

/// Connects, builds the workload for the export's size and block size, and runs it. `on_step` is called at the end of
/// every step.
pub fn run(
    target: NbdTarget,
    build: impl Fn(u64, u32) -> Result<Spec, Failure> + 'static,
    seed: u64,
    on_step: impl Fn(&StepFigures) + 'static,
) -> Result<Vec<StepFigures>, Failure> {
    let result = Arc::new(Mutex::new(None));
    let shared_result = Arc::clone(&result);
    let spec = RealCoreSpec::new(POOL_BYTES_MAX as usize);
    let ended = run_core(spec, move |seam| async move {
        let outcome = run_on_core(&seam, target, &build, seed, &on_step).await;
        *shared_result.lock().expect("no holder of the lock panics") = Some(outcome);
    });
    ended.map_err(|error| Failure::failed(error.to_string()))?;
    let outcome = result.lock().expect("no holder of the lock panics").take();
    outcome.expect("the core has ended")
}

async fn run_on_core(
    seam: &RealSeam,
    target: NbdTarget,
    build: &impl Fn(u64, u32) -> Result<Spec, Failure>,
    seed: u64,
    on_step: &impl Fn(&StepFigures),
) -> Result<Vec<StepFigures>, Failure> {
    let name = target.to_string();
    let opened = NbdDisk::open(seam, target, NbdOptions::default()).await;
    let disk = opened.map_err(|error| Failure::failed(format!("{name}: {error}")))?;
    let geometry = disk.geometry();
    let spec = build(geometry.size_bytes, geometry.logical_block)?;
    let in_flight = |step: &Step| -> u64 {
        step.jobs
            .iter()
            .map(|job| u64::from(job.depth) * job.pattern.largest().next_multiple_of(BLOCK_BYTES as u64))
            .sum()
    };
    let in_flight_max = spec.steps.iter().map(in_flight).max().unwrap_or(0);
    // Half of the pool remains for headers and the connection's own buffers, so that a request with half of its buffers
    // always gets the rest.
    if in_flight_max > POOL_BYTES_MAX / 2 {
        let text = format!(
            "the workload has {} MiB in flight at once; the limit is {} MiB",
            in_flight_max >> 20,
            POOL_BYTES_MAX >> 21
        );
        return Err(Failure::usage(text));
    }
    let addresses = AddressSpace::new(Layout::Concatenated, std::iter::once(geometry.size_bytes));
    let export = Exports::new(addresses, vec![vec![disk]]);
    let mut steps = Vec::new();
    for (index, step) in spec.steps.iter().enumerate() {
        let figures = run_step(seam, &export, step, seed + index as u64).await;
        on_step(&figures);
        steps.push(figures);
    }
    Ok(steps)
}

async fn run_step(seam: &RealSeam, export: &Exports, step: &Step, seed: u64) -> StepFigures {
    let counters: Rc<RefCell<(Counters, BTreeMap<String, Counters>)>> = Rc::default();
    let names: Vec<String> = step.jobs.iter().map(|job| job.name.clone()).collect();
    let shared_counters = Rc::clone(&counters);
    let started_at = seam.now();
    let jobs = RunningJobs::start(seam, export, &step.jobs, seed, move |completion| {
        let (total, jobs) = &mut *shared_counters.borrow_mut();
        total.record(&completion);
        match jobs.get_mut(&names[completion.job]) {
            Some(job) => job.record(&completion),
            None => jobs.entry(names[completion.job].clone()).or_default().record(&completion),
        }
    });
    seam.sleep(step.time.expect("each step has a time")).await;
    jobs.stop(seam).await;
    let seconds = seam.now().since(started_at).as_secs_f64();
    let (total, jobs) = counters.take();
    let jobs = jobs.into_iter().map(|(name, counters)| (name, counters.figures(seconds))).collect();
    StepFigures { name: step.name.clone(), seconds, all: total.figures(seconds), jobs }
}
