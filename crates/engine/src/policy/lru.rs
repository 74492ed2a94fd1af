//! Least recently used: the baseline for other policies. It supports one volume.

use super::list::{LinkedList, Links};
use super::{InsertKind, Policy};

/// Least recently used.
pub struct Lru {
    links: Links,
    list: LinkedList,
}

impl Lru {
    /// A policy for slots below `capacity`.
    pub fn new(capacity: usize) -> Self {
        Lru { links: Links::new(capacity), list: LinkedList::EMPTY }
    }
}

impl Policy for Lru {
    fn insert(&mut self, _volume: u32, slot: u32, _key: u64, _admit: InsertKind) {
        self.links.ensure_slot(slot);
        self.links.push_head(&mut self.list, slot);
    }

    fn record_hit(&mut self, slot: u32) {
        if self.links.is_linked(slot) {
            self.links.unlink(&mut self.list, slot);
            self.links.push_head(&mut self.list, slot);
        }
    }

    fn pin(&mut self, slot: u32) {
        self.links.unlink(&mut self.list, slot);
    }

    fn unpin(&mut self, slot: u32) {
        self.links.push_head(&mut self.list, slot);
    }

    fn remove(&mut self, slot: u32) {
        self.links.unlink(&mut self.list, slot);
    }

    fn choose_victim(&mut self, _volumes: &[u32]) -> Option<u32> {
        self.links.take_tail(&mut self.list)
    }
}
