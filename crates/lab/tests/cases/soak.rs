//! Soak against the model: random policies, resizes, attaches, faults, crashes; memory inside its bound.

use engine::spec::Sabotage;
use lab::torture::{Options, run};
use seam::sim::TraceMode;

#[test]
fn case_25_long_lives_with_everything_at_once_break_no_promise() {
    for seed in 10_000..10_010 {
        let drawn = Options::draw(seed);
        let options = Options { operations: 8_000, admin: true, resizes: true, ..drawn };
        // The pool's ceiling is the world's own; every buffer is back when all volumes are detached.
        run(&options, Sabotage::None, TraceMode::Hash).unwrap_or_else(|broken| panic!("{broken}"));
    }
}
