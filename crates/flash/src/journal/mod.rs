//! The map journal (R9, docs/rules.md): the slots of clean pages, and the dirty regions, as absolute records.
//!
//! The journal has two halves that alternate. Each begins with a checkpoint of the whole map, followed by later
//! changes. When a half is nearly full, the other one gets a checkpoint while commits go into both. The other half is
//! used from its first block that is marked as complete. One commit takes all pending records: page data is flushed,
//! then the records are written to every log member and flushed there.
//!
//! - `format/journal.rs`: record formats; `commit.rs` writes, `load.rs` reads back.
//! - `dirty_regions.rs`: dirty regions (R8); `recent_writes.rs`: checksums of recent writes.

pub mod checkpoint;
pub mod commit;
pub mod dirty_regions;
pub mod load;
pub mod recent_writes;
mod replay;

use std::collections::BTreeSet;
use std::rc::Rc;

use seam::{BLOCK_BYTES, Nanos, Seam};

use crate::format::journal::{JOURNAL_AT, RECORDS_MAX, Record};
use crate::format::superblock::Superblock;
use crate::number::{CommitNo, HalfGeneration, MemberNo};
use crate::pages::state::PageState;
use crate::store::Inner;
use crate::wait::Reply;
use checkpoint::Checkpoint;

/// Maximum delay of records that no caller waits for.
const LAZY_DELAY: Nanos = Nanos::from_secs(1);
/// From this number of slots with pending records on, a commit starts without a delay.
pub const PENDING_MANY: usize = 1_024;
/// Spare buffers of the journal, so that an exhausted pool blocks no commit: destage waits for commits.
pub const SPARE_BLOCKS: usize = 4;

/// The position of the next block of a half.
#[derive(Clone, Copy, Debug, Default)]
pub struct JournalHead {
    /// The half, 0 or 1.
    pub half: u64,
    /// The half's generation.
    pub generation: HalfGeneration,
    /// Index of its next block.
    pub index: u32,
    /// Checksum of its last block.
    pub previous: u32,
}

/// The state of the journal's writer.
pub struct Journal<S: Seam> {
    /// Blocks of a half.
    pub blocks: u32,
    /// The position of the next commit.
    pub head: JournalHead,
    /// The last durable commit.
    pub sequence: CommitNo,
    /// Members that hold the whole half that commits go to.
    pub mirrors: Vec<MemberNo>,
    /// The checkpoint in progress.
    pub checkpoint: Option<Checkpoint>,
    /// A checkpoint is requested although the half has free blocks.
    pub checkpoint_requested: bool,
    /// The highest generation of a half.
    pub generation: HalfGeneration,
    /// Pending records other than slots' and recent writes', in order; a commit writes them first.
    pub pending_records: Vec<Record>,
    /// Members whose identity is recorded in the journal.
    pub recorded_members: BTreeSet<MemberNo>,
    /// Number of commits that have begun.
    pub commits_begun: u64,
    /// Number of commits that have succeeded.
    pub commits_done: u64,
    /// Tasks that wait for a commit, with the number of that commit.
    waiters: Vec<(u64, Reply<bool>)>,
    /// Pending records are to be written without delay.
    urgent: bool,
    /// A task is writing commits.
    running: bool,
    /// A task waits for the lazy delay to pass.
    timer_set: bool,
    /// Spare buffers for blocks.
    pub spare: Vec<S::BlockMut>,
    /// No more commits are written.
    stopped: bool,
}

impl<S: Seam> Journal<S> {
    /// A journal before its map is loaded.
    pub fn new(superblock: &Superblock) -> Self {
        Journal {
            blocks: (superblock.journal_bytes / 2 / BLOCK_BYTES as u64) as u32,
            head: JournalHead::default(),
            sequence: CommitNo(0),
            mirrors: Vec::new(),
            checkpoint: None,
            checkpoint_requested: false,
            generation: HalfGeneration(0),
            pending_records: Vec::new(),
            recorded_members: BTreeSet::new(),
            commits_begun: 0,
            commits_done: 0,
            waiters: Vec::new(),
            urgent: false,
            running: false,
            timer_set: false,
            spare: Vec::new(),
            stopped: false,
        }
    }

    /// The byte offset of a half's block on a device.
    pub fn block_offset(&self, half: u64, index: u32) -> u64 {
        JOURNAL_AT + (half * u64::from(self.blocks) + u64::from(index)) * BLOCK_BYTES as u64
    }

    /// Free blocks of the half that commits go to.
    pub fn free_blocks(&self) -> u32 {
        self.blocks.saturating_sub(self.head.index)
    }

    /// Maximum number of slots that fit a checkpoint.
    pub fn slots_max(&self) -> usize {
        let records = u64::from(self.blocks) * 3 / 4 * RECORDS_MAX as u64;
        (records as usize)
            .saturating_sub(dirty_regions::DIRTY_REGIONS_MAX + self.recent_writes_max() + records as usize / 50)
    }

    /// Maximum number of recent writes that fit a checkpoint.
    pub fn recent_writes_max(&self) -> usize {
        self.blocks as usize * RECORDS_MAX / 8
    }

    /// Stops the journal and fails its waiters.
    pub fn stop(&mut self) {
        self.stopped = true;
        self.pending_records.clear();
        self.waiters.drain(..).for_each(|(_, reply)| reply.send(false));
    }

    /// Wakes the waiters of commits that have ended.
    fn notify_waiters(&mut self) {
        let committed = self.commits_done;
        let (ended, waiting) =
            std::mem::take(&mut self.waiters).into_iter().partition(|(commit, _)| *commit <= committed);
        self.waiters = waiting;
        let ended: Vec<(u64, Reply<bool>)> = ended;
        ended.into_iter().for_each(|(_, reply)| reply.send(true));
    }
}

impl<S: Seam> PageState<S> {
    /// True when records are pending.
    pub fn has_pending(&self) -> bool {
        let slots = !self.unrecorded_slots.is_empty() || !self.dead.is_empty() || !self.implied_dead.is_empty();
        slots || !self.journal.pending_records.is_empty() || self.recent_writes.pending_count() > 0
    }

    /// Upper bound of the number of records in the next commit.
    fn pending_max(&self) -> usize {
        self.unrecorded_slots.len()
            + self.dead.len()
            + self.journal.pending_records.len()
            + self.recent_writes.pending_count()
            + self.dirty_regions.len()
    }
}

/// Starts a commit of all pending records.
pub fn start_commit<S: Seam>(inner: &Rc<Inner<S>>) {
    let starts_task = {
        let mut state = inner.pages.borrow_mut();
        // A map that is not loaded yet cannot be written.
        state.journal.urgent = true;
        state.is_ready() && !std::mem::replace(&mut state.journal.running, true)
    };
    if starts_task {
        inner.seam.spawn(commit::run(Rc::clone(inner)));
    }
}

/// Schedules a commit of the pending records within a second, or at once if there are many.
pub fn schedule_commit<S: Seam>(inner: &Rc<Inner<S>>) {
    let (is_many, set_timer) = {
        let mut state = inner.pages.borrow_mut();
        let idle = !state.is_ready() || (!state.has_pending() && !state.dirty_regions.any_settled());
        if idle {
            return;
        }
        let is_many = state.unrecorded_slots.len() + state.dead.len() >= PENDING_MANY;
        (is_many, !is_many && !std::mem::replace(&mut state.journal.timer_set, true))
    };
    if is_many {
        return start_commit(inner);
    }
    if set_timer {
        let (seam, weak) = (inner.seam.clone(), Rc::downgrade(inner));
        inner.seam.spawn(async move {
            seam.sleep(LAZY_DELAY).await;
            let Some(inner) = weak.upgrade() else { return };
            inner.pages.borrow_mut().journal.timer_set = false;
            if inner.pages.borrow().has_pending() {
                start_commit(&inner);
            }
        });
    }
}

/// Waits until all records that are pending now are durable. Returns false if the map is unusable, so they never become
/// durable.
pub async fn wait_durable<S: Seam>(inner: &Rc<Inner<S>>) -> bool {
    let reply = {
        let mut state = inner.pages.borrow_mut();
        if !state.is_ready() {
            return false;
        }
        let journal = &mut state.journal;
        let reply = Reply::default();
        let next_commit = journal.commits_begun + 1;
        journal.waiters.push((next_commit, reply.clone()));
        reply
    };
    start_commit(inner);
    reply.wait().await
}
