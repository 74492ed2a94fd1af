//! Soak test against the model: random policies, resizes, attaches, faults and crashes within bounded memory.

use engine::spec::Sabotage;
use lab::torture::{Options, run};
use seam::sim::TraceMode;

#[test]
fn case_25_long_sessions_with_everything_violate_no_promise() {
    for seed in 10_000..10_010 {
        let drawn = Options::draw(seed);
        let options = Options { operations: 8_000, admin: true, resizes: true, ..drawn };
        // The world bounds the pool, and every buffer is free once all volumes are detached.
        run(&options, Sabotage::None, TraceMode::Hash).unwrap_or_else(|violation| panic!("{violation}"));
    }
}
