//! A controller's battery-backed memory: it completes writes on arrival and destages them in address order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::layout::Layout;
use crate::Nanos;

/// Time to take a write into memory or to serve a read from it.
pub(super) const MEMORY_TIME: Nanos = Nanos::from_micros(80);

/// Once 1/4 of the memory is dirty, partly dirty rows are destaged without waiting for more writes.
const EAGER_DIVISOR: u64 = 4;

/// A write that waits for free memory.
#[derive(Clone, Copy)]
pub(super) struct WaitingWrite {
    pub(super) token: u64,
    pub(super) at: u64,
    pub(super) len: u64,
}

/// Dirty data of a row: one range, from the first to the last changed byte.
#[derive(Clone, Copy)]
struct DirtyRange {
    from: u64,
    to: u64,
}

/// The memory and the writes that wait for free memory.
pub(super) struct Controller {
    memory_bytes: u64,
    dirty_bytes: u64,
    /// Dirty ranges by row number. A row is one full stripe without its parity.
    rows: BTreeMap<u64, DirtyRange>,
    /// Rows that are dirty from end to end. The set avoids a search of all rows at every request.
    full_rows: BTreeSet<u64>,
    /// Row at which the search for the next destage starts.
    next_row: u64,
    pub(super) waiting: VecDeque<WaitingWrite>,
    /// Destage writes in flight.
    pub(super) destaging: usize,
}

impl Controller {
    pub(super) fn new(memory_bytes: u64) -> Controller {
        Controller {
            memory_bytes,
            dirty_bytes: 0,
            rows: BTreeMap::new(),
            full_rows: BTreeSet::new(),
            next_row: 0,
            waiting: VecDeque::new(),
            destaging: 0,
        }
    }

    /// Accepts a write if the memory has space for it. A write larger than the memory is accepted when the memory is
    /// empty.
    pub(super) fn accept_write(&mut self, layout: &Layout, at: u64, len: u64) -> bool {
        if self.dirty_bytes > 0 && self.dirty_bytes + len > self.memory_bytes {
            return false;
        }
        let row_bytes = layout.row_bytes();
        for row in at / row_bytes..=(at + len - 1) / row_bytes {
            let (from, to) = (at.max(row * row_bytes), (at + len).min((row + 1) * row_bytes));
            let dirty = self.rows.entry(row).or_insert(DirtyRange { from, to: from });
            self.dirty_bytes -= dirty.to - dirty.from;
            (dirty.from, dirty.to) = (dirty.from.min(from), dirty.to.max(to));
            self.dirty_bytes += dirty.to - dirty.from;
            if dirty.to - dirty.from == row_bytes {
                self.full_rows.insert(row);
            }
        }
        true
    }

    /// True if the memory covers all of a read.
    pub(super) fn covers_read(&self, layout: &Layout, at: u64, len: u64) -> bool {
        let row_bytes = layout.row_bytes();
        (at / row_bytes..=(at + len - 1) / row_bytes).all(|row| {
            let (from, to) = (at.max(row * row_bytes), (at + len).min((row + 1) * row_bytes));
            self.rows.get(&row).is_some_and(|dirty| dirty.from <= from && to <= dirty.to)
        })
    }

    /// Takes the next range to destage, in address order; `idle` means that the disks have no requests. Its memory
    /// becomes free when its write has completed.
    pub(super) fn take_next_destage(&mut self, idle: bool) -> Option<(u64, u64)> {
        let eager = idle || self.dirty_bytes >= self.memory_bytes / EAGER_DIVISOR || !self.waiting.is_empty();
        let row = match eager {
            true => {
                let ahead = self.rows.range(self.next_row..).next();
                *ahead.or_else(|| self.rows.iter().next())?.0
            }
            false => *self.full_rows.range(self.next_row..).next().or_else(|| self.full_rows.first())?,
        };
        let dirty = self.rows.remove(&row)?;
        self.full_rows.remove(&row);
        self.next_row = row + 1;
        self.destaging += 1;
        Some((dirty.from, dirty.to - dirty.from))
    }

    /// Records that a destage write of `len` bytes has completed.
    pub(super) fn complete_destage(&mut self, len: u64) {
        self.dirty_bytes -= len;
        self.destaging -= 1;
    }
}
