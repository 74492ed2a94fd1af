//! Caches of page numbers alone, to be played over a trace.

use std::collections::{BTreeMap, VecDeque};

use engine::policy::promotion::{Admission, Verdict};

/// What came of a trace.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Pages asked for.
    pub accesses: u64,
    /// Pages that were not there.
    pub misses: u64,
    /// Pages written to flash.
    pub writes: u64,
}

impl Outcome {
    /// Misses an access.
    pub fn miss_ratio(&self) -> f64 {
        self.misses as f64 / self.accesses as f64
    }
}

/// Least recently used, everything admitted.
pub fn lru(pages: &[u32], slots: u64) -> Outcome {
    let mut outcome = Outcome { accesses: pages.len() as u64, ..Outcome::default() };
    let mut last_use = vec![None; pages.iter().max().map_or(0, |page| *page as usize + 1)];
    let mut order = BTreeMap::new();
    for (time, page) in pages.iter().enumerate() {
        match last_use[*page as usize].replace(time) {
            Some(before) => drop(order.remove(&before)),
            None => {
                outcome.misses += 1;
                if order.len() as u64 == slots {
                    let (_, oldest) = order.pop_first().expect("the cache is full, so not empty");
                    last_use[oldest as usize] = None;
                }
            }
        }
        order.insert(time, *page);
    }
    Outcome { writes: outcome.misses, ..outcome }
}

#[derive(Clone, Copy)]
struct Resident {
    uses: u8,
    last: u64,
}

/// A stage in memory, and behind it a flash whose pages are admitted by a policy and leave by a clock with two bits.
pub struct Staged<A> {
    policy: A,
    stage_slots: usize,
    flash_slots: usize,
    window: u64,
    stage: VecDeque<u32>,
    /// By page.
    staged: Vec<bool>,
    flash: Vec<Option<Resident>>,
    hand: VecDeque<u32>,
}

impl<A: Admission> Staged<A> {
    /// `stage` of the `slots` pages are the memory's.
    pub fn new(policy: A, stage: u64, slots: u64) -> Self {
        let (staged, flash, hand) = Default::default();
        let flash_slots = (slots - stage) as usize;
        Staged {
            policy,
            stage_slots: stage as usize,
            flash_slots,
            window: slots / 64,
            stage: VecDeque::new(),
            staged,
            flash,
            hand,
        }
    }

    /// Plays a trace.
    pub fn play(mut self, pages: &[u32]) -> Outcome {
        let most = pages.iter().max().map_or(0, |page| *page as usize + 1);
        self.staged.resize(most, false);
        self.flash.resize(most, None);
        let mut outcome = Outcome::default();
        for page in pages {
            outcome.accesses += 1;
            let now = outcome.accesses;
            if let Some(resident) = &mut self.flash[*page as usize] {
                if now - resident.last >= self.window {
                    resident.uses = (resident.uses + 1).min(3);
                    resident.last = now;
                }
                continue;
            }
            let staged = self.staged[*page as usize];
            outcome.misses += u64::from(!staged);
            match self.policy.used(mixed(*page)) {
                Verdict::Earned => {
                    self.staged[*page as usize] = false;
                    self.stage.retain(|other| !staged || other != page);
                    outcome.writes += 1;
                    self.promote(*page, now);
                }
                Verdict::First | Verdict::Burst if !staged && self.stage_slots > 0 => {
                    if self.stage.len() == self.stage_slots {
                        let oldest = self.stage.pop_front().expect("the stage is full, so not empty");
                        self.staged[oldest as usize] = false;
                    }
                    self.stage.push_back(*page);
                    self.staged[*page as usize] = true;
                }
                Verdict::First | Verdict::Burst => {}
            }
        }
        outcome
    }

    fn promote(&mut self, page: u32, now: u64) {
        while self.hand.len() >= self.flash_slots {
            let oldest = self.hand.pop_front().expect("the flash is full, so not empty");
            let resident = self.flash[oldest as usize].as_mut().expect("what the hand points at is there");
            if resident.uses == 0 {
                self.flash[oldest as usize] = None;
            } else {
                resident.uses -= 1;
                self.hand.push_back(oldest);
            }
        }
        self.flash[page as usize] = Some(Resident { uses: 0, last: now });
        self.hand.push_back(page);
    }
}

fn mixed(page: u32) -> u64 {
    lab::random::Random::new(u64::from(page), 1).draw()
}
