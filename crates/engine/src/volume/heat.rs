//! Heat map: how often each part of a volume was requested recently, as one row of counts per minute, for an hour.
//!
//! A request costs a shift and an addition: it is counted in the part where it begins, without reading the clock. The
//! sampler of the volume advances the clock, so a row ends with the first sample after its minute. A minute without
//! requests has no row, and a volume without requests takes no memory.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use seam::{BLOCK_BYTES, Nanos};

use crate::ByteOffset;
use crate::telemetry::OpKind;

/// Maximum number of parts. Part sizes are powers of two, so there are more than half as many, unless the volume has
/// fewer blocks.
pub const HEAT_PARTS: usize = 64;
/// Duration of a row.
pub const HEAT_ROW_DURATION: Nanos = Nanos::from_secs(60);
/// Maximum number of rows: 31 KiB.
pub const HEAT_ROWS_MAX: usize = 60;

/// Requests of one minute, by part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeatRow {
    /// Number of the minute on the seam's clock.
    pub minute: u64,
    /// Reads that began in each part.
    pub reads: [u32; HEAT_PARTS],
    /// Writes that began in each part.
    pub writes: [u32; HEAT_PARTS],
}

/// Recent requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeatStats {
    /// Size of a part in bytes.
    pub part_bytes: u64,
    /// Minutes with requests, the oldest first.
    pub rows: Vec<HeatRow>,
}

/// The heat map of a volume.
#[derive(Default)]
pub(super) struct Heat {
    /// Binary logarithm of a part's size in bytes.
    part_bytes_log2: Cell<u32>,
    /// Number of the minute in which requests count.
    current_minute: Cell<u64>,
    rows: RefCell<VecDeque<HeatRow>>,
}

impl Heat {
    /// Counts a request.
    #[inline]
    pub fn record(&self, op: OpKind, at: ByteOffset) {
        if !matches!(op, OpKind::Read | OpKind::Write) {
            return;
        }
        let mut rows = self.rows.borrow_mut();
        let minute = self.current_minute.get();
        if rows.back().is_none_or(|row| row.minute != minute) {
            begin_row(&mut rows, minute);
        }
        let row = rows.back_mut().expect("the minute has a row");
        let counts = if op == OpKind::Read { &mut row.reads } else { &mut row.writes };
        // Until the next [`Heat::advance`], requests past the last part of a grown volume count in the last part.
        let count = &mut counts[((at.0 >> self.part_bytes_log2.get()) as usize).min(HEAT_PARTS - 1)];
        *count = count.saturating_add(1);
    }

    /// Advances the clock: later requests count in the minute of `now`. Enlarges the parts if the volume has grown.
    pub fn advance(&self, now: Nanos, size_bytes: u64) {
        let minute = now.0 / HEAT_ROW_DURATION.0;
        self.current_minute.set(minute);
        let mut rows = self.rows.borrow_mut();
        while rows.front().is_some_and(|row| row.minute + HEAT_ROWS_MAX as u64 <= minute) {
            rows.pop_front();
        }
        let shift = self.part_bytes_log2.get().max(BLOCK_BYTES.ilog2());
        let new_shift = shift.max(size_bytes.div_ceil(HEAT_PARTS as u64).max(1).next_power_of_two().ilog2());
        for _ in self.part_bytes_log2.get()..new_shift {
            rows.iter_mut().flat_map(|row| [&mut row.reads, &mut row.writes]).for_each(merge_pairs);
        }
        self.part_bytes_log2.set(new_shift);
    }

    /// The recent requests.
    pub fn stats(&self) -> HeatStats {
        HeatStats { part_bytes: 1 << self.part_bytes_log2.get(), rows: self.rows.borrow().iter().cloned().collect() }
    }
}

/// Adds the row of a minute.
#[cold]
fn begin_row(rows: &mut VecDeque<HeatRow>, minute: u64) {
    if rows.capacity() == 0 {
        rows.reserve_exact(HEAT_ROWS_MAX);
    }
    assert!(rows.len() < HEAT_ROWS_MAX, "rows older than an hour were dropped when the minute began");
    rows.push_back(HeatRow { minute, reads: [0; HEAT_PARTS], writes: [0; HEAT_PARTS] });
}

/// Merges adjacent parts in pairs.
fn merge_pairs(counts: &mut [u32; HEAT_PARTS]) {
    *counts = std::array::from_fn(|part| match counts.get(2 * part..2 * part + 2) {
        Some(pair) => pair[0].saturating_add(pair[1]),
        None => 0,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn minute(number: u64) -> Nanos {
        Nanos(HEAT_ROW_DURATION.0 * number)
    }

    #[test]
    fn requests_are_counted_in_their_minute_and_their_part() {
        let heat = Heat::default();
        heat.advance(minute(7), 64 * MIB);
        assert_eq!(heat.stats(), HeatStats { part_bytes: MIB, rows: Vec::new() });
        assert_eq!(heat.rows.borrow().capacity(), 0, "an idle volume takes no memory");
        heat.record(OpKind::Read, ByteOffset::ZERO);
        heat.record(OpKind::Read, ByteOffset(MIB - 512));
        heat.record(OpKind::Write, ByteOffset(64 * MIB - 512));
        heat.record(OpKind::Flush, ByteOffset::ZERO);
        heat.record(OpKind::Zero, ByteOffset(MIB));
        heat.advance(minute(9), 64 * MIB);
        heat.record(OpKind::Read, ByteOffset(MIB));
        let rows = heat.stats().rows;
        let sums = |counts: &[u32; HEAT_PARTS]| counts.iter().sum::<u32>();
        let summary = |row: &HeatRow| (row.minute, sums(&row.reads), sums(&row.writes));
        assert_eq!(rows.iter().map(summary).collect::<Vec<_>>(), [(7, 2, 1), (9, 1, 0)]);
        assert_eq!((rows[0].reads[0], rows[0].writes[63], rows[1].reads[1]), (2, 1, 1));
    }

    #[test]
    fn rows_older_than_an_hour_are_dropped() {
        let heat = Heat::default();
        for number in 0..1_000 {
            heat.advance(minute(number), MIB);
            heat.record(OpKind::Write, ByteOffset::ZERO);
        }
        let rows = heat.stats().rows;
        assert_eq!((rows.len(), rows[0].minute), (HEAT_ROWS_MAX, 1_000 - HEAT_ROWS_MAX as u64));
        assert_eq!(heat.rows.borrow().capacity(), HEAT_ROWS_MAX);
        heat.advance(minute(2_000), MIB);
        assert_eq!(heat.stats().rows, []);
    }

    #[test]
    fn counts_are_kept_when_parts_grow() {
        let heat = Heat::default();
        heat.advance(minute(0), 64 * MIB);
        [0, MIB, 2 * MIB, 63 * MIB].into_iter().for_each(|at| heat.record(OpKind::Read, ByteOffset(at)));
        // Before the parts are enlarged, requests past the old end count in the last part.
        heat.record(OpKind::Read, ByteOffset(100 * MIB));
        heat.advance(minute(0), 64 * MIB + 1);
        let HeatStats { part_bytes, rows } = heat.stats();
        let reads = &rows[0].reads;
        assert_eq!((part_bytes, reads[0], reads[1], reads[31], reads[32..].iter().sum::<u32>()), (2 * MIB, 2, 1, 2, 0));
        // The parts of a shrunken volume keep their size.
        heat.advance(minute(0), MIB);
        assert_eq!(heat.stats().part_bytes, 2 * MIB);
        let tiny = Heat::default();
        tiny.advance(minute(0), 512);
        assert_eq!(tiny.stats().part_bytes, BLOCK_BYTES as u64);
    }
}
