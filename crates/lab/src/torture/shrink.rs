//! Shrinking: the smallest variant of a failing run that still fails, with fewer operations, sessions, clients and
//! faults.

use engine::spec::Sabotage;
use seam::sim::TraceMode;

use super::options::{Options, SessionEnd};
use super::{Violation, run};

/// Upper limit of runs per shrink.
const RUNS_MAX: u32 = 200;

/// Shrinks a failing run. A variant counts as failing when it violates any promise, not only the same one.
pub fn shrink(violation: Box<Violation>) -> Box<Violation> {
    let mut search = Search { sabotage: violation.sabotage, best: violation, runs_left: RUNS_MAX };
    loop {
        let runs_before = search.runs_left;
        let is_simpler = search.try_simplifications();
        if !is_simpler || runs_before == search.runs_left || search.runs_left == 0 {
            return search.best;
        }
    }
}

struct Search {
    sabotage: Sabotage,
    best: Box<Violation>,
    runs_left: u32,
}

impl Search {
    /// Tries every simplification once; true when one of them still fails.
    fn try_simplifications(&mut self) -> bool {
        let mut is_simpler = false;
        for simplify in SIMPLIFICATIONS {
            let mut options = self.best.options.clone();
            simplify(&mut options);
            is_simpler |= self.attempt(options);
        }
        // Removes parts of the operations, large parts first. Bisection does not apply, because a run with fewer
        // operations is a different run.
        for divisor in [2, 4, 8, 16] {
            while {
                let mut options = self.best.options.clone();
                options.operations -= options.operations / divisor;
                self.attempt(options)
            } {
                is_simpler = true;
            }
        }
        is_simpler
    }

    fn attempt(&mut self, options: Options) -> bool {
        if self.runs_left == 0 || options.to_string() == self.best.options.to_string() {
            return false;
        }
        self.runs_left -= 1;
        match run(&options, self.sabotage, TraceMode::Hash) {
            Ok(_) => false,
            Err(violation) => {
                self.best = violation;
                true
            }
        }
    }
}

const SIMPLIFICATIONS: [fn(&mut Options); 9] = [
    |options| options.faults.clear(),
    |options| {
        options.faults.pop();
    },
    |options| options.admin = false,
    |options| options.resizes = false,
    |options| options.clients = (options.clients / 2).max(1),
    |options| options.clients = (options.clients - 1).max(1),
    |options| options.volumes.truncate(1),
    |options| {
        let sessions = options.sessions.len();
        options.sessions.drain(..sessions - 1);
    },
    |options| {
        // Removes the last session but one; the last session stays a clean stop.
        if options.sessions.len() > 1 {
            let last = options.sessions.len() - 2;
            options.sessions.remove(last);
        } else {
            options.sessions = vec![SessionEnd::CleanStop];
        }
    },
];
