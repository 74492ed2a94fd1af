//! When a core that ran out of work should look around for a little before it goes to sleep.
//!
//! Being woken costs both sides more than a memory hit does, so a core whose last waits were all short polls for some tens of microseconds
//! first. The decision is made from measured waits alone. It takes a run of short waits to begin. A spin that work ended is a point
//! gained, one that had to sleep after all is two lost; without points there is a pause, and each pause that follows another is twice as
//! long. So a core that nobody asks never spins, and one that shares its processor with its clients soon stops. A machine with
//! more to run than it has processors is not spun on either ([`Crowd`]).

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Waits in a row that must have been short before a spin.
const RUN: u32 = 4;
/// Points to begin with, after every pause too.
const POINTS: u32 = 8;
/// Points at which earlier failures are forgiven, and the most there are.
const MOST_POINTS: u32 = 32;
/// Short waits without a spin in the first pause, and in the longest.
const PAUSES: (u32, u32) = (16, 1024);
/// A wait that was slept through counts as short up to this many limits: the wake-up itself is in it.
const SLEPT_SHARE: u64 = 2;

/// Short waits without a spin after the machine was found crowded.
const CROWDED_PAUSE: u32 = 64;
/// Spins between two looks at what the machine has to run.
const SPINS_A_LOOK: u32 = 16;

/// The policy of one core.
#[derive(Debug)]
pub(super) struct Spin {
    limit_ns: u64,
    /// Mean of recent short waits, weighted 1/8 a wait.
    mean_ns: u64,
    short_run: u32,
    points: u32,
    /// Short waits left without a spin.
    pause: u32,
    next_pause: u32,
}

impl Spin {
    /// Spins of at most `limit_ns`; 0 never spins.
    pub(super) fn new(limit_ns: u64) -> Spin {
        Spin { limit_ns, mean_ns: limit_ns / 2, short_run: 0, points: POINTS, pause: 0, next_pause: PAUSES.0 }
    }

    /// How long to look around before sleeping, in nanoseconds; 0: sleep at once.
    pub(super) fn budget_ns(&self) -> u64 {
        if self.short_run < RUN || self.pause > 0 {
            return 0;
        }
        (self.mean_ns * 2 + self.limit_ns / 10).min(self.limit_ns)
    }

    /// Learns from a wait that work ended while spinning.
    pub(super) fn spun(&mut self, waited_ns: u64) {
        if waited_ns > self.limit_ns {
            // Somebody else had the processor meanwhile.
            return self.lose();
        }
        self.short(waited_ns);
        self.points = (self.points + 1).min(MOST_POINTS);
        if self.points == MOST_POINTS {
            self.next_pause = PAUSES.0;
        }
    }

    /// Learns from a wait that ended in sleep, after a spin or without one.
    pub(super) fn slept(&mut self, waited_ns: u64, had_spun: bool) {
        if had_spun {
            self.lose();
        }
        if waited_ns <= self.limit_ns * SLEPT_SHARE {
            self.short(waited_ns.min(self.limit_ns));
            self.pause = self.pause.saturating_sub(1);
        } else {
            self.short_run = 0;
        }
    }

    /// Others need the processors.
    pub(super) fn give_way(&mut self) {
        self.pause = self.pause.max(CROWDED_PAUSE);
    }

    fn lose(&mut self) {
        self.points = self.points.saturating_sub(2);
        if self.points == 0 {
            self.points = POINTS;
            self.pause = self.next_pause;
            self.next_pause = (self.next_pause * 2).min(PAUSES.1);
        }
    }

    fn short(&mut self, waited_ns: u64) {
        self.short_run = (self.short_run + 1).min(RUN);
        self.mean_ns = (self.mean_ns * 7 + waited_ns) / 8;
    }
}

/// Whether the machine has more to run than it has processors, looked at now and then.
pub(super) struct Crowd {
    load: Option<File>,
    processors: u32,
    spins: u32,
    was_crowded: bool,
}

impl Crowd {
    /// Looks at this machine; where it cannot be seen, it is never crowded.
    pub(super) fn new() -> Crowd {
        // SAFETY: a call without pointers.
        let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        let processors = u32::try_from(processors).unwrap_or(u32::MAX);
        Crowd { load: File::open("/proc/loadavg").ok(), processors, spins: 0, was_crowded: false }
    }

    /// Counts a spin; true when two looks in a row found a crowd, since one may have met a passing task.
    pub(super) fn is_seen(&mut self) -> bool {
        self.spins = (self.spins + 1) % SPINS_A_LOOK;
        if self.spins > 0 {
            return false;
        }
        let mut text = [0; 64];
        let len = self.load.as_ref().and_then(|load| load.read_at(&mut text, 0).ok()).unwrap_or(0);
        let is_crowded = running(&text[..len]).is_some_and(|running| running > self.processors);
        std::mem::replace(&mut self.was_crowded, is_crowded) && is_crowded
    }
}

/// The tasks that run or could run now: "3" in `0.20 0.18 0.12 3/80 11206`.
fn running(load: &[u8]) -> Option<u32> {
    let fields = std::str::from_utf8(load).ok()?.split(' ').nth(3)?;
    fields.split('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 100_000;

    fn busy() -> Spin {
        let mut spin = Spin::new(LIMIT);
        for _ in 0..RUN {
            assert_eq!(spin.budget_ns(), 0, "no spin before a run of short waits");
            spin.slept(30_000, false);
        }
        spin
    }

    /// Spins in `waits` of `waited_ns` each that no spin shortens.
    fn useless_spins(spin: &mut Spin, waits: u32, waited_ns: u64) -> u32 {
        let mut spins = 0;
        for _ in 0..waits {
            let had_spun = spin.budget_ns() > 0;
            spins += u32::from(had_spun);
            spin.slept(waited_ns, had_spun);
        }
        spins
    }

    #[test]
    fn a_run_of_short_waits_begins_the_spin_and_its_budget_follows_the_waits() {
        let mut spin = busy();
        assert!((LIMIT * 3 / 4..LIMIT).contains(&spin.budget_ns()), "{spin:?}");
        (0..100).for_each(|_| spin.spun(5_000));
        assert!((LIMIT / 10..LIMIT / 4).contains(&spin.budget_ns()), "{spin:?}");
    }

    #[test]
    fn an_idle_core_never_spins() {
        assert_eq!(useless_spins(&mut Spin::new(LIMIT), 1_000, 1_000_000), 0);
    }

    #[test]
    fn one_long_wait_stops_it_until_there_is_a_run_again() {
        let mut spin = busy();
        spin.slept(1_000_000, true);
        assert_eq!(spin.budget_ns(), 0);
        (0..RUN).for_each(|_| spin.slept(10_000, false));
        assert!(spin.budget_ns() > 0);
    }

    #[test]
    fn spins_that_never_help_become_rare() {
        let spins = useless_spins(&mut busy(), 10_000, 90_000);
        assert!(spins < 80, "{spins} useless spins in 10,000 waits");
    }

    #[test]
    fn a_failure_now_and_then_does_not_stop_it() {
        let mut spin = busy();
        for wait in 0..1_000 {
            assert!(spin.budget_ns() > 0, "wait {wait}: {spin:?}");
            if wait % 5 == 0 { spin.slept(150_000, true) } else { spin.spun(20_000) }
        }
    }

    #[test]
    fn lasting_success_wipes_out_earlier_failures() {
        let mut spin = busy();
        useless_spins(&mut spin, 5_000, 90_000);
        while spin.budget_ns() == 0 {
            spin.slept(10_000, false);
        }
        (0..MOST_POINTS).for_each(|_| spin.spun(5_000));
        assert!(useless_spins(&mut spin, 100, 90_000) > 16);
        assert!(spin.next_pause < PAUSES.1, "{spin:?}");
    }

    #[test]
    fn a_crowd_stops_it_for_a_while() {
        let mut spin = busy();
        spin.give_way();
        assert_eq!(useless_spins(&mut spin, CROWDED_PAUSE, 20_000), 0);
        assert!(spin.budget_ns() > 0);
    }

    #[test]
    fn what_the_machine_has_to_run_is_read_from_its_load() {
        assert_eq!(running(b"0.20 0.18 0.12 3/80 11206\n"), Some(3));
        assert_eq!(running(b""), None);
        let load = std::fs::read("/proc/loadavg").expect("/proc is mounted");
        assert!(running(&load).is_some_and(|running| running > 0));
    }

    #[test]
    fn a_limit_of_zero_never_spins() {
        assert_eq!(useless_spins(&mut Spin::new(0), 100, 0), 0);
    }
}
