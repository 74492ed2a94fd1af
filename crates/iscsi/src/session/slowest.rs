//! The slowest commands of a session's last hour.

use std::cell::RefCell;

use seam::Nanos;

/// Commands that are remembered.
const REMEMBERED: usize = 8;
/// For how long.
const HOUR: Nanos = Nanos::from_secs(3_600);

/// A command that was slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowCommand {
    /// Its name in the standards.
    pub name: &'static str,
    /// The number of its unit; none where its address is no unit's.
    pub lun: Option<u16>,
    /// When it ended.
    pub ended: Nanos,
    /// From when it was read until its answer was queued.
    pub took: Nanos,
}

/// The slowest commands of one session.
#[derive(Default)]
pub(super) struct Slowest(RefCell<Vec<SlowCommand>>);

impl Slowest {
    /// A command has ended.
    pub(super) fn ended(&self, command: SlowCommand) {
        let mut found = self.0.borrow_mut();
        found.retain(|slow| slow.ended + HOUR > command.ended);
        found.push(command);
        found.sort_by_key(|slow| std::cmp::Reverse(slow.took));
        found.truncate(REMEMBERED);
    }

    /// Those of the hour before `now`, the slowest first.
    pub(super) fn list(&self, now: Nanos) -> Vec<SlowCommand> {
        self.0.borrow().iter().filter(|slow| slow.ended + HOUR > now).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_of_an_hour_are_kept_in_order() {
        let slowest = Slowest::default();
        let took = |slowest: &Slowest, at| slowest.list(at).iter().map(|slow| slow.took.0).collect::<Vec<_>>();
        for number in 1..=100 {
            let ended = Nanos::from_secs(number);
            slowest.ended(SlowCommand { name: "READ", lun: Some(0), ended, took: Nanos(number * 7 % 101) });
        }
        assert_eq!(took(&slowest, Nanos::from_secs(100)), [100, 99, 98, 97, 96, 95, 94, 93]);
        assert_eq!(took(&slowest, Nanos::from_secs(3_700)), Vec::<u64>::new());
    }
}
