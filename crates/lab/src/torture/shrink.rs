//! The smallest variant of a failing run that still fails: fewer operations, lives, clients, troubles.

use engine::spec::Sabotage;
use seam::sim::TraceMode;

use super::options::{End, Options};
use super::{Violation, run};

/// Tries that shrinking may take.
const TRIES: u32 = 200;

/// Shrinks what failed. A variant counts when it breaks any promise, not only the same one.
pub fn shrink(violation: Box<Violation>) -> Box<Violation> {
    let mut search = Search { sabotage: violation.sabotage, best: violation, tries: TRIES };
    loop {
        let before = search.tries;
        let found = search.round();
        if !found || before == search.tries || search.tries == 0 {
            return search.best;
        }
    }
}

struct Search {
    sabotage: Sabotage,
    best: Box<Violation>,
    tries: u32,
}

impl Search {
    /// One pass over all ways to make it smaller; true when one did.
    fn round(&mut self) -> bool {
        let mut found = false;
        for simplify in SIMPLER {
            let mut options = self.best.options.clone();
            simplify(&mut options);
            found |= self.attempt(options);
        }
        // Bisection does not apply (fewer operations are another run), so parts are taken off: large ones first.
        for part in [2, 4, 8, 16] {
            while {
                let mut options = self.best.options.clone();
                options.operations -= options.operations / part;
                self.attempt(options)
            } {
                found = true;
            }
        }
        found
    }

    fn attempt(&mut self, options: Options) -> bool {
        if self.tries == 0 || options.to_string() == self.best.options.to_string() {
            return false;
        }
        self.tries -= 1;
        match run(&options, self.sabotage, TraceMode::Hash) {
            Ok(_) => false,
            Err(violation) => {
                self.best = violation;
                true
            }
        }
    }
}

const SIMPLER: [fn(&mut Options); 9] = [
    |options| options.troubles.clear(),
    |options| {
        options.troubles.pop();
    },
    |options| options.admin = false,
    |options| options.resizes = false,
    |options| options.clients = (options.clients / 2).max(1),
    |options| options.clients = (options.clients - 1).max(1),
    |options| options.volumes.truncate(1),
    |options| {
        let lives = options.lives.len();
        options.lives.drain(..lives - 1);
    },
    |options| {
        // The last life but one goes; the last stays orderly.
        if options.lives.len() > 1 {
            let last = options.lives.len() - 2;
            options.lives.remove(last);
        } else {
            options.lives = vec![End::Orderly];
        }
    },
];
