//! Actions of an administrator between two sessions, drawn at random.

use engine::WritePolicy;
use seam::sim::DiskImages;
use state::{Acceptance, Refusal, State};

use super::super::options::SessionEnd;
use super::super::run::{Run, disk_name};
use super::{Deployment, Snapshot};

const BLOCK: u64 = seam::BLOCK_BYTES as u64;
/// Devices of the flash store.
pub const STORE_DEVICES: [&str; 2] = ["flash1", "flash2"];
/// Two other devices of the same kind.
pub const OTHER_DEVICES: [&str; 2] = ["other1", "other2"];

/// Probability that a backing is moved between two sessions, in percent.
const MOVE_PERCENT: u32 = 30;

/// Configuration of the next daemon, and the administrator's response to its refusals.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Flash devices in the configuration.
    pub devices: Vec<&'static str>,
    /// True when the state file can be read.
    pub is_state_readable: bool,
    /// Policies in the configuration that replace the drawn ones.
    pub policies: Vec<Option<WritePolicy>>,
    /// A volume whose disk is also configured for a second volume.
    pub second_path: Option<usize>,
    /// Response of the administrator to a refused volume.
    pub response: Response,
}

/// Response of an administrator to a refused volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response {
    /// No response.
    None,
    /// `adopt` without accepting a loss.
    Adopt,
    /// `adopt`, accepting the loss that the refusal names.
    GiveUp,
    /// `resize --discard-dirty`, or `adopt --discard-dirty` of an unproven backing.
    Discard,
    /// `state rebuild`.
    Rebuild,
}

impl Default for Plan {
    fn default() -> Self {
        Plan {
            devices: STORE_DEVICES.to_vec(),
            is_state_readable: true,
            policies: Vec::new(),
            second_path: None,
            response: Response::None,
        }
    }
}

/// An action of an administrator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// Restores both flash devices from an older copy.
    StoreOld,
    /// Restores one flash device from an older copy.
    DeviceOld,
    /// Removes flash from the configuration.
    StoreAway,
    /// Configures only one of the devices.
    DeviceAlone,
    /// Configures another pair of devices.
    StoreOther,
    /// Empties both devices.
    StoreEmpty,
    /// Loses the state directory.
    StateLost,
    /// Restores the state directory from an older copy.
    StateOld,
    /// Truncates the state file.
    StateTruncated,
    /// Restores a backing from an older copy.
    BackingOld,
    /// Shrinks a backing.
    BackingShrunk,
    /// Grows a backing.
    BackingGrown,
    /// Exchanges a backing with another volume's, or for an empty one.
    BackingExchanged,
    /// Configures a second volume on the disk of another one.
    SecondPath,
    /// Changes the policies in the configuration.
    Policies,
    /// Removes a volume and adds it again.
    Removed,
}

const ALL: [Action; 16] = [
    Action::StoreOld,
    Action::DeviceOld,
    Action::StoreAway,
    Action::DeviceAlone,
    Action::StoreOther,
    Action::StoreEmpty,
    Action::StateLost,
    Action::StateOld,
    Action::StateTruncated,
    Action::BackingOld,
    Action::BackingShrunk,
    Action::BackingGrown,
    Action::BackingExchanged,
    Action::SecondPath,
    Action::Policies,
    Action::Removed,
];

impl Deployment {
    /// Applies the drawn action to disks and records and returns the configuration of the next daemon.
    pub(super) fn act_between_sessions(&mut self, run: &mut Run, number: usize, images: &mut DiskImages) -> Plan {
        if let Some(Snapshot { images: before, state, backings }) = self.undo.take() {
            *images = before;
            self.state = state;
            self.backings = backings;
        }
        let response = [
            Response::None,
            Response::Adopt,
            Response::GiveUp,
            Response::Discard,
            Response::Rebuild,
            Response::Rebuild,
        ];
        let mut plan = Plan { response: self.random.pick(&response), ..Plan::default() };
        if !self.random.percent(self.options.action_percent) {
            self.move_backing(run, number);
            return plan;
        }
        let action = self.random.pick(&ALL);
        let before = Snapshot { images: images.clone(), state: self.state.clone(), backings: self.backings.clone() };
        if self.apply_action(action, run, number, images, &mut plan) {
            // Another disk with the same content counts as unchanged.
            for (index, volume) in run.options.volumes.iter().enumerate() {
                let is_same =
                    content(&before.images, index, volume.size_bytes) == content(images, index, volume.size_bytes);
                self.backings[index].is_changed &= !is_same || before.backings[index].is_changed;
            }
            run.report.administrator_actions += 1;
            self.has_acted = true;
            let state_or_backing = [Action::StateTruncated, Action::BackingOld, Action::BackingShrunk];
            let further = [Action::BackingGrown, Action::BackingExchanged, Action::SecondPath, Action::Policies];
            let keeps_newest_store =
                state_or_backing.contains(&action) || further.contains(&action) || action == Action::StateOld;
            self.may_miss_old_state |= !keeps_newest_store;
            for model in &run.models {
                model
                    .borrow_mut()
                    .event(format!("an administrator: {action:?}, response {:?}", plan.response), seam::Nanos::ZERO);
            }
            // A later session may undo the action, but not one that changed the configuration of a started daemon.
            if self.random.percent(30)
                && plan.devices == STORE_DEVICES
                && plan.policies.is_empty()
                && plan.second_path.is_none()
            {
                self.undo = Some(before);
            }
        }
        self.move_backing(run, number);
        plan
    }

    /// Moves a backing to another disk in some runs: its content stays, its identity is new.
    fn move_backing(&mut self, run: &mut Run, number: usize) {
        let moves = self.options.moves_backings && self.options.has_stored_identity;
        if moves && self.move_random.percent(MOVE_PERCENT) {
            let index = self.move_random.below(self.backings.len() as u64) as usize;
            self.backings[index].identity = format!("copy {number} of disk{}", index + 1);
            run.report.administrator_actions += 1;
            self.has_acted = true;
        }
    }

    /// Applies an action; true if it changed anything.
    fn apply_action(
        &mut self,
        action: Action,
        run: &Run,
        number: usize,
        images: &mut DiskImages,
        plan: &mut Plan,
    ) -> bool {
        let replaces_backing = matches!(action, Action::BackingOld | Action::BackingExchanged);
        if replaces_backing && !self.options.checks_pages {
            return false;
        }
        let index = self.random.below(run.options.volumes.len() as u64) as usize;
        let device = self.random.below(2) as usize;
        let previous_end = run.options.sessions[number - 1];
        // The newest snapshot is the present state.
        let older_count = self.snapshots.len().saturating_sub(1);
        let snapshot = (older_count > 0).then(|| self.random.below(older_count as u64) as usize);
        match action {
            Action::StoreOld | Action::DeviceOld => {
                let Some(snapshot) = snapshot else { return false };
                let devices =
                    if action == Action::StoreOld { &STORE_DEVICES[..] } else { &STORE_DEVICES[device..=device] };
                devices.iter().for_each(|name| images.put(name, &self.snapshots[snapshot].images, name));
            }
            Action::StoreAway => plan.devices = Vec::new(),
            Action::DeviceAlone => plan.devices = vec![STORE_DEVICES[device]],
            Action::StoreOther => plan.devices = OTHER_DEVICES.to_vec(),
            Action::StoreEmpty => STORE_DEVICES.iter().for_each(|name| images.empty(name)),
            // Old records cannot be detected unless a newer store is configured (docs/admin/refusals.md).
            Action::StateLost | Action::StateOld if self.may_miss_old_state => return false,
            Action::StateLost => {
                self.state = State { sabotage: self.options.sabotage, ..State::default() };
                // Only the state directory records that a daemon was killed (docs/admin/refusals.md).
                self.backings.iter_mut().for_each(|backing| backing.is_loss_unreported = false);
            }
            Action::StateOld => {
                let Some(snapshot) = snapshot else { return false };
                self.state = self.snapshots[snapshot].state.clone();
            }
            // Records rebuilt from an older store are old themselves.
            Action::StateTruncated if self.may_miss_old_state && plan.response == Response::Rebuild => return false,
            Action::StateTruncated => plan.is_state_readable = false,
            Action::BackingOld => {
                // After a crash the blocks destaged last may not be recorded yet (docs/admin/refusals.md).
                let Some(snapshot) = snapshot.filter(|_| self.backings[index].was_stopped) else { return false };
                images.put(disk_name(index), &self.snapshots[snapshot].images, disk_name(index));
                // The disk of that time may have been replaced since.
                self.backings[index].identity.clone_from(&self.snapshots[snapshot].backings[index].identity);
                self.backings[index].is_changed = true;
            }
            Action::BackingShrunk | Action::BackingGrown => {
                let bytes = images.size_bytes(disk_name(index)).expect("every volume has a disk in the images");
                // A multiple of every logical block size.
                let difference = self.random.between(1, 8) * (bytes / 16 / BLOCK) * BLOCK;
                let grows = action == Action::BackingGrown;
                if self.backings[index].is_shrunk && grows {
                    return false;
                }
                images.resize(disk_name(index), if grows { bytes + difference } else { bytes - difference });
                self.backings[index].is_shrunk = !grows;
            }
            Action::BackingExchanged => {
                let before = images.clone();
                let other = (index + 1) % run.options.volumes.len();
                let logical_block_of = |volume: usize| run.options.volumes[volume].logical_block;
                if logical_block_of(index) != logical_block_of(other) {
                    return false;
                }
                if other == index {
                    images.empty(disk_name(index));
                    if self.options.has_stored_identity {
                        self.backings[index].identity = format!("new disk {number}");
                    }
                } else {
                    images.put(disk_name(index), &before, disk_name(other));
                    images.put(disk_name(other), &before, disk_name(index));
                    if self.options.has_stored_identity {
                        let (first, second) =
                            (self.backings[index].identity.clone(), self.backings[other].identity.clone());
                        (self.backings[index].identity, self.backings[other].identity) = (second, first);
                    }
                    self.backings[other].is_changed = true;
                }
                self.backings[index].is_changed = true;
            }
            Action::SecondPath => plan.second_path = Some(index),
            Action::Policies => {
                let draw = |random: &mut crate::random::Random| Some(random.pick(&WritePolicy::ALL).1);
                plan.policies = run.options.volumes.iter().map(|_| draw(&mut self.random)).collect();
            }
            Action::Removed => {
                // A removal destages the volume; the added volume is a new one.
                if previous_end != SessionEnd::CleanStop {
                    return false;
                }
                let name = format!("volume{}", index + 1);
                // The daemon does not remove a volume that may have data in an absent flash log.
                let record = self.state.by_name(&name).filter(|record| record.dirty_on_flash.is_none());
                let Some(volume_id) = record.map(|record| record.volume_id) else { return false };
                self.state.forget(volume_id);
                self.state.forget_displaced(&name);
                self.backings[index].is_loss_unreported = false;
            }
        }
        true
    }
}

/// Content of a volume's disk.
pub fn content(images: &DiskImages, index: usize, bytes: u64) -> Vec<u64> {
    let mut tags = vec![0; (bytes / seam::SECTOR_BYTES as u64) as usize];
    images.tags(disk_name(index), 0, &mut tags);
    tags
}

/// Converts the administrator's response to a refusal to the daemon's form. `loss` identifies the data that the refusal
/// names.
pub fn acceptance(response: Response, refusal: &Refusal, loss: Option<String>) -> Option<Acceptance> {
    match response {
        Response::None | Response::Rebuild => None,
        Response::Adopt => Some(Acceptance { adopt: true, ..Acceptance::default() }),
        Response::GiveUp => Some(Acceptance { adopt: true, give_up: loss, ..Acceptance::default() }),
        Response::Discard => {
            let adopt = matches!(refusal, Refusal::ContentUnproven { .. });
            Some(Acceptance { adopt, discard_past_end: true, ..Acceptance::default() })
        }
    }
}
