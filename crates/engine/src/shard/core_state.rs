//! State shared by the shards of one core: memory, buffers, the flash store, datastores, and the tick for dirty data.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use flash::{MapLoadOutcome, Pages, Store};
use seam::{Nanos, Seam};

use super::kept_records::KeptTotals;
use super::log_destage::{ChunkReloads, LOGGED_AGE_FACTOR};
use super::memory_partition::MemoryPartition;
use super::promoter::Promoter;
use super::siblings::SiblingDirectory;
use super::{Shard, ShardRef};
use crate::backing::Datastore;
use crate::memory::{BLOCKS_PER_PAGE, MemoryCache};
use crate::wait::Signal;
use crate::{CoreSpec, DatastoreSpec, FLASH_DATASTORE, PromotionStats};

/// Requests in one tick from which on the core counts as busy: 2,000 a second.
const BUSY_REQUESTS_PER_TICK: u64 = 100;
/// Cost units that destage of all volumes may spend in one tick while the core is busy, even if a flush waits: about a
/// seventh of the core. A run costs one unit, and one more for each 16 of its blocks.
const DESTAGE_ALLOWANCE_UNITS: u64 = 512;
/// Part of the log's segments, in percent, that dirty data may fill before it is destaged. A higher target takes flash
/// from pages, a lower one destages more blocks that are written again (docs/decisions/022).
pub const LOG_TARGET_PERCENT: usize = 20;
/// The log is crowded if fewer than 1/4 of its segments are free.
pub const CROWDED_FREE_SEGMENTS_DIVISOR: usize = 4;
/// Upper limit of the pressure on destage by the age of the log's data: a small part of the queue.
pub const AGE_PRESSURE_PERCENT_MAX: u64 = 25;
/// Pause between attempts to get a buffer.
const ALLOC_PAUSE: Nanos = Nanos::from_micros(200);

/// Measurements of the log, updated at each tick.
#[derive(Default)]
struct LogGauges {
    /// See [`CoreState::log_pressure_percent`].
    pressure_percent: Cell<u64>,
    /// See [`CoreState::log_age_pressure_percent`].
    age_pressure_percent: Cell<u64>,
    /// See [`CoreState::oldest_segment_since`].
    oldest_segment_since: Cell<Option<Nanos>>,
    /// Free segments of the log when a volume last found it full.
    free_segments_when_full: Cell<Option<usize>>,
}

/// State shared by the shards of one core.
pub struct CoreState<S: Seam> {
    seam: S,
    spec: CoreSpec,
    memory: RefCell<MemoryCache<S>>,
    /// All shards by number, in the order of attachment. Each shard owns this, so this holds only weak references.
    shards: RefCell<BTreeMap<u32, Weak<Shard<S>>>>,
    /// Volumes that may hold content that others share.
    pub siblings: RefCell<SiblingDirectory>,
    /// The tick runs.
    pub is_ticking: Cell<bool>,
    /// The flash log, if there is one.
    log: RefCell<Option<Store<S>>>,
    /// The clean pages on flash.
    pages: RefCell<Option<Pages<S>>>,
    /// The result of reading the map of clean pages.
    map_loaded: RefCell<Option<MapLoadOutcome>>,
    map_loaded_signal: Signal,
    promoter: Promoter<S>,
    /// A task is flushing backings to free regions of the write-intent log.
    pub is_freeing_dirty_regions: Cell<bool>,
    /// The log's fill level and age at the last tick.
    log_gauges: LogGauges,
    /// Client requests counted at the last tick.
    last_tick_requests: Cell<u64>,
    /// Cost units left for destage until the next tick; `None` without limit.
    destage_allowance_units: Cell<Option<u64>>,
    /// Batches that destage reads from the log.
    pub chunk_reloads: ChunkReloads,
    /// Time from which the next batch of the log that no client waits for may begin.
    pub next_background_batch_at: Cell<Nanos>,
    /// Number of kept records, and progress of their sweeps.
    pub kept_totals: KeptTotals,
    /// The last partition of memory among the volumes.
    pub memory_partition: Cell<MemoryPartition>,
    /// Datastores by name.
    datastores: RefCell<BTreeMap<String, Rc<Datastore<S>>>>,
    /// The datastore of the flash devices, which all volumes share.
    flash_datastore: Rc<Datastore<S>>,
}

impl<S: Seam> CoreState<S> {
    /// A core without shards; its memory cache uses the whole pool.
    pub fn new(seam: S, spec: CoreSpec) -> Self {
        let memory = RefCell::new(MemoryCache::new(seam.clone()));
        let flash_spec = DatastoreSpec { threshold: spec.flash_threshold, ..DatastoreSpec::new(FLASH_DATASTORE) };
        let promoter = Promoter::new(&spec, (seam.blocks_total() / BLOCKS_PER_PAGE) as u64);
        CoreState {
            kept_totals: KeptTotals::default(),
            chunk_reloads: ChunkReloads::default(),
            next_background_batch_at: Cell::default(),
            memory_partition: Cell::new(MemoryPartition::new(seam.now())),
            log_gauges: LogGauges::default(),
            datastores: Default::default(),
            siblings: RefCell::new(SiblingDirectory::new(seam.blocks_total())),
            flash_datastore: Datastore::of_flash(seam.clone(), &flash_spec),
            seam,
            spec,
            memory,
            shards: Default::default(),
            is_ticking: Default::default(),
            log: Default::default(),
            pages: Default::default(),
            map_loaded: Default::default(),
            map_loaded_signal: Default::default(),
            promoter,
            is_freeing_dirty_regions: Default::default(),
            last_tick_requests: Default::default(),
            destage_allowance_units: Default::default(),
        }
    }

    /// The seam.
    pub fn seam(&self) -> &S {
        &self.seam
    }

    /// The core's settings.
    pub fn spec(&self) -> &CoreSpec {
        &self.spec
    }

    /// The memory cache, which all volumes share.
    pub fn memory(&self) -> &RefCell<MemoryCache<S>> {
        &self.memory
    }

    /// Installs the open store: its log answers flushes, its pages hold clean data. The map of pages is read in the
    /// background.
    pub fn install_store(self: &Rc<Self>, store: Store<S>) {
        let pages = store.pages();
        // Memory fills the whole pool: a buffer for the store replaces a clean block.
        let core_state = Rc::downgrade(self);
        store.set_fallback_buffers(move || core_state.upgrade()?.memory.try_borrow_mut().ok()?.alloc());
        *self.pages.borrow_mut() = Some(pages.clone());
        *self.log.borrow_mut() = Some(store);
        let core_state = Rc::clone(self);
        self.seam.spawn(async move {
            let loaded = pages.load().await;
            *core_state.map_loaded.borrow_mut() = Some(loaded);
            core_state.map_loaded_signal.notify();
        });
    }

    /// The clean pages on flash.
    pub fn pages(&self) -> Option<Pages<S>> {
        self.pages.borrow().clone()
    }

    /// The result of reading the map of clean pages; `None` while it is being read.
    pub fn map_loaded(&self) -> Option<MapLoadOutcome> {
        self.map_loaded.borrow().clone()
    }

    /// Waits until the map of clean pages is read.
    pub async fn wait_for_map(&self) {
        self.map_loaded_signal.wait_for(|| self.map_loaded.borrow().is_some().then_some(())).await;
    }

    /// The present limits of promotion.
    pub fn promotion_stats(&self) -> PromotionStats {
        let budget = self.promoter.budget();
        PromotionStats {
            left_bytes: budget.available_bytes(),
            promote_one_in: budget.promote_one_in(),
            history_bytes: self.promoter.history_bytes(),
        }
    }

    /// The promotion state that all volumes share.
    pub fn promoter(&self) -> &Promoter<S> {
        &self.promoter
    }

    /// A weak reference to a shard.
    pub fn weak_shard(&self, number: u32) -> Option<Weak<Shard<S>>> {
        self.shards.borrow().get(&number).cloned()
    }

    /// True if there is a flash log.
    pub fn has_log(&self) -> bool {
        self.log.borrow().is_some()
    }

    /// The flash log.
    pub fn log(&self) -> Option<Store<S>> {
        self.log.borrow().clone()
    }

    /// True if so few segments of the log are free that records have to be retired soon.
    pub fn is_log_crowded(&self) -> bool {
        self.log.borrow().as_ref().is_some_and(|store| {
            let (free, total) = store.room();
            free * CROWDED_FREE_SEGMENTS_DIVISOR < total
        })
    }

    /// Fill level of the log between its target (0) and the level at which it is crowded (100). Measured at each tick,
    /// because counting visits each segment.
    pub fn log_pressure_percent(&self) -> u64 {
        self.log_gauges.pressure_percent.get()
    }

    /// Time since which the oldest segment of the log has been in use.
    pub fn oldest_segment_since(&self) -> Option<Nanos> {
        self.log_gauges.oldest_segment_since.get()
    }

    /// True if dirty data fills more of the log than its target.
    pub fn is_log_above_target(&self) -> bool {
        self.log_pressure_percent() > 0
    }

    /// Pressure on destage by the age of the log's oldest segment: 0 up to the age limit of logged data,
    /// [`AGE_PRESSURE_PERCENT_MAX`] from twice the limit on. Measured at each tick.
    pub fn log_age_pressure_percent(&self) -> u64 {
        self.log_gauges.age_pressure_percent.get()
    }

    /// Measures the pressure on destage by the log's fill level and age.
    pub fn measure_log_pressure(&self) {
        let pressure = self.log.borrow().as_ref().map_or(0, |store| {
            let (free, total) = store.room();
            let (target, crowded) = (total * LOG_TARGET_PERCENT / 100, total - total / CROWDED_FREE_SEGMENTS_DIVISOR);
            let above_target = (total - free.min(total)).saturating_sub(target);
            (above_target * 100 / (crowded - target).max(1)).min(100) as u64
        });
        self.log_gauges.pressure_percent.set(pressure);
        let since = self.log.borrow().as_ref().and_then(Store::oldest_since);
        self.log_gauges.oldest_segment_since.set(since);
        let age_limit = self.spec.dirty_age_max.0.saturating_mul(LOGGED_AGE_FACTOR).max(1);
        let late = since.map_or(0, |since| self.seam.now().since(since).0.saturating_sub(age_limit));
        self.log_gauges
            .age_pressure_percent
            .set(late.saturating_mul(AGE_PRESSURE_PERCENT_MAX).div_euclid(age_limit).min(AGE_PRESSURE_PERCENT_MAX));
    }

    /// Records the number of free segments at which a volume found the log full of other volumes' records.
    pub fn record_full_log(&self) {
        self.log_gauges.free_segments_when_full.set(self.log.borrow().as_ref().map(|store| store.room().0));
    }

    /// True while the log has no more free segments than at the last [`CoreState::record_full_log`].
    pub fn is_log_still_full(&self) -> bool {
        let room = self.log.borrow().as_ref().map(|store| store.room().0);
        self.log_gauges
            .free_segments_when_full
            .get()
            .is_some_and(|when_full| room.is_some_and(|room| room <= when_full))
    }

    /// The datastore by which reads from flash get their I/O slots.
    pub fn flash_datastore(&self) -> &Rc<Datastore<S>> {
        &self.flash_datastore
    }

    /// Adds a datastore or changes its settings.
    pub fn set_datastore(&self, spec: &DatastoreSpec) {
        let mut datastores = self.datastores.borrow_mut();
        match datastores.get(&spec.name) {
            Some(datastore) => datastore.configure(spec),
            None => drop(datastores.insert(spec.name.clone(), Datastore::new(self.seam.clone(), spec))),
        }
    }

    /// Removes a datastore from the list; its present volumes keep using it.
    pub fn remove_datastore(&self, name: &str) {
        self.datastores.borrow_mut().remove(name);
    }

    /// The datastore of that name.
    pub fn datastore(&self, name: &str) -> Option<Rc<Datastore<S>>> {
        self.datastores.borrow().get(name).cloned()
    }

    /// All datastores, by name.
    pub fn datastores(&self) -> Vec<Rc<Datastore<S>>> {
        self.datastores.borrow().values().cloned().collect()
    }

    /// Adds a shard and reduces the dirty limits of the others accordingly.
    pub fn add_shard(&self, shard: &ShardRef<S>) {
        self.shards.borrow_mut().insert(shard.volume_number, Rc::downgrade(shard));
        self.siblings.borrow_mut().record_change_of_volumes();
        self.shards().iter().for_each(|shard| shard.refresh_throttle());
    }

    /// Removes a shard.
    pub fn remove_shard(&self, shard: &ShardRef<S>) {
        self.shards.borrow_mut().remove(&shard.volume_number);
        self.siblings.borrow_mut().record_change_of_volumes();
        self.memory.borrow_mut().detach_volume(shard.volume_number);
    }

    /// All shards.
    pub fn shards(&self) -> Vec<ShardRef<S>> {
        self.shards.borrow().values().filter_map(Weak::upgrade).collect()
    }

    /// Number of zero-ranges of all shards, and of blocks that are not clean.
    pub fn not_clean_units(&self) -> u64 {
        let shards = self.shards.borrow();
        shards.values().filter_map(Weak::upgrade).map(|shard| shard.state.borrow().not_clean_units()).sum()
    }

    /// Evicts clean blocks until `count` buffers are free, if there are as many.
    pub fn free_buffers(&self, count: usize) {
        let mut memory = self.memory.borrow_mut();
        drop(std::iter::from_fn(|| memory.alloc()).take(count).collect::<Vec<_>>());
    }

    /// Waits for a buffer. Destage, which frees buffers, never waits here.
    pub async fn alloc(self: &Rc<Self>) -> S::BlockMut {
        loop {
            let block = self.memory.borrow_mut().alloc();
            match block {
                Some(block) => return block,
                None => self.pause_for_buffers().await,
            }
        }
    }

    /// Waits for `count` buffers at once, so that no two callers hold some and wait for each other. Without `may_wait`
    /// it returns `None` instead of waiting.
    pub async fn alloc_all(self: &Rc<Self>, count: usize, may_wait: bool) -> Option<Vec<S::BlockMut>> {
        self.repartition_memory_if_due();
        loop {
            let blocks: Vec<_> = {
                let mut memory = self.memory.borrow_mut();
                std::iter::from_fn(|| memory.alloc()).take(count).collect()
            };
            if blocks.len() == count {
                return Some(blocks);
            }
            drop(blocks);
            if !may_wait {
                return None;
            }
            self.pause_for_buffers().await;
        }
    }

    /// Wakes the pumps, whose destage frees buffers, and sleeps briefly. While data is dirty, the tick runs, which
    /// destage needs.
    pub async fn pause_for_buffers(self: &Rc<Self>) {
        self.shards().iter().for_each(|shard| shard.destage_work.notify());
        self.seam.sleep(ALLOC_PAUSE).await;
    }

    /// Renews the allowance of destage, and limits it only if clients are busy.
    pub fn renew_allowance(&self) {
        let requests = self.shards().iter().map(|shard| shard.counters.requests()).sum();
        // The count of a volume that was detached is missing, so the sum may be lower than before.
        let new: u64 = u64::saturating_sub(requests, self.last_tick_requests.replace(requests));
        self.destage_allowance_units.set((new >= BUSY_REQUESTS_PER_TICK).then_some(DESTAGE_ALLOWANCE_UNITS));
    }

    /// True if destage may send another run before the next tick without taking too much of the core from clients.
    pub fn may_destage(&self) -> bool {
        self.destage_allowance_units.get() != Some(0)
    }

    /// Records cost units spent by destage; the last run may overdraw the allowance.
    pub fn record_destage(&self, cost_units: u64) {
        self.destage_allowance_units
            .set(self.destage_allowance_units.get().map(|left| left.saturating_sub(cost_units)));
    }
}
