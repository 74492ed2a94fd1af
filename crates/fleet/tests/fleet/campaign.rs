//! Random lives of a fleet. `FLEET_FIRST_SEED` and `FLEET_SEEDS` choose them.

use fleet::Sabotage;

use crate::world::run;

/// Runs the life of `seed`; prints its history if it fails.
fn assert_life(seed: u64) {
    if run(seed, Sabotage::None, None, false).failure.is_some() {
        let traced = run(seed, Sabotage::None, None, true);
        for line in &traced.trace {
            println!("{line}");
        }
        panic!("seed {seed}: {}", traced.failure.expect("a life is deterministic"));
    }
}

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

#[test]
fn random_lives_of_a_fleet_lose_nothing() {
    let (first, seeds) = (variable("FLEET_FIRST_SEED", 0), variable("FLEET_SEEDS", 10_000));
    for seed in first..first + seeds {
        assert_life(seed);
    }
}
