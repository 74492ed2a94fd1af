//! Least recently used: the yardstick that other policies are compared with.

use super::list::{Links, List};
use super::{Admit, Policy};

/// Least recently used.
pub struct Lru {
    links: Links,
    list: List,
}

impl Lru {
    /// For slots below `capacity`.
    pub fn new(capacity: usize) -> Self {
        Lru { links: Links::new(capacity), list: List::EMPTY }
    }
}

impl Policy for Lru {
    fn insert(&mut self, slot: u32, _key: u64, _how: Admit) {
        self.links.reach(slot);
        self.links.push_head(&mut self.list, slot);
    }

    fn hit(&mut self, slot: u32) {
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

    fn victim(&mut self) -> Option<u32> {
        let slot = self.list.tail()?;
        self.links.unlink(&mut self.list, slot);
        Some(slot)
    }
}
