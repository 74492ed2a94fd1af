//! State shared by the shards of one core: memory, buffers, the flash store, datastores, and the tick for dirty data.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use flash::{MapLoaded, Pages, Store};
use seam::{Nanos, Seam};

use super::division::Division;
use super::{Shard, ShardRef};
use crate::backing::Datastore;
use crate::memory::{BLOCKS_PER_PAGE, Memory};
use crate::pages::Promoter;
use crate::wait::Signal;
use crate::{CoreSpec, DatastoreSpec, FLASH_DATASTORE, PromotionStats};

/// Period of the tick while there is dirty data.
const TICK: Nanos = Nanos::from_millis(50);
/// Requests in one tick from which on the core counts as busy: 2,000 a second.
const BUSY_REQUESTS: u64 = 100;
/// Destage units of all volumes in one tick while the core is busy, even if a flush waits: about a seventh of the core.
const DESTAGE_ALLOWANCE: u64 = 512;
/// The log is crowded if less than one segment in this many is free.
const LOG_ROOM_PART: usize = 4;
/// Pause between attempts to get a buffer.
const ALLOC_PAUSE: Nanos = Nanos::from_micros(200);

/// State shared by the shards of one core.
pub struct Common<S: Seam> {
    seam: S,
    spec: CoreSpec,
    memory: RefCell<Memory<S>>,
    /// All shards in the order of attachment. Each shard owns this, so this holds only weak references.
    shards: RefCell<Vec<Weak<Shard<S>>>>,
    ticking: Cell<bool>,
    /// The flash log, if there is one.
    log: RefCell<Option<Store<S>>>,
    /// The clean pages on flash.
    pages: RefCell<Option<Pages<S>>>,
    /// The result of reading the map of clean pages.
    loaded: RefCell<Option<MapLoaded>>,
    loaded_now: Signal,
    promoter: Promoter<S>,
    /// A task is flushing backings to free regions of the write-intent log.
    freeing_marks: Cell<bool>,
    /// See [`Common::log_pressure_percent`].
    log_pressure: Cell<u64>,
    /// Free segments of the log when a volume last found it full.
    full_at: Cell<Option<usize>>,
    /// Client requests counted at the last tick.
    requests: Cell<u64>,
    /// Destage units left until the next tick; `None` without limit.
    allowance: Cell<Option<u64>>,
    /// The last division of memory.
    pub division: Cell<Division>,
    /// Datastores by name.
    datastores: RefCell<BTreeMap<String, Rc<Datastore<S>>>>,
    /// The datastore of the flash devices, which all volumes share.
    flash_turns: Rc<Datastore<S>>,
}

impl<S: Seam> Common<S> {
    /// Memory over all of the seam's pool, without shards.
    pub fn new(seam: S, spec: CoreSpec) -> Self {
        let memory = RefCell::new(Memory::new(seam.clone()));
        let flash_turns = DatastoreSpec { threshold: spec.flash_threshold, ..DatastoreSpec::new(FLASH_DATASTORE) };
        let promoter = Promoter::new(&spec, (seam.blocks_total() / BLOCKS_PER_PAGE) as u64);
        let (shards, ticking, log, requests, allowance) = Default::default();
        let (pages, loaded, loaded_now, freeing_marks, log_pressure, full_at) = Default::default();
        Common {
            division: Cell::new(Division::since(seam.now())),
            datastores: Default::default(),
            flash_turns: Datastore::of_flash(seam.clone(), &flash_turns),
            seam,
            spec,
            memory,
            shards,
            ticking,
            log,
            pages,
            loaded,
            loaded_now,
            promoter,
            freeing_marks,
            log_pressure,
            full_at,
            requests,
            allowance,
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
    pub fn memory(&self) -> &RefCell<Memory<S>> {
        &self.memory
    }

    /// Opens the store: its log answers flushes, its pages hold clean data. The map of pages is read in the background.
    pub fn open_store(self: &Rc<Self>, store: Store<S>) {
        let pages = store.pages();
        // Memory fills the whole pool: a buffer for the store replaces a clean block.
        let common = Rc::downgrade(self);
        store.set_fallback_buffers(move || common.upgrade()?.memory.try_borrow_mut().ok()?.alloc());
        *self.pages.borrow_mut() = Some(pages.clone());
        *self.log.borrow_mut() = Some(store);
        let common = Rc::clone(self);
        self.seam.spawn(async move {
            let loaded = pages.load().await;
            *common.loaded.borrow_mut() = Some(loaded);
            common.loaded_now.notify();
        });
    }

    /// The clean pages on flash.
    pub fn pages(&self) -> Option<Pages<S>> {
        self.pages.borrow().clone()
    }

    /// The result of reading the map of clean pages; `None` until that is done.
    pub fn loaded(&self) -> Option<MapLoaded> {
        self.loaded.borrow().clone()
    }

    /// Waits until the map of clean pages is read.
    pub async fn pages_loaded(&self) {
        self.loaded_now.wait_for(|| self.loaded.borrow().is_some().then_some(())).await;
    }

    /// The present limits of promotion.
    pub fn promotion_stats(&self) -> PromotionStats {
        let budget = self.promoter.budget();
        PromotionStats {
            left_bytes: budget.left_bytes(),
            one_of: budget.one_of(),
            history_bytes: self.promoter.bytes(),
        }
    }

    /// The promotion state that all volumes share.
    pub fn promoter(&self) -> &Promoter<S> {
        &self.promoter
    }

    /// Flushes backings in the background, because marks of the write-intent log are scarce.
    pub fn press_marks(self: &Rc<Self>) {
        if !self.freeing_marks.replace(true) {
            let common = Rc::clone(self);
            self.seam.spawn(async move {
                crate::pages::free_marks(common.shards()).await;
                common.freeing_marks.set(false);
            });
        }
    }

    /// A weak handle to a shard.
    pub fn weak_of(&self, number: u32) -> Option<Weak<Shard<S>>> {
        let shards = self.shards.borrow();
        shards.iter().find(|shard| shard.upgrade().is_some_and(|shard| shard.number == number)).cloned()
    }

    /// True if there is a flash log.
    pub fn has_log(&self) -> bool {
        self.log.borrow().is_some()
    }

    /// The flash log.
    pub fn log(&self) -> Option<Store<S>> {
        self.log.borrow().clone()
    }

    /// True if the log needs records to be retired soon.
    pub fn log_is_crowded(&self) -> bool {
        self.log.borrow().as_ref().is_some_and(|store| {
            let (free, all) = store.room();
            free * LOG_ROOM_PART < all
        })
    }

    /// Used part of the segments that the log may fill until it is crowded, in percent. Measured at each tick, because
    /// counting visits each segment.
    pub fn log_pressure_percent(&self) -> u64 {
        self.log_pressure.get()
    }

    fn measure_log_pressure(&self) {
        let pressure = self.log.borrow().as_ref().map_or(0, |store| {
            let (free, all) = store.room();
            let until_crowded = (all - all / LOG_ROOM_PART).max(1);
            ((all - free.min(all)) * 100 / until_crowded).min(100) as u64
        });
        self.log_pressure.set(pressure);
    }

    /// Records that a volume found the log full, and not with its own records.
    pub fn note_full_log(&self) {
        self.full_at.set(self.log.borrow().as_ref().map(|store| store.room().0));
    }

    /// True while the log has no more room than at the last [`Common::note_full_log`].
    pub fn log_stays_full(&self) -> bool {
        let room = self.log.borrow().as_ref().map(|store| store.room().0);
        self.full_at.get().is_some_and(|then| room.is_some_and(|room| room <= then))
    }

    /// Reacts to a full log: every shard destages the blocks whose records fill it.
    pub fn press_log(&self) {
        for shard in self.shards() {
            shard.work.notify();
            let idle = {
                let state = shard.state.borrow();
                state.ledger.len() > 0 && state.ledger.has_changed() && !state.logging.turns.is_running()
            };
            if idle {
                // Changes since the shard's last flush may be all that keeps old records alive. A failure shows at the
                // next flush.
                let shard = Rc::clone(&shard);
                self.seam.spawn(async move { drop(shard.flush_log().await) });
            }
        }
    }

    /// The datastore by which reads from flash get their I/O slots.
    pub fn flash_turns(&self) -> &Rc<Datastore<S>> {
        &self.flash_turns
    }

    /// Adds a datastore or changes its settings.
    pub fn set_datastore(&self, spec: &DatastoreSpec) {
        let mut datastores = self.datastores.borrow_mut();
        match datastores.get(&spec.name) {
            Some(datastore) => datastore.configure(spec),
            None => drop(datastores.insert(spec.name.clone(), Datastore::new(self.seam.clone(), spec))),
        }
    }

    /// Forgets a datastore; its present volumes keep it.
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
    pub fn add(&self, shard: &ShardRef<S>) {
        self.shards.borrow_mut().push(Rc::downgrade(shard));
        self.shards().iter().for_each(|shard| shard.refresh_throttle());
    }

    /// Removes a shard.
    pub fn remove(&self, shard: &ShardRef<S>) {
        self.shards.borrow_mut().retain(|other| !std::ptr::eq(other.as_ptr(), Rc::as_ptr(shard)));
        self.memory.borrow_mut().forget(shard.number);
    }

    /// All shards.
    pub fn shards(&self) -> Vec<ShardRef<S>> {
        self.shards.borrow().iter().filter_map(Weak::upgrade).collect()
    }

    /// Unclean blocks of all shards.
    pub fn unclean(&self) -> u64 {
        let shards = self.shards.borrow();
        shards.iter().filter_map(Weak::upgrade).map(|shard| shard.state.borrow().unclean()).sum()
    }

    /// Waits for a buffer. Destage, which makes room, never waits here.
    pub async fn alloc(self: &Rc<Self>) -> S::BlockMut {
        loop {
            let block = self.memory.borrow_mut().alloc();
            match block {
                Some(block) => return block,
                None => self.pause_for_buffers().await,
            }
        }
    }

    /// Waits for `count` buffers at once, so that no two callers hold some and wait for each other. A caller that is
    /// not `patient` gets `None` instead of waiting.
    pub async fn alloc_all(self: &Rc<Self>, count: usize, patient: bool) -> Option<Vec<S::BlockMut>> {
        self.divide_if_due();
        loop {
            let blocks: Vec<_> = {
                let mut memory = self.memory.borrow_mut();
                std::iter::from_fn(|| memory.alloc()).take(count).collect()
            };
            if blocks.len() == count {
                return Some(blocks);
            }
            drop(blocks);
            if !patient {
                return None;
            }
            self.pause_for_buffers().await;
        }
    }

    async fn pause_for_buffers(self: &Rc<Self>) {
        self.keep_ticking();
        self.shards().iter().for_each(|shard| shard.work.notify());
        self.seam.sleep(ALLOC_PAUSE).await;
    }

    fn renew_allowance(&self) {
        let requests = self.shards().iter().map(|shard| shard.counters.requests()).sum();
        // A detached volume takes its count along.
        let new: u64 = u64::saturating_sub(requests, self.requests.replace(requests));
        self.allowance.set((new >= BUSY_REQUESTS).then_some(DESTAGE_ALLOWANCE));
    }

    /// True if destage may send another run before the next tick without taking too much of the core from clients.
    pub fn may_destage(&self) -> bool {
        self.allowance.get() != Some(0)
    }

    /// Records `units` spent by destage; the last run may overdraw.
    pub fn note_destage(&self, units: u64) {
        self.allowance.set(self.allowance.get().map(|left| left.saturating_sub(units)));
    }

    /// Ticks until nothing is dirty: an idle engine has no timer.
    pub fn keep_ticking(self: &Rc<Self>) {
        if self.ticking.replace(true) {
            return;
        }
        let common = Rc::clone(self);
        self.seam.spawn(async move {
            let mut more = true;
            while more {
                common.seam.sleep(TICK).await;
                more = false;
                common.renew_allowance();
                common.measure_log_pressure();
                common.divide_if_due();
                for shard in common.shards() {
                    shard.tick_throttle();
                    shard.spill_if_full();
                    if shard.state.borrow().is_restless() {
                        shard.work.notify();
                        shard.progress.notify();
                        more = true;
                    }
                }
            }
            common.ticking.set(false);
        });
    }
}
