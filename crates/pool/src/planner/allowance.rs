//! The daily allowance of moves: at most three times the size of the fast tier in any 24 hours, whatever the load does.
//!
//! A bucket holds up to one fast tier and fills with two a day. As it empties the margin rises, so that a load which
//! alternates every few hours spends it on the changes that save most.

use seam::Nanos;

const DAY: Nanos = Nanos::from_secs(86_400);
/// Fast tiers that the bucket gains a day.
const FILLS_PER_DAY: u128 = 2;
/// Most times that the margin is raised.
const MARGIN_FACTOR_MAX: u64 = 8;

/// Bytes that moves by heat and balance may copy. Moves by policy and for a reserve do not count.
#[derive(Clone, Copy, Debug)]
pub struct MoveAllowance {
    capacity_bytes: u64,
    available_bytes: u64,
    updated: Nanos,
}

impl MoveAllowance {
    /// A full allowance for a fast tier of this size.
    pub fn new(fast_tier_bytes: u64, now: Nanos) -> MoveAllowance {
        MoveAllowance { capacity_bytes: fast_tier_bytes, available_bytes: fast_tier_bytes, updated: now }
    }

    /// Bytes that may be copied now.
    pub fn available_bytes(&self, now: Nanos) -> u64 {
        let gained =
            u128::from(self.capacity_bytes) * FILLS_PER_DAY * u128::from(now.since(self.updated).0) / u128::from(DAY.0);
        let available = u128::from(self.available_bytes) + gained;
        available.min(u128::from(self.capacity_bytes)) as u64
    }

    /// Takes the bytes of moves that have been copied.
    pub fn take(&mut self, bytes: u64, now: Nanos) {
        self.available_bytes = self.available_bytes(now).saturating_sub(bytes);
        self.updated = self.updated.max(now);
    }

    /// `margin_percent`, raised by the part of the allowance that is gone.
    pub fn raise_margin(&self, margin_percent: u32, now: Nanos) -> u32 {
        let (capacity, available) = (u128::from(self.capacity_bytes), u128::from(self.available_bytes(now)));
        let raised = (u128::from(margin_percent) * capacity).checked_div(available).unwrap_or(u128::MAX);
        raised.min(u128::from(margin_percent) * u128::from(MARGIN_FACTOR_MAX)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000_000_000;

    #[test]
    fn no_day_allows_more_than_three_times_the_fast_tier() {
        let mut allowance = MoveAllowance::new(1_000_000, Nanos::ZERO);
        let mut taken = Vec::new();
        for step in 0..7 * 24 * 4 {
            let now = Nanos(step * HOUR / 4);
            // Idle for some days, then greedy.
            let bytes = if step / 96 == 2 { 0 } else { allowance.available_bytes(now) };
            allowance.take(bytes, now);
            taken.push(bytes);
        }
        let days: Vec<u64> = taken.windows(96).map(|day| day.iter().sum()).collect();
        assert!(days.iter().all(|bytes| *bytes <= 3_000_000), "{days:?}");
        assert!(days.iter().any(|bytes| *bytes > 2_900_000));
    }

    #[test]
    fn margin_rises_as_the_allowance_is_used_up() {
        let mut allowance = MoveAllowance::new(1_000, Nanos::ZERO);
        assert_eq!(allowance.raise_margin(50, Nanos::ZERO), 50);
        allowance.take(500, Nanos::ZERO);
        assert_eq!(allowance.raise_margin(50, Nanos::ZERO), 100);
        allowance.take(600, Nanos::ZERO);
        assert_eq!((allowance.available_bytes(Nanos::ZERO), allowance.raise_margin(50, Nanos::ZERO)), (0, 400));
        assert_eq!(allowance.raise_margin(50, Nanos(12 * HOUR)), 50);
        assert_eq!(MoveAllowance::new(0, Nanos::ZERO).raise_margin(50, Nanos::ZERO), 400);
    }
}
