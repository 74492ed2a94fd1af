//! The map journal (R9): where clean pages are, and which regions are in flux, in records that say how something is.
//!
//! Two halves take turns. Each begins with a checkpoint of everything and goes on with what has changed since. When one is nearly full
//! the other one gets a checkpoint, while commits go on into both; it counts from its first block that says that it is complete.
//! Whatever is pending goes into one commit: page data is flushed, then the records are written on every log member and flushed there.
//!
//! - `record` formats are in `format/journal.rs`; `commit.rs` writes, `load.rs` reads back.
//! - `marks.rs`: regions in flux (R8); `ring.rs`: what was destaged last.

pub mod checkpoint;
pub mod commit;
pub mod load;
pub mod marks;
mod replay;
pub mod ring;

use std::collections::BTreeSet;
use std::rc::Rc;

use seam::{BLOCK_BYTES, Nanos, Seam};

use crate::format::journal::{JOURNAL_AT, RECORDS_MAX, Record};
use crate::format::superblock::Superblock;
use crate::pages::state::PageState;
use crate::store::Inner;
use crate::wait::Answer;
use checkpoint::Checkpoint;

/// What nobody waits for is written so late.
const LAZY: Nanos = Nanos::from_secs(1);
/// Slots with records to be written from which on nobody waits for the second to pass.
pub const PENDING_MANY: usize = 1_024;
/// Buffers that the journal keeps for itself, so that a full pool stops no commit: destage waits for it.
pub const SPARE_BLOCKS: usize = 4;

/// Where the next block of a half goes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Head {
    /// Which half.
    pub half: u64,
    /// The half's life.
    pub generation: u64,
    /// Its next block.
    pub index: u32,
    /// Checksum of the last one.
    pub previous: u32,
}

/// The journal as it is written.
pub struct Journal<S: Seam> {
    /// Blocks of a half.
    pub blocks: u32,
    /// Where commits go.
    pub head: Head,
    /// The last durable commit.
    pub sequence: u64,
    /// Members that hold all of the half that commits go to.
    pub mirrors: Vec<u32>,
    /// The checkpoint that is being written.
    pub checkpoint: Option<Checkpoint>,
    /// A checkpoint is to begin although there is room.
    pub renew: bool,
    /// The newest life that a half has had.
    pub generation: u64,
    /// Records in their order, before those of slots.
    pub events: Vec<Record>,
    /// Members whose identity the journal has.
    pub told: BTreeSet<u32>,
    /// Commits that began, and those that ended.
    pub begun: u64,
    /// Commits that ended well.
    pub done: u64,
    waiters: Vec<(u64, Answer<bool>)>,
    /// What is pending shall not wait.
    urgent: bool,
    /// A task is writing.
    running: bool,
    /// A task waits for the lazy second to pass.
    armed: bool,
    /// Buffers for blocks.
    pub spare: Vec<S::BlockMut>,
    /// Nothing is written any more.
    stopped: bool,
}

impl<S: Seam> Journal<S> {
    /// A journal that is not loaded.
    pub fn new(superblock: &Superblock) -> Self {
        Journal {
            blocks: (superblock.journal_bytes / 2 / BLOCK_BYTES as u64) as u32,
            head: Head::default(),
            sequence: 0,
            mirrors: Vec::new(),
            checkpoint: None,
            renew: false,
            generation: 0,
            events: Vec::new(),
            told: BTreeSet::new(),
            begun: 0,
            done: 0,
            waiters: Vec::new(),
            urgent: false,
            running: false,
            armed: false,
            spare: Vec::new(),
            stopped: false,
        }
    }

    /// First byte of a block of a half on a device.
    pub fn place(&self, half: u64, index: u32) -> u64 {
        JOURNAL_AT + (half * u64::from(self.blocks) + u64::from(index)) * BLOCK_BYTES as u64
    }

    /// Blocks that are left of the half that commits go to, and are left alone for the end of a checkpoint.
    pub fn room(&self) -> u32 {
        self.blocks.saturating_sub(self.head.index)
    }

    /// Slots that a checkpoint has room for.
    pub fn slots_max(&self) -> usize {
        let records = u64::from(self.blocks) * 3 / 4 * RECORDS_MAX as u64;
        (records as usize).saturating_sub(marks::MARKS_MAX + self.ring_max() + records as usize / 50)
    }

    /// Destaged blocks that a checkpoint has room for.
    pub fn ring_max(&self) -> usize {
        self.blocks as usize * RECORDS_MAX / 8
    }

    /// Nothing is written any more; who waits is told so.
    pub fn stop(&mut self) {
        self.stopped = true;
        self.events.clear();
        self.waiters.drain(..).for_each(|(_, answer)| answer.give(false));
    }

    /// Answers who waits for commits that have ended.
    fn answer(&mut self) {
        let done = self.done;
        let (over, waiting) = std::mem::take(&mut self.waiters).into_iter().partition(|(target, _)| *target <= done);
        self.waiters = waiting;
        let over: Vec<(u64, Answer<bool>)> = over;
        over.into_iter().for_each(|(_, answer)| answer.give(true));
    }
}

impl<S: Seam> PageState<S> {
    /// True when something is to be written.
    pub fn has_pending(&self) -> bool {
        let slots = !self.dirty.is_empty() || !self.dead.is_empty() || !self.gone.is_empty();
        slots || !self.journal.events.is_empty() || self.rings.unsaved() > 0
    }

    /// Records that the next commit may have.
    fn pending_max(&self) -> usize {
        self.dirty.len() + self.dead.len() + self.journal.events.len() + self.rings.unsaved() + self.marks.len()
    }
}

/// Everything pending is to be written now.
pub fn write_now<S: Seam>(inner: &Rc<Inner<S>>) {
    let start = {
        let mut state = inner.pages.borrow_mut();
        // Before the map was read nothing is known that could be written.
        state.journal.urgent = true;
        state.is_ready() && !std::mem::replace(&mut state.journal.running, true)
    };
    if start {
        inner.seam.spawn(commit::run(Rc::clone(inner)));
    }
}

/// What is pending is to be written within a second, or sooner if it is much.
pub fn write_soon<S: Seam>(inner: &Rc<Inner<S>>) {
    let (much, arm) = {
        let mut state = inner.pages.borrow_mut();
        let idle = !state.is_ready() || (!state.has_pending() && !state.marks.any_settled());
        if idle {
            return;
        }
        let much = state.dirty.len() + state.dead.len() >= PENDING_MANY;
        (much, !much && !std::mem::replace(&mut state.journal.armed, true))
    };
    if much {
        return write_now(inner);
    }
    if arm {
        let (seam, weak) = (inner.seam.clone(), Rc::downgrade(inner));
        inner.seam.spawn(async move {
            seam.sleep(LAZY).await;
            let Some(inner) = weak.upgrade() else { return };
            inner.pages.borrow_mut().journal.armed = false;
            if inner.pages.borrow().has_pending() {
                write_now(&inner);
            }
        });
    }
}

/// Waits until everything that is pending now is durable. False when that will never be: the map is void.
pub async fn wait_durable<S: Seam>(inner: &Rc<Inner<S>>) -> bool {
    let answer = {
        let mut state = inner.pages.borrow_mut();
        if !state.is_ready() {
            return false;
        }
        let journal = &mut state.journal;
        let answer = Answer::default();
        let target = journal.begun + 1;
        journal.waiters.push((target, answer.clone()));
        answer
    };
    write_now(inner);
    answer.wait().await
}
