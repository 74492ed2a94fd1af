//! ARC (Megiddo and Modha, FAST 2003, figure 4): ghost hits shift the boundary between recency and frequency.

use engine::policy::list::{LinkedList, Links};

use super::Cache;

/// Queue that a page is in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Queue {
    Untracked,
    /// Accessed once, resident (T1) or in the ghost list (B1).
    Recent,
    RecentGhost,
    /// Accessed again, resident (T2) or in the ghost list (B2).
    Frequent,
    FrequentGhost,
}

/// Adaptive replacement.
pub struct Arc {
    slots: usize,
    links: Links,
    /// Queue by page.
    queue: Vec<Queue>,
    recent: LinkedList,
    recent_ghost: LinkedList,
    frequent: LinkedList,
    frequent_ghost: LinkedList,
    /// Target size of the recency list: the paper's p.
    recent_target: f64,
}

impl Arc {
    /// A cache of `slots` pages; the trace has `distinct` pages.
    pub fn new(slots: usize, distinct: u32) -> Self {
        Arc {
            slots,
            links: Links::over(distinct),
            queue: vec![Queue::Untracked; distinct as usize],
            recent: LinkedList::EMPTY,
            recent_ghost: LinkedList::EMPTY,
            frequent: LinkedList::EMPTY,
            frequent_ghost: LinkedList::EMPTY,
            recent_target: 0.0,
        }
    }

    fn put(&mut self, page: u32, queue: Queue) {
        self.queue[page as usize] = queue;
        let list = match queue {
            Queue::Recent => &mut self.recent,
            Queue::RecentGhost => &mut self.recent_ghost,
            Queue::Frequent => &mut self.frequent,
            Queue::FrequentGhost => &mut self.frequent_ghost,
            Queue::Untracked => return,
        };
        self.links.push_head(list, page);
    }

    fn is_full(&self) -> bool {
        self.recent.len() + self.frequent.len() == self.slots
    }

    /// The paper's REPLACE: turns one resident page into a ghost.
    fn replace(&mut self, from_frequent_ghost: bool) {
        let len = self.recent.len() as f64;
        let is_over_target = len > self.recent_target || (len == self.recent_target && from_frequent_ghost);
        if (!self.recent.is_empty() && is_over_target) || self.frequent.is_empty() {
            if let Some(page) = self.links.take_tail(&mut self.recent) {
                self.put(page, Queue::RecentGhost);
            }
        } else if let Some(page) = self.links.take_tail(&mut self.frequent) {
            self.put(page, Queue::FrequentGhost);
        }
    }

    /// Makes room in a full cache for a page without a ghost.
    fn make_room_for_new(&mut self) {
        let recent = self.recent.len() + self.recent_ghost.len();
        if recent >= self.slots {
            let Some(evicted) = self.links.take_tail(&mut self.recent_ghost) else {
                // All resident pages were seen once: the oldest leaves without a ghost.
                let evicted = self.links.take_tail(&mut self.recent).expect("a full cache is not empty");
                self.queue[evicted as usize] = Queue::Untracked;
                return;
            };
            self.queue[evicted as usize] = Queue::Untracked;
        } else if recent + self.frequent.len() + self.frequent_ghost.len() >= 2 * self.slots
            && let Some(evicted) = self.links.take_tail(&mut self.frequent_ghost)
        {
            self.queue[evicted as usize] = Queue::Untracked;
        }
        self.replace(false);
    }
}

impl Cache for Arc {
    fn access(&mut self, page: u32) -> bool {
        let (recent_ghosts, frequent_ghosts) = (self.recent_ghost.len() as f64, self.frequent_ghost.len() as f64);
        match self.queue[page as usize] {
            Queue::Recent => self.links.unlink(&mut self.recent, page),
            Queue::Frequent => self.links.unlink(&mut self.frequent, page),
            Queue::RecentGhost => {
                self.recent_target =
                    (self.recent_target + (frequent_ghosts / recent_ghosts).max(1.0)).min(self.slots as f64);
                self.links.unlink(&mut self.recent_ghost, page);
                if self.is_full() {
                    self.replace(false);
                }
                self.put(page, Queue::Frequent);
                return false;
            }
            Queue::FrequentGhost => {
                self.recent_target = (self.recent_target - (recent_ghosts / frequent_ghosts).max(1.0)).max(0.0);
                self.links.unlink(&mut self.frequent_ghost, page);
                if self.is_full() {
                    self.replace(true);
                }
                self.put(page, Queue::Frequent);
                return false;
            }
            Queue::Untracked => {
                if self.is_full() {
                    self.make_room_for_new();
                }
                self.put(page, Queue::Recent);
                return false;
            }
        }
        self.put(page, Queue::Frequent);
        true
    }
}
