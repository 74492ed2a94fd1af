//! Random lives of a fleet. `FLEET_FIRST_SEED` and `FLEET_SEEDS` choose them.

use fleet::Sabotage;

use crate::world::run;

/// Failed lives after which a campaign ends.
const FAILED_LIVES_MAX: usize = 20;

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

#[test]
fn random_lives_of_a_fleet_lose_nothing() {
    let (first, seeds) = (variable("FLEET_FIRST_SEED", 0), variable("FLEET_SEEDS", 10_000));
    let fails = |seed: u64| Some((seed, run(seed, Sabotage::None, None, false).failure?));
    let failed: Vec<_> = (first..first + seeds).filter_map(fails).take(FAILED_LIVES_MAX).collect();
    let Some((seed, _)) = failed.first() else { return };
    for line in run(*seed, Sabotage::None, None, true).trace {
        println!("{line}");
    }
    for (seed, failure) in &failed {
        println!("seed {seed}: {failure:?}");
    }
    panic!("{} lives failed, of which this is the history of seed {seed}", failed.len());
}
