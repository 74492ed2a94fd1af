//! Scrub: finds silent damage before a second failure makes it fatal. It reads every copy of the log's blocks at
//! a bounded rate and checks them. A bad copy is replaced by a good one, as in a read. Without a rate the scrub is off.

use std::ops::Range;
use std::rc::{Rc, Weak};

use seam::{BLOCK_BYTES, Block, BlockMut, Nanos, Piece, Seam};

use crate::device::{Device, Durability, block_offset};
use crate::members::keep_buffers;
use crate::members::segment_verifier::{SegmentVerifier, Verdict};
use crate::number::SegmentNo;
use crate::record_read::SegmentHold;
use crate::segments::{LogSegment, Segment};
use crate::state::Inner;

/// Minimum time between the starts of two rounds, so that a small log is not read continuously.
const ROUND_INTERVAL_MIN: Nanos = Nanos::from_secs(600);
/// Pause between two checks while there is no work.
const IDLE_PAUSE: Nanos = Nanos::from_secs(1);

/// Sets the rate, and starts the scrub if it is not running.
pub fn set_rate<S: Seam>(inner: &Rc<Inner<S>>, bytes_per_second: Option<u64>) {
    let starts = {
        let scrub = &mut inner.state.borrow_mut().scrub;
        scrub.bytes_per_second = bytes_per_second.filter(|rate| *rate > 0);
        scrub.bytes_per_second.is_some() && !std::mem::replace(&mut scrub.is_running, true)
    };
    if starts {
        inner.seam.spawn(run(inner.seam.clone(), Rc::downgrade(inner)));
    }
}

/// Runs until the rate is removed, the store fails or the store is dropped.
async fn run<S: Seam>(seam: S, inner: Weak<Inner<S>>) {
    let mut next_round = seam.now();
    loop {
        let Some(inner) = inner.upgrade() else { return };
        let (ends, is_job_running) = {
            let mut state = inner.state.borrow_mut();
            let ends = state.scrub.bytes_per_second.is_none() || state.failure.is_some();
            if ends {
                state.scrub.is_running = false;
            }
            (ends, state.jobs.report(seam.now()).is_some())
        };
        if ends {
            return;
        }
        if seam.now() >= next_round && !is_job_running {
            next_round = seam.now() + ROUND_INTERVAL_MIN;
            run_round(&inner).await;
        }
        drop(inner);
        seam.sleep(IDLE_PAUSE).await;
    }
}

/// Verifies every copy of the log once, at the present rate.
async fn run_round<S: Seam>(inner: &Rc<Inner<S>>) {
    let segment_blocks = (inner.state.borrow().superblock.segment_bytes / BLOCK_BYTES as u64) as u32;
    let segments: Vec<_> = inner.state.borrow().segments.chain().collect();
    for LogSegment { number, state: segment, open_blocks } in segments {
        if !inner.state.borrow().segments.is_in_log(number, segment.first_sequence) {
            continue;
        }
        let hold = SegmentHold::new(inner, number);
        let mut verifier = SegmentVerifier::new(inner.state.borrow().superblock.store, number, segment);
        let (mut index, end) = (0, open_blocks.unwrap_or(segment_blocks));
        while index < end {
            let rate = {
                let state = inner.state.borrow();
                // Stop at a segment that has died meanwhile: the hold would delay its reuse.
                let continues = state.failure.is_none() && state.segments.is_in_log(number, segment.first_sequence);
                state.scrub.bytes_per_second.filter(|_| continues)
            };
            let Some(rate) = rate else { break };
            let count = verify_run(inner, number, &segment, index..end, &mut verifier).await;
            let Some((count, bytes)) = count else { break };
            index += count;
            inner.state.borrow_mut().scrub.stats.read_bytes += bytes;
            inner.seam.sleep(Nanos(bytes.saturating_mul(1_000_000_000) / rate)).await;
        }
        drop(hold);
    }
    inner.state.borrow_mut().scrub.stats.rounds += 1;
}

/// One device's copy of a run of blocks.
struct RunCopy<S: Seam> {
    device: Device<S>,
    /// False if the device failed the read: the content is then undefined.
    was_read: bool,
    blocks: Vec<S::Block>,
}

/// The state of a block, from all its copies.
enum BlockState<B> {
    /// This copy is intact.
    Intact(B),
    /// Past the last batch no header determines the content, so there is nothing to verify.
    Undetermined,
    /// No copy is intact.
    Lost,
}

/// Verifies a run of blocks on every copy. Returns the number of blocks, and the bytes read; `None` if no buffer or no
/// copy is available.
async fn verify_run<S: Seam>(
    inner: &Rc<Inner<S>>,
    number: SegmentNo,
    segment: &Segment,
    range: Range<u32>,
    verifier: &mut SegmentVerifier,
) -> Option<(u32, u64)> {
    let offset_bytes = block_offset(inner.state.borrow().superblock.segment_bytes, number, range.start);
    let (count, copies) = read_copies(inner, offset_bytes, range.len()).await?;
    for (run_index, block_index) in (0..count).zip(range.start..) {
        match find_intact_copy(&copies, run_index, block_index, verifier) {
            BlockState::Intact(good) => {
                let block_at = offset_bytes + (run_index * BLOCK_BYTES) as u64;
                repair(inner, &copies, run_index, block_at, good).await;
            }
            BlockState::Undetermined => {}
            BlockState::Lost => {
                verifier.skip(block_index);
                let is_still_in_log = inner.state.borrow().segments.is_in_log(number, segment.first_sequence);
                let stats = &mut inner.state.borrow_mut().scrub.stats;
                stats.damaged_blocks += u64::from(is_still_in_log);
                stats.lost_blocks += u64::from(is_still_in_log);
            }
        }
    }
    let bytes = (count * copies.len() * BLOCK_BYTES) as u64;
    let blocks = copies.into_iter().flat_map(|copy| copy.blocks).filter_map(|block| block.thaw().ok());
    keep_buffers(inner, blocks);
    Some((count as u32, bytes))
}

/// Reads up to `blocks_max` blocks from every device of the log, as many as there are buffers for. Returns their
/// number and the copies; `None` if there is no buffer or no device.
async fn read_copies<S: Seam>(
    inner: &Inner<S>,
    offset_bytes: u64,
    blocks_max: usize,
) -> Option<(usize, Vec<RunCopy<S>>)> {
    let devices = inner.log_devices();
    let buffers = std::mem::take(&mut inner.state.borrow_mut().copy_buffers);
    let count = (buffers.len() / devices.len().max(1)).min(blocks_max);
    if count == 0 || devices.is_empty() {
        inner.state.borrow_mut().copy_buffers.extend(buffers);
        return None;
    }
    let (mut buffers, mut copies) = (buffers.into_iter(), Vec::new());
    for device in devices {
        let pieces = buffers.by_ref().take(count).map(Piece::whole).collect();
        let (result, pieces) = inner.read_from(&device, offset_bytes, pieces).await;
        let blocks = pieces.into_iter().map(|piece| piece.block.freeze()).collect();
        copies.push(RunCopy { device, was_read: result.is_ok(), blocks });
    }
    inner.state.borrow_mut().copy_buffers.extend(buffers);
    Some((count, copies))
}

/// Verifies the copies of a block until one is not damaged.
fn find_intact_copy<S: Seam>(
    copies: &[RunCopy<S>],
    run_index: usize,
    block_index: u32,
    verifier: &mut SegmentVerifier,
) -> BlockState<S::Block> {
    for copy in copies.iter().filter(|copy| copy.was_read) {
        let block = &copy.blocks[run_index];
        match verifier.verify(block_index, block) {
            Verdict::Intact => return BlockState::Intact(block.clone()),
            Verdict::Undetermined => return BlockState::Undetermined,
            Verdict::Damaged => {}
        }
    }
    BlockState::Lost
}

/// Writes the good copy of the block at index `run_index` of the run over the copies that differ or could not be read.
/// Like the repair after a read, it does not flush.
async fn repair<S: Seam>(inner: &Inner<S>, copies: &[RunCopy<S>], run_index: usize, block_at: u64, good: S::Block) {
    let is_bad = |copy: &&RunCopy<S>| !copy.was_read || !copy.blocks[run_index].has_same_content(&good);
    let bad: Vec<_> = copies.iter().filter(is_bad).map(|copy| copy.device.clone()).collect();
    if bad.is_empty() {
        return;
    }
    inner.state.borrow_mut().scrub.stats.damaged_blocks += 1;
    for device in bad {
        if inner.write_with_retry_to(&device, block_at, vec![good.clone()], Durability::Unflushed).await.is_ok() {
            inner.state.borrow_mut().scrub.stats.repaired_copies += 1;
        }
    }
}
