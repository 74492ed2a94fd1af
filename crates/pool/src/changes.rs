//! Changes of the maps that are not durable yet, and the slots that they release.
//!
//! A change is visible at once and durable with the next commit. Until then the map entry that it replaces, its
//! *baseline*, is still durable: the baseline's slot is not reused, and a checkpoint records the baseline.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::group_set::GroupSet;
use crate::number::{SliceAddress, SliceNo, SlotAddress, VolumeId};

/// A change that no commit contains yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PendingChange {
    /// The slot in the last durable map entry.
    pub baseline: Option<SlotAddress>,
    /// The write stamp of the new slot's group before the slot was filled. The slot's unflushed content may be lost
    /// once the group has another stamp.
    pub stamp: u64,
}

/// A change that the running commit makes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommittingChange {
    /// The slot in the last durable map entry.
    pub baseline: Option<SlotAddress>,
    /// The new slot.
    pub slot: Option<SlotAddress>,
    /// As in [`PendingChange`].
    pub stamp: u64,
}

/// All changes that are not durable.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    pending: BTreeMap<SliceAddress, PendingChange>,
    committing: BTreeMap<SliceAddress, CommittingChange>,
    /// Slots released since the running commit began.
    released: Vec<SlotAddress>,
    /// Slots that the running commit frees.
    releasing: Vec<SlotAddress>,
}

impl Changes {
    /// Notes that a slice's slot has changed from `former`.
    pub fn note(&mut self, slice: SliceAddress, former: Option<SlotAddress>, stamp: u64) {
        let baseline = self.committing.get(&slice).map_or(former, |committing| committing.slot);
        self.pending.entry(slice).or_insert(PendingChange { baseline, stamp }).stamp = stamp;
    }

    /// Frees a slot with the next pass of commits: no map refers to it any more, but a durable entry may.
    pub fn release(&mut self, slot: SlotAddress) {
        self.released.push(slot);
    }

    /// True if the last durable entry of a changed slice is this slot.
    pub fn is_baseline(&self, slice: SliceAddress, slot: SlotAddress) -> bool {
        let pending = self.pending.get(&slice).map(|change| change.baseline);
        let committing = self.committing.get(&slice).map(|change| change.baseline);
        [pending, committing].contains(&Some(Some(slot)))
    }

    /// All slices with a change, each with its last durable slot.
    pub fn baselines(&self) -> impl Iterator<Item = (SliceAddress, Option<SlotAddress>)> + '_ {
        let committing = self.committing.iter().map(|(slice, change)| (*slice, change.baseline));
        let pending = self.pending.iter().filter(|(slice, _)| !self.committing.contains_key(slice));
        committing.chain(pending.map(|(slice, change)| (*slice, change.baseline)))
    }

    /// True if a slice of the volume has a change.
    pub fn has_changes_of(&self, volume: VolumeId) -> bool {
        let range = SliceAddress { volume, slice: SliceNo(0) }..=SliceAddress { volume, slice: SliceNo(u32::MAX) };
        self.pending.range(range.clone()).next().is_some() || self.committing.range(range).next().is_some()
    }

    /// Takes a released slot out of the list again, because a slice refers to it again.
    pub fn unrelease(&mut self, slot: SlotAddress) {
        self.released.retain(|released| *released != slot);
        self.releasing.retain(|released| *released != slot);
    }

    /// The last durable slot of a slice whose slot is `current`.
    pub fn durable_slot(&self, slice: SliceAddress, current: Option<SlotAddress>) -> Option<SlotAddress> {
        match (self.committing.get(&slice), self.pending.get(&slice)) {
            (Some(committing), _) => committing.baseline,
            (None, Some(pending)) => pending.baseline,
            (None, None) => current,
        }
    }

    /// The write stamp that the slot of a slice must still have; `None` if the slot is durable.
    pub fn stamp_of(&self, slice: SliceAddress) -> Option<u64> {
        let committing = || self.committing.get(&slice).map(|change| change.stamp);
        self.pending.get(&slice).map(|change| change.stamp).or_else(committing)
    }

    /// Volumes with a change that no commit contains yet and whose new slot is on one of these groups.
    pub fn pending_on<'a>(
        &'a self,
        groups: GroupSet,
        slot_of: impl Fn(SliceAddress) -> Option<SlotAddress> + 'a,
    ) -> impl Iterator<Item = VolumeId> + 'a {
        let is_on = move |slice: &SliceAddress| slot_of(*slice).is_some_and(|slot| groups.contains(slot.group));
        self.pending.keys().copied().filter(is_on).map(|slice| slice.volume)
    }

    /// Number of changes that no commit contains yet.
    pub fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// True if nothing waits for a commit.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.committing.is_empty() && self.released.is_empty() && self.releasing.is_empty()
    }

    /// Begins a pass of commits that frees all slots released so far.
    pub fn begin_pass(&mut self) {
        self.releasing.append(&mut self.released);
    }

    /// Moves up to `max` pending changes after `after` into the running commit. `slot_of` returns a slice's present
    /// slot. Returns the last one moved, if more follow.
    pub fn take(
        &mut self,
        after: Bound<SliceAddress>,
        max: usize,
        slot_of: impl Fn(SliceAddress) -> Option<SlotAddress>,
    ) -> Option<SliceAddress> {
        assert!(self.committing.is_empty(), "one commit at a time");
        let range = self.pending.range((after, Bound::Unbounded));
        let taken: Vec<_> = range.take(max + 1).map(|(slice, change)| (*slice, *change)).collect();
        for (slice, change) in taken.iter().take(max) {
            self.pending.remove(slice);
            let PendingChange { baseline, stamp } = *change;
            self.committing.insert(*slice, CommittingChange { baseline, slot: slot_of(*slice), stamp });
        }
        (taken.len() > max).then(|| taken[max - 1].0)
    }

    /// The changes of the running commit.
    pub fn committing(&self) -> impl Iterator<Item = (SliceAddress, CommittingChange)> + '_ {
        self.committing.iter().map(|(slice, change)| (*slice, *change))
    }

    /// Makes the running commit record the baseline of a slice: its new slot may have lost content. Returns true if the
    /// slice has not changed again, so that the map must return to the baseline too.
    pub fn revert(&mut self, slice: SliceAddress) -> bool {
        let change = self.committing.get_mut(&slice).expect("a change of the running commit is reverted");
        change.slot = change.baseline;
        match self.pending.get_mut(&slice) {
            Some(pending) => {
                pending.baseline = change.baseline;
                // Only the commit of the later change frees the baseline. Another map may still refer to it.
                if let Some(baseline) = change.baseline
                    && let Some(index) = self.releasing.iter().position(|released| *released == baseline)
                {
                    self.released.push(self.releasing.swap_remove(index));
                }
                false
            }
            None => true,
        }
    }

    /// Leaves the change of a slice to a later commit. Its durable slot stays in use until then.
    pub fn defer(&mut self, slice: SliceAddress) {
        let CommittingChange { baseline, stamp, .. } =
            self.committing.remove(&slice).expect("a change of the running commit is deferred");
        self.pending.entry(slice).or_insert(PendingChange { baseline, stamp }).baseline = baseline;
        if let Some(baseline) = baseline
            && let Some(index) = self.releasing.iter().position(|released| *released == baseline)
        {
            self.released.push(self.releasing.swap_remove(index));
        }
    }

    /// The running commit is durable.
    pub fn finish(&mut self) {
        self.committing.clear();
    }

    /// The pass is durable: returns the slots that are free now.
    pub fn finish_pass(&mut self) -> Vec<SlotAddress> {
        std::mem::take(&mut self.releasing)
    }

    /// Discards the changes of slices for which `is_gone` holds: a durable record has removed them.
    pub fn discard(&mut self, is_gone: impl Fn(SliceAddress) -> bool) {
        self.pending.retain(|slice, _| !is_gone(*slice));
        self.committing.retain(|slice, _| !is_gone(*slice));
    }
}
