//! A datastore: volumes that share the same disks, or the same flash devices, and the order of their requests under
//! congestion.
//!
//! Every request takes an [`IoSlot`] (an I/O slot) and holds it until it ends. A slot is granted at once while the
//! datastore is not congested, or while only one volume uses it. Otherwise the window bounds the outstanding work, and
//! the scheduler chooses the next request. Background work has a scheduler and a small part of the window of its own,
//! so that it cannot take the slots of client requests.
//!
//! While several volumes have requests outstanding, a timer measures the lateness of the event loop, so that latencies
//! exclude stalls of the processor.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use qos::{Cost, DiskClock, Entitlement, Priority, Scheduler, TICK_EVERY, Window};
use seam::{Nanos, Seam};

use crate::spec::DatastoreSpec;
use crate::wait::OneShotEvent;

/// A volume without requests for this long is inactive: its shares no longer count.
const INACTIVE_AFTER: Nanos = Nanos::from_secs(2);
/// Time over which use is compared with entitlement.
const USE_PERIOD: Nanos = Nanos::from_secs(1);
/// Maximum number of recent congestion episodes that are kept.
const EPISODES_MAX: usize = 32;
/// Maximum number of volumes named in each episode.
const CONTENDERS_MAX: usize = 16;
/// Small requests bypass a full window: a volume with less than this outstanding need not wait for a request that costs
/// no more than this. Otherwise one large request, which may fill a small window alone, would make all volumes wait for
/// its end.
const SMALL_REQUEST: Cost = Cost(2 * Cost::ONE.0);
/// A volume without a completion for this long, and for [`STALLED_THRESHOLD_FACTOR`] thresholds, is stalled: its
/// outstanding work no longer counts against the window.
const STALLED_AFTER: Nanos = Nanos::from_secs(1);
/// See [`STALLED_AFTER`].
const STALLED_THRESHOLD_FACTOR: u64 = 10;
/// Smallest window of flash devices, in small accesses: up to this many in parallel raise their throughput.
const FLASH_WINDOW_MIN: Cost = Cost(16 * Cost::ONE.0);
/// Percentage of the datastore's measured rate that may be reserved; the rest is for volumes without a reservation.
const RESERVABLE_PERCENT: f64 = 90.0;

/// Why a reservation is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(
    "{wanted_iops} requests per second cannot be reserved on \"{datastore}\": its measured rate is {measured_iops} \
     requests of 4 KiB per second, of which {reservable_iops} may be reserved; other volumes have reserved \
     {others_iops}"
)]
pub struct ReservationError {
    /// Name of the datastore.
    pub datastore: String,
    /// Requested reservation.
    pub wanted_iops: u64,
    /// Reservations of the other volumes.
    pub others_iops: u64,
    /// Upper limit of all reservations, in requests per second.
    pub reservable_iops: u64,
    /// Requests per second that the datastore completed while it was busy.
    pub measured_iops: u64,
}

/// A time span of congestion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Episode {
    /// Its start.
    pub began_at: Nanos,
    /// Its end; `None` while it lasts.
    pub ended_at: Option<Nanos>,
    /// The volume whose use was furthest above its entitlement at the start.
    pub caused_by: String,
    /// The volumes that were active at the start.
    pub contenders: Vec<String>,
}

/// Use of a datastore by one volume.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DatastoreVolumeStats {
    /// The volume.
    pub volume: String,
    /// Its weight.
    pub shares: u32,
    /// Reserved requests per second.
    pub reservation_iops: u64,
    /// The part of the datastore that the volume is entitled to beside the active volumes.
    pub entitled_ratio: f64,
    /// The part that the volume used in the last second.
    pub used_ratio: f64,
    /// Its work in all, in small accesses.
    pub accesses: f64,
    /// Requests that waited for an I/O slot.
    pub waited_requests: u64,
    /// Sum of their waits.
    pub total_wait: Nanos,
    /// Requests that wait now.
    pub waiting_requests: usize,
}

/// State of a datastore.
#[derive(Clone, Debug, PartialEq)]
pub struct DatastoreStats {
    /// Its name.
    pub name: String,
    /// True while latency is past the threshold, so that shares and reservations act.
    pub is_congested: bool,
    /// Total time of congestion.
    pub congested_time: Nanos,
    /// Number of congestion episodes.
    pub episode_count: u64,
    /// The threshold in force.
    pub threshold: Nanos,
    /// True if the threshold is found automatically, not configured.
    pub is_threshold_automatic: bool,
    /// Recent latency: the mean of the volumes' mean latencies.
    pub latency: Nanos,
    /// Recent rate in small accesses per second.
    pub accesses_per_second: f64,
    /// Rate while the datastore was busy, in small accesses per second; `None` before that.
    pub measured_accesses_per_second: Option<f64>,
    /// Window while congested, in small accesses.
    pub window_accesses: Option<f64>,
    /// Outstanding work, in small accesses.
    pub outstanding_accesses: f64,
    /// Its volumes, by name.
    pub volumes: Vec<DatastoreVolumeStats>,
    /// The last congestion episodes, the newest last.
    pub recent_episodes: Vec<Episode>,
}

/// A volume of the datastore, and its use.
struct VolumeEntry {
    volume: String,
    entitlement: Entitlement,
    /// Arrival of the last request.
    last_request_at: Nanos,
    /// The volume has recent requests.
    is_active: bool,
    /// Work that was admitted and has not completed.
    outstanding: Cost,
    /// The part of `outstanding` that is background work.
    outstanding_background: Cost,
    /// Time of its last completion, or of the start of its outstanding requests if that is later.
    last_completion_at: Nanos,
    /// Work in the present period.
    used_in_period: Cost,
    /// Work in the period before.
    used_in_last_period: Cost,
    /// Work since the volume was added.
    total_used: Cost,
    /// Requests that waited for an I/O slot.
    waited_requests: u64,
    /// Sum of their waits.
    total_wait: Nanos,
}

/// State of a datastore.
struct Inner {
    /// Client requests.
    scheduler: Scheduler<Rc<QueuedRequest>>,
    /// Background work.
    background: Scheduler<Rc<QueuedRequest>>,
    window: Window,
    /// The clock of the window: disk time.
    clock: DiskClock,
    /// The volumes, by their number on this core.
    volumes: BTreeMap<u32, VolumeEntry>,
    /// Outstanding work that bypassed the full window; it does not count against the window.
    bypassing_cost: Cost,
    /// The timer task runs.
    is_ticking: bool,
    /// Number of active volumes.
    active_volumes: usize,
    /// Start of the present period.
    period_started_at: Nanos,
    /// Greatest rate while congested, in small accesses per second.
    measured_accesses_per_second: Option<f64>,
    /// Number of congestion episodes.
    episode_count: u64,
    /// Total length of the episodes that have ended.
    congested_time: Nanos,
    recent_episodes: VecDeque<Episode>,
}

/// A datastore on one core.
pub struct Datastore<S: Seam> {
    seam: S,
    name: String,
    /// Disk accesses per small write, for backings that do not report them.
    small_write_accesses: Cell<u32>,
    inner: RefCell<Inner>,
}

/// A waiting request and its grant.
struct QueuedRequest {
    /// The grant.
    admitted: OneShotEvent,
    /// The request bypassed the full window.
    bypasses_window: Cell<bool>,
    /// Priority; it rises when a client begins to wait for background work.
    priority: Cell<Priority>,
}

/// An entry of the queue. A drop before the grant was claimed withdraws the request or returns its slot.
struct QueueEntry<S: Seam> {
    datastore: Rc<Datastore<S>>,
    /// Number of the volume on this core.
    volume_number: u32,
    cost: Cost,
    queued: Rc<QueuedRequest>,
    /// The grant has become an [`IoSlot`].
    is_claimed: Cell<bool>,
}

/// Permission to have one request outstanding (an I/O slot); returned on drop.
pub struct IoSlot<S: Seam> {
    datastore: Rc<Datastore<S>>,
    /// Number of the volume on this core.
    volume_number: u32,
    cost: Cost,
    priority: Priority,
    bypasses_window: bool,
    /// Start of the request, in disk time.
    began_at: Nanos,
    /// Time that the request waited for the slot.
    pub slot_wait: Nanos,
}

impl<S: Seam> Datastore<S> {
    /// A datastore without volumes.
    pub fn new(seam: S, spec: &DatastoreSpec) -> Rc<Self> {
        let now = seam.now();
        let inner = Inner {
            scheduler: Scheduler::default(),
            background: Scheduler::default(),
            window: Window::new(spec.threshold, now),
            clock: DiskClock::default(),
            volumes: BTreeMap::new(),
            bypassing_cost: Cost::default(),
            is_ticking: false,
            active_volumes: 0,
            period_started_at: now,
            measured_accesses_per_second: None,
            episode_count: 0,
            congested_time: Nanos::ZERO,
            recent_episodes: VecDeque::new(),
        };
        Rc::new(Datastore {
            seam,
            name: spec.name.clone(),
            small_write_accesses: Cell::new(spec.write_cost),
            inner: RefCell::new(inner),
        })
    }

    /// The datastore of a core's flash devices, which all volumes share.
    pub fn of_flash(seam: S, spec: &DatastoreSpec) -> Rc<Self> {
        let flash = Datastore::new(seam, spec);
        let window = Window::new(spec.threshold, flash.seam.now()).with_size_min(FLASH_WINDOW_MIN);
        flash.inner.borrow_mut().window = window;
        flash
    }

    /// Replaces the settings.
    pub fn configure(&self, spec: &DatastoreSpec) {
        self.small_write_accesses.set(spec.write_cost);
        self.inner.borrow_mut().window.set_threshold(spec.threshold);
    }

    /// Disk accesses per small write.
    pub fn small_write_accesses(&self) -> u64 {
        self.small_write_accesses.get().into()
    }

    /// Adds the volume with this number on the core, or changes its entitlement.
    pub fn set_volume(&self, volume_number: u32, volume: &str, entitlement: Entitlement) {
        let now = self.seam.now();
        let mut inner = self.inner.borrow_mut();
        inner.scheduler.set_client(volume_number, entitlement, now);
        inner.background.set_client(volume_number, entitlement, now);
        let entry = inner.volumes.entry(volume_number).or_insert_with(|| VolumeEntry {
            volume: volume.to_owned(),
            entitlement,
            last_request_at: Nanos::ZERO,
            is_active: false,
            outstanding: Cost::default(),
            outstanding_background: Cost::default(),
            last_completion_at: Nanos::ZERO,
            used_in_period: Cost::default(),
            used_in_last_period: Cost::default(),
            total_used: Cost::default(),
            waited_requests: 0,
            total_wait: Nanos::ZERO,
        });
        entry.entitlement = entitlement;
    }

    /// Checks whether a volume may reserve `wanted_iops` beside the reservations of the others.
    pub fn check_reservation(&self, volume_number: u32, wanted_iops: u64) -> Result<(), ReservationError> {
        let inner = self.inner.borrow();
        let others = inner.volumes.iter().filter(|(other, _)| **other != volume_number);
        let others_iops: u64 = others.map(|(_, entry)| entry.entitlement.reservation).sum();
        let Some(measured_rate) = inner.measured_accesses_per_second.filter(|_| wanted_iops > 0) else { return Ok(()) };
        let reservable_iops = (measured_rate * RESERVABLE_PERCENT / 100.0) as u64;
        if others_iops.saturating_add(wanted_iops) <= reservable_iops {
            return Ok(());
        }
        let (datastore, measured_iops) = (self.name.clone(), measured_rate as u64);
        Err(ReservationError { datastore, wanted_iops, others_iops, reservable_iops, measured_iops })
    }

    /// Removes a volume; its waiting requests are admitted.
    pub fn remove_volume(&self, volume_number: u32) {
        let now = self.seam.now();
        let (waiting, granted) = {
            let mut inner = self.inner.borrow_mut();
            let removed = inner.volumes.remove(&volume_number);
            inner.active_volumes -= usize::from(removed.is_some_and(|entry| entry.is_active));
            let mut waiting = inner.scheduler.remove(volume_number);
            waiting.extend(inner.background.remove(volume_number));
            let disk_time = inner.clock.time(now);
            waiting.iter().for_each(|(cost, queued)| inner.window.begin(*cost, queued.priority.get(), disk_time));
            (waiting, inner.admit(now))
        };
        waiting.into_iter().map(|(_, queued)| queued).chain(granted).for_each(|queued| queued.admitted.set());
    }

    /// Moves the waiting background work of a volume among the client requests, because a client waits for it.
    pub fn expedite(&self, volume_number: u32) {
        let now = self.seam.now();
        let granted = {
            let inner = &mut *self.inner.borrow_mut();
            let waiting = inner.background.take_waiting(volume_number);
            if waiting.is_empty() {
                return;
            }
            for (cost, queued) in waiting {
                queued.priority.set(Priority::Foreground);
                inner.scheduler.push(volume_number, cost, queued, now);
            }
            inner.admit(now)
        };
        granted.iter().for_each(|queued| queued.admitted.set());
    }

    /// Waits for an I/O slot for a request of this cost.
    pub async fn acquire_slot(self: &Rc<Self>, volume_number: u32, cost: Cost, priority: Priority) -> IoSlot<S> {
        let now = self.seam.now();
        let datastore = Rc::clone(self);
        let Some(queued) = self.enqueue(volume_number, cost, priority, now) else {
            let began = self.disk_time();
            return IoSlot {
                datastore,
                volume_number,
                cost,
                priority,
                bypasses_window: false,
                began_at: began,
                slot_wait: Nanos::ZERO,
            };
        };
        let entry = QueueEntry { datastore, volume_number, cost, queued, is_claimed: Cell::new(false) };
        entry.queued.admitted.wait().await;
        entry.is_claimed.set(true);
        let waited = self.seam.now().since(now);
        if waited > Nanos::ZERO
            && let Some(volume) = self.inner.borrow_mut().volumes.get_mut(&volume_number)
        {
            volume.waited_requests += 1;
            volume.total_wait += waited;
        }
        let (bypasses_window, priority) = (entry.queued.bypasses_window.get(), entry.queued.priority.get());
        IoSlot {
            datastore: Rc::clone(self),
            volume_number,
            cost,
            priority,
            bypasses_window,
            began_at: self.disk_time(),
            slot_wait: waited,
        }
    }

    /// Present time on the clock of the window.
    fn disk_time(&self) -> Nanos {
        self.inner.borrow().clock.time(self.seam.now())
    }

    /// Queues the request and returns its entry. Returns `None` if there is nothing to wait for; the request then has
    /// its slot.
    fn enqueue(
        self: &Rc<Self>,
        volume_number: u32,
        cost: Cost,
        priority: Priority,
        now: Nanos,
    ) -> Option<Rc<QueuedRequest>> {
        let mut inner = self.inner.borrow_mut();
        inner.roll_period(now);
        inner.count_request(volume_number, cost, now);
        let starts_timer = inner.active_volumes > 1 && !std::mem::replace(&mut inner.is_ticking, true);
        if starts_timer {
            inner.clock.start(now);
            self.seam.spawn(Rc::clone(self).tick());
        }
        let is_uncontended = !inner.window.is_congested() && !inner.has_waiting();
        if is_uncontended || inner.active_volumes < 2 || !inner.volumes.contains_key(&volume_number) {
            inner.begin_request(volume_number, cost, priority, now);
            return None;
        }
        let queued = Rc::new(QueuedRequest {
            admitted: OneShotEvent::default(),
            bypasses_window: Cell::new(false),
            priority: Cell::new(priority),
        });
        let waiting = match priority {
            Priority::Foreground => &mut inner.scheduler,
            Priority::Background => &mut inner.background,
        };
        waiting.push(volume_number, cost, Rc::clone(&queued), now);
        let granted = inner.admit(now);
        drop(inner);
        granted.iter().for_each(|queued| queued.admitted.set());
        Some(queued)
    }

    /// The timer, which runs while several volumes are active. It measures the lateness of the event loop, and admits
    /// waiting requests even if nothing completes.
    async fn tick(self: Rc<Self>) {
        loop {
            self.seam.sleep(TICK_EVERY).await;
            let now = self.seam.now();
            let granted = {
                let inner = &mut *self.inner.borrow_mut();
                if inner.clock.tick(now).is_some() {
                    inner.window.record_stall();
                }
                inner.roll_period(now);
                let was_congested = inner.window.is_congested();
                inner.window.end_if_calm(inner.clock.time(now));
                inner.update_congestion(was_congested, now);
                let granted = inner.admit(now);
                let is_idle = !inner.has_waiting() && inner.window.outstanding() == Cost::default();
                if is_idle || inner.active_volumes < 2 {
                    inner.clock.stop(now);
                    inner.is_ticking = false;
                }
                granted
            };
            granted.iter().for_each(|queued| queued.admitted.set());
            if !self.inner.borrow().is_ticking {
                return;
            }
        }
    }

    /// Records the end of a request that began at `began_at` in disk time; `None`: it was never sent.
    fn end_request(
        &self,
        volume_number: u32,
        cost: Cost,
        priority: Priority,
        bypasses_window: bool,
        began_at: Option<Nanos>,
    ) {
        let now = self.seam.now();
        let granted = {
            let inner = &mut *self.inner.borrow_mut();
            inner.roll_period(now);
            let shared = inner.active_volumes > 1;
            let was_congested = inner.window.is_congested();
            if let Some(entry) = inner.volumes.get_mut(&volume_number) {
                (entry.outstanding, entry.last_completion_at) = (entry.outstanding - cost, now);
                if priority == Priority::Background {
                    entry.outstanding_background = entry.outstanding_background - cost;
                }
            }
            if bypasses_window {
                inner.bypassing_cost = inner.bypassing_cost - cost;
            }
            let disk_time = inner.clock.time(now);
            match began_at {
                Some(began) => inner.window.end(volume_number, cost, priority, began, disk_time, shared),
                None => inner.window.cancel(cost, priority, disk_time),
            }
            inner.update_congestion(was_congested, now);
            inner.admit(now)
        };
        granted.iter().for_each(|queued| queued.admitted.set());
    }

    /// The present state.
    pub fn stats(&self) -> DatastoreStats {
        let now = self.seam.now();
        let mut inner = self.inner.borrow_mut();
        inner.roll_period(now);
        let (latency, rate) = inner.window.last_sample();
        let active_shares = inner.active_shares();
        let used: Cost = inner.volumes.values().map(|entry| entry.used_in_last_period).sum();
        let mut volumes: Vec<_> = inner
            .volumes
            .iter()
            .map(|(number, entry)| DatastoreVolumeStats {
                volume: entry.volume.clone(),
                shares: entry.entitlement.shares,
                reservation_iops: entry.entitlement.reservation,
                entitled_ratio: inner.entitled_ratio(entry, active_shares),
                used_ratio: entry.used_in_last_period.0 as f64 / used.0.max(1) as f64,
                accesses: entry.total_used.as_accesses(),
                waited_requests: entry.waited_requests,
                total_wait: entry.total_wait,
                waiting_requests: inner.count_waiting(*number),
            })
            .collect();
        volumes.sort_by(|a, b| a.volume.cmp(&b.volume));
        let since =
            inner.recent_episodes.back().filter(|episode| episode.ended_at.is_none()).map(|episode| episode.began_at);
        DatastoreStats {
            name: self.name.clone(),
            is_congested: inner.window.is_congested(),
            congested_time: inner.congested_time + since.map_or(Nanos::ZERO, |since| now.since(since)),
            episode_count: inner.episode_count,
            threshold: inner.window.threshold(),
            is_threshold_automatic: inner.window.configured_threshold() == qos::Threshold::Auto,
            latency,
            accesses_per_second: rate,
            measured_accesses_per_second: inner.measured_accesses_per_second,
            window_accesses: inner.window.size().map(Cost::as_accesses),
            outstanding_accesses: inner.window.outstanding().as_accesses(),
            volumes,
            recent_episodes: inner.recent_episodes.iter().cloned().collect(),
        }
    }
}

impl VolumeEntry {
    /// Outstanding work of its client requests.
    fn outstanding_foreground(&self) -> Cost {
        self.outstanding - self.outstanding_background
    }
}

impl Inner {
    /// True if a request waits.
    fn has_waiting(&self) -> bool {
        !self.scheduler.is_empty() || !self.background.is_empty()
    }

    /// Number of waiting requests of a volume.
    fn count_waiting(&self, volume_number: u32) -> usize {
        self.scheduler.waiting_of(volume_number) + self.background.waiting_of(volume_number)
    }

    /// Admits the requests that the window allows and returns them. Their cost counts as outstanding from here on.
    fn admit(&mut self, now: Nanos) -> Vec<Rc<QueuedRequest>> {
        let mut granted = Vec::new();
        if !self.has_waiting() {
            return granted;
        }
        let stalled_after =
            STALLED_AFTER.max(Nanos(self.window.threshold().0.saturating_mul(STALLED_THRESHOLD_FACTOR)));
        let is_stalled = |entry: &VolumeEntry| {
            entry.outstanding > Cost::default() && now.since(entry.last_completion_at) > stalled_after
        };
        let stalled: Vec<u32> =
            self.volumes.iter().filter(|(_, entry)| is_stalled(entry)).map(|(number, _)| *number).collect();
        let stalled_cost: Cost = stalled.iter().map(|number| self.volumes[number].outstanding_foreground()).sum();
        while !self.scheduler.is_empty() {
            let volumes = &self.volumes;
            let next = if self.active_volumes < 2 {
                self.scheduler.pop(now)
            } else if self.window.has_room(self.bypassing_cost + stalled_cost) {
                self.scheduler.pop_among(now, |number| !stalled.contains(&number))
            } else {
                self.window.record_wait(self.clock.time(now));
                let bypass_max = self.window.size().map_or(SMALL_REQUEST, |size| SMALL_REQUEST.max(Cost(size.0 / 2)));
                let is_small = |number: u32, cost: Cost| {
                    let outstanding = volumes.get(&number).map_or(SMALL_REQUEST, VolumeEntry::outstanding_foreground);
                    cost <= SMALL_REQUEST && outstanding < SMALL_REQUEST && !stalled.contains(&number)
                };
                let small =
                    if self.bypassing_cost < bypass_max { self.scheduler.pop_small(now, is_small) } else { None };
                if let Some((_, cost, queued)) = &small {
                    self.bypassing_cost += *cost;
                    queued.bypasses_window.set(true);
                }
                small
            };
            let Some((number, cost, queued)) = next else { break };
            self.begin_request(number, cost, Priority::Foreground, now);
            granted.push(queued);
        }
        self.admit_background(&stalled, now, &mut granted);
        granted
    }

    /// Admits background work: beside client requests while none of them waits, else within its own part of the window.
    fn admit_background(&mut self, stalled: &[u32], now: Nanos, granted: &mut Vec<Rc<QueuedRequest>>) {
        let stalled_cost: Cost = stalled.iter().map(|number| self.volumes[number].outstanding_background).sum();
        while !self.background.is_empty() {
            let next = if self.active_volumes < 2 {
                self.background.pop(now)
            } else if self.window.has_room_for_background(!self.scheduler.is_empty(), stalled_cost) {
                self.background.pop_among(now, |number| !stalled.contains(&number))
            } else {
                None
            };
            let Some((number, cost, queued)) = next else { break };
            self.begin_request(number, cost, Priority::Background, now);
            granted.push(queued);
        }
    }

    /// Counts a request as outstanding.
    fn begin_request(&mut self, volume_number: u32, cost: Cost, priority: Priority, now: Nanos) {
        self.window.begin(cost, priority, self.clock.time(now));
        if let Some(entry) = self.volumes.get_mut(&volume_number) {
            if entry.outstanding == Cost::default() {
                entry.last_completion_at = now;
            }
            entry.outstanding += cost;
            if priority == Priority::Background {
                entry.outstanding_background += cost;
            }
        }
    }

    /// Counts a request that arrives, admitted or not.
    fn count_request(&mut self, volume_number: u32, cost: Cost, now: Nanos) {
        if let Some(entry) = self.volumes.get_mut(&volume_number) {
            entry.last_request_at = now;
            self.active_volumes += usize::from(!std::mem::replace(&mut entry.is_active, true));
            entry.used_in_period += cost;
            entry.total_used += cost;
        }
    }

    /// Starts a new period if the present one is over, and updates the congestion and the active volumes.
    fn roll_period(&mut self, now: Nanos) {
        let was_congested = self.window.is_congested();
        self.window.end_if_idle(self.clock.time(now));
        self.update_congestion(was_congested, now);
        if now.since(self.period_started_at) < USE_PERIOD {
            return;
        }
        let skipped = now.since(self.period_started_at).0 >= 2 * USE_PERIOD.0;
        for (number, entry) in &mut self.volumes {
            entry.used_in_last_period = if skipped { Cost::default() } else { entry.used_in_period };
            entry.used_in_period = Cost::default();
            // A volume with waiting requests stays active, however long they wait.
            let waiting = self.scheduler.waiting_of(*number) + self.background.waiting_of(*number);
            let waits = entry.outstanding > Cost::default() || waiting > 0;
            entry.is_active &= waits || now.since(entry.last_request_at) < INACTIVE_AFTER;
        }
        self.active_volumes = self.volumes.values().filter(|entry| entry.is_active).count();
        self.period_started_at = now;
    }

    /// Shares of all active volumes.
    fn active_shares(&self) -> u64 {
        let active = self.volumes.values().filter(|entry| entry.is_active);
        active.map(|entry| u64::from(entry.entitlement.shares)).sum()
    }

    /// The part of the datastore that a volume is entitled to beside the active volumes.
    fn entitled_ratio(&self, entry: &VolumeEntry, active_shares: u64) -> f64 {
        let own = u64::from(entry.entitlement.shares);
        let total_shares = if entry.is_active { active_shares } else { active_shares + own };
        let by_shares = own as f64 / total_shares.max(1) as f64;
        let reserved =
            self.measured_accesses_per_second.map_or(0.0, |rate| entry.entitlement.reservation as f64 / rate.max(1.0));
        by_shares.max(reserved).min(1.0)
    }

    /// Starts or ends an episode if the congestion has changed, and records the measured rate.
    fn update_congestion(&mut self, was_congested: bool, now: Nanos) {
        let is_congested = self.window.is_congested();
        if is_congested && let Some(rate) = self.window.greatest_rate() {
            self.measured_accesses_per_second = Some(rate);
        }
        if is_congested == was_congested {
            return;
        }
        if !is_congested {
            if let Some(episode) = self.recent_episodes.back_mut() {
                episode.ended_at = Some(now);
                self.congested_time += now.since(episode.began_at);
            }
            return;
        }
        let active: Vec<&VolumeEntry> = self.volumes.values().filter(|entry| entry.is_active).collect();
        let used = |entry: &VolumeEntry| (entry.used_in_last_period + entry.used_in_period).0 as f64;
        let (total_used, shares) = (active.iter().map(|entry| used(entry)).sum::<f64>().max(1.0), self.active_shares());
        let excess = |entry: &VolumeEntry| used(entry) / total_used - self.entitled_ratio(entry, shares);
        let cause = active.iter().max_by(|a, b| excess(a).total_cmp(&excess(b)));
        let episode = Episode {
            began_at: now,
            ended_at: None,
            caused_by: cause.map(|entry| entry.volume.clone()).unwrap_or_default(),
            contenders: active.iter().take(CONTENDERS_MAX).map(|entry| entry.volume.clone()).collect(),
        };
        if self.recent_episodes.len() == EPISODES_MAX {
            self.recent_episodes.pop_front();
        }
        self.recent_episodes.push_back(episode);
        self.episode_count += 1;
    }
}

impl<S: Seam> Drop for IoSlot<S> {
    fn drop(&mut self) {
        self.datastore.end_request(
            self.volume_number,
            self.cost,
            self.priority,
            self.bypasses_window,
            Some(self.began_at),
        );
    }
}

impl<S: Seam> Drop for QueueEntry<S> {
    fn drop(&mut self) {
        if self.is_claimed.get() {
            return;
        }
        let QueueEntry { datastore, volume_number: number, cost, queued, .. } = &*self;
        if queued.admitted.is_set() {
            datastore.end_request(*number, *cost, queued.priority.get(), queued.bypasses_window.get(), None);
        } else {
            let mut inner = datastore.inner.borrow_mut();
            let waiting = match queued.priority.get() {
                Priority::Foreground => &mut inner.scheduler,
                Priority::Background => &mut inner.background,
            };
            waiting.withdraw(*number, |other| Rc::ptr_eq(other, queued));
        }
    }
}

#[cfg(test)]
mod tests;
