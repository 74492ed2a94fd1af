//! Least recently used: the baseline.

use engine::policy::list::{LinkedList, Links};

use super::Cache;

/// Least recently used.
pub struct Lru {
    slots: usize,
    links: Links,
    list: LinkedList,
}

impl Lru {
    /// A cache of `slots` pages; the trace has `distinct` pages.
    pub fn new(slots: usize, distinct: u32) -> Self {
        Lru { slots, links: Links::over(distinct), list: LinkedList::EMPTY }
    }

    /// True when the page is cached.
    pub fn contains(&self, page: u32) -> bool {
        self.links.is_linked(page)
    }
}

impl Cache for Lru {
    fn access(&mut self, page: u32) -> bool {
        let hit = self.links.is_linked(page);
        if hit {
            self.links.unlink(&mut self.list, page);
        } else if self.list.len() == self.slots {
            self.links.take_tail(&mut self.list);
        }
        self.links.push_head(&mut self.list, page);
        hit
    }
}
