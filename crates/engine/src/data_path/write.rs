//! Writes. Every policy first puts a write into memory as dirty blocks. The policy decides when the write is
//! acknowledged and whether its blocks stay. So there is one path to the backing, and overlapping writes reach it in
//! order.

use std::rc::Rc;

use seam::{BLOCK_BYTES, Block, BlockMut, Disk, Nanos, Seam};

use crate::memory::{MemoryCache, Sectors};
use crate::policy::Admit;
use crate::shard::state::State;
use crate::shard::wait::WriteWait;
use crate::shard::{Shard, ShardRef, Span, blocks_of, spans};
use crate::spec::Sabotage;
use crate::telemetry::{LatencyTrace, Step};
use crate::{ByteOffset, CacheMode, RequestError, WriteFlags, WriteSource};

/// Longest write tried without waiting, in blocks.
const NOW_BLOCKS_MAX: usize = 64;

/// Properties of a write that enters memory.
#[derive(Clone, Copy)]
pub struct WriteMode {
    /// The block may stay in memory.
    pub keep: bool,
    /// The write is acknowledged before it is on the backing.
    pub acked_unwritten: bool,
    /// The write continues a stream that bypasses the flash log.
    pub is_streamed: bool,
    /// Time of the write.
    pub now: Nanos,
}

impl<S: Seam> Shard<S> {
    /// Writes if no wait is needed. After a failure the waiting call repeats the parts already written to memory.
    pub fn write_now(self: &ShardRef<S>, at: ByteOffset, len: usize, source: &mut impl WriteSource<S>) -> bool {
        let has_room = self.has_room_now(at, len) && self.has_space_for(at, len as u64);
        if len > NOW_BLOCKS_MAX * BLOCK_BYTES || !self.defers_writes() || !has_room {
            return false;
        }
        let now = self.seam().now();
        let is_streamed = self.record_stream_write(at, len);
        let is_written = self.with(|state, memory| {
            let keep = self.keeps_writes();
            let mode = WriteMode { keep, acked_unwritten: true, is_streamed, now };
            memory.prefetch_run_entries(self.number, blocks_of(at, len as u64));
            spans(at, len).all(|span| self.write_block(state, memory, &span, source, mode).is_some())
        });
        self.record_dirty(now);
        if is_written {
            self.counters.count_immediate_write(len as u64);
            self.curves.borrow_mut().record_use(at, len as u64);
        }
        is_written
    }

    /// Writes; returns when the policy allows the acknowledgement.
    pub async fn write(
        self: &ShardRef<S>,
        at: ByteOffset,
        len: usize,
        flags: WriteFlags,
        source: &mut impl WriteSource<S>,
        trace: &LatencyTrace,
    ) -> Result<(), RequestError> {
        let started_at = self.seam().now();
        self.curves.borrow_mut().record_use(at, len as u64);
        self.wait_for_room(blocks_of(at, len as u64)).await;
        trace.record(Step::Throttle, self.seam().now());
        // The log makes the write durable sooner than the backing.
        let logged = flags.fua && self.uses_log();
        let wait = (flags.fua && !logged || !self.defers_writes()).then(|| Rc::new(WriteWait::default()));
        let is_streamed = wait.is_none() && !logged && self.record_stream_write(at, len);
        let losses = self.state.borrow().losses;
        for span in spans(at, len) {
            loop {
                if span.len < BLOCK_BYTES {
                    self.reload_for_partial_write(span.block).await?;
                }
                let keep = self.keeps_writes() && !flags.once;
                self.reserve_space(&span).await?;
                let now = self.seam().now();
                let mode = WriteMode { keep, acked_unwritten: wait.is_none(), is_streamed, now };
                let is_written = self.with(|state, memory| {
                    self.write_block(state, memory, &span, source, mode)?;
                    if let Some(wait) = &wait {
                        state.waits.add(span.block, wait);
                    }
                    Some(())
                });
                if is_written.is_some() {
                    break;
                }
                self.wait_for_buffer().await;
            }
        }
        self.record_dirty(started_at);
        self.await_written(wait, flags.fua, losses).await?;
        trace.record(Step::Destage, self.seam().now());
        if flags.fua && self.flush_involves_log() {
            self.flush_log().await?;
            trace.record(Step::Log, self.seam().now());
        } else if logged {
            // The policy has changed meanwhile.
            self.flush_all().await?;
        }
        self.counters.count_write(len as u64, trace.elapsed(self.seam().now()), trace.held());
        Ok(())
    }

    /// Reserves the space of a write on the backing: what is acknowledged always has its place there. Without a wait
    /// from the end of this call on, the space stays reserved until the write is in memory.
    pub(super) async fn reserve_space(&self, span: &Span) -> Result<(), RequestError> {
        let (at, len) = (ByteOffset::of(span.block), BLOCK_BYTES as u64);
        let len = len.min(self.size_bytes.get().saturating_sub(at.0));
        while !self.has_space_for(at, len) {
            self.disk.reserve(at.0, len).await?;
        }
        Ok(())
    }

    fn has_space_for(&self, at: ByteOffset, len: u64) -> bool {
        self.sabotage(Sabotage::NoReservation) || self.disk.has_space_for(at.0, len)
    }

    /// Writes one block's part of a request to memory. `None` if there is no buffer now, or if the block is spilled and
    /// has to be reloaded first.
    pub fn write_block(
        &self,
        state: &mut State,
        memory: &mut MemoryCache<S>,
        span: &Span,
        source: &mut impl WriteSource<S>,
        mode: WriteMode,
    ) -> Option<()> {
        let sectors = span.sectors();
        let supplied = (span.len == BLOCK_BYTES).then(|| source.take_block(span.from)).flatten();
        let filled = supplied.is_some();
        let mut known_slot = memory.find(self.number, span.block);
        if span.len < BLOCK_BYTES && known_slot.is_none() && state.log_tracker.is_spilled(span.block) {
            return None;
        }
        let spare = match supplied {
            None if known_slot.is_none_or(|id| !self.may_change(memory, id)) => {
                let block = memory.alloc()?;
                // The allocation may have evicted the block's own slot.
                known_slot = memory.find(self.number, span.block);
                Some(block)
            }
            supplied => supplied,
        };
        state.invalidate_fills(span.block.single(), sectors);
        // A block that is not clean has no valid copy on flash: that was invalidated when it became dirty.
        if known_slot.is_none_or(|id| memory.slot(id).is_clean()) {
            self.invalidate_flash(span.block.single());
        }
        state.failed.remove(span.block);
        if mode.is_streamed {
            state.log_tracker.record_stream_change(span.block, mode.now, self.stream_bypass_max());
        } else {
            state.log_tracker.record_change(span.block);
        }
        let epoch = state.epochs.current();
        let Some(id) = known_slot else {
            self.record_write_miss(span.block);
            let mut data = spare.expect("an absent block has a spare buffer");
            let spilled = state.supersede_spilled(span.block.single()).unwrap_or_default();
            let (present, obligation) = match state.cut_zeroes(span.block.single()) {
                Some(obligation) => {
                    if !filled {
                        data.zero(0, BLOCK_BYTES);
                    }
                    (Sectors::ALL, obligation)
                }
                None => {
                    let outside = Sectors::ALL.without(self.sectors_inside(span.block));
                    for (start, len) in outside.runs() {
                        data.zero(start, len);
                    }
                    (outside.with(sectors), spilled)
                }
            };
            if !filled {
                source.fill(span.from, &mut data, span.start, span.len);
            }
            let id = memory.insert(self.number, span.block, data.freeze(), present, Admit::Normal);
            let slot = memory.slot_mut(id);
            (slot.transit, slot.acked_unwritten) = (!mode.keep, mode.acked_unwritten || obligation.acked_unwritten);
            state.mark_dirty(memory, id, obligation.oldest_epoch(epoch), mode.now);
            memory.record_new_content(id, None);
            return Some(());
        };
        let mut data = match spare {
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
        if !filled {
            source.fill(span.from, &mut data, span.start, span.len);
        }
        let slot = memory.slot_mut(id);
        let old = slot.data.replace(data.freeze());
        slot.present = slot.present.with(sectors);
        if self.mode.get() != CacheMode::Frozen {
            slot.transit = !mode.keep;
        }
        slot.acked_unwritten |= mode.acked_unwritten;
        memory.touch(id);
        state.mark_dirty(memory, id, epoch, mode.now);
        if !self.sabotage(Sabotage::NoPersistenceTags) {
            memory.record_new_content(id, old);
        }
        Some(())
    }

    fn may_change(&self, memory: &MemoryCache<S>, id: u32) -> bool {
        let slot = memory.slot(id);
        let data = slot.data.as_ref().expect("a slot in use has content");
        // A kill during a copy must not leave half a sector in place of an acknowledged whole one.
        let is_persisted = self.seam().survives_restart() && !slot.is_clean();
        (data.is_unique() && !is_persisted) || self.sabotage(Sabotage::OverwriteInFlight)
    }

    fn take_for_change(&self, memory: &mut MemoryCache<S>, id: u32) -> S::BlockMut {
        #[cfg(feature = "sabotage")]
        if self.sabotage(Sabotage::OverwriteInFlight) {
            let data = memory.slot_mut(id).data.take().expect("a slot in use has content");
            return data.sabotage_thaw();
        }
        memory.take_unique(id).expect("the buffer is unique")
    }

    /// Records new dirty data: wakes the pump if necessary and keeps the tick running.
    pub fn record_dirty(self: &ShardRef<S>, now: Nanos) {
        self.last_request.set(now);
        self.core.keep_ticking();
        if self.wants_destage_now() {
            self.work.notify();
        }
        self.flush_log_if_due();
    }

    /// Records a write. True if it continues a stream that bypasses the log.
    fn record_stream_write(&self, at: ByteOffset, len: usize) -> bool {
        let is_stream = self.uses_log() && self.write_streams.borrow_mut().record_write(at, len as u64);
        // A flush of the whole volume destages older blocks first.
        is_stream && !self.state.borrow().flushing.single_flight.is_running()
    }
}
