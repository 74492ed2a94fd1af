//! Transfer of cached blocks: a volume that has moved to another host takes over what its former owner has in memory.
//!
//! The former owner keeps the blocks of the detached volume until memory is needed, as [`RetainedBlocks`]. They are the
//! backing's content at the hand-over. The next owner admits a block only if it has not changed it since its attach
//! ([`VolumeSpec::awaits_transfer`](crate::VolumeSpec::awaits_transfer)). The caller has to prove that no other client
//! wrote to the backing between the two.

use seam::{BLOCK_BYTES, Seam};

use super::Volume;
use crate::memory::{BlockNo, Sectors};
use crate::policy::{InsertKind, PolicyPart};
use crate::shard::ShardRef;
use crate::spec::Sabotage;

/// Slots that one call examines.
const SLOTS_MAX: u32 = 4096;

/// The blocks of a detached volume that are still in memory. Other volumes evict them first; the end of this handle
/// drops them.
pub struct RetainedBlocks<S: Seam>(ShardRef<S>);

/// Position in the retained blocks: those of the main part come first.
#[derive(Clone, Copy, Debug)]
pub struct RetainedPosition {
    part: PolicyPart,
    slot: u32,
}

impl RetainedPosition {
    /// Before the first block.
    pub const START: RetainedPosition = RetainedPosition { part: PolicyPart::Main, slot: 0 };
}

/// Retained blocks of one part.
pub struct RetainedBatch<S: Seam> {
    /// The part of the policy that they were in.
    pub part: PolicyPart,
    /// The blocks with their content.
    pub blocks: Vec<(BlockNo, S::Block)>,
}

impl<S: Seam> RetainedBlocks<S> {
    /// The blocks of a volume that is drained and removed from its core.
    pub(crate) fn new(shard: ShardRef<S>) -> Self {
        RetainedBlocks(shard)
    }

    /// At most `blocks_max` further blocks, possibly none; `None` at the end.
    pub fn next(&self, position: &mut RetainedPosition, blocks_max: usize) -> Option<RetainedBatch<S>> {
        let shard = &self.0;
        shard.with_state(|state, memory| {
            let mut batch = RetainedBatch { part: position.part, blocks: Vec::new() };
            let end = memory.slots_allocated().min(position.slot.saturating_add(SLOTS_MAX));
            while position.slot < end && batch.blocks.len() < blocks_max {
                let id = position.slot;
                position.slot += 1;
                let slot = memory.slot(id);
                let is_whole = slot.present == Sectors::ALL && shard.bytes_inside(slot.block) == BLOCK_BYTES;
                let is_retained = slot.volume_number == shard.volume_number && slot.is_clean() && is_whole;
                if let Some(data) = slot.data.as_ref().filter(|_| is_retained)
                    && !state.zeroes.contains(slot.block)
                    && memory.part(id) == position.part
                {
                    batch.blocks.push((slot.block, data.clone()));
                }
            }
            if batch.blocks.is_empty() && position.slot >= memory.slots_allocated() {
                match position.part {
                    PolicyPart::Main => *position = RetainedPosition { part: PolicyPart::Probation, slot: 0 },
                    PolicyPart::Probation => return None,
                }
            }
            Some(batch)
        })
    }

    /// Bytes that are still in memory.
    pub fn bytes(&self) -> u64 {
        self.0.core.memory().borrow().usage(self.0.volume_number).held_blocks * BLOCK_BYTES as u64
    }
}

impl<S: Seam> Drop for RetainedBlocks<S> {
    fn drop(&mut self) {
        let shard = &self.0;
        // The volume may have been attached again, under the same ID: neither its log records nor its persistence tags
        // are touched, and clean blocks have none.
        let memory = &mut *shard.core.memory().borrow_mut();
        for id in 0..memory.slots_allocated() {
            if memory.usage(shard.volume_number).held_blocks == 0 {
                break;
            }
            let slot = memory.slot(id);
            if slot.data.is_some() && slot.volume_number == shard.volume_number && slot.is_clean() {
                memory.remove(id);
            }
        }
        // A fill that begins after this finds no blocks to read.
        shard.size_bytes.set(0);
    }
}

impl<S: Seam> Volume<S> {
    /// True while blocks of the former owner can be admitted.
    pub fn awaits_transfer(&self) -> bool {
        let shard = &self.0.shard;
        shard.state.borrow().changed_blocks.is_some() && shard.admits_reads() && !shard.is_stopping.get()
    }

    /// Ends the transfer: no further block is admitted.
    pub fn end_transfer(&self) {
        self.0.shard.state.borrow_mut().changed_blocks = None;
        self.0.shard.progress.notify();
    }

    /// Waits until no block of the former owner is admitted any more, at the latest until the volume stops.
    pub async fn wait_for_transfer_end(&self) {
        self.0.shard.progress.wait_for(|| (!self.awaits_transfer()).then_some(())).await;
    }

    /// Buffers for at most `count` blocks of the former owner, up to the volume's maximum. Blocks of its main part
    /// displace others until the volume has an equal part of memory; all others take free buffers only.
    pub fn transfer_buffers(&self, part: PolicyPart, count: usize) -> Vec<S::BlockMut> {
        let shard = &self.0.shard;
        let equal_part = (shard.seam().blocks_total() / shard.core.shards().len().max(1)) as u64;
        shard.with_state(|_, memory| {
            let usage = memory.usage(shard.volume_number);
            let held = usage.held_blocks;
            let next = |taken: u64| match part {
                _ if held + taken >= usage.max_blocks => None,
                PolicyPart::Main if held + taken < equal_part => memory.alloc(),
                PolicyPart::Main | PolicyPart::Probation => shard.seam().alloc(),
            };
            (0..count as u64).map_while(next).collect()
        })
    }

    /// Admits a block of the former owner's `part`, unless it was changed since the attach or is in memory already.
    /// Returns true if it is admitted.
    pub fn admit_transferred(&self, part: PolicyPart, block: BlockNo, data: S::Block) -> bool {
        let shard = &self.0.shard;
        if !self.awaits_transfer() || block >= shard.end_block() {
            return false;
        }
        let admit = match part {
            PolicyPart::Main => InsertKind::Reused,
            PolicyPart::Probation => InsertKind::Normal,
        };
        shard.with_state(|state, memory| {
            let is_changed = state.changed_blocks.as_ref().is_none_or(|changed| changed.contains(block));
            let has_newer = state.zeroes.contains(block) || state.log_tracker.is_spilled(block);
            let is_sabotaged = shard.has_sabotage(Sabotage::TransferOverWrite);
            if is_changed && !is_sabotaged || has_newer || memory.find(shard.volume_number, block).is_some() {
                return false;
            }
            memory.insert(shard.volume_number, block, data, Sectors::ALL, admit);
            shard.counters.add(&shard.counters.transferred_bytes, BLOCK_BYTES as u64);
            true
        })
    }
}
