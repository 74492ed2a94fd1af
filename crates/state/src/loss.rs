//! Losses of acknowledged writes when a daemon dies: the clients to notify, and the generation of the report.
//!
//! A loss is detected at the next start: the volume was not cleanly stopped, its policy defers writes, and no complete
//! persisted memory of its last daemon exists. A client that outlived that daemon cannot be distinguished from a new
//! one. In the first generation after a loss, the first flush of each client therefore fails, once. If the daemon is
//! killed before its clients have returned, the next generation inherits the loss.

use engine::{UnflushedLoss, WritePolicy};

use crate::record::{LossRecord, State, VolumeRecord};
use crate::trust::Sabotage;

/// The loss to report to a volume's clients in this generation. `record` is the volume's record before this start.
/// `is_lost` is true if its last daemon did not stop it cleanly and left no complete persisted memory.
pub fn loss_to_report(state: &State, record: &VolumeRecord, is_lost: bool) -> Option<LossRecord> {
    if record.clean || state.sabotage.is(Sabotage::UnreportedLoss) {
        return None;
    }
    let has_rebooted = state.boot.as_ref().is_some_and(|boot| record.generation < boot.generation);
    let (is_new, inherited) =
        (is_lost && !record.durable_writes, record.loss.filter(|loss| loss.generation == record.generation));
    let remote_clients = match (is_new, inherited) {
        (true, _) => has_rebooted,
        (false, Some(loss)) => has_rebooted || loss.remote_clients,
        (false, None) => return None,
    };
    Some(LossRecord { generation: state.generation, remote_clients })
}

/// True if a volume is attached under the policy in its file, whatever policy a command has set: a crash may have
/// interrupted the change. Data in the flash log is recovered under the file's policy, and the change is repeated
/// afterwards. If it fails, the volume keeps the file's policy.
pub fn recovers_under_file_policy(file_policy: WritePolicy, has_blocks_in_log: bool) -> bool {
    has_blocks_in_log && file_policy == WritePolicy::WriteBack
}

/// True if a generation acknowledges writes to a volume only after they are on its backing: neither the policy in
/// effect nor the one during the recovery of data in the flash log defers writes.
pub fn acknowledges_durable_writes(policy: WritePolicy, file_policy: WritePolicy, has_blocks_in_log: bool) -> bool {
    !policy.defers_writes() && !recovers_under_file_policy(file_policy, has_blocks_in_log)
}

/// The clients to which front ends must report a loss.
pub fn unflushed_loss(record: Option<&VolumeRecord>, generation: u64) -> UnflushedLoss {
    match record.and_then(|record| record.loss).filter(|loss| loss.generation == generation) {
        None => UnflushedLoss::None,
        Some(LossRecord { remote_clients: true, .. }) => UnflushedLoss::RemoteClients,
        Some(_) => UnflushedLoss::AllClients,
    }
}

#[cfg(test)]
mod tests {
    use engine::VolumeId;

    use super::*;
    use crate::BootRecord;

    /// A state of generation 5 with a volume last served by `generation`.
    fn state(generation: u64, clean: bool) -> State {
        let mut state = State { generation, ..State::default() };
        let record =
            VolumeRecord { volume_id: VolumeId(7), name: "v".to_owned(), generation, clean, ..VolumeRecord::default() };
        state.volumes.push(record);
        state.boot = Some(BootRecord { id: "this".to_owned(), generation: 3 });
        state.generation = 5;
        state
    }

    fn reported(state: &State, is_lost: bool) -> Option<(u64, bool)> {
        loss_to_report(state, state.by_name("v").expect("the volume has a record"), is_lost)
            .map(|loss| (loss.generation, loss.remote_clients))
    }

    #[test]
    fn loss_needs_an_unclean_end_a_deferring_policy_and_no_memory() {
        assert_eq!(reported(&state(4, false), true), Some((5, false)));
        assert_eq!(reported(&state(4, false), false), None, "memory is left");
        assert_eq!(reported(&state(4, true), true), None, "cleanly stopped");
        let mut write_through = state(4, false);
        write_through.volumes[0].durable_writes = true;
        assert_eq!(reported(&write_through, true), None);
    }

    #[test]
    fn writes_may_be_deferred_until_an_interrupted_change_is_repeated() {
        let (write_back, write_through) = (WritePolicy::WriteBack, WritePolicy::WriteThrough);
        assert!(acknowledges_durable_writes(write_through, write_back, false), "nothing is recovered");
        assert!(!acknowledges_durable_writes(write_through, write_back, true), "the change may fail");
        assert!(acknowledges_durable_writes(write_through, write_through, true));
        assert!(!acknowledges_durable_writes(write_back, write_through, false));
    }

    #[test]
    fn loss_is_reported_only_to_remote_clients_after_a_reboot() {
        assert_eq!(reported(&state(2, false), true), Some((5, true)));
    }

    #[test]
    fn kill_in_the_first_generation_after_a_loss_inherits_it() {
        let mut unreported = state(4, false);
        unreported.volumes[0].loss = Some(LossRecord { generation: 4, remote_clients: false });
        assert_eq!(reported(&unreported, false), Some((5, false)));
        unreported.volumes[0].clean = true;
        assert_eq!(reported(&unreported, false), None, "a clean stop ends it");
        unreported.volumes[0] = VolumeRecord { clean: false, generation: 4, ..unreported.volumes[0].clone() };
        unreported.volumes[0].loss = Some(LossRecord { generation: 3, remote_clients: false });
        assert_eq!(reported(&unreported, false), None, "a generation has reported it and served the volume again");
    }

    #[test]
    fn front_ends_report_a_loss_in_one_generation_only() {
        let mut state = state(5, false);
        state.volumes[0].loss = Some(LossRecord { generation: 5, remote_clients: true });
        assert_eq!(unflushed_loss(state.by_name("v"), 5), UnflushedLoss::RemoteClients);
        assert_eq!(unflushed_loss(state.by_name("v"), 6), UnflushedLoss::None);
    }
}
