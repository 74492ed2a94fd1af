//! Devices that turn slow: one that takes ten times as long as it used to, again and again, is as good as failed, or every flush waits
//! for it. Each is compared with its own history; on the write path also with its mirror, which took the same batch at the same
//! moment, so that what slows both down condemns neither. It takes more than one slow request, and the last log member stays whatever it does.

use seam::{DiskError, Nanos, Seam};

use crate::membership::{Failure, take_out};
use crate::store::Inner;

/// So many requests make a history.
const HISTORY: u32 = 64;
/// So many times as long as usual is slow.
const TIMES: u64 = 10;
/// So many times as long as the mirror.
const TIMES_MIRROR: u64 = 4;
/// Nothing shorter is slow: a mirror is worth more than that.
const FLOOR: Nanos = Nanos::from_millis(1);
/// A slow request counts so much, a good one takes one away; at the bound it is enough: eight slow ones in a row.
const STRIKE: u32 = 2;
const STRIKES_MAX: u32 = 16;
/// A batch that the mirror has had for so long is not waited for.
pub const GRACE: Nanos = Nanos::from_secs(2);
/// Blocks that take about as long as a request itself.
const BLOCKS_A_REQUEST: u64 = 32;

/// How long a device has taken for one kind of request.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    usual: u64,
    seen: u32,
    strikes: u32,
}

impl Pace {
    /// True when the request was slow against what was usual; the usual does not learn from slow ones.
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

    /// True when it has been slow often enough.
    fn judge(&mut self, slow: bool) -> bool {
        self.strikes = if slow { self.strikes + STRIKE } else { self.strikes.saturating_sub(1) };
        self.strikes >= STRIKES_MAX
    }
}

/// How one member has served.
#[derive(Clone, Copy, Debug, Default)]
pub struct Speed {
    writes: Pace,
    reads: Pace,
    /// All that it is asked for at the moment, of pages too: a request counts like so many blocks, and with its own.
    line: u64,
}

/// A request in a device's line, until it has ended. Who waits behind others waits for them, not for the device, so each is judged by its
/// share of the line.
pub struct InLine<'a, S: Seam> {
    inner: &'a Inner<S>,
    member: u32,
    weight: u64,
    line: u64,
    begun: Nanos,
}

impl<'a, S: Seam> InLine<'a, S> {
    /// A request for so many blocks is sent.
    pub fn new(inner: &'a Inner<S>, member: u32, blocks: usize) -> Self {
        let weight = BLOCKS_A_REQUEST + blocks as u64;
        let mut state = inner.state.borrow_mut();
        let speed = state.speed(member);
        speed.line += weight;
        InLine { inner, member, weight, line: speed.line, begun: inner.seam.now() }
    }

    /// What it took of the time, as a request alone.
    pub fn share(&self) -> Nanos {
        Nanos(self.inner.seam.now().since(self.begun).0 * BLOCKS_A_REQUEST / self.line)
    }
}

impl<S: Seam> Drop for InLine<'_, S> {
    fn drop(&mut self) {
        let mut state = self.inner.state.borrow_mut();
        let speed = state.speed(self.member);
        // It was forgotten meanwhile if the member left.
        speed.line = speed.line.saturating_sub(self.weight);
    }
}

/// What a member is taken out with.
fn too_slow(what: &str) -> DiskError {
    DiskError::Io(format!("ten times slower than it used to be at {what}"))
}

/// A batch was written and flushed; each member took such a share of the time. Returns who is too slow to stay.
pub fn batch_took<S: Seam>(inner: &Inner<S>, took: &[(u32, Nanos)]) -> Vec<Failure> {
    let Some(fastest) = took.iter().map(|(_, took)| took.0).min().filter(|_| took.len() > 1) else {
        return Vec::new();
    };
    let mut state = inner.state.borrow_mut();
    let mut failures = Vec::new();
    for (member, took) in took {
        let pace = &mut state.speed(*member).writes;
        let slow = pace.is_slow(took.0) && took.0 > TIMES_MIRROR * fastest;
        if pace.judge(slow) {
            failures.push((*member, too_slow("writes and flushes")));
        }
    }
    failures
}

/// Reads a block from a member, and takes it out when it has become too slow.
pub async fn read<S: Seam, T>(inner: &Inner<S>, member: u32, read: impl Future<Output = T>) -> T {
    let place = InLine::new(inner, member, 1);
    let result = read.await;
    let took = place.share();
    drop(place);
    let out = {
        let mut state = inner.state.borrow_mut();
        let speed = state.speed(member);
        let slow = speed.reads.is_slow(took.0);
        speed.reads.judge(slow)
    };
    let last = inner.log_devices().iter().all(|device| device.member == member);
    if out && !last {
        // Its outcome shows in the store.
        let _ = take_out(inner, vec![(member, too_slow("reads"))]).await;
    }
    result
}
