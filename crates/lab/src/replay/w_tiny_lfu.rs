//! W-TinyLFU (Einziger, Friedman, Manes, ACM ToS 2017): a page that leaves the window enters the main area only if it
//! was used more often than the victim there.
//!
//! A counter per page, halved periodically, replaces the paper's frequency sketch, which approximates such counters.

use engine::policy::list::{LinkedList, Links};

use super::Cache;

const WINDOW_PERCENT: usize = 1;
/// Part of the main area for pages used again there.
const PROTECTED_PERCENT: usize = 80;
const USES_MAX: u8 = 15;
/// Uses per slot after which all counters are halved.
const SAMPLE: usize = 10;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Nowhere,
    Window,
    Probation,
    Protected,
}

/// W-TinyLFU with a window of 1 %.
pub struct WTinyLfu {
    slots: usize,
    window_slots: usize,
    links: Links,
    place: Vec<Place>,
    uses: Vec<u8>,
    counted: usize,
    window: LinkedList,
    probation: LinkedList,
    protected: LinkedList,
}

impl WTinyLfu {
    /// A cache of `slots` pages; the trace has `distinct` pages.
    pub fn new(slots: usize, distinct: u32) -> Self {
        WTinyLfu {
            slots,
            window_slots: (slots * WINDOW_PERCENT / 100).max(1),
            links: Links::over(distinct),
            place: vec![Place::Nowhere; distinct as usize],
            uses: vec![0; distinct as usize],
            counted: 0,
            window: LinkedList::EMPTY,
            probation: LinkedList::EMPTY,
            protected: LinkedList::EMPTY,
        }
    }

    fn count(&mut self, page: u32) {
        let uses = &mut self.uses[page as usize];
        *uses = (*uses + 1).min(USES_MAX);
        self.counted += 1;
        if self.counted >= self.slots * SAMPLE {
            self.counted /= 2;
            self.uses.iter_mut().for_each(|uses| *uses /= 2);
        }
    }

    fn put(&mut self, page: u32, place: Place) {
        self.place[page as usize] = place;
        let list = match place {
            Place::Window => &mut self.window,
            Place::Probation => &mut self.probation,
            Place::Protected => &mut self.protected,
            Place::Nowhere => return,
        };
        self.links.push_head(list, page);
    }

    fn protect(&mut self, page: u32) {
        self.put(page, Place::Protected);
        if self.protected.len() > (self.slots - self.window_slots) * PROTECTED_PERCENT / 100 {
            let oldest = self.links.take_tail(&mut self.protected).expect("a list over its share is not empty");
            self.put(oldest, Place::Probation);
        }
    }

    /// Compares the page that leaves the window with the next victim of the main area; the page with more uses stays.
    fn admit_from_window(&mut self) {
        if self.window.len() <= self.window_slots {
            return;
        }
        let candidate = self.links.take_tail(&mut self.window).expect("a list over its share is not empty");
        if self.probation.len() + self.protected.len() < self.slots - self.window_slots {
            return self.put(candidate, Place::Probation);
        }
        let Some(victim) = self.probation.tail().or(self.protected.tail()) else {
            return self.put(candidate, Place::Nowhere);
        };
        if self.uses[candidate as usize] <= self.uses[victim as usize] {
            return self.put(candidate, Place::Nowhere);
        }
        let from = if !self.probation.is_empty() { &mut self.probation } else { &mut self.protected };
        self.links.unlink(from, victim);
        self.put(victim, Place::Nowhere);
        self.put(candidate, Place::Probation);
    }
}

impl Cache for WTinyLfu {
    fn access(&mut self, page: u32) -> bool {
        self.count(page);
        match self.place[page as usize] {
            Place::Nowhere => {
                self.put(page, Place::Window);
                self.admit_from_window();
                return false;
            }
            Place::Window => {
                self.links.unlink(&mut self.window, page);
                self.put(page, Place::Window);
            }
            Place::Probation => {
                self.links.unlink(&mut self.probation, page);
                self.protect(page);
            }
            Place::Protected => {
                self.links.unlink(&mut self.protected, page);
                self.protect(page);
            }
        }
        true
    }
}
