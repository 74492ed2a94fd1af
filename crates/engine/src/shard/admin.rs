//! What an administrator does to a volume while others are served: policy, mode, invalidation, size, removal.

use std::cell::Cell;
use std::rc::Rc;

use seam::{BLOCK_BYTES, Disk, DiskError, Nanos, Seam};

use super::{Shard, ShardRef};
use crate::memory::{BlockNo, Sectors};
use crate::{CacheMode, RequestError, WritePolicy};

/// Nothing is sent to the backing as long as this is there.
struct Hold<'a, S: Seam>(&'a Shard<S>);

impl<'a, S: Seam> Hold<'a, S> {
    fn new(shard: &'a Shard<S>) -> Self {
        shard.holding.set(true);
        Hold(shard)
    }
}

impl<S: Seam> Drop for Hold<'_, S> {
    fn drop(&mut self) {
        self.0.holding.set(false);
        self.0.work.notify();
        self.0.progress.notify();
    }
}

/// Time that a stop gives a backing for the writes that destage had begun.
const END_DESTAGE_PATIENCE: Nanos = Nanos::from_millis(500);

impl<S: Seam> Shard<S> {
    /// No write is begun any more; those under way end, and the backing is flushed behind them: the next start can tell then whether the backing is as it was
    /// left. Without that the regions under way prove nothing. A backing that takes too long is not waited for.
    pub async fn end_destage_in_time(self: &ShardRef<S>) {
        self.holding.set(true);
        let is_over = Rc::new(Cell::new(false));
        let (shard, over) = (Rc::clone(self), Rc::clone(&is_over));
        self.seam().spawn(async move {
            shard.progress.wait_for(|| shard.state.borrow().operations.is_empty().then_some(())).await;
            // One that fails is heard of by the next start, as after a crash.
            shard.sync().await;
            over.set(true);
            shard.progress.notify();
        });
        let (shard, over) = (Rc::clone(self), Rc::clone(&is_over));
        self.seam().spawn(async move {
            shard.seam().sleep(END_DESTAGE_PATIENCE).await;
            over.set(true);
            shard.progress.notify();
        });
        self.progress.wait_for(|| is_over.get().then_some(())).await;
    }

    /// Changes when writes are acknowledged. Where the new policy promises more than the old one, what is dirty is brought to
    /// the backing first; on an error the old policy stays.
    pub async fn set_policy(self: &ShardRef<S>, policy: WritePolicy) -> Result<(), RequestError> {
        let old = self.policy.replace(policy);
        let promises_more = old.defers_writes() && policy != old;
        if promises_more && let Err(error) = self.flush_all().await {
            self.policy.set(old);
            return Err(error);
        }
        if !self.logs()
            && let Err(error) = self.bury_from(0).await
        {
            self.policy.set(old);
            return Err(error);
        }
        if policy == WritePolicy::None {
            self.invalidate();
            // What is left of it there is not asked for, and goes when room is needed.
            let _ = self.forget_pages().await;
        }
        self.work.notify();
        Ok(())
    }

    /// Pauses, freezes or resumes the cache. A pause and a freeze bring to the backing what is dirty; on an error the mode is
    /// what it was.
    pub async fn set_mode(self: &ShardRef<S>, mode: CacheMode) -> Result<(), RequestError> {
        let old = self.mode.replace(mode);
        if mode != CacheMode::Active
            && old == CacheMode::Active
            && let Err(error) = self.flush_all().await
        {
            self.mode.set(old);
            return Err(error);
        }
        if !self.logs()
            && let Err(error) = self.bury_from(0).await
        {
            self.mode.set(old);
            return Err(error);
        }
        self.work.notify();
        Ok(())
    }

    /// Drops everything clean, on flash too, durably: the backing was changed by others. Where something is not clean it is refused, or
    /// dropped as well if `discard_dirty`. Nobody is being served meanwhile. Returns the bytes dropped from memory.
    pub async fn start_anew(self: &ShardRef<S>, discard_dirty: bool) -> Result<u64, RequestError> {
        let unclean = self.state.borrow().unclean();
        if unclean > 0 && !discard_dirty {
            return Err(RequestError::Dirty(unclean * BLOCK_BYTES as u64));
        }
        let _held = Hold::new(self);
        self.quiesce().await;
        self.level.suspend();
        let dropped = self.invalidate();
        let forgotten = self.forget_pages().await;
        self.level.resume();
        forgotten?;
        if discard_dirty {
            self.drop_past(0);
            self.bury_from(0).await?;
        }
        Ok(dropped)
    }

    /// Drops all clean blocks and lets no fill under way install what it read; returns the bytes dropped.
    pub fn invalidate(&self) -> u64 {
        self.with(|state, memory| {
            state.void(0..u64::MAX, Sectors::ALL);
            self.uncache(0..self.blocks());
            let mut dropped = 0;
            for id in 0..memory.slots_used() {
                let slot = memory.slot(id);
                if slot.data.is_some() && slot.volume == self.number && slot.is_clean() {
                    memory.remove(id);
                    dropped += BLOCK_BYTES as u64;
                }
            }
            dropped
        })
    }

    /// Changes the size; no request is under way meanwhile. `None`: what the backing has now.
    pub async fn resize(self: &ShardRef<S>, size: Option<u64>, discard_dirty: bool) -> Result<u64, RequestError> {
        let old = self.size_bytes.get();
        let wanted = match size {
            Some(size) => size,
            None => self.disk.refresh_size().await?,
        };
        let logical = u64::from(self.disk.geometry().logical_block);
        if wanted == 0 || !wanted.is_multiple_of(logical) {
            return Err(
                DiskError::Open(format!("the size {wanted} is no multiple of the backing's {logical} bytes")).into()
            );
        }
        if wanted < old && discard_dirty && !wanted.is_multiple_of(BLOCK_BYTES as u64) {
            let text =
                format!("a size that discards dirty data must be a multiple of {BLOCK_BYTES} bytes, {wanted} is not");
            return Err(DiskError::Open(text).into());
        }
        // Growing, the short last block becomes a whole one: what is cached of it has to be read again.
        let forget_from = match () {
            () if wanted < old => Some(wanted),
            () if wanted > old => {
                (!old.is_multiple_of(BLOCK_BYTES as u64)).then_some(old / BLOCK_BYTES as u64 * BLOCK_BYTES as u64)
            }
            () => None,
        };
        let discards = wanted < old && discard_dirty;
        if let Some(from) = forget_from.filter(|_| !discards) {
            // Nothing that was promised is cut off unless that was said in so many words.
            self.flush_all().await?;
            // What a record has past the old end or the new one would come back with it, be it much later.
            self.bury_from(from / BLOCK_BYTES as u64).await?;
        }
        // From here on nothing is on its way past an end that moves. What is dirty stays until the backing has its new size: where
        // it cannot change, nothing is lost.
        let held = Hold::new(self);
        self.change_size(wanted, size.is_some(), forget_from).await?;
        // A full log makes room by destaging.
        drop(held);
        if discards && self.bury_from(wanted / BLOCK_BYTES as u64).await.is_err() {
            // The size has changed, and the log cannot be told for now: the next flush promises it.
            self.bury_later(wanted / BLOCK_BYTES as u64);
        }
        Ok(wanted)
    }

    async fn change_size(&self, wanted: u64, of_backing: bool, forget_from: Option<u64>) -> Result<(), RequestError> {
        self.quiesce().await;
        let mark = match forget_from {
            Some(from) => {
                let marked = self.begin_resize(from / BLOCK_BYTES as u64, wanted < self.size_bytes.get()).await;
                marked.inspect_err(|_| self.level.resume())?
            }
            None => None,
        };
        let changed = if of_backing { self.disk.set_size(wanted).await } else { Ok(()) };
        self.end_write(mark, changed.is_ok());
        self.level.resume();
        changed?;
        if let Some(from) = forget_from {
            self.drop_past(from);
        }
        self.size_bytes.set(wanted);
        Ok(())
    }

    /// Waits until nothing of this shard is on its way to or from the backing.
    async fn quiesce(&self) {
        self.progress
            .wait_for(|| {
                let state = self.state.borrow();
                (state.operations.is_empty() && state.filling.is_empty()).then_some(())
            })
            .await;
    }

    /// Forgets every block that reaches past `size`, dirty or not. Whoever waits for the writing of such a block waits no more:
    /// it was dropped on the operator's word.
    fn drop_past(&self, size: u64) {
        let first = size / BLOCK_BYTES as u64;
        let whole = size.div_ceil(BLOCK_BYTES as u64);
        let waits = self.with(|state, memory| {
            state.void(first..u64::MAX, Sectors::ALL);
            for id in 0..memory.slots_used() {
                let slot = memory.slot(id);
                if slot.data.is_some() && slot.volume == self.number && slot.block.0 >= first {
                    state.supersede(memory, id);
                }
            }
            state.supersede_resting(first..u64::MAX);
            state.cut_zeroes(whole..u64::MAX);
            // Of a last block that is cut short the zeroes stay, and are still to be written.
            let stays = first < whole && state.zeroes.contains(BlockNo(first));
            state.waits.take(if stays { whole } else { first }..u64::MAX)
        });
        waits.iter().for_each(|wait| wait.finish_one(Ok(&())));
        self.progress.notify();
    }

    /// Forgets everything, dirty or not: the volume is gone.
    pub fn forget(&self) {
        self.drop_past(0);
        // The log keeps what it has; what may be said of that is for whoever takes it over.
        self.with(|state, _| state.ledger.outdated().into_iter().for_each(|outdated| outdated.remove(0..u64::MAX)));
        // A fill that begins only now finds nothing left to read.
        self.size_bytes.set(0);
    }
}
