//! Adaptive group commit: flushes of several clients share one batch of the log.
//!
//! Clients that flush again right after each answer split into groups that alternate: each batch carries one group
//! while the next group waits. A short delay before a run lets all of them join one batch, but it only adds latency
//! when clients arrive independently. The best delay depends on clients, devices and processors, so it is measured:
//! trials of `RUNS_PER_TRIAL` runs compare the delays, and the one that serves the most flushes per second stays in use
//! until the next trial.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

use seam::{Nanos, Seam};

use crate::wait::Signal;
use task_sync::within;

/// Candidates for the delay before a run, in percent of the last run's duration.
const BATCH_DELAY_PERCENTS: [u64; 3] = [0, 50, 100];
/// Upper bound of the delay, however slow the devices are.
const BATCH_DELAY_MAX: Nanos = Nanos::from_micros(500);
/// Runs in one trial.
const RUNS_PER_TRIAL: u32 = 32;
/// One trial in this many uses a delay other than the best.
const TRIALS_PER_PROBE: u32 = 8;
/// Gain in throughput that a delay must bring over none, in percent; a smaller difference is noise.
const GAIN_PERCENT_MIN: f64 = 7.0;

/// Gathers the flushes of one shard into runs.
#[derive(Default)]
pub struct FlushBatcher {
    /// Flushes that no run has included yet.
    pending_flushes: Cell<u64>,
    /// Flushes that were requested by the end of the last run and unanswered before it.
    expected_flushes: Cell<u64>,
    /// End of the last run.
    last_run_ended_at: Cell<Nanos>,
    /// Duration of the last run.
    last_run_duration: Cell<Nanos>,
    /// The trial in progress.
    trial: RefCell<Trial>,
    /// Signals the arrival of a flush.
    arrived: Signal,
    /// Number of flushes and other operations that wait for the end of a run.
    waiting_operations: Cell<u32>,
    /// The run in progress, while it pauses.
    paused_run: RefCell<Option<Waker>>,
}

/// An operation that waits for the end of a run.
pub struct WaitingOperation<'a>(&'a FlushBatcher);

impl Drop for WaitingOperation<'_> {
    fn drop(&mut self) {
        self.0.waiting_operations.update(|waiting| waiting - 1);
    }
}

/// A trial of one delay.
#[derive(Default)]
struct Trial {
    /// Index of the delay into [`BATCH_DELAY_PERCENTS`].
    delay_index: usize,
    /// Throughput of each delay when last tried, in flushes per nanosecond.
    flushes_per_ns: [f64; BATCH_DELAY_PERCENTS.len()],
    /// Runs of this trial so far.
    runs: u32,
    /// Flushes that these runs served.
    served_flushes: u64,
    /// Time from the end of the run before the trial to the end of the last run.
    duration: Nanos,
    /// Number of completed trials.
    completed_trials: u32,
}

impl Trial {
    /// Records a run that served `served` flushes and ended `time` after the one before.
    fn add(&mut self, served: u64, time: Nanos) {
        self.runs += 1;
        self.served_flushes += served;
        self.duration += time;
        if self.runs < RUNS_PER_TRIAL {
            return;
        }
        self.flushes_per_ns[self.delay_index] = self.served_flushes as f64 / self.duration.0.max(1) as f64;
        self.completed_trials += 1;
        let probe = (self.completed_trials / TRIALS_PER_PROBE) as usize % (BATCH_DELAY_PERCENTS.len() - 1);
        let score = |delay: usize| match delay {
            0 => self.flushes_per_ns[0] * (1.0 + GAIN_PERCENT_MIN / 100.0),
            _ => self.flushes_per_ns[delay],
        };
        let best =
            (0..BATCH_DELAY_PERCENTS.len()).max_by(|left, right| score(*left).total_cmp(&score(*right))).unwrap_or(0);
        self.delay_index = match self.completed_trials % TRIALS_PER_PROBE {
            0 => (best + 1 + probe) % BATCH_DELAY_PERCENTS.len(),
            _ => best,
        };
        (self.runs, self.served_flushes, self.duration) = (0, 0, Nanos(0));
    }
}

impl FlushBatcher {
    /// Records a request for a flush.
    pub fn add_request(&self) {
        self.pending_flushes.set(self.pending_flushes.get() + 1);
        self.arrived.notify();
    }

    /// Records that an operation waits for the end of a run, as long as the result lives.
    pub fn add_operation(&self) -> WaitingOperation<'_> {
        self.waiting_operations.update(|waiting| waiting + 1);
        self.paused_run.take().into_iter().for_each(Waker::wake);
        WaitingOperation(self)
    }

    /// True if an operation waits for the end of the run in progress.
    pub fn is_run_awaited(&self) -> bool {
        self.waiting_operations.get() > 0
    }

    /// Waits until `until`, or until an operation waits for the run in progress, which alone may pause.
    pub async fn pause(&self, seam: &impl Seam, until: Nanos) {
        let awaited = poll_fn(|context| {
            if self.is_run_awaited() {
                return Poll::Ready(());
            }
            *self.paused_run.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        });
        within(seam.sleep_until(until), awaited).await;
        self.paused_run.take();
    }

    /// Delays the run for clients that the last run answered or left waiting, up to the delay under trial. The run then
    /// includes every flush requested so far; returns their number.
    pub async fn wait_for_batch(&self, seam: &impl Seam) -> u64 {
        let all_arrived = || self.pending_flushes.get() >= self.expected_flushes.get();
        let delay = Nanos(self.last_run_duration.get().0 * BATCH_DELAY_PERCENTS[self.trial.borrow().delay_index] / 100)
            .min(BATCH_DELAY_MAX);
        if delay > Nanos(0) && !all_arrived() {
            within(seam.sleep(delay), self.arrived.wait_for(|| all_arrived().then_some(()))).await;
        }
        self.pending_flushes.take()
    }

    /// Records that a run ended, the number of flushes that it included, and its duration.
    pub fn record_run(&self, now: Nanos, flushes: u64, duration: Nanos) {
        // The cap keeps idle time out of the trial.
        let since = now.since(self.last_run_ended_at.replace(now)).min(Nanos(duration.0 * 3));
        self.trial.borrow_mut().add(flushes, since);
        self.last_run_duration.set(duration);
        self.expected_flushes.set(flushes + self.pending_flushes.get());
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use seam::sim::{SimSeam, World, WorldSpec};

    use super::*;

    /// Duration of a run without its delay.
    const RUN_US: u64 = 400;

    /// Simulates one second. Returns the number of flushes served and their mean latency in microseconds. A client
    /// flushes again the given number of microseconds after its answer; `None` flushes at random, a thousand times a
    /// second.
    fn simulate(clients: &[Option<u64>]) -> (u64, u64) {
        #[derive(Default)]
        struct Fixture {
            flush_batcher: FlushBatcher,
            started: Cell<u64>,
            done: Cell<u64>,
            running: Cell<bool>,
            changed: Signal,
            served: Cell<u64>,
            waited: Cell<u64>,
        }
        async fn flush(fixture: &Fixture, seam: &SimSeam) {
            let (requested_at, target) = (seam.now(), fixture.started.get() + 1);
            fixture.flush_batcher.add_request();
            while fixture.done.get() < target {
                if fixture.running.replace(true) {
                    fixture.changed.wait_for(|| (!fixture.running.get()).then_some(())).await;
                    continue;
                }
                let flushes = fixture.flush_batcher.wait_for_batch(seam).await;
                let (number, start) = (fixture.started.get() + 1, seam.now());
                fixture.started.set(number);
                seam.sleep(Nanos::from_micros(RUN_US)).await;
                fixture.flush_batcher.record_run(seam.now(), flushes, seam.now().since(start));
                fixture.done.set(number);
                fixture.running.set(false);
                fixture.changed.notify();
            }
            fixture.served.set(fixture.served.get() + 1);
            fixture.waited.set(fixture.waited.get() + seam.now().since(requested_at).as_micros());
        }
        let world = World::new(WorldSpec::new(1));
        let (seam, fixture) = (world.seam(), Rc::new(Fixture::default()));
        for (number, pause) in clients.iter().copied().enumerate() {
            let (seam, fixture) = (seam.clone(), Rc::clone(&fixture));
            seam.clone().spawn(async move {
                seam.sleep(Nanos::from_micros(number as u64 * 37)).await;
                loop {
                    match pause {
                        Some(pause) => {
                            flush(&fixture, &seam).await;
                            seam.sleep(Nanos::from_micros(pause)).await;
                        }
                        None => {
                            seam.sleep(Nanos::from_micros(seam.random() % 2000)).await;
                            let (seam, fixture) = (seam.clone(), Rc::clone(&fixture));
                            seam.clone().spawn(async move { flush(&fixture, &seam).await });
                        }
                    }
                }
            });
        }
        world.block_on(async move { seam.sleep(Nanos::from_secs(1)).await });
        (fixture.served.get(), fixture.waited.get() / fixture.served.get())
    }

    #[test]
    fn clients_that_flush_again_at_once_share_every_run() {
        let pauses: Vec<_> = (0..8).map(|client| Some(40 + 10 * client)).collect();
        let (served, _) = simulate(&pauses);
        assert!(served >= 8 * 1_000_000 / (RUN_US + 110 + 50), "{served} of eight clients");
    }

    #[test]
    fn single_client_never_waits() {
        assert_eq!(simulate(&[Some(75)]), (2105, RUN_US));
    }

    #[test]
    fn flushes_do_not_wait_for_slow_clients() {
        let (_, waited) = simulate(&[Some(40), Some(5000), Some(7000), Some(9000)]);
        assert!(waited < RUN_US * 5 / 4, "{waited} us");
    }

    #[test]
    fn random_arrivals_wait_less_than_two_runs() {
        let (_, waited) = simulate(&[None; 8]);
        assert!(waited < RUN_US * 7 / 4, "{waited} us");
    }
}
