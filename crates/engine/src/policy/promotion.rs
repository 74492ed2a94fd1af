//! Admission to flash: a page is promoted when it is used again some time after its first use.
//!
//! The first use of a page adds an entry to a history, which is ordered by age and has two parts. The *stage* is the
//! youngest part, 10 % as many entries as flash has pages. While a page is in the younger half of the stage, further
//! uses belong to the same burst and do not count. The *ghost* follows, with 25 % as many entries as flash has pages. A
//! use after the burst and before the end of the ghost promotes the page. Stage and ghost are Clock2Q+'s probation and
//! ghost lists, distinguished by age, so that no entry has to move between lists. A longer ghost makes hit ratios
//! worse. A page that is read once never costs a flash write.
//!
//! Where memory is smaller than the stage, a burst is at most half of what memory holds: a page that returns later has
//! left memory in between. Repeated misses within bursts also advance the clock. Otherwise the last few pages of a hot
//! set would stay in each other's burst for ever and never be promoted.
//!
//! The condition of a promotion follows the devices' endurance (`flash_tier/budget.rs`). Under a strict condition a
//! page must return two or three times, each time late, within two or three ghosts. Under a lax one it may return after
//! several ghosts. `docs/user/simulate.md` shows the misses and writes of each condition, which it calls the price.
//!
//! [`ThirdTouch`], the literal third touch of FAST Cache, is here for comparison.

use super::history::History;

/// Length of the stage in percent of the flash.
const STAGE_PERCENT: u64 = 10;
/// Length of a burst in percent of the stage.
const BURST_PERCENT: u64 = 50;
/// Length of the ghost in percent of the flash.
const GHOST_PERCENT: u64 = 25;
/// Uses in bursts that advance the clock by one: this many blocks bring as much into memory as one new page.
const BURST_USES_PER_STEP: u32 = 16;
/// Low bits of a stamp: they count returns, or touches under [`ThirdTouch`].
const RETURN_BITS: u32 = 2;
/// Step of the clock, whose value is above the low bits of a stamp.
const STAMP_STEP: u32 = 1 << RETURN_BITS;
/// Touches that promote under [`ThirdTouch`].
const TOUCHES_TO_PROMOTE: u32 = 3;

/// Result of the use of a page that is not on flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A use that is remembered as the first, or a return that does not suffice.
    First,
    /// Use in the same burst as the last one.
    Burst,
    /// The page is to be promoted.
    Promote,
}

/// Condition under which a page is promoted to flash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PromotionCondition {
    /// Return once within four ghosts.
    OnceInFourGhosts,
    /// Return once within two ghosts.
    OnceInTwoGhosts,
    /// Return once within one ghost.
    #[default]
    OnceInOneGhost,
    /// Return twice, each time within two ghosts.
    TwiceInTwoGhosts,
    /// Return three times, each time within three ghosts.
    ThriceInThreeGhosts,
}

impl PromotionCondition {
    /// All conditions, the laxest first.
    pub const ALL: [PromotionCondition; 5] = [
        PromotionCondition::OnceInFourGhosts,
        PromotionCondition::OnceInTwoGhosts,
        PromotionCondition::OnceInOneGhost,
        PromotionCondition::TwiceInTwoGhosts,
        PromotionCondition::ThriceInThreeGhosts,
    ];

    /// The price of a promotion under this condition, as `hotset simulate --frontier` shows it.
    pub fn price(self) -> f64 {
        match self {
            PromotionCondition::OnceInFourGhosts => 0.25,
            PromotionCondition::OnceInTwoGhosts => 0.5,
            PromotionCondition::OnceInOneGhost => 1.0,
            PromotionCondition::TwiceInTwoGhosts => 2.0,
            PromotionCondition::ThriceInThreeGhosts => 3.0,
        }
    }

    /// Number of required returns.
    fn required_returns(self) -> u32 {
        match self {
            PromotionCondition::OnceInFourGhosts
            | PromotionCondition::OnceInTwoGhosts
            | PromotionCondition::OnceInOneGhost => 1,
            PromotionCondition::TwiceInTwoGhosts => 2,
            PromotionCondition::ThriceInThreeGhosts => 3,
        }
    }

    /// Number of ghosts within which each return must happen.
    fn ghost_span(self) -> u64 {
        match self {
            PromotionCondition::OnceInFourGhosts => 4,
            PromotionCondition::OnceInTwoGhosts => 2,
            PromotionCondition::OnceInOneGhost => 1,
            PromotionCondition::TwiceInTwoGhosts => 2,
            PromotionCondition::ThriceInThreeGhosts => 3,
        }
    }
}

/// Decides which pages are promoted, from the uses of pages that are not on flash.
pub trait Admission {
    /// Records a use of the page whose address hashes to `key` (all 64 bits well mixed). A page that is to be promoted
    /// is forgotten.
    fn record_use(&mut self, key: u64) -> Verdict;

    /// Records a use that needs no content: it counts as a first use, but never promotes.
    fn record_first_use(&mut self, key: u64);

    /// Sets the capacity of flash to `slots` pages.
    fn resize(&mut self, slots: u64);

    /// Sets the condition of later promotions.
    fn set_condition(&mut self, _condition: PromotionCondition) {}

    /// Memory of the history in bytes.
    fn history_bytes(&self) -> u64;
}

/// The default policy: promotes a page that returns neither too soon nor too late.
pub struct LateReturn {
    history: History,
    memory_pages: u64,
    flash_slots: u64,
    condition: PromotionCondition,
    /// Entries recorded so far, in steps of [`STAMP_STEP`].
    clock: u32,
    /// Uses in bursts since they last advanced the clock.
    burst_uses: u32,
    /// Number of entries within which a return is part of the same burst.
    burst_entries: u32,
    /// Number of entries after which a page expires.
    horizon_entries: u32,
}

impl LateReturn {
    /// A policy for flash with `slots` pages behind memory with `memory_pages` pages.
    pub fn new(slots: u64, memory_pages: u64) -> Self {
        let (history, condition) = (History::new(0), PromotionCondition::default());
        let mut policy = LateReturn {
            history,
            memory_pages,
            flash_slots: slots,
            condition,
            clock: Default::default(),
            burst_uses: Default::default(),
            burst_entries: Default::default(),
            horizon_entries: Default::default(),
        };
        policy.resize(slots);
        policy
    }

    /// Entries recorded since `stamp`.
    fn age(&self, stamp: u32) -> u32 {
        (self.clock.wrapping_sub(stamp & !(STAMP_STEP - 1))) >> RETURN_BITS
    }

    /// Records a page with its number of returns.
    fn record(&mut self, key: u64, returns: u32) {
        self.clock = self.clock.wrapping_add(STAMP_STEP);
        let clock = self.clock;
        self.history.record(key, clock | returns, |stamp| clock.wrapping_sub(stamp & !(STAMP_STEP - 1)));
    }

    /// Length of the stage in entries, for flash with `slots` pages.
    pub fn stage_entries(slots: u64) -> u64 {
        (slots * STAGE_PERCENT / 100).max(2)
    }
}

impl Admission for LateReturn {
    fn record_use(&mut self, key: u64) -> Verdict {
        let Some(stamp) = self.history.find(key).map(|entry| entry.stamp) else {
            self.record(key, 0);
            return Verdict::First;
        };
        let age = self.age(stamp);
        if age < self.burst_entries {
            self.burst_uses += 1;
            if self.burst_uses == BURST_USES_PER_STEP {
                (self.burst_uses, self.clock) = (0, self.clock.wrapping_add(STAMP_STEP));
            }
            return Verdict::Burst;
        }
        if age > self.horizon_entries {
            self.record(key, 0);
            return Verdict::First;
        }
        let returns = (stamp & (STAMP_STEP - 1)) + 1;
        if returns < self.condition.required_returns() {
            self.record(key, returns);
            return Verdict::First;
        }
        self.history.find(key).expect("the page was found above").clear();
        Verdict::Promote
    }

    fn record_first_use(&mut self, key: u64) {
        let stamp = self.history.find(key).map(|entry| entry.stamp);
        if stamp.is_none_or(|stamp| self.age(stamp) > self.horizon_entries) {
            self.record(key, 0);
        }
    }

    fn resize(&mut self, slots: u64) {
        self.flash_slots = slots;
        let stage = LateReturn::stage_entries(slots);
        let horizon = stage + (slots * GHOST_PERCENT * self.condition.ghost_span() / 100).max(4);
        let burst_len = (stage.min(self.memory_pages) * BURST_PERCENT / 100).max(1);
        self.burst_entries = u32::try_from(burst_len).unwrap_or(u32::MAX / (4 * STAMP_STEP));
        self.horizon_entries = u32::try_from(horizon).unwrap_or(u32::MAX / (2 * STAMP_STEP));
        self.history.grow(u64::from(self.horizon_entries));
    }

    fn set_condition(&mut self, condition: PromotionCondition) {
        if condition != self.condition {
            self.condition = condition;
            self.resize(self.flash_slots);
        }
    }

    fn history_bytes(&self) -> u64 {
        self.history.memory_bytes()
    }
}

/// Promotes at the third touch, however close together the touches are.
pub struct ThirdTouch {
    history: History,
    /// Touches recorded so far, in steps of [`STAMP_STEP`].
    clock: u32,
}

impl ThirdTouch {
    /// A policy for flash with `slots` pages; its history holds as many.
    pub fn new(slots: u64) -> Self {
        ThirdTouch { history: History::new(slots), clock: 0 }
    }
}

impl Admission for ThirdTouch {
    fn record_use(&mut self, key: u64) -> Verdict {
        // The low bits of a stamp count touches; the others hold the time of the last touch.
        self.clock = self.clock.wrapping_add(STAMP_STEP);
        let now = self.clock;
        let touches_before = match self.history.find(key) {
            Some(entry) => {
                let touches_before = entry.stamp & (STAMP_STEP - 1);
                if touches_before + 1 >= TOUCHES_TO_PROMOTE {
                    entry.clear();
                    return Verdict::Promote;
                }
                entry.clear();
                touches_before
            }
            None => 0,
        };
        self.history.record(key, now | (touches_before + 1), |stamp| now.wrapping_sub(stamp & !(STAMP_STEP - 1)));
        Verdict::First
    }

    fn record_first_use(&mut self, key: u64) {
        if self.history.find(key).is_none() {
            self.record_use(key);
        }
    }

    fn resize(&mut self, slots: u64) {
        self.history.grow(slots);
    }

    fn history_bytes(&self) -> u64 {
        self.history.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(page: u64) -> u64 {
        crate::page_hash::page_hash(0, flash::PageNo(page))
    }

    #[test]
    fn burst_is_one_use_and_return_within_ghost_promotes() {
        let mut policy = LateReturn::new(1_000, 1_000);
        assert_eq!(policy.record_use(key(7)), Verdict::First);
        for other in 0..40 {
            assert_eq!(policy.record_use(key(1_000 + other)), Verdict::First);
            assert_eq!(policy.record_use(key(7)), Verdict::Burst, "after {other} others");
        }
        for other in 40..200 {
            policy.record_use(key(1_000 + other));
        }
        assert_eq!(policy.record_use(key(7)), Verdict::Promote);
        assert_eq!(policy.record_use(key(7)), Verdict::First, "a promoted page is forgotten");
    }

    #[test]
    fn hot_set_larger_than_memory_and_smaller_than_flash_is_promoted() {
        let mut policy = LateReturn::new(1_000_000, 100);
        let promoted = (0..3).flat_map(|_| 0..200).filter(|page| policy.record_use(key(*page)) == Verdict::Promote);
        assert!(promoted.count() >= 150);
    }

    #[test]
    fn last_pages_of_a_hot_set_leave_their_burst() {
        let mut policy = LateReturn::new(1_000, 1_000);
        let mut uses = (0..3_000).map(|number| policy.record_use(key(number % 4)));
        assert!(uses.any(|verdict| verdict == Verdict::Promote));
    }

    #[test]
    fn stricter_condition_requires_more_returns() {
        for (condition, returns) in [
            (PromotionCondition::OnceInTwoGhosts, 1),
            (PromotionCondition::OnceInOneGhost, 1),
            (PromotionCondition::TwiceInTwoGhosts, 2),
            (PromotionCondition::ThriceInThreeGhosts, 3),
        ] {
            let mut policy = LateReturn::new(1_000, 1_000);
            policy.set_condition(condition);
            let mut verdicts = (0..8).map(|round| {
                let others = (0..100).map(|other| policy.record_use(key(1_000 * (round + 1) + other)));
                assert_eq!(others.filter(|verdict| *verdict == Verdict::First).count(), 100);
                policy.record_use(key(7))
            });
            assert_eq!(verdicts.position(|verdict| verdict == Verdict::Promote), Some(returns), "{condition:?}");
        }
    }

    #[test]
    fn return_after_the_ghost_counts_as_first_use() {
        let mut policy = LateReturn::new(1_000, 1_000);
        policy.record_use(key(7));
        for other in 0..360 {
            policy.record_use(key(1_000 + other));
        }
        assert_eq!(policy.record_use(key(7)), Verdict::First);
    }

    #[test]
    fn one_pass_over_ten_times_the_flash_promotes_nothing() {
        let mut policy = LateReturn::new(1_000, 1_000);
        let promoted =
            (0..10_000).flat_map(|page| [page; 16]).filter(|page| policy.record_use(key(*page)) == Verdict::Promote);
        assert_eq!(promoted.count(), 0);
        let mut third = ThirdTouch::new(1_000);
        let promoted =
            (0..10_000).flat_map(|page| [page; 16]).filter(|page| third.record_use(key(*page)) == Verdict::Promote);
        assert_eq!(promoted.count(), 50_000, "ThirdTouch promotes pages of one pass, so the test can fail");
    }

    #[test]
    fn history_costs_less_than_five_bytes_per_slot() {
        for slots in [10_000, 1_000_000, 16_000_000] {
            let bytes = LateReturn::new(slots, slots).history_bytes();
            assert!(bytes <= 5 * slots, "{bytes} bytes for {slots} slots");
        }
    }
}
