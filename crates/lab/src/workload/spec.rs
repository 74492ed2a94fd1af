//! A workload as a specification: steps one after the other, in each some jobs side by side. The same one is played in virtual time and on
//! a live volume ([`super::player`]).

use seam::Nanos;

use super::Pattern;

/// A workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// What it is called.
    pub name: String,
    /// Steps, in order.
    pub steps: Vec<Step>,
}

/// What goes on at a time.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// What it is called.
    pub name: String,
    /// How long; without it, as long as is asked for.
    pub time: Option<Nanos>,
    /// All that is at work.
    pub jobs: Vec<Job>,
}

/// One stream of requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// What it is called; jobs of one name are counted together.
    pub name: String,
    /// What is asked for.
    pub pattern: Pattern,
    /// Requests in flight at most.
    pub depth: u32,
    /// When the next one is sent.
    pub pace: Pace,
    /// It begins so long after its step.
    pub begin: Nanos,
}

/// When a job sends its next request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// As soon as one has ended.
    Eager,
    /// After a pause that is drawn anew each time, exponentially, with this mean.
    Think(Nanos),
    /// At so many a second, at random times (Poisson), whatever became of those before; a latency counts from the moment when
    /// the request was due.
    Rate(f64),
}

impl Job {
    /// A job that begins at once and keeps `depth` requests in flight.
    pub fn eager(name: &str, pattern: Pattern, depth: u32) -> Job {
        Job { name: name.to_owned(), pattern, depth, pace: Pace::Eager, begin: Nanos::ZERO }
    }

    /// The same with another pace.
    pub fn paced(self, pace: Pace) -> Job {
        Job { pace, ..self }
    }
}

impl Spec {
    /// One step of some jobs, without an end of its own.
    pub fn single(name: &str, jobs: Vec<Job>) -> Spec {
        Spec { name: name.to_owned(), steps: vec![Step { name: name.to_owned(), time: None, jobs }] }
    }

    /// All jobs of all steps.
    pub fn jobs_mut(&mut self) -> impl Iterator<Item = &mut Job> {
        self.steps.iter_mut().flat_map(|step| &mut step.jobs)
    }

    /// Says why it cannot be played on `size_bytes` that are asked for in multiples of `block_bytes`.
    pub fn check(&self, size_bytes: u64, block_bytes: u32) -> Result<(), String> {
        for job in self.steps.iter().flat_map(|step| &step.jobs) {
            let Pattern { start_bytes, region_bytes, mix, align_bytes, .. } = &job.pattern;
            let end = start_bytes + region_bytes;
            if end > size_bytes {
                return Err(format!("{}: it reaches to byte {end}, the volume has {size_bytes}", job.name));
            }
            if job.pattern.largest() > *region_bytes {
                let largest = job.pattern.largest();
                return Err(format!("{}: requests of {largest} bytes in a region of {region_bytes}", job.name));
            }
            let units = mix.iter().map(|part| part.bytes).chain([*align_bytes]);
            if let Some(odd) = units.into_iter().find(|unit| *unit == 0 || !unit.is_multiple_of(block_bytes)) {
                return Err(format!(
                    "{}: {odd} is no multiple of the volume's blocks of {block_bytes} bytes",
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
