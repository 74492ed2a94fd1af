//! Single flight: while a run is in progress later callers wait, and the next run covers all of them.

use super::Shard;
use super::state::State;
use seam::Seam;

/// Runs of one kind, at most one at a time. Work is numbered in ascending order.
pub struct Turns<E> {
    running: bool,
    /// All work up to this number is done.
    covered: u64,
    /// Number of ended runs.
    ended: u64,
    /// The error of the last run, if it failed.
    failure: Option<E>,
}

impl<E> Default for Turns<E> {
    fn default() -> Self {
        Turns { running: false, covered: 0, ended: 0, failure: None }
    }
}

impl<E> Turns<E> {
    /// True while a run is in progress.
    pub fn is_running(&self) -> bool {
        self.running
    }

    /// Starts a run.
    pub fn begin(&mut self) {
        assert!(!self.running, "one run at a time");
        self.running = true;
    }

    /// Ends the run: all work up to the returned number is done, or the run failed. The caller wakes the waiting tasks.
    pub fn end(&mut self, result: Result<u64, E>) {
        assert!(self.running, "a run ends once");
        self.running = false;
        self.ended += 1;
        match result {
            Ok(covered) => (self.covered, self.failure) = (covered.max(self.covered), None),
            Err(error) => self.failure = Some(error),
        }
    }

    /// Ends a run that was for another purpose.
    pub fn end_aside(&mut self) {
        self.end(Ok(self.covered));
    }
}

impl<S: Seam> Shard<S> {
    /// Returns when all work up to `target` is done. Waits for the run in progress and for later ones, and starts a run
    /// by `lead` if there is none. Fails with a run that began after this call.
    pub async fn take_turns<E: Clone>(
        &self,
        turns: impl Fn(&State) -> &Turns<E>,
        target: u64,
        lead: impl AsyncFn() -> Result<(), E>,
    ) -> Result<(), E> {
        let mut began_after_us = false;
        loop {
            let (running, ended) = {
                let state = self.state.borrow();
                let turns = turns(&state);
                if turns.covered >= target {
                    return Ok(());
                }
                (turns.running, turns.ended)
            };
            if !running {
                lead().await?;
                continue;
            }
            self.progress.wait_for(|| (turns(&self.state.borrow()).ended > ended).then_some(())).await;
            let failure = turns(&self.state.borrow()).failure.clone();
            if let Some(error) = failure.filter(|_| began_after_us) {
                return Err(error);
            }
            began_after_us = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_run_of_any_purpose_clears_the_failure() {
        let mut turns = Turns::default();
        for aside in [true, false] {
            turns.begin();
            turns.end(Err("no"));
            assert_eq!((turns.failure, turns.covered), (Some("no"), 0));
            turns.begin();
            if aside {
                turns.end_aside()
            } else {
                turns.end(Ok(7))
            }
            assert_eq!((turns.failure, turns.is_running()), (None, false));
        }
        assert_eq!((turns.covered, turns.ended), (7, 4));
    }
}
