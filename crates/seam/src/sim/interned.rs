//! Sectors that are no tag repeated: metadata, whose bytes matter.
//!
//! Buffers and images keep a tag a sector. The tag of a metadata sector is a hash of its bytes with a marker, and this table gives
//! the bytes back, so that images, journals and torn writes treat metadata like everything else. It only ever grows, by the
//! distinct sectors that were written; worlds that adopt disks look up in the tables of the worlds these came from.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use rustc_hash::FxHashMap;

use crate::SECTOR_BYTES;
use crate::rng::mix;

/// Bytes in a tag.
pub(super) const TAG_BYTES: usize = 8;
/// The upper bits of a tag that stands for bytes in the table. Another tag may have them by chance; then the table has no such entry.
/// The rest is 48 bits of hash: of a million sectors two have the same in one world of some hundreds.
const MARKER: u64 = 0x6d65 << 48;
const MARKER_BITS: u64 = !0 << 48;

type Sector = [u8; SECTOR_BYTES];

/// The metadata sectors of a world.
#[derive(Debug, Default)]
pub(super) struct Interned {
    sectors: RefCell<FxHashMap<u64, Box<Sector>>>,
    older: RefCell<Vec<Rc<Interned>>>,
    used: Cell<bool>,
}

impl Interned {
    /// Looks up in `older`, too, from now on.
    pub(super) fn adopt(&self, older: Rc<Interned>) {
        if older.used.get() {
            self.used.set(true);
            self.older.borrow_mut().push(older);
        }
    }

    /// The tag that stands for `bytes`.
    pub(super) fn tag_of(&self, bytes: &Sector) -> u64 {
        let (words, _) = bytes.as_chunks::<TAG_BYTES>();
        let word = |index: usize| u64::from_le_bytes(words[index]);
        if words.iter().all(|word| *word == words[0]) && self.bytes_of(word(0)).is_none() {
            return word(0);
        }
        let hash = (0..words.len()).fold(words.len() as u64, |hash, index| mix(hash ^ word(index)).wrapping_add(hash));
        self.used.set(true);
        // Who comes second to a hash has the next tag that is free.
        let mut tag = MARKER | (hash & !MARKER_BITS);
        loop {
            match self.bytes_of(tag) {
                Some(known) if known == *bytes => return tag,
                Some(_) => tag = MARKER | (tag.wrapping_add(1) & !MARKER_BITS),
                None => {
                    self.sectors.borrow_mut().insert(tag, Box::new(*bytes));
                    return tag;
                }
            }
        }
    }

    /// The bytes that `tag` stands for, where they are no tag repeated.
    pub(super) fn bytes_of(&self, tag: u64) -> Option<Sector> {
        if tag & MARKER_BITS != MARKER || !self.used.get() {
            return None;
        }
        if let Some(bytes) = self.sectors.borrow().get(&tag) {
            return Some(**bytes);
        }
        self.older.borrow().iter().find_map(|older| older.bytes_of(tag))
    }

    /// The tag of the sector that `tag` stands for, with one bit changed.
    pub(super) fn flipped(&self, tag: u64, bit: usize) -> u64 {
        match self.bytes_of(tag) {
            Some(mut bytes) => {
                bytes[bit / 8 % SECTOR_BYTES] ^= 1 << (bit % 8);
                self.tag_of(&bytes)
            }
            None => tag ^ 1 << (bit % 64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sector(first: u8) -> Sector {
        let mut bytes = [7; SECTOR_BYTES];
        bytes[0] = first;
        bytes
    }

    #[test]
    fn bytes_come_back_from_their_own_world_and_from_later_ones() {
        let (first, second) = (Rc::new(Interned::default()), Interned::default());
        let tag = first.tag_of(&sector(1));
        assert_eq!(first.bytes_of(tag), Some(sector(1)));
        assert_eq!(second.bytes_of(tag), None);
        second.adopt(first);
        assert_eq!(second.bytes_of(tag), Some(sector(1)));
        assert_eq!(second.tag_of(&sector(1)), tag);
        assert_ne!(second.tag_of(&sector(2)), tag);
    }

    #[test]
    fn two_sectors_of_one_hash_are_told_apart() {
        let (table, tag) = (Interned::default(), Interned::default().tag_of(&sector(1)));
        table.sectors.borrow_mut().insert(tag, Box::new(sector(2)));
        table.used.set(true);
        let next = table.tag_of(&sector(1));
        assert_ne!(next, tag);
        assert_eq!([tag, next].map(|tag| table.bytes_of(tag)), [Some(sector(2)), Some(sector(1))]);
        assert_eq!(table.tag_of(&sector(1)), next);
    }

    #[test]
    fn a_tag_repeated_is_itself() {
        let table = Interned::default();
        assert_eq!(table.tag_of(&[7; SECTOR_BYTES]), 0x0707_0707_0707_0707);
        assert_eq!(table.tag_of(&[0; SECTOR_BYTES]), 0);
    }

    #[test]
    fn one_flipped_bit_of_metadata_is_one_bit() {
        let table = Interned::default();
        let flipped = table.flipped(table.tag_of(&sector(1)), 4095);
        let differing: u32 = sector(1)
            .iter()
            .zip(table.bytes_of(flipped).expect("it was written"))
            .map(|(a, b)| (a ^ b).count_ones())
            .sum();
        assert_eq!(differing, 1);
    }
}
