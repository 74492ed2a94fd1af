//! Belady's optimum: who leaves is used again last. Needs the future, so it is a limit and no policy.

use std::collections::BinaryHeap;

use super::Cache;

/// In place of a next use: none comes.
const NEVER: u32 = u32::MAX;

/// The limit of demand paging: a page that is asked for always comes in.
pub struct Belady {
    slots: usize,
    /// By access: when its page is used next.
    next: Vec<u32>,
    time: usize,
    /// By page: when it is used next, seen from its last use.
    next_use: Vec<u32>,
    resident: Vec<bool>,
    held: usize,
    /// `(next use, page)`, the farthest first; entries whose time is not the page's are stale.
    heap: BinaryHeap<(u32, u32)>,
}

impl Belady {
    /// `slots` pages; `accesses` are what will be played.
    pub fn new(slots: usize, accesses: &[u32], distinct: u32) -> Self {
        let mut next = vec![NEVER; accesses.len()];
        let mut following = vec![NEVER; distinct as usize];
        for (time, page) in accesses.iter().enumerate().rev() {
            next[time] = following[*page as usize];
            following[*page as usize] = time as u32;
        }
        Belady {
            slots,
            next,
            time: 0,
            next_use: vec![NEVER; distinct as usize],
            resident: vec![false; distinct as usize],
            held: 0,
            heap: BinaryHeap::new(),
        }
    }

    fn evict(&mut self) {
        while let Some((next, page)) = self.heap.pop() {
            if self.resident[page as usize] && self.next_use[page as usize] == next {
                self.resident[page as usize] = false;
                self.held -= 1;
                return;
            }
        }
    }
}

impl Cache for Belady {
    fn access(&mut self, page: u32) -> bool {
        let next = self.next[self.time];
        self.time += 1;
        let hit = self.resident[page as usize];
        if !hit {
            if self.held == self.slots {
                self.evict();
            }
            self.held += 1;
            self.resident[page as usize] = true;
        }
        self.next_use[page as usize] = next;
        self.heap.push((next, page));
        hit
    }
}
