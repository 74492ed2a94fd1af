//! Belady's optimum: evicts the page whose next use is farthest. It needs the future, so it is a bound, not a policy.

use std::collections::BinaryHeap;

use super::Cache;

/// Next use of a page that is never used again.
const NEVER: u32 = u32::MAX;

/// The bound for demand paging: every missed page is admitted.
pub struct Belady {
    slots: usize,
    /// By access: time of the page's next use.
    next_by_access: Vec<u32>,
    time: usize,
    /// By page: time of its next use, as of its last use.
    next_by_page: Vec<u32>,
    resident: Vec<bool>,
    resident_count: usize,
    /// `(next use, page)`, farthest first. An entry is stale when its time differs from the page's.
    heap: BinaryHeap<(u32, u32)>,
}

impl Belady {
    /// A cache of `slots` pages; `accesses` is the whole trace.
    pub fn new(slots: usize, accesses: &[u32], distinct: u32) -> Self {
        let mut next_by_access = vec![NEVER; accesses.len()];
        let mut next_by_page = vec![NEVER; distinct as usize];
        for (time, page) in accesses.iter().enumerate().rev() {
            next_by_access[time] = next_by_page[*page as usize];
            next_by_page[*page as usize] = time as u32;
        }
        Belady {
            slots,
            next_by_access,
            time: 0,
            next_by_page: vec![NEVER; distinct as usize],
            resident: vec![false; distinct as usize],
            resident_count: 0,
            heap: BinaryHeap::new(),
        }
    }

    fn evict(&mut self) {
        while let Some((next, page)) = self.heap.pop() {
            if self.resident[page as usize] && self.next_by_page[page as usize] == next {
                self.resident[page as usize] = false;
                self.resident_count -= 1;
                return;
            }
        }
    }
}

impl Cache for Belady {
    fn access(&mut self, page: u32) -> bool {
        let next = self.next_by_access[self.time];
        self.time += 1;
        let hit = self.resident[page as usize];
        if !hit {
            if self.resident_count == self.slots {
                self.evict();
            }
            self.resident_count += 1;
            self.resident[page as usize] = true;
        }
        self.next_by_page[page as usize] = next;
        self.heap.push((next, page));
        hit
    }
}
