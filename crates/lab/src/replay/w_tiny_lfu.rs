//! W-TinyLFU (Einziger, Friedman, Manes, ACM ToS 2017): a page that leaves the window enters the main area only if it
//! was used more often than the victim there.
//!
//! A counter per page, halved periodically, replaces the paper's frequency sketch, which approximates such counters.

use engine::policy::list::{LinkedList, Links};

use super::Cache;

const WINDOW_PERCENT: usize = 1;
/// Part of the main area for pages that were used again there, in percent.
const PROTECTED_PERCENT: usize = 80;
const USES_MAX: u8 = 15;
/// Uses per slot after which all counters are halved.
const SAMPLE_PER_SLOT: usize = 10;

/// Queue that a page is in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Queue {
    Untracked,
    Window,
    Probation,
    Protected,
}

/// W-TinyLFU with a window of 1 %.
pub struct WTinyLfu {
    slots: usize,
    window_slots: usize,
    links: Links,
    /// Queue by page.
    queue: Vec<Queue>,
    uses: Vec<u8>,
    /// Uses counted since the last halving, and half of those before.
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
            queue: vec![Queue::Untracked; distinct as usize],
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
        if self.counted >= self.slots * SAMPLE_PER_SLOT {
            self.counted /= 2;
            self.uses.iter_mut().for_each(|uses| *uses /= 2);
        }
    }

    fn put(&mut self, page: u32, queue: Queue) {
        self.queue[page as usize] = queue;
        let list = match queue {
            Queue::Window => &mut self.window,
            Queue::Probation => &mut self.probation,
            Queue::Protected => &mut self.protected,
            Queue::Untracked => return,
        };
        self.links.push_head(list, page);
    }

    fn protect(&mut self, page: u32) {
        self.put(page, Queue::Protected);
        if self.protected.len() > (self.slots - self.window_slots) * PROTECTED_PERCENT / 100 {
            let oldest = self.links.take_tail(&mut self.protected).expect("a list over its limit is not empty");
            self.put(oldest, Queue::Probation);
        }
    }

    /// Compares the page that leaves the window with the next victim of the main area; the page with more uses stays.
    fn admit_from_window(&mut self) {
        if self.window.len() <= self.window_slots {
            return;
        }
        let candidate = self.links.take_tail(&mut self.window).expect("a list over its limit is not empty");
        if self.probation.len() + self.protected.len() < self.slots - self.window_slots {
            return self.put(candidate, Queue::Probation);
        }
        let Some(victim) = self.probation.tail().or(self.protected.tail()) else {
            return self.put(candidate, Queue::Untracked);
        };
        if self.uses[candidate as usize] <= self.uses[victim as usize] {
            return self.put(candidate, Queue::Untracked);
        }
        let victim_list = if !self.probation.is_empty() { &mut self.probation } else { &mut self.protected };
        self.links.unlink(victim_list, victim);
        self.put(victim, Queue::Untracked);
        self.put(candidate, Queue::Probation);
    }
}

impl Cache for WTinyLfu {
    fn access(&mut self, page: u32) -> bool {
        self.count(page);
        match self.queue[page as usize] {
            Queue::Untracked => {
                self.put(page, Queue::Window);
                self.admit_from_window();
                return false;
            }
            Queue::Window => {
                self.links.unlink(&mut self.window, page);
                self.put(page, Queue::Window);
            }
            Queue::Probation => {
                self.links.unlink(&mut self.probation, page);
                self.protect(page);
            }
            Queue::Protected => {
                self.links.unlink(&mut self.protected, page);
                self.protect(page);
            }
        }
        true
    }
}
