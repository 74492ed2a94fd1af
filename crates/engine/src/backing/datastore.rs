//! What volumes share that lie on the same spindles, or on the same flash: whose request goes next when they are congested.
//!
//! Every request takes a [`Turn`] and holds it until it is done. While the datastore is not congested, or a volume has it for
//! itself, a turn is given at once. Past that the window says how much may be under way, and the scheduler whose turn it is.
//! Background work has a scheduler and a small part of the window of its own: it cannot take the places of clients' requests.
//!
//! While several volumes have requests under way, a timer tells how late the event loop is: latencies are measured without
//! stalls of the processor.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use qos::{Cost, DiskClock, Entitlement, Priority, Scheduler, TICK_EVERY, Window};
use seam::{Nanos, Seam};

use crate::spec::DatastoreSpec;
use crate::wait::Grant;

/// Who asked for nothing for this long leaves the others alone.
const AWAY_AFTER: Nanos = Nanos::from_secs(2);
/// Time over which use is compared with entitlement.
const PERIOD: Nanos = Nanos::from_secs(1);
/// Periods of congestion that are remembered.
const EPISODES_MAX: usize = 32;
/// Volumes that are named with each.
const CONTENDERS_MAX: usize = 16;
/// Who has less than this under way, and asks for no more, need not wait until others have less: one large request, which may be all that a
/// small window holds, would make everybody wait for its end.
const LITTLE: Cost = Cost(2 * Cost::ONE.0);
/// A volume none of whose requests has ended for this long, and for this many thresholds, has a backing that hangs: the others go on without it.
const STALLED_AFTER: Nanos = Nanos::from_secs(1);
const STALLED_THRESHOLDS: u64 = 10;
/// Small accesses that flash devices work on at once with profit.
const FLASH_SIZE_MIN: Cost = Cost(16 * Cost::ONE.0);
/// Part of what the datastore has shown it can do that may be reserved, in percent: the rest is for those without.
const RESERVABLE_PERCENT: f64 = 90.0;

/// Why a reservation is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(
    "{wanted_iops} requests a second cannot be reserved on \"{datastore}\": it has shown {shown_iops} of 4 KiB, of which {reservable_iops} may be reserved, and other volumes have reserved {others_iops}"
)]
pub struct ReservationError {
    /// Where.
    pub datastore: String,
    /// What was asked for.
    pub wanted_iops: u64,
    /// What the others have reserved.
    pub others_iops: u64,
    /// What may be reserved in all.
    pub reservable_iops: u64,
    /// What the datastore did when it was busy.
    pub shown_iops: u64,
}

/// A time in which a datastore was congested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Episode {
    /// When it began.
    pub began: Nanos,
    /// When it ended; `None`: it lasts.
    pub ended: Option<Nanos>,
    /// Whose use was furthest above its entitlement when it began.
    pub caused_by: String,
    /// Who asked for something then.
    pub contenders: Vec<String>,
}

/// What one volume has of a datastore.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemberStats {
    /// The volume.
    pub volume: String,
    /// Its weight.
    pub shares: u32,
    /// Requests a second that are its own.
    pub reservation_iops: u64,
    /// The part of the datastore that it is entitled to beside those who ask for something now.
    pub entitled_ratio: f64,
    /// The part that it had in the last second.
    pub used_ratio: f64,
    /// What it had in all, in small accesses.
    pub accesses: f64,
    /// Requests that waited for their turn.
    pub waits: u64,
    /// How long they waited together.
    pub waited: Nanos,
    /// Requests that wait now.
    pub waiting: usize,
}

/// What a datastore does.
#[derive(Clone, Debug, PartialEq)]
pub struct DatastoreStats {
    /// Its name.
    pub name: String,
    /// Past its threshold, so that shares count.
    pub congested: bool,
    /// How long that was so, in all.
    pub congested_time: Nanos,
    /// How often that began.
    pub episodes: u64,
    /// The threshold in force.
    pub threshold: Nanos,
    /// It was found, not given.
    pub threshold_is_found: bool,
    /// Latency of the requests that ended lately, the mean of the volumes' means.
    pub latency: Nanos,
    /// Small accesses a second, lately.
    pub rate: f64,
    /// What it did when it was busy, in small accesses a second; `None`: it has not been.
    pub shown: Option<f64>,
    /// What may be under way while congested, in small accesses.
    pub window: Option<f64>,
    /// What is under way, in small accesses.
    pub under_way: f64,
    /// Its volumes, by name.
    pub members: Vec<MemberStats>,
    /// The last times that it was congested, the newest last.
    pub lately: Vec<Episode>,
}

struct Member {
    volume: String,
    entitlement: Entitlement,
    asked: Nanos,
    /// It asked for something lately.
    active: bool,
    under_way: Cost,
    /// The background's part of it.
    background: Cost,
    /// When the last of its requests ended, or the first of those under way began.
    moved: Nanos,
    /// In this period, and in the one before.
    used: Cost,
    used_before: Cost,
    total: Cost,
    waits: u64,
    waited: Nanos,
}

struct Inner {
    /// Requests that clients wait for.
    scheduler: Scheduler<Rc<Ticket>>,
    /// Background work.
    background: Scheduler<Rc<Ticket>>,
    window: Window,
    /// The time that the window goes by.
    clock: DiskClock,
    members: BTreeMap<u32, Member>,
    /// What went before its turn and is under way: the window is for the others.
    early: Cost,
    /// A task ticks.
    ticking: bool,
    /// How many of them asked for something lately.
    active: usize,
    period: Nanos,
    /// The greatest rate of a busy time.
    shown: Option<f64>,
    episodes: u64,
    congested_time: Nanos,
    lately: VecDeque<Episode>,
}

/// A datastore on one core.
pub struct Datastore<S: Seam> {
    seam: S,
    name: String,
    /// What a small write costs its disks, in accesses, where they do not say.
    write_cost: Cell<u32>,
    inner: RefCell<Inner>,
}

/// A request that waits, and its turn once it is given.
struct Ticket {
    grant: Grant,
    /// It goes before its turn.
    is_early: Cell<bool>,
    /// It changes when a client begins to wait for background work.
    priority: Cell<Priority>,
}

/// A place among those who wait; given up when dropped before its turn was taken.
struct Place<S: Seam> {
    datastore: Rc<Datastore<S>>,
    number: u32,
    cost: Cost,
    ticket: Rc<Ticket>,
    is_claimed: Cell<bool>,
}

/// The right to have one request under way; given back when dropped.
pub struct Turn<S: Seam> {
    datastore: Rc<Datastore<S>>,
    number: u32,
    cost: Cost,
    priority: Priority,
    is_early: bool,
    /// By the disks' clock.
    began: Nanos,
    /// How long it was waited for.
    pub waited: Nanos,
}

impl<S: Seam> Datastore<S> {
    /// Without volumes.
    pub fn new(seam: S, spec: &DatastoreSpec) -> Rc<Self> {
        let now = seam.now();
        let inner = Inner {
            scheduler: Scheduler::default(),
            background: Scheduler::default(),
            window: Window::new(spec.threshold, now),
            clock: DiskClock::default(),
            members: BTreeMap::new(),
            early: Cost::default(),
            ticking: false,
            active: 0,
            period: now,
            shown: None,
            episodes: 0,
            congested_time: Nanos::ZERO,
            lately: VecDeque::new(),
        };
        let write_cost = Cell::new(spec.write_cost);
        Rc::new(Datastore { seam, name: spec.name.clone(), write_cost, inner: RefCell::new(inner) })
    }

    /// The flash devices of a core, which all volumes share.
    pub fn of_flash(seam: S, spec: &DatastoreSpec) -> Rc<Self> {
        let flash = Datastore::new(seam, spec);
        let window = Window::new(spec.threshold, flash.seam.now()).with_size_min(FLASH_SIZE_MIN);
        flash.inner.borrow_mut().window = window;
        flash
    }

    /// Other settings from now on.
    pub fn configure(&self, spec: &DatastoreSpec) {
        self.write_cost.set(spec.write_cost);
        self.inner.borrow_mut().window.set_threshold(spec.threshold);
    }

    /// What a small write costs its disks, in accesses.
    pub fn write_cost(&self) -> u64 {
        self.write_cost.get().into()
    }

    /// A volume comes, or is entitled to something else.
    pub fn set(&self, number: u32, volume: &str, entitlement: Entitlement) {
        let now = self.seam.now();
        let mut inner = self.inner.borrow_mut();
        inner.scheduler.set(number, entitlement, now);
        inner.background.set(number, entitlement, now);
        let member = inner.members.entry(number).or_insert_with(|| Member {
            volume: volume.to_owned(),
            entitlement,
            asked: Nanos::ZERO,
            active: false,
            under_way: Cost::default(),
            background: Cost::default(),
            moved: Nanos::ZERO,
            used: Cost::default(),
            used_before: Cost::default(),
            total: Cost::default(),
            waits: 0,
            waited: Nanos::ZERO,
        });
        member.entitlement = entitlement;
    }

    /// Whether a volume may reserve so much beside the others.
    pub fn check_reservation(&self, number: u32, wanted_iops: u64) -> Result<(), ReservationError> {
        let inner = self.inner.borrow();
        let others = inner.members.iter().filter(|(other, _)| **other != number);
        let others_iops: u64 = others.map(|(_, member)| member.entitlement.reservation).sum();
        let Some(shown) = inner.shown.filter(|_| wanted_iops > 0) else { return Ok(()) };
        let reservable_iops = (shown * RESERVABLE_PERCENT / 100.0) as u64;
        if others_iops.saturating_add(wanted_iops) <= reservable_iops {
            return Ok(());
        }
        let (datastore, shown_iops) = (self.name.clone(), shown as u64);
        Err(ReservationError { datastore, wanted_iops, others_iops, reservable_iops, shown_iops })
    }

    /// A volume leaves; whoever of it waits goes on.
    pub fn leave(&self, number: u32) {
        let now = self.seam.now();
        let (gone, granted) = {
            let mut inner = self.inner.borrow_mut();
            let gone = inner.members.remove(&number);
            inner.active -= usize::from(gone.is_some_and(|gone| gone.active));
            let mut gone = inner.scheduler.remove(number);
            gone.extend(inner.background.remove(number));
            let disk_time = inner.clock.time(now);
            gone.iter().for_each(|(cost, ticket)| inner.window.begin(*cost, ticket.priority.get(), disk_time));
            (gone, inner.admit(now))
        };
        gone.into_iter().map(|(_, ticket)| ticket).chain(granted).for_each(|ticket| ticket.grant.give());
    }

    /// Background work of a volume that waits goes on as a client's requests: a client waits for it by now.
    pub fn expedite(&self, number: u32) {
        let now = self.seam.now();
        let granted = {
            let inner = &mut *self.inner.borrow_mut();
            let waiting = inner.background.take_waiting(number);
            if waiting.is_empty() {
                return;
            }
            for (cost, ticket) in waiting {
                ticket.priority.set(Priority::Foreground);
                inner.scheduler.push(number, cost, ticket, now);
            }
            inner.admit(now)
        };
        granted.iter().for_each(|ticket| ticket.grant.give());
    }

    /// Waits until it is the volume's turn to send a request of this cost.
    pub async fn turn(self: &Rc<Self>, number: u32, cost: Cost, priority: Priority) -> Turn<S> {
        let now = self.seam.now();
        let datastore = Rc::clone(self);
        let Some(ticket) = self.line_up(number, cost, priority, now) else {
            let began = self.disk_time();
            return Turn { datastore, number, cost, priority, is_early: false, began, waited: Nanos::ZERO };
        };
        let place = Place { datastore, number, cost, ticket, is_claimed: Cell::new(false) };
        place.ticket.grant.given().await;
        place.is_claimed.set(true);
        let waited = self.seam.now().since(now);
        if waited > Nanos::ZERO
            && let Some(member) = self.inner.borrow_mut().members.get_mut(&number)
        {
            member.waits += 1;
            member.waited += waited;
        }
        let (is_early, priority) = (place.ticket.is_early.get(), place.ticket.priority.get());
        Turn { datastore: Rc::clone(self), number, cost, priority, is_early, began: self.disk_time(), waited }
    }

    fn disk_time(&self) -> Nanos {
        self.inner.borrow().clock.time(self.seam.now())
    }

    /// A place in the line, or none where there is nothing to wait for: then the request is under way.
    fn line_up(self: &Rc<Self>, number: u32, cost: Cost, priority: Priority, now: Nanos) -> Option<Rc<Ticket>> {
        let mut inner = self.inner.borrow_mut();
        inner.turn_period(now);
        inner.count(number, cost, now);
        let ticks = inner.active > 1 && !std::mem::replace(&mut inner.ticking, true);
        if ticks {
            inner.clock.start(now);
            self.seam.spawn(Rc::clone(self).tick());
        }
        let free = !inner.window.is_congested() && !inner.any_waits();
        if free || inner.active < 2 || !inner.members.contains_key(&number) {
            inner.begin(number, cost, priority, now);
            return None;
        }
        let ticket =
            Rc::new(Ticket { grant: Grant::default(), is_early: Cell::new(false), priority: Cell::new(priority) });
        let waiting = match priority {
            Priority::Foreground => &mut inner.scheduler,
            Priority::Background => &mut inner.background,
        };
        waiting.push(number, cost, Rc::clone(&ticket), now);
        let granted = inner.admit(now);
        drop(inner);
        granted.iter().for_each(|ticket| ticket.grant.give());
        Some(ticket)
    }

    /// While several volumes ask for something: measures how late the event loop is, and looks after the requests that wait where nothing ends.
    async fn tick(self: Rc<Self>) {
        loop {
            self.seam.sleep(TICK_EVERY).await;
            let now = self.seam.now();
            let granted = {
                let inner = &mut *self.inner.borrow_mut();
                if inner.clock.tick(now).is_some() {
                    inner.window.note_stall();
                }
                inner.turn_period(now);
                let was = inner.window.is_congested();
                inner.window.tick(inner.clock.time(now));
                inner.note_congestion(was, now);
                let granted = inner.admit(now);
                let is_idle = !inner.any_waits() && inner.window.under_way() == Cost::default();
                if is_idle || inner.active < 2 {
                    inner.clock.stop(now);
                    inner.ticking = false;
                }
                granted
            };
            granted.iter().for_each(|ticket| ticket.grant.give());
            if !self.inner.borrow().ticking {
                return;
            }
        }
    }

    /// A request has ended that began then, by the disks' clock; `None`: it was never sent.
    fn end(&self, number: u32, cost: Cost, priority: Priority, is_early: bool, began: Option<Nanos>) {
        let now = self.seam.now();
        let granted = {
            let inner = &mut *self.inner.borrow_mut();
            inner.turn_period(now);
            let shared = inner.active > 1;
            let was = inner.window.is_congested();
            if let Some(member) = inner.members.get_mut(&number) {
                (member.under_way, member.moved) = (member.under_way - cost, now);
                if priority == Priority::Background {
                    member.background = member.background - cost;
                }
            }
            if is_early {
                inner.early = inner.early - cost;
            }
            let disk_time = inner.clock.time(now);
            match began {
                Some(began) => inner.window.end(number, cost, priority, began, disk_time, shared),
                None => inner.window.cancel(cost, priority, disk_time),
            }
            inner.note_congestion(was, now);
            inner.admit(now)
        };
        granted.iter().for_each(|ticket| ticket.grant.give());
    }

    /// What it does now.
    pub fn stats(&self) -> DatastoreStats {
        let now = self.seam.now();
        let mut inner = self.inner.borrow_mut();
        inner.turn_period(now);
        let (latency, rate) = inner.window.lately();
        let active_shares = inner.active_shares();
        let used: Cost = inner.members.values().map(|member| member.used_before).sum();
        let mut members: Vec<_> = inner
            .members
            .iter()
            .map(|(number, member)| MemberStats {
                volume: member.volume.clone(),
                shares: member.entitlement.shares,
                reservation_iops: member.entitlement.reservation,
                entitled_ratio: inner.entitled(member, active_shares),
                used_ratio: member.used_before.0 as f64 / used.0.max(1) as f64,
                accesses: member.total.as_accesses(),
                waits: member.waits,
                waited: member.waited,
                waiting: inner.waiting_of(*number),
            })
            .collect();
        members.sort_by(|a, b| a.volume.cmp(&b.volume));
        let since = inner.lately.back().filter(|episode| episode.ended.is_none()).map(|episode| episode.began);
        DatastoreStats {
            name: self.name.clone(),
            congested: inner.window.is_congested(),
            congested_time: inner.congested_time + since.map_or(Nanos::ZERO, |since| now.since(since)),
            episodes: inner.episodes,
            threshold: inner.window.threshold(),
            threshold_is_found: inner.window.asked_threshold() == qos::Threshold::Auto,
            latency,
            rate,
            shown: inner.shown,
            window: inner.window.size().map(Cost::as_accesses),
            under_way: inner.window.under_way().as_accesses(),
            members,
            lately: inner.lately.iter().cloned().collect(),
        }
    }
}

impl Member {
    /// Its requests under way that clients wait for.
    fn foreground(&self) -> Cost {
        self.under_way - self.background
    }
}

impl Inner {
    /// True when a request waits.
    fn any_waits(&self) -> bool {
        !self.scheduler.is_empty() || !self.background.is_empty()
    }

    /// Requests of a volume that wait.
    fn waiting_of(&self, number: u32) -> usize {
        self.scheduler.waiting_of(number) + self.background.waiting_of(number)
    }

    /// Those whose turn it is by now. What they cost is under way from here on.
    fn admit(&mut self, now: Nanos) -> Vec<Rc<Ticket>> {
        let mut granted = Vec::new();
        if !self.any_waits() {
            return granted;
        }
        let patience = STALLED_AFTER.max(Nanos(self.window.threshold().0.saturating_mul(STALLED_THRESHOLDS)));
        let stalls = |member: &Member| member.under_way > Cost::default() && now.since(member.moved) > patience;
        let stalled: Vec<u32> = self.members.iter().filter(|(_, member)| stalls(member)).map(|(at, _)| *at).collect();
        let hung: Cost = stalled.iter().map(|number| self.members[number].foreground()).sum();
        while !self.scheduler.is_empty() {
            let members = &self.members;
            let next = if self.active < 2 {
                self.scheduler.pop(now)
            } else if self.window.has_room_beside(self.early + hung) {
                self.scheduler.pop_of(now, |number| !stalled.contains(&number))
            } else {
                self.window.note_full(self.clock.time(now));
                let most = self.window.size().map_or(LITTLE, |size| LITTLE.max(Cost(size.0 / 2)));
                let asks_little = |number: u32, cost: Cost| {
                    let has = members.get(&number).map_or(LITTLE, Member::foreground);
                    cost <= LITTLE && has < LITTLE && !stalled.contains(&number)
                };
                let little = if self.early < most { self.scheduler.pop_little(now, asks_little) } else { None };
                if let Some((_, cost, ticket)) = &little {
                    self.early += *cost;
                    ticket.is_early.set(true);
                }
                little
            };
            let Some((number, cost, ticket)) = next else { break };
            self.begin(number, cost, Priority::Foreground, now);
            granted.push(ticket);
        }
        self.admit_background(&stalled, now, &mut granted);
        granted
    }

    /// Background work whose turn it is: beside clients' requests while none of them waits, else in its own part of the window.
    fn admit_background(&mut self, stalled: &[u32], now: Nanos, granted: &mut Vec<Rc<Ticket>>) {
        let hung: Cost = stalled.iter().map(|number| self.members[number].background).sum();
        while !self.background.is_empty() {
            let next = match () {
                () if self.active < 2 => self.background.pop(now),
                () if self.window.has_room_for_background(!self.scheduler.is_empty(), hung) => {
                    self.background.pop_of(now, |number| !stalled.contains(&number))
                }
                () => None,
            };
            let Some((number, cost, ticket)) = next else { break };
            self.begin(number, cost, Priority::Background, now);
            granted.push(ticket);
        }
    }

    fn begin(&mut self, number: u32, cost: Cost, priority: Priority, now: Nanos) {
        self.window.begin(cost, priority, self.clock.time(now));
        if let Some(member) = self.members.get_mut(&number) {
            if member.under_way == Cost::default() {
                member.moved = now;
            }
            member.under_way += cost;
            if priority == Priority::Background {
                member.background += cost;
            }
        }
    }

    fn count(&mut self, number: u32, cost: Cost, now: Nanos) {
        if let Some(member) = self.members.get_mut(&number) {
            member.asked = now;
            self.active += usize::from(!std::mem::replace(&mut member.active, true));
            member.used += cost;
            member.total += cost;
        }
    }

    fn turn_period(&mut self, now: Nanos) {
        let was = self.window.is_congested();
        self.window.rest(self.clock.time(now));
        self.note_congestion(was, now);
        if now.since(self.period) < PERIOD {
            return;
        }
        let skipped = now.since(self.period).0 >= 2 * PERIOD.0;
        for (number, member) in &mut self.members {
            member.used_before = if skipped { Cost::default() } else { member.used };
            member.used = Cost::default();
            // Who waits asks for something, for however long.
            let waiting = self.scheduler.waiting_of(*number) + self.background.waiting_of(*number);
            let waits = member.under_way > Cost::default() || waiting > 0;
            member.active &= waits || now.since(member.asked) < AWAY_AFTER;
        }
        self.active = self.members.values().filter(|member| member.active).count();
        self.period = now;
    }

    /// Shares of all who asked for something lately.
    fn active_shares(&self) -> u64 {
        let active = self.members.values().filter(|member| member.active);
        active.map(|member| u64::from(member.entitlement.shares)).sum()
    }

    /// The part of the datastore that a volume is entitled to beside those who asked for something lately.
    fn entitled(&self, member: &Member, active_shares: u64) -> f64 {
        let own = u64::from(member.entitlement.shares);
        let all = if member.active { active_shares } else { active_shares + own };
        let by_shares = own as f64 / all.max(1) as f64;
        let reserved = self.shown.map_or(0.0, |shown| member.entitlement.reservation as f64 / shown.max(1.0));
        by_shares.max(reserved).min(1.0)
    }

    fn note_congestion(&mut self, was: bool, now: Nanos) {
        let is = self.window.is_congested();
        if is && let Some(rate) = self.window.greatest_rate() {
            self.shown = Some(rate);
        }
        if is == was {
            return;
        }
        if !is {
            if let Some(episode) = self.lately.back_mut() {
                episode.ended = Some(now);
                self.congested_time += now.since(episode.began);
            }
            return;
        }
        let active: Vec<&Member> = self.members.values().filter(|member| member.active).collect();
        let used = |member: &Member| (member.used_before + member.used).0 as f64;
        let (all, shares) = (active.iter().map(|member| used(member)).sum::<f64>().max(1.0), self.active_shares());
        let above = |member: &Member| used(member) / all - self.entitled(member, shares);
        let cause = active.iter().max_by(|a, b| above(a).total_cmp(&above(b)));
        let episode = Episode {
            began: now,
            ended: None,
            caused_by: cause.map(|member| member.volume.clone()).unwrap_or_default(),
            contenders: active.iter().take(CONTENDERS_MAX).map(|member| member.volume.clone()).collect(),
        };
        if self.lately.len() == EPISODES_MAX {
            self.lately.pop_front();
        }
        self.lately.push_back(episode);
        self.episodes += 1;
    }
}

impl<S: Seam> Drop for Turn<S> {
    fn drop(&mut self) {
        self.datastore.end(self.number, self.cost, self.priority, self.is_early, Some(self.began));
    }
}

impl<S: Seam> Drop for Place<S> {
    fn drop(&mut self) {
        if self.is_claimed.get() {
            return;
        }
        let Place { datastore, number, cost, ticket, .. } = &*self;
        if ticket.grant.is_given() {
            datastore.end(*number, *cost, ticket.priority.get(), ticket.is_early.get(), None);
        } else {
            let mut inner = datastore.inner.borrow_mut();
            let waiting = match ticket.priority.get() {
                Priority::Foreground => &mut inner.scheduler,
                Priority::Background => &mut inner.background,
            };
            waiting.withdraw(*number, |other| Rc::ptr_eq(other, ticket));
        }
    }
}

#[cfg(test)]
mod tests;
