//! One side's clients: they run the jobs of the phases over NBD on a core of their own.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lab::scenario::test_bed::Plan;
use lab::scenario::{Phase, Setup};
use lab::workload::address_space::AddressSpace;
use lab::workload::{Completion, Job, RunningJobs};
use nbd_client::{NbdDisk, NbdOptions, NbdTarget};
use seam::real::{RealCoreSpec, RealSeam, run_core};
use seam::{BLOCK_BYTES, Nanos, Seam};

use super::super::client_counters::Meter;
use super::super::demo_daemon::DemoDaemon;
use super::daemon_config;
use super::scale::Scale;
use lab::workload::exports::Exports;
use terminal::Failure;

/// Seed of the random numbers. Both sides use it, so that they get the same requests in the same order.
const SEED: u64 = 1;
/// Requests in flight per connection to an export, and the maximum number of connections to an export.
const CONNECTION_DEPTH: u64 = 128;
const CONNECTIONS_MAX: u64 = 16;
/// Time-out after which a connection to the daemon counts as lost.
const RECONNECT_TIMEOUT: Nanos = Nanos::from_secs(1);
/// Time-out for the last requests of a phase before the next phase begins.
const ACT_CHANGE_TIMEOUT: Nanos = Nanos::from_millis(300);
/// Polling interval of the stop flag.
const STOP_POLL_INTERVAL: Nanos = Nanos::from_millis(50);

/// Clients on a thread.
pub struct Clients {
    /// Their counters.
    pub meter: Meter,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<(), Failure>>,
}

/// The work of a thread of clients.
struct ClientWork {
    socket: PathBuf,
    addresses: AddressSpace,
    exports: usize,
    /// Jobs and duration of each phase.
    phases: Vec<(Vec<Job>, Duration)>,
    meter: Meter,
    stop: Arc<AtomicBool>,
}

impl Clients {
    /// Starts the clients of all phases against `daemon`, which is set up by `plan`.
    pub fn start(daemon: &DemoDaemon, plan: &Plan, setup: &Setup, scale: &Scale) -> Result<Clients, Failure> {
        let (meter, stop) = (Meter::default(), Arc::<AtomicBool>::default());
        let duration = |phase: &Phase| scale.minute * u32::try_from(phase.minutes).expect("minutes can be counted");
        let work = ClientWork {
            socket: daemon.socket(),
            addresses: plan.address_space(),
            exports: plan.arrays.len(),
            phases: setup.phases.iter().map(|phase| (phase.jobs.clone(), duration(phase))).collect(),
            meter: meter.clone(),
            stop: Arc::clone(&stop),
        };
        let thread = std::thread::Builder::new().name("clients".to_owned()).spawn(move || work.run());
        let thread =
            thread.map_err(|error| Failure::failed(format!("the clients' thread cannot be started: {error}")))?;
        Ok(Clients { meter, stop, thread })
    }

    /// True after the clients have ended, because of `stop` or an error.
    pub fn have_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Stops the issue of new requests.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Waits up to `timeout` for the outstanding requests.
    pub fn wait(&self, timeout: Duration) {
        let start = Instant::now();
        while !self.have_ended() && start.elapsed() < timeout {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits for the end of the thread.
    pub fn join(self) -> Result<(), Failure> {
        self.thread.join().map_err(|_| Failure::failed("a client panicked"))?
    }
}

impl ClientWork {
    fn run(self) -> Result<(), Failure> {
        let sum = |jobs: &[Job], value: fn(&Job) -> u64| jobs.iter().map(value).sum::<u64>();
        let largest_sum = |value| self.phases.iter().map(|(jobs, _)| sum(jobs, value)).max().unwrap_or(0);
        let requests = largest_sum(|job| u64::from(job.depth));
        let bytes =
            largest_sum(|job| u64::from(job.depth) * job.pattern.largest().next_multiple_of(BLOCK_BYTES as u64));
        // Space for headers, buffers of the connections, and outstanding requests of the previous phase.
        let pool_bytes = 4 * bytes + (64 << 20);
        let connections = (requests / CONNECTION_DEPTH).clamp(1, CONNECTIONS_MAX) as usize;
        let spec = RealCoreSpec::new(usize::try_from(pool_bytes).expect("64 bits"));
        let result = run_core(spec, move |seam| async move { self.run_acts(&seam, connections).await });
        result.map_err(|error| Failure::failed(error.to_string()))?
    }

    async fn run_acts(self, seam: &RealSeam, connections: usize) -> Result<(), Failure> {
        let mut exports = Vec::new();
        for number in 0..self.exports {
            let mut disks = Vec::new();
            for _ in 0..connections {
                disks.push(connect(seam, &self.socket, &daemon_config::volume_name(number)).await?);
            }
            exports.push(disks);
        }
        let exports = Exports::new(self.addresses.clone(), exports);
        let (mut end, mut running) = (seam.now(), None::<RunningJobs>);
        let current_act = Rc::new(Cell::new(SEED));
        for (seed, (jobs, duration)) in (SEED..).zip(&self.phases) {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            current_act.set(seed);
            let (meter, current_act) = (self.meter.clone(), Rc::clone(&current_act));
            let record = move |completion: Completion| match completion.ok {
                true if current_act.get() == seed => meter.record(completion.access.write, completion.latency),
                // The latency of an earlier phase's request does not belong to this phase.
                true => meter.record_late(),
                false => meter.record_error(),
            };
            if let Some(previous) = running.take() {
                // With overloaded storage the next phase does not wait for all outstanding requests.
                tokio::select! {
                    () = previous.stop(seam) => {}
                    () = seam.sleep(ACT_CHANGE_TIMEOUT) => {}
                }
            }
            running = Some(RunningJobs::start(seam, &exports, jobs, seed, record));
            end += Nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
            while seam.now() < end && !self.stop.load(Ordering::Relaxed) {
                seam.sleep_until(end.min(seam.now() + STOP_POLL_INTERVAL)).await;
            }
        }
        // The observer may be late and must observe the last phase until its end.
        while !self.stop.load(Ordering::Relaxed) {
            seam.sleep(STOP_POLL_INTERVAL).await;
        }
        if let Some(jobs) = running {
            jobs.stop(seam).await;
        }
        Ok(())
    }
}

async fn connect(seam: &RealSeam, socket: &Path, export: &str) -> Result<NbdDisk<RealSeam>, Failure> {
    let uri = format!("nbd+unix:///{export}?socket={}", socket.display());
    let target: NbdTarget = uri.parse().map_err(|error| Failure::failed(format!("{uri}: {error}")))?;
    let options =
        NbdOptions { refuses_own_exports: false, reconnect_timeout: RECONNECT_TIMEOUT, ..NbdOptions::default() };
    NbdDisk::open(seam, target, options).await.map_err(|error| Failure::failed(format!("{uri}: {error}")))
}
