//! Fills: reads of blocks from flash or the backing into memory, each under a fill guard (R2, docs/rules.md).

mod flash_read;
pub mod reload;
pub mod sibling_read;

use std::ops::Range;
use std::rc::Rc;

use seam::{BLOCK_BYTES, BlockMut, Disk, DiskError, Nanos, Piece, Seam};

use crate::ByteOffset;
use crate::backing::{BackingOp, Cause, Priority};
use crate::memory::{BlockNo, MemoryCache, Sectors};
use crate::policy::InsertKind;
use crate::shard::fill_guard::FillGuard;
use crate::shard::state::State;
use crate::shard::{Shard, Span};
use crate::spec::Sabotage;

/// Result of a fill: the content, and its guard with the sectors changed meanwhile.
pub struct FillResult<S: Seam> {
    /// First block.
    pub first_block: BlockNo,
    /// The blocks, in order.
    pub blocks: Vec<S::Block>,
    /// Number of blocks from flash.
    pub flash_blocks: usize,
    /// Number of blocks that flash failed to deliver.
    pub unreadable_blocks: usize,
    /// Time that the fill waited for requests of other volumes.
    pub slot_wait: Nanos,
    guard: Rc<FillGuard>,
}

impl<S: Seam> FillResult<S> {
    /// Blocks from `first` on, read under `guard`.
    pub fn new(first: BlockNo, blocks: Vec<S::Block>, guard: Rc<FillGuard>) -> Self {
        FillResult { first_block: first, blocks, guard, flash_blocks: 0, unreadable_blocks: 0, slot_wait: Nanos::ZERO }
    }

    /// The content of a block, if all of `sectors` were still valid when the fill ended.
    pub fn content(&self, block: BlockNo, sectors: Sectors) -> Option<&S::Block> {
        let invalidated = self.guard.invalidated(block);
        (invalidated.without(sectors) == invalidated)
            .then(|| &self.blocks[block.distance_from(self.first_block) as usize])
    }
}

impl<S: Seam> Shard<S> {
    /// Reads `blocks` from flash or the backing, and merges them into partial blocks. `admit`: how memory admits absent
    /// blocks; with `None` it does not.
    pub async fn fill(
        &self,
        blocks: Range<BlockNo>,
        admit: Option<InsertKind>,
        cause: Cause,
    ) -> Result<FillResult<S>, DiskError> {
        // Readahead does not wait for buffers, because clients wait for theirs. Other fills allocate before they take
        // the guard and the permit for the backing's queue: a fill that waited with these would block the reads and
        // writes that free buffers.
        let may_wait = cause != Cause::Readahead;
        match self.core.alloc_all(BlockNo::count(&blocks) as usize, may_wait).await {
            Some(buffers) => self.fill_into(blocks, buffers, admit, cause).await,
            None => Err(DiskError::Io("no buffers are free for readahead".into())),
        }
    }

    /// Like [`Shard::fill`], into these buffers, one for each block.
    pub async fn fill_into(
        &self,
        blocks: Range<BlockNo>,
        buffers: Vec<S::BlockMut>,
        admit: Option<InsertKind>,
        cause: Cause,
    ) -> Result<FillResult<S>, DiskError> {
        let guard = self.with_state(|state, memory| match self.has_sabotage(Sabotage::FillOverSpilled) {
            true => state.issue_reload_guard(blocks.clone()),
            false => state.issue_fill_guard(memory, self.volume_number, blocks.clone(), true),
        });
        let mut flash_read = self.read_from_flash(blocks.clone(), buffers, self.priority_of_read(cause)).await;
        let missing = flash_read.missing_runs();
        let backing_blocks: usize = missing.iter().map(Range::len).sum();
        let are_from_backing: Vec<bool> = flash_read.content.iter().map(Option::is_none).collect();
        for run in missing {
            let first = blocks.start.plus(run.start as u64);
            let taken = run
                .clone()
                .map(|index| flash_read.buffers[index].take().expect("a block without content has a buffer"));
            match self.read_backing_blocks(first, taken.collect(), cause).await {
                Ok((read, waited)) => {
                    flash_read.slot_wait += waited;
                    run.zip(read).for_each(|(index, block)| flash_read.content[index] = Some(block));
                }
                Err(error) => {
                    self.state.borrow_mut().release_fill_guard(&guard);
                    return Err(error);
                }
            }
        }
        let content: Vec<_> = flash_read
            .content
            .into_iter()
            .map(|block| block.expect("every block was read from flash or from the backing"))
            .collect();
        self.with_state(|state, memory| {
            for ((block, data), is_from_backing) in BlockNo::each(&blocks).zip(&content).zip(are_from_backing) {
                let new = self.install(state, memory, &guard, block, data, admit);
                if let Some(id) = new.filter(|_| is_from_backing && cause == Cause::Readahead) {
                    memory.slot_mut(id).was_read_ahead = true;
                }
            }
            state.release_fill_guard(&guard);
        });
        let flash_blocks = content.len() - backing_blocks;
        let (unreadable_blocks, slot_wait) = (flash_read.unreadable_blocks, flash_read.slot_wait);
        Ok(FillResult { first_block: blocks.start, blocks: content, flash_blocks, unreadable_blocks, slot_wait, guard })
    }

    /// Reads blocks of the backing from `first` on, a buffer each; bytes past the volume's end are zeroes. Also returns
    /// the time that the read waited for other volumes.
    pub async fn read_backing_blocks(
        &self,
        first: BlockNo,
        buffers: Vec<S::BlockMut>,
        cause: Cause,
    ) -> Result<(Vec<S::Block>, Nanos), DiskError> {
        if first.plus(buffers.len() as u64) > self.end_block() {
            // The volume has been shrunk or removed since the caller planned the read.
            return Err(DiskError::Io("the block is past the end of the volume".into()));
        }
        let piece_of = |(block, buffer)| Piece::new(buffer, 0, self.bytes_inside(block));
        let pieces: Vec<_> = first.onward().zip(buffers).map(piece_of).collect();
        let bytes = seam::block::pieces_len(&pieces) as u64;
        let at = ByteOffset::of(first);
        let permit = self.dispatch.acquire(cause).await;
        let io_slot = self.acquire_io_slot(BackingOp::Read, at, bytes, self.priority_of_read(cause)).await;
        let waited = io_slot.as_ref().map_or(Nanos::ZERO, |slot| slot.slot_wait);
        let began = self.seam().now();
        let (result, pieces) = self.disk.read(at.0, pieces).await;
        drop((io_slot, permit));
        let now = self.seam().now();
        self.counters.count_backing_request(BackingOp::Read, cause, bytes, now.since(began));
        // After these causes no read follows. The callers of the others read again, in smaller parts or later, and
        // count the error if that fails, too.
        if result.is_err() && matches!(cause, Cause::Readahead | Cause::Promotion) {
            self.counters.add(&self.counters.backing_errors, 1);
        }
        self.flash_tier.page_fill_budget.record_read(now, bytes);
        result?;
        let whole = pieces.into_iter().map(|piece| {
            let (len, mut block) = (piece.len(), piece.block);
            if len < BLOCK_BYTES {
                block.zero(len, BLOCK_BYTES - len);
            }
            block.freeze()
        });
        Ok((whole.collect(), waited))
    }

    /// Reads only the sectors of a span from the backing, for a request whose block cannot be read whole. Memory admits
    /// nothing.
    pub async fn read_sectors_from_backing(&self, span: &Span) -> Result<FillResult<S>, DiskError> {
        let block = span.block;
        let guard =
            self.with_state(|state, memory| state.issue_fill_guard(memory, self.volume_number, block.single(), false));
        let piece = Piece::new(self.core.alloc().await, span.offset_in_block, span.len_bytes);
        let at = ByteOffset::of(block).plus(span.offset_in_block as u64);
        let permit = self.dispatch.acquire(Cause::ClientRead).await;
        let io_slot = self.acquire_io_slot(BackingOp::Read, at, span.len_bytes as u64, Priority::Foreground).await;
        let waited = io_slot.as_ref().map_or(Nanos::ZERO, |slot| slot.slot_wait);
        let began = self.seam().now();
        let (result, pieces) = self.disk.read(at.0, vec![piece]).await;
        drop((io_slot, permit));
        let latency = self.seam().now().since(began);
        self.counters.count_backing_request(BackingOp::Read, Cause::ClientRead, span.len_bytes as u64, latency);
        self.state.borrow_mut().release_fill_guard(&guard);
        result?;
        let blocks = pieces.into_iter().map(|piece| piece.block.freeze()).collect();
        Ok(FillResult { first_block: block, blocks, flash_blocks: 0, unreadable_blocks: 0, slot_wait: waited, guard })
    }

    /// Installs a block that was read under `guard` in memory, as far as it is still valid. An absent block gets a slot
    /// only with `admit`. Returns its slot.
    pub fn install(
        &self,
        state: &State,
        memory: &mut MemoryCache<S>,
        guard: &FillGuard,
        block: BlockNo,
        data: &S::Block,
        admit: Option<InsertKind>,
    ) -> Option<u32> {
        let invalidated =
            if self.has_sabotage(Sabotage::NoFillGuards) { Sectors::NONE } else { guard.invalidated(block) };
        let Some(id) = memory.find(self.volume_number, block) else {
            let is_valid = invalidated == Sectors::NONE && !state.zeroes.contains(block) && block < self.end_block();
            let admit = admit.filter(|_| is_valid)?;
            return Some(memory.insert(self.volume_number, block, data.clone(), Sectors::ALL, admit));
        };
        let present = memory.slot(id).present;
        let loses_partial_write = self.has_sabotage(Sabotage::LosePartialWrite) && present != Sectors::ALL;
        let missing = if self.has_sabotage(Sabotage::NoFillGuards) || loses_partial_write {
            Sectors::ALL
        } else {
            Sectors::ALL.without(present).without(invalidated)
        };
        if missing == Sectors::NONE {
            return None;
        }
        // R1: holders of the partial block keep their content; the merged block is a copy where necessary.
        let mut merged = match memory.take_unique(id) {
            Some(unique) => unique,
            None => match self.seam().alloc() {
                Some(mut copy) => {
                    let old = memory.slot(id).data.as_ref().expect("a slot in use has content");
                    copy.copy_from(0, old, 0, BLOCK_BYTES);
                    copy
                }
                // Without a buffer for the copy the block stays partial until a later fill.
                None => return None,
            },
        };
        for (start, len) in missing.runs() {
            merged.copy_from(start, data, start, len);
        }
        let slot = memory.slot_mut(id);
        let old = slot.data.replace(merged.freeze());
        slot.present = present.with(missing);
        memory.record_new_content(id, old);
        None
    }
}
