//! Runs jobs in virtual time or against a live volume. A [`RequestTarget`] executes the requests, and a callback
//! receives each completion.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

use seam::{Nanos, Seam};

use super::load::REQUEST_COST;
use super::spec::{Job, Pace};
use super::{Access, Stream};
use crate::random::Random;

/// A target of requests.
pub trait RequestTarget<S: Seam>: Clone + 'static {
    /// Executes a request; false when it failed.
    fn execute(&self, seam: &S, access: Access) -> impl Future<Output = bool>;
}

/// A completed request.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// Index of the job in the list.
    pub job: usize,
    /// The access.
    pub access: Access,
    /// Latency, counted from the time when the request was sent or due.
    pub latency: Nanos,
    /// True when the request succeeded.
    pub ok: bool,
}

/// Running jobs.
pub struct RunningJobs(Rc<State>);

#[derive(Default)]
struct State {
    /// True when no further requests may be sent.
    is_stopped: Cell<bool>,
    /// Requests in flight.
    in_flight: Cell<u64>,
}

/// State shared by the clients of a job.
struct Shared<N> {
    job: usize,
    pace: Pace,
    stream: RefCell<Stream>,
    random: RefCell<Random>,
    /// Time at which the next request of a fixed rate is due.
    due: Cell<Nanos>,
    state: Rc<State>,
    on_completion: Rc<N>,
}

impl RunningJobs {
    /// Starts jobs; `on_completion` receives each completion. A job's draws depend only on `seed` and the job's index.
    pub fn start<S: Seam, D: RequestTarget<S>>(
        seam: &S,
        target: &D,
        jobs: &[Job],
        seed: u64,
        on_completion: impl Fn(Completion) + 'static,
    ) -> RunningJobs {
        let (state, on_completion) = (Rc::<State>::default(), Rc::new(on_completion));
        for (number, job) in jobs.iter().enumerate() {
            let draw_stream = number as u64;
            let shared = Rc::new(Shared {
                job: number,
                pace: job.pace,
                stream: RefCell::new(Stream::new(job.pattern.clone(), seed, draw_stream)),
                random: RefCell::new(Random::new(!seed, draw_stream)),
                due: Cell::new(seam.now() + job.start_delay),
                state: Rc::clone(&state),
                on_completion: Rc::clone(&on_completion),
            });
            for _ in 0..job.depth {
                seam.spawn(run_client(seam.clone(), target.clone(), Rc::clone(&shared), seam.now() + job.start_delay));
            }
        }
        RunningJobs(state)
    }

    /// Stops sending and waits for all requests in flight. A client that sleeps until its next request ends when it
    /// wakes up.
    pub async fn stop<S: Seam>(self, seam: &S) {
        self.0.is_stopped.set(true);
        while self.0.in_flight.get() > 0 {
            seam.sleep(Nanos::from_millis(1)).await;
        }
    }
}

impl<N> Shared<N> {
    fn pause(&self, mean_ns: f64) -> Nanos {
        Nanos((-(1.0 - self.random.borrow_mut().fraction()).ln() * mean_ns) as u64)
    }

    /// Time at which the next request is to be sent; `None` means at once.
    fn next_time(&self, now: Nanos) -> Option<Nanos> {
        match self.pace {
            Pace::ClosedLoop => None,
            Pace::Think(mean) => Some(now + self.pause(mean.0 as f64)),
            Pace::Rate(per_second) => {
                let due = self.due.get() + self.pause(1e9 / per_second);
                self.due.set(due);
                Some(due)
            }
        }
    }
}

async fn run_client<S: Seam, D: RequestTarget<S>, N: Fn(Completion)>(
    seam: S,
    target: D,
    shared: Rc<Shared<N>>,
    begin: Nanos,
) {
    let State { is_stopped, in_flight } = &*shared.state;
    if begin > seam.now() {
        seam.sleep_until(begin).await;
    }
    while !is_stopped.get() {
        let due = shared.next_time(seam.now());
        if let Some(due) = due.filter(|due| *due > seam.now()) {
            seam.sleep_until(due).await;
            if is_stopped.get() {
                break;
            }
        }
        let access = shared.stream.borrow_mut().draw();
        let began = due.filter(|_| matches!(shared.pace, Pace::Rate(_))).unwrap_or_else(|| seam.now());
        in_flight.set(in_flight.get() + 1);
        seam.spend(REQUEST_COST);
        let ok = target.execute(&seam, access).await;
        (shared.on_completion)(Completion { job: shared.job, access, latency: seam.now().since(began), ok });
        in_flight.set(in_flight.get() - 1);
        // A client on a socket yields the core between two requests.
        seam.yield_now().await;
    }
}
