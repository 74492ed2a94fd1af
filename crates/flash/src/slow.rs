//! Detection of slow devices. A device that repeatedly takes ten times as long as usual is treated as failed: otherwise
//! every flush waits for it.
//!
//! Each device is compared with its own history and with its mirror. A write is compared with the mirror's write of the
//! same batch, a read with the mirror's reads of the same window. A cause that slows both down therefore condemns
//! neither: it is the usual latency under their load, and the history learns it.
//!
//! A request waits behind others, so it is charged only its share of the device's queue. A read also waits behind
//! programs that the device has acknowledged from its buffer.
//!
//! One slow request is not enough, requests that were in the queue at the same time count once, and the last log member
//! always stays.

use std::rc::Rc;

use seam::{DiskError, Nanos, Piece, Seam};

use crate::device::Device;
use crate::membership::{Failure, take_out};
use crate::store::Inner;

/// Requests that are measured before any counts as slow.
const HISTORY: u32 = 64;
/// A request is slow above this multiple of the usual latency.
const TIMES: u64 = 10;
/// A request is slow only above this multiple of its mirror's latency, too.
const TIMES_MIRROR: u64 = 4;
/// Shorter requests are never slow: losing the mirror would cost more.
const FLOOR: Nanos = Nanos::from_millis(1);
/// Each slow request adds this to the strikes, each good one subtracts one. At the maximum the device is out: eight
/// slow requests in a row.
const STRIKE: u32 = 2;
const STRIKES_MAX: u32 = 16;
/// The time that a batch may take on a member after its mirror has completed it.
pub const GRACE: Nanos = Nanos::from_secs(2);
/// The number of blocks whose transfer takes about as long as a request's fixed cost.
const BLOCKS_A_REQUEST: u64 = 32;
/// Blocks that are read in the time in which one is programmed.
const PROGRAM_WEIGHT: u64 = 4;
/// The least time in which a device programs half of its buffer.
const PROGRAMS_HALVE_IN: Nanos = Nanos::from_millis(25);
/// Reads of two members are compared if they ended within this time.
const SAME_WINDOW: Nanos = Nanos::from_millis(100);

/// The latency history of one kind of request on a device.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    usual: u64,
    seen: u32,
    strikes: u32,
    /// When a slow request was counted last.
    struck_at: Nanos,
}

impl Pace {
    /// True when the request was slow compared with the usual latency. Slow requests do not change the usual latency.
    fn is_slow(&mut self, took: u64) -> bool {
        if self.seen < HISTORY {
            self.usual = (self.usual * u64::from(self.seen) + took) / u64::from(self.seen + 1);
            self.seen += 1;
            return false;
        }
        let slow = took > FLOOR.0.max(TIMES * self.usual);
        if !slow {
            self.usual = (self.usual * 255 + took) / 256;
        }
        slow
    }

    /// Raises the usual latency after a request that the mirror served as slowly: this is the latency under this load.
    fn learn(&mut self, took: u64) {
        self.usual = (self.usual * 15 + took) / 16;
    }

    /// Counts a request that ends now. Returns true when the device has been slow often enough. A request that was
    /// already in flight when the last slow one was counted has met the same stall, so it is not counted again.
    fn judge(&mut self, slow: bool, begun: Nanos, now: Nanos) -> bool {
        match slow {
            false => self.strikes = self.strikes.saturating_sub(1),
            true if begun >= self.struck_at => (self.strikes, self.struck_at) = (self.strikes + STRIKE, now),
            true => {}
        }
        self.strikes >= STRIKES_MAX
    }
}

/// Latency history and queue of one member.
#[derive(Clone, Copy, Debug, Default)]
pub struct Speed {
    writes: Pace,
    reads: Pace,
    /// Weight of all requests in flight, of pages too: each counts a fixed number of blocks plus its own.
    line: u64,
    programs: Programs,
    /// Mean latency of recent reads of the log, normalised to a single request, and when the last of them ended.
    read_lately: Option<(Nanos, u64)>,
    /// A comparison is in flight: the mirror reads the block of a slow read.
    compares: bool,
}

impl Speed {
    fn note_read(&mut self, now: Nanos, took: Nanos) {
        let usual = self.read_within(now).map_or(took.0, |lately| (3 * lately + took.0) / 4);
        self.read_lately = Some((now, usual));
    }

    /// Mean latency of its reads in the window that ends now; `None` without reads.
    fn read_within(&self, now: Nanos) -> Option<u64> {
        self.read_lately.filter(|(at, _)| now.since(*at) < SAME_WINDOW).map(|(_, took)| took)
    }
}

/// Programs that a device has acknowledged from its buffer and may still perform. Reads wait behind them.
#[derive(Clone, Copy, Debug, Default)]
struct Programs {
    weight: u64,
    at: Nanos,
}

impl Programs {
    /// Their weight now, which decays by half per [`PROGRAMS_HALVE_IN`].
    fn left(&self, now: Nanos) -> u64 {
        let halvings = now.since(self.at).0 / PROGRAMS_HALVE_IN.0;
        if halvings < 64 { self.weight >> halvings } else { 0 }
    }

    fn add(&mut self, weight: u64, now: Nanos) {
        *self = Programs { weight: self.left(now) + weight, at: now };
    }
}

/// A request's kind and size, which determine its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Reads this many blocks.
    Read(usize),
    /// Programs this many blocks.
    Program(usize),
}

impl Work {
    fn weight(self) -> u64 {
        BLOCKS_A_REQUEST
            + match self {
                Work::Read(blocks) => blocks as u64,
                Work::Program(blocks) => PROGRAM_WEIGHT * blocks as u64,
            }
    }
}

/// A request in a device's queue, until it ends. It waits for the requests before it, so it is judged by its share of
/// the queue.
pub struct InLine<'a, S: Seam> {
    inner: &'a Inner<S>,
    member: u32,
    work: Work,
    line: u64,
    begun: Nanos,
}

impl<'a, S: Seam> InLine<'a, S> {
    /// Enters a request that is being sent.
    pub fn new(inner: &'a Inner<S>, member: u32, work: Work) -> Self {
        let now = inner.seam.now();
        let mut state = inner.state.borrow_mut();
        let speed = state.speed(member);
        speed.line += work.weight();
        let behind = if matches!(work, Work::Read(_)) { speed.programs.left(now) } else { 0 };
        InLine { inner, member, work, line: speed.line + behind, begun: now }
    }

    /// The request's share of the elapsed time, as if it were alone.
    pub fn share(&self) -> Nanos {
        Nanos(self.inner.seam.now().since(self.begun).0 * BLOCKS_A_REQUEST / self.line)
    }
}

impl<S: Seam> Drop for InLine<'_, S> {
    fn drop(&mut self) {
        let mut state = self.inner.state.borrow_mut();
        let speed = state.speed(self.member);
        // The entry is a new one, without this request, if another device has taken the member's number.
        speed.line = speed.line.saturating_sub(self.work.weight());
        if matches!(self.work, Work::Program(_)) {
            speed.programs.add(self.work.weight(), self.inner.seam.now());
        }
    }
}

/// The error of a member that is taken out as too slow.
fn too_slow(what: &str) -> DiskError {
    DiskError::Io(format!("ten times slower than it used to be at {what}"))
}

/// Judges a batch that was written and flushed, by each member's share of the time. Returns the members that are too
/// slow to stay.
pub fn batch_took<S: Seam>(inner: &Inner<S>, took: &[(u32, Nanos)]) -> Vec<Failure> {
    let Some(fastest) = took.iter().map(|(_, took)| took.0).min().filter(|_| took.len() > 1) else {
        return Vec::new();
    };
    let now = inner.seam.now();
    let mut state = inner.state.borrow_mut();
    let mut failures = Vec::new();
    for (member, took) in took {
        let pace = &mut state.speed(*member).writes;
        let is_unusual = pace.is_slow(took.0);
        let slow = is_unusual && took.0 > TIMES_MIRROR * fastest;
        if is_unusual && !slow {
            pace.learn(took.0);
        }
        // Batches never overlap, so each one counts.
        if pace.judge(slow, now, now) {
            failures.push((*member, too_slow("writes and flushes")));
        }
    }
    failures
}

/// Reads the block at byte `at` from a log member. Takes the member out when it has become too slow, compared with its
/// own history and with its mirrors' reads of the same window.
pub async fn read<S: Seam, T>(inner: &Rc<Inner<S>>, member: u32, at: u64, read: impl Future<Output = T>) -> T {
    let place = InLine::new(inner, member, Work::Read(1));
    let result = read.await;
    let (took, begun) = (place.share(), place.begun);
    drop(place);
    let now = inner.seam.now();
    let mirrors: Vec<_> = inner.log_devices().into_iter().filter(|device| device.member != member).collect();
    let (out, compares) = {
        let mut state = inner.state.borrow_mut();
        let fastest = mirrors.iter().filter_map(|mirror| state.speed(mirror.member).read_within(now)).min();
        let speed = state.speed(member);
        speed.note_read(now, took);
        match (speed.reads.is_slow(took.0), fastest) {
            (true, None) => (false, !std::mem::replace(&mut speed.compares, true)),
            (suspect, fastest) => {
                // Compare means: by chance one read may wait for something that its mirror's read did not meet.
                let lately = speed.read_within(now).map_or(took.0, |lately| lately.min(took.0));
                let slow = suspect && fastest.is_some_and(|fastest| lately > TIMES_MIRROR * fastest);
                if suspect && !slow {
                    speed.reads.learn(took.0);
                }
                (speed.reads.judge(slow, begun, now), false)
            }
        }
    };
    match mirrors.into_iter().next() {
        // The last log member always stays.
        None => {}
        Some(mirror) if compares => {
            let inner = Rc::clone(inner);
            inner.seam.clone().spawn(async move { compare(&inner, member, &mirror, at).await });
        }
        Some(_) if out => {
            // The store's state shows the outcome.
            let _ = take_out(inner, vec![(member, too_slow("reads"))]).await;
        }
        Some(_) => {}
    }
    result
}

/// Reads the block of a slow read of `member` from the mirror, too, so that the next slow read has a comparison.
async fn compare<S: Seam>(inner: &Rc<Inner<S>>, member: u32, mirror: &Device<S>, at: u64) {
    if let Some(buffer) = inner.alloc() {
        let place = InLine::new(inner, mirror.member, Work::Read(1));
        let (result, _) = inner.read_from(mirror, at, vec![Piece::whole(buffer)]).await;
        let took = place.share();
        drop(place);
        if result.is_ok() {
            inner.state.borrow_mut().speed(mirror.member).note_read(inner.seam.now(), took);
        }
    }
    inner.state.borrow_mut().speed(member).compares = false;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledged_programs_add_to_the_wait_of_reads_and_decay() {
        assert!(Work::Program(16).weight() > 2 * Work::Read(1).weight(), "64 KiB programmed, 4 KiB read");
        let mut programs = Programs::default();
        let begun = Nanos::from_secs(1);
        programs.add(4_000, begun);
        programs.add(4_000, begun);
        let left = [0, 25, 50, 75].map(|ms| programs.left(begun + Nanos::from_millis(ms)));
        assert_eq!(left, [8_000, 4_000, 2_000, 1_000]);
        assert_eq!(programs.left(begun + Nanos::from_secs(100)), 0);
    }

    #[test]
    fn reads_outside_the_window_are_not_compared() {
        let (mut speed, now) = (Speed::default(), Nanos::from_secs(1));
        assert_eq!(speed.read_within(now), None);
        speed.note_read(now, Nanos(400));
        speed.note_read(now, Nanos(800));
        assert_eq!(speed.read_within(now), Some(500));
        assert_eq!(speed.read_within(now + SAME_WINDOW), None);
    }
}
