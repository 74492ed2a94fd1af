//! What limits promotion: the devices' endurance, and what promotion has lately gained.
//!
//! Endurance is a bucket of bytes that fills with so many a day and holds a day's. Gain is hits a promotion: once pages have to go for
//! others and a promotion brings less than one hit, only every second is carried out, then every fourth, and so on; it
//! doubles again when hits do.

use std::cell::Cell;

use seam::Nanos;

use super::figures::NotPromoted;
use crate::policy::promotion::Price;

const DAY_NS: u128 = 86_400_000_000_000;
/// What a page with one block, and each further pair of blocks, costs on flash.
const PAIR_BYTES: u64 = 8_704;
/// Promotions after which the gain is looked at.
const ROUND: u64 = 256;
/// At most every so many-th (as a power of two) is carried out.
const PICKY_MAX: u32 = 6;

/// What limits the promotions of a core.
pub struct Budget {
    /// 0: no limit.
    bytes_a_day: Cell<u64>,
    left: Cell<u64>,
    filled: Cell<Option<Nanos>>,
    picky: Cell<u32>,
    asked: Cell<u64>,
    promotions: Cell<u64>,
    hits: Cell<u64>,
    /// Pages that had gone for others when the round began.
    evictions: Cell<u64>,
}

impl Budget {
    /// So many bytes a day; 0: no limit.
    pub fn new(bytes_a_day: u64) -> Self {
        let (filled, picky, asked, promotions, hits, evictions) = Default::default();
        let (bytes_a_day, left) = (Cell::new(bytes_a_day), Cell::new(bytes_a_day));
        Budget { bytes_a_day, left, filled, picky, asked, promotions, hits, evictions }
    }

    /// So many bytes a day from now on, and a day's at once; 0: no limit.
    pub fn set_bytes_a_day(&self, bytes_a_day: u64) {
        self.bytes_a_day.set(bytes_a_day);
        self.left.set(bytes_a_day);
    }

    /// Bytes that may be written now; `None` without a limit.
    pub fn left_bytes(&self) -> Option<u64> {
        (self.bytes_a_day.get() > 0).then(|| self.left.get())
    }

    /// What a promotion costs: the less of a day's bytes is left, the more.
    pub fn price(&self) -> Price {
        let day = self.bytes_a_day.get();
        match self.left.get() {
            left if left >= day / 2 => Price::One,
            left if left >= day / 4 => Price::Two,
            _ => Price::Three,
        }
    }

    /// Of so many promotions that were earned one is carried out.
    pub fn one_of(&self) -> u64 {
        1 << self.picky.get()
    }

    /// May a page be written? `new`: it is not there in part. `evictions`: pages that have gone for others so far; while none does, a
    /// promotion costs nobody a hit.
    pub fn ask(&self, now: Nanos, new: bool, evictions: u64) -> Result<(), NotPromoted> {
        let bytes_a_day = self.bytes_a_day.get();
        if bytes_a_day > 0 {
            let since = now.since(self.filled.replace(Some(now)).unwrap_or(now));
            let more = u128::from(since.0) * u128::from(bytes_a_day) / DAY_NS;
            let full = u128::from(self.left.get()) + more;
            self.left.set(full.min(u128::from(bytes_a_day)) as u64);
            if more == 0 && since > Nanos::ZERO {
                // Too little time for a whole byte: it is not forgotten.
                self.filled.set(Some(Nanos(now.0 - since.0)));
            }
            if self.left.get() < PAIR_BYTES {
                return Err(NotPromoted::Endurance);
            }
        }
        if new {
            self.asked.set(self.asked.get() + 1);
            let picked = self.asked.get().is_multiple_of(self.one_of());
            if !picked && evictions != self.evictions.get() {
                self.end_round(evictions);
                return Err(NotPromoted::Gain);
            }
        }
        Ok(())
    }

    /// So many blocks of a page were written.
    pub fn spent(&self, new: bool, blocks: u64, evictions: u64) {
        self.left.set(self.left.get().saturating_sub(blocks.div_ceil(2) * PAIR_BYTES));
        self.promotions.set(self.promotions.get() + u64::from(new));
        self.end_round(evictions);
    }

    /// A request was served from flash.
    pub fn hit(&self) {
        self.hits.set(self.hits.get() + 1);
    }

    fn end_round(&self, evictions: u64) {
        if self.asked.get() < ROUND {
            return;
        }
        let (hits, promotions) = (self.hits.replace(0), self.promotions.replace(0));
        self.asked.set(0);
        let picky = self.picky.get();
        let crowded = self.evictions.replace(evictions) != evictions;
        self.picky.set(match hits < promotions && crowded {
            true => (picky + 1).min(PICKY_MAX),
            false => picky.saturating_sub(1),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_may_cost_what_was_said_and_a_burst_no_more_than_a_day() {
        let budget = Budget::new(100 * PAIR_BYTES);
        let promote = |now: Nanos| {
            let may = budget.ask(now, false, 0).is_ok();
            if may {
                budget.spent(false, 2, 0);
            }
            may
        };
        let now = Nanos::from_secs(1_000_000);
        assert_eq!((0..1_000).filter(|_| promote(now)).count(), 100);
        let day = Nanos::from_secs(86_400);
        assert_eq!((0..1_000).filter(|_| promote(now + day + day)).count(), 100);
        let over_a_day = (1..=2_000u64).filter(|step| promote(now + day + day + Nanos(day.0 / 2_000 * step))).count();
        assert!((98..=100).contains(&over_a_day), "{over_a_day}");
    }

    #[test]
    fn promotions_that_bring_no_hits_become_rare_and_come_back_with_the_hits() {
        let budget = Budget::new(0);
        let mut evictions = 0;
        let mut run = |hits: u64, evicts: u64| {
            let mut done = 0;
            for _ in 0..10_000 {
                if budget.ask(Nanos::ZERO, true, evictions).is_ok() {
                    evictions += evicts;
                    budget.spent(true, 16, evictions);
                    done += 1;
                    (0..hits).for_each(|_| budget.hit());
                }
            }
            done
        };
        assert_eq!(run(0, 0), 10_000, "while there is room nobody loses by a promotion");
        let barren = run(0, 1);
        assert!(barren < 1_000, "{barren} of 10,000");
        assert_eq!(budget.one_of(), 64);
        let fruitful = run(3, 1);
        assert!(fruitful > 7_000, "{fruitful} of 10,000");
    }
}
