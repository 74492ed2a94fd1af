//! LIRS (Jiang and Zhang, SIGMETRICS 2002): ranks pages by the time between their last two uses.

use engine::policy::list::{Links, List};

use super::Cache;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Nowhere,
    /// Low inter-reference recency: resident and protected.
    Low,
    /// High inter-reference recency: resident, in the queue.
    High,
    /// High inter-reference recency: evicted, remembered in the stack.
    Gone,
}

/// LIRS with 1 % of the slots for pages of high recency. It remembers at most as many evicted pages as are resident.
pub struct Lirs {
    slots: usize,
    low_max: usize,
    state: Vec<State>,
    /// Pages by recency, youngest first; the bottom is always a low page.
    stack: List,
    stack_links: Links,
    /// Resident high pages, next victim last.
    queue: List,
    /// Remembered evicted pages, oldest last. No page is on both lists.
    gone: List,
    links: Links,
    low: usize,
}

impl Lirs {
    /// `slots` pages of `distinct`.
    pub fn new(slots: usize, distinct: u32) -> Self {
        Lirs {
            slots,
            low_max: slots - (slots / 100).max(1).min(slots),
            state: vec![State::Nowhere; distinct as usize],
            stack: List::EMPTY,
            stack_links: Links::over(distinct),
            queue: List::EMPTY,
            gone: List::EMPTY,
            links: Links::over(distinct),
            low: 0,
        }
    }

    fn raise(&mut self, page: u32) {
        if self.stack_links.is_linked(page) {
            self.stack_links.unlink(&mut self.stack, page);
        }
        self.stack_links.push_head(&mut self.stack, page);
    }

    /// Removes pages from the bottom of the stack until a low page is there: pages below it could never become low
    /// again.
    fn prune(&mut self) {
        while let Some(page) = self.stack.tail() {
            match self.state[page as usize] {
                State::Low => return,
                State::Gone => self.forget(page),
                State::High | State::Nowhere => self.stack_links.unlink(&mut self.stack, page),
            }
        }
    }

    fn forget(&mut self, page: u32) {
        self.links.unlink(&mut self.gone, page);
        self.stack_links.unlink(&mut self.stack, page);
        self.state[page as usize] = State::Nowhere;
    }

    /// Makes `page`, which is in the stack, a low page. If there are too many, the low page at the bottom becomes high.
    fn became_low(&mut self, page: u32) {
        self.state[page as usize] = State::Low;
        self.low += 1;
        self.raise(page);
        self.prune();
        if self.low > self.low_max {
            let bottom = self.stack_links.take_tail(&mut self.stack).expect("low pages are in the stack");
            self.state[bottom as usize] = State::High;
            self.low -= 1;
            self.links.push_head(&mut self.queue, bottom);
            self.prune();
        }
    }

    fn evict(&mut self) {
        let page = self.links.take_tail(&mut self.queue).expect("the last slot is never a low page's");
        if !self.stack_links.is_linked(page) {
            self.state[page as usize] = State::Nowhere;
            return;
        }
        self.state[page as usize] = State::Gone;
        self.links.push_head(&mut self.gone, page);
        if self.gone.len() > self.slots {
            let oldest = self.gone.tail().expect("a list over its bound is not empty");
            self.forget(oldest);
        }
    }
}

impl Cache for Lirs {
    fn access(&mut self, page: u32) -> bool {
        match self.state[page as usize] {
            State::Low => {
                self.raise(page);
                self.prune();
                return true;
            }
            State::High => {
                self.links.unlink(&mut self.queue, page);
                if self.stack_links.is_linked(page) {
                    self.became_low(page);
                } else {
                    self.links.push_head(&mut self.queue, page);
                    self.raise(page);
                }
                return true;
            }
            State::Gone | State::Nowhere => {}
        }
        if self.low + self.queue.len() == self.slots {
            self.evict();
        }
        let remembered = self.state[page as usize] == State::Gone;
        if remembered {
            self.links.unlink(&mut self.gone, page);
        }
        if remembered || self.low < self.low_max {
            self.became_low(page);
        } else {
            self.state[page as usize] = State::High;
            self.links.push_head(&mut self.queue, page);
            self.raise(page);
            self.prune();
        }
        false
    }
}
