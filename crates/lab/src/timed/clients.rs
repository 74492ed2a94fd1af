//! Clients of a replay: they send the requests of a trace at their recorded times, or at a fixed queue depth.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use seam::sim::SimSeam;
use seam::{Nanos, Seam};
use trace::Op;

use super::{Pace, PreparedTrace, SectorRequest};
use crate::fixture::{Fixture, Target};
use crate::workload::load::{Figures, REQUEST_COST};

/// Upper limit of requests in flight when arrival times are kept, as in a host's queues. Further requests wait, and
/// their latency includes the wait.
const IN_FLIGHT_MAX: usize = 1_024;

/// The clients of a trace.
pub(super) struct Clients<'a> {
    /// The world.
    pub fixture: &'a Fixture,
    /// The storage of each volume.
    pub targets: &'a [Target],
    /// The requests.
    pub trace: &'a PreparedTrace,
    /// Latencies, in the order of the completions.
    pub figures: &'a Rc<RefCell<Figures>>,
}

impl Clients<'_> {
    /// Sends all requests and waits for their completions.
    pub fn run(&self, pace: Pace) {
        self.fixture.world.block_on(async {
            match pace {
                Pace::Arrivals => self.send_at_arrival_times().await,
                Pace::Depth(depth) => self.send_at_depth(depth).await,
            }
        });
    }

    /// Sends requests at their recorded times.
    async fn send_at_arrival_times(&self) {
        let seam = &self.fixture.seam;
        let start = seam.now();
        let in_flight = Rc::new(Cell::new(0));
        for request in &self.trace.prepared {
            let due = start + request.time;
            seam.sleep_until(due).await;
            while in_flight.get() >= IN_FLIGHT_MAX {
                seam.sleep(Nanos::from_micros(100)).await;
            }
            in_flight.set(in_flight.get() + 1);
            let (seam, target, request) = (seam.clone(), self.targets[request.volume as usize].clone(), *request);
            let (figures, in_flight) = (Rc::clone(self.figures), Rc::clone(&in_flight));
            self.fixture.seam.spawn(async move {
                // The latency of a delayed request counts from its arrival time, as its client sees it.
                run_request(&seam, &target, request, due, &figures).await;
                in_flight.set(in_flight.get() - 1);
            });
        }
        while in_flight.get() > 0 {
            seam.sleep(Nanos::from_millis(1)).await;
        }
    }

    /// Keeps `depth` requests in flight until the trace ends.
    async fn send_at_depth(&self, depth: u32) {
        let seam = &self.fixture.seam;
        let (next, clients_left) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(depth)));
        let prepared: Rc<[SectorRequest]> = self.trace.prepared.as_slice().into();
        for _ in 0..depth {
            let (seam, targets, prepared) = (seam.clone(), self.targets.to_vec(), Rc::clone(&prepared));
            let (figures, next, clients_left) = (Rc::clone(self.figures), Rc::clone(&next), Rc::clone(&clients_left));
            self.fixture.seam.spawn(async move {
                while let Some(request) = prepared.get(next.replace(next.get() + 1)) {
                    let began = seam.now();
                    run_request(&seam, &targets[request.volume as usize], *request, began, &figures).await;
                    // A client on a socket yields the core between two requests.
                    seam.yield_now().await;
                }
                clients_left.set(clients_left.get() - 1);
            });
        }
        while clients_left.get() > 0 {
            seam.sleep(Nanos::from_millis(1)).await;
        }
    }
}

async fn run_request(
    seam: &SimSeam,
    target: &Target,
    request: SectorRequest,
    began: Nanos,
    figures: &Rc<RefCell<Figures>>,
) {
    seam.spend(REQUEST_COST);
    let result = match request.op {
        Op::Read => target.read(seam, request.at, request.len).await,
        Op::Write => target.write(seam, request.at, request.len, 1).await,
        // A flush costs time but is not counted: the figures cover reads and writes.
        Op::Flush => return drop(target.flush().await),
        Op::Discard => unreachable!("discards are skipped when the trace is prepared"),
    };
    figures.borrow_mut().record(request.op == Op::Write, began, seam.now(), &result);
}
