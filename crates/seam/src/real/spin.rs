//! Spin policy: decides for how long an idle core polls before it sleeps.
//!
//! A wake-up costs both sides more than a memory hit. A core whose last waits were all short therefore polls for some
//! tens of microseconds first. The decision uses measured waits alone. Spinning starts after a run of short waits. A
//! successful spin gains one point, and a spin that ends in sleep loses two. Without points the core pauses spinning,
//! and each consecutive pause is twice as long. An idle core thus never spins, and a core that shares its processor
//! with its clients soon stops. A core does not spin either while the machine has more runnable tasks than processors
//! ([`LoadMonitor`]).

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Consecutive short waits required before a spin.
const SHORT_RUN_MIN: u32 = 4;
/// Initial points, also after each pause.
const POINTS_START: u32 = 8;
/// Largest number of points; reaching it resets the length of the next pause.
const POINTS_MAX: u32 = 32;
/// Length of the first and of the longest pause, in short waits without a spin.
const PAUSE_MIN: u32 = 16;
const PAUSE_MAX: u32 = 1024;
/// Factor on the limit up to which a slept wait counts as short, because it includes the wake-up.
const SLEPT_FACTOR: u64 = 2;

/// Short waits without a spin after the machine was found overloaded.
const OVERLOAD_PAUSE: u32 = 64;
/// Number of spins between two checks of the machine's load.
const SPINS_PER_CHECK: u32 = 16;

/// The spin policy of one core.
#[derive(Debug)]
pub(super) struct SpinPolicy {
    limit_ns: u64,
    /// Mean of recent short waits; each new wait has weight 1/8.
    mean_ns: u64,
    /// Consecutive short waits, at most [`SHORT_RUN_MIN`].
    short_run: u32,
    /// Score of recent spins; at 0 a pause begins.
    points: u32,
    /// Remaining short waits of the pause.
    pause: u32,
    /// Length of the next pause, in short waits.
    next_pause: u32,
}

impl SpinPolicy {
    /// A policy of spins of at most `limit_ns`; with 0 it never spins.
    pub(super) fn new(limit_ns: u64) -> SpinPolicy {
        SpinPolicy {
            limit_ns,
            mean_ns: limit_ns / 2,
            short_run: 0,
            points: POINTS_START,
            pause: 0,
            next_pause: PAUSE_MIN,
        }
    }

    /// Longest spin before the next sleep, in nanoseconds; 0 means to sleep at once.
    pub(super) fn budget_ns(&self) -> u64 {
        if self.short_run < SHORT_RUN_MIN || self.pause > 0 {
            return 0;
        }
        (self.mean_ns * 2 + self.limit_ns / 10).min(self.limit_ns)
    }

    /// Records a wait that ended during the spin.
    pub(super) fn record_spin(&mut self, waited_ns: u64) {
        if waited_ns > self.limit_ns {
            // Another thread had the processor meanwhile.
            return self.record_failure();
        }
        self.record_short_wait(waited_ns);
        self.points = (self.points + 1).min(POINTS_MAX);
        if self.points == POINTS_MAX {
            self.next_pause = PAUSE_MIN;
        }
    }

    /// Records a wait that ended in sleep, with or without a spin before it.
    pub(super) fn record_sleep(&mut self, waited_ns: u64, had_spun: bool) {
        if had_spun {
            self.record_failure();
        }
        if waited_ns <= self.limit_ns * SLEPT_FACTOR {
            self.record_short_wait(waited_ns.min(self.limit_ns));
            self.pause = self.pause.saturating_sub(1);
        } else {
            self.short_run = 0;
        }
    }

    /// Pauses spinning because other tasks need the processors.
    pub(super) fn pause_for_load(&mut self) {
        self.pause = self.pause.max(OVERLOAD_PAUSE);
    }

    fn record_failure(&mut self) {
        self.points = self.points.saturating_sub(2);
        if self.points == 0 {
            self.points = POINTS_START;
            self.pause = self.next_pause;
            self.next_pause = (self.next_pause * 2).min(PAUSE_MAX);
        }
    }

    fn record_short_wait(&mut self, waited_ns: u64) {
        self.short_run = (self.short_run + 1).min(SHORT_RUN_MIN);
        self.mean_ns = (self.mean_ns * 7 + waited_ns) / 8;
    }
}

/// Periodic check whether the machine has more runnable tasks than processors.
pub(super) struct LoadMonitor {
    load: Option<File>,
    processors: u32,
    spins: u32,
    was_overloaded: bool,
}

impl LoadMonitor {
    /// Opens this machine's load; a machine without a readable load is never overloaded.
    pub(super) fn new() -> LoadMonitor {
        // SAFETY: a call without pointers.
        let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        let processors = u32::try_from(processors).unwrap_or(u32::MAX);
        LoadMonitor { load: File::open("/proc/loadavg").ok(), processors, spins: 0, was_overloaded: false }
    }

    /// Counts a spin; true if two consecutive checks found the machine overloaded, because a single one may see a
    /// transient task.
    pub(super) fn is_overloaded(&mut self) -> bool {
        self.spins = (self.spins + 1) % SPINS_PER_CHECK;
        if self.spins > 0 {
            return false;
        }
        let mut text = [0; 64];
        let len = self.load.as_ref().and_then(|load| load.read_at(&mut text, 0).ok()).unwrap_or(0);
        let is_overloaded = runnable_tasks(&text[..len]).is_some_and(|tasks| tasks > self.processors);
        std::mem::replace(&mut self.was_overloaded, is_overloaded) && is_overloaded
    }
}

/// Number of runnable tasks: "3" in `0.20 0.18 0.12 3/80 11206`.
fn runnable_tasks(load: &[u8]) -> Option<u32> {
    let fields = std::str::from_utf8(load).ok()?.split(' ').nth(3)?;
    fields.split('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 100_000;

    fn spinning_policy() -> SpinPolicy {
        let mut spin = SpinPolicy::new(LIMIT);
        for _ in 0..SHORT_RUN_MIN {
            assert_eq!(spin.budget_ns(), 0, "no spin before a run of short waits");
            spin.record_sleep(30_000, false);
        }
        spin
    }

    /// Number of spins in `waits` waits of `waited_ns` each, none of which ends during a spin.
    fn useless_spins(spin: &mut SpinPolicy, waits: u32, waited_ns: u64) -> u32 {
        let mut spins = 0;
        for _ in 0..waits {
            let had_spun = spin.budget_ns() > 0;
            spins += u32::from(had_spun);
            spin.record_sleep(waited_ns, had_spun);
        }
        spins
    }

    #[test]
    fn run_of_short_waits_starts_spinning_and_sets_its_budget() {
        let mut spin = spinning_policy();
        assert!((LIMIT * 3 / 4..LIMIT).contains(&spin.budget_ns()), "{spin:?}");
        (0..100).for_each(|_| spin.record_spin(5_000));
        assert!((LIMIT / 10..LIMIT / 4).contains(&spin.budget_ns()), "{spin:?}");
    }

    #[test]
    fn an_idle_core_never_spins() {
        assert_eq!(useless_spins(&mut SpinPolicy::new(LIMIT), 1_000, 1_000_000), 0);
    }

    #[test]
    fn one_long_wait_stops_spinning_until_the_next_run() {
        let mut spin = spinning_policy();
        spin.record_sleep(1_000_000, true);
        assert_eq!(spin.budget_ns(), 0);
        (0..SHORT_RUN_MIN).for_each(|_| spin.record_sleep(10_000, false));
        assert!(spin.budget_ns() > 0);
    }

    #[test]
    fn spins_that_never_help_become_rare() {
        let spins = useless_spins(&mut spinning_policy(), 10_000, 90_000);
        assert!(spins < 80, "{spins} useless spins in 10,000 waits");
    }

    #[test]
    fn occasional_failure_does_not_stop_spinning() {
        let mut spin = spinning_policy();
        for wait in 0..1_000 {
            assert!(spin.budget_ns() > 0, "wait {wait}: {spin:?}");
            if wait % 5 == 0 { spin.record_sleep(150_000, true) } else { spin.record_spin(20_000) }
        }
    }

    #[test]
    fn lasting_success_resets_the_pause() {
        let mut spin = spinning_policy();
        useless_spins(&mut spin, 5_000, 90_000);
        while spin.budget_ns() == 0 {
            spin.record_sleep(10_000, false);
        }
        (0..POINTS_MAX).for_each(|_| spin.record_spin(5_000));
        assert!(useless_spins(&mut spin, 100, 90_000) > 16);
        assert!(spin.next_pause < PAUSE_MAX, "{spin:?}");
    }

    #[test]
    fn overloaded_machine_pauses_spinning() {
        let mut spin = spinning_policy();
        spin.pause_for_load();
        assert_eq!(useless_spins(&mut spin, OVERLOAD_PAUSE, 20_000), 0);
        assert!(spin.budget_ns() > 0);
    }

    #[test]
    fn runnable_tasks_are_read_from_the_load() {
        assert_eq!(runnable_tasks(b"0.20 0.18 0.12 3/80 11206\n"), Some(3));
        assert_eq!(runnable_tasks(b""), None);
        let load = std::fs::read("/proc/loadavg").expect("/proc is mounted");
        assert!(runnable_tasks(&load).is_some_and(|tasks| tasks > 0));
    }

    #[test]
    fn a_limit_of_zero_never_spins() {
        assert_eq!(useless_spins(&mut SpinPolicy::new(0), 100, 0), 0);
    }
}
