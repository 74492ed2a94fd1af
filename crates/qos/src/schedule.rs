//! Who goes next among those who wait for the same disks: reservations first, then shares (mClock, Gulati and others, OSDI 2010, with
//! start-time fair queueing for the shares).
//!
//! A client's *reserve tag* is the time at which its reservation next owes it something. Its *share tag* is the work it was given,
//! divided by its shares; the smallest goes next. Who comes back from idling starts where the others are: it is owed nothing for the
//! time that it did not ask, and pays nothing back.

use std::collections::{BTreeMap, VecDeque};

use seam::Nanos;

use crate::Cost;

/// Tags move so much for a small access of a client with one share.
const SCALE: u64 = 1 << 16;
/// Turns by reservation between which one goes by shares, where others wait for it: reservations that cannot all be met starve nobody.
const RESERVED_IN_ROW_MAX: u32 = 9;
/// How far a reservation may be behind and still be made up for.
const RESERVE_LATE_MAX: Nanos = Nanos::from_millis(100);
/// Small accesses by which a share tag may run ahead of the others' for what came by reservation: what a reservation gave is not taken back
/// for long.
const AHEAD_MAX: u64 = 64;
/// Small accesses by which a share tag may be ahead of the others' and its client still ask for little.
const LITTLE_AHEAD: u64 = 4;
/// A second.
const SECOND: u64 = 1_000_000_000;

/// What one of those who share disks is entitled to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entitlement {
    /// Its weight beside the others.
    pub shares: u32,
    /// Small accesses a second that are its own, whatever the others ask for; 0: none.
    pub reservation: u64,
}

/// A deliberate fault, so that a test can show that it notices one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// As it should be.
    #[default]
    None,
    /// Who idles saves up what it did not ask for.
    HoardIdle,
    /// A limit's time is not waited for.
    IgnoreLimit,
}

struct Client<T> {
    entitlement: Entitlement,
    waiting: VecDeque<(Cost, T)>,
    share_tag: u64,
    reserve_tag: Nanos,
}

impl<T> Client<T> {
    fn share_of(&self, cost: Cost) -> u64 {
        cost.0.saturating_mul(SCALE) / u64::from(self.entitlement.shares.max(1))
    }

    fn is_owed(&self, now: Nanos) -> bool {
        self.entitlement.reservation > 0 && self.reserve_tag <= now
    }
}

/// Requests that wait, by client.
pub struct Scheduler<T> {
    clients: BTreeMap<u32, Client<T>>,
    /// Those of whom something waits: looked through for each turn.
    asking: Vec<u32>,
    /// The share tag of who went last by shares.
    reached: u64,
    /// Turns by reservation since the last one by shares.
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
    /// With a deliberate fault.
    pub fn with_fault(fault: Fault) -> Self {
        Scheduler { clients: BTreeMap::new(), asking: Vec::new(), reached: 0, reserved_in_row: 0, waiting: 0, fault }
    }

    /// A client, or another entitlement of one: it begins anew among the others.
    pub fn set(&mut self, client: u32, entitlement: Entitlement, now: Nanos) {
        let reached = self.reached;
        let client = self.clients.entry(client).or_insert_with(|| Client {
            entitlement,
            waiting: VecDeque::new(),
            share_tag: reached,
            reserve_tag: now,
        });
        if client.entitlement != entitlement {
            (client.entitlement, client.share_tag, client.reserve_tag) = (entitlement, reached, now);
        }
    }

    /// A client leaves; what waits of it comes back, in its order, with what each costs.
    pub fn remove(&mut self, client: u32) -> Vec<(Cost, T)> {
        let gone = self.clients.remove(&client);
        self.asking.retain(|other| *other != client);
        let gone: Vec<(Cost, T)> = gone.into_iter().flat_map(|gone| gone.waiting).collect();
        self.waiting -= gone.len();
        gone
    }

    /// Takes a client's requests that wait, in their order, with their costs; the client stays.
    pub fn take_waiting(&mut self, number: u32) -> Vec<(Cost, T)> {
        let Some(client) = self.clients.get_mut(&number) else { return Vec::new() };
        let taken: Vec<(Cost, T)> = std::mem::take(&mut client.waiting).into();
        self.asking.retain(|other| *other != number);
        self.waiting -= taken.len();
        taken
    }

    /// A request of a client that `is_it` waits no more; false when there is none.
    pub fn withdraw(&mut self, number: u32, is_it: impl Fn(&T) -> bool) -> bool {
        let Some(client) = self.clients.get_mut(&number) else { return false };
        let Some(at) = client.waiting.iter().position(|(_, what)| is_it(what)) else { return false };
        client.waiting.remove(at);
        if client.waiting.is_empty() {
            self.asking.retain(|other| *other != number);
        }
        self.waiting -= 1;
        true
    }

    /// Requests that wait.
    pub fn len(&self) -> usize {
        self.waiting
    }

    /// True when nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Requests of one client that wait.
    pub fn waiting_of(&self, client: u32) -> usize {
        self.clients.get(&client).map_or(0, |client| client.waiting.len())
    }

    /// A request begins to wait. The client was [`set`](Scheduler::set) before.
    pub fn push(&mut self, client: u32, cost: Cost, what: T, now: Nanos) {
        let (reached, fault) = (self.reached, self.fault);
        let number = client;
        let client = self.clients.get_mut(&number).expect("a client is set before it asks");
        if client.waiting.is_empty() {
            self.asking.push(number);
            if fault != Fault::HoardIdle {
                client.share_tag = client.share_tag.max(reached);
                client.reserve_tag = client.reserve_tag.max(Nanos(now.0.saturating_sub(RESERVE_LATE_MAX.0)));
            }
        }
        client.waiting.push_back((cost, what));
        self.waiting += 1;
    }

    /// Whose turn it is of all that wait: its number and its oldest request.
    pub fn pop(&mut self, now: Nanos) -> Option<(u32, Cost, T)> {
        self.pop_of(now, |_| true)
    }

    /// Whose turn it is of those that `may` go.
    pub fn pop_of(&mut self, now: Nanos, may: impl Fn(u32) -> bool) -> Option<(u32, Cost, T)> {
        let reserved = self.next_reserved(now, |number, _| may(number));
        let by_shares = self.next_by_shares(&may)?;
        if reserved.is_none() {
            self.reached = self.clients[&by_shares].share_tag.max(self.reached);
        }
        Some(self.take(reserved.unwrap_or(by_shares), reserved.is_some(), now))
    }

    /// The oldest request of a client that is owed it, or has had less than its part lately, among those that `may` says this of: for who asks
    /// for little while others have all that may be under way.
    pub fn pop_little(&mut self, now: Nanos, may: impl Fn(u32, Cost) -> bool) -> Option<(u32, Cost, T)> {
        if let Some(owed) = self.next_reserved(now, &may) {
            return Some(self.take(owed, true, now));
        }
        let ahead = Cost(LITTLE_AHEAD * Cost::ONE.0);
        let little = self.asking().filter(|(number, client)| {
            let within = client.share_tag <= self.reached.saturating_add(client.share_of(ahead));
            within && client.waiting.front().is_some_and(|(cost, _)| may(*number, *cost))
        });
        let (chosen, _) = little.min_by_key(|(number, client)| (client.share_tag, *number))?;
        Some(self.take(chosen, false, now))
    }

    fn take(&mut self, chosen: u32, reserved: bool, now: Nanos) -> (u32, Cost, T) {
        let reached = self.reached;
        let client = self.clients.get_mut(&chosen).expect("chosen a moment ago");
        let (cost, what) = client.waiting.pop_front().expect("who is chosen waits");
        self.waiting -= 1;
        if client.waiting.is_empty() {
            self.asking.retain(|other| *other != chosen);
        }
        let step = client.share_of(cost);
        if reserved {
            self.reserved_in_row += 1;
            let owed = cost.0.saturating_mul(SECOND / Cost::ONE.0) / client.entitlement.reservation;
            let floor = Nanos(now.0.saturating_sub(RESERVE_LATE_MAX.0));
            client.reserve_tag = client.reserve_tag.max(floor) + Nanos(owed);
            let most = reached.saturating_add(client.share_of(Cost(AHEAD_MAX * Cost::ONE.0)));
            client.share_tag = client.share_tag.saturating_add(step).min(most.max(client.share_tag));
        } else {
            self.reserved_in_row = 0;
            client.share_tag = client.share_tag.saturating_add(step);
        }
        (chosen, cost, what)
    }

    fn next_reserved(&self, now: Nanos, may: impl Fn(u32, Cost) -> bool) -> Option<u32> {
        if self.reserved_in_row >= RESERVED_IN_ROW_MAX {
            return None;
        }
        let goes = |number: u32, client: &Client<T>| client.waiting.front().is_some_and(|(cost, _)| may(number, *cost));
        let owed = self.asking().filter(|(number, client)| client.is_owed(now) && goes(*number, client));
        owed.min_by_key(|(number, client)| (client.reserve_tag, *number)).map(|(number, _)| number)
    }

    fn next_by_shares(&self, may: impl Fn(u32) -> bool) -> Option<u32> {
        let those = self.asking().filter(|(number, _)| may(*number));
        those.min_by_key(|(number, client)| (client.share_tag, *number)).map(|(number, _)| number)
    }

    fn asking(&self) -> impl Iterator<Item = (u32, &Client<T>)> {
        self.asking.iter().map(|number| (*number, &self.clients[number]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scheduler(entitlements: &[(u32, u64)]) -> Scheduler<()> {
        let mut scheduler = Scheduler::default();
        for (number, (shares, reservation)) in (0..).zip(entitlements) {
            let entitlement = Entitlement { shares: *shares, reservation: *reservation };
            scheduler.set(number, entitlement, Nanos::ZERO);
        }
        scheduler
    }

    /// Turns of each of three clients out of `turns`, a millisecond apart, while those of `busy` always wait.
    fn turns(scheduler: &mut Scheduler<()>, now: &mut Nanos, turns: u32, busy: &[u32], cost: Cost) -> [u32; 3] {
        let mut had = [0; 3];
        for _ in 0..turns {
            for client in busy {
                while scheduler.waiting_of(*client) < 2 {
                    scheduler.push(*client, cost, (), *now);
                }
            }
            *now += Nanos::from_millis(1);
            let (client, ..) = scheduler.pop(*now).expect("somebody waits");
            had[client as usize] += 1;
        }
        had
    }

    #[test]
    fn turns_are_in_proportion_to_shares() {
        let (mut scheduler, mut now) = (scheduler(&[(2_000, 0), (1_000, 0), (500, 0)]), Nanos::ZERO);
        assert_eq!(turns(&mut scheduler, &mut now, 3_500, &[0, 1, 2], Cost::ONE), [2_000, 1_000, 500]);
        assert_eq!(turns(&mut scheduler, &mut now, 300, &[1, 2], Cost::ONE)[1..], [199, 100][..]);
        // Who comes back gets its part, and not what it might have had.
        let back = turns(&mut scheduler, &mut now, 350, &[0, 1, 2], Cost::ONE);
        assert!((197..=203).contains(&back[0]), "{back:?}");
    }

    #[test]
    fn a_reservation_is_met_against_shares_and_shares_beyond_it_count() {
        let (mut scheduler, mut now) = (scheduler(&[(1, 300), (10_000, 0), (10_000, 0)]), Nanos::ZERO);
        let had = turns(&mut scheduler, &mut now, 10_000, &[0, 1, 2], Cost::ONE);
        assert!((2_990..=3_060).contains(&had[0]), "{had:?}");
        // Its shares alone would give it more than it reserved.
        scheduler.set(0, Entitlement { shares: 20_000, reservation: 300 }, now);
        let had = turns(&mut scheduler, &mut now, 10_000, &[0, 1, 2], Cost::ONE);
        assert!((4_950..=5_100).contains(&had[0]), "{had:?}");
    }

    #[test]
    fn reservations_that_cannot_be_met_starve_nobody() {
        let (mut scheduler, mut now) = (scheduler(&[(1_000, 5_000), (1_000, 5_000), (1, 0)]), Nanos::ZERO);
        let had = turns(&mut scheduler, &mut now, 20_000, &[0, 1, 2], Cost::ONE);
        assert!(had[2] > 0, "{had:?}");
        assert!(had[0].abs_diff(had[1]) < 200, "{had:?}");
    }

    #[test]
    fn who_asks_for_little_goes_before_its_turn_and_no_farther_ahead_than_that() {
        let (mut scheduler, now) = (scheduler(&[(1_000, 0), (1_000, 0)]), Nanos::ZERO);
        let large = Cost(8 * Cost::ONE.0);
        scheduler.push(0, large, (), now);
        scheduler.push(0, large, (), now);
        assert_eq!(scheduler.pop(now).map(|(client, ..)| client), Some(0));
        let small = |_: u32, cost: Cost| cost <= Cost::ONE;
        assert_eq!(scheduler.pop_little(now, small), None, "what waits is large");
        for _ in 0..8 {
            scheduler.push(1, Cost::ONE, (), now);
        }
        let mut early = 0;
        while scheduler.pop_little(now, small).is_some() {
            early += 1;
        }
        assert_eq!(early, 5, "what is within four of the others, and one more");
        assert_eq!(scheduler.waiting_of(1), 3);
        // All of it was paid for.
        let order: Vec<u32> = std::iter::from_fn(|| scheduler.pop(now)).map(|(client, ..)| client).collect();
        assert_eq!(order, [1, 1, 1, 0]);
    }

    #[test]
    fn who_is_owed_goes_before_who_asks_for_little() {
        let (mut scheduler, now) = (scheduler(&[(1, 100), (1_000, 0)]), Nanos::from_secs(1));
        // Its share alone lets it wait for long.
        for _ in 0..3 {
            scheduler.push(0, Cost::ONE, (), now);
            scheduler.push(1, Cost::ONE, (), now);
        }
        let order = [(); 3].map(|()| scheduler.pop_little(now, |_, _| true).map(|(client, ..)| client));
        assert_eq!(order, [Some(0); 3]);
    }

    #[test]
    fn what_waits_of_a_client_that_leaves_comes_back() {
        let mut scheduler = Scheduler::default();
        scheduler.set(7, Entitlement { shares: 1, reservation: 0 }, Nanos::ZERO);
        for what in 0..3 {
            scheduler.push(7, Cost::ONE, what, Nanos::ZERO);
        }
        assert!(scheduler.withdraw(7, |what| *what == 1) && !scheduler.withdraw(7, |what| *what == 1));
        let left = vec![(Cost::ONE, 0), (Cost::ONE, 2)];
        assert_eq!((scheduler.remove(7), scheduler.len(), scheduler.pop(Nanos::ZERO)), (left, 0, None));
    }
}
