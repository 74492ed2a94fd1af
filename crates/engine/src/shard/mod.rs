//! A volume's part on one core: its state, the transitions of its blocks, and its limits. The layers above work on it.

pub mod changed_blocks;
pub mod core_state;
pub mod dirty_blocks;
pub mod epochs;
pub mod failures;
pub mod fill_guard;
pub mod flush_batcher;
pub mod flush_progress;
pub mod kept_records;
pub mod log_destage;
pub mod lookup;
pub mod memory_partition;
pub mod partial_blocks;
pub mod promoter;
pub mod retire;
pub mod retry;
pub mod siblings;
pub mod single_flight;
pub mod state;
pub mod streams;
pub mod throttle;
pub mod write_wait;

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use flash::{CompletionNo, VolumeId};
use qos::Cost;
use seam::{BLOCK_BYTES, Disk, Nanos, Seam};

use crate::backing::{AnyDisk, BackingOp, Cause, Datastore, Dispatch, IoSlot, Priority};
use crate::flash_tier::FlashTier;
use crate::memory::{BlockNo, MemoryCache, Sectors};
use crate::policy::curve::VolumeCurves;
use crate::spec::Sabotage;
use crate::stats::Counters;
use crate::telemetry::SlowRequests;
use crate::wait::Signal;
use crate::{ByteOffset, CacheMode, MemoryQuota, WritePolicy};
use core_state::CoreState;
use flush_batcher::FlushBatcher;
use flush_progress::BackgroundFlushes;
use kept_records::KeptRecords;
use log_destage::LogDestage;
use partial_blocks::PartialBlocks;
use retry::Retry;
use state::State;
use streams::Streams;
use throttle::Throttle;

/// The part of a volume on one core.
pub struct Shard<S: Seam> {
    /// State shared with the other shards of the core.
    pub core: Rc<CoreState<S>>,
    /// The volume's number on this core.
    pub volume_number: u32,
    /// The volume's identity.
    pub volume_id: VolumeId,
    /// The backing.
    pub disk: AnyDisk<S>,
    /// Admission to the backing's queue.
    pub dispatch: Dispatch,
    /// The datastore, if the volume shares disks with others.
    pub datastore: RefCell<Option<Rc<Datastore<S>>>>,
    /// Size of the volume as clients see it, in bytes.
    pub size_bytes: Cell<u64>,
    /// Write policy.
    pub policy: Cell<WritePolicy>,
    /// Cache mode.
    pub mode: Cell<CacheMode>,
    /// The log may answer the volume's flushes. A volume that was attached before the log was opened has not tracked
    /// its changes.
    pub has_log: bool,
    /// A change of the policy or the mode is in progress.
    pub is_changing: Cell<bool>,
    /// Deferral age: under `write-back-volatile`, the age at which dirty data is durable at the latest.
    pub deferral_age: Nanos,
    /// State of blocks and ranges.
    pub state: RefCell<State>,
    /// Back-pressure on writers.
    pub throttle: Throttle,
    /// Pauses between attempts on a backing that fails writes.
    pub retry: Retry,
    /// Streams of reads.
    pub read_streams: RefCell<Streams>,
    /// Streams of writes.
    pub write_streams: RefCell<Streams>,
    /// Destage from the log.
    pub log_destage: LogDestage,
    /// Signals work for the destage pump.
    pub destage_work: Signal,
    /// Signals progress that requests may wait for.
    pub progress: Signal,
    /// Batches flushes of the log.
    pub flush_batcher: FlushBatcher,
    /// Counters.
    pub counters: Counters,
    /// Miss-ratio curves.
    pub curves: RefCell<VolumeCurves>,
    /// The memory quota.
    pub memory_quota: Cell<MemoryQuota>,
    /// The flash tier: its clean pages on flash.
    pub flash_tier: FlashTier<S>,
    /// The kept records of the log.
    pub kept_records: RefCell<KeptRecords>,
    /// The slowest requests.
    pub slow_requests: SlowRequests,
    /// True if the pump must end.
    pub is_stopping: Cell<bool>,
    /// True if all dirty data must be destaged. The tombstones of a drain are the volume's last records: flushes that a
    /// command starts go to the backing.
    pub is_draining: Cell<bool>,
    /// No write is sent to the backing: its size is being changed, or the volume is being stopped or was abandoned.
    pub is_destage_held: Cell<bool>,
    /// Flushes that no client requested.
    pub background_flushes: BackgroundFlushes,
    /// Blocks of which only some sectors are in memory.
    pub partial_blocks: PartialBlocks,
    /// The volume is never served: its log records and earlier persistence tags are left to a later recovery.
    pub is_abandoned: Cell<bool>,
    /// Time of the last client request. Hits alone update it only at a tick, while something is dirty.
    pub last_request_at: Cell<Nanos>,
}

impl<S: Seam> Shard<S> {
    /// The seam.
    pub fn seam(&self) -> &S {
        self.core.seam()
    }

    /// True if this deliberate fault is active.
    pub fn has_sabotage(&self, fault: Sabotage) -> bool {
        self.core.spec().sabotage.is(fault)
    }

    /// Runs `work` on the block states: the shard's state and the core's memory together.
    pub fn with_state<R>(&self, work: impl FnOnce(&mut State, &mut MemoryCache<S>) -> R) -> R {
        let (state, memory) = (&mut *self.state.borrow_mut(), &mut *self.core.memory().borrow_mut());
        let result = work(state, memory);
        memory.update_tags(self.volume_id, &mut state.zeroes, state.log_tracker.outdated());
        result
    }

    /// Number of blocks; the last one may be short.
    pub fn block_count(&self) -> u64 {
        self.size_bytes.get().div_ceil(BLOCK_BYTES as u64)
    }

    /// The block past the last one.
    pub fn end_block(&self) -> BlockNo {
        BlockNo(self.block_count())
    }

    /// All blocks.
    pub fn all_blocks(&self) -> Range<BlockNo> {
        BlockNo::ZERO..self.end_block()
    }

    /// The sectors of a block that lie inside the volume.
    pub fn sectors_inside(&self, block: BlockNo) -> Sectors {
        let inside = self.bytes_inside(block);
        if inside == 0 { Sectors::NONE } else { Sectors::span(0, inside) }
    }

    /// Bytes of a block that lie inside the volume.
    pub fn bytes_inside(&self, block: BlockNo) -> usize {
        self.size_bytes.get().saturating_sub(block.offset()).min(BLOCK_BYTES as u64) as usize
    }

    /// Ends the background tasks.
    pub fn stop(&self) {
        self.is_stopping.set(true);
        self.destage_work.notify();
        self.progress.notify();
    }

    /// Age at which dirty data without a log is destaged, and at which changes are logged.
    pub fn dirty_age_max(&self) -> Nanos {
        match self.policy.get() {
            // Half of the promised age; the other half is for the destage itself.
            WritePolicy::WriteBackVolatile => Nanos(self.deferral_age.0 / 2),
            _ => self.core.spec().dirty_age_max,
        }
    }

    /// True if a read may admit blocks to memory.
    pub fn admits_reads(&self) -> bool {
        let policy = self.policy.get() != WritePolicy::None;
        policy && self.mode.get() == CacheMode::Active
    }

    /// True if writes make transit blocks, which leave memory once they are destaged.
    pub fn makes_transit_blocks(&self) -> bool {
        matches!(self.policy.get(), WritePolicy::None | WritePolicy::WriteAround)
            || self.mode.get() != CacheMode::Active
    }

    /// True if a write is acknowledged from memory.
    pub fn defers_writes(&self) -> bool {
        self.policy.get().defers_writes() && self.mode.get() == CacheMode::Active
    }

    /// True if the log answers flushes.
    pub fn uses_log(&self) -> bool {
        self.has_log
            && !self.is_draining.get()
            && self.policy.get() == WritePolicy::WriteBack
            && self.mode.get() == CacheMode::Active
    }

    /// True if a flush involves the log: the log answers flushes, or a recovery may find records of the volume.
    pub fn flush_involves_log(&self) -> bool {
        self.core.has_log() && (self.uses_log() || self.state.borrow().log_tracker.has_records())
    }

    /// Computes the limit of this shard's zero-ranges and blocks that are not clean: two thirds of the free part of the
    /// core's limit. So a single volume gets two thirds, and there is always room for another one (dynamic thresholds,
    /// Choudhury and Hahne).
    pub fn compute_not_clean_limit_blocks(&self) -> u64 {
        let spec = self.core.spec();
        let core_limit = self.seam().blocks_total() as u64 * u64::from(spec.dirty_max_percent) / 100;
        let others = self.core.not_clean_units().saturating_sub(self.state.borrow().not_clean_units());
        let free = core_limit.saturating_sub(others);
        // Such blocks cannot be evicted: they may take at most half of the memory maximum.
        (free * 2 / 3).min(self.memory_max_blocks() / 2).max(1)
    }

    /// Waits for the datastore's I/O slot for a request of `len_bytes` bytes at `at`; the slot is held until the
    /// request ends. `None`: the volume shares no disks. Operations other than reads cost as much as writes.
    pub async fn acquire_io_slot(
        &self,
        operation: BackingOp,
        at: ByteOffset,
        len_bytes: u64,
        priority: Priority,
    ) -> Option<IoSlot<S>> {
        let datastore = self.datastore.borrow().clone()?;
        let is_write = operation != BackingOp::Read;
        let small_write_accesses = if is_write { datastore.small_write_accesses() } else { 1 };
        let cost = Cost::of(self.disk.accesses(is_write, at.0, len_bytes).unwrap_or(small_write_accesses), len_bytes);
        Some(self.count_slot_wait(datastore.acquire_slot(self.volume_number, cost, priority).await))
    }

    /// Waits for an I/O slot for a read from flash.
    pub async fn acquire_flash_slot(&self, len_bytes: u64, priority: Priority) -> IoSlot<S> {
        self.count_slot_wait(
            self.core.flash_datastore().acquire_slot(self.volume_number, Cost::of(1, len_bytes), priority).await,
        )
    }

    /// Priority of a read: foreground if a client waits for it.
    pub fn priority_of_read(&self, cause: Cause) -> Priority {
        let is_awaited = match cause {
            Cause::ClientRead => true,
            Cause::Destage => {
                let state = self.state.borrow();
                let is_flush_awaited =
                    state.log_flush.single_flight.is_running() && self.flush_batcher.is_run_awaited();
                is_flush_awaited || self.client_waits_for_progress(&state)
            }
            Cause::Readahead | Cause::Promotion => false,
        };
        if is_awaited { Priority::Foreground } else { Priority::Background }
    }

    /// Raises the volume's waiting background work to foreground, because a client waits for it.
    pub fn expedite(&self) {
        self.datastore.borrow().iter().for_each(|datastore| datastore.expedite(self.volume_number));
        self.core.flash_datastore().expedite(self.volume_number);
    }

    fn count_slot_wait(&self, slot: IoSlot<S>) -> IoSlot<S> {
        if slot.slot_wait > Nanos::ZERO {
            self.counters.add(&self.counters.share_waits, 1);
            self.counters.add(&self.counters.share_waited_us, slot.slot_wait.as_micros());
        }
        slot
    }

    /// Detects a reconnect of the backing: written data that is not flushed is dirty again then.
    pub fn detect_reconnect(&self) {
        let connection_epoch = self.disk.connection_epoch();
        let changed = {
            let mut state = self.state.borrow_mut();
            std::mem::replace(&mut state.connection_epoch, connection_epoch) != connection_epoch
        };
        if changed {
            let treats_as_clean = self.has_sabotage(Sabotage::DropWrittenAtReconnect);
            let now = self.seam().now();
            self.with_state(|state, memory| match treats_as_clean {
                true => drop(state.clean_written(memory, CompletionNo::MAX)),
                false => state.redirty_written(memory, now),
            });
            self.destage_work.notify();
        }
    }
}

/// The blocks under `len_bytes` bytes from `at` on.
pub fn blocks_of(at: ByteOffset, len_bytes: u64) -> Range<BlockNo> {
    at.block()..at.plus(len_bytes).block_at_or_after()
}

/// One block's part of a request.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// The block.
    pub block: BlockNo,
    /// First byte of the request that belongs to it.
    pub offset_in_request: usize,
    /// First byte of the block that belongs to the request.
    pub offset_in_block: usize,
    /// Length in bytes.
    pub len_bytes: usize,
}

impl Span {
    /// The sectors of the block that the span covers.
    pub fn sectors(&self) -> Sectors {
        Sectors::span(self.offset_in_block, self.len_bytes)
    }
}

/// The blocks of `len_bytes` bytes from `at` on, each with its part of the request.
pub fn spans(at: ByteOffset, len_bytes: usize) -> impl Iterator<Item = Span> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let position = at.plus(from as u64);
        let start = position.offset_in_block();
        let count = (BLOCK_BYTES - start).min(len_bytes - from);
        let span = Span { block: position.block(), offset_in_request: from, offset_in_block: start, len_bytes: count };
        from += count;
        (count > 0).then_some(span)
    })
}

/// Shared handle to a shard.
pub type ShardRef<S> = Rc<Shard<S>>;
