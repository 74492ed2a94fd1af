//! SIEVE (Zhang and others, NSDI 2024): a FIFO with a hand that evicts pages not used since its last pass.

use engine::policy::list::{LinkedList, Links};

use super::Cache;

/// SIEVE cache.
pub struct Sieve {
    slots: usize,
    links: Links,
    list: LinkedList,
    /// By page: used since the hand's last pass.
    visited: Vec<bool>,
    /// Page at which the next eviction begins; `None` for the oldest.
    hand: Option<u32>,
}

impl Sieve {
    /// A cache of `slots` pages; the trace has `distinct` pages.
    pub fn new(slots: usize, distinct: u32) -> Self {
        let visited = vec![false; distinct as usize];
        Sieve { slots, links: Links::over(distinct), list: LinkedList::EMPTY, visited, hand: None }
    }

    fn evict(&mut self) {
        // One pass clears every mark, so the second pass ends.
        while let Some(page) = self.hand.or(self.list.tail()) {
            self.hand = self.links.younger(page);
            if !std::mem::take(&mut self.visited[page as usize]) {
                return self.links.unlink(&mut self.list, page);
            }
        }
    }
}

impl Cache for Sieve {
    fn access(&mut self, page: u32) -> bool {
        if self.links.is_linked(page) {
            self.visited[page as usize] = true;
            return true;
        }
        if self.list.len() == self.slots {
            self.evict();
        }
        self.visited[page as usize] = false;
        self.links.push_head(&mut self.list, page);
        false
    }
}
