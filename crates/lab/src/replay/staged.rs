//! The flash cache: a stage in memory, and flash pages under an admission rule of the engine and CLOCK eviction.

use std::collections::VecDeque;

use engine::policy::list::{LinkedList, Links};
use engine::policy::promotion::{Admission, Verdict};

use super::Cache;
use super::engine_policy::mix_bits;

/// Maximum of the use counter: two bits, as in the flash store.
const USES_MAX: u8 = 3;
/// Divisor of the window: a use counts only after `slots / WINDOW_DIVISOR` accesses since the last counted one.
const WINDOW_DIVISOR: usize = 64;

/// State of a page on flash.
#[derive(Clone, Copy)]
struct Resident {
    present: bool,
    uses: u8,
    /// Time of the last counted use.
    last_counted: u32,
}

/// Flash with a stage in memory in front.
pub struct Staged<A> {
    admission: A,
    stage_slots: usize,
    flash_slots: usize,
    /// Accesses between two counted uses of a page.
    window: u32,
    /// Accesses so far.
    now: u32,
    promotions: u64,
    stage: LinkedList,
    links: Links,
    flash: Vec<Resident>,
    /// Pages on flash; the CLOCK hand is at the front.
    clock_queue: VecDeque<u32>,
}

impl<A: Admission> Staged<A> {
    /// A cache of `slots` pages, `stage` of them in memory; the trace has `distinct` pages.
    pub fn new(admission: A, stage: usize, slots: usize, distinct: u32) -> Self {
        assert!(stage <= slots, "the size includes the stage");
        Staged {
            admission,
            stage_slots: stage,
            flash_slots: slots - stage,
            window: (slots / WINDOW_DIVISOR) as u32,
            now: 0,
            promotions: 0,
            stage: LinkedList::EMPTY,
            links: Links::over(distinct),
            flash: vec![Resident { present: false, uses: 0, last_counted: 0 }; distinct as usize],
            clock_queue: VecDeque::with_capacity(slots - stage),
        }
    }

    fn promote(&mut self, page: u32) {
        while self.clock_queue.len() >= self.flash_slots {
            let Some(oldest) = self.clock_queue.pop_front() else { return };
            let resident = &mut self.flash[oldest as usize];
            if resident.uses == 0 {
                resident.present = false;
            } else {
                resident.uses -= 1;
                self.clock_queue.push_back(oldest);
            }
        }
        self.promotions += 1;
        self.flash[page as usize] = Resident { present: true, uses: 0, last_counted: self.now };
        self.clock_queue.push_back(page);
    }

    fn put_on_stage(&mut self, page: u32) {
        if self.stage_slots == 0 || self.links.is_linked(page) {
            return;
        }
        if self.stage.len() == self.stage_slots {
            self.links.take_tail(&mut self.stage);
        }
        self.links.push_head(&mut self.stage, page);
    }
}

impl<A: Admission> Cache for Staged<A> {
    fn access(&mut self, page: u32) -> bool {
        self.now = self.now.wrapping_add(1);
        let resident = &mut self.flash[page as usize];
        if resident.present {
            if self.now.wrapping_sub(resident.last_counted) >= self.window {
                resident.uses = (resident.uses + 1).min(USES_MAX);
                resident.last_counted = self.now;
            }
            return true;
        }
        let staged = self.links.is_linked(page);
        if self.admission.record_use(mix_bits(page)) == Verdict::Promote {
            if staged {
                self.links.unlink(&mut self.stage, page);
            }
            self.promote(page);
        } else {
            self.put_on_stage(page);
        }
        staged
    }

    fn admitted(&self) -> Option<u64> {
        Some(self.promotions)
    }
}
