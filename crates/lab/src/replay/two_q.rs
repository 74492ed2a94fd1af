//! 2Q (Johnson and Shasha, VLDB 1994, the full version): a FIFO for new pages, its ghost, and an LRU for pages that
//! return.

use engine::policy::list::{LinkedList, Links};

use super::Cache;

/// The paper's recommendation: a quarter of the cache for new pages (`Kin`), a ghost of half the cache (`Kout`).
const NEW_PERCENT: usize = 25;
const GHOST_PERCENT: usize = 50;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Nowhere,
    New,
    Ghost,
    Main,
}

/// The full version of 2Q.
pub struct TwoQ {
    slots: usize,
    links: Links,
    place: Vec<Place>,
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
            place: vec![Place::Nowhere; distinct as usize],
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
            let page = self.links.take_tail(&mut self.new).expect("a list over its share is not empty");
            self.place[page as usize] = Place::Nowhere;
            self.add_ghost(page);
        } else if let Some(page) = self.links.take_tail(&mut self.main) {
            self.place[page as usize] = Place::Nowhere;
        }
    }

    fn add_ghost(&mut self, page: u32) {
        let ghost_max = self.slots * GHOST_PERCENT / 100;
        if ghost_max == 0 {
            return;
        }
        if self.ghost.len() == ghost_max {
            let oldest = self.links.take_tail(&mut self.ghost).expect("a full list is not empty");
            self.place[oldest as usize] = Place::Nowhere;
        }
        self.links.push_head(&mut self.ghost, page);
        self.place[page as usize] = Place::Ghost;
    }
}

impl Cache for TwoQ {
    fn access(&mut self, page: u32) -> bool {
        match self.place[page as usize] {
            Place::New => true,
            Place::Main => {
                self.links.unlink(&mut self.main, page);
                self.links.push_head(&mut self.main, page);
                true
            }
            Place::Ghost => {
                self.links.unlink(&mut self.ghost, page);
                self.evict_if_full();
                self.links.push_head(&mut self.main, page);
                self.place[page as usize] = Place::Main;
                false
            }
            Place::Nowhere => {
                self.evict_if_full();
                self.links.push_head(&mut self.new, page);
                self.place[page as usize] = Place::New;
                false
            }
        }
    }
}
