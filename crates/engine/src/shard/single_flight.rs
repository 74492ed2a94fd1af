//! Single flight: while a run is in progress later callers wait, and the next run covers all of them.

use super::Shard;
use super::state::State;
use seam::Seam;

/// Runs of one kind, at most one at a time. Work is numbered in ascending order.
pub struct SingleFlight<E> {
    is_running: bool,
    /// All work up to this number is done.
    covered_number: u64,
    /// Number of ended runs.
    ended_runs: u64,
    /// The error of the last run, if it failed.
    failure: Option<E>,
}

impl<E> Default for SingleFlight<E> {
    fn default() -> Self {
        SingleFlight { is_running: false, covered_number: 0, ended_runs: 0, failure: None }
    }
}

impl<E> SingleFlight<E> {
    /// True while a run is in progress.
    pub fn is_running(&self) -> bool {
        self.is_running
    }

    /// Starts a run.
    pub fn begin(&mut self) {
        assert!(!self.is_running, "only one run is in progress");
        self.is_running = true;
    }

    /// Ends the run: all work up to the returned number is done, or the run failed. The caller wakes the waiting tasks.
    pub fn finish(&mut self, result: Result<u64, E>) {
        assert!(self.is_running, "a run ends once");
        self.is_running = false;
        self.ended_runs += 1;
        match result {
            Ok(covered) => (self.covered_number, self.failure) = (covered.max(self.covered_number), None),
            Err(error) => self.failure = Some(error),
        }
    }

    /// Ends an exclusive run, which covers none of the numbered work.
    pub fn finish_exclusive(&mut self) {
        self.finish(Ok(self.covered_number));
    }
}

impl<S: Seam> Shard<S> {
    /// Returns when all work up to `target` is done. Waits for the run in progress and for later ones, and starts a run
    /// by `run` if there is none. Fails with a run that began after this call.
    pub async fn run_shared<E: Clone>(
        &self,
        flight_of: impl Fn(&State) -> &SingleFlight<E>,
        target: u64,
        run: impl AsyncFn() -> Result<(), E>,
    ) -> Result<(), E> {
        let mut began_after_call = false;
        loop {
            let (running, ended) = {
                let state = self.state.borrow();
                let flight = flight_of(&state);
                if flight.covered_number >= target {
                    return Ok(());
                }
                (flight.is_running, flight.ended_runs)
            };
            if !running {
                run().await?;
                continue;
            }
            self.progress.wait_for(|| (flight_of(&self.state.borrow()).ended_runs > ended).then_some(())).await;
            let failure = flight_of(&self.state.borrow()).failure.clone();
            if let Some(error) = failure.filter(|_| began_after_call) {
                return Err(error);
            }
            began_after_call = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_run_of_any_purpose_clears_the_failure() {
        let mut flight = SingleFlight::default();
        for is_exclusive in [true, false] {
            flight.begin();
            flight.finish(Err("no"));
            assert_eq!((flight.failure, flight.covered_number), (Some("no"), 0));
            flight.begin();
            if is_exclusive {
                flight.finish_exclusive()
            } else {
                flight.finish(Ok(7))
            }
            assert_eq!((flight.failure, flight.is_running()), (None, false));
        }
        assert_eq!((flight.covered_number, flight.ended_runs), (7, 4));
    }
}
