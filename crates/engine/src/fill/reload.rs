//! Reload of spilled blocks from the flash log into memory, each under a fill guard (R2, docs/rules.md): a write
//! meanwhile takes precedence.

use std::ops::Range;
use std::rc::Rc;

use flash::{BlockAddress, Position, ReadRequest};
use seam::{DiskError, Nanos, Seam};

use super::FillResult;
use crate::memory::{BlockNo, MemoryCache, Sectors};
use crate::policy::InsertKind;
use crate::shard::fill_guard::FillGuard;
use crate::shard::state::State;
use crate::shard::{Shard, ShardRef};
use crate::spec::Sabotage;

/// Dirty data, in percent of its limit, below which reads keep reloaded blocks in memory and destage reloads ahead.
/// Less than `spill_percent`, so that a reload causes no spill.
const RELOAD_ROOM_PERCENT: u64 = 40;

/// Reason of a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReloadReason {
    /// A client reads the blocks: they stay spilled if memory holds enough dirty blocks.
    Read,
    /// A client changes a part of the blocks.
    Write,
    /// The blocks go to the backing, and then leave memory.
    Destage,
}

impl<S: Seam> Shard<S> {
    /// True if memory has room to reload a spilled block for a read or for destage.
    pub fn has_room_to_reload(&self, state: &State) -> bool {
        (state.not_clean_units() + state.reloading_blocks) * 100 < self.not_clean_limit_blocks() * RELOAD_ROOM_PERCENT
    }

    /// Reloads a run of spilled blocks, waiting for buffers. Returns `None` if one of them is not spilled, is under
    /// another fill guard, or was overwritten and unreadable; the caller retries.
    pub async fn reload(
        self: &ShardRef<S>,
        blocks: Range<BlockNo>,
        reason: ReloadReason,
    ) -> Result<Option<FillResult<S>>, DiskError> {
        let count = BlockNo::count(&blocks) as usize;
        let buffers = self.core.alloc_all(count, true).await.expect("a caller that may wait gets its buffers");
        self.reload_into(blocks, buffers, reason).await
    }

    /// Like [`Shard::reload`], but into these buffers. An unreadable block fails the call; for destage it also pauses
    /// the block.
    pub async fn reload_into(
        self: &ShardRef<S>,
        blocks: Range<BlockNo>,
        buffers: Vec<S::BlockMut>,
        reason: ReloadReason,
    ) -> Result<Option<FillResult<S>>, DiskError> {
        let issued = self.with_state(|state, _| {
            let positions = BlockNo::each(&blocks).map(|block| {
                let is_unguarded = state.fill_guard_for(block, Sectors::ALL).is_none();
                state.log_tracker.spilled_position(block).filter(|_| is_unguarded)
            });
            let positions: Vec<Position> = positions.collect::<Option<_>>()?;
            Some((state.issue_reload_guard(blocks.clone()), positions))
        });
        let Some((guard, positions)) = issued else { return Ok(None) };
        let result = match self.core.log() {
            Some(store) => {
                let addresses = BlockNo::each(&blocks).map(|block| BlockAddress { volume_id: self.volume_id, block });
                let requests = addresses.zip(positions).zip(buffers).map(|((address, position), buffer)| ReadRequest {
                    address,
                    position,
                    buffer,
                });
                let read = store.read_all(requests.collect()).await;
                let read =
                    read.into_iter().map(|block| block.map_err(|error| DiskError::Io(error.to_string()))).collect();
                self.install_reloaded(&guard, &blocks, read, reason)
            }
            None => Err(DiskError::Gone),
        };
        self.state.borrow_mut().release_fill_guard(&guard);
        if let Err(error) = &result {
            *self.counters.last_error.borrow_mut() = Some(error.clone());
        }
        result
    }

    /// Reloads the spilled ones of these blocks, for destage. A block that a client reads or changes meanwhile, that is
    /// unreadable, or whose last write failed, is left out.
    pub async fn reload_blocks(self: &ShardRef<S>, blocks: &[BlockNo]) {
        let Some(store) = self.core.log() else { return };
        let (mut requests, mut guards) = (Vec::new(), Vec::new());
        self.with_state(|state, memory| {
            for block in blocks {
                let is_available = state.fill_guard_for(*block, Sectors::ALL).is_none()
                    && !state.failures.is_paused(*block, || self.seam().now());
                let position = state.log_tracker.spilled_position(*block).filter(|_| is_available);
                let Some((position, buffer)) = position.and_then(|position| Some((position, memory.alloc()?))) else {
                    continue;
                };
                let address = BlockAddress { volume_id: self.volume_id, block: *block };
                requests.push(ReadRequest { address, position, buffer });
                guards.push((state.issue_reload_guard(block.single()), *block));
            }
            state.reloading_blocks += guards.len() as u64;
        });
        let read = store.read_all(requests).await;
        for ((guard, block), read) in guards.into_iter().zip(read) {
            let read = vec![read.map_err(|error| DiskError::Io(error.to_string()))];
            let result = self.install_reloaded(&guard, &block.single(), read, ReloadReason::Destage);
            let mut state = self.state.borrow_mut();
            state.release_fill_guard(&guard);
            state.reloading_blocks -= 1;
            if let Err(error) = result {
                *self.counters.last_error.borrow_mut() = Some(error);
            }
        }
        self.progress.notify();
    }

    fn install_reloaded(
        &self,
        guard: &Rc<FillGuard>,
        blocks: &Range<BlockNo>,
        read: Vec<Result<S::Block, DiskError>>,
        reason: ReloadReason,
    ) -> Result<Option<FillResult<S>>, DiskError> {
        let now = self.seam().now();
        // The block has been dirty for long: destage should take it soon, so that it need not be reloaded again.
        let since = Nanos(now.0.saturating_sub(self.dirty_age_max().0));
        let (mut failure, mut changed_meanwhile) = (None, false);
        let mut content = Vec::with_capacity(read.len());
        self.with_state(|state, memory| {
            for (block, data) in BlockNo::each(blocks).zip(read) {
                let is_invalidated = guard.invalidated(block) != Sectors::NONE;
                match data {
                    Err(_) if is_invalidated => changed_meanwhile = true,
                    Err(error) => {
                        if reason == ReloadReason::Destage {
                            state.failures.add(block, now);
                        }
                        failure.get_or_insert(error);
                    }
                    Ok(data) => {
                        if !is_invalidated && (reason != ReloadReason::Read || self.has_room_to_reload(state)) {
                            let id = memory.insert(
                                self.volume_number,
                                block,
                                data.clone(),
                                Sectors::ALL,
                                InsertKind::Normal,
                            );
                            memory.slot_mut(id).is_transit = reason == ReloadReason::Destage;
                            state.mark_reloaded(memory, id, since);
                        } else if is_invalidated && self.has_sabotage(Sabotage::ReloadOverWrite) {
                            self.overwrite_newer(memory, block, &data);
                        }
                        content.push(data);
                    }
                }
            }
        });
        match failure {
            Some(error) => Err(error),
            None if changed_meanwhile => Ok(None),
            None => Ok(Some(FillResult::new(blocks.start, content, Rc::clone(guard)))),
        }
    }

    /// The fault of [`Sabotage::ReloadOverWrite`].
    fn overwrite_newer(&self, memory: &mut MemoryCache<S>, block: BlockNo, data: &S::Block) {
        if let Some(id) = memory.find(self.volume_number, block) {
            memory.slot_mut(id).data = Some(data.clone());
        }
    }

    /// Waits until a block that is to be changed in part is not on flash alone.
    pub async fn reload_for_partial_write(self: &ShardRef<S>, block: BlockNo) -> Result<(), DiskError> {
        loop {
            let reload_guard = {
                let state = self.state.borrow();
                if !state.log_tracker.is_spilled(block) {
                    return Ok(());
                }
                state.fill_guard_for(block, Sectors::ALL).cloned()
            };
            match reload_guard {
                Some(guard) => guard.wait_for_end().await,
                None => drop(self.reload(block.single(), ReloadReason::Write).await?),
            }
        }
    }
}
