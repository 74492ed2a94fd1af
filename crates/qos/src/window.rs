//! When disks that several volumes share are congested, and how much may be under way there then.
//!
//! Latency says so: past the threshold what is under way is held to a window that shrinks while latency is above it and grows
//! while it is below (PARDA, Gulati and others, FAST 2009). Below it, nobody waits for anybody.

use std::collections::BTreeMap;

use seam::Nanos;

use crate::Cost;
use crate::throughput::Throughput;

/// How often it looks.
const LOOK_EVERY: Nanos = Nanos::from_millis(100);
/// Fewer ends say nothing, unless a whole second had no more.
const ENDS_MIN: u64 = 8;
/// So many looks in a row above the threshold are congestion.
const ABOVE_IN_ROW: u32 = 2;
/// So long without anybody who waits, below the threshold, is the end of it.
const CALM: Nanos = Nanos::from_secs(1);
/// Most of the way to where latency says that the window belongs that it goes in one look.
const GAIN: f64 = 0.25;
/// Never fewer small accesses under way than this.
const SIZE_MIN: Cost = Cost(2_000);
/// Where the threshold is to be found and nothing is known yet.
const AUTO_FIRST: Nanos = Nanos::from_millis(30);
/// A threshold that is found lies between these.
const AUTO_MIN: Nanos = Nanos(500_000);
const AUTO_MAX: Nanos = Nanos::from_millis(100);
/// While congested a larger window is tried now and then, for the disks may do more by now than was seen.
const TRY_EVERY: Nanos = Nanos::from_secs(30);
const TRY_FOR: Nanos = Nanos::from_millis(500);

/// Latency past which shares count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threshold {
    /// This one; zero: all latencies are past it, from the beginning.
    Latency(Nanos),
    /// Found from where throughput stops growing, and found anew as that changes.
    Auto,
}

/// What is under way at disks that several share, and whether that is too much.
pub struct Window {
    threshold: Threshold,
    throughput: Throughput,
    /// What may be under way; `None`: not congested.
    size: Option<Cost>,
    under_way: Cost,
    /// Since the last look.
    looked: Nanos,
    ends: u64,
    /// Of each client: how many ended, and what they took together.
    latencies: BTreeMap<u32, (u64, u64)>,
    done: Cost,
    /// What was under way, times nanoseconds, up to `measured`; and how long anything was.
    area: u128,
    busy: Nanos,
    measured: Nanos,
    /// Somebody had to wait since the last look.
    full: bool,
    above: u32,
    /// Since then nobody waits and latency is below the threshold.
    calm_since: Nanos,
    /// A larger window was tried last, and is tried until then.
    tried: Nanos,
    trying_until: Nanos,
    latency: Nanos,
    rate: f64,
}

impl Window {
    /// Not congested, but for a threshold that everything is past.
    pub fn new(threshold: Threshold, now: Nanos) -> Window {
        let always = threshold == Threshold::Latency(Nanos::ZERO);
        Window {
            threshold,
            throughput: Throughput::default(),
            size: always.then_some(SIZE_MIN),
            under_way: Cost::default(),
            looked: now,
            ends: 0,
            latencies: BTreeMap::new(),
            done: Cost::default(),
            area: 0,
            busy: Nanos::ZERO,
            measured: now,
            full: false,
            above: 0,
            calm_since: now,
            tried: now,
            trying_until: now,
            latency: Nanos::ZERO,
            rate: 0.0,
        }
    }

    /// Another threshold from now on.
    pub fn set_threshold(&mut self, threshold: Threshold) {
        self.threshold = threshold;
    }

    /// The threshold that was asked for.
    pub fn asked_threshold(&self) -> Threshold {
        self.threshold
    }

    /// The threshold in force.
    pub fn threshold(&self) -> Nanos {
        match self.threshold {
            Threshold::Latency(latency) => latency,
            Threshold::Auto => match self.throughput.knee(self.measured) {
                Some(knee) => knee.max(AUTO_MIN).min(AUTO_MAX),
                None => AUTO_FIRST,
            },
        }
    }

    /// True while what is under way is held to a window.
    pub fn is_congested(&self) -> bool {
        self.size.is_some()
    }

    /// What may be under way while congested.
    pub fn size(&self) -> Option<Cost> {
        self.size
    }

    /// What is under way.
    pub fn under_way(&self) -> Cost {
        self.under_way
    }

    /// Latency at the last look, the mean of the clients' means, and small accesses a second then.
    pub fn lately(&self) -> (Nanos, f64) {
        (self.latency, self.rate)
    }

    /// The greatest rate that was seen in the last minutes, in small accesses a second.
    pub fn greatest_rate(&self) -> Option<f64> {
        self.throughput.greatest(self.measured)
    }

    /// True when one more may go beside what is not counted; the last one may be larger than the rest of the window.
    pub fn has_room_beside(&self, uncounted: Cost) -> bool {
        self.size.is_none_or(|size| self.under_way - uncounted < size)
    }

    /// Somebody has to wait.
    pub fn note_full(&mut self) {
        self.full = true;
    }

    /// A request goes to the disks.
    pub fn begin(&mut self, cost: Cost, now: Nanos) {
        self.measure(now);
        self.under_way += cost;
    }

    /// A request of `client` that went at `began` came back. `shared`: more than one ask for something; who has the disks alone is held to nothing.
    pub fn end(&mut self, client: u32, cost: Cost, began: Nanos, now: Nanos, shared: bool) {
        self.measure(now);
        self.under_way = self.under_way - cost;
        self.ends += 1;
        let (ends, took) = self.latencies.entry(client).or_default();
        (*ends, *took) = (*ends + 1, took.saturating_add(now.since(began).0));
        self.done += cost;
        let spent = now.since(self.looked);
        if spent >= LOOK_EVERY && (self.ends >= ENDS_MIN || spent.0 >= 10 * LOOK_EVERY.0) {
            self.look(now, spent, shared);
        }
    }

    /// Looks whether nothing has been under way for so long that there is no congestion any more: who ends nothing looks at nothing.
    pub fn rest(&mut self, now: Nanos) {
        let is_held = self.threshold != Threshold::Latency(Nanos::ZERO);
        if is_held && self.under_way == Cost::default() && now.since(self.measured) >= CALM {
            self.size = None;
        }
    }

    /// A request that had begun was never sent.
    pub fn cancel(&mut self, cost: Cost, now: Nanos) {
        self.measure(now);
        self.under_way = self.under_way - cost;
    }

    fn measure(&mut self, now: Nanos) {
        self.area += u128::from(self.under_way.0) * u128::from(now.since(self.measured).0);
        if self.under_way > Cost::default() {
            self.busy += now.since(self.measured);
        }
        self.measured = self.measured.max(now);
    }

    fn look(&mut self, now: Nanos, spent: Nanos, shared: bool) {
        // A client with many short requests does not hide how long those of the others take.
        let means = self.latencies.values().map(|(ends, took)| took / ends);
        self.latency = Nanos(means.sum::<u64>() / self.latencies.len() as u64);
        self.latencies.clear();
        self.rate = self.done.as_accesses() * 1e9 / spent.0 as f64;
        // What idled in between says nothing of what the disks can do.
        let busy = self.busy.0.max(1);
        let mean = Cost(u64::try_from(self.area / u128::from(busy)).unwrap_or(u64::MAX));
        self.throughput.note(mean, self.done.as_accesses() * 1e9 / busy as f64, self.latency, now);
        let (threshold, full) = (self.threshold(), std::mem::take(&mut self.full));
        let above = self.latency > threshold && shared;
        self.above = if above { self.above + 1 } else { 0 };
        if above || full {
            self.calm_since = now;
        }
        (self.looked, self.ends, self.done, self.area, self.busy) = (now, 0, Cost::default(), 0, Nanos::ZERO);
        let wanted = |from: Cost| {
            let ratio = (threshold.0 as f64 / self.latency.0.max(1) as f64).clamp(0.25, 2.0);
            let size = from.0 as f64 * (1.0 + GAIN * (ratio - 1.0));
            Cost(size as u64 + 100).max(SIZE_MIN)
        };
        self.size = match self.size {
            None if self.above >= ABOVE_IN_ROW => {
                self.tried = now;
                // At the rate of now so much under way takes as long as the threshold says (Little).
                let ratio = threshold.0 as f64 / self.latency.0.max(1) as f64;
                Some(Cost((mean.0 as f64 * ratio) as u64).max(SIZE_MIN))
            }
            None => None,
            Some(_) if !shared || now.since(self.calm_since) >= CALM => None,
            // A window that was not full proves nothing by its latency, unless that is too high.
            Some(size) if !full && !above => Some(size),
            Some(size) => {
                let tries = matches!(self.threshold, Threshold::Auto) && now.since(self.tried) >= TRY_EVERY;
                if tries {
                    (self.tried, self.trying_until) = (now, now + TRY_FOR);
                    Some(Cost(size.0 + size.0 / 4))
                } else if now < self.trying_until {
                    Some(size)
                } else {
                    Some(wanted(size))
                }
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Disks with `servers` heads that take `service` each, under so many who ask again at once; returns the window after `seconds`.
    fn closed_loop(window: &mut Window, now: &mut Nanos, clients: usize, servers: usize, service: Nanos, seconds: u64) {
        let end = *now + Nanos::from_secs(seconds);
        let mut free: Vec<Nanos> = vec![*now; servers];
        let mut under_way: Vec<(Nanos, Nanos)> = Vec::new();
        while *now < end {
            while under_way.len() < clients {
                if !window.has_room_beside(Cost::default()) {
                    window.note_full();
                    break;
                }
                window.begin(Cost::ONE, *now);
                let head = free.iter_mut().min().expect("there are heads");
                *head = (*head).max(*now) + service;
                under_way.push((*head, *now));
            }
            end_first(window, now, &mut under_way);
        }
        while !under_way.is_empty() {
            end_first(window, now, &mut under_way);
        }
    }

    fn end_first(window: &mut Window, now: &mut Nanos, under_way: &mut Vec<(Nanos, Nanos)>) {
        let first = (0..under_way.len()).min_by_key(|at| under_way[*at].0).expect("something is under way");
        let (ended, began) = under_way.swap_remove(first);
        *now = ended;
        window.end(0, Cost::ONE, began, *now, true);
    }

    #[test]
    fn a_window_holds_latency_at_its_threshold_and_goes_when_nobody_waits() {
        let mut now = Nanos::from_secs(1);
        let mut window = Window::new(Threshold::Latency(Nanos::from_millis(30)), now);
        closed_loop(&mut window, &mut now, 16, 5, Nanos::from_millis(5), 10);
        assert!(!window.is_congested(), "16 at once take 16 ms");
        closed_loop(&mut window, &mut now, 96, 5, Nanos::from_millis(5), 20);
        let size = window.size().expect("96 at once take 96 ms").as_accesses();
        assert!((26.0..36.0).contains(&size), "{size}");
        let (latency, rate) = window.lately();
        assert!((24..37).contains(&latency.as_millis()), "{latency:?}");
        assert!((950.0..1_050.0).contains(&rate), "{rate}");
        closed_loop(&mut window, &mut now, 16, 5, Nanos::from_millis(5), 3);
        assert!(!window.is_congested());
    }

    #[test]
    fn a_threshold_is_found_where_throughput_stops_growing_and_again_when_the_disks_change() {
        let mut now = Nanos::from_secs(1);
        let mut window = Window::new(Threshold::Auto, now);
        assert_eq!(window.threshold(), AUTO_FIRST);
        for clients in [1, 2, 4, 8, 16, 32, 64] {
            closed_loop(&mut window, &mut now, clients, 8, Nanos::from_millis(4), 3);
        }
        let found = window.threshold();
        assert!((Nanos::from_millis(4)..Nanos::from_millis(8)).contains(&found), "{found:?}");
        closed_loop(&mut window, &mut now, 64, 8, Nanos::from_millis(4), 60);
        let size = window.size().expect("64 at once are too many").as_accesses();
        assert!((8.0..20.0).contains(&size), "{size}");
        let (_, rate) = window.lately();
        assert!(rate > 1_800.0, "{rate}");
        // Four times the disks.
        closed_loop(&mut window, &mut now, 64, 32, Nanos::from_millis(4), 300);
        let (_, rate) = window.lately();
        assert!(rate > 6_500.0, "{rate}: what the disks can do by now was not found");
    }
}
