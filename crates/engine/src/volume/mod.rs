//! A volume's entry: bounds, the gate for administrators, and what a front end may ask of it.

mod bytes;
mod gate;
pub mod heat;
mod limit;
pub mod range_lock;
pub mod tap;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use seam::kept::Left;
use seam::{AllocationExtent, BLOCK_BYTES, Disk, Geometry, Nanos, Piece, SECTOR_BYTES, Seam};

use crate::backing::{Cause, Dispatch, ReservationError};
use crate::memory::{BlockNo, HINTS_MAX};
use crate::pages::Level;
use crate::pages::slow::{Asked, Slow, Step, Steps};
use crate::policy::Admit;
use crate::policy::curve::VolumeCurves;
use crate::shard::common::Common;
use crate::shard::state::State;
use crate::shard::{Shard, ShardRef, blocks_of};
use crate::spec::Sabotage;
use crate::stats::{Counters, VolumeProblem};
use crate::{
    Backing, CacheMode, FlashShare, FlashStats, MemoryShare, Qos, QosStats, RequestError, ShareError, VolumeSpec,
    VolumeStats, WriteFlags, WritePolicy, WriteSource, ZeroFlags,
};
use gate::Gate;
use heat::{Heat, HeatStats};
use limit::Entry;
use range_lock::RangeLocks;
use tap::{Taken, Tap};

/// Longest prefetch that one request may ask for, in bytes; more is left out.
const PREFETCH_BYTES_MAX: u64 = 32 << 20;
/// Time that requests under way have before a volume is left in the flash log without them.
const PARK_PATIENCE: Nanos = Nanos::from_secs(1);

struct Inner<S: Seam> {
    spec: VolumeSpec,
    shard: ShardRef<S>,
    entry: Rc<Entry>,
    qos: Cell<Qos>,
    gate: Gate,
    /// Ranges under writes, in bytes.
    locks: RangeLocks,
    tap: Tap,
    heat: Heat,
    since: Nanos,
}

/// A block device that clients see. A clone is another handle to the same; it stays on its core.
///
/// Offsets and lengths are in bytes and multiples of 512; the `_bytes` calls take any. The `_now` calls never wait: they do the whole request or
/// nothing and say which.
pub struct Volume<S: Seam>(Rc<Inner<S>>);

impl<S: Seam> Clone for Volume<S> {
    fn clone(&self) -> Self {
        Volume(Rc::clone(&self.0))
    }
}

impl<S: Seam> Volume<S> {
    pub(crate) fn new(core: Rc<Common<S>>, number: u32, spec: VolumeSpec, backing: Backing<S>) -> Self {
        let geometry = backing.disk.geometry();
        let shard = Rc::new(Shard {
            number,
            incarnation: spec.incarnation,
            dispatch: Dispatch::new(geometry.queue_depth),
            datastore: Default::default(),
            size_bytes: Cell::new(geometry.size_bytes),
            policy: Cell::new(spec.policy),
            mode: Cell::new(spec.mode),
            defer: spec.defer,
            state: RefCell::new(State::new(backing.disk.incarnation())),
            throttle: Default::default(),
            retry: Default::default(),
            streams: Default::default(),
            work: Default::default(),
            progress: Default::default(),
            company: Default::default(),
            counters: Counters::default(),
            curves: Default::default(),
            memory_share: Cell::new(spec.memory),
            level: Level::new(
                core.pages().map(|pages| pages.volume(spec.incarnation)),
                spec.flash.clone(),
                spec.drops_pages,
            ),
            slow: Default::default(),
            stopping: Cell::new(false),
            draining: Cell::new(false),
            holding: Cell::new(false),
            flushing_alone: Cell::new(false),
            spilling: Cell::new(false),
            given_up: Cell::new(false),
            spill_after: Cell::new(Nanos::ZERO),
            last_request: Cell::new(core.seam().now()),
            last_sync: Cell::new(core.seam().now()),
            disk: backing.disk,
            core,
        });
        if shard.core.has_log() {
            let blocks_max = shard.seam().blocks_total();
            let keeps = shard.seam().keeps() && !shard.sabotage(Sabotage::OldRecords);
            shard.state.borrow_mut().ledger.open(blocks_max, keeps);
        }
        shard.bound_memory();
        shard.seam().spawn(crate::destage::pump::pump(Rc::clone(&shard)));
        crate::pages::start(&shard);
        let since = shard.seam().now();
        let heat = Heat::default();
        heat.turn(since, geometry.size_bytes);
        let entry = Rc::new(Entry::default());
        entry.set_limits(spec.qos.limits, since);
        let (gate, locks, tap, qos) = (Gate::default(), RangeLocks::default(), Tap::default(), Cell::new(spec.qos));
        let volume = Volume(Rc::new(Inner { spec, shard, entry, qos, gate, locks, tap, heat, since }));
        volume.set_datastore(&volume.spec().datastore);
        volume
    }

    pub(crate) fn shard(&self) -> &ShardRef<S> {
        &self.0.shard
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.spec.name
    }

    /// What it was told to be; the policy may have changed since.
    pub fn spec(&self) -> &VolumeSpec {
        &self.0.spec
    }

    /// Bytes that clients see.
    pub fn size_bytes(&self) -> u64 {
        self.0.shard.size_bytes.get()
    }

    /// The backing's fixed facts.
    pub fn geometry(&self) -> Geometry {
        self.0.shard.disk.geometry()
    }

    /// When writes are acknowledged now.
    pub fn policy(&self) -> WritePolicy {
        self.0.shard.policy.get()
    }

    /// Whether the cache takes part.
    pub fn mode(&self) -> CacheMode {
        self.0.shard.mode.get()
    }

    /// What it has done and holds.
    pub fn stats(&self) -> VolumeStats {
        let shard = &self.0.shard;
        let block = BLOCK_BYTES as u64;
        let now = shard.seam().now();
        let mut stats = shard.counters.snapshot();
        shard.with(|state, memory| {
            let room = memory.room(shard.number);
            stats.memory_bytes = room.held * block;
            stats.memory_target_bytes = room.target.map(|target| target * block);
            stats.written_bytes = state.written_blocks() * block;
            stats.dirty_bytes = state.epochs.unwritten() * block;
            stats.flash_dirty_bytes = state.ledger.len() as u64 * block;
            stats.resting_bytes = state.ledger.resting() * block;
            stats.resting_index_bytes = state.ledger.resting_bytes() as u64;
            let oldest = state.oldest_dirty(memory, shard.number);
            stats.dirty_age_ms = oldest.map_or(0, |oldest| now.since(oldest).as_millis());
        });
        stats.backing_unanswered_ms = shard.disk.oldest_unanswered().map_or(0, |oldest| now.since(oldest).as_millis());
        let (entry, counters) = (&self.0.entry, &shard.counters);
        stats.qos = QosStats {
            limit_waits: entry.waits.get(),
            limit_waited_us: entry.waited.get().as_micros(),
            share_waits: counters.share_waits.get(),
            share_waited_us: counters.share_waited_us.get(),
        };
        stats.flash = FlashStats { logged_bytes: shard.counters.logged_bytes.get(), ..shard.level.stats() };
        stats.problems.extend(shard.level.dropped().map(VolumeProblem::PagesDropped));
        if shard.retry.holds(now) || !shard.state.borrow().failed.is_empty() {
            let error = shard.counters.last_error.borrow().clone();
            let error = error.map_or_else(|| "unknown".to_owned(), |error| error.to_string());
            stats.problems.push(VolumeProblem::DestageFailing { error, dirty_bytes: stats.dirty_bytes });
        }
        stats
    }

    /// What caches of other sizes would have missed of what clients lately asked for.
    pub fn curves(&self) -> VolumeCurves {
        self.0.shard.curves.borrow().stats()
    }

    /// How long it has been attached.
    pub fn age(&self) -> Nanos {
        self.now().since(self.0.since)
    }

    /// The slowest hundred requests of the last hour, the slowest first, each with the step that it waited in longest.
    pub fn slow_requests(&self) -> Vec<Slow> {
        self.0.shard.slow.list(self.now())
    }

    /// A client asks this, and may: it is counted, and shown to whoever records. Front ends say so once a request, for they may serve it in
    /// pieces.
    pub fn asked(&self, asked: Asked, at: u64, len: u64) {
        self.0.heat.note(asked, at);
        self.0.tap.note(|| self.now(), asked, at, len);
    }

    /// Time passes: who samples a volume says so, for requests ask no clock to be counted.
    pub fn turn_heat(&self) {
        self.0.heat.turn(self.now(), self.size_bytes());
    }

    /// How often each part of it was asked for in the last hour.
    pub fn heat(&self) -> HeatStats {
        self.0.heat.stats()
    }

    /// Opens the tap: from now on requests are kept for a recorder, who must come for them every few seconds. Its number, or `None`
    /// while another one records.
    pub fn open_tap(&self) -> Option<u64> {
        self.0.tap.open(self.now())
    }

    /// Gives the recorder at most `most` requests that came by; `None` if the tap is no longer its own.
    pub fn take_tapped(&self, recorder: u64, most: usize) -> Option<Taken> {
        self.0.tap.take(recorder, most, self.now())
    }

    /// Closes the recorder's tap.
    pub fn close_tap(&self, recorder: u64) {
        self.0.tap.close(recorder);
    }

    /// Says that the blocks at `offsets` (the first [`HINTS_MAX`] of them) will be asked for in a moment: brings near what that will
    /// touch, and does nothing else.
    pub fn hint(&self, offsets: &[u64]) {
        let mut blocks = [BlockNo(0); HINTS_MAX];
        let count = offsets.len().min(HINTS_MAX);
        for (block, at) in blocks.iter_mut().zip(offsets) {
            *block = BlockNo(at / BLOCK_BYTES as u64);
        }
        self.0.shard.with(|_, memory| memory.hint(self.0.shard.number, &blocks[..count]));
    }

    /// Reads `len` bytes from `at` on if all are in memory: appends them to `out` and returns true, else leaves `out` as it was.
    /// A request that [`Volume::read`] would refuse is left to it (false).
    pub fn read_now(&self, at: u64, len: usize, out: &mut Vec<Piece<S::Block>>) -> bool {
        self.is_free() && self.check(at, len as u64).is_ok() && self.0.shard.read_now(at, len, out)
    }

    /// Reads `len` bytes from `at` on and appends them to `out`, split at block boundaries.
    pub async fn read(&self, at: u64, len: usize, out: &mut Vec<Piece<S::Block>>) -> Result<(), RequestError> {
        self.read_keeping(at, len, out, true).await
    }

    /// As [`Volume::read`], for content that will not be asked for again: what is not cached yet is not cached for this.
    pub async fn read_once(&self, at: u64, len: usize, out: &mut Vec<Piece<S::Block>>) -> Result<(), RequestError> {
        self.read_keeping(at, len, out, false).await
    }

    async fn read_keeping(
        &self,
        at: u64,
        len: usize,
        out: &mut Vec<Piece<S::Block>>,
        keep: bool,
    ) -> Result<(), RequestError> {
        let steps = Steps::new(self.now());
        self.keep_to_limit(len as u64, &steps).await;
        let _inside = self.enter().await?;
        self.check(at, len as u64)?;
        let begun = self.now();
        steps.passed(Step::Gate, begun);
        let result = self.0.shard.read(at, len, out, keep, &steps).await;
        let now = self.now();
        self.0.shard.counters.read_latency.add(now.since(begun).max(Nanos::from_micros(1)));
        self.0.shard.slow.ended(&steps, Asked::Read, at, len as u64, now);
        self.count(result)
    }

    /// Buffers for the content of a write of whole blocks ([`crate::GivenBlocks`]); `None` when there are not as many now.
    pub fn buffers(&self, count: usize) -> Option<Vec<S::BlockMut>> {
        self.0.shard.with(|_, memory| (0..count).map(|_| memory.alloc()).collect())
    }

    /// Writes if that needs no waiting, else returns false; the caller then makes the same write by [`Volume::write`].
    pub fn write_now(&self, at: u64, len: usize, source: &mut impl WriteSource<S>) -> bool {
        let may = self.is_free() && self.check_write(at, len as u64).is_ok();
        may && self.0.locks.is_open(&(at..at + len as u64)) && self.0.shard.write_now(at, len, source)
    }

    /// Writes `len` bytes at `at`.
    pub async fn write(
        &self,
        at: u64,
        len: usize,
        flags: WriteFlags,
        source: &mut impl WriteSource<S>,
    ) -> Result<(), RequestError> {
        let steps = Steps::new(self.now());
        self.keep_to_limit(len as u64, &steps).await;
        let _inside = self.enter().await?;
        self.check_write(at, len as u64)?;
        let _beside_others = self.0.locks.write(at..at + len as u64).await;
        steps.passed(Step::Gate, self.now());
        let result = self.0.shard.write(at, len, flags, source, &steps).await;
        self.0.shard.slow.ended(&steps, Asked::Write, at, len as u64, self.now());
        self.count(result)
    }

    /// Makes everything that was acknowledged before this call durable (`write-back-volatile`: nothing, by its definition).
    pub async fn flush(&self) -> Result<(), RequestError> {
        let steps = Steps::new(self.now());
        let _inside = self.enter().await?;
        steps.passed(Step::Gate, self.now());
        let step = if self.0.shard.log_matters() { Step::Log } else { Step::Destage };
        let result = self.0.shard.flush().await;
        steps.passed(step, self.now());
        self.0.shard.slow.ended(&steps, Asked::Flush, 0, 0, self.now());
        self.count(result)
    }

    /// Makes `len` bytes from `at` on read as zeroes.
    pub async fn zero(&self, at: u64, len: u64, flags: ZeroFlags) -> Result<(), RequestError> {
        // One request that moves no data, however long.
        self.keep_to_limit(0, &Steps::new(self.now())).await;
        let _inside = self.enter().await?;
        self.check_write(at, len)?;
        let _beside_others = self.0.locks.write(at..at + len).await;
        let result = self.0.shard.zero(at, len, flags).await;
        self.count(result)
    }

    /// Releases `len` bytes from `at` on; they read as zeroes afterwards.
    pub async fn discard(&self, at: u64, len: u64, flags: WriteFlags) -> Result<(), RequestError> {
        self.zero(at, len, ZeroFlags { fua: flags.fua, may_unmap: true, fast_only: false }).await
    }

    /// Brings `len` bytes from `at` on into memory, as far as there is room; a hint, never an error but [`RequestError::Invalid`].
    pub async fn prefetch(&self, at: u64, len: u64) -> Result<(), RequestError> {
        let _inside = self.enter().await?;
        self.check(at, len)?;
        let half_of_memory = (self.0.shard.seam().blocks_total() * BLOCK_BYTES / 2) as u64;
        let blocks = blocks_of(at, len.min(PREFETCH_BYTES_MAX).min(half_of_memory).max(1));
        self.0.shard.bring(blocks, Admit::Normal, Cause::Readahead).await;
        Ok(())
    }

    /// Allocation status of `len` bytes from `at` on, as runs that cover a prefix of it (at least one run). Never says zero or
    /// hole where the newest content is something else (R4).
    pub async fn allocation(&self, at: u64, len: u64) -> Result<Vec<AllocationExtent>, RequestError> {
        let _inside = self.enter().await?;
        self.check(at, len)?;
        let result = self.0.shard.allocation(at, len).await;
        self.count(result)
    }

    /// Changes when writes are acknowledged; what is dirty is brought to the backing first where the new policy wants that.
    pub async fn set_policy(&self, policy: WritePolicy) -> Result<(), RequestError> {
        self.0.shard.set_policy(policy).await
    }

    /// Pauses, freezes or resumes the cache.
    pub async fn set_mode(&self, mode: CacheMode) -> Result<(), RequestError> {
        self.0.shard.set_mode(mode).await
    }

    /// What it is entitled to beside others, and held to.
    pub fn qos(&self) -> Qos {
        self.0.qos.get()
    }

    /// Changes that, for requests that wait as well. Refused where its datastore has not shown that it can do what would be reserved.
    pub fn set_qos(&self, qos: Qos) -> Result<(), ReservationError> {
        let shard = &self.0.shard;
        if let Some(datastore) = shard.datastore.borrow().as_ref()
            && qos.reservation_iops > self.0.qos.get().reservation_iops
        {
            datastore.check_reservation(shard.number, qos.reservation_iops)?;
        }
        self.0.qos.set(qos);
        self.0.entry.set_limits(qos.limits, self.now());
        self.share();
        Ok(())
    }

    /// From now on it shares its storage with the volumes of that datastore; with none where there is no such.
    pub fn set_datastore(&self, name: &str) {
        let shard = &self.0.shard;
        let other = shard.core.datastore(name);
        let old = std::mem::replace(&mut *shard.datastore.borrow_mut(), other.clone());
        self.share();
        if let Some(old) = old
            && other.is_none_or(|other| !Rc::ptr_eq(&other, &old))
        {
            old.leave(shard.number);
        }
    }

    fn share(&self) {
        let (shard, qos) = (&self.0.shard, self.0.qos.get());
        if let Some(datastore) = shard.datastore.borrow().as_ref() {
            datastore.set(shard.number, self.name(), qos.entitlement());
        }
        // What is reserved on disks says nothing of flash.
        let of_flash = Qos { reservation_iops: 0, ..qos }.entitlement();
        shard.core.flash_turns().set(shard.number, self.name(), of_flash);
    }

    pub(crate) fn leave_datastore(&self) {
        let shard = &self.0.shard;
        if let Some(old) = shard.datastore.take() {
            old.leave(shard.number);
        }
        shard.core.flash_turns().leave(shard.number);
    }

    /// What it may have of the memory.
    pub fn memory_share(&self) -> MemoryShare {
        self.0.shard.memory_share.get()
    }

    /// Changes what it may have of the memory. What it has more than it may goes when its next block comes.
    pub fn set_memory_share(&self, share: MemoryShare) {
        self.0.shard.memory_share.set(share);
        self.0.shard.bound_memory();
        self.0.shard.refresh_throttle();
    }

    /// What its clean pages may have of the flash.
    pub fn flash_share(&self) -> FlashShare {
        self.0.shard.level.share()
    }

    /// Changes what its clean pages may have of the flash. Refused where other volumes were promised too much for that; what it has
    /// more than it may goes when room is needed.
    pub fn set_flash_share(&self, share: FlashShare) -> Result<(), ShareError> {
        self.0.shard.level.set_share(share)?;
        self.0.shard.repin();
        Ok(())
    }

    /// Drops all that is cached, on flash too, for the backing was changed by others; returns how many bytes of memory that was. Requests
    /// wait meanwhile. Refused while something is not on the backing yet, unless that is to be discarded too.
    pub async fn start_anew(&self, discard_dirty: bool) -> Result<u64, RequestError> {
        let _held = self.0.gate.hold().await?;
        self.0.shard.start_anew(discard_dirty).await
    }

    /// Drops all clean blocks, on flash too until the next start; returns how many bytes of memory that was.
    pub fn invalidate(&self) -> u64 {
        self.0.shard.invalidate()
    }

    /// Destages all that is dirty now and flushes the backing, whatever the policy.
    pub async fn destage_all(&self) -> Result<(), RequestError> {
        let shard = &self.0.shard;
        shard.flush_all().await?;
        // Durable is what a recovery leaves alone.
        if shard.log_matters() { shard.flush_log().await } else { Ok(()) }
    }

    /// Destages all that is dirty now and flushes the backing. The flash log is not told, for it cannot be written any more: what it holds of
    /// the volume is old afterwards, and must never be taken over again. The map of clean pages is abandoned first ([`flash::Pages::abandon`]),
    /// or this waits for ever.
    pub async fn destage_past_log(&self) -> Result<(), RequestError> {
        self.0.shard.flush_all().await
    }

    /// Grows or shrinks the volume to what the backing now has (`None`) or to `size_bytes`, growing or cutting the backing where it
    /// can. Requests wait meanwhile. Shrinking brings dirty data to the backing first, or drops what lies beyond unwritten if
    /// `discard_dirty`.
    pub async fn resize(&self, size_bytes: Option<u64>, discard_dirty: bool) -> Result<u64, RequestError> {
        let _held = self.0.gate.hold().await?;
        self.0.shard.resize(size_bytes, discard_dirty).await
    }

    /// Refuses new requests, waits for those under way, destages and flushes. On an error the volume goes on serving.
    pub async fn drain(&self) -> Result<(), RequestError> {
        let closed = self.close().await?;
        let shard = &self.0.shard;
        shard.draining.set(true);
        shard.work.notify();
        if let Err(error) = shard.leave_log().await {
            shard.draining.set(false);
            closed.open_again();
            return Err(error);
        }
        shard.forget();
        shard.stopping.set(true);
        shard.work.notify();
        Ok(())
    }

    /// Refuses new requests, waits for those under way, and leaves what is dirty in the flash log, where the next start finds it. A read
    /// that waits for a backing that hangs is not waited for. Where the log does not answer flushes, drains. True when something is left there.
    pub async fn park(&self) -> Result<bool, RequestError> {
        if !self.0.shard.logs() {
            self.drain().await?;
            return Ok(false);
        }
        let closed = self.0.gate.close_within(self.0.shard.seam().sleep(PARK_PATIENCE)).await?;
        self.0.entry.release();
        let shard = &self.0.shard;
        if let Err(error) = shard.flush_log().await {
            closed.open_again();
            return Err(error);
        }
        shard.stopping.set(true);
        shard.work.notify();
        shard.end_destage_in_time().await;
        Ok(shard.state.borrow().ledger.has_records())
    }

    /// Holds nobody to a limit any more: before a stop, so that clients have their answers.
    pub fn lift_limits(&self) {
        self.0.entry.lift();
    }

    /// Stops without a word to anybody: what the log holds of it stays there.
    pub(crate) fn give_up(&self) {
        let shard = &self.0.shard;
        shard.given_up.set(true);
        shard.holding.set(true);
        shard.stopping.set(true);
        shard.work.notify();
        shard.core.remove(shard);
    }

    /// Takes over what the flash log holds of the volume, in the blocks' order, but for what a killed process left word of that it is
    /// out of date; before anybody asks for it.
    pub(crate) fn recover(&self, records: &[flash::Recovered], left: &Left) -> Result<(), RequestError> {
        self.0.shard.recover(records, left)
    }

    /// Takes back what a killed process left of the volume in memory, before anybody asks for it: `source` gives the content of the
    /// block at a place. Returns how many blocks and zero-ranges that were. On an error nothing is forgotten that is left.
    pub(crate) async fn take_back<W: WriteSource<S>>(
        &self,
        left: &Left,
        source: impl FnMut(usize) -> W,
    ) -> Result<u64, RequestError> {
        self.0.shard.take_back(left, source).await
    }

    async fn close(&self) -> Result<gate::Closed<'_>, RequestError> {
        let closed = self.0.gate.close().await?;
        self.0.entry.release();
        Ok(closed)
    }

    /// True when a request need not wait for anything before it is served.
    fn is_free(&self) -> bool {
        self.0.gate.is_open() && !self.0.entry.is_limited()
    }

    async fn keep_to_limit(&self, bytes: u64, steps: &Steps) {
        if self.0.entry.is_limited() {
            self.0.entry.pass(self.0.shard.seam(), bytes).await;
            steps.passed(Step::Limit, self.now());
        }
    }

    async fn enter(&self) -> Result<gate::Inside<'_>, RequestError> {
        self.0.gate.enter().await
    }

    fn now(&self) -> Nanos {
        self.0.shard.seam().now()
    }

    fn count<T>(&self, result: Result<T, RequestError>) -> Result<T, RequestError> {
        let counters = &self.0.shard.counters;
        counters.add(&counters.errors, u64::from(result.is_err()));
        result
    }

    fn check(&self, at: u64, len: u64) -> Result<(), RequestError> {
        let sector = SECTOR_BYTES as u64;
        let end = at.checked_add(len).ok_or(RequestError::Invalid)?;
        let fits = len > 0 && at.is_multiple_of(sector) && len.is_multiple_of(sector) && end <= self.size_bytes();
        if fits { Ok(()) } else { Err(RequestError::Invalid) }
    }

    fn check_write(&self, at: u64, len: u64) -> Result<(), RequestError> {
        if self.0.spec.read_only { Err(RequestError::ReadOnly) } else { self.check(at, len) }
    }
}
