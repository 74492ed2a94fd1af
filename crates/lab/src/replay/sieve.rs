//! SIEVE (Zhang and others, NSDI 2024): a FIFO from which a hand takes what was not used since it last came by.

use engine::policy::list::{Links, List};

use super::Cache;

/// SIEVE.
pub struct Sieve {
    slots: usize,
    links: Links,
    list: List,
    visited: Vec<bool>,
    hand: Option<u32>,
}

impl Sieve {
    /// `slots` pages of `distinct`.
    pub fn new(slots: usize, distinct: u32) -> Self {
        let visited = vec![false; distinct as usize];
        Sieve { slots, links: Links::over(distinct), list: List::EMPTY, visited, hand: None }
    }

    fn evict(&mut self) {
        // One round clears every mark, so the second ends.
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
