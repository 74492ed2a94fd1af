//! Copies the log to a device that will carry it, while appends continue.
//!
//! From a point between two batches on, the device gets every batch. The earlier content of the log is copied segment
//! by segment, oldest first. Each block is checked, because the copy may later be the only good one. A segment that has
//! died meanwhile is skipped; a segment that has been reused since is already on the joining device.

use seam::{BLOCK_BYTES, Block, BlockMut, Disk, DiskError, Nanos, Piece, Seam};

use super::segment_verifier::{SegmentVerifier, Verdict, read_block};
use crate::create::segment_count_of;
use crate::device::{Device, block_offset};
use crate::error::StoreError;
use crate::membership::persist_tail;
use crate::number::SegmentNo;
use crate::pages::closed_member::{ClosedMemberGuard, drop_pages_of};
use crate::record_read::SegmentHold;
use crate::sabotage::Sabotage;
use crate::segments::{LogSegment, Segment};
use crate::state::Inner;
use crate::state::jobs::RunningJob;

/// Maximum number of buffers for copying.
const COPY_BUFFERS_MAX: usize = 32;
/// Copying uses at most 1/128 of the pool.
const COPY_POOL_DIVISOR: usize = 128;
/// Minimum number of buffers: the scrub compares one block of each copy.
const COPY_BUFFERS_MIN: usize = 2;
/// Maximum number of attempts to copy a segment if the joining device reconnects.
const COPY_ATTEMPTS_MAX: u32 = 3;
/// Interval at which the log's end is compared with the device's capacity.
const POLL_INTERVAL: Nanos = Nanos::from_millis(5);

/// The number of buffers that a store keeps for copying.
pub fn copy_buffer_count<S: Seam>(seam: &S) -> usize {
    (seam.blocks_total() / COPY_POOL_DIVISOR).clamp(COPY_BUFFERS_MIN, COPY_BUFFERS_MAX)
}

/// Returns buffers to the copy buffers of the store, up to their initial number.
pub fn keep_buffers<S: Seam>(inner: &Inner<S>, buffers: impl Iterator<Item = S::BlockMut>) {
    let mut state = inner.state.borrow_mut();
    state.copy_buffers.extend(buffers);
    state.copy_buffers.truncate(copy_buffer_count(&inner.seam));
}

/// A segment of the log to be copied, as it was when the joining device began to get batches.
struct SourceSegment {
    number: SegmentNo,
    content: Segment,
    /// Number of used blocks.
    used_blocks: u32,
}

/// Copies the log to `device`. When this returns, the device holds the log's whole content and continues to take
/// batches. While the returned guard exists, the device accepts no pages. Until the device is a log member, its log
/// segments look free, and pages would overwrite them.
pub async fn resync<S: Seam>(job: &RunningJob<S>, device: &Device<S>) -> Result<ClosedMemberGuard<S>, StoreError> {
    let inner = &job.inner;
    let name = device.name();
    let (segment_bytes, limit) = {
        let state = inner.state.borrow();
        let capacity = segment_count_of(device, state.superblock.segment_bytes);
        (state.superblock.segment_bytes, SegmentNo(capacity.min(state.superblock.log_segment_count)))
    };
    let closed = drop_pages_of(inner, device.member).await;
    wait_until_log_fits(job, limit, &name).await?;
    let segments = {
        let _guard = inner.batch_lock.lock().await;
        let mut state = inner.state.borrow_mut();
        (state.joining_device, state.resyncing_device) = (Some(device.clone()), Some(device.clone()));
        let blocks = (segment_bytes / BLOCK_BYTES as u64) as u32;
        let source_segment = |segment: LogSegment| SourceSegment {
            number: segment.number,
            content: segment.state,
            used_blocks: segment.open_blocks.unwrap_or(blocks),
        };
        // Retired records in segments outside the live log are not copied, so reads must not use them.
        state.segments.expire_records_outside_chain();
        state.segments.chain().map(source_segment).collect::<Vec<_>>()
    };
    let bytes = |segment: &SourceSegment| u64::from(segment.used_blocks) * BLOCK_BYTES as u64;
    job.set_total_bytes(segments.iter().map(bytes).sum());
    let skip = inner.sabotage.is(Sabotage::SkipResync);
    for segment in segments.iter().filter(|_| !skip) {
        job.wait_if_paused(&name).await?;
        let is_in_log = inner.state.borrow().segments.is_in_log(segment.number, segment.content.first_sequence);
        match is_in_log {
            true => copy_segment(job, device, segment).await?,
            false => {
                {
                    // A segment that was reused since the resync began is on the device.
                    let segments = &mut inner.state.borrow_mut().segments;
                    if segments.get(segment.number).first_sequence == segment.content.first_sequence {
                        segments.expire_records(segment.number);
                    }
                }
                job.add_done_bytes(bytes(segment));
            }
        }
    }
    job.wait_if_paused(&name).await?;
    Ok(closed)
}

/// Waits until the live log lies within the joining device's capacity, as a recovery would read it.
async fn wait_until_log_fits<S: Seam>(job: &RunningJob<S>, limit: SegmentNo, name: &str) -> Result<(), StoreError> {
    let inner = &job.inner;
    loop {
        let (is_limited, must_persist_tail) = {
            let mut state = inner.state.borrow_mut();
            state.segments.limit_segment = state.segments.limit_segment.min(limit);
            if !state.is_committing {
                state.segments.close_open_past_limit();
            }
            let next = state.next_sequence;
            let tail = state.segments.advance_tail(next);
            (state.segments.try_set_limit(limit), tail > state.segments.durable_tail)
        };
        if is_limited {
            return Ok(());
        }
        job.wait_if_paused(name).await?;
        if must_persist_tail {
            let _guard = inner.batch_lock.lock().await;
            persist_tail(inner).await?;
        }
        inner.seam.sleep(POLL_INTERVAL).await;
    }
}

/// Copies the content of a segment, durably.
async fn copy_segment<S: Seam>(
    job: &RunningJob<S>,
    device: &Device<S>,
    segment: &SourceSegment,
) -> Result<(), StoreError> {
    let _hold = SegmentHold::new(&job.inner, segment.number);
    for attempt in 0..COPY_ATTEMPTS_MAX {
        let connection_epoch = device.disk.connection_epoch();
        let mut verifier =
            SegmentVerifier::new(job.inner.state.borrow().superblock.store, segment.number, segment.content);
        let mut index = 0;
        while index < segment.used_blocks {
            job.wait_if_paused(&device.name()).await?;
            let count = copy_run(&job.inner, device, segment, index, &mut verifier).await?;
            if attempt == 0 {
                job.add_done_bytes(u64::from(count) * BLOCK_BYTES as u64);
            }
            index += count;
        }
        job.inner.flush_member(device).await.map_err(|error| device.wrap_error(error))?;
        if device.disk.connection_epoch() == connection_epoch {
            return Ok(());
        }
    }
    Err(device.wrap_error(DiskError::Io("the device keeps reconnecting before its writes are flushed".to_owned())))
}

/// Copies a run of blocks from `block_index` on. Returns its length.
async fn copy_run<S: Seam>(
    inner: &Inner<S>,
    device: &Device<S>,
    segment: &SourceSegment,
    block_index: u32,
    verifier: &mut SegmentVerifier,
) -> Result<u32, StoreError> {
    let mut buffers = std::mem::take(&mut inner.state.borrow_mut().copy_buffers);
    if buffers.is_empty() {
        buffers.push(inner.alloc_buffer().await);
    }
    let spare = buffers.split_off(buffers.len().min((segment.used_blocks - block_index) as usize));
    let count = buffers.len() as u32;
    let sources = inner.log_devices();
    let at = block_offset(inner.state.borrow().superblock.segment_bytes, segment.number, block_index);
    let source = sources.first().ok_or_else(|| StoreError::Failed("no device is left".to_owned()))?;
    let (result, pieces) = inner.read_from(source, at, buffers.into_iter().map(Piece::whole).collect()).await;
    let mut blocks: Vec<S::Block> = pieces.into_iter().map(|piece| piece.block.freeze()).collect();
    for (block, index) in blocks.iter_mut().zip(block_index..) {
        let verdict = if result.is_ok() { verifier.verify(index, block) } else { Verdict::Damaged };
        if verdict == Verdict::Damaged {
            match read_good_copy(inner, &sources, segment, index, verifier).await {
                Some(good) => *block = good,
                // The block stays unreadable on the joining device, as on the others: a read of it reports the loss.
                None => verifier.skip(index),
            }
        }
    }
    let pieces = blocks.iter().cloned().map(Piece::whole).collect();
    let result = inner.write_to(device, at, pieces).await;
    keep_buffers(inner, spare.into_iter().chain(blocks.into_iter().filter_map(|block| block.thaw().ok())));
    result.map_err(|error| device.wrap_error(error))?;
    Ok(count)
}

/// The block from any member with a good copy.
async fn read_good_copy<S: Seam>(
    inner: &Inner<S>,
    sources: &[Device<S>],
    segment: &SourceSegment,
    block_index: u32,
    verifier: &mut SegmentVerifier,
) -> Option<S::Block> {
    for source in sources {
        if let Some(block) = read_block(inner, source, segment.number, block_index).await
            && verifier.verify(block_index, &block) != Verdict::Damaged
        {
            return Some(block);
        }
    }
    None
}
