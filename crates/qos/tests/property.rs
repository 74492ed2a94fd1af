//! Random clients on random disks: shares, reservations, limits, arrivals and costs are drawn, and each case must hold
//! them.
//!
//! Each case is drawn from its seed. Two deliberate faults show that the checks can fail.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use qos::{Cost, Entitlement, Fault, Limiter, Limits, Scheduler};
use seam::Nanos;

/// Cases of a run.
const CASES: u64 = 10_000;
/// Nanoseconds per second.
const SECOND: u64 = 1_000_000_000;
/// Length of a case.
const CASE_TIME: Nanos = Nanos::from_secs(4);

/// Draws from a seed (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, count: u64) -> u64 {
        self.next() % count
    }

    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }
}

/// Arrival process of a client.
#[derive(Clone, Copy, Debug)]
enum Arrivals {
    /// This many requests wait at any time.
    Flood(u64),
    /// This many requests per second, at even distances.
    Rate(u64),
    /// A flood for this many milliseconds, then none for as long.
    Waves(u64),
}

#[derive(Clone, Debug)]
struct Client {
    entitlement: Entitlement,
    limits: Limits,
    arrivals: Arrivals,
    bytes: u64,
    accesses: u64,
}

impl Client {
    fn cost(&self) -> Cost {
        Cost::of(self.accesses, self.bytes)
    }
}

#[derive(Clone, Debug)]
struct Case {
    clients: Vec<Client>,
    /// Small accesses per second that the disks do in total.
    rate: u64,
    /// Requests that the disks serve in parallel.
    slots: usize,
}

fn draw(seed: u64) -> Case {
    let mut random = Random(seed);
    let rate = random.between(300, 3_000);
    let count = random.between(2, 5);
    let mut reservable = rate * 7 / 10;
    let clients = (0..count).map(|_| {
        let reservation = match random.below(3) {
            0 => random.between(0, reservable),
            _ => 0,
        };
        reservable -= reservation;
        let bytes = [4 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20][random.below(5) as usize];
        let limits = match random.below(4) {
            0 => Limits { iops: random.between(5, rate), ..Limits::default() },
            1 => Limits { bytes: random.between(bytes, bytes * rate), ..Limits::default() },
            _ => Limits::default(),
        };
        let arrivals = match random.below(4) {
            0 => Arrivals::Rate(random.between(10, rate)),
            1 => Arrivals::Waves(random.between(50, 500)),
            _ => Arrivals::Flood(random.between(32, 128)),
        };
        let shares = [100, 500, 1_000, 2_000, 5_000][random.below(5) as usize];
        let entitlement = Entitlement { shares, reservation };
        Client { entitlement, limits, arrivals, bytes, accesses: [1, 1, 1, 2, 4][random.below(5) as usize] }
    });
    Case { clients: clients.collect(), rate, slots: random.between(1, 16) as usize }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The client checks whether it sends more requests.
    Check(usize),
    /// A request of the client is done.
    Completed(usize),
}

/// Observations of one client.
#[derive(Clone, Debug, Default)]
struct Observed {
    /// When its requests entered past its limit.
    entry_times: Vec<Nanos>,
    served: u64,
    cost: Cost,
    /// A request of the client waited at all times after [`WARM_UP`].
    always_waiting: bool,
    /// Longest time between two served requests.
    longest_gap: Nanos,
    last_served_at: Nanos,
}

/// Warm-up time, in which all clients arrive.
const WARM_UP: Nanos = Nanos::from_millis(500);

fn run(case: &Case, fault: Fault) -> Result<Vec<Observed>, String> {
    let mut scheduler: Scheduler<u64> = Scheduler::with_fault(fault);
    let mut events = BinaryHeap::new();
    let mut observed: Vec<Observed> =
        vec![Observed { always_waiting: true, last_served_at: WARM_UP, ..Observed::default() }; case.clients.len()];
    let mut limiters: Vec<Limiter> = Vec::new();
    let mut queued: Vec<VecDeque<()>> = vec![VecDeque::new(); case.clients.len()];
    // Requests in the scheduler or at the disks, and the next arrival at a fixed rate, by client.
    let (mut admitted, mut next_arrival) = (vec![0_u64; case.clients.len()], vec![Nanos::ZERO; case.clients.len()]);
    // Next check of each client: with one timer a client, a check does not start another chain of checks.
    let mut timer: Vec<Nanos> = vec![Nanos::ZERO; case.clients.len()];
    let (mut busy_slots, mut outstanding) = (0, BTreeMap::new());
    let mut next_token = 0_u64;
    for (client, client_spec) in case.clients.iter().enumerate() {
        scheduler.set_client(client as u32, client_spec.entitlement, Nanos::ZERO);
        limiters.push(Limiter::with_fault(client_spec.limits, Nanos::ZERO, fault));
        events.push(Reverse((Nanos::ZERO, Event::Check(client))));
    }
    while let Some(Reverse((now, event))) = events.pop() {
        if now >= CASE_TIME {
            break;
        }
        match event {
            Event::Check(client) if now < timer[client] => {}
            Event::Check(client) => {
                let mut next_check = Nanos::MAX;
                let client_spec = &case.clients[client];
                match client_spec.arrivals {
                    Arrivals::Flood(depth) => (queued[client].len() as u64 + admitted[client]..depth)
                        .for_each(|_| queued[client].push_back(())),
                    Arrivals::Waves(millis) => {
                        let wave = now.as_millis() / millis;
                        if wave.is_multiple_of(2) {
                            (queued[client].len() as u64 + admitted[client]..64)
                                .for_each(|_| queued[client].push_back(()));
                        } else {
                            next_check = Nanos::from_millis((wave + 1) * millis);
                        }
                    }
                    Arrivals::Rate(rate) => {
                        while next_arrival[client] <= now {
                            queued[client].push_back(());
                            next_arrival[client] += Nanos(SECOND / rate);
                        }
                        next_check = next_arrival[client];
                    }
                }
                while !queued[client].is_empty() {
                    let next = limiters[client].next_at(client_spec.bytes);
                    if next > now {
                        next_check = next_check.min(next);
                        break;
                    }
                    limiters[client].take(now, client_spec.bytes);
                    queued[client].pop_front();
                    admitted[client] += 1;
                    observed[client].entry_times.push(now);
                    scheduler.push(client as u32, client_spec.cost(), next_token, now);
                    next_token += 1;
                }
                timer[client] = next_check;
                if next_check < Nanos::MAX {
                    events.push(Reverse((next_check, Event::Check(client))));
                }
            }
            Event::Completed(client) => {
                busy_slots -= 1;
                admitted[client] -= 1;
                timer[client] = now;
                events.push(Reverse((now, Event::Check(client))));
            }
        }
        while busy_slots < case.slots && !scheduler.is_empty() {
            let (client, cost, token) =
                scheduler.pop(now).ok_or("a slot is free and a request waits, but none is chosen")?;
            if outstanding.insert(token, client).is_some() {
                return Err(format!("request {token} is served twice"));
            }
            let client = client as usize;
            busy_slots += 1;
            let time = cost.0 * case.slots as u64 * (SECOND / 1_000) / case.rate;
            events.push(Reverse((now + Nanos(time), Event::Completed(client))));
            if now >= WARM_UP {
                let observed = &mut observed[client];
                observed.longest_gap = observed.longest_gap.max(now.since(observed.last_served_at));
                (observed.served, observed.cost, observed.last_served_at) =
                    (observed.served + 1, observed.cost + cost, now);
            }
        }
        for (client, observed) in (0..).zip(&mut observed) {
            observed.always_waiting &= scheduler.waiting_of(client) > 0 || now < WARM_UP;
        }
    }
    Ok(observed)
}

fn check(case: &Case, observed: &[Observed]) -> Result<(), String> {
    let seconds = CASE_TIME.since(WARM_UP).as_secs_f64();
    let largest_cost = case.clients.iter().map(|client_spec| client_spec.cost().as_accesses()).fold(0.0, f64::max);
    for (client, (client_spec, observed)) in case.clients.iter().zip(observed).enumerate() {
        check_limits(client_spec, observed).map_err(|text| format!("client {client}: {text}"))?;
        if !observed.always_waiting {
            continue;
        }
        let reservation = client_spec.entitlement.reservation as f64;
        let rate = observed.cost.as_accesses() / seconds;
        // Tolerance: one request more or less, and one of each slot that others hold when the request is due.
        let tolerance = (client_spec.cost().as_accesses() + largest_cost) * (1 + case.slots) as f64 / seconds;
        if rate < reservation * 0.95 - tolerance {
            return Err(format!("client {client} has {rate:.0} a second of {reservation} reserved"));
        }
        let shares: u64 = case.clients.iter().map(|client_spec| u64::from(client_spec.entitlement.shares)).sum();
        let fraction = f64::from(client_spec.entitlement.shares) / shares as f64;
        // Reservations are served first.
        let unreserved =
            case.rate - case.clients.iter().map(|client_spec| client_spec.entitlement.reservation).sum::<u64>();
        let guaranteed = fraction * unreserved as f64 * seconds - tolerance * seconds;
        if observed.cost.as_accesses() < guaranteed * 0.9 {
            return Err(format!("client {client} starves: {:.0} of {guaranteed:.0}", observed.cost.as_accesses()));
        }
    }
    let backlogged = (0..case.clients.len()).filter(|client| observed[*client].always_waiting);
    let backlogged: Vec<usize> = backlogged.collect();
    for (left, right) in backlogged.iter().flat_map(|left| backlogged.iter().map(move |right| (*left, *right))) {
        // A reservation may give more than the shares, never less.
        if case.clients[right].entitlement.reservation > 0 || left == right {
            continue;
        }
        let accesses_per_share =
            |client: usize| observed[client].cost.as_accesses() / f64::from(case.clients[client].entitlement.shares);
        let tolerance = |client: usize| {
            2.0 * case.clients[client].cost().as_accesses() / f64::from(case.clients[client].entitlement.shares)
        };
        if accesses_per_share(left) * 1.05 + tolerance(left) + tolerance(right) < accesses_per_share(right) {
            return Err(format!(
                "client {left} has {:.3} a share, client {right} {:.3}",
                accesses_per_share(left),
                accesses_per_share(right)
            ));
        }
    }
    Ok(())
}

fn check_limits(client_spec: &Client, observed: &Observed) -> Result<(), String> {
    let Limits { iops, bytes, .. } = client_spec.limits;
    let pieces = client_spec.bytes.div_ceil(qos::LIMIT_REQUEST_BYTES).max(1);
    for (limit, units_each) in [(iops, pieces), (bytes, client_spec.bytes)] {
        if limit == 0 {
            continue;
        }
        let allowed = limit + (limit / 50).max(units_each);
        let mut first = 0;
        for (last, at) in observed.entry_times.iter().enumerate() {
            while at.since(observed.entry_times[first]).0 >= SECOND {
                first += 1;
            }
            let within = (last - first + 1) as u64 * units_each;
            if within > allowed {
                return Err(format!("{within} in a second of {limit} allowed"));
            }
        }
        let served = observed.entry_times.len() as u64 * units_each;
        let is_saturated = matches!(client_spec.arrivals, Arrivals::Flood(_)) && observed.always_waiting;
        if is_saturated && (served as f64) > limit as f64 * CASE_TIME.as_secs_f64() * 1.02 + 2.0 * units_each as f64 {
            return Err(format!("{served} in {CASE_TIME:?} of {limit} a second"));
        }
    }
    Ok(())
}

fn failures(fault: Fault, cases: u64) -> Vec<String> {
    let failures = (1..=cases).filter_map(|seed| {
        let case = draw(seed);
        let result = run(&case, fault).and_then(|observed| check(&case, &observed));
        result.err().map(|text| format!("seed {seed}: {text}\n{case:?}"))
    });
    failures.take(5).collect()
}

#[test]
fn every_client_gets_its_entitlement_under_random_load() {
    let failures = failures(Fault::None, CASES);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn checks_find_scheduler_that_credits_idle_time() {
    assert!(!failures(Fault::HoardIdle, 1_000).is_empty());
}

#[test]
fn checks_find_limiter_that_ignores_its_limit() {
    assert!(!failures(Fault::IgnoreLimit, 1_000).is_empty());
}
