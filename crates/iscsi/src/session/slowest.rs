//! The slowest commands of a session's last hour.

use std::cell::RefCell;

use seam::Nanos;

/// Number of remembered commands.
const COMMANDS_MAX: usize = 8;
/// Age at which a command is dropped.
const AGE_MAX: Nanos = Nanos::from_secs(3_600);

/// A slow command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowCommand {
    /// Name in the standards.
    pub name: &'static str,
    /// The unit's number; `None` for an invalid address.
    pub lun: Option<u16>,
    /// When it ended.
    pub ended_at: Nanos,
    /// Time from reading the command to queueing its answer.
    pub latency: Nanos,
}

/// The slowest commands of one session.
#[derive(Default)]
pub(super) struct SlowestCommands(RefCell<Vec<SlowCommand>>);

impl SlowestCommands {
    /// Records the end of a command.
    pub(super) fn record(&self, command: SlowCommand) {
        let mut slowest = self.0.borrow_mut();
        slowest.retain(|slow| slow.ended_at + AGE_MAX > command.ended_at);
        slowest.push(command);
        slowest.sort_by_key(|slow| std::cmp::Reverse(slow.latency));
        slowest.truncate(COMMANDS_MAX);
    }

    /// The slowest commands of the hour before `now`, slowest first.
    pub(super) fn list(&self, now: Nanos) -> Vec<SlowCommand> {
        self.0.borrow().iter().filter(|slow| slow.ended_at + AGE_MAX > now).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slowest_commands_of_an_hour_are_kept_in_order() {
        let slowest = SlowestCommands::default();
        let latencies =
            |slowest: &SlowestCommands, at| slowest.list(at).iter().map(|slow| slow.latency.0).collect::<Vec<_>>();
        for number in 1..=100 {
            let ended_at = Nanos::from_secs(number);
            slowest.record(SlowCommand { name: "READ", lun: Some(0), ended_at, latency: Nanos(number * 7 % 101) });
        }
        assert_eq!(latencies(&slowest, Nanos::from_secs(100)), [100, 99, 98, 97, 96, 95, 94, 93]);
        assert_eq!(latencies(&slowest, Nanos::from_secs(3_700)), Vec::<u64>::new());
    }
}
