//! Runs jobs in virtual time or against a live volume. A [`Door`] carries out the requests, and a callback receives
//! each completion.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

use seam::{Nanos, Seam};

use super::play::REQUEST_COST;
use super::spec::{Job, Pace};
use super::{Access, Stream};
use crate::random::Random;

/// Executes requests.
pub trait Door<S: Seam>: Clone + 'static {
    /// Executes a request; false when it failed.
    fn ask(&self, seam: &S, access: Access) -> impl Future<Output = bool>;
}

/// A completed request.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// Index of the job in the list.
    pub job: usize,
    /// The access.
    pub access: Access,
    /// Latency, counted from the time when the request was sent or due.
    pub waited: Nanos,
    /// True when the request succeeded.
    pub ok: bool,
}

/// Running jobs.
pub struct Crowd(Rc<State>);

#[derive(Default)]
struct State {
    /// True when no further requests may be sent.
    over: Cell<bool>,
    /// Requests in flight.
    in_flight: Cell<u64>,
}

/// State shared by the clients of a job.
struct Shared<N> {
    number: usize,
    pace: Pace,
    stream: RefCell<Stream>,
    random: RefCell<Random>,
    /// Time at which the next request of a fixed rate is due.
    due: Cell<Nanos>,
    state: Rc<State>,
    note: Rc<N>,
}

impl Crowd {
    /// Starts jobs; `note` receives each completion. A job's draws depend only on `seed` and the job's index.
    pub fn start<S: Seam, D: Door<S>>(
        seam: &S,
        door: &D,
        jobs: &[Job],
        seed: u64,
        note: impl Fn(Ended) + 'static,
    ) -> Crowd {
        let (state, note) = (Rc::<State>::default(), Rc::new(note));
        for (number, job) in jobs.iter().enumerate() {
            let lane = number as u64;
            let shared = Rc::new(Shared {
                number,
                pace: job.pace,
                stream: RefCell::new(Stream::new(job.pattern.clone(), seed, lane)),
                random: RefCell::new(Random::new(!seed, lane)),
                due: Cell::new(seam.now() + job.begin),
                state: Rc::clone(&state),
                note: Rc::clone(&note),
            });
            for _ in 0..job.depth {
                seam.spawn(work(seam.clone(), door.clone(), Rc::clone(&shared), seam.now() + job.begin));
            }
        }
        Crowd(state)
    }

    /// Stops sending and waits for all requests in flight. A client that sleeps until its next request ends when it
    /// wakes up.
    pub async fn dismiss<S: Seam>(self, seam: &S) {
        self.0.over.set(true);
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
    fn next(&self, now: Nanos) -> Option<Nanos> {
        match self.pace {
            Pace::Eager => None,
            Pace::Think(mean) => Some(now + self.pause(mean.0 as f64)),
            Pace::Rate(per_second) => {
                let due = self.due.get() + self.pause(1e9 / per_second);
                self.due.set(due);
                Some(due)
            }
        }
    }
}

async fn work<S: Seam, D: Door<S>, N: Fn(Ended)>(seam: S, door: D, shared: Rc<Shared<N>>, begin: Nanos) {
    let State { over, in_flight } = &*shared.state;
    if begin > seam.now() {
        seam.sleep_until(begin).await;
    }
    while !over.get() {
        let due = shared.next(seam.now());
        if let Some(due) = due.filter(|due| *due > seam.now()) {
            seam.sleep_until(due).await;
            if over.get() {
                break;
            }
        }
        let access = shared.stream.borrow_mut().draw();
        let began = due.filter(|_| matches!(shared.pace, Pace::Rate(_))).unwrap_or_else(|| seam.now());
        in_flight.set(in_flight.get() + 1);
        seam.spend(REQUEST_COST);
        let ok = door.ask(&seam, access).await;
        (shared.note)(Ended { job: shared.number, access, waited: seam.now().since(began), ok });
        in_flight.set(in_flight.get() - 1);
        // A client on a socket yields the core between two of its requests.
        seam.yield_now().await;
    }
}
