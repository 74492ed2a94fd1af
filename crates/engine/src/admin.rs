//! Administrative operations on a volume while other volumes are served: policy, mode, invalidation, size, removal.
//! Shutdown and drain are in `shutdown.rs`.

use seam::{BLOCK_BYTES, Disk, DiskError, DiskResult, Nanos, Seam};

use crate::memory::{BlockNo, Sectors};
use crate::shard::{Shard, ShardRef};
use crate::spec::Sabotage;
use crate::{CacheMode, RequestError, WritePolicy};

/// Guard: no write is sent to the backing while it exists.
struct DestageHold<'a, S: Seam>(&'a Shard<S>);

impl<'a, S: Seam> DestageHold<'a, S> {
    fn new(shard: &'a Shard<S>) -> Self {
        shard.is_destage_held.set(true);
        DestageHold(shard)
    }
}

impl<S: Seam> Drop for DestageHold<'_, S> {
    fn drop(&mut self) {
        self.0.is_destage_held.set(false);
        self.0.destage_work.notify();
        self.0.progress.notify();
    }
}

/// Time that a detach and a change of the policy wait for the backing's mark to be removed. It is shorter than the time
/// after which a stop counts a backing as hung.
pub const UNMARK_TIMEOUT: Nanos = Nanos::from_secs(5);

/// Guard of a change of the policy or the mode: a further change waits until it is dropped.
struct ChangeGuard<'a, S: Seam> {
    shard: &'a Shard<S>,
}

impl<S: Seam> Drop for ChangeGuard<'_, S> {
    fn drop(&mut self) {
        self.shard.is_changing.set(false);
        self.shard.progress.notify();
    }
}

impl<S: Seam> Shard<S> {
    /// Changes the write policy. If the new policy gives a stronger guarantee than the old one, dirty data is destaged
    /// first. On an error the old policy stays. Waits until an earlier change of the policy or the mode has ended.
    pub async fn set_policy(self: &ShardRef<S>, policy: WritePolicy) -> Result<(), RequestError> {
        let _change = self.begin_change().await;
        let old = self.policy.get();
        if policy == WritePolicy::WriteBack {
            self.set_undestaged_mark().await?;
        }
        // Under write-back the log answers flushes, so it is in force only after the destage: if a flash device fails
        // meanwhile, no flush relies on one copy for as long as the destage takes.
        if policy != WritePolicy::WriteBack {
            self.policy.set(policy);
        }
        let is_stricter = old.defers_writes() && policy != old;
        if let Err(error) = self.destage_for_change(is_stricter).await {
            self.policy.set(old);
            return Err(error);
        }
        self.policy.set(policy);
        if policy != WritePolicy::WriteBack {
            self.remove_mark_within(UNMARK_TIMEOUT).await;
        }
        if policy == WritePolicy::None {
            self.invalidate();
            // The remaining pages on flash are not read any more, and are evicted when room is needed.
            let _ = self.drop_pages().await;
        }
        self.destage_work.notify();
        Ok(())
    }

    /// Marks the backing as lacking flushed writes, before the log answers the first flush.
    async fn set_undestaged_mark(&self) -> DiskResult<()> {
        if !self.has_log || self.has_sabotage(Sabotage::NoUndestagedMark) {
            return Ok(());
        }
        self.disk.mark_undestaged(true).await
    }

    /// Pauses, freezes or resumes the cache. A pause and a freeze destage dirty data first. On an error the mode is
    /// unchanged. Waits until an earlier change of the policy or the mode has ended.
    pub async fn set_mode(self: &ShardRef<S>, mode: CacheMode) -> Result<(), RequestError> {
        let _change = self.begin_change().await;
        let old = self.mode.replace(mode);
        let is_stricter = mode != CacheMode::Active && old == CacheMode::Active;
        if let Err(error) = self.destage_for_change(is_stricter).await {
            self.mode.set(old);
            return Err(error);
        }
        self.destage_work.notify();
        Ok(())
    }

    /// Begins a change of the policy or the mode after the end of an earlier one. A second change would take the value
    /// that the first one has set, and whose destage has not ended, for one that is in force.
    async fn begin_change(&self) -> ChangeGuard<'_, S> {
        self.progress.wait_for(|| (!self.is_changing.replace(true)).then_some(())).await;
        ChangeGuard { shard: self }
    }

    /// Destages all dirty data if the new policy or mode `is_stricter`, or if the volume no longer uses the log: the
    /// records that a recovery would find then get tombstones.
    async fn destage_for_change(self: &ShardRef<S>, is_stricter: bool) -> Result<(), RequestError> {
        if !self.uses_log() && self.state.borrow().log_tracker.has_records() {
            return self.drain_log().await;
        }
        if is_stricter { self.flush_all().await } else { Ok(()) }
    }

    /// Durably drops all clean blocks and pages after the backing was changed from outside. Dirty data makes it fail,
    /// unless `discard_dirty` is set, which drops it too. The caller ensures that no request is served meanwhile.
    /// Returns the bytes dropped from memory.
    pub async fn drop_cached_data(self: &ShardRef<S>, discard_dirty: bool) -> Result<u64, RequestError> {
        let refuse_dirty = || {
            let state = self.state.borrow();
            let dirty = state.not_clean_units() + state.log_tracker.spilled_count();
            if dirty > 0 && !discard_dirty { Err(RequestError::Dirty(dirty * BLOCK_BYTES as u64)) } else { Ok(()) }
        };
        refuse_dirty()?;
        let _hold = DestageHold::new(self);
        self.quiesce().await;
        self.flash_tier.suspend();
        let dropped = self.drop_while_suspended(discard_dirty, refuse_dirty).await;
        if dropped.is_err() {
            // Records that a flush in progress appends must not be kept either.
            self.wait_for_log_flush().await;
        }
        self.flash_tier.resume();
        dropped
    }

    /// The part of [`Shard::drop_cached_data`] during which flash is neither read nor filled. A record that is appended
    /// meanwhile holds the former content of the backing, and must not be kept.
    async fn drop_while_suspended(
        self: &ShardRef<S>,
        discard_dirty: bool,
        refuse_dirty: impl Fn() -> Result<(), RequestError>,
    ) -> Result<u64, RequestError> {
        let dropped = self.invalidate();
        self.drop_pages().await?;
        refuse_dirty()?;
        if discard_dirty {
            self.drop_past(0);
        }
        // An idle volume never flushes by itself, and a recovery would write the records over the changed backing.
        let appended = self.append_tombstones_from(BlockNo::ZERO).await;
        appended.inspect_err(|_| self.queue_tombstones_from(BlockNo::ZERO))?;
        Ok(dropped)
    }

    /// Drops all clean blocks and invalidates all fills in flight. Returns the dropped bytes.
    pub fn invalidate(&self) -> u64 {
        self.with_state(|state, memory| {
            state.invalidate_fills(BlockNo::ALL, Sectors::ALL);
            self.invalidate_flash(self.all_blocks());
            let mut dropped = 0;
            for id in 0..memory.slots_allocated() {
                let slot = memory.slot(id);
                if slot.data.is_some() && slot.volume_number == self.volume_number && slot.is_clean() {
                    memory.remove(id);
                    dropped += BLOCK_BYTES as u64;
                }
            }
            dropped
        })
    }

    /// Destages all dirty data if [`Shard::resize`] to this size will do so.
    pub async fn destage_for_resize(
        self: &ShardRef<S>,
        size: Option<u64>,
        discard_dirty: bool,
    ) -> Result<(), RequestError> {
        if self.is_stopping.get() {
            return Err(RequestError::ShuttingDown);
        }
        let new_size = self.checked_size(size, discard_dirty).await?;
        let discards = new_size < self.size_bytes.get() && discard_dirty;
        if self.first_dropped_byte(new_size).is_some() && !discards { self.flush_all().await } else { Ok(()) }
    }

    /// The new size of a resize; `None`: the backing's present size.
    async fn checked_size(&self, size: Option<u64>, discard_dirty: bool) -> Result<u64, RequestError> {
        let new_size = match size {
            Some(size) => size,
            None => self.disk.refresh_size().await?,
        };
        let logical = u64::from(self.disk.geometry().logical_block);
        if new_size == 0 || !new_size.is_multiple_of(logical) {
            return Err(DiskError::Open(format!(
                "the size {new_size} is not a multiple of the backing's block size of {logical} bytes"
            ))
            .into());
        }
        let shrinks = new_size < self.size_bytes.get();
        if shrinks && discard_dirty && !new_size.is_multiple_of(BLOCK_BYTES as u64) {
            let text =
                format!("a size that discards dirty data must be a multiple of {BLOCK_BYTES} bytes; {new_size} is not");
            return Err(DiskError::Open(text).into());
        }
        Ok(new_size)
    }

    /// The byte from which on a resize to `new_size` drops cached copies. A short last block becomes a whole one when
    /// the volume grows: cached copies of it have to be read again.
    fn first_dropped_byte(&self, new_size: u64) -> Option<u64> {
        let (old, block_bytes) = (self.size_bytes.get(), BLOCK_BYTES as u64);
        if new_size < old {
            Some(new_size)
        } else if new_size > old {
            (!old.is_multiple_of(block_bytes)).then_some(old / block_bytes * block_bytes)
        } else {
            None
        }
    }

    /// Changes the size; `None`: takes the backing's present size. The caller ensures that no request is served
    /// meanwhile.
    pub async fn resize(self: &ShardRef<S>, size: Option<u64>, discard_dirty: bool) -> Result<u64, RequestError> {
        let old = self.size_bytes.get();
        let new_size = self.checked_size(size, discard_dirty).await?;
        let drop_from = self.first_dropped_byte(new_size);
        let discards = new_size < old && discard_dirty;
        if let Some(from) = drop_from.filter(|_| !discards) {
            // Acknowledged data is cut off only on explicit demand: everything is flushed first.
            self.flush_all().await?;
            // A record of blocks past the old or the new end would otherwise restore their content later.
            self.append_tombstones_from(BlockNo(from / BLOCK_BYTES as u64)).await?;
        }
        if new_size > old && drop_from.is_none() {
            // Blocks that an earlier shrink discarded may still have records. After the growth they would be inside.
            self.append_tombstones_from(self.end_block()).await?;
        }
        // From here on no operation past a moving end is in flight. Dirty data stays until the backing has its new
        // size: if that fails, nothing is lost.
        let hold = DestageHold::new(self);
        self.change_size(new_size, size.is_some(), drop_from).await?;
        // A full log frees space by destage.
        drop(hold);
        if discards && self.append_tombstones_from(BlockNo(new_size / BLOCK_BYTES as u64)).await.is_err() {
            // The size has changed, but the log cannot take the tombstone now: the next flush appends it.
            self.queue_tombstones_from(BlockNo(new_size / BLOCK_BYTES as u64));
        }
        Ok(new_size)
    }

    /// Changes the size of the volume, and of its backing if `resize_backing`. Drops all blocks from `drop_from` on.
    /// The pages on flash are not read meanwhile.
    async fn change_size(
        &self,
        new_size: u64,
        resize_backing: bool,
        drop_from: Option<u64>,
    ) -> Result<(), RequestError> {
        self.quiesce().await;
        let write_intent = match drop_from {
            Some(from) => {
                let begun =
                    self.begin_resize(BlockNo(from / BLOCK_BYTES as u64), new_size < self.size_bytes.get()).await;
                begun.inspect_err(|_| self.flash_tier.resume())?
            }
            None => None,
        };
        let changed = if resize_backing { self.disk.set_size(new_size).await } else { Ok(()) };
        self.end_write(write_intent, changed.is_ok());
        self.flash_tier.resume();
        changed?;
        if let Some(from) = drop_from {
            self.drop_past(from);
        }
        self.size_bytes.set(new_size);
        Ok(())
    }

    /// Waits until no operation of this shard is in flight to or from the backing.
    async fn quiesce(&self) {
        self.progress
            .wait_for(|| {
                let state = self.state.borrow();
                (state.operations.is_empty() && state.filling_blocks.is_empty()).then_some(())
            })
            .await;
    }

    /// Drops every block that reaches past `size`, dirty or not. Writes that wait until such a block is on the backing
    /// succeed: the administrator has ordered the drop.
    fn drop_past(&self, size: u64) {
        let first = BlockNo(size / BLOCK_BYTES as u64);
        let first_past_end = BlockNo(size.div_ceil(BLOCK_BYTES as u64));
        let (waits, dropped_from) = self.with_state(|state, memory| {
            state.invalidate_fills(first..BlockNo::MAX, Sectors::ALL);
            for id in 0..memory.slots_allocated() {
                let slot = memory.slot(id);
                if slot.data.is_some() && slot.volume_number == self.volume_number && slot.block >= first {
                    state.supersede(memory, id);
                }
            }
            state.supersede_spilled(first..BlockNo::MAX);
            self.kept_records.borrow_mut().remove(first..BlockNo::MAX);
            state.cut_zeroes(first_past_end..BlockNo::MAX);
            // The zeroes of a partly cut last block stay, and are still to be written.
            let last_block_stays = first < first_past_end && state.zeroes.contains(first);
            let dropped_from = if last_block_stays { first_past_end } else { first };
            (state.write_waits.take_waits(dropped_from..BlockNo::MAX), dropped_from)
        });
        // A flush of the log must append no record of the dropped zeroes: tombstones replace them in its list of
        // changes.
        self.queue_tombstones_from(dropped_from);
        waits.iter().for_each(|wait| wait.finish_one(Ok(&())));
        self.progress.notify();
    }

    /// Drops all blocks, dirty or not: the volume has been removed.
    pub fn drop_all_blocks(&self) {
        self.drop_past(0);
        // The log keeps its records; their validity is decided when they are adopted.
        self.with_state(|state, _| {
            state.log_tracker.outdated().into_iter().for_each(|outdated| outdated.remove(BlockNo::ALL))
        });
        // A fill that begins after this finds no blocks to read.
        self.size_bytes.set(0);
    }
}
