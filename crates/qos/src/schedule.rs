//! Order of requests that wait for the same disks: reservations first, then shares (mClock, Gulati and others, OSDI
//! 2010, with start-time fair queueing for the shares).
//!
//! A client's *reserve tag* is the time at which its reservation entitles it to the next request. Its *share tag* is
//! the work it was given, divided by its shares; the smallest tag goes next. A client that returns from idling starts
//! at the tag of the others: it gets neither credit nor debt for its idle time.

use std::collections::{BTreeMap, VecDeque};

use seam::Nanos;

use crate::Cost;

/// Advance of a share tag for a cost of 1 (a thousandth of a small access) and a client with one share.
const TAG_SCALE: u64 = 1 << 16;
/// Consecutive requests by reservation before one goes by shares: reservations that cannot all be met starve no client.
const RESERVED_IN_ROW_MAX: u32 = 9;
/// Longest lag of a reservation that is still made up for.
const RESERVE_LATE_MAX: Nanos = Nanos::from_millis(100);
/// Small accesses by which requests by reservation may advance a share tag beyond the others: work given by a
/// reservation delays the client's shares only briefly.
const SHARE_TAG_AHEAD_MAX: u64 = 64;
/// Small accesses by which a client's share tag may be ahead of the others for its requests to count as few.
const SMALL_AHEAD: u64 = 4;
/// Nanoseconds per second.
const SECOND: u64 = 1_000_000_000;

/// Entitlement of one client among the clients that share disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entitlement {
    /// Weight relative to the other clients.
    pub shares: u32,
    /// Small accesses per second that the client gets regardless of the other clients; 0 means none.
    pub reservation: u64,
}

/// A deliberate fault: a test shows that its checks can fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// No fault.
    #[default]
    None,
    /// An idle client accumulates credit.
    HoardIdle,
    /// A limiter lets every request enter at once.
    IgnoreLimit,
}

struct Client<T> {
    entitlement: Entitlement,
    waiting: VecDeque<(Cost, T)>,
    share_tag: u64,
    reserve_tag: Nanos,
}

impl<T> Client<T> {
    /// Advance of the share tag for a request of `cost`.
    fn tag_step(&self, cost: Cost) -> u64 {
        cost.0.saturating_mul(TAG_SCALE) / u64::from(self.entitlement.shares.max(1))
    }

    fn is_reservation_due(&self, now: Nanos) -> bool {
        self.entitlement.reservation > 0 && self.reserve_tag <= now
    }
}

/// Waiting requests, by client.
pub struct Scheduler<T> {
    clients: BTreeMap<u32, Client<T>>,
    /// Clients with waiting requests: each choice searches this list.
    backlogged: Vec<u32>,
    /// Share tag of the client that went last by shares.
    virtual_time: u64,
    /// Requests by reservation since the last one by shares.
    reserved_in_row: u32,
    waiting: usize,
    fault: Fault,
}

impl<T> Default for Scheduler<T> {
    fn default() -> Self {
        Scheduler::with_fault(Fault::None)
    }
}

impl<T> Scheduler<T> {
    /// A scheduler with a deliberate fault.
    pub fn with_fault(fault: Fault) -> Self {
        Scheduler {
            clients: BTreeMap::new(),
            backlogged: Vec::new(),
            virtual_time: 0,
            reserved_in_row: 0,
            waiting: 0,
            fault,
        }
    }

    /// Adds a client or changes its entitlement; a client whose entitlement changes starts at the tags of the others.
    pub fn set_client(&mut self, client: u32, entitlement: Entitlement, now: Nanos) {
        let virtual_time = self.virtual_time;
        let client = self.clients.entry(client).or_insert_with(|| Client {
            entitlement,
            waiting: VecDeque::new(),
            share_tag: virtual_time,
            reserve_tag: now,
        });
        if client.entitlement != entitlement {
            (client.entitlement, client.share_tag, client.reserve_tag) = (entitlement, virtual_time, now);
        }
    }

    /// Removes a client; returns its waiting requests in order, each with its cost.
    pub fn remove(&mut self, client: u32) -> Vec<(Cost, T)> {
        let removed = self.clients.remove(&client);
        self.backlogged.retain(|other| *other != client);
        let removed: Vec<(Cost, T)> = removed.into_iter().flat_map(|client| client.waiting).collect();
        self.waiting -= removed.len();
        removed
    }

    /// Takes a client's waiting requests in order, each with its cost; the client stays.
    pub fn take_waiting(&mut self, number: u32) -> Vec<(Cost, T)> {
        let Some(client) = self.clients.get_mut(&number) else { return Vec::new() };
        let taken: Vec<(Cost, T)> = std::mem::take(&mut client.waiting).into();
        self.backlogged.retain(|other| *other != number);
        self.waiting -= taken.len();
        taken
    }

    /// Removes the client's first waiting request that matches `matches`; false if there is none.
    pub fn withdraw(&mut self, number: u32, matches: impl Fn(&T) -> bool) -> bool {
        let Some(client) = self.clients.get_mut(&number) else { return false };
        let Some(at) = client.waiting.iter().position(|(_, request)| matches(request)) else { return false };
        client.waiting.remove(at);
        if client.waiting.is_empty() {
            self.backlogged.retain(|other| *other != number);
        }
        self.waiting -= 1;
        true
    }

    /// Number of waiting requests.
    pub fn len(&self) -> usize {
        self.waiting
    }

    /// True if no request waits.
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Number of waiting requests of one client.
    pub fn waiting_of(&self, client: u32) -> usize {
        self.clients.get(&client).map_or(0, |client| client.waiting.len())
    }

    /// Enqueues a request. The client must have been added by [`set_client`](Scheduler::set_client).
    pub fn push(&mut self, number: u32, cost: Cost, request: T, now: Nanos) {
        let (virtual_time, fault) = (self.virtual_time, self.fault);
        let client = self.clients.get_mut(&number).expect("the client is registered");
        if client.waiting.is_empty() {
            self.backlogged.push(number);
            if fault != Fault::HoardIdle {
                client.share_tag = client.share_tag.max(virtual_time);
                client.reserve_tag = client.reserve_tag.max(Nanos(now.0.saturating_sub(RESERVE_LATE_MAX.0)));
            }
        }
        client.waiting.push_back((cost, request));
        self.waiting += 1;
    }

    /// Takes the next request: its client's number, its cost and the request.
    pub fn pop(&mut self, now: Nanos) -> Option<(u32, Cost, T)> {
        self.pop_among(now, |_| true)
    }

    /// Takes the next request among the clients for which `may` is true.
    pub fn pop_among(&mut self, now: Nanos, may: impl Fn(u32) -> bool) -> Option<(u32, Cost, T)> {
        let reserved = self.next_reserved(now, |number, _| may(number));
        let by_shares = self.next_by_shares(&may)?;
        if reserved.is_none() {
            self.virtual_time = self.clients[&by_shares].share_tag.max(self.virtual_time);
        }
        Some(self.take(reserved.unwrap_or(by_shares), reserved.is_some(), now))
    }

    /// Takes the oldest request of a client whose reservation is due or that recently got less than its shares
    /// entitle it to, if `may` permits the request. Clients with few requests pass a full window this way.
    pub fn pop_small(&mut self, now: Nanos, may: impl Fn(u32, Cost) -> bool) -> Option<(u32, Cost, T)> {
        if let Some(reserved) = self.next_reserved(now, &may) {
            return Some(self.take(reserved, true, now));
        }
        let ahead = Cost(SMALL_AHEAD * Cost::ONE.0);
        let candidates = self.backlogged().filter(|(number, client)| {
            let is_small = client.share_tag <= self.virtual_time.saturating_add(client.tag_step(ahead));
            is_small && client.waiting.front().is_some_and(|(cost, _)| may(*number, *cost))
        });
        let (chosen, _) = candidates.min_by_key(|(number, client)| (client.share_tag, *number))?;
        Some(self.take(chosen, false, now))
    }

    fn take(&mut self, chosen: u32, reserved: bool, now: Nanos) -> (u32, Cost, T) {
        let virtual_time = self.virtual_time;
        let client = self.clients.get_mut(&chosen).expect("a chosen client is registered");
        let (cost, request) = client.waiting.pop_front().expect("a chosen client has a waiting request");
        self.waiting -= 1;
        if client.waiting.is_empty() {
            self.backlogged.retain(|other| *other != chosen);
        }
        let step = client.tag_step(cost);
        if reserved {
            self.reserved_in_row += 1;
            let interval_ns = cost.0.saturating_mul(SECOND / Cost::ONE.0) / client.entitlement.reservation;
            let floor = Nanos(now.0.saturating_sub(RESERVE_LATE_MAX.0));
            client.reserve_tag = client.reserve_tag.max(floor) + Nanos(interval_ns);
            let tag_max = virtual_time.saturating_add(client.tag_step(Cost(SHARE_TAG_AHEAD_MAX * Cost::ONE.0)));
            client.share_tag = client.share_tag.saturating_add(step).min(tag_max.max(client.share_tag));
        } else {
            self.reserved_in_row = 0;
            client.share_tag = client.share_tag.saturating_add(step);
        }
        (chosen, cost, request)
    }

    fn next_reserved(&self, now: Nanos, may: impl Fn(u32, Cost) -> bool) -> Option<u32> {
        if self.reserved_in_row >= RESERVED_IN_ROW_MAX {
            return None;
        }
        let is_eligible =
            |number: u32, client: &Client<T>| client.waiting.front().is_some_and(|(cost, _)| may(number, *cost));
        let due =
            self.backlogged().filter(|(number, client)| client.is_reservation_due(now) && is_eligible(*number, client));
        due.min_by_key(|(number, client)| (client.reserve_tag, *number)).map(|(number, _)| number)
    }

    fn next_by_shares(&self, may: impl Fn(u32) -> bool) -> Option<u32> {
        let candidates = self.backlogged().filter(|(number, _)| may(*number));
        candidates.min_by_key(|(number, client)| (client.share_tag, *number)).map(|(number, _)| number)
    }

    fn backlogged(&self) -> impl Iterator<Item = (u32, &Client<T>)> {
        self.backlogged.iter().map(|number| (*number, &self.clients[number]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scheduler(entitlements: &[(u32, u64)]) -> Scheduler<()> {
        let mut scheduler = Scheduler::default();
        for (number, (shares, reservation)) in (0..).zip(entitlements) {
            let entitlement = Entitlement { shares: *shares, reservation: *reservation };
            scheduler.set_client(number, entitlement, Nanos::ZERO);
        }
        scheduler
    }

    /// Requests served for each of three clients out of `requests`, a millisecond apart, while the clients of `busy`
    /// always wait.
    fn serve(scheduler: &mut Scheduler<()>, now: &mut Nanos, requests: u32, busy: &[u32], cost: Cost) -> [u32; 3] {
        let mut served = [0; 3];
        for _ in 0..requests {
            for client in busy {
                while scheduler.waiting_of(*client) < 2 {
                    scheduler.push(*client, cost, (), *now);
                }
            }
            *now += Nanos::from_millis(1);
            let (client, ..) = scheduler.pop(*now).expect("a request waits");
            served[client as usize] += 1;
        }
        served
    }

    #[test]
    fn requests_served_are_proportional_to_shares() {
        let (mut scheduler, mut now) = (scheduler(&[(2_000, 0), (1_000, 0), (500, 0)]), Nanos::ZERO);
        assert_eq!(serve(&mut scheduler, &mut now, 3_500, &[0, 1, 2], Cost::ONE), [2_000, 1_000, 500]);
        assert_eq!(serve(&mut scheduler, &mut now, 300, &[1, 2], Cost::ONE)[1..], [199, 100][..]);
        // A client that returns gets its part, and no credit for its idle time.
        let back = serve(&mut scheduler, &mut now, 350, &[0, 1, 2], Cost::ONE);
        assert!((197..=203).contains(&back[0]), "{back:?}");
    }

    #[test]
    fn reservation_is_met_and_larger_shares_give_more() {
        let (mut scheduler, mut now) = (scheduler(&[(1, 300), (10_000, 0), (10_000, 0)]), Nanos::ZERO);
        let served = serve(&mut scheduler, &mut now, 10_000, &[0, 1, 2], Cost::ONE);
        assert!((2_990..=3_060).contains(&served[0]), "{served:?}");
        // Its shares alone give it more than its reservation.
        scheduler.set_client(0, Entitlement { shares: 20_000, reservation: 300 }, now);
        let served = serve(&mut scheduler, &mut now, 10_000, &[0, 1, 2], Cost::ONE);
        assert!((4_950..=5_100).contains(&served[0]), "{served:?}");
    }

    #[test]
    fn reservations_beyond_capacity_starve_no_client() {
        let (mut scheduler, mut now) = (scheduler(&[(1_000, 5_000), (1_000, 5_000), (1, 0)]), Nanos::ZERO);
        let served = serve(&mut scheduler, &mut now, 20_000, &[0, 1, 2], Cost::ONE);
        assert!(served[2] > 0, "{served:?}");
        assert!(served[0].abs_diff(served[1]) < 200, "{served:?}");
    }

    #[test]
    fn few_small_requests_go_first_up_to_a_bounded_lead() {
        let (mut scheduler, now) = (scheduler(&[(1_000, 0), (1_000, 0)]), Nanos::ZERO);
        let large = Cost(8 * Cost::ONE.0);
        scheduler.push(0, large, (), now);
        scheduler.push(0, large, (), now);
        assert_eq!(scheduler.pop(now).map(|(client, ..)| client), Some(0));
        let small = |_: u32, cost: Cost| cost <= Cost::ONE;
        assert_eq!(scheduler.pop_small(now, small), None, "the waiting request is large");
        for _ in 0..8 {
            scheduler.push(1, Cost::ONE, (), now);
        }
        let mut early = 0;
        while scheduler.pop_small(now, small).is_some() {
            early += 1;
        }
        assert_eq!(early, 5, "requests within a lead of four, and one more");
        assert_eq!(scheduler.waiting_of(1), 3);
        // The early requests advanced the client's share tag.
        let order: Vec<u32> = std::iter::from_fn(|| scheduler.pop(now)).map(|(client, ..)| client).collect();
        assert_eq!(order, [1, 1, 1, 0]);
    }

    #[test]
    fn reservation_goes_before_few_small_requests() {
        let (mut scheduler, now) = (scheduler(&[(1, 100), (1_000, 0)]), Nanos::from_secs(1));
        // The share of client 0 alone makes it wait long.
        for _ in 0..3 {
            scheduler.push(0, Cost::ONE, (), now);
            scheduler.push(1, Cost::ONE, (), now);
        }
        let order = [(); 3].map(|()| scheduler.pop_small(now, |_, _| true).map(|(client, ..)| client));
        assert_eq!(order, [Some(0); 3]);
    }

    #[test]
    fn removed_client_returns_its_waiting_requests() {
        let mut scheduler = Scheduler::default();
        scheduler.set_client(7, Entitlement { shares: 1, reservation: 0 }, Nanos::ZERO);
        for request in 0..3 {
            scheduler.push(7, Cost::ONE, request, Nanos::ZERO);
        }
        assert!(scheduler.withdraw(7, |request| *request == 1) && !scheduler.withdraw(7, |request| *request == 1));
        let remaining = vec![(Cost::ONE, 0), (Cost::ONE, 2)];
        assert_eq!((scheduler.remove(7), scheduler.len(), scheduler.pop(Nanos::ZERO)), (remaining, 0, None));
    }
}
