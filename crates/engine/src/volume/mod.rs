//! A volume: checks of requests, the gate for administrators, and the calls of front ends.

mod bytes;
mod gate;
pub mod heat;
mod limit;
pub mod range_lock;
mod requests;
mod succession;
pub mod tap;
pub mod transfer;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use seam::persist::ShmImage;
use seam::{BLOCK_BYTES, Disk, Geometry, Nanos, SECTOR_BYTES, Seam};

use crate::admin::UNMARK_TIMEOUT;
use crate::backing::{Dispatch, ReservationError};
use crate::flash_tier::FlashTier;
use crate::memory::{BlockNo, PREFETCHED_ENTRIES_MAX};
use crate::policy::curve::VolumeCurveStats;
use crate::shard::changed_blocks::ChangedBlocks;
use crate::shard::core_state::CoreState;
use crate::shard::flush_progress::BackgroundFlushes;
use crate::shard::state::State;
use crate::shard::{Shard, ShardRef};
use crate::spec::Sabotage;
use crate::stats::{Counters, VolumeProblem};
use crate::telemetry::{LatencyTrace, OpKind, SlowRequest, Step};
use crate::{
    Backing, ByteOffset, CacheMode, FlashQuota, FlashStats, MemoryQuota, Qos, QosStats, QuotaError, RequestError,
    VolumeSpec, VolumeStats, WritePolicy, WriteSource,
};
use gate::Gate;
use heat::{Heat, HeatStats};
use limit::LimitQueue;
use range_lock::RangeLocks;
use succession::{ClientState, Succession};
use tap::{Tap, TappedBatch};
use task_sync::within;

/// Pause between two checks of a backing whose ownership is unproven.
const OWNERSHIP_CHECK_PAUSE: Nanos = Nanos::from_millis(20);
/// Time for requests in progress to end before a stop leaves the dirty data in the log without waiting for them.
const REQUESTS_END_TIMEOUT: Nanos = Nanos::from_secs(1);
/// Time that a stop waits for tombstones and for the backing's mark to be removed.
const MARK_TIMEOUT: Nanos = Nanos::from_secs(1);
/// Time that a stop waits for the destage of zeroes of which the next start could not prove the backing.
const ZEROES_TIMEOUT: Nanos = Nanos::from_secs(5);

/// State of a volume.
struct Inner<S: Seam> {
    /// The specification at the attach.
    spec: VolumeSpec,
    shard: ShardRef<S>,
    limit_queue: Rc<LimitQueue>,
    qos: Cell<Qos>,
    gate: Gate,
    /// The volume that takes this one's place for its clients.
    succession: Succession<S>,
    /// Byte ranges that are being written.
    locks: RangeLocks<ByteOffset>,
    tap: Tap,
    heat: Heat,
    attached_at: Nanos,
}

/// A block device that clients see. A clone is another handle to the same volume; it stays on its core.
///
/// Offsets and lengths are in bytes and multiples of 512; the `_bytes` calls accept any. The `try_` calls never wait:
/// they do the whole request and return true, or do nothing and return false.
pub struct Volume<S: Seam>(Rc<Inner<S>>, ClientState);

impl<S: Seam> Clone for Volume<S> {
    fn clone(&self) -> Self {
        Volume(Rc::clone(&self.0), self.1.clone())
    }
}

impl<S: Seam> Volume<S> {
    /// Makes a volume and starts its background tasks.
    pub(crate) fn new(core: Rc<CoreState<S>>, number: u32, spec: VolumeSpec, backing: Backing<S>) -> Self {
        let geometry = backing.disk.geometry();
        let shard = Rc::new(Shard {
            volume_number: number,
            volume_id: spec.volume_id,
            dispatch: Dispatch::new(geometry.queue_depth),
            datastore: Default::default(),
            size_bytes: Cell::new(geometry.size_bytes),
            policy: Cell::new(spec.policy),
            mode: Cell::new(spec.mode),
            has_log: core.has_log() && spec.allows_log,
            is_changing: Cell::default(),
            deferral_age: spec.deferral_age,
            state: RefCell::new(State::new(backing.disk.connection_epoch())),
            throttle: Default::default(),
            retry: Default::default(),
            read_streams: Default::default(),
            destage_work: Default::default(),
            progress: Default::default(),
            flush_batcher: Default::default(),
            counters: Counters::default(),
            curves: Default::default(),
            memory_quota: Cell::new(spec.memory),
            flash_tier: FlashTier::new(
                core.pages().map(|pages| pages.volume(spec.volume_id)),
                spec.flash.clone(),
                spec.drops_pages,
            ),
            kept_records: Default::default(),
            slow_requests: Default::default(),
            is_stopping: Cell::new(false),
            is_draining: Cell::new(false),
            is_destage_held: Cell::new(false),
            background_flushes: BackgroundFlushes::new(core.seam().now()),
            partial_blocks: Default::default(),
            is_abandoned: Cell::new(false),
            log_destage: Default::default(),
            write_streams: Default::default(),
            last_request_at: Cell::new(core.seam().now()),
            disk: backing.disk,
            core,
        });
        if spec.awaits_transfer.is_some() {
            shard.state.borrow_mut().changed_blocks = Some(ChangedBlocks::default());
        }
        if shard.core.has_log() {
            let blocks_max = shard.seam().blocks_total();
            let survives_restart = shard.seam().survives_restart() && !shard.has_sabotage(Sabotage::OldRecords);
            let tracker = &mut shard.state.borrow_mut().log_tracker;
            tracker.start_tracking(blocks_max, survives_restart);
            tracker.is_keep_sabotaged = shard.has_sabotage(Sabotage::KeepChangedBlock);
        }
        shard.apply_memory_quota();
        shard.seam().spawn(crate::destage::pump::run_pump(Rc::clone(&shard)));
        crate::backing_check::start_page_tasks(&shard);
        let attached_at = shard.seam().now();
        let heat = Heat::default();
        heat.advance(attached_at, geometry.size_bytes);
        let limit_queue = Rc::new(LimitQueue::default());
        limit_queue.set_limits(spec.qos.limits, attached_at);
        let (gate, locks, tap, qos) = (Gate::default(), RangeLocks::default(), Tap::default(), Cell::new(spec.qos));
        let succession = Succession::default();
        let inner = Inner { spec, shard, limit_queue, qos, gate, succession, locks, tap, heat, attached_at };
        let volume = Volume(Rc::new(inner), ClientState::default());
        volume.set_datastore(&volume.spec().datastore);
        volume
    }

    /// The volume's part on its core.
    pub(crate) fn shard(&self) -> &ShardRef<S> {
        &self.0.shard
    }

    /// Name of the volume.
    pub fn name(&self) -> &str {
        &self.0.spec.name
    }

    /// The specification at the attach; the policy may have changed since.
    pub fn spec(&self) -> &VolumeSpec {
        &self.current().0.spec
    }

    /// Size that clients see, in bytes.
    pub fn size_bytes(&self) -> u64 {
        let volume = self.current();
        volume.size_while_expected().unwrap_or_else(|| volume.0.shard.size_bytes.get())
    }

    /// Geometry of the backing.
    pub fn geometry(&self) -> Geometry {
        self.current().0.shard.disk.geometry()
    }

    /// The present write policy.
    pub fn policy(&self) -> WritePolicy {
        self.current().0.shard.policy.get()
    }

    /// The present cache mode.
    pub fn mode(&self) -> CacheMode {
        self.0.shard.mode.get()
    }

    /// Counters and present contents.
    pub fn stats(&self) -> VolumeStats {
        let shard = &self.0.shard;
        let block = BLOCK_BYTES as u64;
        let now = shard.seam().now();
        let mut stats = shard.counters.snapshot();
        shard.with_state(|state, memory| {
            let usage = memory.usage(shard.volume_number);
            stats.memory_bytes = usage.held_blocks * block;
            stats.memory_target_bytes = usage.target_blocks.map(|target| target * block);
            stats.written_bytes = state.written_blocks() * block;
            stats.dirty_bytes = state.epochs.unwritten_units() * block;
            stats.flash_dirty_bytes = state.log_tracker.len() as u64 * block;
            stats.spilled_bytes = state.log_tracker.spilled_count() * block;
            stats.spilled_index_bytes = state.log_tracker.index_bytes() as u64;
            stats.kept_index_bytes = shard.kept_records.borrow().memory_bytes() as u64;
            let oldest = state.oldest_dirty(memory, shard.volume_number);
            stats.dirty_age_ms = oldest.map_or(0, |oldest| now.since(oldest).as_millis());
        });
        stats.backing_unanswered_ms = shard.disk.oldest_unanswered().map_or(0, |oldest| now.since(oldest).as_millis());
        let (limit_queue, counters) = (&self.0.limit_queue, &shard.counters);
        let unproven_ms = shard.disk.unproven_for().map_or(0, Nanos::as_millis);
        stats.backing_unanswered_ms = stats.backing_unanswered_ms.max(unproven_ms);
        stats.qos = QosStats {
            limit_waits: limit_queue.waited_requests.get(),
            limit_waited_us: limit_queue.total_wait.get().as_micros(),
            share_waits: counters.share_waits.get(),
            share_waited_us: counters.share_waited_us.get(),
        };
        stats.flash = FlashStats { logged_bytes: shard.counters.logged_bytes.get(), ..shard.flash_tier.stats() };
        stats.problems.extend(shard.flash_tier.drop_reason().map(VolumeProblem::PagesDropped));
        stats.problems.extend(shard.disk.lost().map(|error| VolumeProblem::BackingLost(error.to_string())));
        if shard.retry.is_paused(now) || !shard.state.borrow().failures.is_empty() {
            let error = shard.counters.last_error.borrow().clone();
            let error = error.map_or_else(|| "unknown".to_owned(), |error| error.to_string());
            stats.problems.push(VolumeProblem::DestageFailing { error, dirty_bytes: stats.dirty_bytes });
        }
        stats
    }

    /// Miss-ratio curves of recent requests.
    pub fn curves(&self) -> VolumeCurveStats {
        self.0.shard.curves.borrow().stats()
    }

    /// Time since the attach.
    pub fn age(&self) -> Nanos {
        self.now().since(self.0.attached_at)
    }

    /// The slowest hundred requests of the last hour, in descending order, each with the step in which it waited
    /// longest.
    pub fn slow_requests(&self) -> Vec<SlowRequest> {
        self.0.shard.slow_requests.list(self.now())
    }

    /// Counts an admissible request of a client, and records it if a trace is open. Front ends call it once a request,
    /// since they may serve a request in pieces.
    pub fn record_request(&self, op: OpKind, at: ByteOffset, len_bytes: u64) {
        let inner = &self.current().0;
        inner.heat.record(op, at);
        inner.tap.record(|| self.now(), op, at, len_bytes);
    }

    /// Advances the clock of the heat map. The sampler of the volume calls it, because requests do not read the clock.
    pub fn advance_heat(&self) {
        self.0.heat.advance(self.now(), self.size_bytes());
    }

    /// The heat map of the last hour.
    pub fn heat(&self) -> HeatStats {
        self.0.heat.stats()
    }

    /// Opens the tap: requests are kept for a recorder, which must take them every few seconds. Returns the recorder's
    /// number, or `None` while another one records.
    pub fn open_tap(&self) -> Option<u64> {
        self.0.tap.open(self.now())
    }

    /// Takes up to `requests_max` recorded requests; `None` if the tap no longer belongs to this recorder.
    pub fn take_tapped(&self, recorder: u64, requests_max: usize) -> Option<TappedBatch> {
        self.0.tap.take(recorder, requests_max, self.now())
    }

    /// Closes the recorder's tap.
    pub fn close_tap(&self, recorder: u64) {
        self.0.tap.close(recorder);
    }

    /// Prefetches into the processor's cache the index entries that requests at the first [`PREFETCHED_ENTRIES_MAX`] of
    /// `offsets` will read. It has no other effect.
    pub fn prefetch_index_entries(&self, offsets: &[ByteOffset]) {
        let mut blocks = [BlockNo(0); PREFETCHED_ENTRIES_MAX];
        let count = offsets.len().min(PREFETCHED_ENTRIES_MAX);
        for (block, at) in blocks.iter_mut().zip(offsets) {
            *block = at.block();
        }
        let shard = &self.current().0.shard;
        shard.with_state(|_, memory| memory.prefetch_index_entries(shard.volume_number, &blocks[..count]));
    }

    /// Changes the write policy; destages dirty data first if the new policy requires it.
    pub async fn set_policy(&self, policy: WritePolicy) -> Result<(), RequestError> {
        self.0.shard.set_policy(policy).await
    }

    /// Pauses, freezes or resumes the cache.
    pub async fn set_mode(&self, mode: CacheMode) -> Result<(), RequestError> {
        self.0.shard.set_mode(mode).await
    }

    /// True if the flash log may answer the volume's flushes.
    pub fn has_log(&self) -> bool {
        self.0.shard.has_log
    }

    /// True if the volume was attached beside a flash cache.
    pub fn has_flash_cache(&self) -> bool {
        self.0.shard.flash_tier.has_flash_cache()
    }

    /// True while a change of the policy or the mode is in progress.
    pub fn is_changing(&self) -> bool {
        self.0.shard.is_changing.get()
    }

    /// The limits, shares and reservation of the volume.
    pub fn qos(&self) -> Qos {
        self.0.qos.get()
    }

    /// Changes limits, shares and reservation, for waiting requests as well. Refuses a reservation that the datastore
    /// has not proven able to serve.
    pub fn set_qos(&self, qos: Qos) -> Result<(), ReservationError> {
        let shard = &self.0.shard;
        if let Some(datastore) = shard.datastore.borrow().as_ref()
            && qos.reservation_iops > self.0.qos.get().reservation_iops
        {
            datastore.check_reservation(shard.volume_number, qos.reservation_iops)?;
        }
        self.0.qos.set(qos);
        self.0.limit_queue.set_limits(qos.limits, self.now());
        self.apply_entitlement();
        Ok(())
    }

    /// Moves the volume to the datastore of this name; without such a datastore, the volume belongs to none.
    pub fn set_datastore(&self, name: &str) {
        let shard = &self.0.shard;
        let new = shard.core.datastore(name);
        let old = std::mem::replace(&mut *shard.datastore.borrow_mut(), new.clone());
        self.apply_entitlement();
        if let Some(old) = old
            && new.is_none_or(|new| !Rc::ptr_eq(&new, &old))
        {
            old.remove_volume(shard.volume_number);
        }
    }

    /// Passes shares and reservation to the datastore and to that of flash.
    fn apply_entitlement(&self) {
        let (shard, qos) = (&self.0.shard, self.0.qos.get());
        if let Some(datastore) = shard.datastore.borrow().as_ref() {
            datastore.set_volume(shard.volume_number, self.name(), qos.entitlement());
        }
        // A reservation applies to disks, not to flash.
        let flash_entitlement = Qos { reservation_iops: 0, ..qos }.entitlement();
        shard.core.flash_datastore().set_volume(shard.volume_number, self.name(), flash_entitlement);
    }

    /// Removes the volume from its datastore and from that of flash.
    pub(crate) fn remove_from_datastores(&self) {
        let shard = &self.0.shard;
        if let Some(old) = shard.datastore.take() {
            old.remove_volume(shard.volume_number);
        }
        shard.core.flash_datastore().remove_volume(shard.volume_number);
    }

    /// The memory quota.
    pub fn memory_quota(&self) -> MemoryQuota {
        self.0.shard.memory_quota.get()
    }

    /// Changes the memory quota. Blocks above the maximum are evicted when the volume's next block arrives.
    pub fn set_memory_quota(&self, quota: MemoryQuota) {
        self.0.shard.memory_quota.set(quota);
        self.0.shard.apply_memory_quota();
        self.0.shard.refresh_throttle();
    }

    /// The flash quota of the clean pages.
    pub fn flash_quota(&self) -> FlashQuota {
        self.0.shard.flash_tier.quota()
    }

    /// Changes the flash quota of the clean pages. Refused if the minima of other volumes leave too little. Pages above
    /// the maximum are evicted when room is needed.
    pub fn set_flash_quota(&self, quota: FlashQuota) -> Result<(), QuotaError> {
        self.0.shard.flash_tier.set_quota(quota)?;
        self.0.shard.restart_pinning();
        Ok(())
    }

    /// Drops all cached data, on flash too, because the backing was changed from outside. Returns the number of bytes
    /// dropped from memory. Requests wait meanwhile. Refused while data is dirty, unless `discard_dirty` drops that as
    /// well.
    pub async fn drop_cached_data(&self, discard_dirty: bool) -> Result<u64, RequestError> {
        let _hold = self.0.gate.hold().await?;
        self.0.shard.drop_cached_data(discard_dirty).await
    }

    /// Drops all clean blocks, on flash too until the next start. Returns the number of bytes dropped from memory.
    pub fn invalidate(&self) -> u64 {
        self.0.shard.invalidate()
    }

    /// Destages all data that is dirty now and flushes the backing, under any policy.
    pub async fn destage_all(&self) -> Result<(), RequestError> {
        let shard = &self.0.shard;
        shard.log_zero_ranges().await;
        shard.flush_all().await?;
        // The flush of the log appends tombstones, so that a recovery leaves the destaged blocks alone.
        if shard.flush_involves_log() { shard.flush_log().await } else { Ok(()) }
    }

    /// Runs `work` while requests wait and the backing alone holds all acknowledged data: no recovery destages a block
    /// that was written before. Returns `None`, and does nothing, if that takes longer than `timeout` after most of the
    /// dirty data was destaged.
    pub async fn run_while_complete<T>(
        &self,
        timeout: Nanos,
        work: impl AsyncFnOnce() -> T,
    ) -> Result<Option<T>, RequestError> {
        // Most of the dirty data is destaged while requests are still served.
        self.destage_all().await?;
        let shard = &self.0.shard;
        let end = shard.seam().now() + timeout;
        let Some(hold) = within(shard.seam().sleep_until(end), self.0.gate.hold()).await else { return Ok(None) };
        let _hold = hold?;
        match shard.drain_log_if_destaged_within(end.since(shard.seam().now())).await {
            Some(result) => result?,
            None => return Ok(None),
        }
        Ok(Some(work().await))
    }

    /// Destages all data that is dirty now and flushes the backing, without tombstones, because the flash log can no
    /// longer be written. The volume's records in it are stale afterwards and must never be recovered. Abandon the map
    /// of clean pages first ([`flash::Pages::abandon`]), otherwise the call never returns.
    pub async fn destage_without_log(&self) -> Result<(), RequestError> {
        self.0.shard.flush_all().await
    }

    /// Resizes the volume to the present size of the backing (`None`) or to `size_bytes`, and resizes the backing if
    /// possible. Requests wait meanwhile. Shrinking destages dirty data first, or with `discard_dirty` drops the data
    /// past the new end. Returns the new size.
    pub async fn resize(&self, size_bytes: Option<u64>, discard_dirty: bool) -> Result<u64, RequestError> {
        // Most of the dirty data is destaged while requests are still served.
        self.0.shard.destage_for_resize(size_bytes, discard_dirty).await?;
        let _hold = self.0.gate.hold().await?;
        self.0.shard.resize(size_bytes, discard_dirty).await
    }

    /// Refuses new requests, waits for the ones in progress, destages and flushes. After an error the volume goes on
    /// serving.
    pub async fn drain(&self) -> Result<(), RequestError> {
        self.complete_backing().await?;
        self.0.shard.drop_all_blocks();
        self.0.shard.stop();
        Ok(())
    }

    /// As [`Volume::drain`], but clean blocks stay in memory.
    pub(crate) async fn drain_retaining(&self) -> Result<(), RequestError> {
        self.complete_backing().await?;
        let shard = &self.0.shard;
        // Only clean blocks stay, as after Shard::drop_all_blocks: a later attach of the volume starts without these.
        shard.kept_records.borrow_mut().remove(BlockNo::ALL);
        shard.with_state(|state, _| {
            state.log_tracker.outdated().into_iter().for_each(|outdated| outdated.remove(BlockNo::ALL))
        });
        shard.stop();
        Ok(())
    }

    /// Refuses new requests, waits for the ones in progress, destages and flushes, for a drain.
    async fn complete_backing(&self) -> Result<(), RequestError> {
        let closed = self.close().await?;
        let shard = &self.0.shard;
        shard.log_zero_ranges().await;
        shard.is_draining.set(true);
        shard.destage_work.notify();
        if let Err(error) = shard.drain_log().await {
            shard.is_draining.set(false);
            closed.reopen();
            return Err(error);
        }
        shard.record_unknown_blocks().await;
        shard.remove_mark_within(UNMARK_TIMEOUT).await;
        Ok(())
    }

    /// Refuses new requests, waits for the ones in progress, and discards all cached data, dirty data too. After an
    /// error the volume is as before.
    pub async fn discard_and_stop(&self) -> Result<(), RequestError> {
        let closed = self.close().await?;
        let shard = &self.0.shard;
        if let Err(error) = shard.drop_cached_data(true).await {
            closed.reopen();
            return Err(error);
        }
        shard.drop_all_blocks();
        shard.stop();
        Ok(())
    }

    /// Refuses new requests, waits for the ones in progress, and leaves dirty data in the flash log for the next start.
    /// It does not wait for reads of a hung backing. If the log does not answer flushes, it drains the volume instead.
    /// Returns true if the log holds records of the volume.
    pub async fn leave_in_log(&self) -> Result<bool, RequestError> {
        if !self.0.shard.uses_log() {
            self.drain().await?;
            return Ok(false);
        }
        let closed = self.0.gate.close_within(self.0.shard.seam().sleep(REQUESTS_END_TIMEOUT)).await?;
        self.0.limit_queue.release();
        let shard = &self.0.shard;
        if let Err(error) = shard.flush_log().await {
            closed.reopen();
            return Err(error);
        }
        if shard.has_only_zeroes_without_evidence() {
            shard.is_draining.set(true);
            shard.destage_work.notify();
            shard.drain_log_within(ZEROES_TIMEOUT).await;
        }
        shard.stop();
        shard.stop_destage_with_timeout().await;
        shard.clear_log_and_mark_within(MARK_TIMEOUT).await;
        Ok(shard.state.borrow().log_tracker.has_records())
    }

    /// True if records of the volume keep segments of the flash log in use: its backing may lack their content.
    pub fn needs_log(&self) -> bool {
        self.0.shard.state.borrow().log_tracker.holds_segments()
    }

    /// Lifts the limit before a stop, so that clients get their answers.
    pub fn lift_limits(&self) {
        self.0.limit_queue.lift();
    }

    /// Refuses new requests, waits up to [`REQUESTS_END_TIMEOUT`] for the ones in progress, and abandons the volume.
    /// For a volume on standby, which has nothing that its owner lacks.
    pub(crate) async fn end_standby(&self) {
        let limit = self.0.shard.seam().sleep(REQUESTS_END_TIMEOUT);
        // A gate that is closed already has been closed by a detach.
        let (Ok(_) | Err(_)) = self.0.gate.close_within(limit).await;
        self.0.limit_queue.release();
        self.abandon();
        self.0.shard.drop_all_blocks();
    }

    /// Abandons the volume without destage or flush; its log records stay.
    pub(crate) fn abandon(&self) {
        let shard = &self.0.shard;
        shard.is_abandoned.set(true);
        shard.is_destage_held.set(true);
        shard.stop();
        shard.core.remove_shard(shard);
    }

    /// Adopts the volume's log records, sorted by block, before the volume is served. Records that persisted memory
    /// lists as out of date do not count. Returns true if there are records past the volume's end.
    pub(crate) fn recover(&self, records: &[flash::RecoveredRecord], image: &ShmImage) -> bool {
        self.0.shard.recover(records, image)
    }

    /// Appends tombstones of all records past the volume's end. The data was given up when the volume was attached, so
    /// it must not come back when the backing grows, even after a crash.
    pub(crate) async fn append_tombstones_past_end(&self) -> Result<(), RequestError> {
        self.0.shard.append_tombstones_past_end().await
    }

    /// Recovers the volume's persisted memory after a kill, before the volume is served. `source` returns the content
    /// for an index listed in [`ShmImage::blocks`]. Returns the number of recovered blocks and zero-ranges. On an error
    /// the persisted memory stays complete.
    pub(crate) async fn recover_memory<W: WriteSource<S>>(
        &self,
        image: &ShmImage,
        source: impl FnMut(usize) -> W,
    ) -> Result<u64, RequestError> {
        self.0.shard.recover_memory(image, source).await
    }

    /// Refuses new requests, and waits for the ones in progress.
    async fn close(&self) -> Result<gate::ClosedGate<'_>, RequestError> {
        let closed = self.0.gate.close().await?;
        self.0.limit_queue.release();
        Ok(closed)
    }

    /// True if a request can be served without waiting at the gate or for a limit.
    fn is_free(&self) -> bool {
        self.0.gate.is_open()
            && !self.0.limit_queue.is_limited()
            && self.0.shard.disk.lost().is_none()
            && self.0.shard.disk.unproven_for().is_none()
    }

    /// Waits until the volume's limit admits a request.
    async fn wait_for_limit(&self, request_bytes: u64, trace: &LatencyTrace) {
        if self.0.limit_queue.is_limited() {
            self.0.limit_queue.wait(self.0.shard.seam(), request_bytes).await;
            trace.record(Step::Limit, self.now());
        }
    }

    /// Enters the gate, once this process is known to own the backing. Fails if another owner has taken it over.
    async fn enter(&self) -> Result<gate::RequestInProgress<'_>, RequestError> {
        loop {
            let inside = self.0.gate.enter().await?;
            // The present owner of the storage may have written since: what is cached may be old, and what is dirty
            // will not be destaged.
            if let Some(error) = self.0.shard.disk.lost() {
                return Err(error.into());
            }
            if self.0.shard.disk.unproven_for().is_none() {
                return Ok(inside);
            }
            // Outside the gate: a stop does not wait for this request.
            drop(inside);
            self.0.shard.seam().sleep(OWNERSHIP_CHECK_PAUSE).await;
        }
    }

    fn now(&self) -> Nanos {
        self.0.shard.seam().now()
    }

    /// Counts a failed request.
    fn count_error<T>(&self, result: Result<T, RequestError>) -> Result<T, RequestError> {
        let counters = &self.0.shard.counters;
        counters.add(&counters.errors, u64::from(result.is_err()));
        result
    }

    /// Checks that a request is aligned, not empty, and inside the volume.
    fn check_range(&self, at: ByteOffset, len_bytes: u64) -> Result<(), RequestError> {
        let sector = SECTOR_BYTES as u64;
        let end = at.checked_plus(len_bytes).ok_or(RequestError::Invalid)?;
        let fits =
            len_bytes > 0 && at.is_aligned(sector) && len_bytes.is_multiple_of(sector) && end.0 <= self.size_bytes();
        if fits { Ok(()) } else { Err(RequestError::Invalid) }
    }

    /// Checks a request that changes the volume.
    fn check_write(&self, at: ByteOffset, len_bytes: u64) -> Result<(), RequestError> {
        if self.0.spec.read_only { Err(RequestError::ReadOnly) } else { self.check_range(at, len_bytes) }
    }
}
