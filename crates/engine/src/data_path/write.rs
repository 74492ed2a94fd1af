//! Writes. Every policy first puts a write into memory as dirty blocks. The policy decides when the write is
//! acknowledged and whether its blocks stay. So there is one path to the backing, and overlapping writes reach it in
//! order.

use std::rc::Rc;

use seam::{BLOCK_BYTES, Block, BlockMut, Disk, Nanos, Seam};

use crate::memory::{MemoryCache, Sectors};
use crate::policy::InsertKind;
use crate::shard::state::State;
use crate::shard::write_wait::{WaitFor, WriteWait};
use crate::shard::{Shard, ShardRef, Span, blocks_of, spans};
use crate::spec::Sabotage;
use crate::telemetry::{LatencyTrace, Step};
use crate::{ByteOffset, CacheMode, RequestError, WriteFlags, WriteSource};

/// Longest write tried without waiting, in blocks.
const IMMEDIATE_WRITE_BLOCKS_MAX: usize = 64;

/// Properties of a write that enters memory.
#[derive(Clone, Copy)]
pub struct WriteMode {
    /// The block is a transit block: it leaves memory once it is destaged.
    pub is_transit: bool,
    /// The write is acknowledged before it is on the backing: memory alone then holds acknowledged data.
    pub holds_acknowledged_data: bool,
    /// The write continues a stream that bypasses the flash log.
    pub bypasses_log: bool,
    /// Time of the write.
    pub now: Nanos,
}

/// Result of [`Shard::write_block`].
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockWrite {
    /// The content is in memory.
    Written,
    /// No buffer is free now.
    NoBuffer,
    /// The write covers part of a spilled block, which has to be reloaded first.
    MustReload,
}

/// A write of one block's part of a request to memory.
struct SpanWrite<'a, W> {
    span: &'a Span,
    source: &'a mut W,
    /// The source has supplied its own buffer, which holds the content already.
    is_supplied: bool,
    mode: WriteMode,
}

impl<W> SpanWrite<'_, W> {
    /// Copies the content from the source, unless the source has supplied the buffer.
    fn copy_into<S: Seam>(&mut self, data: &mut S::BlockMut)
    where
        W: WriteSource<S>,
    {
        if !self.is_supplied {
            self.source.fill(self.span.offset_in_request, data, self.span.offset_in_block, self.span.len_bytes);
        }
    }
}

impl<S: Seam> Shard<S> {
    /// Writes if no wait is needed. False if one is: parts may be in memory then, and the caller repeats the whole
    /// write with [`Shard::write`], over them.
    pub fn try_write(self: &ShardRef<S>, at: ByteOffset, len_bytes: usize, source: &mut impl WriteSource<S>) -> bool {
        let has_room = self.may_write_undelayed(at, len_bytes) && self.has_space_for(at, len_bytes as u64);
        if len_bytes > IMMEDIATE_WRITE_BLOCKS_MAX * BLOCK_BYTES || !self.defers_writes() || !has_room {
            return false;
        }
        let now = self.seam().now();
        let bypasses_log = self.record_stream_write(at, len_bytes);
        let is_written = self.with_state(|state, memory| {
            let is_transit = self.makes_transit_blocks();
            let mode = WriteMode { is_transit, holds_acknowledged_data: true, bypasses_log, now };
            memory.prefetch_run_entries(self.volume_number, blocks_of(at, len_bytes as u64));
            spans(at, len_bytes).all(|span| self.write_block(state, memory, &span, source, mode) == BlockWrite::Written)
        });
        self.notify_dirty_data(now);
        if is_written {
            self.counters.count_immediate_write(len_bytes as u64);
            self.curves.borrow_mut().record_use(at, len_bytes as u64);
        }
        is_written
    }

    /// Writes; returns when the policy allows the acknowledgement.
    pub async fn write(
        self: &ShardRef<S>,
        at: ByteOffset,
        len_bytes: usize,
        flags: WriteFlags,
        source: &mut impl WriteSource<S>,
        trace: &LatencyTrace,
    ) -> Result<(), RequestError> {
        let started_at = self.seam().now();
        self.curves.borrow_mut().record_use(at, len_bytes as u64);
        self.wait_for_room(blocks_of(at, len_bytes as u64)).await;
        trace.record(Step::Throttle, self.seam().now());
        // The log makes the write durable sooner than the backing.
        let logged = flags.fua && self.uses_log();
        let wait = (flags.fua && !logged || !self.defers_writes()).then(|| Rc::new(WriteWait::default()));
        let bypasses_log = wait.is_none() && !logged && self.record_stream_write(at, len_bytes);
        let backing_losses = self.state.borrow().backing_losses;
        for span in spans(at, len_bytes) {
            loop {
                if span.len_bytes < BLOCK_BYTES {
                    self.reload_for_partial_write(span.block).await?;
                }
                let is_transit = self.makes_transit_blocks() || flags.is_used_once;
                self.reserve_space(&span).await?;
                let now = self.seam().now();
                let mode = WriteMode { is_transit, holds_acknowledged_data: wait.is_none(), bypasses_log, now };
                let result = self.with_state(|state, memory| {
                    let result = self.write_block(state, memory, &span, source, mode);
                    if let Some(wait) = wait.as_ref().filter(|_| result == BlockWrite::Written) {
                        state.write_waits.add(span.block, wait);
                    }
                    result
                });
                if result == BlockWrite::Written {
                    break;
                }
                self.wait_for_buffer().await;
            }
        }
        self.notify_dirty_data(started_at);
        self.wait_until_written(wait, WaitFor::of_fua(flags.fua), backing_losses).await?;
        trace.record(Step::Destage, self.seam().now());
        if flags.fua && self.flush_involves_log() {
            self.flush_log().await?;
            trace.record(Step::Log, self.seam().now());
        } else if logged {
            // The policy has changed meanwhile.
            self.flush_all().await?;
        }
        self.counters.count_write(len_bytes as u64, trace.elapsed(self.seam().now()), trace.held_time());
        Ok(())
    }

    /// Reserves the space of a write on the backing: acknowledged data always has its place there. Without a wait from
    /// the end of this call on, the space stays reserved until the write is in memory.
    pub(super) async fn reserve_space(&self, span: &Span) -> Result<(), RequestError> {
        let (at, len) = (ByteOffset::of(span.block), BLOCK_BYTES as u64);
        let len = len.min(self.size_bytes.get().saturating_sub(at.0));
        while !self.has_space_for(at, len) {
            self.disk.reserve(at.0, len).await?;
        }
        Ok(())
    }

    /// True if the backing has space for a write of this range.
    fn has_space_for(&self, at: ByteOffset, len_bytes: u64) -> bool {
        self.has_sabotage(Sabotage::NoReservation) || self.disk.has_space_for(at.0, len_bytes)
    }

    /// Writes one block's part of a request to memory, unless that needs a wait.
    pub fn write_block(
        &self,
        state: &mut State,
        memory: &mut MemoryCache<S>,
        span: &Span,
        source: &mut impl WriteSource<S>,
        mode: WriteMode,
    ) -> BlockWrite {
        let sectors = span.sectors();
        let supplied = (span.len_bytes == BLOCK_BYTES).then(|| source.take_block(span.offset_in_request)).flatten();
        let is_supplied = supplied.is_some();
        let mut known_slot = memory.find(self.volume_number, span.block);
        if span.len_bytes < BLOCK_BYTES && known_slot.is_none() && state.log_tracker.is_spilled(span.block) {
            return BlockWrite::MustReload;
        }
        let new_buffer = match supplied {
            None if known_slot.is_none_or(|id| !self.may_change(memory, id)) => {
                let Some(block) = memory.alloc() else { return BlockWrite::NoBuffer };
                // The allocation may have evicted the block's own slot.
                known_slot = memory.find(self.volume_number, span.block);
                Some(block)
            }
            supplied => supplied,
        };
        state.invalidate_fills(span.block.single(), sectors);
        // A block that is not clean has no valid copy on flash: that was invalidated when it became dirty.
        if known_slot.is_none_or(|id| memory.slot(id).is_clean()) {
            self.invalidate_flash(span.block.single());
        }
        state.failures.remove(span.block);
        if mode.bypasses_log {
            state.log_tracker.record_stream_change(span.block, mode.now, self.stream_bypass_blocks_max());
        } else {
            state.log_tracker.record_change(span.block);
        }
        let mut write = SpanWrite { span, source, is_supplied, mode };
        match known_slot {
            Some(id) => self.overwrite_block(state, memory, id, &mut write, new_buffer),
            None => {
                let buffer = new_buffer.expect("an absent block has a new buffer");
                self.insert_written_block(state, memory, &mut write, buffer);
            }
        }
        BlockWrite::Written
    }

    /// Writes a span of a block that has no slot: its other sectors stay absent, unless they read as zeroes.
    fn insert_written_block(
        &self,
        state: &mut State,
        memory: &mut MemoryCache<S>,
        write: &mut SpanWrite<'_, impl WriteSource<S>>,
        mut data: S::BlockMut,
    ) {
        let (block, mode) = (write.span.block, write.mode);
        let epoch = state.epochs.current();
        self.record_write_miss(block);
        let spilled = state.supersede_spilled(block.single()).unwrap_or_default();
        let (present, obligation) = match state.cut_zeroes(block.single()) {
            Some(obligation) => {
                if !write.is_supplied {
                    data.zero(0, BLOCK_BYTES);
                }
                (Sectors::ALL, obligation)
            }
            None => {
                let outside = Sectors::ALL.without(self.sectors_inside(block));
                for (start, len_bytes) in outside.runs() {
                    data.zero(start, len_bytes);
                }
                (outside.with(write.span.sectors()), spilled)
            }
        };
        write.copy_into::<S>(&mut data);
        let id = memory.insert(self.volume_number, block, data.freeze(), present, InsertKind::Normal);
        let slot = memory.slot_mut(id);
        slot.is_transit = mode.is_transit;
        slot.holds_acknowledged_data = mode.holds_acknowledged_data || obligation.holds_acknowledged_data;
        state.mark_dirty(memory, id, obligation.oldest_epoch(epoch), mode.now);
        memory.record_new_content(id, None);
    }

    /// Writes a span of a block that has a slot. `new_buffer`: a buffer for the new content, if the old one must not
    /// change or the source has supplied one.
    fn overwrite_block(
        &self,
        state: &mut State,
        memory: &mut MemoryCache<S>,
        id: u32,
        write: &mut SpanWrite<'_, impl WriteSource<S>>,
        new_buffer: Option<S::BlockMut>,
    ) {
        let (sectors, mode) = (write.span.sectors(), write.mode);
        let epoch = state.epochs.current();
        let mut data = match new_buffer {
            // R1: another holder uses the old content, so the new content gets a buffer of its own.
            Some(mut data) => {
                let slot = memory.slot(id);
                if slot.present.without(sectors) != Sectors::NONE {
                    data.copy_from(0, slot.data.as_ref().expect("a slot in use has content"), 0, BLOCK_BYTES);
                }
                data
            }
            None => self.take_for_change(memory, id),
        };
        write.copy_into::<S>(&mut data);
        let slot = memory.slot_mut(id);
        let old = slot.data.replace(data.freeze());
        slot.present = slot.present.with(sectors);
        if self.mode.get() != CacheMode::Frozen {
            slot.is_transit = mode.is_transit;
        }
        slot.holds_acknowledged_data |= mode.holds_acknowledged_data;
        memory.touch(id);
        state.mark_dirty(memory, id, epoch, mode.now);
        if !self.has_sabotage(Sabotage::NoPersistenceTags) {
            memory.record_new_content(id, old);
        }
    }

    /// True if the buffer of a slot may be changed in place (R1).
    fn may_change(&self, memory: &MemoryCache<S>, id: u32) -> bool {
        let slot = memory.slot(id);
        let data = slot.data.as_ref().expect("a slot in use has content");
        // A kill during a copy must not leave half a sector in place of an acknowledged whole one.
        let is_persisted = self.seam().survives_restart() && !slot.is_clean();
        (data.is_unique() && !is_persisted) || self.has_sabotage(Sabotage::OverwriteInFlight)
    }

    /// Takes the buffer out of a slot, to change it in place. [`Shard::may_change`] holds.
    fn take_for_change(&self, memory: &mut MemoryCache<S>, id: u32) -> S::BlockMut {
        #[cfg(feature = "sabotage")]
        if self.has_sabotage(Sabotage::OverwriteInFlight) {
            let data = memory.slot_mut(id).data.take().expect("a slot in use has content");
            return data.sabotage_thaw();
        }
        memory.take_unique(id).expect("the buffer is unique")
    }

    /// To be called after new dirty data is in memory: wakes the pump and starts a flush of the log if they are due,
    /// and keeps the tick running.
    pub fn notify_dirty_data(self: &ShardRef<S>, now: Nanos) {
        self.last_request_at.set(now);
        self.core.keep_ticking();
        if self.must_wake_pump() {
            self.destage_work.notify();
        }
        self.start_log_flush_if_due();
    }

    /// Records a write. True if it continues a stream that bypasses the log.
    fn record_stream_write(&self, at: ByteOffset, len_bytes: usize) -> bool {
        let is_stream = self.uses_log() && self.write_streams.borrow_mut().record_write(at, len_bytes as u64);
        // A flush that destages the whole volume sends older blocks first: those of the stream would fill memory.
        is_stream && !self.state.borrow().backing_flush.single_flight.is_running()
    }
}
