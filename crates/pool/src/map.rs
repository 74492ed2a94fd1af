//! The map of a volume: the slot of each slice, 6 bytes each in chunks that exist where a slice is allocated.
//!
//! Memory of an allocated slice: 6 bytes here ([`MapEntry`]), 8 bytes for the owner of its slot and one bit for "free"
//! (`slots.rs`), 8 bytes of heat, one bit for "private" (`sharing.rs`): 22 bytes and two bits of the 24 that the design
//! permits. Maps share chunks until one of them changes: the copy of a map takes 8 bytes a chunk.

use std::rc::Rc;

use crate::format::record::PackedSlot;
use crate::number::{SliceNo, SlotAddress};

/// Slices of a chunk.
const CHUNK: usize = 1024;

/// The slot of a slice, as lists in checkpoints have it; all ones if it is unallocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapEntry(PackedSlot);

impl MapEntry {
    const NONE: MapEntry = MapEntry(PackedSlot::NONE);

    fn new(slot: Option<SlotAddress>) -> MapEntry {
        slot.map_or(MapEntry::NONE, |slot| MapEntry(PackedSlot::new(slot)))
    }

    fn slot(self) -> Option<SlotAddress> {
        (self != MapEntry::NONE).then(|| self.0.address())
    }
}

/// The map of one volume.
#[derive(Clone, Debug, Default)]
pub struct VolumeMap {
    chunks: Vec<Option<Rc<[MapEntry; CHUNK]>>>,
    allocated: u32,
}

impl VolumeMap {
    /// The slot of a slice.
    pub fn get(&self, slice: SliceNo) -> Option<SlotAddress> {
        let chunk = self.chunks.get(slice.index() / CHUNK)?.as_ref()?;
        chunk[slice.index() % CHUNK].slot()
    }

    /// Sets the slot of a slice and returns the former one.
    pub fn set(&mut self, slice: SliceNo, slot: Option<SlotAddress>) -> Option<SlotAddress> {
        let (number, index) = (slice.index() / CHUNK, slice.index() % CHUNK);
        if number >= self.chunks.len() {
            slot?;
            self.chunks.resize_with(number + 1, || None);
        }
        let chunk = &mut self.chunks[number];
        if chunk.is_none() && slot.is_none() {
            return None;
        }
        let chunk = chunk.get_or_insert_with(|| Rc::new([MapEntry::NONE; CHUNK]));
        let former = std::mem::replace(&mut Rc::make_mut(chunk)[index], MapEntry::new(slot)).slot();
        self.allocated = self.allocated + u32::from(slot.is_some()) - u32::from(former.is_some());
        former
    }

    /// Sets the slots of consecutive slices.
    pub fn set_run(&mut self, slice: SliceNo, mut slots: impl ExactSizeIterator<Item = PackedSlot>) {
        let mut next = slice.index();
        while slots.len() > 0 {
            let (number, index) = (next / CHUNK, next % CHUNK);
            if number >= self.chunks.len() {
                self.chunks.resize_with(number + 1, || None);
            }
            let chunk = Rc::make_mut(self.chunks[number].get_or_insert_with(|| Rc::new([MapEntry::NONE; CHUNK])));
            let count = slots.len().min(CHUNK - index);
            for (entry, slot) in chunk[index..index + count].iter_mut().zip(&mut slots) {
                self.allocated += u32::from(*entry == MapEntry::NONE);
                *entry = MapEntry(slot);
            }
            next += count;
        }
    }

    /// The allocated slices from `from` on, in order.
    pub fn allocated_from(&self, from: SliceNo) -> impl Iterator<Item = (SliceNo, SlotAddress)> + '_ {
        let first = from.index() / CHUNK;
        let chunks = self.chunks.iter().enumerate().skip(first);
        let chunks = chunks.filter_map(|(number, chunk)| Some((number, chunk.as_ref()?)));
        let entries = chunks.flat_map(|(number, chunk)| {
            chunk.iter().enumerate().map(move |(index, entry)| ((number * CHUNK + index) as u32, *entry))
        });
        let allocated = entries.filter_map(|(slice, entry)| Some((SliceNo(slice), entry.slot()?)));
        allocated.skip_while(move |(slice, _)| *slice < from)
    }

    /// The slices from `from` on whose slots differ from those of `base`, in order, each with its slot here. Chunks
    /// that both maps share are skipped at once.
    pub fn differences<'a>(
        &'a self,
        base: &'a VolumeMap,
        from: SliceNo,
    ) -> impl Iterator<Item = (SliceNo, Option<SlotAddress>)> + 'a {
        let chunks = self.chunks.len().max(base.chunks.len());
        let pairs = (from.index() / CHUNK..chunks).filter_map(move |number| {
            let chunk = |map: &'a VolumeMap| map.chunks.get(number).and_then(Option::as_ref);
            match (chunk(self), chunk(base)) {
                (None, None) => None,
                (Some(own), Some(other)) if Rc::ptr_eq(own, other) => None,
                pair => Some((number, pair)),
            }
        });
        let changes = pairs.flat_map(|(number, (own, other))| {
            (0..CHUNK).filter_map(move |index| {
                let slot = |chunk: Option<&Rc<[MapEntry; CHUNK]>>| chunk.and_then(|chunk| chunk[index].slot());
                let (own, other) = (slot(own), slot(other));
                (own != other).then_some((SliceNo((number * CHUNK + index) as u32), own))
            })
        });
        changes.skip_while(move |(slice, _)| *slice < from)
    }

    /// Forgets the chunks that `other` shares.
    pub fn forget_shared_chunks(&mut self, other: &VolumeMap) {
        for (chunk, shared) in self.chunks.iter_mut().zip(&other.chunks) {
            if let (Some(own), Some(other)) = (chunk.as_ref(), shared)
                && Rc::ptr_eq(own, other)
            {
                self.allocated -= own.iter().filter(|entry| entry.slot().is_some()).count() as u32;
                *chunk = None;
            }
        }
    }

    /// Number of allocated slices.
    pub fn allocated(&self) -> u32 {
        self.allocated
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number::{GroupNo, SlotNo};
    use crate::slots::Owner;

    fn slot(group: u16, slot: u32) -> SlotAddress {
        SlotAddress { group: GroupNo(group), slot: SlotNo(slot) }
    }

    #[test]
    fn allocated_slice_takes_less_than_24_bytes() {
        let heat = 8;
        assert_eq!((size_of::<MapEntry>(), size_of::<Owner>()), (6, 8));
        // Bits: entry, owner, heat, the bits "free" and "private", and the pointer to the chunk.
        let bits = 8 * (size_of::<MapEntry>() + size_of::<Owner>() + heat) + 2 + (8 * 8_usize).div_ceil(CHUNK);
        assert!(bits < 24 * 8, "{bits} bits");
    }

    #[test]
    fn copied_map_shares_chunks_and_differs_where_one_has_changed() {
        let mut map = VolumeMap::default();
        for slice in [3, 5, 2_000, 5_000] {
            map.set(SliceNo(slice), Some(slot(0, slice)));
        }
        let base = map.clone();
        assert_eq!(map.differences(&base, SliceNo(0)).count(), 0);
        map.set(SliceNo(5), Some(slot(1, 1)));
        map.set(SliceNo(5_000), None);
        map.set(SliceNo(9_000), Some(slot(1, 2)));
        let all = [(SliceNo(5), Some(slot(1, 1))), (SliceNo(5_000), None), (SliceNo(9_000), Some(slot(1, 2)))];
        assert_eq!(map.differences(&base, SliceNo(0)).collect::<Vec<_>>(), all);
        assert_eq!(map.differences(&base, SliceNo(6)).collect::<Vec<_>>(), all[1..]);
        assert_eq!((base.get(SliceNo(5)), base.allocated()), (Some(slot(0, 5)), 4));
        let mut rest = base.clone();
        rest.forget_shared_chunks(&map);
        assert_eq!(rest.allocated(), 3, "the chunk of slice 2,000 is shared");
        assert_eq!(rest.get(SliceNo(2_000)), None);
    }

    #[test]
    fn run_across_chunks_is_set_like_its_slices() {
        let (mut map, mut expected) = (VolumeMap::default(), VolumeMap::default());
        expected.set(SliceNo(1_000), Some(slot(9, 9)));
        map.clone_from(&expected);
        let base = map.clone();
        map.set_run(SliceNo(1_000), (0..2_100).map(|number| PackedSlot::new(slot(number as u16 % 3, number))));
        for number in 0..2_100 {
            expected.set(SliceNo(1_000 + number), Some(slot(number as u16 % 3, number)));
        }
        map.set_run(SliceNo(0), std::iter::empty());
        assert_eq!((map.allocated(), map.differences(&expected, SliceNo(0)).count()), (2_100, 0));
        assert_eq!(base.get(SliceNo(1_000)), Some(slot(9, 9)), "a copy that shares the chunk stays");
    }

    #[test]
    fn map_returns_what_was_set_and_counts_it() {
        let mut map = VolumeMap::default();
        assert_eq!(map.set(SliceNo(5), None), None);
        assert_eq!(map.set(SliceNo(5), Some(slot(0, 70_000))), None);
        assert_eq!(map.set(SliceNo(3_000), Some(slot(31, u32::MAX))), None);
        assert_eq!(map.get(SliceNo(5)), Some(slot(0, 70_000)));
        assert_eq!(map.set(SliceNo(5), Some(slot(1, 1))), Some(slot(0, 70_000)));
        assert_eq!(map.allocated(), 2);
        let all: Vec<_> = map.allocated_from(SliceNo(5)).collect();
        assert_eq!(all, [(SliceNo(5), slot(1, 1)), (SliceNo(3_000), slot(31, u32::MAX))]);
        assert_eq!(map.allocated_from(SliceNo(6)).count(), 1);
        assert_eq!(map.set(SliceNo(5), None), Some(slot(1, 1)));
        assert_eq!((map.allocated(), map.get(SliceNo(5)), map.get(SliceNo(9_999_999))), (1, None, None));
    }
}
