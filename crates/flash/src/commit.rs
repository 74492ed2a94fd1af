//! Group commit: one batch is in flight, and requests that arrive meanwhile go into the next. A batch is one sequential
//! write and one flush on every log member in service. Its appends return when all of these members have it (R6).
//!
//! Recovery relies on one batch at a time: a batch that has a successor was durable, so only the last one can be torn.

use std::rc::Rc;

use seam::{BLOCK_BYTES, Block, DiskError, DiskResult, Nanos, Seam};

use crate::device::{block_of, place};
use crate::error::StoreError;
use crate::format::batch::{BatchHeader, RECORDS_MAX, RecordEntry, RecordKind, data_seed};
use crate::membership::{failures_of, give_back, have_noted, save_tail, take_out_unnoted};
use crate::pages::segment_lending::reclaim_for_log;
use crate::record::{Content, Position};
use crate::slow::{GRACE, InLine, Work, batch_took};
use crate::store::{Inner, Request, Sabotage, State};
use crate::wait::{Boxed, join_with_grace};

/// Writes batches until no request is pending.
pub async fn run<S: Seam>(inner: Rc<Inner<S>>) {
    loop {
        // Yield first, so that clients that were just answered, and requests of this moment, join the next batch
        // instead of the one after it.
        inner.seam.yield_now().await;
        match next_requests(&inner).await {
            Some(requests) => commit(&inner, requests).await,
            None => return,
        }
    }
}

/// How to find room for a batch that does not fit the open segment.
enum Room {
    /// Make a newer tail durable, which frees dead segments.
    Tail,
    /// Reclaim a segment that is lent to the pages.
    Pages,
}

/// Takes the requests of the next batch, with room for them in the open segment. Returns `None` when no request is
/// pending: the task ends.
async fn next_requests<S: Seam>(inner: &Rc<Inner<S>>) -> Option<Vec<Request<S>>> {
    loop {
        let from = {
            let mut guard = inner.state.borrow_mut();
            let state = &mut *guard;
            if let Some(error) = state.failed.clone() {
                let pending = std::mem::take(&mut state.pending);
                pending.into_iter().for_each(|request| request.answer.give(Err(error.clone())));
            }
            let Some(front) = state.pending.front() else {
                state.committing = false;
                state.idle.drain(..).for_each(|answer| answer.give(()));
                return None;
            };
            let needed = 1 + front.data_blocks();
            let keep = if front.buries { 0 } else { state.segments.kept() };
            state.segments.free_dead(state.next);
            let fits = needed <= room(state) && state.segments.keeps_all(keep);
            if fits || needed > room(state) && state.segments.open_next(state.superblock.boot, state.next, keep) {
                let requests = take_fitting(state);
                let last = !fits && !state.segments.has_more_than(keep) && !state.segments.lent().is_empty();
                drop(guard);
                if last {
                    // Reclaim in advance, so that the next segment is ready when it is needed.
                    let task = Rc::clone(inner);
                    inner.seam.spawn(async move {
                        let _ = reclaim_for_log(&task).await;
                    });
                }
                return Some(requests);
            }
            let tail = state.segments.tail(state.next);
            if tail > state.segments.durable_tail && state.segments.free() > 0 { Room::Tail } else { Room::Pages }
        };
        let full = match from {
            // When the store has failed, the next round answers every request with the error.
            Room::Tail => save_tail(inner).await.is_err() && inner.state.borrow().failed.is_none(),
            Room::Pages => !reclaim_for_log(inner).await,
        };
        if full && let Some(front) = inner.state.borrow_mut().pending.pop_front() {
            front.answer.give(Err(StoreError::Full));
        }
    }
}

/// Blocks left in the open segment.
fn room<S: Seam>(state: &State<S>) -> u32 {
    let blocks = (state.superblock.segment_bytes / BLOCK_BYTES as u64) as u32;
    state.segments.open.map_or(0, |open| blocks - open.offset)
}

fn take_fitting<S: Seam>(state: &mut State<S>) -> Vec<Request<S>> {
    let (mut blocks_left, mut records_left) = (room(state) - 1, RECORDS_MAX);
    let room_for_all = state.segments.keeps_all(state.segments.kept());
    let mut taken = Vec::new();
    while let Some(front) = state.pending.front()
        && (room_for_all || front.buries)
        && front.records.len() <= records_left
        && front.data_blocks() <= blocks_left
    {
        records_left -= front.records.len();
        blocks_left -= front.data_blocks();
        taken.extend(state.pending.pop_front());
    }
    assert!(!taken.is_empty(), "there was room for the first of them");
    taken
}

async fn commit<S: Seam>(inner: &Inner<S>, requests: Vec<Request<S>>) {
    let _inside = inner.batches.enter().await;
    let spare = inner.state.borrow_mut().spare.pop();
    let header_buffer = match spare {
        Some(buffer) => buffer,
        None => inner.buffer().await,
    };
    let (header, segment_bytes) = assemble(&inner.state.borrow(), &requests);
    let tail = {
        let segments = &mut inner.state.borrow_mut().segments;
        let live = header.records.iter().filter(|record| record.kind != RecordKind::Retire).count();
        segments.get_mut(header.segment).live += live as u32;
        segments.tail(header.sequence)
    };
    let header = BatchHeader { tail, ..header };
    let (raw, checksum) = header.encode();
    let mut blocks = vec![block_of::<S>(header_buffer, &raw)];
    let data = requests.iter().flat_map(|request| &request.records).filter_map(|record| match &record.content {
        Content::Data(block) => Some(block.clone()),
        _ => None,
    });
    blocks.extend(data);
    let at = place(segment_bytes, header.segment, header.offset);
    let result = write(inner, at, &blocks, &requests, &header).await;
    let header_block = blocks.swap_remove(0);
    drop(blocks);
    give_back(inner, header_block);
    match result {
        Ok(()) => {
            let noted = have_noted(inner).await;
            committed(inner, &header, checksum);
            acknowledge(&header, &requests, noted.err());
        }
        Err(error) => requests.into_iter().for_each(|request| request.answer.give(Err(error.clone()))),
    }
}

/// The header of a batch of these requests at the open position.
fn assemble<S: Seam>(state: &State<S>, requests: &[Request<S>]) -> (BatchHeader, u64) {
    let open = state.segments.open.expect("a segment was opened for the batch");
    let first = state.segments.get(open.segment).first;
    let boot = state.superblock.boot;
    let entry = |record: &crate::Record<S>| {
        let (blocks, kind) = match &record.content {
            Content::Data(block) => {
                let seed = data_seed(record.owner.incarnation, record.owner.block, boot, first);
                (1, RecordKind::Data { checksum: block.checksum(seed) })
            }
            Content::Zero { blocks, may_unmap } => (*blocks, RecordKind::Zero { may_unmap: *may_unmap }),
            Content::Retire { blocks } => (*blocks, RecordKind::Retire),
        };
        let (incarnation, block) = (record.owner.incarnation, record.owner.block);
        RecordEntry { incarnation, block, epoch: record.epoch, blocks, kind }
    };
    let header = BatchHeader {
        store: state.superblock.store,
        boot,
        sequence: state.next,
        tail: state.segments.durable_tail,
        segment: open.segment,
        offset: open.offset,
        first,
        previous: state.previous,
        journal: state.superblock.journal,
        records: requests.iter().flat_map(|request| &request.records).map(entry).collect(),
    };
    (header, state.superblock.segment_bytes)
}

/// Makes the batch durable on every log member in service. A member that fails is taken out, durably, before this
/// returns (R10).
async fn write<S: Seam>(
    inner: &Inner<S>,
    at: u64,
    blocks: &[S::Block],
    requests: &[Request<S>],
    header: &BatchHeader,
) -> Result<(), StoreError> {
    let devices = inner.log_devices();
    let joining = inner.state.borrow().joining.clone();
    let flush = !inner.sabotage.is(Sabotage::SkipFlush);
    let early = devices.first().filter(|_| inner.sabotage.is(Sabotage::AckBeforeMirror)).map(|device| device.member);
    let writes = devices.iter().chain(&joining).map(|device| {
        let write: Boxed<'_, DiskResult<Nanos>> = Box::pin(async move {
            let place = InLine::new(inner, device.member, Work::Program(blocks.len()));
            let result = inner.write_durably_to(device, at, blocks.to_vec(), flush).await;
            if early == Some(device.member) && result.is_ok() {
                acknowledge(header, requests, None);
            }
            result.map(|()| place.share())
        });
        write
    });
    let mut results = join_with_grace(&inner.seam, writes.collect(), GRACE, out_of_patience).await;
    if joining.is_some()
        && let Some(Err(error)) = results.pop()
    {
        crate::members::newcomer_failed(inner, &error);
    }
    let took: Vec<_> =
        devices.iter().zip(&results).filter_map(|(device, took)| Some((device.member, *took.as_ref().ok()?))).collect();
    let mut failures = failures_of(&devices, results.into_iter().map(|result| result.map(drop)).collect());
    failures.extend(batch_took(inner, &took));
    let bytes = (blocks.len() * BLOCK_BYTES) as u64;
    took.iter().for_each(|(member, _)| inner.pages.borrow_mut().counts.of(*member).log_bytes += bytes);
    if inner.sabotage.is(Sabotage::AckBeforeMembership) && failures.len() < devices.len() {
        acknowledge(header, requests, None);
        // Wait as long as a survivor's flush takes, or longer.
        inner.seam.sleep(seam::Nanos::from_millis(5)).await;
    }
    take_out_unnoted(inner, failures).await
}

/// The error of a device that is taken out because its mirror completed the batch long before.
fn out_of_patience<T>() -> DiskResult<T> {
    Err(DiskError::Io(format!("no answer to a write for {GRACE} after its mirror's")))
}

fn committed<S: Seam>(inner: &Inner<S>, header: &BatchHeader, checksum: u32) {
    let mut state = inner.state.borrow_mut();
    state.next = header.sequence.next();
    state.previous = checksum;
    let segments = &mut state.segments;
    if header.offset == 0 {
        // Only the first batch of a segment makes its tail durable. Recovery reads the first batch of each segment
        // before it follows the log, so a tail in a later batch would be found too late.
        segments.durable_tail = segments.durable_tail.max(header.tail);
    }
    segments.get_mut(header.segment).last = header.sequence;
    let open = segments.open.as_mut().expect("the segment stays open while a batch is written");
    open.offset += header.blocks();
}

/// Answers a batch that is durable on its members. While the owner has not noted these members (`unnoted` says why),
/// the answer is an error, not a promise.
fn acknowledge<S: Seam>(header: &BatchHeader, requests: &[Request<S>], unnoted: Option<String>) {
    let mut positions = positions(header).into_iter();
    for request in requests {
        let positions = positions.by_ref().take(request.records.len()).collect();
        request.answer.give(match &unnoted {
            Some(why) => Err(StoreError::Unnoted { why: why.clone(), positions }),
            None => Ok(positions),
        });
    }
}

/// The position of each record of a batch.
pub fn positions(header: &BatchHeader) -> Vec<Position> {
    let mut index = header.offset;
    let position = |record: &RecordEntry| match record.kind {
        RecordKind::Data { checksum } => {
            index += 1;
            Position { segment: header.segment, index, checksum, live: true }
        }
        RecordKind::Zero { .. } => Position { segment: header.segment, index: header.offset, checksum: 0, live: true },
        RecordKind::Retire => Position { segment: header.segment, index: header.offset, checksum: 0, live: false },
    };
    header.records.iter().map(position).collect()
}
