//! Administrators between the lives of simulated worlds: whatever they do to devices, records and backings, what is served keeps its promises, and
//! a daemon that believes too much is caught.

use engine::spec::Sabotage;
use lab::torture::{Options, Report, run};
use seam::sim::TraceMode;

/// Seeds in which a broken rule has to be caught.
const SEEDS: u64 = 2_000;
/// Seeds that are run without one.
const SOUND_SEEDS: u64 = 150;

fn is_caught(sabotage: state::Sabotage) {
    for seed in 0..SEEDS {
        let mut options = Options::draw_site(seed);
        if let Some(site) = &mut options.site {
            site.sabotage = sabotage;
        }
        let is_of_loss = |what: &str| what.contains("are not told") == (sabotage == state::Sabotage::UntoldLoss);
        if let Err(violation) = run(&options, Sabotage::None, TraceMode::Hash)
            && is_of_loss(&violation.what)
        {
            println!("{sabotage:?} is caught by seed {seed}: {}", violation.what);
            run(&Options::draw_site(seed), Sabotage::None, TraceMode::Hash)
                .expect("the same seed passes without the sabotage");
            return;
        }
    }
    panic!("{sabotage:?} was not noticed in {SEEDS} seeds");
}

#[test]
fn what_is_served_after_an_administrator_was_there_keeps_its_promises() {
    let mut total = Report::default();
    for seed in 0..SOUND_SEEDS {
        match run(&Options::draw_site(seed), Sabotage::None, TraceMode::Hash) {
            Ok(report) => {
                total.mischiefs += report.mischiefs;
                total.refusals += report.refusals;
                total.operations += report.operations;
                total.promotions += report.promotions;
            }
            Err(violation) => panic!("{violation}"),
        }
    }
    println!("{total:?}");
    assert!(
        total.mischiefs >= SOUND_SEEDS && total.refusals > SOUND_SEEDS / 4,
        "the administrator does too little: {total:?}"
    );
    assert!(total.operations > SOUND_SEEDS * 300, "too little is served: {total:?}");
}

/// Seeds that found: marks that a crash left hiding what was destaged after it; clients of an exchanged disk not told of a loss; pages past the end of
/// a backing that shrank and grew; a new disk taken for one to which zeroes had been destaged; an empty older copy of one mirror beside a store that
/// had gone on from it; pages of a device that was put back from a copy; rebuilds and empty older stores that forgot unclaimed data, or
/// brought given up data back.
const FOUND: [u64; 10] = [14, 144, 2087, 3211, 5372, 38991, 54765, 70858, 85615, 106215];

#[test]
fn seeds_that_once_found_something_find_nothing_now() {
    for seed in FOUND {
        if let Err(violation) = run(&Options::draw_site(seed), Sabotage::None, TraceMode::Hash) {
            panic!("{violation}");
        }
    }
}

#[test]
fn an_old_store_that_is_believed_is_caught() {
    is_caught(state::Sabotage::AnyStore);
}

#[test]
fn a_lost_or_older_state_directory_that_is_believed_is_caught() {
    is_caught(state::Sabotage::AnyState);
}

#[test]
fn a_backing_that_is_believed_by_its_place_is_caught() {
    is_caught(state::Sabotage::AnyContent);
}

#[test]
fn two_volumes_on_one_disk_are_caught() {
    is_caught(state::Sabotage::SharedDisk);
}

#[test]
fn old_pages_that_are_believed_are_caught() {
    is_caught(state::Sabotage::StalePages);
}

#[test]
fn dirty_data_past_the_end_that_is_dropped_is_caught() {
    is_caught(state::Sabotage::PastEnd);
}

#[test]
fn data_that_is_given_up_without_its_name_is_caught() {
    is_caught(state::Sabotage::AdoptUnnamed);
}

#[test]
fn a_loss_that_clients_are_not_told_is_caught() {
    is_caught(state::Sabotage::UntoldLoss);
}
