//! Fills a device that will carry the log, while appends continue.
//!
//! From one moment between two batches the device takes every batch. The earlier content of the log is copied segment
//! by segment, oldest first. Each block is checked, because the copy may one day be the only good one. A segment that
//! has died meanwhile is left out; a segment that has been reused is on the newcomer already.

use seam::{BLOCK_BYTES, Block, BlockMut, Disk, DiskError, Nanos, Piece, Seam};

use super::job::Running;
use super::segment_verifier::{SegmentVerifier, read_block};
use crate::create::segments_of;
use crate::device::{Device, place};
use crate::error::StoreError;
use crate::membership::save_tail;
use crate::read::Pin;
use crate::segments::Segment;
use crate::store::{Inner, Sabotage};

/// Buffers for copying: at most this many, and at most this fraction of the pool.
const COPY_BLOCKS_MAX: usize = 32;
const COPY_POOL_PART: usize = 128;
/// The least number of buffers: the scrub compares one block of both copies.
const SCRUB_BLOCKS: usize = 2;
/// The most attempts to copy a segment, if the newcomer reconnects meanwhile.
const TRIES: u32 = 3;
/// Pause between two checks whether the log has left the segments past the newcomer's end.
const PAUSE: Nanos = Nanos::from_millis(5);

/// The number of buffers that a store keeps for copying.
pub fn copy_blocks<S: Seam>(seam: &S) -> usize {
    (seam.blocks_total() / COPY_POOL_PART).clamp(SCRUB_BLOCKS, COPY_BLOCKS_MAX)
}

/// Keeps buffers for the next copy, at most as many as at the start.
pub fn keep_buffers<S: Seam>(inner: &Inner<S>, buffers: impl Iterator<Item = S::BlockMut>) {
    let mut state = inner.state.borrow_mut();
    state.copying.extend(buffers);
    state.copying.truncate(copy_blocks(&inner.seam));
}

/// A segment of the log at the time when the newcomer joined.
struct Part {
    number: u32,
    segment: Segment,
    blocks: u32,
}

/// Fills `device`. When this returns, the device holds the log's whole content and continues to take batches.
pub async fn fill<S: Seam>(running: &Running<S>, device: &Device<S>) -> Result<(), StoreError> {
    let inner = &running.inner;
    let name = device.name();
    let (segment_bytes, limit) = {
        let state = inner.state.borrow();
        let room = segments_of(device, state.superblock.segment_bytes);
        (state.superblock.segment_bytes, room.min(state.superblock.segments))
    };
    let _held = crate::pages::segment_lending::drop_pages_of(inner, device.member).await;
    wait_until_log_fits(running, limit, &name).await?;
    let parts = {
        let _inside = inner.batches.enter().await;
        let mut state = inner.state.borrow_mut();
        state.joining = Some(device.clone());
        let blocks = (segment_bytes / BLOCK_BYTES as u64) as u32;
        let part = |(number, segment, used): (u32, Segment, Option<u32>)| Part {
            number,
            segment,
            blocks: used.unwrap_or(blocks),
        };
        state.segments.chain().map(part).collect::<Vec<_>>()
    };
    let bytes = |part: &Part| u64::from(part.blocks) * BLOCK_BYTES as u64;
    running.total(parts.iter().map(bytes).sum());
    let skip = inner.sabotage.is(Sabotage::SkipResync);
    for part in parts.iter().filter(|_| !skip) {
        running.go_on(&name).await?;
        let live = inner.state.borrow().segments.is_live(part.number, part.segment.first);
        match live {
            true => copy(running, device, part).await?,
            false => running.advance(bytes(part)),
        }
    }
    running.go_on(&name).await
}

/// Waits until no content that a recovery may read lies in segments past the newcomer's end.
async fn wait_until_log_fits<S: Seam>(running: &Running<S>, limit: u32, name: &str) -> Result<(), StoreError> {
    let inner = &running.inner;
    loop {
        let (cut, must_save) = {
            let mut state = inner.state.borrow_mut();
            state.segments.limit = state.segments.limit.min(limit);
            let next = state.next;
            let tail = state.segments.tail(next);
            (state.segments.cut(limit), tail > state.segments.durable_tail)
        };
        if cut {
            return Ok(());
        }
        running.go_on(name).await?;
        if must_save {
            let _inside = inner.batches.enter().await;
            save_tail(inner).await?;
        }
        inner.seam.sleep(PAUSE).await;
    }
}

/// Copies the content of a segment, durably.
async fn copy<S: Seam>(running: &Running<S>, device: &Device<S>, part: &Part) -> Result<(), StoreError> {
    let _pin = Pin::new(&running.inner, part.number);
    for attempt in 0..TRIES {
        let incarnation = device.disk.incarnation();
        let mut verifier =
            SegmentVerifier::new(running.inner.state.borrow().superblock.store, part.number, part.segment);
        let mut index = 0;
        while index < part.blocks {
            running.go_on(&device.name()).await?;
            let count = copy_run(&running.inner, device, part, index, &mut verifier).await?;
            if attempt == 0 {
                running.advance(u64::from(count) * BLOCK_BYTES as u64);
            }
            index += count;
        }
        running.inner.flush_of(device).await.map_err(|error| device.failed(error))?;
        if device.disk.incarnation() == incarnation {
            return Ok(());
        }
    }
    Err(device.failed(DiskError::Io("the device keeps reconnecting before its writes are flushed".to_owned())))
}

/// Copies a run of blocks from `index` on. Returns its length.
async fn copy_run<S: Seam>(
    inner: &Inner<S>,
    device: &Device<S>,
    part: &Part,
    index: u32,
    verifier: &mut SegmentVerifier,
) -> Result<u32, StoreError> {
    let mut buffers = std::mem::take(&mut inner.state.borrow_mut().copying);
    if buffers.is_empty() {
        buffers.push(inner.buffer().await);
    }
    let spare = buffers.split_off(buffers.len().min((part.blocks - index) as usize));
    let count = buffers.len() as u32;
    let sources = inner.log_devices();
    let at = place(inner.state.borrow().superblock.segment_bytes, part.number, index);
    let source = sources.first().ok_or_else(|| StoreError::Failed("no device is left".to_owned()))?;
    let (result, pieces) = inner.read_from(source, at, buffers.into_iter().map(Piece::whole).collect()).await;
    let mut blocks: Vec<S::Block> = pieces.into_iter().map(|piece| piece.block.freeze()).collect();
    for (block, index) in blocks.iter_mut().zip(index..) {
        let said = if result.is_ok() { verifier.is_good(index, block) } else { Some(false) };
        if said == Some(false) {
            match good_copy(inner, &sources, part, index, verifier).await {
                Some(good) => *block = good,
                // The block is lost on the newcomer as on the others. A read of it reports the loss.
                None => verifier.skip(index),
            }
        }
    }
    let write = blocks.iter().cloned().map(Piece::whole).collect();
    let written = inner.write_to(device, at, write).await;
    keep_buffers(inner, spare.into_iter().chain(blocks.into_iter().filter_map(|block| block.thaw().ok())));
    written.map_err(|error| device.failed(error))?;
    Ok(count)
}

/// The block from any member with a good copy.
async fn good_copy<S: Seam>(
    inner: &Inner<S>,
    sources: &[Device<S>],
    part: &Part,
    index: u32,
    verifier: &mut SegmentVerifier,
) -> Option<S::Block> {
    for source in sources {
        if let Some(block) = read_block(inner, source, part.number, index).await
            && verifier.is_good(index, &block) != Some(false)
        {
            return Some(block);
        }
    }
    None
}
