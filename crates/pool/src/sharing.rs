//! Slots that several volumes of a family share: a volume, its snapshots and its clones.
//!
//! The slice has the same number in all maps that refer to its slot, because a map starts as the copy of another one of
//! its family. So the references to a slot follow from the maps of the family, and no count is stored.

use seam::{Disk, Seam};

use crate::family::Family;
use crate::format::record::Record;
use crate::number::{FamilySlice, SliceAddress, SlotAddress, VolumeId};
use crate::policy::VolumeSpec;
use crate::sabotage::Sabotage;
use crate::slots::SlotUse;
use crate::state::{State, Volume};

impl<S: Seam, D: Disk<S>> State<S, D> {
    /// Adds a volume or snapshot to its family.
    pub fn insert_volume(&mut self, id: VolumeId, volume: Volume) {
        let is_snapshot = volume.lineage.snapshot.is_some();
        self.families.entry(volume.lineage.family).or_default().add(id, is_snapshot);
        let former = self.volumes.insert(id, volume);
        assert!(former.is_none(), "the number of volume {id} is used once");
    }

    /// Takes a volume or snapshot out of its family.
    pub fn take_volume(&mut self, id: VolumeId) -> Option<Volume> {
        let volume = self.volumes.remove(&id)?;
        let family = self.families.get_mut(&volume.lineage.family).expect("a volume belongs to its family");
        family.remove(id, volume.lineage.snapshot.is_some());
        if family.members().is_empty() {
            self.families.remove(&volume.lineage.family);
        }
        Some(volume)
    }

    /// The record of a volume with other properties.
    pub fn volume_record(&self, id: VolumeId, spec: VolumeSpec) -> Record {
        Record::Volume { volume: id, spec, lineage: self.volumes[&id].lineage, from: None }
    }

    /// The volumes and snapshots of a family.
    pub fn members(&self, family: VolumeId) -> &[VolumeId] {
        self.families.get(&family).map_or(&[], Family::members)
    }

    /// The slot of a slice, if several volumes may share it. A slot that a volume shares with snapshots alone counts
    /// only if the family has other volumes.
    pub fn shared_slot(&mut self, slice: SliceAddress) -> Option<SlotAddress> {
        let volume = self.volumes.get(&slice.volume)?;
        let slot = volume.map.get(slice.slice)?;
        let has_clones = self.families.get(&volume.lineage.family).is_some_and(Family::has_clones);
        (has_clones && !self.check_private(slice, slot)).then_some(slot)
    }

    /// The slices of volumes and snapshots whose map entries refer to a slot, volumes first.
    pub fn references(&self, slot: SlotAddress) -> Vec<SliceAddress> {
        let SlotUse::Slice(FamilySlice { family, slice }) = self.groups[slot.group.index()].slots.slot_use(slot.slot)
        else {
            return Vec::new();
        };
        let refers = |id: &&VolumeId| self.volumes[id].map.get(slice) == Some(slot);
        let mut found: Vec<_> = self.members(family).iter().filter(refers).copied().collect();
        found.sort_by_key(|id| (self.volumes[id].lineage.snapshot.is_some(), *id));
        found.into_iter().map(|volume| SliceAddress { volume, slice }).collect()
    }

    /// True if a map in memory refers to a slot.
    fn is_referenced(&self, FamilySlice { family, slice }: FamilySlice, slot: SlotAddress) -> bool {
        let refers = |id: &VolumeId| self.volumes[id].map.get(slice) == Some(slot);
        let is_retired = || {
            let mut of_family = self.retired.iter().filter(|retired| retired.family == family);
            of_family.any(|retired| retired.map.get(slice) == Some(slot))
        };
        self.members(family).iter().any(refers) || is_retired()
    }

    /// True if a durable map entry, other than the present one, refers to a slot.
    fn is_baseline(&self, FamilySlice { family, slice }: FamilySlice, slot: SlotAddress) -> bool {
        self.members(family)
            .iter()
            .any(|volume| self.changes.is_baseline(SliceAddress { volume: *volume, slice }, slot))
    }

    /// True if no other volume refers to the slot of a slice, in memory or durably: it is written in place.
    pub fn is_private(&self, slice: SliceAddress, slot: SlotAddress) -> bool {
        let Some(volume) = self.volumes.get(&slice.volume) else { return true };
        let members = self.members(volume.lineage.family);
        if members.len() == 1 || volume.private.get(slice.slice) {
            return true;
        }
        let refers = |id: &VolumeId| {
            let other = SliceAddress { volume: *id, ..slice };
            self.volumes[id].map.get(slice.slice) == Some(slot) || self.changes.is_baseline(other, slot)
        };
        !members.iter().any(|id| *id != slice.volume && refers(id))
    }

    /// As [`State::is_private`], and remembers the answer.
    pub fn check_private(&mut self, slice: SliceAddress, slot: SlotAddress) -> bool {
        let is_private = self.is_private(slice, slot);
        if is_private && let Some(volume) = self.volumes.get_mut(&slice.volume) {
            volume.private.set(slice.slice);
        }
        is_private
    }

    /// Sets the slot of a slice, visible at once and durable with the next commit. `stamp` is the write stamp of the
    /// new slot's group before the slot was filled.
    pub fn set_slot(&mut self, slice: SliceAddress, slot: Option<SlotAddress>, stamp: u64) {
        let volume = self.volumes.get_mut(&slice.volume).expect("only a present volume's map changes");
        let owner = FamilySlice { family: volume.lineage.family, slice: slice.slice };
        let former = volume.map.set(slice.slice, slot);
        volume.private.clear(slice.slice);
        if slot.is_none() {
            volume.heat.clear(slice.slice);
        }
        assert!(former.is_some() || slot.is_some(), "{slice} was unallocated and stays so");
        if let Some(slot) = slot {
            self.groups[slot.group.index()].slots.set(slot.slot, SlotUse::Slice(owner));
        }
        self.changes.note(slice, former, stamp);
        let Some(former) = former else { return };
        if self.is_referenced(owner, former) && !self.sabotage.is(Sabotage::FreeShared) {
            return;
        }
        self.groups[former.group.index()].slots.set(former.slot, SlotUse::Released);
        self.changes.release(former);
        let frees_early =
            self.sabotage.is(Sabotage::ReuseFreedEarly) || self.sabotage.is(Sabotage::FreeBeforeMap) && slot.is_some();
        if frees_early {
            self.changes.unrelease(former);
            self.free_slot(former);
        }
    }

    /// Returns the map of a slice to its durable slot: the new one may have lost content.
    pub fn revert(&mut self, slice: SliceAddress) {
        self.counts.reverts += 1;
        // Writes to the new slot after its group's reconnect are lost too, and only this change of the epoch says so.
        self.extra_epochs += 1;
        let lost = self.slot_of(slice);
        if !self.changes.revert(slice) {
            return;
        }
        let Some(volume) = self.volumes.get_mut(&slice.volume) else { return };
        let owner = FamilySlice { family: volume.lineage.family, slice: slice.slice };
        let change = self.changes.committing().find(|(address, _)| *address == slice).map(|(_, change)| change);
        let baseline = change.expect("the change is part of the commit").baseline;
        volume.map.set(slice.slice, baseline);
        volume.private.clear(slice.slice);
        if let Some(baseline) = baseline {
            self.changes.unrelease(baseline);
            self.groups[baseline.group.index()].slots.set(baseline.slot, SlotUse::Slice(owner));
        }
        // The lost slot was never durable for this map. A move of a shared slice may have made it so for another one.
        if let Some(lost) = lost {
            self.release_durably(owner, lost);
        }
    }

    /// Frees a slot after a durable removal of a reference to it, unless another reference exists.
    pub fn release_durably(&mut self, owner: FamilySlice, slot: SlotAddress) {
        let slots = &mut self.groups[slot.group.index()].slots;
        if slots.slot_use(slot.slot) == SlotUse::Released {
            return;
        }
        if self.is_referenced(owner, slot) && !self.sabotage.is(Sabotage::FreeShared) {
            return;
        }
        if self.is_baseline(owner, slot) {
            self.groups[slot.group.index()].slots.set(slot.slot, SlotUse::Released);
            self.changes.release(slot);
        } else {
            self.free_slot(slot);
        }
    }
}
