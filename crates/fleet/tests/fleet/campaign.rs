//! Random lives of a fleet.

use fleet::Sabotage;

use crate::world::run;

/// Runs the life of `seed`; prints its history if it fails.
fn assert_life(seed: u64) {
    if run(seed, Sabotage::None, false).failure.is_some() {
        let traced = run(seed, Sabotage::None, true);
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

/// Lists every failing seed.
#[allow(clippy::disallowed_methods)]
#[test]
#[ignore = "a survey"]
fn survey() {
    let (first, seeds) = (variable("FLEET_FIRST_SEED", 0), variable("FLEET_SEEDS", 10_000));
    std::panic::set_hook(Box::new(|_| {}));
    let sabotage = [
        Sabotage::None,
        Sabotage::AcknowledgeWithoutLease,
        Sabotage::BelieveLateResults,
        Sabotage::ReuseSession,
        Sabotage::TrustExpiredWatch,
        Sabotage::DestageWithoutMark,
        Sabotage::EpochAfterServing,
    ][variable("FLEET_SABOTAGE", 0) as usize];
    let mut events = 0;
    for seed in first..first + seeds {
        let started = std::time::Instant::now();
        let Ok(outcome) = std::panic::catch_unwind(|| run(seed, sabotage, false)) else {
            println!("seed {seed}: panic");
            continue;
        };
        events += outcome.events;
        if started.elapsed().as_millis() > 100 {
            println!("slow {seed}: {:?} {}", started.elapsed(), outcome.events);
        }
        if let Some(failure) = outcome.failure {
            println!("seed {seed}: {failure}");
        }
    }
    println!("{events} events");
}
