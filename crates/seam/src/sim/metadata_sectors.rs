//! Side table for sectors with arbitrary bytes.
//!
//! Simulated buffers and disks store one 8-byte tag per sector. The tag of a metadata sector is a hash of its bytes
//! with a marker, and this table maps the tag to the bytes. Images, journals and torn writes therefore treat metadata
//! like other content. The table only grows, by each distinct sector written. A world that takes over disks also
//! searches the tables of the worlds that the disks come from.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use rustc_hash::FxHashMap;

use crate::SECTOR_BYTES;
use crate::rng::mix;

/// Bytes in a tag.
pub(super) const TAG_BYTES: usize = 8;
/// Upper bits of a tag that represents bytes in the table. Another tag may have them by chance; the table then has no
/// such entry. The other 48 bits are a hash: a world with a million sectors has a collision with probability below 1 %.
const MARKER: u64 = 0x6d65 << 48;
const MARKER_BITS: u64 = !0 << 48;

type Sector = [u8; SECTOR_BYTES];

/// The metadata sectors of a world.
#[derive(Debug, Default)]
pub(super) struct MetadataSectors {
    sectors: RefCell<FxHashMap<u64, Box<Sector>>>,
    /// Tables of the worlds whose disks this world has adopted.
    older: RefCell<Vec<Rc<MetadataSectors>>>,
    /// False while no table has an entry; saves the look-ups.
    used: Cell<bool>,
}

impl MetadataSectors {
    /// Adds `older` to the searched tables.
    pub(super) fn adopt(&self, older: Rc<MetadataSectors>) {
        if older.used.get() {
            self.used.set(true);
            self.older.borrow_mut().push(older);
        }
    }

    /// The tag that represents `bytes`.
    pub(super) fn tag_of(&self, bytes: &Sector) -> u64 {
        let (words, _) = bytes.as_chunks::<TAG_BYTES>();
        let word = |index: usize| u64::from_le_bytes(words[index]);
        if words.iter().all(|word| *word == words[0]) && self.bytes_of(word(0)).is_none() {
            return word(0);
        }
        let hash = (0..words.len()).fold(words.len() as u64, |hash, index| mix(hash ^ word(index)).wrapping_add(hash));
        self.used.set(true);
        // On a hash collision the later sector gets the next free tag.
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

    /// The bytes that `tag` represents, if the table has them.
    pub(super) fn bytes_of(&self, tag: u64) -> Option<Sector> {
        let mut bytes = [0; SECTOR_BYTES];
        self.copy_bytes(tag, 0, &mut bytes).then_some(bytes)
    }

    /// Copies the bytes from `at` on that `tag` represents. Returns false if the table does not have them.
    pub(super) fn copy_bytes(&self, tag: u64, at: usize, out: &mut [u8]) -> bool {
        if tag & MARKER_BITS != MARKER || !self.used.get() {
            return false;
        }
        if let Some(bytes) = self.sectors.borrow().get(&tag) {
            out.copy_from_slice(&bytes[at..at + out.len()]);
            return true;
        }
        self.older.borrow().iter().any(|older| older.copy_bytes(tag, at, out))
    }

    /// The tag of the sector that `tag` represents, with one bit flipped.
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
    fn metadata_is_found_in_its_own_and_in_adopting_worlds() {
        let (first, second) = (Rc::new(MetadataSectors::default()), MetadataSectors::default());
        let tag = first.tag_of(&sector(1));
        assert_eq!(first.bytes_of(tag), Some(sector(1)));
        assert_eq!(second.bytes_of(tag), None);
        second.adopt(first);
        assert_eq!(second.bytes_of(tag), Some(sector(1)));
        assert_eq!(second.tag_of(&sector(1)), tag);
        assert_ne!(second.tag_of(&sector(2)), tag);
    }

    #[test]
    fn sectors_with_equal_hashes_get_different_tags() {
        let (table, tag) = (MetadataSectors::default(), MetadataSectors::default().tag_of(&sector(1)));
        table.sectors.borrow_mut().insert(tag, Box::new(sector(2)));
        table.used.set(true);
        let next = table.tag_of(&sector(1));
        assert_ne!(next, tag);
        assert_eq!([tag, next].map(|tag| table.bytes_of(tag)), [Some(sector(2)), Some(sector(1))]);
        assert_eq!(table.tag_of(&sector(1)), next);
    }

    #[test]
    fn repeated_tag_stands_for_itself() {
        let table = MetadataSectors::default();
        assert_eq!(table.tag_of(&[7; SECTOR_BYTES]), 0x0707_0707_0707_0707);
        assert_eq!(table.tag_of(&[0; SECTOR_BYTES]), 0);
    }

    #[test]
    fn flipped_metadata_differs_in_one_bit() {
        let table = MetadataSectors::default();
        let flipped = table.flipped(table.tag_of(&sector(1)), 4095);
        let differing: u32 = sector(1)
            .iter()
            .zip(table.bytes_of(flipped).expect("the table contains the bytes of every tag"))
            .map(|(a, b)| (a ^ b).count_ones())
            .sum();
        assert_eq!(differing, 1);
    }
}
