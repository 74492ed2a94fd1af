//! The heat of all slices of a pool, 8 bytes each.
//!
//! A sweep in bounded steps ([`HeatTable::tick`]) moves the landmark of each slice once an hour; without it codes would
//! grow until they saturate, after a day or more. Slices before the cursor have the landmark of the running sweep, the
//! others that of the last one.

use std::ops::Range;

use seam::Nanos;

use super::word::{HeatWord, SWEEP_PERIOD};
use super::{Demand, RequestDemand};

/// Bytes of one slice in the durable form.
pub const ENCODED_BYTES: usize = 8;

/// The durable form of a range of slices does not fit the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the heat of {slices} slices takes {} bytes, not {bytes}", slices * ENCODED_BYTES)]
pub struct HeatTableError {
    /// Slices of the range.
    pub slices: usize,
    /// Bytes of the durable form.
    pub bytes: usize,
}

/// Heat by slice.
///
/// Invariants:
/// 1. `landmark` ≤ `next_landmark`, both whole periods; they are equal between sweeps.
/// 2. Slices below `cursor` have the landmark `next_landmark`, the others `landmark`.
#[derive(Clone, Debug)]
pub struct HeatTable {
    words: Vec<HeatWord>,
    landmark: Nanos,
    next_landmark: Nanos,
    cursor: usize,
    /// State of the generator that rounds codes (SplitMix64).
    random: u64,
}

impl HeatTable {
    /// A table of cold slices at the time `now`; `seed` starts the random rounding.
    pub fn new(slices: usize, now: Nanos, seed: u64) -> HeatTable {
        let landmark = whole_periods(now);
        HeatTable {
            words: vec![HeatWord::default(); slices],
            landmark,
            next_landmark: landmark,
            cursor: 0,
            random: seed,
        }
    }

    /// Number of slices.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// True without slices.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Changes the number of slices; new ones are cold.
    pub fn resize(&mut self, slices: usize) {
        self.words.resize(slices, HeatWord::default());
        self.cursor = self.cursor.min(slices);
    }

    /// Makes a slice cold: it was freed.
    pub fn clear(&mut self, slice: usize) {
        self.words[slice] = HeatWord::default();
    }

    /// Adds a request.
    pub fn record(&mut self, slice: usize, now: Nanos, request: &RequestDemand) {
        let elapsed = now.since(self.landmark_of(slice));
        let random = &mut self.random;
        self.words[slice].record(request, elapsed, || next_random(random));
    }

    /// Demand of a slice by the half-life of one hour.
    pub fn recent(&self, slice: usize, now: Nanos) -> Demand {
        self.words[slice].recent(now.since(self.landmark_of(slice)))
    }

    /// Demand of a slice by the half-life of one day.
    pub fn daily(&self, slice: usize, now: Nanos) -> Demand {
        self.words[slice].daily(now.since(self.landmark_of(slice)))
    }

    /// Sweeps at most `slices_max` slices; returns true while slices remain. Call it again after a while, then.
    pub fn tick(&mut self, now: Nanos, slices_max: usize) -> bool {
        if self.landmark == self.next_landmark {
            self.next_landmark = whole_periods(now).max(self.landmark);
            self.cursor = 0;
        }
        let by = self.next_landmark - self.landmark;
        if by == Nanos::ZERO {
            return false;
        }
        let end = self.cursor.saturating_add(slices_max).min(self.words.len());
        for word in &mut self.words[self.cursor..end] {
            *word = word.advance_landmark(by);
        }
        self.cursor = end;
        if end == self.words.len() {
            self.landmark = self.next_landmark;
        }
        self.landmark < self.next_landmark
    }

    /// Appends the durable form of a range of slices: their heat as of `now`, [`ENCODED_BYTES`] each, little-endian.
    /// The caller stores the wall-clock time and a version beside it.
    pub fn encode(&self, slices: Range<usize>, now: Nanos, out: &mut Vec<u8>) {
        for slice in slices {
            let word = self.words[slice].advance_landmark(now.since(self.landmark_of(slice)));
            out.extend_from_slice(&word.0.to_le_bytes());
        }
    }

    /// Replaces the heat of a range of slices by the durable form that is `age` old.
    pub fn decode(&mut self, slices: Range<usize>, bytes: &[u8], now: Nanos, age: Nanos) -> Result<(), HeatTableError> {
        if bytes.len() != slices.len() * ENCODED_BYTES {
            return Err(HeatTableError { slices: slices.len(), bytes: bytes.len() });
        }
        for (slice, encoded) in slices.zip(bytes.as_chunks::<ENCODED_BYTES>().0) {
            let word = HeatWord(u64::from_le_bytes(*encoded));
            let elapsed = now.since(self.landmark_of(slice));
            self.words[slice] = word.advance_landmark(age).retreat_landmark(elapsed);
        }
        Ok(())
    }

    /// Time since the landmark of the slices that the last sweep has not reached.
    pub fn landmark_age(&self, now: Nanos) -> Nanos {
        now.since(self.landmark)
    }

    fn landmark_of(&self, slice: usize) -> Nanos {
        if slice < self.cursor { self.next_landmark } else { self.landmark }
    }
}

fn whole_periods(now: Nanos) -> Nanos {
    Nanos(now.0 / SWEEP_PERIOD.0 * SWEEP_PERIOD.0)
}

fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let a = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let b = (a ^ (a >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    b ^ (b >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000_000_000;

    fn table_with_load() -> HeatTable {
        let mut table = HeatTable::new(1000, Nanos(17 * MINUTE), 1);
        for minute in 17..90 {
            for slice in 0..1000 {
                table.record(slice, Nanos(minute * MINUTE), &RequestDemand::random(slice % 3 == 0, 16 << 10));
            }
        }
        table
    }

    #[test]
    fn sweep_in_small_steps_changes_no_reading() {
        let mut table = table_with_load();
        let now = Nanos(5 * 60 * MINUTE);
        let read = |table: &HeatTable| -> Vec<_> {
            (0..1000).map(|slice| (table.recent(slice, now), table.daily(slice, now))).collect()
        };
        let before = read(&table);
        let mut steps = 0;
        while table.tick(now, 64) {
            steps += 1;
            assert_eq!(read(&table), before, "step {steps}");
        }
        assert_eq!(steps, 1000 / 64);
        assert_eq!(read(&table), before);
        assert!(!table.tick(now, 64), "the next sweep is due an hour later");
    }

    #[test]
    fn requests_during_a_sweep_weigh_the_same_on_both_sides_of_the_cursor() {
        let now = Nanos(6 * 60 * MINUTE);
        let mut table = HeatTable::new(200, Nanos::ZERO, 1);
        assert!(table.tick(now, 100));
        for slice in 0..200 {
            for _ in 0..2_000 {
                table.record(slice, now, &RequestDemand::random(false, 4096));
            }
        }
        let mean = |slices: Range<usize>| slices.map(|slice| table.recent(slice, now).reads).sum::<u64>() / 100;
        let (swept, unswept) = (mean(0..100), mean(100..200));
        assert!(swept.abs_diff(unswept) * 100 < swept, "{swept} and {unswept}");
    }

    #[test]
    fn durable_form_keeps_the_heat_within_two_steps_and_ages() {
        let table = table_with_load();
        let (saved_at, age) = (Nanos(101 * MINUTE), Nanos(60 * MINUTE));
        let mut bytes = Vec::new();
        table.encode(10..20, saved_at, &mut bytes);
        assert_eq!(bytes.len(), 10 * ENCODED_BYTES);
        // The clock of the next process starts anew.
        let mut loaded = HeatTable::new(1000, Nanos(3 * MINUTE), 1);
        loaded.decode(10..20, &bytes, Nanos(3 * MINUTE), age).unwrap();
        for slice in 10..20 {
            let (old, new) = (table.recent(slice, saved_at + age), loaded.recent(slice, Nanos(3 * MINUTE)));
            assert!(old.reads.abs_diff(new.reads) * 500 <= old.reads, "{old:?} and {new:?}");
            assert!(old.bytes.abs_diff(new.bytes) * 60 <= old.bytes, "{old:?} and {new:?}");
        }
        assert!(loaded.recent(9, Nanos(3 * MINUTE)).is_idle());
        let error = loaded.decode(0..10, &bytes[1..], Nanos::ZERO, age).unwrap_err();
        assert_eq!(error.to_string(), "the heat of 10 slices takes 80 bytes, not 79");
    }

    #[test]
    fn resized_and_cleared_slices_are_cold() {
        let mut table = table_with_load();
        let now = Nanos(90 * MINUTE);
        table.clear(3);
        table.resize(500);
        table.resize(600);
        assert!(table.recent(3, now).is_idle() && table.daily(550, now).is_idle());
        assert!(!table.recent(4, now).is_idle());
        assert_eq!((table.len(), table.is_empty()), (600, false));
    }
}
