//! Loads that alternate between two sets of slices: moves do not follow each change.

use seam::Nanos;

use super::fixture::{SLICE_BYTES, TestPool, nl_sas, settings, ssd};
use super::*;
use crate::heat::{Demand, HeatTable, PER_ACCESS, RequestDemand};

const SET: u64 = 90;
const STEP_MINUTES: u64 = 5;

/// Slices moved, by hour, within the allowance, while two sets of slices that each fill the fast tier take turns every
/// `period_minutes`.
fn moves_by_hour(hours: u64, period_minutes: u64) -> Vec<usize> {
    let mut pool = TestPool::new(vec![vec![(ssd(), SET * 10 / 9)], vec![(nl_sas(), 10 * SET)]]);
    pool.add_many(2 * SET, Demand::default(), 1, 0);
    let mut heat = HeatTable::new(2 * SET as usize, Nanos::ZERO, 1);
    let mut allowance = MoveAllowance::new(SET * 10 / 9 * SLICE_BYTES, Nanos::ZERO);
    let mut moves = vec![0; hours as usize];
    for minute in (0..60 * hours).step_by(STEP_MINUTES as usize) {
        let now = Nanos::from_secs(60 * minute);
        heat.tick(now, 1_000);
        let first = minute / period_minutes % 2 * SET;
        for slice in first..first + SET {
            let accesses = 60 * STEP_MINUTES * PER_ACCESS;
            heat.record(slice as usize, now, &RequestDemand { is_write: false, accesses, bytes: 1 << 20 });
        }
        if minute.is_multiple_of(15) {
            for (index, slice) in pool.slices.iter_mut().enumerate() {
                let demand = Demand::blend(heat.recent(index, now), heat.daily(index, now), RECENT_PERCENT);
                slice.as_mut().expect("every slice is present").demand = demand;
            }
            let plan = pool.plan(&Settings {
                margin_percent: allowance.raise_margin(settings().margin_percent, now),
                allowance_bytes: allowance.available_bytes(now),
                ..settings()
            });
            allowance.take(plan.totals.bytes, now);
            moves[(minute / 60) as usize] += plan.moves.len();
            pool.apply(&plan);
        }
    }
    moves
}

#[test]
fn load_that_alternates_within_an_hour_moves_nothing_after_a_day() {
    for period_minutes in [5, 15, 30, 60] {
        let moves = moves_by_hour(72, period_minutes);
        let late: usize = moves[24..].iter().sum();
        println!("every {period_minutes} minutes: {moves:?}");
        assert!(late <= SET as usize / 10, "every {period_minutes} minutes: {late} moves, {moves:?}");
    }
}

#[test]
fn load_that_alternates_every_few_hours_stays_within_the_allowance() {
    for hours in [2, 3, 4, 6] {
        let moves = moves_by_hour(120, 60 * hours);
        let days: Vec<usize> = moves.windows(24).map(|day| day.iter().sum()).collect();
        let most = *days.iter().max().unwrap();
        println!("every {hours} hours: at most {most} moves a day, {moves:?}");
        assert!(most as u64 <= 3 * SET * 10 / 9, "every {hours} hours: {most} moves, {moves:?}");
    }
}

#[test]
fn load_that_alternates_once_a_day_is_followed() {
    let moves = moves_by_hour(24 * 8, 24 * 60);
    let late: usize = moves[24..].iter().sum();
    // Seven changes, each of which swaps the whole set.
    let expected = 7 * 2 * SET as usize;
    assert!((expected * 9 / 10..=expected * 11 / 10).contains(&late), "{late}: {moves:?}");
}
