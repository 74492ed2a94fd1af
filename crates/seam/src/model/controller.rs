//! A controller's battery-backed write cache: it completes writes on arrival and destages them in address order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::layout::Layout;
use crate::Nanos;

/// Time to take a write into the cache or to serve a read from it.
pub(super) const CACHE_TIME: Nanos = Nanos::from_micros(80);

/// Once 1/4 of the cache is dirty, partly dirty stripes are destaged without waiting for more writes.
const EAGER_DIVISOR: u64 = 4;

/// A write that waits for free space in the cache.
#[derive(Clone, Copy)]
pub(super) struct WaitingWrite {
    pub(super) token: u64,
    pub(super) at: u64,
    pub(super) len: u64,
}

/// Dirty data of a stripe: one range, from the first to the last changed byte.
#[derive(Clone, Copy)]
struct DirtyRange {
    from: u64,
    to: u64,
}

/// The write cache and the writes that wait for free space in it.
pub(super) struct Controller {
    cache_bytes: u64,
    dirty_bytes: u64,
    /// Dirty ranges by stripe number. Only data counts, not parity.
    stripes: BTreeMap<u64, DirtyRange>,
    /// Stripes that are dirty from end to end. The set avoids a search of all stripes at every request.
    full_stripes: BTreeSet<u64>,
    /// Row at which the search for the next destage starts.
    next_stripe: u64,
    pub(super) waiting: VecDeque<WaitingWrite>,
    /// Destage writes in flight.
    pub(super) destaging: usize,
}

impl Controller {
    pub(super) fn new(cache_bytes: u64) -> Controller {
        Controller {
            cache_bytes,
            dirty_bytes: 0,
            stripes: BTreeMap::new(),
            full_stripes: BTreeSet::new(),
            next_stripe: 0,
            waiting: VecDeque::new(),
            destaging: 0,
        }
    }

    /// Accepts a write if the cache has space for it. A write larger than the cache is accepted when the cache is
    /// empty.
    pub(super) fn accept_write(&mut self, layout: &Layout, at: u64, len: u64) -> bool {
        if self.dirty_bytes > 0 && self.dirty_bytes + len > self.cache_bytes {
            return false;
        }
        let stripe_bytes = layout.stripe_bytes();
        for stripe in at / stripe_bytes..=(at + len - 1) / stripe_bytes {
            let (from, to) = (at.max(stripe * stripe_bytes), (at + len).min((stripe + 1) * stripe_bytes));
            let dirty = self.stripes.entry(stripe).or_insert(DirtyRange { from, to: from });
            self.dirty_bytes -= dirty.to - dirty.from;
            (dirty.from, dirty.to) = (dirty.from.min(from), dirty.to.max(to));
            self.dirty_bytes += dirty.to - dirty.from;
            if dirty.to - dirty.from == stripe_bytes {
                self.full_stripes.insert(stripe);
            }
        }
        true
    }

    /// True if the cache covers all of a read.
    pub(super) fn covers_read(&self, layout: &Layout, at: u64, len: u64) -> bool {
        let stripe_bytes = layout.stripe_bytes();
        (at / stripe_bytes..=(at + len - 1) / stripe_bytes).all(|stripe| {
            let (from, to) = (at.max(stripe * stripe_bytes), (at + len).min((stripe + 1) * stripe_bytes));
            self.stripes.get(&stripe).is_some_and(|dirty| dirty.from <= from && to <= dirty.to)
        })
    }

    /// Takes the next range to destage, in address order; `idle` means that the disks have no requests. Its memory
    /// becomes free when its write has completed.
    pub(super) fn take_next_destage(&mut self, idle: bool) -> Option<(u64, u64)> {
        let eager = idle || self.dirty_bytes >= self.cache_bytes / EAGER_DIVISOR || !self.waiting.is_empty();
        let stripe = match eager {
            true => {
                let ahead = self.stripes.range(self.next_stripe..).next();
                *ahead.or_else(|| self.stripes.iter().next())?.0
            }
            false => *self.full_stripes.range(self.next_stripe..).next().or_else(|| self.full_stripes.first())?,
        };
        let dirty = self.stripes.remove(&stripe)?;
        self.full_stripes.remove(&stripe);
        self.next_stripe = stripe + 1;
        self.destaging += 1;
        Some((dirty.from, dirty.to - dirty.from))
    }

    /// Records that a destage write of `len` bytes has completed.
    pub(super) fn complete_destage(&mut self, len: u64) {
        self.dirty_bytes -= len;
        self.destaging -= 1;
    }
}
