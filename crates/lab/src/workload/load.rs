//! A load in virtual time with a fixed number of requests in flight, and its figures.

use std::cell::RefCell;
use std::rc::Rc;

use engine::RequestError;
use seam::sim::SimSeam;
use seam::{Nanos, Seam};

use super::{Pattern, Stream};
use crate::fixture::Target;

/// CPU time of a request, as a front end over a Unix socket spends it.
pub const REQUEST_COST: Nanos = Nanos(2_000);

/// A pattern, a queue depth and a duration.
#[derive(Clone, Debug)]
pub struct Load {
    /// Accesses of each client.
    pub pattern: Pattern,
    /// Requests in flight.
    pub depth: u32,
    /// Time during which requests are started.
    pub time: Nanos,
    /// Seed of the draws.
    pub seed: u64,
}

/// Results of a load.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Latencies of successful reads in microseconds, sorted once the load has ended.
    pub read_us: Vec<u32>,
    /// Latencies of successful writes, likewise.
    pub write_us: Vec<u32>,
    /// Failed requests.
    pub errors: u64,
    /// Longest time between two completions.
    pub pause_max: Nanos,
    /// Time from the first request to the last completion.
    pub elapsed: Nanos,
    /// Time of the last completion.
    last_end: Nanos,
}

impl Figures {
    /// Number of successful requests.
    pub fn requests(&self) -> u64 {
        (self.read_us.len() + self.write_us.len()) as u64
    }

    /// Requests per second.
    pub fn iops(&self) -> f64 {
        self.requests() as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Empty figures at the start time `now`.
    pub(crate) fn starting(now: Nanos) -> Figures {
        Figures { last_end: now, ..Figures::default() }
    }

    /// Completes the figures of a load that began at `start`.
    pub(crate) fn finish(&mut self, start: Nanos) {
        self.elapsed = self.last_end.since(start);
        self.read_us.sort_unstable();
        self.write_us.sort_unstable();
    }

    /// Records the result of a request that was sent at `began` and ended at `now`.
    pub(crate) fn record(&mut self, is_write: bool, began: Nanos, now: Nanos, result: &Result<(), RequestError>) {
        self.pause_max = self.pause_max.max(now.since(self.last_end));
        self.last_end = now;
        if result.is_err() {
            self.errors += 1;
            return;
        }
        let micros = u32::try_from(now.since(began).as_micros()).unwrap_or(u32::MAX);
        if is_write { self.write_us.push(micros) } else { self.read_us.push(micros) }
    }
}

/// The value at `per_mille` of a sorted list; 0 for an empty list.
pub fn quantile(sorted: &[u32], per_mille: usize) -> u32 {
    let index = (sorted.len() * per_mille / 1_000).min(sorted.len().saturating_sub(1));
    sorted.get(index).copied().unwrap_or(0)
}

/// Runs `load` on `target` and returns when its last request has ended.
pub async fn run_load(seam: &SimSeam, target: &Target, load: &Load) -> Figures {
    let start = seam.now();
    let figures = Rc::new(RefCell::new(Figures::starting(start)));
    let end = start + load.time;
    for client in 0..load.depth {
        let stream = Stream::new(load.pattern.clone(), load.seed, u64::from(client));
        let (seam, target, figures) = (seam.clone(), target.clone(), Rc::clone(&figures));
        seam.clone().spawn(run_client(seam, target, stream, end, figures));
    }
    seam.sleep_until(end).await;
    // Every running client holds a reference to the figures.
    while Rc::strong_count(&figures) > 1 {
        seam.sleep(Nanos::from_millis(1)).await;
    }
    let mut figures = figures.take();
    figures.finish(start);
    figures
}

async fn run_client(seam: SimSeam, target: Target, mut stream: Stream, end: Nanos, figures: Rc<RefCell<Figures>>) {
    let mut requests = 0;
    while seam.now() < end {
        let access = stream.draw();
        let began = seam.now();
        seam.spend(REQUEST_COST);
        let result = match access.write {
            true => target.write(&seam, access.at, access.len as usize, requests).await,
            false => target.read(&seam, access.at, access.len as usize).await,
        };
        figures.borrow_mut().record(access.write, began, seam.now(), &result);
        requests += 1;
        // A client on a socket yields the core between two requests.
        seam.yield_now().await;
    }
}
