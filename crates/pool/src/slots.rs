//! The slots of a group: the owner of each, and the free ones by bitmap.

use crate::number::{FamilySlice, SliceNo, SlotNo, VolumeId};

/// The use of a slot: 8 bytes. Volume 0 does not exist; its slices stand for the uses without an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    family: VolumeId,
    slice: SliceNo,
}

/// The use of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotUse {
    /// Nothing refers to it.
    Free,
    /// It is being filled: a new slice, or the target of a move.
    Filling,
    /// A map entry that is still durable, or a request in flight, refers to it.
    Released,
    /// A fill of it failed. It takes no slice until the pool is opened again.
    Quarantined,
    /// A slice lies in it, of one volume of the family or of several.
    Slice(FamilySlice),
}

impl Owner {
    fn new(slot_use: SlotUse) -> Owner {
        let without = |kind| Owner { family: VolumeId(0), slice: SliceNo(kind) };
        match slot_use {
            SlotUse::Free => without(0),
            SlotUse::Filling => without(1),
            SlotUse::Released => without(2),
            SlotUse::Quarantined => without(3),
            SlotUse::Slice(FamilySlice { family, slice }) => {
                assert!(family.0 > 0, "volume 0 does not exist");
                Owner { family, slice }
            }
        }
    }

    fn slot_use(self) -> SlotUse {
        match (self.family.0, self.slice.0) {
            (0, 0) => SlotUse::Free,
            (0, 1) => SlotUse::Filling,
            (0, 2) => SlotUse::Released,
            (0, _) => SlotUse::Quarantined,
            _ => SlotUse::Slice(FamilySlice { family: self.family, slice: self.slice }),
        }
    }
}

/// The slots of one group.
#[derive(Clone, Debug, Default)]
pub struct GroupSlots {
    owners: Vec<Owner>,
    /// One bit per slot, set if it is free.
    free: Vec<u64>,
    free_count: u32,
    quarantined_count: u32,
    /// Word of the bitmap at which the search for a free slot begins.
    next_word: usize,
}

impl GroupSlots {
    /// `count` free slots.
    pub fn new(count: u32) -> GroupSlots {
        let words = (count as usize).div_ceil(64);
        let mut free = vec![u64::MAX; words];
        if !count.is_multiple_of(64) {
            free[words - 1] = (1 << (count % 64)) - 1;
        }
        let owners = vec![Owner::new(SlotUse::Free); count as usize];
        GroupSlots { owners, free, free_count: count, quarantined_count: 0, next_word: 0 }
    }

    /// Number of slots.
    pub fn count(&self) -> u32 {
        self.owners.len() as u32
    }

    /// Number of free slots.
    pub fn free_count(&self) -> u32 {
        self.free_count
    }

    /// True if no slot is in use.
    pub fn are_unused(&self) -> bool {
        self.free_count + self.quarantined_count == self.count()
    }

    /// Takes a slot that is being filled out of use.
    pub fn quarantine(&mut self, slot: SlotNo) {
        assert_eq!(self.slot_use(slot), SlotUse::Filling, "only a failed fill makes a slot suspect");
        self.set(slot, SlotUse::Quarantined);
        self.quarantined_count += 1;
    }

    /// The use of a slot.
    pub fn slot_use(&self, slot: SlotNo) -> SlotUse {
        self.owners[slot.index()].slot_use()
    }

    /// Takes a free slot; it is then [`SlotUse::Filling`]. The search continues after the last one, so that slices
    /// written one after the other lie one after the other.
    pub fn take(&mut self) -> Option<SlotNo> {
        let words = self.free.len();
        for step in 0..words {
            let word = (self.next_word + step) % words;
            if self.free[word] != 0 {
                self.next_word = word;
                let slot = SlotNo(word as u32 * 64 + self.free[word].trailing_zeros());
                self.set(slot, SlotUse::Filling);
                return Some(slot);
            }
        }
        None
    }

    /// Sets the use of a slot.
    pub fn set(&mut self, slot: SlotNo, slot_use: SlotUse) {
        let is_free = slot_use == SlotUse::Free;
        let (word, bit) = (slot.index() / 64, 1_u64 << (slot.index() % 64));
        let was_free = self.free[word] & bit != 0;
        self.owners[slot.index()] = Owner::new(slot_use);
        if is_free != was_free {
            self.free[word] ^= bit;
            self.free_count = self.free_count + u32::from(is_free) - u32::from(was_free);
        }
    }

    /// Gives a free slot to a slice. Returns false if the slot has another use.
    pub fn claim(&mut self, slot: SlotNo, slice: FamilySlice) -> bool {
        let (entry, owner) = (&mut self.owners[slot.index()], Owner::new(SlotUse::Slice(slice)));
        if *entry != Owner::new(SlotUse::Free) {
            return *entry == owner;
        }
        *entry = owner;
        self.free[slot.index() / 64] &= !(1 << (slot.index() % 64));
        self.free_count -= 1;
        true
    }

    /// The first slot from `from` on that holds a slice.
    pub fn slice_from(&self, from: SlotNo) -> Option<SlotNo> {
        let mut rest = self.owners.iter().enumerate().skip(from.index());
        let found = rest.find(|(_, owner)| matches!(owner.slot_use(), SlotUse::Slice(_)));
        found.map(|(slot, _)| SlotNo(slot as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_is_taken_once_and_can_be_freed() {
        let mut slots = GroupSlots::new(130);
        let taken: Vec<_> = std::iter::from_fn(|| slots.take()).collect();
        assert_eq!(taken, (0..130).map(SlotNo).collect::<Vec<_>>());
        assert_eq!(slots.free_count(), 0);
        slots.set(SlotNo(129), SlotUse::Free);
        slots.set(SlotNo(129), SlotUse::Free);
        slots.set(SlotNo(3), SlotUse::Free);
        assert_eq!(slots.free_count(), 2);
        assert_eq!([slots.take(), slots.take(), slots.take()], [Some(SlotNo(129)), Some(SlotNo(3)), None]);
    }

    #[test]
    fn free_slot_is_claimed_by_one_slice() {
        let mut slots = GroupSlots::new(70);
        let slice = FamilySlice { family: VolumeId(1), slice: SliceNo(0) };
        assert!(slots.claim(SlotNo(66), slice) && slots.claim(SlotNo(66), slice), "its volumes share it");
        assert!(!slots.claim(SlotNo(66), FamilySlice { slice: SliceNo(1), ..slice }));
        assert_eq!((slots.free_count(), slots.slot_use(SlotNo(66))), (69, SlotUse::Slice(slice)));
        slots.set(SlotNo(3), SlotUse::Quarantined);
        assert!(!slots.claim(SlotNo(3), slice));
        assert_eq!(std::iter::from_fn(|| slots.take()).count(), 68);
    }

    #[test]
    fn use_of_a_slot_round_trips() {
        let mut slots = GroupSlots::new(4);
        let slice = FamilySlice { family: VolumeId(1), slice: SliceNo(0) };
        for slot_use in
            [SlotUse::Filling, SlotUse::Released, SlotUse::Quarantined, SlotUse::Slice(slice), SlotUse::Free]
        {
            slots.set(SlotNo(2), slot_use);
            assert_eq!(slots.slot_use(SlotNo(2)), slot_use);
        }
        slots.set(SlotNo(2), SlotUse::Slice(slice));
        assert_eq!(slots.slice_from(SlotNo(0)), Some(SlotNo(2)));
        assert_eq!(slots.slice_from(SlotNo(3)), None);
    }
}
