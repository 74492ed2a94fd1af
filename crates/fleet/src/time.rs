//! Time as the state machine sees it: nanoseconds of `CLOCK_BOOTTIME`, which counts the time of a suspended machine.

use std::ops::Add;

/// A point in time or a length of time, in nanoseconds of one node's `CLOCK_BOOTTIME`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// `count` milliseconds.
    pub const fn from_millis(count: u64) -> Nanos {
        Nanos(count * 1_000_000)
    }

    /// `count` seconds.
    pub const fn from_secs(count: u64) -> Nanos {
        Nanos(count * 1_000_000_000)
    }

    /// The time from `earlier` to `self`; zero if `earlier` is later.
    pub const fn since(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Nanos {
    type Output = Nanos;
    fn add(self, other: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(other.0))
    }
}
