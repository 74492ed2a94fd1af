//! The slots of a group: the owner of each, and the free ones by bitmap.

use crate::number::{FamilySlice, SliceNo, SlotNo, VolumeId};

/// The use of a slot: 8 bytes, the family's number in the upper half and the slice in the lower one. Volume 0 does not
/// exist; its slices stand for the uses without an owner. Zero is a free slot, so that the owners of a new group are
/// zeroed pages of the operating system, which nothing touches.
pub(crate) type Owner = u64;

const FREE: Owner = 0;
const FILLING: Owner = 1;
const RELEASED: Owner = 2;
const QUARANTINED: Owner = 3;

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

impl SlotUse {
    #[inline]
    fn owner(self) -> Owner {
        match self {
            SlotUse::Free => FREE,
            SlotUse::Filling => FILLING,
            SlotUse::Released => RELEASED,
            SlotUse::Quarantined => QUARANTINED,
            SlotUse::Slice(FamilySlice { family, slice }) => {
                assert!(family.0 > 0, "volume 0 does not exist");
                u64::from(family.0) << 32 | u64::from(slice.0)
            }
        }
    }

    fn of_owner(owner: Owner) -> SlotUse {
        match owner {
            FREE => SlotUse::Free,
            FILLING => SlotUse::Filling,
            RELEASED => SlotUse::Released,
            QUARANTINED => SlotUse::Quarantined,
            _ => {
                let (family, slice) = (VolumeId((owner >> 32) as u32), SliceNo(owner as u32));
                SlotUse::Slice(FamilySlice { family, slice })
            }
        }
    }
}

/// The owners of a group's slots while they are derived from the maps. A claim changes one word; bitmap and count of
/// the free slots follow in one pass at the end.
pub struct SlotClaims {
    owners: Vec<Owner>,
}

impl SlotClaims {
    /// `count` free slots.
    pub fn new(count: u32) -> SlotClaims {
        // Zeroed memory of the operating system: each page is touched first when a slot in it is claimed.
        SlotClaims { owners: vec![FREE; count as usize] }
    }

    /// Gives a free slot to a slice.
    #[inline]
    pub fn claim(&mut self, slot: SlotNo, slice: FamilySlice) -> Result<(), ClaimError> {
        let owner = SlotUse::Slice(slice).owner();
        match self.owners.get_mut(slot.index()) {
            Some(entry) if *entry == FREE => *entry = owner,
            Some(entry) if *entry == owner => {}
            Some(entry) => return Err(ClaimError::Used(SlotUse::of_owner(*entry))),
            None => return Err(ClaimError::NoSlot),
        }
        Ok(())
    }

    /// The group's slots with these owners.
    pub fn finish(self) -> GroupSlots {
        let free_bits = |owners: &[Owner]| {
            let bits = owners.iter().enumerate().map(|(index, owner)| u64::from(*owner == FREE) << index);
            bits.fold(0, |word, bit| word | bit)
        };
        let free: Vec<_> = self.owners.chunks(64).map(free_bits).collect();
        let free_count = free.iter().map(|word| word.count_ones()).sum();
        GroupSlots { owners: self.owners, free, free_count, quarantined_count: 0, next_word: 0 }
    }
}

/// The reason why a slot cannot be given to a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimError {
    /// It does not exist.
    NoSlot,
    /// It has another use.
    Used(SlotUse),
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
        let owners = vec![FREE; count as usize];
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
        SlotUse::of_owner(self.owners[slot.index()])
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
        self.owners[slot.index()] = slot_use.owner();
        if is_free != was_free {
            self.free[word] ^= bit;
            self.free_count = self.free_count + u32::from(is_free) - u32::from(was_free);
        }
    }

    /// The first slot from `from` on that holds a slice.
    pub fn slice_from(&self, from: SlotNo) -> Option<SlotNo> {
        let mut rest = self.owners.iter().enumerate().skip(from.index());
        let found = rest.find(|(_, owner)| matches!(SlotUse::of_owner(**owner), SlotUse::Slice(_)));
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
        let mut claims = SlotClaims::new(70);
        let slice = FamilySlice { family: VolumeId(1), slice: SliceNo(0) };
        assert_eq!(claims.claim(SlotNo(66), slice), Ok(()));
        assert_eq!(claims.claim(SlotNo(66), slice), Ok(()), "the volumes of a family share it");
        let used = Err(ClaimError::Used(SlotUse::Slice(slice)));
        assert_eq!(claims.claim(SlotNo(66), FamilySlice { slice: SliceNo(1), ..slice }), used);
        assert_eq!(claims.claim(SlotNo(66), FamilySlice { family: VolumeId(2), ..slice }), used);
        assert_eq!(claims.claim(SlotNo(70), slice), Err(ClaimError::NoSlot));
        let mut slots = claims.finish();
        assert_eq!((slots.count(), slots.free_count(), slots.slot_use(SlotNo(66))), (70, 69, SlotUse::Slice(slice)));
        let free: Vec<_> = std::iter::from_fn(|| slots.take()).collect();
        assert_eq!(free, (0..66).chain(67..70).map(SlotNo).collect::<Vec<_>>());
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
