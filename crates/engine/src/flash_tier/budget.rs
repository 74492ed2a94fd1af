//! Limits of promotion: the endurance of the devices, and the recent gain of promotion.
//!
//! Endurance is a token bucket of bytes that holds one day's amount. Gain is the number of hits per promotion. Once
//! pages are evicted for others and a promotion yields less than one hit, only every second one is carried out, then
//! every fourth, and so on. When hits return, the rate doubles again.

use std::cell::Cell;

use flash::format::page::PAIR_BYTES;
use seam::Nanos;

use super::counters::RejectReason;
use crate::policy::promotion::PromotionCondition;

/// Nanoseconds of a day.
const DAY_NS: u128 = 86_400_000_000_000;
/// Eligible promotions in one round, a measurement of the gain.
const ROUND_PROMOTIONS: u64 = 256;
/// Upper bound of `Budget::rate_shift`: at least one promotion in 64 is carried out.
const RATE_SHIFT_MAX: u32 = 6;

/// Limits of the promotions of a core.
pub struct Budget {
    /// Bytes per day; 0: no limit.
    bytes_a_day: Cell<u64>,
    /// Bytes that may be written now: the content of the token bucket.
    bytes_left: Cell<u64>,
    /// Time of the last refill of the bucket.
    refilled_at: Cell<Option<Nanos>>,
    /// One in 2^`rate_shift` eligible promotions is carried out.
    rate_shift: Cell<u32>,
    /// Eligible promotions of the present round.
    eligible_promotions: Cell<u64>,
    /// Promotions of new pages that were carried out in this round.
    promotions: Cell<u64>,
    /// Requests that flash served in this round.
    flash_hits: Cell<u64>,
    /// Number of evicted pages when the round began.
    evicted_pages_at_start: Cell<u64>,
}

impl Budget {
    /// A budget of `bytes_a_day`; 0: no limit.
    pub fn new(bytes_a_day: u64) -> Self {
        let (bytes_a_day, bytes_left) = (Cell::new(bytes_a_day), Cell::new(bytes_a_day));
        Budget {
            bytes_a_day,
            bytes_left,
            refilled_at: Default::default(),
            rate_shift: Default::default(),
            eligible_promotions: Default::default(),
            promotions: Default::default(),
            flash_hits: Default::default(),
            evicted_pages_at_start: Default::default(),
        }
    }

    /// Changes the limit and makes a full day's bytes available at once; 0: no limit.
    pub fn set_bytes_a_day(&self, bytes_a_day: u64) {
        self.bytes_a_day.set(bytes_a_day);
        self.bytes_left.set(bytes_a_day);
    }

    /// Bytes that may be written now; `None` without a limit.
    pub fn available_bytes(&self) -> Option<u64> {
        (self.bytes_a_day.get() > 0).then(|| self.bytes_left.get())
    }

    /// Condition for a promotion: more returns of a page are required as the day's bytes run out.
    pub fn promotion_condition(&self) -> PromotionCondition {
        let day = self.bytes_a_day.get();
        match self.bytes_left.get() {
            bytes if bytes >= day / 2 => PromotionCondition::OnceInOneGhost,
            bytes if bytes >= day / 4 => PromotionCondition::TwiceInTwoGhosts,
            _ => PromotionCondition::ThriceInThreeGhosts,
        }
    }

    /// One of this many eligible promotions is carried out.
    pub fn promote_one_in(&self) -> u64 {
        1 << self.rate_shift.get()
    }

    /// Requests permission to write a page. `is_new`: flash holds no block of it. `evicted_pages`: pages evicted for
    /// others so far; while none is evicted, a promotion costs no hits.
    pub fn request_write(&self, now: Nanos, is_new: bool, evicted_pages: u64) -> Result<(), RejectReason> {
        let bytes_a_day = self.bytes_a_day.get();
        if bytes_a_day > 0 {
            let elapsed = now.since(self.refilled_at.replace(Some(now)).unwrap_or(now));
            let refill = u128::from(elapsed.0) * u128::from(bytes_a_day) / DAY_NS;
            let refilled = u128::from(self.bytes_left.get()) + refill;
            self.bytes_left.set(refilled.min(u128::from(bytes_a_day)) as u64);
            if refill == 0 && elapsed > Nanos::ZERO {
                // The time was too short for a whole byte; it counts next time.
                self.refilled_at.set(Some(Nanos(now.0 - elapsed.0)));
            }
            if self.bytes_left.get() < PAIR_BYTES {
                return Err(RejectReason::Endurance);
            }
        }
        if is_new {
            self.eligible_promotions.set(self.eligible_promotions.get() + 1);
            let is_chosen = self.eligible_promotions.get().is_multiple_of(self.promote_one_in());
            if !is_chosen && evicted_pages != self.evicted_pages_at_start.get() {
                self.end_round(evicted_pages);
                return Err(RejectReason::LowGain);
            }
        }
        Ok(())
    }

    /// Records that blocks of a page were written. A single block counts as a pair.
    pub fn record_write(&self, is_new: bool, blocks: u64, evicted_pages: u64) {
        self.bytes_left.set(self.bytes_left.get().saturating_sub(blocks.div_ceil(2) * PAIR_BYTES));
        self.promotions.set(self.promotions.get() + u64::from(is_new));
        self.end_round(evicted_pages);
    }

    /// Records that flash served a request.
    pub fn record_hit(&self) {
        self.flash_hits.set(self.flash_hits.get() + 1);
    }

    /// Ends the round if it is long enough: adapts the rate to the gain.
    fn end_round(&self, evicted_pages: u64) {
        if self.eligible_promotions.get() < ROUND_PROMOTIONS {
            return;
        }
        let (hits, promotions) = (self.flash_hits.replace(0), self.promotions.replace(0));
        self.eligible_promotions.set(0);
        let rate_shift = self.rate_shift.get();
        let has_evicted = self.evicted_pages_at_start.replace(evicted_pages) != evicted_pages;
        self.rate_shift.set(match hits < promotions && has_evicted {
            true => (rate_shift + 1).min(RATE_SHIFT_MAX),
            false => rate_shift.saturating_sub(1),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daily_limit_holds_and_a_burst_is_at_most_one_day() {
        let budget = Budget::new(100 * PAIR_BYTES);
        let promote = |now: Nanos| {
            let is_allowed = budget.request_write(now, false, 0).is_ok();
            if is_allowed {
                budget.record_write(false, 2, 0);
            }
            is_allowed
        };
        let now = Nanos::from_secs(1_000_000);
        assert_eq!((0..1_000).filter(|_| promote(now)).count(), 100);
        let day = Nanos::from_secs(86_400);
        assert_eq!((0..1_000).filter(|_| promote(now + day + day)).count(), 100);
        let over_a_day = (1..=2_000u64).filter(|step| promote(now + day + day + Nanos(day.0 / 2_000 * step))).count();
        assert!((98..=100).contains(&over_a_day), "{over_a_day}");
    }

    #[test]
    fn promotions_without_hits_become_rare_until_hits_return() {
        let budget = Budget::new(0);
        let mut evictions = 0;
        let mut run = |hits: u64, evicts: u64| {
            let mut promotions = 0;
            for _ in 0..10_000 {
                if budget.request_write(Nanos::ZERO, true, evictions).is_ok() {
                    evictions += evicts;
                    budget.record_write(true, 16, evictions);
                    promotions += 1;
                    (0..hits).for_each(|_| budget.record_hit());
                }
            }
            promotions
        };
        assert_eq!(run(0, 0), 10_000, "a promotion into free space costs no hits");
        let without_hits = run(0, 1);
        assert!(without_hits < 1_000, "{without_hits} of 10,000");
        assert_eq!(budget.promote_one_in(), 64);
        let with_hits = run(3, 1);
        assert!(with_hits > 7_000, "{with_hits} of 10,000");
    }
}
