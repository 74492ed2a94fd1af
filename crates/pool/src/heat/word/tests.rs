//! Tests of a slice's heat: error bounds against exact sums, decay, landmarks.

use seam::sim::Rng;

use super::*;

const MINUTE: Nanos = Nanos::from_secs(60);
const HOUR: Nanos = Nanos::from_secs(HOUR_SECS);

fn accesses(demand: Demand) -> u64 {
    demand.reads + demand.writes
}

/// True if `value` is within `percent` of `expected`.
fn is_near(value: u64, expected: u64, percent: u64) -> bool {
    u128::from(value.abs_diff(expected)) * 100 <= u128::from(expected) * u128::from(percent)
}

/// Heat after `hours` of `per_minute` random reads of 8 KiB a minute, with the landmark moved every hour.
fn constant_load(per_minute: u64, hours: u64, seed: u64) -> HeatWord {
    let rng = Rng::new(seed, 0);
    let mut word = HeatWord::default();
    for _ in 0..hours {
        for minute in 0..60 {
            let elapsed = Nanos(minute * MINUTE.0);
            for _ in 0..per_minute {
                word.record(&RequestDemand::random(false, 8192), elapsed, || rng.next());
            }
        }
        word = word.advance_landmark(HOUR);
    }
    word
}

#[test]
fn constant_load_is_read_back_as_its_rate_within_the_error_bound() {
    for seed in 0..40 {
        let word = constant_load(100, 12, seed);
        let recent = word.recent(Nanos::ZERO);
        // Four standard deviations: 1.5 % for accesses, 6 % for bytes.
        assert!(is_near(accesses(recent), 6_000 * PER_ACCESS, 6), "seed {seed}: {recent:?}");
        assert!(is_near(recent.bytes, 6_000 * 8192, 24), "seed {seed}: {recent:?}");
        // After half a day the daily part has 1 - 2^(-1/2) of its final value.
        let daily = word.daily(Nanos::ZERO);
        assert!(is_near(accesses(daily), 6_000 * PER_ACCESS * 293 / 1000, 6), "seed {seed}: {daily:?}");
        assert!(is_near(daily.bytes, 6_000 * 8192 * 293 / 1000, 24), "seed {seed}: {daily:?}");
    }
}

#[test]
fn mean_over_many_slices_has_no_bias() {
    let count = 200;
    let words: Vec<_> = (0..count).map(|seed| constant_load(10, 12, seed)).collect();
    let mean = words.iter().map(|word| accesses(word.recent(Nanos::ZERO))).sum::<u64>() / count;
    let mean_bytes = words.iter().map(|word| word.recent(Nanos::ZERO).bytes).sum::<u64>() / count;
    // 12 half-lives leave 1/4096 to the final value; requests of a minute are recorded at its start, which costs 0.6 %.
    assert!(is_near(mean, 600 * PER_ACCESS, 1), "{mean}");
    assert!(is_near(mean_bytes, 600 * 8192, 2), "{mean_bytes}");
}

#[test]
fn heat_halves_after_each_half_life() {
    let word = constant_load(1_000, 6, 1);
    let recent = accesses(word.recent(Nanos::ZERO));
    let daily = accesses(word.daily(Nanos::ZERO));
    assert!(is_near(accesses(word.recent(HOUR)), recent / 2, 1));
    assert!(is_near(accesses(word.recent(Nanos(10 * HOUR.0))), recent / 1024, 1));
    assert!(is_near(accesses(word.daily(Nanos(24 * HOUR.0))), daily / 2, 1));
    assert!(word.recent(Nanos::MAX).is_idle() && word.daily(Nanos::MAX).is_idle());
}

#[test]
fn moving_the_landmark_by_whole_periods_changes_no_reading() {
    let word = constant_load(50, 3, 2);
    for hours in 1..8 {
        let elapsed = Nanos(hours * HOUR.0);
        assert_eq!(word.advance_landmark(elapsed).recent(MINUTE), word.recent(elapsed + MINUTE), "{hours}");
        assert_eq!(word.advance_landmark(elapsed).daily(MINUTE), word.daily(elapsed + MINUTE), "{hours}");
        assert_eq!(word.retreat_landmark(elapsed).advance_landmark(elapsed), word, "{hours}");
    }
}

#[test]
fn late_increment_weighs_the_same_as_one_after_a_sweep() {
    let mut late = HeatWord::default();
    late.record(&RequestDemand::random(true, 1 << 20), Nanos(5 * HOUR.0), || 1 << 63);
    let mut swept = HeatWord::default();
    swept.record(&RequestDemand::random(true, 1 << 20), Nanos::ZERO, || 1 << 63);
    assert_eq!(late.advance_landmark(Nanos(5 * HOUR.0)), swept);
}

#[test]
fn share_of_writes_follows_the_mix_of_requests() {
    for (writes_percent, seed) in [(0, 1), (15, 2), (50, 3), (85, 4), (100, 5)] {
        let rng = Rng::new(seed, 1);
        let mut word = HeatWord::default();
        for _ in 0..20_000 {
            let is_write = rng.below(100) < writes_percent;
            word.record(&RequestDemand::random(is_write, 4096), MINUTE, || rng.next());
        }
        let demand = word.recent(MINUTE);
        let percent = demand.writes * 100 / accesses(demand);
        assert!(percent.abs_diff(writes_percent) <= 12, "{percent} % instead of {writes_percent} %");
        assert!(writes_percent % 100 > 0 || percent == writes_percent, "{percent}");
    }
}

#[test]
fn sequential_requests_add_bytes_and_no_accesses() {
    let mut word = HeatWord::default();
    for _ in 0..100 {
        word.record(&RequestDemand::sequential(false, 1 << 20), Nanos::ZERO, || 1 << 63);
    }
    let demand = word.recent(Nanos::ZERO);
    assert_eq!(accesses(demand), 0);
    assert!(is_near(demand.bytes, (100 << 20) * 693 / 1000, 8), "{demand:?}");
}

#[test]
fn largest_load_saturates_without_a_panic() {
    let mut word = HeatWord::default();
    let request = RequestDemand { is_write: true, accesses: u64::MAX, bytes: u64::MAX };
    for _ in 0..3 {
        word.record(&request, Nanos::MAX, || 7);
    }
    assert!(word.recent(Nanos::ZERO).writes > 1 << 40);
    assert!(word.retreat_landmark(Nanos::MAX).advance_landmark(Nanos::MAX).recent(Nanos::ZERO).is_idle());
}
