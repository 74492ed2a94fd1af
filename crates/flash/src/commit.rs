//! Group commit: one batch is in flight, and requests that arrive meanwhile go into the next. A batch is one sequential
//! write and one flush on every log member in service. Its appends return when all of these members have it (R6,
//! docs/rules.md).
//!
//! Recovery relies on one batch at a time: a batch that has a successor was durable, so only the last one can be torn.

use std::borrow::Cow;
use std::rc::Rc;

use seam::{BLOCK_BYTES, Block, DiskError, DiskResult, Nanos, Seam};

use crate::device::{Durability, block_of, block_offset};
use crate::error::StoreError;
use crate::format::batch::{BatchHeader, RECORDS_MAX, RecordEntry, RecordKind, data_seed};
use crate::format::summary::{SegmentSummary, batch_blocks};
use crate::grace_join::join_with_grace;
use crate::membership::{failures_of, persist_tail, record_generation, remove_members_unrecorded, return_buffer};
use crate::pages::segment_lending::reclaim_for_log;
use crate::record::{Content, Position, Record};
use crate::record_read::SegmentHold;
use crate::retirement::release_all;
use crate::sabotage::Sabotage;
use crate::slow_detection::{MIRROR_GRACE, QueuedRequest, detect_slow_members};
use crate::state::jobs::fail_joining_member;
use crate::state::latency::RequestWork;
use crate::state::{AppendRequest, Inner, State};
use task_sync::BoxFuture;

/// Writes batches until no request is pending.
pub async fn run<S: Seam>(inner: Rc<Inner<S>>) {
    loop {
        // Yield first: clients that were just acknowledged may submit their next requests, which then join this batch.
        inner.seam.yield_now().await;
        match take_next_requests(&inner).await {
            Some(requests) => commit(&inner, requests).await,
            None => return,
        }
    }
}

/// How to get a free segment for a batch that does not fit the open one.
enum SpaceSource {
    /// Make a newer tail durable, which frees dead segments.
    NewTail,
    /// Reclaim a segment that is lent to the pages.
    LentSegment,
}

/// Takes the requests of the next batch, with room for them in the open segment. Returns `None` when no request is
/// pending: the task ends.
async fn take_next_requests<S: Seam>(inner: &Rc<Inner<S>>) -> Option<Vec<AppendRequest<S>>> {
    let mut has_released = false;
    loop {
        let source = {
            let mut guard = inner.state.borrow_mut();
            let state = &mut *guard;
            if let Some(error) = state.failure.clone() {
                let pending = std::mem::take(&mut state.pending_requests);
                pending.into_iter().for_each(|request| request.reply.send(Err(error.clone())));
            }
            let Some(front) = state.pending_requests.front() else {
                state.is_committing = false;
                state.idle_waiters.drain(..).for_each(|reply| reply.send(()));
                return None;
            };
            let needed = 1 + front.data_blocks();
            let reserve = if front.is_tombstone { 0 } else { state.segments.tombstone_reserve_segments() };
            state.segments.free_dead(state.next_sequence);
            let fits = needed <= open_blocks_left(state) && state.segments.is_reserve_free(reserve);
            if fits
                || needed > open_blocks_left(state)
                    && state.segments.open_next(
                        state.superblock.boot_epoch,
                        state.next_sequence,
                        inner.seam.now(),
                        reserve,
                    )
            {
                let requests = take_fitting(state);
                let is_down_to_reserve =
                    !fits && !state.segments.has_more_free_than(reserve) && !state.segments.lent_segments().is_empty();
                drop(guard);
                if is_down_to_reserve {
                    start_reclaim(inner);
                }
                return Some(requests);
            }
            let tail = state.segments.advance_tail(state.next_sequence);
            if tail > state.segments.durable_tail && state.segments.free_or_dead_count() > 0 {
                SpaceSource::NewTail
            } else {
                SpaceSource::LentSegment
            }
        };
        // Only once before each reclaim: destage keeps retiring records, and a request must not wait for all of them.
        if matches!(source, SpaceSource::LentSegment)
            && !std::mem::replace(&mut has_released, true)
            && release_all(inner).await
        {
            continue;
        }
        let is_full = match source {
            // If the store has failed, the next iteration fails every request with the error.
            SpaceSource::NewTail => persist_tail(inner).await.is_err() && inner.state.borrow().failure.is_none(),
            SpaceSource::LentSegment => !reclaim_for_log(inner).await,
        };
        has_released = false;
        if is_full && let Some(front) = inner.state.borrow_mut().pending_requests.pop_front() {
            front.reply.send(Err(StoreError::Full));
        }
    }
}

/// Starts a task that reclaims a lent segment, so that the next segment is ready when it is needed.
fn start_reclaim<S: Seam>(inner: &Rc<Inner<S>>) {
    let task = Rc::clone(inner);
    inner.seam.spawn(async move {
        let _ = reclaim_for_log(&task).await;
    });
}

/// Blocks left for batches in the open segment.
fn open_blocks_left<S: Seam>(state: &State<S>) -> u32 {
    let blocks = batch_blocks(state.superblock.segment_blocks());
    state.segments.open.map_or(0, |open| blocks - open.next_block)
}

/// Takes the pending requests that fit together into one batch in the open segment.
fn take_fitting<S: Seam>(state: &mut State<S>) -> Vec<AppendRequest<S>> {
    let (mut blocks_left, mut records_left) = (open_blocks_left(state) - 1, RECORDS_MAX);
    let reserve_is_free = state.segments.is_reserve_free(state.segments.tombstone_reserve_segments());
    let mut taken = Vec::new();
    while let Some(front) = state.pending_requests.front()
        && (reserve_is_free || front.is_tombstone)
        && front.records.len() <= records_left
        && front.data_blocks() <= blocks_left
    {
        records_left -= front.records.len();
        blocks_left -= front.data_blocks();
        taken.extend(state.pending_requests.pop_front());
    }
    assert!(!taken.is_empty(), "the first request fits");
    taken
}

/// Writes one batch and completes its requests.
async fn commit<S: Seam>(inner: &Inner<S>, requests: Vec<AppendRequest<S>>) {
    let _guard = inner.batch_lock.lock().await;
    let spare = inner.state.borrow_mut().spare_buffers.pop();
    let header_buffer = match spare {
        Some(buffer) => buffer,
        None => inner.alloc_buffer().await,
    };
    let (header, segment_bytes) = build_header(&inner.state.borrow(), &requests);
    let tail = {
        let segments = &mut inner.state.borrow_mut().segments;
        let live_records = header.records.iter().filter(|record| record.kind != RecordKind::Tombstone).count();
        segments.get_mut(header.segment).live_records += live_records as u32;
        segments.advance_tail(header.sequence)
    };
    let header = BatchHeader { tail, ..header };
    let (raw, checksum) = header.encode();
    let mut blocks = vec![block_of::<S>(header_buffer, &raw)];
    let data = requests.iter().flat_map(|request| &request.records).filter_map(|record| match &record.content {
        Content::Data(block) => Some(block.clone()),
        _ => None,
    });
    blocks.extend(data);
    let at = block_offset(segment_bytes, header.segment, header.offset_blocks);
    let summary = if header.offset_blocks == 0 { build_sealed_summary(inner) } else { None };
    let result = write(inner, at, &blocks, summary.as_ref(), &requests, &header).await;
    let header_block = blocks.swap_remove(0);
    drop((blocks, summary));
    return_buffer(inner, header_block);
    match result {
        Ok(()) => {
            let recorded = record_generation(inner).await;
            advance_past_batch(inner, &header, checksum);
            acknowledge(inner, &header, &requests, recorded.err());
        }
        Err(error) => requests.into_iter().for_each(|request| request.reply.send(Err(error.clone()))),
    }
}

/// The summary of a segment that gets no more batches.
struct SealedSummary<S: Seam> {
    /// Its byte offset on the devices.
    offset_bytes: u64,
    blocks: Vec<S::Block>,
    /// Pages must not get the segment before the summary is written: it would overwrite them.
    _hold: SegmentHold<S>,
}

/// The summary of the segment before the one that was just opened. `None` without free buffers, or if the segment has
/// left the log or has no summary.
fn build_sealed_summary<S: Seam>(inner: &Inner<S>) -> Option<SealedSummary<S>> {
    let summary = inner.state.borrow_mut().summary.take()?;
    let at = {
        let state = inner.state.borrow();
        if !state.segments.is_in_log(summary.segment, summary.generation()) {
            return None;
        }
        let index = batch_blocks(state.superblock.segment_blocks());
        block_offset(state.superblock.segment_bytes, summary.segment, index)
    };
    let encoded = summary.encode()?;
    let buffers: Vec<_> = encoded.iter().map_while(|_| inner.alloc()).collect();
    if buffers.len() < encoded.len() {
        return None;
    }
    let blocks = buffers.into_iter().zip(&encoded).map(|(buffer, raw)| block_of::<S>(buffer, raw)).collect();
    let hold = SegmentHold::new(&inner.self_ref.upgrade()?, summary.segment);
    Some(SealedSummary { offset_bytes: at, blocks, _hold: hold })
}

/// The header of a batch of these requests in the open segment, and the size of a segment in bytes.
fn build_header<S: Seam>(state: &State<S>, requests: &[AppendRequest<S>]) -> (BatchHeader, u64) {
    let open = state.segments.open.expect("a segment was opened for the batch");
    let first_sequence = state.segments.get(open.segment).first_sequence;
    let boot_epoch = state.superblock.boot_epoch;
    let entry = |record: &Record<S>| {
        let (blocks, kind) = match &record.content {
            Content::Data(block) => {
                let seed = data_seed(record.address.volume_id, record.address.block, boot_epoch, first_sequence);
                (1, RecordKind::Data { checksum: block.checksum(seed) })
            }
            Content::Zero { blocks, may_unmap } => (*blocks, RecordKind::Zero { may_unmap: *may_unmap }),
            Content::Tombstone { blocks } => (*blocks, RecordKind::Tombstone),
        };
        let (volume_id, block) = (record.address.volume_id, record.address.block);
        RecordEntry { volume_id, block, epoch: record.epoch, block_count: blocks, kind }
    };
    let header = BatchHeader {
        store: state.superblock.store,
        boot_epoch,
        sequence: state.next_sequence,
        tail: state.segments.durable_tail,
        segment: open.segment,
        offset_blocks: open.next_block,
        first_sequence,
        previous_checksum: state.last_header_checksum,
        journal_commit: state.superblock.journal_commit,
        records: requests.iter().flat_map(|request| &request.records).map(entry).collect(),
    };
    (header, state.superblock.segment_bytes)
}

/// Makes the batch durable on every log member in service. A member that fails is removed, durably, before this returns
/// (R10).
async fn write<S: Seam>(
    inner: &Inner<S>,
    offset_bytes: u64,
    blocks: &[S::Block],
    summary: Option<&SealedSummary<S>>,
    requests: &[AppendRequest<S>],
    header: &BatchHeader,
) -> Result<(), StoreError> {
    let devices = inner.log_devices();
    let joining = inner.state.borrow().joining_device.clone();
    let durability = Durability::flushed_if(!inner.sabotage.is(Sabotage::SkipFlush));
    let early_member =
        devices.first().filter(|_| inner.sabotage.is(Sabotage::AckBeforeMirror)).map(|device| device.member);
    let writes = devices.iter().chain(&joining).map(|device| {
        let write: BoxFuture<'_, DiskResult<Nanos>> = Box::pin(async move {
            if let Some(SealedSummary { offset_bytes: at, blocks, .. }) = summary {
                // The flush of the batch makes it durable, too.
                inner.write_with_retry_to(device, *at, blocks.clone(), Durability::Unflushed).await?;
            }
            let queued = QueuedRequest::new(inner, device.member, RequestWork::Program(blocks.len()));
            let result = inner.write_with_retry_to(device, offset_bytes, blocks.to_vec(), durability).await;
            if early_member == Some(device.member) && result.is_ok() {
                acknowledge(inner, header, requests, None);
            }
            result.map(|()| queued.exclusive_time())
        });
        write
    });
    let mut results = join_with_grace(&inner.seam, writes.collect(), MIRROR_GRACE, mirror_timeout_error).await;
    if joining.is_some()
        && let Some(Err(error)) = results.pop()
    {
        fail_joining_member(inner, &error);
    }
    let latencies: Vec<_> = devices
        .iter()
        .zip(&results)
        .filter_map(|(device, result)| Some((device.member, *result.as_ref().ok()?)))
        .collect();
    let mut failures = failures_of(&devices, results.into_iter().map(|result| result.map(drop)).collect());
    failures.extend(detect_slow_members(inner, &latencies));
    let bytes = ((blocks.len() + summary.map_or(0, |summary| summary.blocks.len())) * BLOCK_BYTES) as u64;
    latencies.iter().for_each(|(member, _)| inner.pages.borrow_mut().counters.member_mut(*member).log_bytes += bytes);
    if inner.sabotage.is(Sabotage::AckBeforeMembership) && failures.len() < devices.len() {
        acknowledge(inner, header, requests, None);
        // At least as long as a survivor's flush takes.
        inner.seam.sleep(seam::Nanos::from_millis(5)).await;
    }
    remove_members_unrecorded(inner, failures).await
}

/// The error of a device that is removed because its mirror completed the batch at least [`MIRROR_GRACE`] earlier.
fn mirror_timeout_error<T>() -> DiskResult<T> {
    Err(DiskError::Io(format!("no answer to a write for {MIRROR_GRACE} after its mirror's")))
}

/// Advances the log past a batch that is durable.
fn advance_past_batch<S: Seam>(inner: &Inner<S>, header: &BatchHeader, checksum: u32) {
    let mut state = inner.state.borrow_mut();
    state.next_sequence = header.sequence.next();
    state.last_header_checksum = checksum;
    let segments = &mut state.segments;
    if header.offset_blocks == 0 {
        // Only the first batch of a segment makes its tail durable. Recovery reads the first batch of each segment
        // before it follows the log, so a tail in a later batch would be found too late.
        segments.durable_tail = segments.durable_tail.max(header.tail);
    }
    segments.get_mut(header.segment).last_sequence = header.sequence;
    let segment_blocks = state.superblock.segment_blocks();
    if header.offset_blocks == 0 {
        state.summary = Some(SegmentSummary::new(header, segment_blocks));
    }
    let mut summarized = Cow::Borrowed(header);
    if inner.sabotage.is(Sabotage::WrongSummary) {
        summarized.to_mut().records[0].block = header.records[0].block.next();
    }
    state.summary.as_mut().expect("the first batch of a segment begins its summary").add(&summarized, checksum);
    let segments = &mut state.segments;
    let open = segments.open.as_mut().expect("the segment stays open while a batch is written");
    open.next_block += header.block_count();
}

/// Completes the requests of a batch that is durable on its members. They fail with [`StoreError::Unrecorded`] while
/// the state directory has not recorded this membership generation; `unrecorded` is the reason.
fn acknowledge<S: Seam>(
    inner: &Inner<S>,
    header: &BatchHeader,
    requests: &[AppendRequest<S>],
    unrecorded: Option<String>,
) {
    let expiries = inner.state.borrow().segments.get(header.segment).expiries;
    let mut positions = record_positions(header, expiries).into_iter();
    for request in requests {
        let positions = positions.by_ref().take(request.records.len()).collect();
        request.reply.send(match &unrecorded {
            Some(reason) => Err(StoreError::Unrecorded { reason: reason.clone(), positions }),
            None => Ok(positions),
        });
    }
}

/// The position of each record of a batch, whose segment has had this number of expiries.
fn record_positions(header: &BatchHeader, expiries: u16) -> Vec<Position> {
    let (segment, mut index) = (header.segment, header.offset_blocks);
    let position = |record: &RecordEntry| match record.kind {
        RecordKind::Data { checksum } => {
            index += 1;
            Position { segment, block_index: index, checksum, expiries, is_live: true }
        }
        RecordKind::Zero { .. } => {
            Position { segment, block_index: header.offset_blocks, checksum: 0, expiries, is_live: true }
        }
        RecordKind::Tombstone => {
            Position { segment, block_index: header.offset_blocks, checksum: 0, expiries, is_live: false }
        }
    };
    header.records.iter().map(position).collect()
}
