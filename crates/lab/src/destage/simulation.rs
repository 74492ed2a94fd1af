//! The write cache in operation: clients, the cache, and the array.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use seam::Nanos;
use seam::model::{Access, Array, ArraySpec};

use super::dirty_blocks::{DirtyBlocks, Run, stripe_end};
use super::loads::Request;
use super::pace::Pace;
use super::{BLOCK_BYTES, CACHE_TIME, DestageState, Load, Order, Policy};

/// Time without requests after which clients count as idle.
const IDLE_AFTER: Nanos = Nanos::from_millis(200);
/// Period at which destage looks at the time.
const TICK: Nanos = Nanos::from_millis(10);
/// Writes in flight during the final destage of all dirty data.
const DRAIN_WRITES: usize = 32;

/// Time at which each request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// At its arrival time.
    Recorded,
    /// As soon as one of so many requests in flight ends.
    Depth(u32),
}

/// The storage of a simulation.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The array. It is as large as the volume, over the whole stroke of its disks.
    pub array: ArraySpec,
    /// When requests are sent.
    pub arrival: Arrival,
}

/// Results of a simulation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SimulationResults {
    /// Latencies of the reads in microseconds, sorted.
    pub read_us: Vec<u32>,
    /// Latencies of the writes, likewise.
    pub write_us: Vec<u32>,
    /// Reads that the cache served.
    pub read_hits: u64,
    /// Writes to the array, the final destage of all dirty data included.
    pub array_writes: u64,
    /// Blocks of these.
    pub array_written_blocks: u64,
    /// Blocks that clients wrote.
    pub written_blocks: u64,
    /// Time from the first request to the last completion.
    pub elapsed: Nanos,
    /// Busy time of all disks until then.
    pub busy: Nanos,
    /// Busy time of all disks during the final destage of all dirty data.
    pub drain_busy: Nanos,
}

/// A request of the array.
#[derive(Clone, Copy)]
enum Pending {
    Read { began: Nanos },
    Destage(Run),
    Eviction(Run),
}

/// A write of a client that waits for room.
#[derive(Clone, Copy)]
struct WaitingWrite {
    request: Request,
    began: Nanos,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Send,
    Tick,
}

struct Simulation<'a> {
    requests: &'a [Request],
    arrival: Arrival,
    capacity_blocks: u64,
    policy: Policy,
    stripe_blocks: u64,
    order: Box<dyn Order>,
    pace: Box<dyn Pace>,
    array: Array,
    now: Nanos,
    next_request: usize,
    ended: usize,
    timers: BinaryHeap<Reverse<(Nanos, u64, Timer)>>,
    timer_count: u64,
    /// Requests of the array by token.
    pending: Vec<Option<Pending>>,
    free_tokens: Vec<usize>,
    completed: Vec<u64>,
    waiting: VecDeque<WaitingWrite>,
    dirty: DirtyBlocks,
    reads_in_flight: u64,
    destage_in_flight: u64,
    evictions_in_flight: u64,
    /// True if a write found no room since the last eviction.
    needs_eviction: bool,
    last_request: Nanos,
    last_read: Option<Nanos>,
    results: SimulationResults,
}

/// Runs a load with a policy.
pub fn simulate(load: &Load, setup: &Setup, policy: Policy) -> SimulationResults {
    let array = ArraySpec { read_ahead_bytes: Some(64 << 10), ..setup.array }.fitted(load.volume_blocks * BLOCK_BYTES);
    let stripe_blocks = array.stripe_bytes() / BLOCK_BYTES;
    let mut simulation = Simulation {
        requests: &load.requests,
        arrival: setup.arrival,
        capacity_blocks: load.cache_blocks,
        policy,
        stripe_blocks,
        order: policy.order(stripe_blocks),
        pace: policy.pace(&array),
        array: Array::new(array).expect("the array was checked before"),
        now: Nanos::ZERO,
        next_request: 0,
        ended: 0,
        timers: BinaryHeap::new(),
        timer_count: 0,
        pending: Vec::new(),
        free_tokens: Vec::new(),
        completed: Vec::new(),
        waiting: VecDeque::new(),
        dirty: DirtyBlocks::default(),
        reads_in_flight: 0,
        destage_in_flight: 0,
        evictions_in_flight: 0,
        needs_eviction: false,
        last_request: Nanos::ZERO,
        last_read: None,
        results: SimulationResults::default(),
    };
    simulation.run();
    simulation.drain();
    let mut results = simulation.results;
    results.read_us.sort_unstable();
    results.write_us.sort_unstable();
    results
}

impl Simulation<'_> {
    fn run(&mut self) {
        match self.arrival {
            Arrival::Recorded => {
                if let Some(first) = self.requests.first() {
                    self.set_timer(first.time, Timer::Send);
                }
            }
            Arrival::Depth(depth) => (0..depth).for_each(|_| self.set_timer(Nanos::ZERO, Timer::Send)),
        }
        self.set_timer(TICK, Timer::Tick);
        while self.ended < self.requests.len() {
            self.advance();
            while let Some(Reverse((_, _, timer))) = self.timers.peek().copied().filter(|due| due.0.0 <= self.now) {
                self.timers.pop();
                match timer {
                    Timer::Send => self.send_next(),
                    Timer::Tick => self.set_timer(self.now + TICK, Timer::Tick),
                }
            }
            self.admit_writes();
            self.destage();
            self.evict();
        }
        (self.results.elapsed, self.results.busy) = (self.now, self.array.busy());
    }

    /// Moves to the next event and completes requests of the array.
    fn advance(&mut self) {
        let timer = self.timers.peek().map(|Reverse((time, _, _))| *time);
        let next = timer.into_iter().chain(self.array.next_event()).min().expect("a tick is always due");
        self.now = self.now.max(next);
        let mut completed = std::mem::take(&mut self.completed);
        self.array.advance(self.now, &mut completed);
        for token in completed.drain(..) {
            self.complete(token as usize);
        }
        self.completed = completed;
        self.order.advance_tail(&self.dirty, self.now);
    }

    fn complete(&mut self, token: usize) {
        self.free_tokens.push(token);
        match self.pending[token].take().expect("a completed request was sent") {
            Pending::Read { began } => {
                self.reads_in_flight -= 1;
                self.last_read = Some(self.now);
                self.end_request(false, began, self.now);
            }
            Pending::Destage(run) => {
                self.destage_in_flight -= 1;
                self.dirty.complete(run);
            }
            Pending::Eviction(run) => {
                self.evictions_in_flight -= 1;
                self.dirty.complete(run);
            }
        }
    }

    fn set_timer(&mut self, at: Nanos, timer: Timer) {
        self.timer_count += 1;
        self.timers.push(Reverse((at, self.timer_count, timer)));
    }

    fn send_next(&mut self) {
        let Some(request) = self.requests.get(self.next_request).copied() else { return };
        self.next_request += 1;
        if self.arrival == Arrival::Recorded
            && let Some(next) = self.requests.get(self.next_request)
        {
            self.set_timer(next.time.max(self.now), Timer::Send);
        }
        self.last_request = self.now;
        if request.is_write {
            self.waiting.push_back(WaitingWrite { request, began: self.now });
        } else if (request.first..request.first + request.blocks).all(|block| self.dirty.contains(block)) {
            self.results.read_hits += 1;
            self.end_request(false, self.now, self.now + CACHE_TIME);
        } else {
            self.reads_in_flight += 1;
            let pending = Pending::Read { began: self.now };
            self.submit(pending, Access::Read, Run { first: request.first, blocks: request.blocks });
        }
    }

    fn submit(&mut self, pending: Pending, access: Access, run: Run) {
        let token = self.free_tokens.pop().unwrap_or_else(|| {
            self.pending.push(None);
            self.pending.len() - 1
        });
        self.pending[token] = Some(pending);
        self.array.submit(self.now, token as u64, access, run.first * BLOCK_BYTES, run.blocks * BLOCK_BYTES);
    }

    /// Records the end of a client's request; in a closed loop the next one follows.
    fn end_request(&mut self, is_write: bool, began: Nanos, ended: Nanos) {
        self.ended += 1;
        let micros = u32::try_from(ended.since(began).as_micros()).unwrap_or(u32::MAX);
        if is_write {
            self.results.write_us.push(micros)
        } else {
            self.results.read_us.push(micros)
        }
        if matches!(self.arrival, Arrival::Depth(_)) {
            self.set_timer(ended, Timer::Send);
        }
    }

    /// Takes waiting writes into the cache while there is room. A write larger than the cache is taken in when nothing
    /// else is dirty.
    fn admit_writes(&mut self) {
        while let Some(WaitingWrite { request, began }) = self.waiting.front().copied() {
            let blocks = request.first..request.first + request.blocks;
            let new = blocks.clone().filter(|block| !self.dirty.contains(*block)).count() as u64;
            let needed = self.order.blocks_needed(request.blocks, new);
            let used = self.order.used_blocks(&self.dirty);
            if used + needed > self.capacity_blocks && self.dirty.occupied() > 0 {
                self.needs_eviction = true;
                return;
            }
            self.waiting.pop_front();
            self.results.written_blocks += request.blocks;
            for block in blocks {
                let was_dirty = self.dirty.get(block).is_some();
                let was_held = self.dirty.write(block, self.now);
                self.order.record_write(block, was_held, was_dirty);
            }
            self.order.advance_tail(&self.dirty, self.now);
            self.end_request(true, began, self.now + CACHE_TIME);
        }
    }

    fn destage_state(&self) -> DestageState {
        DestageState {
            now: self.now,
            used_blocks: self.order.used_blocks(&self.dirty),
            capacity_blocks: self.capacity_blocks,
            writes_in_flight: self.destage_in_flight,
            last_request: self.last_request,
            last_read: if self.reads_in_flight > 0 { Some(self.now) } else { self.last_read },
            oldest_since: self.order.oldest_since(&self.dirty),
            is_idle: self.waiting.is_empty() && self.now.since(self.last_request) >= IDLE_AFTER,
        }
    }

    /// Sends the writes that the pace grants.
    fn destage(&mut self) {
        loop {
            let state = self.destage_state();
            let blocks_max = self.pace.blocks_max(&state);
            if blocks_max == 0 {
                return;
            }
            let Some(run) = self.order.next_run(&self.dirty, &state, blocks_max) else {
                return self.pace.record_exhausted(&state);
            };
            self.pace.record_start(run.blocks);
            self.destage_in_flight += 1;
            self.start_write(run, Pending::Destage(run));
        }
    }

    fn start_write(&mut self, run: Run, pending: Pending) {
        self.dirty.start(run);
        self.order.record_start(run);
        self.results.array_writes += 1;
        self.results.array_written_blocks += run.blocks;
        self.submit(pending, Access::Write, run);
    }

    /// Writes a batch of the oldest blocks if a client's write found no room and the policy evicts.
    fn evict(&mut self) {
        let count = self.policy.eviction_blocks();
        if count == 0 || !self.needs_eviction || self.evictions_in_flight > 0 {
            return;
        }
        self.needs_eviction = false;
        let mut batch: VecDeque<u64> = self.dirty.oldest_batch(count, |_| true).into();
        while let Some(run) = self.dirty.take_run(&mut batch, self.stripe_blocks, u64::MAX) {
            self.evictions_in_flight += 1;
            self.start_write(run, Pending::Eviction(run));
        }
    }

    /// Writes the rest of the dirty blocks by address, so that no policy gains by what it leaves.
    fn drain(&mut self) {
        let before = self.array.busy();
        let mut position = 0;
        while self.dirty.occupied() > 0 {
            while self.array.next_event().is_some_and(|event| event <= self.now) {
                self.advance();
            }
            while (self.destage_in_flight as usize) < DRAIN_WRITES
                && let Some(first) = self.dirty.first_writable(position, u64::MAX)
            {
                let run = self.dirty.run(first, stripe_end(first, self.stripe_blocks), |_, _| true);
                position = run.end();
                self.destage_in_flight += 1;
                self.start_write(run, Pending::Destage(run));
            }
            if let Some(event) = self.array.next_event() {
                self.now = self.now.max(event);
            } else {
                position = 0;
            }
        }
        self.results.drain_busy = Nanos(self.array.busy().0 - before.0);
    }
}

#[cfg(test)]
mod tests {
    use seam::model::{DiskType, RaidLevel};

    use super::*;

    fn setup(arrival: Arrival) -> Setup {
        Setup { array: ArraySpec::new(RaidLevel::Raid5, 5, DiskType::Sas15k), arrival }
    }

    fn overwrites(count: u64) -> Load {
        let request = |number: u64| Request {
            time: Nanos::from_millis(number),
            is_write: !number.is_multiple_of(4),
            first: number * 7919 % 2_048,
            blocks: 2,
        };
        let requests = (0..count).map(request).collect();
        Load { name: "overwrites".to_owned(), requests, volume_blocks: 65_536, cache_blocks: 1_024 }
    }

    #[test]
    fn every_policy_writes_all_data_and_is_deterministic() {
        let load = overwrites(4_000);
        for arrival in [Arrival::Recorded, Arrival::Depth(8)] {
            for (name, policy) in Policy::ALL {
                let results = simulate(&load, &setup(arrival), policy);
                assert_eq!((results.read_us.len(), results.write_us.len()), (1_000, 3_000), "{name}");
                assert_eq!(results.written_blocks, 6_000, "{name}");
                let written = results.array_written_blocks;
                // The writes touch blocks 1 to 2,048.
                assert!((2_048..=6_000).contains(&written), "{name} writes {written} blocks");
                assert!(results.array_writes <= written && results.busy > Nanos::ZERO, "{name}");
                assert_eq!(results, simulate(&load, &setup(arrival), policy), "{name}");
            }
        }
    }

    #[test]
    fn write_waits_for_room_in_a_full_cache() {
        let load = Load { cache_blocks: 64, ..overwrites(2_000) };
        for (name, policy) in Policy::ALL {
            let results = simulate(&load, &setup(Arrival::Depth(16)), policy);
            let slowest = *results.write_us.last().expect("there are writes");
            assert!(slowest > 1_000, "{name}: no write waited for the array");
        }
    }

    #[test]
    fn overwrite_in_the_cache_costs_the_array_one_write() {
        let requests: Vec<Request> = (0..1_000)
            .map(|number| Request { time: Nanos::from_millis(number), is_write: number > 0, first: 5, blocks: 1 })
            .collect();
        let load = Load { name: "one block".to_owned(), requests, volume_blocks: 4_096, cache_blocks: 1_000_000 };
        let results = simulate(&load, &setup(Arrival::Recorded), Policy::Wow);
        assert_eq!((results.array_writes, results.written_blocks, results.read_hits), (1, 999, 0));
    }
}
