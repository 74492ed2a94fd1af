//! When a core that ran out of work should look around for a little before it goes to sleep.
//!
//! Being woken costs both sides more than a memory hit does, so a core whose last waits were all short polls for some tens of microseconds
//! first. The decision is made from measured waits alone: it takes a run of short waits to begin, one wait that outlasts
//! the budget (or somebody else who wants the processor) to stop, and each failure doubles the run that is asked for next time. A
//! core that nobody asks never spins.

/// Waits in a row that must have been short before the first spin.
const FIRST_RUN: u32 = 4;
/// Greatest run that failures can make it ask for.
const LONGEST_RUN: u32 = 1024;
/// Successes in a row that wipe out earlier failures.
const FORGIVEN_AFTER: u32 = 64;
/// A wait that was slept through counts as short up to this many limits: the wake-up itself is in it.
const SLEPT_SHARE: u64 = 2;

/// The policy of one core.
#[derive(Debug)]
pub(super) struct Spin {
    limit_ns: u64,
    /// Mean of recent short waits, weighted 1/8 a wait.
    mean_ns: u64,
    short_run: u32,
    run_needed: u32,
    successes: u32,
}

impl Spin {
    /// Spins of at most `limit_ns`; 0 never spins.
    pub(super) fn new(limit_ns: u64) -> Spin {
        Spin { limit_ns, mean_ns: limit_ns / 2, short_run: 0, run_needed: FIRST_RUN, successes: 0 }
    }

    /// How long to look around before sleeping, in nanoseconds; 0: sleep at once.
    pub(super) fn budget_ns(&self) -> u64 {
        if self.short_run < self.run_needed { 0 } else { (self.mean_ns * 2 + self.limit_ns / 10).min(self.limit_ns) }
    }

    /// Learns from a wait that work ended while spinning.
    pub(super) fn found(&mut self, waited_ns: u64) {
        self.short(waited_ns);
        self.successes += 1;
        if self.successes >= FORGIVEN_AFTER {
            self.successes = 0;
            self.run_needed = FIRST_RUN;
            self.short_run = FIRST_RUN;
        }
    }

    /// Learns from a wait that ended in sleep, after a spin or without one.
    pub(super) fn slept(&mut self, waited_ns: u64, had_spun: bool) {
        if had_spun {
            self.run_needed = (self.run_needed * 2).min(LONGEST_RUN);
            self.successes = 0;
            self.short_run = 0;
        } else if waited_ns <= self.limit_ns * SLEPT_SHARE {
            self.short(waited_ns.min(self.limit_ns));
        } else {
            self.short_run = 0;
        }
    }

    fn short(&mut self, waited_ns: u64) {
        self.short_run = (self.short_run + 1).min(self.run_needed);
        self.mean_ns = (self.mean_ns * 7 + waited_ns) / 8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 100_000;

    fn busy() -> Spin {
        let mut spin = Spin::new(LIMIT);
        for _ in 0..FIRST_RUN {
            assert_eq!(spin.budget_ns(), 0, "no spin before a run of short waits");
            spin.slept(30_000, false);
        }
        spin
    }

    #[test]
    fn a_run_of_short_waits_begins_the_spin_and_its_budget_follows_the_waits() {
        let mut spin = busy();
        assert!((LIMIT * 3 / 4..LIMIT).contains(&spin.budget_ns()), "{spin:?}");
        (0..100).for_each(|_| spin.found(5_000));
        assert!((LIMIT / 10..LIMIT / 4).contains(&spin.budget_ns()), "{spin:?}");
    }

    #[test]
    fn an_idle_core_never_spins() {
        let mut spin = Spin::new(LIMIT);
        for _ in 0..1_000 {
            spin.slept(1_000_000, false);
            assert_eq!(spin.budget_ns(), 0);
        }
    }

    #[test]
    fn one_long_wait_stops_it_and_failures_make_it_rarer() {
        let mut spin = busy();
        let mut spins = 0;
        for _ in 0..2_000 {
            let had_spun = spin.budget_ns() > 0;
            spins += u32::from(had_spun);
            spin.slept(90_000, had_spun);
        }
        assert!(spins < 12, "{spins} useless spins in 2,000 waits");
    }

    #[test]
    fn lasting_success_wipes_out_earlier_failures() {
        let mut spin = busy();
        for _ in 0..20 {
            spin.slept(90_000, spin.budget_ns() > 0);
        }
        while spin.budget_ns() == 0 {
            spin.slept(10_000, false);
        }
        (0..FORGIVEN_AFTER).for_each(|_| spin.found(5_000));
        spin.slept(1_000_000, true);
        (0..2 * FIRST_RUN).for_each(|_| spin.slept(10_000, false));
        assert!(spin.budget_ns() > 0);
    }

    #[test]
    fn a_limit_of_zero_never_spins() {
        let mut spin = Spin::new(0);
        (0..100).for_each(|_| spin.slept(0, false));
        assert_eq!(spin.budget_ns(), 0);
    }
}
