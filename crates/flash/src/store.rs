//! The store's interface to its owner: append, read, retire, and the state of the members.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use seam::{Disk, Nanos, Seam};

use crate::create::{FormatOptions, format};
use crate::device::Device;
use crate::error::StoreError;
use crate::format::Uuid;
use crate::format::batch::RECORDS_MAX;
use crate::format::summary::batch_blocks;
use crate::kept_reads::KeptResult;
use crate::member_disk::MemberDisk;
use crate::members::plan::JoinPlan;
use crate::number::{MemberNo, MembershipGeneration, SegmentNo, Sequence};
use crate::pages::Pages;
use crate::record::{BlockAddress, Content, Position, Record, RecoveredRecord};
use crate::record_read::ReadRequest;
use crate::recovery::{OpenOptions, open};
use crate::retirement;
use crate::segments::LogSegment;
use crate::state::jobs::{JobReport, cancel_jobs};
use crate::state::members::MemberReport;
use crate::state::retirements::release;
use crate::state::scrub::ScrubStats;
use crate::state::{AppendRequest, Inner};
use task_sync::{BoxFuture, Reply};

/// Which of the log's oldest segments [`Store::select_old_segments`] returns. If a segment lies past the end of the
/// smallest device, it and all older ones are chosen, too.
#[derive(Clone, Copy, Debug)]
pub struct SegmentChoice {
    /// Segments that were opened at this time or before.
    pub opened_before: Nanos,
    /// The older half of the log, too.
    pub includes_older_half: bool,
    /// Maximum number of live records in all of them; one segment may have more.
    pub live_records_max: u64,
}

/// Result of [`Store::select_old_segments`].
#[derive(Clone, Debug)]
pub struct OldSegments {
    /// The segments.
    pub numbers: BTreeSet<SegmentNo>,
    /// More segments were chosen than may be returned at once.
    pub has_more: bool,
}

/// The oldest part of the log is 1/8 of its segments, but at least [`OLDEST_SEGMENTS_MIN`].
const OLDEST_SEGMENTS_DIVISOR: usize = 8;
/// Minimum number of segments in the oldest part of the log.
const OLDEST_SEGMENTS_MIN: usize = 2;

/// An open store. Clones are handles to the same store, on the same core.
pub struct Store<S: Seam>(pub(crate) Rc<Inner<S>>);

impl<S: Seam> Clone for Store<S> {
    fn clone(&self) -> Self {
        Store(Rc::clone(&self.0))
    }
}

impl<S: Seam> Store<S> {
    /// Formats one to eight devices as a store. An image carries the log, otherwise the first two devices do. Refuses
    /// devices that are not empty unless `force` is set.
    pub async fn format(seam: &S, disks: &[MemberDisk<S>], options: FormatOptions) -> Result<(), StoreError> {
        format(seam, disks, options).await
    }

    /// Opens a store after any crash, and returns the live records of its log, in the order of their addresses. The
    /// opening can be interrupted at any point and repeated.
    pub async fn open(
        seam: &S,
        disks: &[MemberDisk<S>],
        options: OpenOptions,
    ) -> Result<(Self, Vec<RecoveredRecord>), StoreError> {
        let (inner, recovered) = open(seam, disks, options).await?;
        Ok((Store(inner), recovered))
    }

    /// Sets the source of buffers when the pool is exhausted: the cache that fills the pool gives up one of its own.
    /// The store calls `fallback` from its own tasks, never while its owner is inside a synchronous call.
    pub fn set_fallback_buffers(&self, fallback: impl Fn() -> Option<S::BlockMut> + 'static) {
        *self.0.fallback_buffers.borrow_mut() = Some(Box::new(fallback));
    }

    /// The clean pages. They are loaded once, at any time after the opening.
    pub fn pages(&self) -> Pages<S> {
        Pages(Rc::clone(&self.0))
    }

    /// Maximum number of records of one append.
    pub fn records_max(&self) -> usize {
        let blocks = batch_blocks(self.0.state.borrow().superblock.segment_blocks());
        RECORDS_MAX.min(blocks as usize - 1)
    }

    /// Appends `records` in one batch. Returns their positions when they are durable on every member in service.
    ///
    /// After [`StoreError::Full`] no record was written. After any other error recovery may find the records or not.
    ///
    /// # Panics
    /// With no records, or more than [`Store::records_max`].
    pub async fn append(&self, records: Vec<Record<S>>) -> Result<Vec<Position>, StoreError> {
        self.append_with(records, false).await
    }

    /// Like [`Store::append`], for tombstones that retire all records of a volume. They may use the reserved segments,
    /// so a log that is full of other volumes' records does not block them.
    ///
    /// # Panics
    /// With any other record.
    pub async fn append_tombstones(&self, tombstones: Vec<Record<S>>) -> Result<Vec<Position>, StoreError> {
        let is_tombstone = |record: &Record<S>| matches!(record.content, Content::Tombstone { .. });
        assert!(tombstones.iter().all(is_tombstone), "the reserve is for tombstones only");
        self.append_with(tombstones, true).await
    }

    /// Checks the records, queues them for the next batch and waits for it.
    async fn append_with(&self, records: Vec<Record<S>>, is_tombstone: bool) -> Result<Vec<Position>, StoreError> {
        assert!((1..=self.records_max()).contains(&records.len()), "{} records in one append", records.len());
        for record in &records {
            let blocks = match record.content {
                Content::Data(_) => 1,
                Content::Zero { blocks, .. } | Content::Tombstone { blocks } => blocks,
            };
            let fits = record.address.block.checked_plus(u64::from(blocks)).is_some();
            assert!(blocks > 0 && fits, "a record of {blocks} blocks from {} on", record.address.block);
        }
        let reply = Reply::default();
        let starts_task = {
            let mut state = self.0.state.borrow_mut();
            if let Some(error) = &state.failure {
                return Err(error.clone());
            }
            state.pending_requests.push_back(AppendRequest { records, is_tombstone, reply: reply.clone() });
            !std::mem::replace(&mut state.is_committing, true)
        };
        if starts_task {
            self.0.seam.spawn(crate::commit::run(Rc::clone(&self.0)));
        }
        reply.wait().await
    }

    /// Reads the block that was appended at `position` into `buffer`. The block is checked; a bad copy is replaced by
    /// its mirror's.
    pub async fn read(
        &self,
        address: BlockAddress,
        position: Position,
        buffer: S::BlockMut,
    ) -> Result<S::Block, StoreError> {
        crate::record_read::read(&self.0, address, position, buffer).await
    }

    /// Like [`Store::read`] for many blocks at once, each into its own buffer. The results are in the same order.
    pub async fn read_all(&self, requests: Vec<ReadRequest<S>>) -> Vec<Result<S::Block, StoreError>> {
        crate::record_read::read_all(&self.0, requests).await
    }

    /// Reads retired records that have not expired, each into its own buffer. Bad copies are not repaired, because the
    /// backing has the same content. The results are in the same order.
    pub async fn read_kept(&self, requests: Vec<ReadRequest<S>>) -> Vec<KeptResult<S>> {
        crate::kept_reads::read_all(&self.0, requests).await
    }

    /// True if a record has expired: its segment was reused, or a device without it has joined the log.
    pub fn has_expired(&self, position: Position) -> bool {
        crate::kept_reads::has_expired(&self.0, &position)
    }

    /// True if the segment of a kept record has passed half of its lifetime: the log has filled more segments since the
    /// record was appended than it will fill before it reuses the segment.
    pub fn expires_soon(&self, position: Position) -> bool {
        self.0.state.borrow().segments.is_past_half_of_lifetime(position.segment())
    }

    /// Segments that are free for the log, in percent of all: the log fills them before it reuses the segment of a
    /// record that is retired now.
    pub fn retention_percent(&self) -> u64 {
        let state = self.0.state.borrow();
        state.segments.writable_count() as u64 * 100 / u64::from(state.superblock.log_segment_count).max(1)
    }

    /// Number of segments of the log, segments that hold pages included.
    pub fn segment_count(&self) -> u64 {
        u64::from(self.0.state.borrow().superblock.log_segment_count)
    }

    /// Number of times that the records of a segment have expired since the store was opened.
    pub fn expiries(&self) -> u64 {
        self.0.state.borrow().segments.total_expiries
    }

    /// Retires these positions: their content is on the backing and flushed there, or older than a durable record of
    /// the same blocks. Each position is retired once. The recent writes of destaged blocks
    /// ([`crate::VolumePages::record_destaged`]) must be recorded before.
    ///
    /// # Panics
    /// If a position was retired before.
    pub fn retire(&self, positions: &[Position]) {
        retirement::retire(&self.0, positions);
    }

    /// All members of the store.
    pub fn members(&self) -> Vec<MemberReport> {
        self.0.state.borrow().member_reports.clone()
    }

    /// The time for which each device's oldest request has been unanswered, in service or not. Devices without such a
    /// request are left out.
    pub fn unanswered(&self) -> BTreeMap<MemberNo, Nanos> {
        let (state, now) = (self.0.state.borrow(), self.0.seam.now());
        let unanswered_time = |device: &Device<S>| Some((device.member, now.since(device.disk.oldest_unanswered()?)));
        state.devices.iter().filter_map(unanswered_time).collect()
    }

    /// The number of copies of the log: members in service that carry it.
    pub fn copies(&self) -> usize {
        self.0.log_devices().len()
    }

    /// Adds a device while the store serves, and returns its number when it is a member. If the log has fewer than two
    /// copies, the device is resynced and carries the log; otherwise it holds only pages. The device's content is
    /// destroyed. Without `force` the device must be empty, or of this store.
    pub async fn add(&self, disk: MemberDisk<S>, force: bool) -> Result<MemberNo, StoreError> {
        crate::members::add(&self.0, disk, force).await
    }

    /// Plans the addition of a device of this size, or the replacement of the member `replaced` by it. Changes nothing.
    pub fn plan_join(&self, replaced: Option<MemberNo>, device_bytes: u64) -> Result<JoinPlan, StoreError> {
        crate::members::plan::plan_join(&self.0, replaced, device_bytes)
    }

    /// The number of the member that takes over the log when `member` is removed, if one does.
    pub fn log_successor(&self, member: MemberNo) -> Option<MemberNo> {
        crate::log_members::log_successor_number(&self.0, member)
    }

    /// Replaces member `old`, which may be out of service, by a device. Returns the new number when the device is a
    /// member and `old` is not.
    pub async fn replace(&self, old: MemberNo, disk: MemberDisk<S>, force: bool) -> Result<MemberNo, StoreError> {
        crate::members::replace(&self.0, old, disk, force).await
    }

    /// Removes a member permanently. A member that holds only pages takes its place in the log first. Without one the
    /// log keeps a single copy, which `allow_single_copy` must permit.
    pub async fn remove(&self, member: MemberNo, allow_single_copy: bool) -> Result<(), StoreError> {
        crate::members::remove(&self.0, member, allow_single_copy).await
    }

    /// Scrubs the log in the background at this rate at most: reads every copy and replaces bad ones by good ones.
    /// `None`, the initial state, stops it.
    pub fn set_scrub(&self, bytes_per_second: Option<u64>) {
        crate::scrub::set_rate(&self.0, bytes_per_second);
    }

    /// Blocks without a good copy that reads have detected, until their records are retired; at most 1,024.
    pub fn lost_blocks(&self) -> Vec<BlockAddress> {
        self.0.state.borrow().lost_blocks.list()
    }

    /// Counters of the scrub.
    pub fn scrub_stats(&self) -> ScrubStats {
        self.0.state.borrow().scrub.stats
    }

    /// Progress of the change of the members, if one is in progress.
    pub fn job(&self) -> Option<JobReport> {
        self.0.state.borrow().jobs.report(self.0.seam.now())
    }

    /// Pauses or resumes that change; false when there is none.
    pub fn set_job_paused(&self, is_paused: bool) -> bool {
        self.0.state.borrow_mut().jobs.set_paused(is_paused)
    }

    /// Cancels that change; false when there is none. The change ends in [`StoreError::Cancelled`], unless it is
    /// already made.
    pub fn cancel_job(&self) -> bool {
        self.0.state.borrow_mut().jobs.cancel()
    }

    /// The store's identity, drawn at random when it was formatted.
    pub fn uuid(&self) -> Uuid {
        self.0.state.borrow().superblock.store
    }

    /// Sequence number of the log's next batch. It grows with every later opening.
    pub fn next_sequence(&self) -> Sequence {
        self.0.state.borrow().next_sequence
    }

    /// Generation of the newest membership that all members in service hold durably: +1 with every change. The change
    /// by which the last member fails reaches no device, so it does not count.
    pub fn generation(&self) -> MembershipGeneration {
        self.0.state.borrow().durable_generation
    }

    /// Sets the function that records each new membership generation, after all members hold it durably. No append that
    /// relies on a generation is acknowledged before the generation is recorded (R10, docs/rules.md). If `record` fails
    /// or times out, it is called again; appends fail meanwhile.
    pub fn set_generation_recorder(
        &self,
        record: impl Fn(MembershipGeneration) -> BoxFuture<'static, Result<(), String>> + 'static,
    ) {
        self.0.state.borrow_mut().generation_recorder = Some(Rc::new(record));
    }

    /// The reason why the newest membership generation is not recorded, while flushes fail because of it.
    pub fn unrecorded_reason(&self) -> Option<String> {
        self.0.state.borrow().unrecorded_reason.clone()
    }

    /// The oldest segments of the log: 1/8 of them, but at least two. A live record in them keeps all newer segments
    /// from being reused.
    pub fn oldest_segments(&self) -> BTreeSet<SegmentNo> {
        let state = self.0.state.borrow();
        let sealed =
            state.segments.chain().filter(|segment| segment.open_blocks.is_none()).map(|segment| segment.number);
        let count = (state.segments.chain().count() / OLDEST_SEGMENTS_DIVISOR).max(OLDEST_SEGMENTS_MIN);
        sealed.take(count).collect()
    }

    /// Selects segments from the oldest one on, as `choice` defines. Destage empties them, so that the tail can move.
    pub fn select_old_segments(&self, choice: &SegmentChoice) -> OldSegments {
        let state = self.0.state.borrow();
        let half = if choice.includes_older_half { state.segments.chain().count() / 2 } else { 0 };
        // Segments up to this index are chosen whatever their age.
        let older = half.max(state.segments.prefix_len_past_limit());
        let is_old =
            |(index, segment): &(usize, LogSegment)| *index < older || segment.state.opened_at <= choice.opened_before;
        let old: Vec<_> = state.segments.chain().enumerate().take_while(is_old).map(|(_, segment)| segment).collect();
        let mut live_records = 0;
        let fits_limit = |segment: &&LogSegment| {
            let is_first = live_records == 0;
            live_records += u64::from(segment.state.live_records);
            is_first || live_records <= choice.live_records_max
        };
        let numbers: BTreeSet<_> = old.iter().take_while(fits_limit).map(|segment| segment.number).collect();
        let has_more = numbers.len() < old.len();
        OldSegments { numbers, has_more }
    }

    /// The time at which the oldest segment of the log was opened, or the store, if a recovery found the segment. No
    /// record is older. `None` if the log is empty.
    pub fn oldest_since(&self) -> Option<Nanos> {
        self.0.state.borrow().segments.chain().next().map(|segment| segment.state.opened_at)
    }

    /// The number of log segments that are free, or will be once a tail is durable or the pages in them are dropped,
    /// and the total number of log segments.
    pub fn room(&self) -> (usize, usize) {
        let mut state = self.0.state.borrow_mut();
        let next = state.next_sequence;
        state.segments.advance_tail(next);
        let usable = state.superblock.log_segment_count - state.superblock.journal_segments();
        (state.segments.free_or_dead_count() + state.segments.reclaimable_count(), usable as usize)
    }

    /// True if a segment in use lies past the end of the smallest device of the log.
    pub fn has_segments_past_limit(&self) -> bool {
        self.0.state.borrow().segments.prefix_len_past_limit() > 0
    }

    /// Waits for batches in progress and moves the durable tail as far as possible. If no record is live, the tail
    /// moves to the end, and the next opening finds no record. Later appends fail. Returns the sequence number that the
    /// log has reached.
    pub async fn close(self) -> Result<Sequence, StoreError> {
        cancel_jobs(&self.0).await;
        crate::pages::close(&self.0).await;
        release(&self.0);
        loop {
            let reply = {
                let mut state = self.0.state.borrow_mut();
                if !state.is_committing {
                    break;
                }
                let reply = Reply::default();
                state.idle_waiters.push(reply.clone());
                reply
            };
            reply.wait().await;
        }
        {
            let mut state = self.0.state.borrow_mut();
            if let Some(error) = &state.failure {
                return Err(error.clone());
            }
            state.failure = Some(StoreError::Closed);
            state.segments.close_open();
        }
        crate::membership::persist_tail(&self.0).await?;
        Ok(self.next_sequence())
    }
}
