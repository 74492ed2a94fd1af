//! LIRS (Jiang and Zhang, SIGMETRICS 2002): ranks pages by the time between their last two uses.

use engine::policy::list::{LinkedList, Links};

use super::Cache;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Untracked,
    /// Low inter-reference recency: resident and protected.
    Low,
    /// High inter-reference recency: resident, in the queue.
    High,
    /// High inter-reference recency: evicted, but still in the stack.
    Ghost,
}

/// LIRS with 1 % of the slots for pages of high recency. It has at most as many ghosts as resident pages.
pub struct Lirs {
    slots: usize,
    low_max: usize,
    state: Vec<State>,
    /// Pages by recency, youngest first; the bottom is always a low page.
    stack: LinkedList,
    stack_links: Links,
    /// Resident high pages, next victim last.
    queue: LinkedList,
    /// Evicted pages that are still in the stack, oldest last. No page is on both lists.
    ghosts: LinkedList,
    links: Links,
    /// Number of low pages.
    low_count: usize,
}

impl Lirs {
    /// A cache of `slots` pages; the trace has `distinct` pages.
    pub fn new(slots: usize, distinct: u32) -> Self {
        Lirs {
            slots,
            low_max: slots - (slots / 100).max(1).min(slots),
            state: vec![State::Untracked; distinct as usize],
            stack: LinkedList::EMPTY,
            stack_links: Links::over(distinct),
            queue: LinkedList::EMPTY,
            ghosts: LinkedList::EMPTY,
            links: Links::over(distinct),
            low_count: 0,
        }
    }

    fn move_to_top(&mut self, page: u32) {
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
                State::Ghost => self.drop_ghost(page),
                State::High | State::Untracked => self.stack_links.unlink(&mut self.stack, page),
            }
        }
    }

    fn drop_ghost(&mut self, page: u32) {
        self.links.unlink(&mut self.ghosts, page);
        self.stack_links.unlink(&mut self.stack, page);
        self.state[page as usize] = State::Untracked;
    }

    /// Makes `page`, which is in the stack, a low page. If there are too many, the low page at the bottom becomes high.
    fn make_low(&mut self, page: u32) {
        self.state[page as usize] = State::Low;
        self.low_count += 1;
        self.move_to_top(page);
        self.prune();
        if self.low_count > self.low_max {
            let bottom = self.stack_links.take_tail(&mut self.stack).expect("low pages are in the stack");
            self.state[bottom as usize] = State::High;
            self.low_count -= 1;
            self.links.push_head(&mut self.queue, bottom);
            self.prune();
        }
    }

    fn evict(&mut self) {
        let page = self.links.take_tail(&mut self.queue).expect("low pages never occupy all slots");
        if !self.stack_links.is_linked(page) {
            self.state[page as usize] = State::Untracked;
            return;
        }
        self.state[page as usize] = State::Ghost;
        self.links.push_head(&mut self.ghosts, page);
        if self.ghosts.len() > self.slots {
            let oldest = self.ghosts.tail().expect("a list over its bound is not empty");
            self.drop_ghost(oldest);
        }
    }
}

impl Cache for Lirs {
    fn access(&mut self, page: u32) -> bool {
        match self.state[page as usize] {
            State::Low => {
                self.move_to_top(page);
                self.prune();
                return true;
            }
            State::High => {
                self.links.unlink(&mut self.queue, page);
                if self.stack_links.is_linked(page) {
                    self.make_low(page);
                } else {
                    self.links.push_head(&mut self.queue, page);
                    self.move_to_top(page);
                }
                return true;
            }
            State::Ghost | State::Untracked => {}
        }
        if self.low_count + self.queue.len() == self.slots {
            self.evict();
        }
        let is_ghost = self.state[page as usize] == State::Ghost;
        if is_ghost {
            self.links.unlink(&mut self.ghosts, page);
        }
        if is_ghost || self.low_count < self.low_max {
            self.make_low(page);
        } else {
            self.state[page as usize] = State::High;
            self.links.push_head(&mut self.queue, page);
            self.move_to_top(page);
            self.prune();
        }
        false
    }
}
