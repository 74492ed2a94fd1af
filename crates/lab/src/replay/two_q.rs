//! 2Q (Johnson and Shasha, VLDB 1994, the full version): a FIFO for new pages, its ghost, and an LRU for pages that
//! return.

use engine::policy::list::{LinkedList, Links};

use super::Cache;

/// The paper's recommendation: a quarter of the cache for new pages (`Kin`), a ghost of half the cache (`Kout`).
const NEW_PERCENT: usize = 25;
const GHOST_PERCENT: usize = 50;

/// Queue that a page is in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Queue {
    Untracked,
    New,
    Ghost,
    Main,
}

/// The full version of 2Q.
pub struct TwoQ {
    slots: usize,
    links: Links,
    /// Queue by page.
    queue: Vec<Queue>,
    new: LinkedList,
    ghost: LinkedList,
    main: LinkedList,
}

impl TwoQ {
    /// A cache of `slots` pages; the trace has `distinct` pages.
    pub fn new(slots: usize, distinct: u32) -> Self {
        TwoQ {
            slots,
            links: Links::over(distinct),
            queue: vec![Queue::Untracked; distinct as usize],
            new: LinkedList::EMPTY,
            ghost: LinkedList::EMPTY,
            main: LinkedList::EMPTY,
        }
    }

    fn evict_if_full(&mut self) {
        if self.new.len() + self.main.len() < self.slots {
            return;
        }
        if self.new.len() > self.slots * NEW_PERCENT / 100 {
            let page = self.links.take_tail(&mut self.new).expect("a list over its limit is not empty");
            self.queue[page as usize] = Queue::Untracked;
            self.add_ghost(page);
        } else if let Some(page) = self.links.take_tail(&mut self.main) {
            self.queue[page as usize] = Queue::Untracked;
        }
    }

    fn add_ghost(&mut self, page: u32) {
        let ghost_max = self.slots * GHOST_PERCENT / 100;
        if ghost_max == 0 {
            return;
        }
        if self.ghost.len() == ghost_max {
            let oldest = self.links.take_tail(&mut self.ghost).expect("a full list is not empty");
            self.queue[oldest as usize] = Queue::Untracked;
        }
        self.links.push_head(&mut self.ghost, page);
        self.queue[page as usize] = Queue::Ghost;
    }
}

impl Cache for TwoQ {
    fn access(&mut self, page: u32) -> bool {
        match self.queue[page as usize] {
            Queue::New => true,
            Queue::Main => {
                self.links.unlink(&mut self.main, page);
                self.links.push_head(&mut self.main, page);
                true
            }
            Queue::Ghost => {
                self.links.unlink(&mut self.ghost, page);
                self.evict_if_full();
                self.links.push_head(&mut self.main, page);
                self.queue[page as usize] = Queue::Main;
                false
            }
            Queue::Untracked => {
                self.evict_if_full();
                self.links.push_head(&mut self.new, page);
                self.queue[page as usize] = Queue::New;
                false
            }
        }
    }
}
