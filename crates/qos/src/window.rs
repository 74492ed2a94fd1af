//! Detection of congestion on shared disks, and the window that bounds requests in flight meanwhile.
//!
//! Congestion is latency of clients' requests above the threshold. Clients' requests are then held to a window that
//! shrinks while latency is above the threshold and grows while it is below (PARDA, Gulati and others, FAST 2009).
//! Without congestion no request waits for another. Background work counts as load of the disks, but its latency is
//! ignored: it may be long because clients go first.
//!
//! All times are disk time ([`crate::DiskClock`]).

use std::collections::BTreeMap;

use seam::Nanos;

use crate::Cost;
use crate::throughput::Throughput;

/// Interval between samples.
const SAMPLE_PERIOD: Nanos = Nanos::from_millis(100);
/// Completions of clients' requests that a sample needs, unless a whole second had fewer.
const SAMPLE_COMPLETIONS_MIN: u64 = 8;
/// Weight of a client's former latency in a sample, in completions.
const REMEMBERED_COMPLETIONS: u64 = 4;
/// Time without a completion after which a client's latency is forgotten.
const REMEMBERED_TIME: Nanos = Nanos::from_secs(1);
/// Consecutive samples above the threshold that make congestion.
const SAMPLES_ABOVE_MIN: u32 = 2;
/// Congestion ends after this time without a waiting client's request and without a sample above the threshold.
const UNCONGESTED_TIME: Nanos = Nanos::from_millis(200);
/// Proportional gain applied per sample.
const GAIN: f64 = 0.25;
/// Ratio of threshold to latency from which the gain is 1: a window that is far too small leaves disks idle.
const FULL_GAIN_RATIO: f64 = 1.5;
/// Smallest window with a configured threshold, which may lie below the latency of busy disks.
const SIZE_MIN: Cost = Cost(2_000);
/// Smallest window with an automatic threshold: a few disks stay busy and have requests to choose from.
const AUTO_SIZE_MIN: Cost = Cost(8_000);
/// Divisor of the window that gives the part of background work while clients wait.
const BACKGROUND_DIVISOR: u64 = 8;
/// Automatic threshold before the knee is known.
const AUTO_INITIAL: Nanos = Nanos::from_millis(30);
/// Bounds of the automatic threshold.
const AUTO_MIN: Nanos = Nanos(500_000);
const AUTO_MAX: Nanos = Nanos::from_millis(100);
/// Period of probes during congestion. A probe is a trial of a larger window: the disks may serve more than was
/// observed before.
const PROBE_PERIOD: Nanos = Nanos::from_secs(30);
/// Length of a probe.
const PROBE_TIME: Nanos = Nanos::from_millis(500);

/// Priority of requests while disks are congested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// A client waits for the request.
    Foreground,
    /// Destage that no client waits for, promotion, readahead, verification.
    Background,
}

/// Latency above which disks are congested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threshold {
    /// A fixed latency; zero: the disks are always congested.
    Latency(Nanos),
    /// The latency at the knee of throughput, which is observed continuously.
    Auto,
}

/// Latency of a client's requests. A client with few requests completes none in some samples: its latency from the
/// samples before still counts, otherwise the window would grow whenever the busy clients alone complete requests.
#[derive(Default)]
struct ClientLatency {
    /// Completed requests since the last sample, and their total latency in nanoseconds.
    completions: u64,
    total_ns: u64,
    /// Mean latency at the last sample in nanoseconds, over about [`REMEMBERED_COMPLETIONS`] or all of that sample.
    mean_ns: Option<u64>,
    completed_at: Nanos,
}

impl ClientLatency {
    fn record(&mut self, latency: Nanos, now: Nanos) {
        (self.completions, self.total_ns) = (self.completions + 1, self.total_ns.saturating_add(latency.0));
        self.completed_at = now;
    }

    fn take_sample(&mut self) -> u64 {
        let (completions, total_ns) = (std::mem::take(&mut self.completions), std::mem::take(&mut self.total_ns));
        let before = self.mean_ns.map_or(0, |mean_ns| mean_ns.saturating_mul(REMEMBERED_COMPLETIONS));
        let weight = completions + if self.mean_ns.is_some() { REMEMBERED_COMPLETIONS } else { 0 };
        let mean_ns = before.saturating_add(total_ns) / weight.max(1);
        self.mean_ns = Some(mean_ns);
        mean_ns
    }
}

/// Requests in flight at shared disks, and the window that bounds them during congestion.
pub struct Window {
    threshold: Threshold,
    throughput: Throughput,
    /// Size of the window of clients' requests; `None` without congestion.
    size: Option<Cost>,
    /// Smallest size, whatever the threshold.
    size_min: Cost,
    outstanding: Cost,
    /// The part of `outstanding` that is background work.
    background: Cost,
    /// Time of the last sample; the fields below count since then.
    sampled_at: Nanos,
    completions: u64,
    /// Latencies by client, without background work.
    latencies: BTreeMap<u32, ClientLatency>,
    completed: Cost,
    /// Integral of the cost in flight over nanoseconds, up to `measured_until`; the same of clients' requests; and the
    /// time with requests in flight.
    area: u128,
    foreground_area: u128,
    busy: Nanos,
    measured_until: Nanos,
    /// True if a client's request had to wait since the last sample.
    has_waited: bool,
    /// True if the processor was stalled since the last sample.
    stalled: bool,
    /// Consecutive samples above the threshold.
    samples_above: u32,
    /// Last time at which a client's request had to wait or a sample was above the threshold.
    uncongested_since: Nanos,
    /// Start of the last probe, and its end.
    probed_at: Nanos,
    probe_until: Nanos,
    /// The last sample: see [`Window::last_sample`].
    latency: Nanos,
    rate: f64,
}

impl Window {
    /// A window without congestion, except with a threshold of zero.
    pub fn new(threshold: Threshold, now: Nanos) -> Window {
        let is_always_congested = threshold == Threshold::Latency(Nanos::ZERO);
        Window {
            threshold,
            throughput: Throughput::default(),
            size: is_always_congested.then_some(SIZE_MIN),
            size_min: Cost::default(),
            outstanding: Cost::default(),
            background: Cost::default(),
            sampled_at: now,
            completions: 0,
            latencies: BTreeMap::new(),
            completed: Cost::default(),
            area: 0,
            foreground_area: 0,
            busy: Nanos::ZERO,
            measured_until: now,
            has_waited: false,
            stalled: false,
            samples_above: 0,
            uncongested_since: now,
            probed_at: now,
            probe_until: now,
            latency: Nanos::ZERO,
            rate: 0.0,
        }
    }

    /// Sets the smallest window of clients to `size_min`, for storage that serves this much in parallel.
    pub fn with_size_min(self, size_min: Cost) -> Window {
        Window { size_min, ..self }
    }

    /// Replaces the threshold.
    pub fn set_threshold(&mut self, threshold: Threshold) {
        self.threshold = threshold;
    }

    /// The configured threshold.
    pub fn configured_threshold(&self) -> Threshold {
        self.threshold
    }

    /// The threshold in force.
    pub fn threshold(&self) -> Nanos {
        match self.threshold {
            Threshold::Latency(latency) => latency,
            Threshold::Auto => match self.throughput.knee(self.measured_until) {
                Some(knee) => knee.max(AUTO_MIN).min(AUTO_MAX),
                None => AUTO_INITIAL,
            },
        }
    }

    /// True while a window bounds the requests in flight.
    pub fn is_congested(&self) -> bool {
        self.size.is_some()
    }

    /// Size of the window of clients' requests during congestion.
    pub fn size(&self) -> Option<Cost> {
        self.size
    }

    /// Cost in flight.
    pub fn outstanding(&self) -> Cost {
        self.outstanding
    }

    /// The last sample: mean of the clients' mean latencies, and small accesses per second.
    pub fn last_sample(&self) -> (Nanos, f64) {
        (self.latency, self.rate)
    }

    /// The greatest rate of the last minutes, in small accesses per second.
    pub fn greatest_rate(&self) -> Option<f64> {
        self.throughput.max_rate(self.measured_until)
    }

    /// True if a client's request may be sent, not counting `uncounted` in flight. The last request may exceed the
    /// window.
    pub fn has_room(&self, uncounted: Cost) -> bool {
        self.size.is_none_or(|size| self.outstanding - self.background - uncounted < size)
    }

    /// True if background work may be sent: within the whole window, or, while clients wait, within the part of
    /// background work.
    pub fn has_room_for_background(&self, clients_wait: bool, uncounted: Cost) -> bool {
        self.size.is_none_or(|size| {
            let fits_own_part = self.background - uncounted < Cost((size.0 / BACKGROUND_DIVISOR).max(1));
            fits_own_part || (!clients_wait && self.outstanding - uncounted < size)
        })
    }

    /// Records that a client's request has to wait.
    pub fn record_wait(&mut self, now: Nanos) {
        self.has_waited = true;
        self.uncongested_since = self.uncongested_since.max(now);
    }

    /// Records a stall of the processor: the rate since the last sample is unknown.
    pub fn record_stall(&mut self) {
        self.stalled = true;
    }

    /// Records that a request is sent to the disks.
    pub fn begin(&mut self, cost: Cost, priority: Priority, now: Nanos) {
        self.measure(now);
        self.outstanding += cost;
        if priority == Priority::Background {
            self.background += cost;
        }
    }

    /// Records the completion of a request of `client` that was sent at `began`. `shared`: several clients have
    /// requests; a client that has the disks alone is not held to a window.
    pub fn end(&mut self, client: u32, cost: Cost, priority: Priority, began: Nanos, now: Nanos, shared: bool) {
        self.cancel(cost, priority, now);
        if priority == Priority::Foreground {
            self.completions += 1;
            self.latencies.entry(client).or_default().record(now.since(began), now);
        }
        self.completed += cost;
        let spent = now.since(self.sampled_at);
        if spent >= SAMPLE_PERIOD && (self.completions >= SAMPLE_COMPLETIONS_MIN || spent.0 >= 10 * SAMPLE_PERIOD.0) {
            self.take_sample(now, spent, shared);
        }
    }

    /// Ends congestion if no client's request has had to wait for [`UNCONGESTED_TIME`]. Called while requests are in
    /// flight, because too few completions make no sample.
    pub fn end_if_calm(&mut self, now: Nanos) {
        if self.threshold != Threshold::Latency(Nanos::ZERO) && now.since(self.uncongested_since) >= UNCONGESTED_TIME {
            self.size = None;
        }
    }

    /// Ends congestion if no request has been in flight for [`UNCONGESTED_TIME`]: without completions there is no
    /// sample.
    pub fn end_if_idle(&mut self, now: Nanos) {
        let is_conditional = self.threshold != Threshold::Latency(Nanos::ZERO);
        if is_conditional && self.outstanding == Cost::default() && now.since(self.measured_until) >= UNCONGESTED_TIME {
            self.size = None;
        }
    }

    /// Withdraws a request after [`Window::begin`] that is not sent after all.
    pub fn cancel(&mut self, cost: Cost, priority: Priority, now: Nanos) {
        self.measure(now);
        self.outstanding = self.outstanding - cost;
        if priority == Priority::Background {
            self.background = self.background - cost;
        }
    }

    /// Updates the integrals up to `now`.
    fn measure(&mut self, now: Nanos) {
        let time = u128::from(now.since(self.measured_until).0);
        self.area += u128::from(self.outstanding.0) * time;
        self.foreground_area += u128::from((self.outstanding - self.background).0) * time;
        if self.outstanding > Cost::default() {
            self.busy += now.since(self.measured_until);
        }
        self.measured_until = self.measured_until.max(now);
    }

    /// Smallest window of clients during congestion.
    fn size_min(&self) -> Cost {
        let threshold_min = if self.threshold == Threshold::Auto { AUTO_SIZE_MIN } else { SIZE_MIN };
        self.size_min.max(threshold_min)
    }

    fn take_sample(&mut self, now: Nanos, spent: Nanos, shared: bool) {
        self.latencies.retain(|_, latency| now.since(latency.completed_at) < REMEMBERED_TIME);
        let (clients, busy) = (self.latencies.len() as u64, self.busy.0.max(1));
        // Each client counts equally: many short requests of one do not hide the latency of the others.
        let means = self.latencies.values_mut().map(ClientLatency::take_sample);
        self.latency = Nanos(means.sum::<u64>() / clients.max(1));
        self.rate = self.completed.as_accesses() * 1e9 / spent.0 as f64;
        // Averages over busy time: idle time does not lower the measured throughput of the disks.
        let mean = |area: u128| Cost(u64::try_from(area / u128::from(busy)).unwrap_or(u64::MAX));
        let (outstanding, foreground) = (mean(self.area), mean(self.foreground_area));
        let stalled = std::mem::take(&mut self.stalled);
        if clients > 0 && !stalled {
            self.throughput.record(outstanding, self.completed.as_accesses() * 1e9 / busy as f64, self.latency, now);
        }
        let (threshold, full) = (self.threshold(), std::mem::take(&mut self.has_waited));
        let above = self.latency > threshold && shared;
        self.samples_above = if above { self.samples_above + 1 } else { 0 };
        if above || full {
            self.uncongested_since = self.uncongested_since.max(now);
        }
        (self.sampled_at, self.completions, self.completed, self.busy) = (now, 0, Cost::default(), Nanos::ZERO);
        (self.area, self.foreground_area) = (0, 0);
        let (size_min, ratio) = (self.size_min(), threshold.0 as f64 / self.latency.0.max(1) as f64);
        let corrected = |from: Cost| {
            let gain = if ratio >= FULL_GAIN_RATIO { 1.0 } else { GAIN };
            let size = from.0 as f64 * (1.0 + gain * (ratio.clamp(0.25, 2.0) - 1.0));
            Cost(size as u64 + 100).max(size_min)
        };
        self.size = match self.size {
            // A window reduces clients' requests in flight. If these are few already, other load causes the latency.
            None if self.samples_above >= SAMPLES_ABOVE_MIN && foreground >= size_min => {
                self.probed_at = now;
                // At the current rate this load has the threshold's latency (Little's law).
                Some(Cost((outstanding.0 as f64 * ratio) as u64).max(size_min))
            }
            None => None,
            Some(_) if !shared || now.since(self.uncongested_since) >= UNCONGESTED_TIME => None,
            // The latency of a window that was not full proves nothing, unless it is too high.
            Some(size) if !full && !above => Some(size),
            Some(size) => {
                let starts_probe =
                    matches!(self.threshold, Threshold::Auto) && now.since(self.probed_at) >= PROBE_PERIOD;
                if starts_probe {
                    (self.probed_at, self.probe_until) = (now, now + PROBE_TIME);
                    Some(Cost(size.0 + size.0 / 4))
                } else if now < self.probe_until {
                    Some(size)
                } else {
                    Some(corrected(size))
                }
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A closed loop of `clients` on disks with `servers` heads of service time `service`, for `seconds`.
    fn closed_loop(window: &mut Window, now: &mut Nanos, clients: usize, servers: usize, service: Nanos, seconds: u64) {
        let end = *now + Nanos::from_secs(seconds);
        let mut free: Vec<Nanos> = vec![*now; servers];
        let mut outstanding: Vec<(Nanos, Nanos)> = Vec::new();
        while *now < end {
            while outstanding.len() < clients {
                if !window.has_room(Cost::default()) {
                    window.record_wait(*now);
                    break;
                }
                window.begin(Cost::ONE, Priority::Foreground, *now);
                let head = free.iter_mut().min().expect("the disks have a head");
                *head = (*head).max(*now) + service;
                outstanding.push((*head, *now));
            }
            end_first(window, now, &mut outstanding);
        }
        while !outstanding.is_empty() {
            end_first(window, now, &mut outstanding);
        }
    }

    fn end_first(window: &mut Window, now: &mut Nanos, outstanding: &mut Vec<(Nanos, Nanos)>) {
        let first = (0..outstanding.len()).min_by_key(|at| outstanding[*at].0).expect("a request is in flight");
        let (ended, began) = outstanding.swap_remove(first);
        *now = ended;
        window.end(0, Cost::ONE, Priority::Foreground, began, *now, true);
    }

    #[test]
    fn window_holds_latency_at_threshold_and_ends_without_waiters() {
        let mut now = Nanos::from_secs(1);
        let mut window = Window::new(Threshold::Latency(Nanos::from_millis(30)), now);
        closed_loop(&mut window, &mut now, 16, 5, Nanos::from_millis(5), 10);
        assert!(!window.is_congested(), "16 at once take 16 ms");
        closed_loop(&mut window, &mut now, 96, 5, Nanos::from_millis(5), 20);
        let size = window.size().expect("96 at once take 96 ms").as_accesses();
        assert!((26.0..36.0).contains(&size), "{size}");
        let (latency, rate) = window.last_sample();
        assert!((24..37).contains(&latency.as_millis()), "{latency:?}");
        assert!((950.0..1_050.0).contains(&rate), "{rate}");
        closed_loop(&mut window, &mut now, 16, 5, Nanos::from_millis(5), 3);
        assert!(!window.is_congested());
    }

    #[test]
    fn auto_threshold_is_the_knee_and_follows_changed_disks() {
        let mut now = Nanos::from_secs(1);
        let mut window = Window::new(Threshold::Auto, now);
        assert_eq!(window.threshold(), AUTO_INITIAL);
        for clients in [1, 2, 4, 8, 16, 32, 64] {
            closed_loop(&mut window, &mut now, clients, 8, Nanos::from_millis(4), 3);
        }
        let threshold = window.threshold();
        assert!((Nanos::from_millis(4)..Nanos::from_millis(8)).contains(&threshold), "{threshold:?}");
        closed_loop(&mut window, &mut now, 64, 8, Nanos::from_millis(4), 60);
        let size = window.size().expect("64 at once are too many").as_accesses();
        assert!((8.0..20.0).contains(&size), "{size}");
        let (_, rate) = window.last_sample();
        assert!(rate > 1_800.0, "{rate}");
        // The number of disks quadruples.
        closed_loop(&mut window, &mut now, 64, 32, Nanos::from_millis(4), 300);
        let (_, rate) = window.last_sample();
        assert!(rate > 6_500.0, "{rate}: the window does not follow the new throughput");
    }

    /// A client that completes requests in few samples holds the window down in the others as well.
    #[test]
    fn rare_slow_requests_of_a_client_count_beside_many_fast_ones() {
        let mut now = Nanos::from_secs(1);
        let mut window = Window::new(Threshold::Latency(Nanos::from_millis(10)), now);
        let (fast, slow) = (Nanos::from_millis(2), Nanos::from_millis(40));
        let mut largest = Cost::default();
        for step in 0..5_000 {
            for _ in 0..8 {
                window.begin(Cost::ONE, Priority::Foreground, now);
            }
            window.record_wait(now);
            now += fast;
            for _ in 0..8 {
                window.end(1, Cost::ONE, Priority::Foreground, Nanos(now.0 - fast.0), now, true);
            }
            if step % 150 == 0 {
                window.begin(Cost::ONE, Priority::Foreground, now);
                window.end(2, Cost::ONE, Priority::Foreground, Nanos(now.0 - slow.0), now, true);
            }
            if step >= 1_000 {
                largest = largest.max(window.size().expect("the mean of both clients is above the threshold"));
            }
        }
        assert_eq!(largest, SIZE_MIN, "the window has grown while the rare requests were in flight");
    }

    /// One client request at a time and eight background requests, of the given latencies; the window after two
    /// seconds.
    fn beside_background(threshold: Threshold, foreground: Nanos, background: Nanos) -> Window {
        let mut now = Nanos::from_secs(1);
        let mut window = Window::new(threshold, now);
        for _ in 0..2_000_000_000 / foreground.0 {
            (0..8).for_each(|_| window.begin(Cost(4_000), Priority::Background, now));
            window.begin(Cost::ONE, Priority::Foreground, now);
            let began = now;
            now += foreground;
            window.end(0, Cost::ONE, Priority::Foreground, began, now, true);
            let began = Nanos(now.0.saturating_sub(background.0));
            (0..8).for_each(|_| window.end(1, Cost(4_000), Priority::Background, began, now, true));
        }
        window
    }

    #[test]
    fn slow_background_work_causes_no_congestion() {
        let (quick, slow) = (Nanos::from_millis(5), Nanos::from_millis(500));
        let window = beside_background(Threshold::Latency(Nanos::from_millis(30)), quick, slow);
        assert!(!window.is_congested() && window.last_sample().0 == quick, "{:?}", window.last_sample());
    }

    #[test]
    fn few_slow_requests_cause_no_congestion_with_auto() {
        let slow = Nanos::from_millis(60);
        assert!(!beside_background(Threshold::Auto, slow, slow).is_congested(), "one in flight cannot be made fewer");
        let mut now = Nanos::from_secs(1);
        let mut window = Window::new(Threshold::Auto, now);
        closed_loop(&mut window, &mut now, 64, 5, Nanos::from_millis(5), 20);
        assert!(window.size().is_some_and(|size| size >= AUTO_SIZE_MIN));
    }

    #[test]
    fn congestion_ends_200_ms_after_the_last_wait_of_a_client() {
        let mut now = Nanos::from_secs(1);
        let mut window = Window::new(Threshold::Latency(Nanos::from_millis(30)), now);
        closed_loop(&mut window, &mut now, 96, 5, Nanos::from_millis(5), 5);
        window.begin(Cost::ONE, Priority::Foreground, now);
        window.record_wait(now);
        window.end_if_calm(now + Nanos::from_millis(199));
        assert!(window.is_congested());
        window.end_if_calm(now + Nanos::from_millis(200));
        assert!(!window.is_congested(), "one request is in flight, and none waits");
    }

    #[test]
    fn background_work_gets_only_its_part_of_a_full_window() {
        let now = Nanos::from_secs(1);
        let mut window = Window::new(Threshold::Latency(Nanos::ZERO), now).with_size_min(Cost(16_000));
        window.size = Some(Cost(16_000));
        (0..16).for_each(|_| window.begin(Cost::ONE, Priority::Foreground, now));
        assert!(!window.has_room(Cost::default()) && window.has_room_for_background(true, Cost::default()));
        window.begin(Cost(2_000), Priority::Background, now);
        assert!(!window.has_room_for_background(true, Cost::default()));
        assert!(!window.has_room_for_background(false, Cost::default()));
        window.cancel(Cost(8_000), Priority::Foreground, now);
        assert!(window.has_room_for_background(false, Cost::default()) && window.has_room(Cost::default()));
    }
}
