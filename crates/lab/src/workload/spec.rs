//! A workload specification: steps in sequence, each with concurrent jobs. The same specification runs in virtual time
//! and on a live volume ([`super::running_jobs`]).

use seam::Nanos;

use super::Pattern;

/// A workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// Name of the workload.
    pub name: String,
    /// Steps, in order.
    pub steps: Vec<Step>,
}

/// The jobs that run at the same time.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Name of the step.
    pub name: String,
    /// Duration; `None` leaves it to the caller.
    pub time: Option<Nanos>,
    /// Concurrent jobs.
    pub jobs: Vec<Job>,
}

/// One stream of requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Name of the job; jobs of one name are counted together.
    pub name: String,
    /// Accesses of the job.
    pub pattern: Pattern,
    /// Upper limit of requests in flight.
    pub depth: u32,
    /// Pace of the requests.
    pub pace: Pace,
    /// Delay of the job's start after its step's start.
    pub start_delay: Nanos,
}

/// Time at which a job sends its next request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// As soon as a request has ended.
    ClosedLoop,
    /// After a pause drawn from an exponential distribution with this mean.
    Think(Nanos),
    /// At this many requests per second, at random times (Poisson), independent of earlier requests. The latency counts
    /// from the time when the request was due.
    Rate(f64),
}

impl Job {
    /// A job that starts at once and keeps `depth` requests in flight.
    pub fn closed_loop(name: &str, pattern: Pattern, depth: u32) -> Job {
        Job { name: name.to_owned(), pattern, depth, pace: Pace::ClosedLoop, start_delay: Nanos::ZERO }
    }

    /// Replaces the pace.
    pub fn paced(self, pace: Pace) -> Job {
        Job { pace, ..self }
    }
}

impl Spec {
    /// A single step of these jobs without a duration.
    pub fn single(name: &str, jobs: Vec<Job>) -> Spec {
        Spec { name: name.to_owned(), steps: vec![Step { name: name.to_owned(), time: None, jobs }] }
    }

    /// All jobs of all steps.
    pub fn jobs_mut(&mut self) -> impl Iterator<Item = &mut Job> {
        self.steps.iter_mut().flat_map(|step| &mut step.jobs)
    }

    /// Checks that the workload can run on a volume of `size_bytes` with blocks of `block_bytes`; returns the reason if
    /// it cannot.
    pub fn check(&self, size_bytes: u64, block_bytes: u32) -> Result<(), String> {
        for job in self.steps.iter().flat_map(|step| &step.jobs) {
            let Pattern { start_bytes, region_bytes, mix, align_bytes, .. } = &job.pattern;
            let end = start_bytes + region_bytes;
            if end > size_bytes {
                return Err(format!("{}: the job ends at byte {end}, the volume has {size_bytes}", job.name));
            }
            if job.pattern.largest() > *region_bytes {
                let largest = job.pattern.largest();
                return Err(format!("{}: requests of {largest} bytes in a region of {region_bytes}", job.name));
            }
            let units = mix.iter().map(|kind| kind.bytes).chain([*align_bytes]);
            if let Some(unaligned) = units.into_iter().find(|unit| *unit == 0 || !unit.is_multiple_of(block_bytes)) {
                return Err(format!(
                    "{}: {unaligned} is not a multiple of the volume's blocks of {block_bytes} bytes",
                    job.name
                ));
            }
            if job.depth == 0 {
                return Err(format!("{}: no requests in flight", job.name));
            }
        }
        Ok(())
    }
}
