//! Dispatch to a backing: every request states its cause, and each cause has a limit of requests in the queue.
//!
//! Client reads may hold twice the queue depth. Destage may always have at least one request in flight. While clients
//! read the backing now and then, and little data is dirty, its limit is hardly higher: the next read waits on the
//! disks for all destage already sent. The limit grows to 6 % of the queue depth at a quarter of the dirty data limit
//! and to 20 % at half. It is at least 50 % while a client waits for destage. It is 100 % at the dirty data limit,
//! while clients are idle, or if no client has read the backing for ten seconds. Readahead and promotion take at most
//! 25 % each.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use seam::Nanos;

use crate::wait::OneShotEvent;

/// Destage's limit in percent of the queue depth, by dirty data in percent of its limit; it rises evenly in between.
/// The first limit, 1 %, is about one request per three disks at a depth of 32 a disk; a small RAID 5 write costs four
/// accesses.
const DESTAGE_LIMIT_PERCENTS: [(u64, u64); 4] = [(0, 1), (25, 6), (50, 20), (100, 100)];

/// Cause of a request to the backing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// A client read of data that is not cached.
    ClientRead,
    /// Write of dirty data, the read that completes a partial block, or the flush that makes written data durable.
    Destage,
    /// Readahead of a stream, or a client's prefetch.
    Readahead,
    /// Completion of a page on flash, or its comparison with the backing.
    Promotion,
}

impl Cause {
    /// All causes with their names in metrics.
    pub const ALL: [(&'static str, Cause); 4] = [
        ("client-read", Cause::ClientRead),
        ("destage", Cause::Destage),
        ("readahead", Cause::Readahead),
        ("promotion", Cause::Promotion),
    ];
}

/// Kind of a request to a backing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BackingOp {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Zero or discard of a range.
    Zero,
    /// Flush.
    Flush,
}

impl BackingOp {
    /// All kinds with their names in metrics.
    pub const ALL: [(&'static str, BackingOp); 4] = [
        ("read", BackingOp::Read),
        ("write", BackingOp::Write),
        ("zero", BackingOp::Zero),
        ("flush", BackingOp::Flush),
    ];
}

/// Requests of one cause.
#[derive(Default)]
struct CauseClass {
    /// Requests that hold a permit.
    in_flight_requests: Cell<u32>,
    /// Limit of requests in flight.
    requests_max: Cell<u32>,
    /// Requests that wait for a permit, the longest waiting first.
    queue: RefCell<VecDeque<Rc<OneShotEvent>>>,
}

impl CauseClass {
    /// Grants all free permits to the longest waiting requests. A returned permit is not free if the limit has fallen
    /// since, and a raised limit frees several.
    fn admit(&self) {
        while self.in_flight_requests.get() < self.requests_max.get() {
            let Some(next) = self.queue.borrow_mut().pop_front() else { return };
            self.in_flight_requests.set(self.in_flight_requests.get() + 1);
            next.set();
        }
    }
}

/// State of a dispatch.
struct Inner {
    queue_depth: u32,
    classes: [CauseClass; Cause::ALL.len()],
    /// Time at which a client read was last seen in flight.
    last_read_at: Cell<Option<Nanos>>,
}

/// Admission to the queue of one backing. A clone is another handle to the same queue.
#[derive(Clone)]
pub struct Dispatch(Rc<Inner>);

/// Conditions that determine destage's limit in the backing's queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct DestageConditions {
    /// Dirty data in percent of its limit.
    pub pressure_percent: u64,
    /// A client waits for destage.
    pub is_awaited: bool,
    /// Clients have sent no request for a while.
    pub are_clients_idle: bool,
}

/// Permission to have one request in the backing's queue; returned on drop.
pub struct Permit {
    dispatch: Dispatch,
    cause: Cause,
}

impl Dispatch {
    /// Time after a client read during which another one is expected. A cache with few misses reads rarely, and each
    /// miss would find the queue full of destage if only reads in quick succession counted.
    pub const READ_EXPECTED_FOR: Nanos = Nanos::from_secs(10);

    /// Destage's limit in percent of the queue depth while clients read and no client waits for destage;
    /// `pressure_percent` is the dirty data in percent of its limit.
    pub fn destage_percent(pressure_percent: u64) -> u64 {
        let next = DESTAGE_LIMIT_PERCENTS.iter().position(|(until, _)| pressure_percent < *until);
        let Some(next) = next else { return 100 };
        let ((from, low), (to, high)) = (DESTAGE_LIMIT_PERCENTS[next - 1], DESTAGE_LIMIT_PERCENTS[next]);
        low + (pressure_percent - from) * (high - low) / (to - from)
    }

    /// The dispatch of a backing whose throughput grows with up to `queue_depth` requests in parallel.
    pub fn new(queue_depth: u32) -> Self {
        let depth = queue_depth.max(4);
        let inner = Inner { queue_depth: depth, classes: Default::default(), last_read_at: Cell::default() };
        inner.classes[Cause::ClientRead as usize].requests_max.set(depth * 2);
        inner.classes[Cause::Destage as usize].requests_max.set(depth);
        inner.classes[Cause::Readahead as usize].requests_max.set(depth / 4);
        inner.classes[Cause::Promotion as usize].requests_max.set(depth / 4);
        Dispatch(Rc::new(inner))
    }

    /// Waits for a permit, in the order of arrival.
    pub async fn acquire(&self, cause: Cause) -> Permit {
        if let Some(permit) = self.try_acquire(cause) {
            return permit;
        }
        let granted = Rc::<OneShotEvent>::default();
        self.class(cause).queue.borrow_mut().push_back(Rc::clone(&granted));
        granted.wait().await;
        Permit { dispatch: self.clone(), cause }
    }

    /// Returns a permit if one is free and no request waits.
    pub fn try_acquire(&self, cause: Cause) -> Option<Permit> {
        let class = self.class(cause);
        if self.is_full(cause) || !class.queue.borrow().is_empty() {
            return None;
        }
        class.in_flight_requests.set(class.in_flight_requests.get() + 1);
        Some(Permit { dispatch: self.clone(), cause })
    }

    /// True if a request of this cause would have to wait.
    pub fn is_full(&self, cause: Cause) -> bool {
        let class = self.class(cause);
        class.in_flight_requests.get() >= class.requests_max.get()
    }

    /// Number of requests of this cause that may be in flight.
    pub fn limit_of(&self, cause: Cause) -> usize {
        self.class(cause).requests_max.get() as usize
    }

    /// True if no request is in flight, apart from promotion's.
    pub fn is_idle(&self) -> bool {
        [Cause::ClientRead, Cause::Destage, Cause::Readahead]
            .iter()
            .all(|cause| self.class(*cause).in_flight_requests.get() == 0)
    }

    /// True if readahead would not delay client reads.
    pub fn may_read_ahead(&self) -> bool {
        let reads = self.class(Cause::ClientRead);
        reads.in_flight_requests.get() < reads.requests_max.get() && !self.is_full(Cause::Readahead)
    }

    /// Sets destage's limit.
    pub fn set_destage_limit(&self, now: Nanos, conditions: DestageConditions) {
        let DestageConditions { pressure_percent: pressure, is_awaited, are_clients_idle: clients_idle } = conditions;
        let depth = u64::from(self.0.queue_depth);
        if self.class(Cause::ClientRead).in_flight_requests.get() > 0 {
            self.0.last_read_at.set(Some(now));
        }
        let expects_read = self.0.last_read_at.get().is_some_and(|read| now.since(read) < Self::READ_EXPECTED_FOR);
        let percent = if clients_idle || !expects_read {
            100
        } else if is_awaited {
            50.max(pressure)
        } else {
            Self::destage_percent(pressure)
        };
        let destage = self.class(Cause::Destage);
        destage.requests_max.set((depth * percent / 100).max(1) as u32);
        destage.admit();
    }

    /// The requests of a cause.
    fn class(&self, cause: Cause) -> &CauseClass {
        &self.0.classes[cause as usize]
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let class = self.dispatch.class(self.cause);
        class.in_flight_requests.set(class.in_flight_requests.get() - 1);
        class.admit();
    }
}

#[cfg(test)]
mod tests {
    use seam::Seam;
    use seam::sim::{World, WorldSpec};

    use super::*;

    #[test]
    fn destage_gets_more_permits_as_dirty_data_nears_its_limit() {
        let dispatch = Dispatch::new(160);
        let read = dispatch.try_acquire(Cause::ClientRead).expect("the queue is empty");
        let destage_permits = |now, conditions| {
            dispatch.set_destage_limit(now, conditions);
            let mut held = Vec::new();
            while let Some(permit) = dispatch.try_acquire(Cause::Destage) {
                held.push(permit);
            }
            held.len()
        };
        let at_pressure = |pressure| DestageConditions { pressure_percent: pressure, ..DestageConditions::default() };
        let now = Nanos::from_secs(1);
        assert_eq!(
            [0, 25, 50, 75, 100].map(|pressure| destage_permits(now, at_pressure(pressure))),
            [1, 9, 32, 96, 160]
        );
        let awaited = |pressure| DestageConditions { is_awaited: true, ..at_pressure(pressure) };
        assert_eq!([0, 75].map(|pressure| destage_permits(now, awaited(pressure))), [80, 120]);
        drop(read);
        let expected = now + Nanos(Dispatch::READ_EXPECTED_FOR.0 - 1);
        assert_eq!(destage_permits(expected, at_pressure(0)), 1, "another read is expected");
        let clients_idle = DestageConditions { are_clients_idle: true, ..at_pressure(0) };
        assert_eq!(destage_permits(expected, clients_idle), 160, "clients are idle");
        assert_eq!(destage_permits(now + Dispatch::READ_EXPECTED_FOR, at_pressure(0)), 160, "no client reads");
    }

    #[test]
    fn raised_limit_admits_all_waiting_requests_up_to_it() {
        let world = World::new(WorldSpec::new(1));
        let (seam, dispatch) = (world.seam(), Dispatch::new(32));
        let read = dispatch.try_acquire(Cause::ClientRead).expect("the queue is empty");
        dispatch.set_destage_limit(seam.now(), DestageConditions::default());
        let admitted = Rc::new(Cell::new(0));
        for _ in 0..30 {
            let (dispatch, admitted) = (dispatch.clone(), Rc::clone(&admitted));
            seam.spawn(async move {
                let _permit = dispatch.acquire(Cause::Destage).await;
                admitted.set(admitted.get() + 1);
                std::future::pending::<()>().await;
            });
        }
        let settle = || world.run_for(Nanos::from_millis(1)).expect("tasks that wait");
        settle();
        assert_eq!(admitted.get(), 1);
        drop(read);
        dispatch.set_destage_limit(seam.now() + Dispatch::READ_EXPECTED_FOR, DestageConditions::default());
        settle();
        assert_eq!(admitted.get(), 30);
    }
}
