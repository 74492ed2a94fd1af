//! The state of the map journal's writer: its position, its pending records and its waiters.

use std::collections::BTreeSet;

use seam::{BLOCK_BYTES, Disk, Seam};

use super::dirty_regions::DIRTY_REGIONS_MAX;
use crate::device::Device;
use crate::format::journal::{JOURNAL_AT, JournalRecord, RECORDS_MAX};
use crate::format::superblock::Superblock;
use crate::number::{CommitNo, HalfGeneration, MemberNo};
use task_sync::Reply;

/// A checkpoint takes at most this percentage of a half; the rest is for commits beside and after it.
const CHECKPOINT_PERCENT_MAX: u64 = 75;
/// Part of a checkpoint for the records of segments, volumes and members: one in this many records.
const OTHER_RECORDS_DIVISOR: usize = 50;
/// Part of a half for recent writes: one in this many records.
const RECENT_WRITES_DIVISOR: usize = 8;

/// One of the two halves of the journal: commits go to one, and a checkpoint into the other replaces it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Half {
    /// The half at the lower offset.
    #[default]
    First,
    /// The half after it.
    Second,
}

impl Half {
    /// Both halves, in the order of their offsets.
    pub const ALL: [Half; 2] = [Half::First, Half::Second];

    /// The half that this one is not.
    pub fn other(self) -> Half {
        match self {
            Half::First => Half::Second,
            Half::Second => Half::First,
        }
    }
}

/// The position of the next block of a half.
#[derive(Clone, Copy, Debug, Default)]
pub struct JournalHead {
    /// The half.
    pub half: Half,
    /// The half's generation.
    pub generation: HalfGeneration,
    /// Index of its next block.
    pub block_index: u32,
    /// Checksum of its last block.
    pub previous_checksum: u32,
}

/// The state of the journal's writer.
///
/// Commits have two numbers. A [`CommitNo`] is on the devices and orders the commits with records, over all openings.
/// An ordinal counts all commits since the opening, those without records included, and orders the waits for them.
pub struct Journal<S: Seam> {
    /// Blocks of a half.
    pub half_blocks: u32,
    /// The position of the next commit.
    pub head: JournalHead,
    /// The last durable commit. These numbers are on the devices and continue after an opening. A commit without
    /// records gets one only if it completes a checkpoint.
    pub last_durable_commit: CommitNo,
    /// Log members that hold the whole half that commits go to.
    pub journal_members: Vec<MemberNo>,
    /// The checkpoint in progress.
    pub checkpoint: Option<Checkpoint>,
    /// The next commit is to begin a checkpoint, even if the half has free blocks.
    pub is_checkpoint_requested: bool,
    /// The highest generation of a half.
    pub generation: HalfGeneration,
    /// Pending records other than slots' and recent writes', in order; a commit writes them first.
    pub pending_records: Vec<JournalRecord>,
    /// Members whose identity is recorded in the journal.
    pub recorded_members: BTreeSet<MemberNo>,
    /// Number of commits that have begun since the opening: the ordinal of the last one.
    pub commits_begun: u64,
    /// The ordinal of the last commit that has succeeded.
    pub commits_done: u64,
    /// Tasks that wait for a commit, each with the commit's ordinal.
    waiters: Vec<(u64, Reply<bool>)>,
    /// Pending records are to be written without delay.
    pub is_urgent: bool,
    /// A task is writing commits.
    pub is_running: bool,
    /// A task waits for `LAZY_COMMIT_DELAY` to pass.
    pub is_timer_set: bool,
    /// Spare buffers for blocks.
    pub spare_buffers: Vec<S::BlockMut>,
    /// No more commits are written.
    is_stopped: bool,
}

impl<S: Seam> Journal<S> {
    /// A journal before its map is loaded.
    pub fn new(superblock: &Superblock) -> Self {
        Journal {
            half_blocks: (superblock.journal_bytes / 2 / BLOCK_BYTES as u64) as u32,
            head: JournalHead::default(),
            last_durable_commit: CommitNo(0),
            journal_members: Vec::new(),
            checkpoint: None,
            is_checkpoint_requested: false,
            generation: HalfGeneration(0),
            pending_records: Vec::new(),
            recorded_members: BTreeSet::new(),
            commits_begun: 0,
            commits_done: 0,
            waiters: Vec::new(),
            is_urgent: false,
            is_running: false,
            is_timer_set: false,
            spare_buffers: Vec::new(),
            is_stopped: false,
        }
    }

    /// The byte offset of a half's block on a device.
    pub fn block_offset(&self, half: Half, block_index: u32) -> u64 {
        JOURNAL_AT + (half as u64 * u64::from(self.half_blocks) + u64::from(block_index)) * BLOCK_BYTES as u64
    }

    /// Free blocks of the half that commits go to.
    pub fn free_blocks(&self) -> u32 {
        self.half_blocks.saturating_sub(self.head.block_index)
    }

    /// Maximum number of slots of the map: as many as fit a checkpoint beside all other records.
    pub fn slots_max(&self) -> usize {
        let blocks = u64::from(self.half_blocks) * CHECKPOINT_PERCENT_MAX / 100;
        let records = blocks as usize * RECORDS_MAX;
        let other_records = DIRTY_REGIONS_MAX + self.recent_writes_max() + records / OTHER_RECORDS_DIVISOR;
        records.saturating_sub(other_records)
    }

    /// Maximum number of recent writes: a fixed part of a half.
    pub fn recent_writes_max(&self) -> usize {
        self.half_blocks as usize * RECORDS_MAX / RECENT_WRITES_DIVISOR
    }

    /// Stops the journal and fails its waiters.
    pub fn stop(&mut self) {
        self.is_stopped = true;
        self.pending_records.clear();
        self.waiters.drain(..).for_each(|(_, reply)| reply.send(false));
    }

    /// True when no more commits are written.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// True when a task waits for a commit.
    pub fn has_waiters(&self) -> bool {
        !self.waiters.is_empty()
    }

    /// Registers a waiter of the next commit. The reply is true when the commit is durable, and false if the journal is
    /// stopped.
    pub fn register_commit_wait(&mut self) -> Reply<bool> {
        let reply = Reply::default();
        let next_ordinal = self.commits_begun + 1;
        self.waiters.push((next_ordinal, reply.clone()));
        reply
    }

    /// Wakes the waiters of commits that have ended.
    pub fn notify_waiters(&mut self) {
        let last_done = self.commits_done;
        let (ended, waiting) =
            std::mem::take(&mut self.waiters).into_iter().partition(|(ordinal, _)| *ordinal <= last_done);
        self.waiters = waiting;
        let ended: Vec<(u64, Reply<bool>)> = ended;
        ended.into_iter().for_each(|(_, reply)| reply.send(true));
    }
}

/// A checkpoint in progress.
#[derive(Clone)]
pub struct Checkpoint {
    /// The position of its next block.
    pub head: JournalHead,
    /// The members to which the checkpoint is written, with the connection epochs of their disks at its start.
    members: Vec<(MemberNo, u64)>,
    /// The next frame to write; `None` before the records without a frame are written.
    pub next_frame: Option<u32>,
    /// Only the block that marks the checkpoint as complete is missing.
    pub is_at_end: bool,
}

impl Checkpoint {
    /// Begins a checkpoint in the half other than `head`'s, on these devices.
    pub fn new<S: Seam>(head: JournalHead, generation: HalfGeneration, devices: &[Device<S>]) -> Checkpoint {
        let members = devices.iter().map(|device| (device.member, device.disk.connection_epoch())).collect();
        let head = JournalHead { half: head.half.other(), generation, block_index: 0, previous_checksum: 0 };
        Checkpoint { head, members, next_frame: None, is_at_end: false }
    }

    /// True when the checkpoint is written to this member.
    pub fn includes(&self, member: MemberNo) -> bool {
        self.members.iter().any(|(included, _)| *included == member)
    }

    /// False if one of these devices has reconnected since the start: it may have lost a part of the checkpoint.
    pub fn is_intact<S: Seam>(&self, devices: &[Device<S>]) -> bool {
        devices.iter().all(|device| self.members.contains(&(device.member, device.disk.connection_epoch())))
    }
}
