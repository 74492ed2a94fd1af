//! The pace of relocation: a rate in bytes over all its moves, or a part of the idle time of the groups.

use std::cell::Cell;
use std::rc::{Rc, Weak};

use seam::{Disk, Nanos, Seam};

use super::settings::{MoveRate, RelocationSettings};
use crate::mover::{CopyRequest, Flow, Pace};
use crate::state::Inner;
use task_sync::BoxFuture;

/// Longest pause of a copy at a rate in bytes while clients use its groups, and of the first copy of a worker.
const GIVE_WAY_MAX: Nanos = Nanos::from_millis(20);
/// Time between two looks at the requests in flight.
const GIVE_WAY_STEP: Nanos = Nanos::from_millis(1);
/// Shortest sleep of a pause.
const STEP_MIN: Nanos = Nanos::from_micros(50);
/// A copy follows the last one after this multiple of the last one's time, even if its groups are never idle: a busy
/// group must not stop a move for ever. Copies take 3 % of the time of a group without idle time.
pub(super) const BUSY_FACTOR: u64 = 32;
/// The same for copies that delay clients: they take 0.2 % of the time, and at most [`DELAYING_MAX`] pass before one.
const DELAYING_FACTOR: u64 = 512;
const DELAYING_MAX: Nanos = Nanos::from_secs(2);
/// Longest time that a copy counts for. A device that hangs must not stop moves for hours.
const COPY_TIME_MAX: Nanos = Nanos::from_millis(100);
/// Longest wait of the first copy until the latency without copies is known.
const BASELINE_MAX: Nanos = Nanos::from_secs(1);
/// Without client requests for this long, copies delay no client. Also the period of the check while they do.
const QUIET: Nanos = Nanos::from_millis(10);
/// Share of requests that copies may push past their group's 99th percentile, in millionths per percent of the idle
/// share.
const LATE_PPM: u64 = 84;
/// Latency that copies may add, in millionths of the latency of all requests, per percent of the idle share.
const DELAY_PPM: u64 = 1_000;

/// The pace of all moves under the same settings.
pub(crate) struct Pacer<S: Seam, D: Disk<S>> {
    inner: Weak<Inner<S, D>>,
    seam: S,
    settings: RelocationSettings,
    /// The time at which a rate in bytes permits the next copy.
    next: Cell<Nanos>,
}

impl<S: Seam, D: Disk<S>> Pacer<S, D> {
    /// A pace under these settings.
    pub fn new(inner: &Weak<Inner<S, D>>, seam: &S, settings: &RelocationSettings) -> Rc<Self> {
        let (inner, seam, settings) = (inner.clone(), seam.clone(), settings.clone());
        Rc::new(Pacer { inner, seam, settings, next: Cell::new(Nanos::ZERO) })
    }

    /// The pace of a worker, which moves slices one after the other.
    pub fn worker(self: &Rc<Self>) -> Pace {
        let pacer = Rc::clone(self);
        // Start of the worker's last copy.
        let last = Rc::new(Cell::new(None));
        Rc::new(move |request| {
            let (pacer, last) = (Rc::clone(&pacer), Rc::clone(&last));
            let decision: BoxFuture<'static, Flow> = Box::pin(async move {
                match pacer.settings.rate {
                    MoveRate::Bytes(rate) => pacer.wait_for_rate(&request, rate).await,
                    MoveRate::IdleShare(percent) => pacer.wait_for_idle_time(&request, last.get(), percent).await,
                }
                last.set(Some(pacer.seam.now()));
                if pacer.is_ended() { Flow::Cancel } else { Flow::Continue }
            });
            decision
        })
    }

    fn is_ended(&self) -> bool {
        self.settings.stop.get() || !self.settings.is_window_open()
    }

    /// Waits until the rate permits the copy, then until no client uses its groups, but not for long.
    async fn wait_for_rate(&self, request: &CopyRequest, rate_bytes: u64) {
        let start = self.next.get().max(self.seam.now());
        self.next.set(start + copy_time(request.bytes, rate_bytes));
        self.seam.sleep_until(start).await;
        let end = self.seam.now() + GIVE_WAY_MAX;
        while !self.settings.stop.get() && self.seam.now() < end && self.has_requests(request) {
            self.seam.sleep(GIVE_WAY_STEP).await;
        }
    }

    /// Waits until the groups have been idle for so long that the last copy took its share of that time, and until
    /// copies delay clients by no more than they may. The last copy began at `last`.
    async fn wait_for_idle_time(&self, request: &CopyRequest, last: Option<Nanos>, percent: u32) {
        assert!((1..100).contains(&percent), "a part of the idle time: {percent} %");
        let begin = self.seam.now();
        let copied = last.map_or(Nanos::ZERO, |last| begin.since(last).min(COPY_TIME_MAX));
        let wanted = Nanos(copied.0 * u64::from(100 - percent) / u64::from(percent));
        let (busy_max, delaying_max) = match last {
            Some(_) => (Nanos(copied.0 * BUSY_FACTOR), Nanos(copied.0 * DELAYING_FACTOR).min(DELAYING_MAX)),
            None => (GIVE_WAY_MAX, BASELINE_MAX),
        };
        let (mut idle, mut last_busy, mut last_served) = (Nanos::ZERO, begin, self.count_served_requests());
        while !self.is_ended() {
            let (now, served, is_idle) = (self.seam.now(), self.count_served_requests(), !self.has_requests(request));
            if !is_idle || served != last_served {
                (last_busy, last_served) = (now, served);
            }
            let waited = now.since(begin);
            // Requests are timed from the start of the first move on.
            let is_observed = last.is_some() || waited >= QUIET;
            let has_share = is_observed && (waited >= busy_max || is_idle && idle >= wanted);
            if has_share
                && (waited >= delaying_max
                    || now.since(last_busy) >= QUIET
                    || !self.may_delay_clients(request, percent))
            {
                break;
            }
            let left = match (has_share, is_idle) {
                (true, _) => QUIET,
                (false, true) => wanted.since(idle).clamp(STEP_MIN, GIVE_WAY_STEP),
                (false, false) => GIVE_WAY_STEP,
            };
            self.seam.sleep(left).await;
            if is_idle {
                idle += self.seam.now().since(now);
            }
        }
    }

    /// True if copies delay clients by more than they may, or if that is not known yet.
    fn may_delay_clients(&self, request: &CopyRequest, percent: u32) -> bool {
        let Some(inner) = self.inner.upgrade() else { return false };
        let (state, percent) = (inner.state.borrow(), u64::from(percent));
        let interference = &state.interference;
        [request.source, request.target].iter().any(|group| interference.lacks_baseline(*group))
            || !interference.is_within_limits(LATE_PPM * percent, DELAY_PPM * percent)
    }

    /// Requests of clients that any group has served.
    fn count_served_requests(&self) -> u64 {
        let Some(inner) = self.inner.upgrade() else { return 0 };
        let state = inner.state.borrow();
        state.groups.iter().map(|group| group.served.reads + group.served.writes).sum()
    }

    /// True if clients have requests in flight on the source or the target.
    fn has_requests(&self, request: &CopyRequest) -> bool {
        let Some(inner) = self.inner.upgrade() else { return false };
        let state = inner.state.borrow();
        [request.source, request.target].iter().any(|group| state.groups[group.index()].requests > 0)
    }
}

/// Time that copies of these bytes take at a rate.
pub(super) fn copy_time(bytes: u64, rate_bytes: u64) -> Nanos {
    let time = u128::from(bytes) * 1_000_000_000;
    let time = time.div_ceil(u128::from(rate_bytes.max(1)));
    Nanos(u64::try_from(time).unwrap_or(u64::MAX))
}
