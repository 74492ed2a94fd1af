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
const SECOND: u64 = 1_000_000_000;
/// Length of a case.
const TIME: Nanos = Nanos::from_secs(4);

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
    /// This many requests a second, at even distances.
    Rate(u64),
    /// A flood for this many milliseconds, then none for as long.
    Waves(u64),
}

#[derive(Clone, Debug)]
struct Asker {
    entitlement: Entitlement,
    limits: Limits,
    arrivals: Arrivals,
    bytes: u64,
    accesses: u64,
}

impl Asker {
    fn cost(&self) -> Cost {
        Cost::of(self.accesses, self.bytes)
    }
}

#[derive(Clone, Debug)]
struct Case {
    askers: Vec<Asker>,
    /// Small accesses a second that the disks do in total.
    rate: u64,
    /// Requests that the disks serve in parallel.
    slots: usize,
}

fn draw(seed: u64) -> Case {
    let mut random = Random(seed);
    let rate = random.between(300, 3_000);
    let count = random.between(2, 5);
    let mut reservable = rate * 7 / 10;
    let askers = (0..count).map(|_| {
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
        Asker { entitlement, limits, arrivals, bytes, accesses: [1, 1, 1, 2, 4][random.below(5) as usize] }
    });
    Case { askers: askers.collect(), rate, slots: random.between(1, 16) as usize }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The client checks whether it sends more requests.
    Ask(usize),
    /// A request of the client is done.
    Done(usize),
}

/// Observations of one client.
#[derive(Clone, Debug, Default)]
struct Had {
    /// When its requests entered past its limit.
    came: Vec<Nanos>,
    served: u64,
    cost: Cost,
    /// A request of the client waited at all times after [`SETTLED`].
    always_asked: bool,
    longest_gap: Nanos,
    last: Nanos,
}

/// Warm-up time, in which all clients arrive.
const SETTLED: Nanos = Nanos::from_millis(500);

fn run(case: &Case, fault: Fault) -> Result<Vec<Had>, String> {
    let mut scheduler: Scheduler<u64> = Scheduler::with_fault(fault);
    let mut events = BinaryHeap::new();
    let mut had: Vec<Had> = vec![Had { always_asked: true, last: SETTLED, ..Had::default() }; case.askers.len()];
    let mut limiters: Vec<Limiter> = Vec::new();
    let mut outside: Vec<VecDeque<()>> = vec![VecDeque::new(); case.askers.len()];
    let (mut inside, mut due) = (vec![0_u64; case.askers.len()], vec![Nanos::ZERO; case.askers.len()]);
    // Next check of each client: with one timer a client, a check does not start another chain of checks.
    let mut timer: Vec<Nanos> = vec![Nanos::ZERO; case.askers.len()];
    let (mut busy, mut under_way) = (0, BTreeMap::new());
    let mut number = 0_u64;
    for (client, asker) in case.askers.iter().enumerate() {
        scheduler.set(client as u32, asker.entitlement, Nanos::ZERO);
        limiters.push(Limiter::with_fault(asker.limits, Nanos::ZERO, fault));
        events.push(Reverse((Nanos::ZERO, Event::Ask(client))));
    }
    while let Some(Reverse((now, event))) = events.pop() {
        if now >= TIME {
            break;
        }
        match event {
            Event::Ask(client) if now < timer[client] => {}
            Event::Ask(client) => {
                let mut again = Nanos::MAX;
                let asker = &case.askers[client];
                match asker.arrivals {
                    Arrivals::Flood(depth) => (outside[client].len() as u64 + inside[client]..depth)
                        .for_each(|_| outside[client].push_back(())),
                    Arrivals::Waves(millis) => {
                        let wave = now.as_millis() / millis;
                        if wave.is_multiple_of(2) {
                            (outside[client].len() as u64 + inside[client]..64)
                                .for_each(|_| outside[client].push_back(()));
                        } else {
                            again = Nanos::from_millis((wave + 1) * millis);
                        }
                    }
                    Arrivals::Rate(rate) => {
                        while due[client] <= now {
                            outside[client].push_back(());
                            due[client] += Nanos(SECOND / rate);
                        }
                        again = due[client];
                    }
                }
                while !outside[client].is_empty() {
                    let next = limiters[client].next_at(asker.bytes);
                    if next > now {
                        again = again.min(next);
                        break;
                    }
                    limiters[client].take(now, asker.bytes);
                    outside[client].pop_front();
                    inside[client] += 1;
                    had[client].came.push(now);
                    scheduler.push(client as u32, asker.cost(), number, now);
                    number += 1;
                }
                timer[client] = again;
                if again < Nanos::MAX {
                    events.push(Reverse((again, Event::Ask(client))));
                }
            }
            Event::Done(client) => {
                busy -= 1;
                inside[client] -= 1;
                timer[client] = now;
                events.push(Reverse((now, Event::Ask(client))));
            }
        }
        while busy < case.slots && !scheduler.is_empty() {
            let (client, cost, token) = scheduler.pop(now).ok_or("a slot is free, a request waits, and none goes")?;
            if under_way.insert(token, client).is_some() {
                return Err(format!("request {token} is served twice"));
            }
            let client = client as usize;
            busy += 1;
            let time = cost.0 * case.slots as u64 * (SECOND / 1_000) / case.rate;
            events.push(Reverse((now + Nanos(time), Event::Done(client))));
            if now >= SETTLED {
                let had = &mut had[client];
                had.longest_gap = had.longest_gap.max(now.since(had.last));
                (had.served, had.cost, had.last) = (had.served + 1, had.cost + cost, now);
            }
        }
        for (client, had) in (0..).zip(&mut had) {
            had.always_asked &= scheduler.waiting_of(client) > 0 || now < SETTLED;
        }
    }
    Ok(had)
}

fn check(case: &Case, had: &[Had]) -> Result<(), String> {
    let seconds = TIME.since(SETTLED).as_secs_f64();
    let dearest = case.askers.iter().map(|asker| asker.cost().as_accesses()).fold(0.0, f64::max);
    for (client, (asker, had)) in case.askers.iter().zip(had).enumerate() {
        check_limits(asker, had).map_err(|text| format!("client {client}: {text}"))?;
        if !had.always_asked {
            continue;
        }
        let reserved = asker.entitlement.reservation as f64;
        let rate = had.cost.as_accesses() / seconds;
        // Tolerance: one request more or less, and one of each slot that others hold when the request is due.
        let grain = (asker.cost().as_accesses() + dearest) * (1 + case.slots) as f64 / seconds;
        if rate < reserved * 0.95 - grain {
            return Err(format!("client {client} has {rate:.0} a second of {reserved} reserved"));
        }
        let shares: u64 = case.askers.iter().map(|asker| u64::from(asker.entitlement.shares)).sum();
        let part = f64::from(asker.entitlement.shares) / shares as f64;
        // Reservations are served first.
        let left = case.rate - case.askers.iter().map(|asker| asker.entitlement.reservation).sum::<u64>();
        let least = part * left as f64 * seconds - grain * seconds;
        if had.cost.as_accesses() < least * 0.9 {
            return Err(format!("client {client} starves: {:.0} of {least:.0}", had.cost.as_accesses()));
        }
    }
    let fair = (0..case.askers.len()).filter(|client| had[*client].always_asked);
    let fair: Vec<usize> = fair.collect();
    for (one, other) in fair.iter().flat_map(|one| fair.iter().map(move |other| (*one, *other))) {
        // A reservation may give more than the shares, never less.
        if case.askers[other].entitlement.reservation > 0 || one == other {
            continue;
        }
        let of = |client: usize| had[client].cost.as_accesses() / f64::from(case.askers[client].entitlement.shares);
        let grain = |client: usize| {
            2.0 * case.askers[client].cost().as_accesses() / f64::from(case.askers[client].entitlement.shares)
        };
        if of(one) * 1.05 + grain(one) + grain(other) < of(other) {
            return Err(format!("client {one} has {:.3} a share, client {other} {:.3}", of(one), of(other)));
        }
    }
    Ok(())
}

fn check_limits(asker: &Asker, had: &Had) -> Result<(), String> {
    let Limits { iops, bytes, .. } = asker.limits;
    let pieces = asker.bytes.div_ceil(qos::LIMIT_REQUEST_BYTES).max(1);
    for (limit, each) in [(iops, pieces), (bytes, asker.bytes)] {
        if limit == 0 {
            continue;
        }
        let most = limit + (limit / 50).max(each);
        let mut first = 0;
        for (last, at) in had.came.iter().enumerate() {
            while at.since(had.came[first]).0 >= SECOND {
                first += 1;
            }
            let within = (last - first + 1) as u64 * each;
            if within > most {
                return Err(format!("{within} in a second of {limit} allowed"));
            }
        }
        let all = had.came.len() as u64 * each;
        let ever = matches!(asker.arrivals, Arrivals::Flood(_)) && had.always_asked;
        if ever && (all as f64) > limit as f64 * TIME.as_secs_f64() * 1.02 + 2.0 * each as f64 {
            return Err(format!("{all} in {TIME:?} of {limit} a second"));
        }
    }
    Ok(())
}

fn failures(fault: Fault, cases: u64) -> Vec<String> {
    let each = (1..=cases).filter_map(|seed| {
        let case = draw(seed);
        let result = run(&case, fault).and_then(|had| check(&case, &had));
        result.err().map(|text| format!("seed {seed}: {text}\n{case:?}"))
    });
    each.take(5).collect()
}

#[test]
fn every_client_gets_its_entitlement_under_random_load() {
    let failures = failures(Fault::None, CASES);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn checks_find_scheduler_that_hoards_idle_time() {
    assert!(!failures(Fault::HoardIdle, 1_000).is_empty());
}

#[test]
fn checks_find_limiter_that_ignores_its_limit() {
    assert!(!failures(Fault::IgnoreLimit, 1_000).is_empty());
}
