//! A week of three shifting working sets over flash, 10k and NL-SAS tiers: disk time saved by the planner, compared
//! with an oracle that places the slices of each hour with hindsight, and bytes moved a day.
//!
//! `cargo test --profile ci -p pool --test fast_vp_week -- --nocapture` prints the figures.

mod load;
mod simulation;

use simulation::{Outcome, Policy, Simulation};

fn print(name: &str, outcome: &Outcome) {
    println!(
        "{name:<28} {:>6.3} of the oracle (best placement without moves {:.3}), {:>5.2} times the fast tier a day (at \
         most {:.2}), \
         worst hour {:>6.3}, days {}",
        outcome.share_of_oracle(),
        outcome.share_of_best_still(),
        outcome.moved_per_day(),
        outcome.moved_in_busiest_day(),
        outcome.worst_hour(),
        outcome.shares_by_day().iter().map(|share| format!("{share:.2}")).collect::<Vec<_>>().join(" ")
    );
}

#[test]
fn week_saves_nine_tenths_of_the_hourly_oracle() {
    for seed in [1, 2] {
        let outcome = Simulation::new(seed, Policy::default()).run();
        print(&format!("seed {seed}"), &outcome);
        assert!(outcome.share_of_oracle() >= 0.9);
        assert!(outcome.moved_in_busiest_day() <= 3.0);
        assert!(outcome.worst_hour() >= 0.98);
    }
}
