//! What an administrator may do between two lives, drawn at random.

use engine::WritePolicy;
use seam::sim::DiskImages;
use state::{Acceptance, State};

use super::super::options::End;
use super::super::run::{Run, disk_name};
use super::{Moment, Site};

const BLOCK: u64 = seam::BLOCK_BYTES as u64;
/// Devices of the flash store.
pub const OWN: [&str; 2] = ["flash1", "flash2"];
/// Two others of the same make.
pub const OTHERS: [&str; 2] = ["other1", "other2"];

/// How the next daemon is configured and what it finds.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The flash devices that it names.
    pub devices: Vec<&'static str>,
    /// The state file can be read.
    pub has_state: bool,
    /// Policies that the file has now, where they are others.
    pub policies: Vec<Option<WritePolicy>>,
    /// The disk of that volume is named by another volume as well.
    pub second_path: Option<usize>,
    /// What the administrator says when a volume is refused.
    pub words: Words,
}

/// What an administrator says when a volume is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Words {
    /// Nothing.
    None,
    /// `adopt`, and nothing that may be lost.
    Adopt,
    /// `adopt`, naming whatever the refusal says may be lost.
    GiveUp,
    /// `resize --discard-dirty`.
    Discard,
    /// `state rebuild`.
    Rebuild,
}

impl Default for Plan {
    fn default() -> Self {
        Plan { devices: OWN.to_vec(), has_state: true, policies: Vec::new(), second_path: None, words: Words::None }
    }
}

/// What may be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mischief {
    /// Both flash devices are put back to an older copy.
    StoreOld,
    /// One of them is.
    DeviceOld,
    /// The configuration has no flash.
    StoreAway,
    /// One device alone is named.
    DeviceAlone,
    /// Another pair is named.
    StoreOther,
    /// Both are made empty.
    StoreEmpty,
    /// The state directory is lost.
    StateLost,
    /// It is put back to an older copy.
    StateOld,
    /// Its file is cut short.
    StateCut,
    /// A backing is put back to an older copy.
    BackingOld,
    /// A backing is cut short.
    BackingShrunk,
    /// A backing is made larger.
    BackingGrown,
    /// A backing is exchanged for another volume's, or for an empty one.
    BackingExchanged,
    /// A second volume names a disk that another one has.
    SecondPath,
    /// The file has other policies.
    Policies,
    /// A volume is removed and added again.
    Removed,
}

const ALL: [Mischief; 16] = [
    Mischief::StoreOld,
    Mischief::DeviceOld,
    Mischief::StoreAway,
    Mischief::DeviceAlone,
    Mischief::StoreOther,
    Mischief::StoreEmpty,
    Mischief::StateLost,
    Mischief::StateOld,
    Mischief::StateCut,
    Mischief::BackingOld,
    Mischief::BackingShrunk,
    Mischief::BackingGrown,
    Mischief::BackingExchanged,
    Mischief::SecondPath,
    Mischief::Policies,
    Mischief::Removed,
];

impl Site {
    /// Does what is drawn to disks and records, and says how the next daemon is configured.
    pub(super) fn between(&mut self, run: &mut Run, number: usize, images: &mut DiskImages) -> Plan {
        if let Some(Moment { images: before, state, backings }) = self.undo.take() {
            *images = before;
            self.state = state;
            self.backings = backings;
        }
        let words = [Words::None, Words::Adopt, Words::GiveUp, Words::Discard, Words::Rebuild, Words::Rebuild];
        let mut plan = Plan { words: self.random.pick(&words), ..Plan::default() };
        if !self.random.percent(self.options.mischief_percent) {
            return plan;
        }
        let mischief = self.random.pick(&ALL);
        let before = Moment { images: images.clone(), state: self.state.clone(), backings: self.backings.clone() };
        if self.make(mischief, run, number, images, &mut plan) {
            // Another disk with the same content is as good.
            for (index, volume) in run.options.volumes.iter().enumerate() {
                let same =
                    content(&before.images, index, volume.size_bytes) == content(images, index, volume.size_bytes);
                self.backings[index].is_changed &= !same || before.backings[index].is_changed;
            }
            run.report.mischiefs += 1;
            self.is_touched = true;
            let own = [Mischief::StateCut, Mischief::BackingOld, Mischief::BackingShrunk];
            let more = [Mischief::BackingGrown, Mischief::BackingExchanged, Mischief::SecondPath, Mischief::Policies];
            let keeps_witness = own.contains(&mischief) || more.contains(&mischief) || mischief == Mischief::StateOld;
            self.blind |= !keeps_witness;
            for model in &run.models {
                model
                    .borrow_mut()
                    .event(format!("an administrator: {mischief:?}, then {:?}", plan.words), seam::Nanos::ZERO);
            }
            // What was lost may be found again; what a daemon was started with cannot be taken back.
            if self.random.percent(30) && plan.devices == OWN && plan.policies.is_empty() && plan.second_path.is_none()
            {
                self.undo = Some(before);
            }
        }
        plan
    }

    /// True when anything was done.
    fn make(&mut self, mischief: Mischief, run: &Run, number: usize, images: &mut DiskImages, plan: &mut Plan) -> bool {
        let replaces = matches!(mischief, Mischief::BackingOld | Mischief::BackingExchanged);
        if replaces && !self.options.checks_pages {
            return false;
        }
        let index = self.random.below(run.options.volumes.len() as u64) as usize;
        let device = self.random.below(2) as usize;
        let last = run.options.lives[number - 1];
        // The newest moment is now.
        let older = self.past.len().saturating_sub(1);
        let moment = (older > 0).then(|| self.random.below(older as u64) as usize);
        match mischief {
            Mischief::StoreOld | Mischief::DeviceOld => {
                let Some(moment) = moment else { return false };
                let devices = if mischief == Mischief::StoreOld { &OWN[..] } else { &OWN[device..=device] };
                devices.iter().for_each(|name| images.put(name, &self.past[moment].images, name));
            }
            Mischief::StoreAway => plan.devices = Vec::new(),
            Mischief::DeviceAlone => plan.devices = vec![OWN[device]],
            Mischief::StoreOther => plan.devices = OTHERS.to_vec(),
            Mischief::StoreEmpty => OWN.iter().for_each(|name| images.empty(name)),
            // Where no store in sight is newer, nothing can tell: docs/admin/refusals.md says so.
            Mischief::StateLost | Mischief::StateOld if self.blind => return false,
            Mischief::StateLost => {
                self.state = State { sabotage: self.options.sabotage, ..State::default() };
                // Nothing else says that a daemon was killed: docs/admin/refusals.md says so.
                self.backings.iter_mut().for_each(|backing| backing.is_loss_untold = false);
            }
            Mischief::StateOld => {
                let Some(moment) = moment else { return false };
                self.state = self.past[moment].state.clone();
            }
            // Records made anew from an older store are older ones.
            Mischief::StateCut if self.blind && plan.words == Words::Rebuild => return false,
            Mischief::StateCut => plan.has_state = false,
            Mischief::BackingOld => {
                // After a crash the last blocks that were destaged may not be noted yet: docs/admin/refusals.md says so.
                let Some(moment) = moment.filter(|_| self.backings[index].was_stopped) else { return false };
                images.put(disk_name(index), &self.past[moment].images, disk_name(index));
                // The disk that was there then: it may have been exchanged since.
                self.backings[index].identity.clone_from(&self.past[moment].backings[index].identity);
                self.backings[index].is_changed = true;
            }
            Mischief::BackingShrunk | Mischief::BackingGrown => {
                let bytes = images.size_bytes(disk_name(index)).expect("the disk is there");
                // A multiple of every logical block.
                let part = self.random.between(1, 8) * (bytes / 16 / BLOCK) * BLOCK;
                let grows = mischief == Mischief::BackingGrown;
                if self.backings[index].is_cut && grows {
                    return false;
                }
                images.resize(disk_name(index), if grows { bytes + part } else { bytes - part });
                self.backings[index].is_cut = !grows;
            }
            Mischief::BackingExchanged => {
                let copy = images.clone();
                let other = (index + 1) % run.options.volumes.len();
                let logical = |of: usize| run.options.volumes[of].logical_block;
                if logical(index) != logical(other) {
                    return false;
                }
                if other == index {
                    images.empty(disk_name(index));
                    if self.options.is_unique {
                        self.backings[index].identity = format!("new disk {number}");
                    }
                } else {
                    images.put(disk_name(index), &copy, disk_name(other));
                    images.put(disk_name(other), &copy, disk_name(index));
                    if self.options.is_unique {
                        let (here, there) =
                            (self.backings[index].identity.clone(), self.backings[other].identity.clone());
                        (self.backings[index].identity, self.backings[other].identity) = (there, here);
                    }
                    self.backings[other].is_changed = true;
                }
                self.backings[index].is_changed = true;
            }
            Mischief::SecondPath => plan.second_path = Some(index),
            Mischief::Policies => {
                let drawn = |random: &mut crate::random::Random| Some(random.pick(&WritePolicy::ALL).1);
                plan.policies = run.options.volumes.iter().map(|_| drawn(&mut self.random)).collect();
            }
            Mischief::Removed => {
                // A removal destages; the volume that is added is new.
                if last != End::Orderly {
                    return false;
                }
                let name = format!("volume{}", index + 1);
                // The daemon removes no volume that may have data in a flash log which is away.
                let record = self.state.by_name(&name).filter(|record| record.dirty_on_flash.is_none());
                let Some(incarnation) = record.map(|record| record.incarnation) else { return false };
                self.state.forget(incarnation);
                self.backings[index].is_loss_untold = false;
            }
        }
        true
    }
}

/// What a volume's disk holds.
pub fn content(images: &DiskImages, index: usize, bytes: u64) -> Vec<u64> {
    let mut tags = vec![0; (bytes / seam::SECTOR_BYTES as u64) as usize];
    images.tags(disk_name(index), 0, &mut tags);
    tags
}

/// The words of an administrator as the daemon hears them; `loss`: the name of the data that the refusal spoke of.
pub fn acceptance(words: Words, loss: Option<String>) -> Option<Acceptance> {
    match words {
        Words::None | Words::Rebuild => None,
        Words::Adopt => Some(Acceptance { adopt: true, ..Acceptance::default() }),
        Words::GiveUp => Some(Acceptance { adopt: true, give_up: loss, ..Acceptance::default() }),
        Words::Discard => Some(Acceptance { discard_past_end: true, ..Acceptance::default() }),
    }
}
