//! S3-FIFO (Yang and others, SOSP 2023): a small FIFO, its ghost, and a main FIFO with a 2-bit use counter.

use engine::policy::list::{LinkedList, Links};

use super::Cache;

/// Size of the small FIFO in percent of the slots.
const SMALL_PERCENT: usize = 10;
/// Maximum size of the ghost in percent of the slots.
const GHOST_PERCENT: usize = 90;
/// Hits in the small FIFO that promote a page to the main FIFO.
const HITS_FOR_MAIN: u8 = 2;
const HITS_MAX: u8 = 3;

/// Queue that a page is in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Queue {
    Untracked,
    Small,
    Ghost,
    Main,
}

/// S3-FIFO with the parameters of its authors' simulator.
pub struct S3Fifo {
    slots: usize,
    links: Links,
    /// Queue by page.
    queue: Vec<Queue>,
    hits: Vec<u8>,
    small: LinkedList,
    ghost: LinkedList,
    main: LinkedList,
}

impl S3Fifo {
    /// A cache of `slots` pages; the trace has `distinct_pages` different pages.
    pub fn new(slots: usize, distinct_pages: u32) -> Self {
        S3Fifo {
            slots,
            links: Links::over(distinct_pages),
            queue: vec![Queue::Untracked; distinct_pages as usize],
            hits: vec![0; distinct_pages as usize],
            small: LinkedList::EMPTY,
            ghost: LinkedList::EMPTY,
            main: LinkedList::EMPTY,
        }
    }

    fn evict_if_full(&mut self) {
        let main_slots = self.slots - self.slots * SMALL_PERCENT / 100;
        while self.small.len() + self.main.len() >= self.slots {
            if self.main.len() > main_slots || self.small.is_empty() {
                self.evict_from_main();
            } else {
                self.evict_from_small();
            }
        }
    }

    fn evict_from_small(&mut self) {
        while let Some(page) = self.links.take_tail(&mut self.small) {
            if self.hits[page as usize] >= HITS_FOR_MAIN {
                self.enter_main(page);
            } else {
                self.queue[page as usize] = Queue::Untracked;
                return self.add_ghost(page);
            }
        }
    }

    fn evict_from_main(&mut self) {
        while let Some(page) = self.links.take_tail(&mut self.main) {
            let hits = &mut self.hits[page as usize];
            if *hits == 0 {
                self.queue[page as usize] = Queue::Untracked;
                return;
            }
            *hits = (*hits).min(HITS_MAX) - 1;
            self.links.push_head(&mut self.main, page);
        }
    }

    fn enter_main(&mut self, page: u32) {
        self.links.push_head(&mut self.main, page);
        self.queue[page as usize] = Queue::Main;
        self.hits[page as usize] = 0;
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

impl Cache for S3Fifo {
    fn access(&mut self, page: u32) -> bool {
        match self.queue[page as usize] {
            Queue::Small | Queue::Main => {
                self.hits[page as usize] = self.hits[page as usize].saturating_add(1);
                return true;
            }
            Queue::Ghost => {
                self.links.unlink(&mut self.ghost, page);
                self.queue[page as usize] = Queue::Untracked;
                self.evict_if_full();
                self.enter_main(page);
            }
            Queue::Untracked => {
                self.evict_if_full();
                self.links.push_head(&mut self.small, page);
                self.queue[page as usize] = Queue::Small;
                self.hits[page as usize] = 0;
            }
        }
        false
    }
}
