//! Work that one does for all: while a run is under way whoever comes waits, and the next run covers all of them.

use super::Shard;
use super::state::State;
use seam::Seam;

/// Runs of one kind: at most one at a time. What they cover is counted upwards.
pub struct Turns<E> {
    running: bool,
    /// Everything up to this number is done.
    covered: u64,
    /// Runs that ended.
    ended: u64,
    /// Why the last one failed, if it did.
    failure: Option<E>,
}

impl<E> Default for Turns<E> {
    fn default() -> Self {
        Turns { running: false, covered: 0, ended: 0, failure: None }
    }
}

impl<E> Turns<E> {
    /// True while a run is under way.
    pub fn is_running(&self) -> bool {
        self.running
    }

    /// A run begins.
    pub fn begin(&mut self) {
        assert!(!self.running, "one run at a time");
        self.running = true;
    }

    /// The run is over: everything up to that number is done, or why it is not. Whoever waits has to be told.
    pub fn end(&mut self, result: Result<u64, E>) {
        assert!(self.running, "a run ends once");
        self.running = false;
        self.ended += 1;
        match result {
            Ok(covered) => (self.covered, self.failure) = (covered.max(self.covered), None),
            Err(error) => self.failure = Some(error),
        }
    }

    /// A run that was for something else is over.
    pub fn end_aside(&mut self) {
        self.end(Ok(self.covered));
    }
}

impl<S: Seam> Shard<S> {
    /// Returns when everything up to `target` is done: waits for the run under way and for those after it, and makes one by `lead`
    /// when there is none. Fails with a run that began after this call.
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
    fn a_failure_is_forgotten_by_the_next_run_whatever_it_was_for() {
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
