//! The heat of one volume's slices, in chunks that exist where a slice had demand.
//!
//! A thin volume may have far more slices than allocated ones, so a chunk is made by the first request to an allocated
//! slice in it. Chunks without one take 8 bytes, as in the map of the volume.

use seam::Nanos;

use crate::heat::{Demand, ENCODED_BYTES, HeatTable, PER_ACCESS, RequestDemand, SWEEP_PERIOD};
use crate::number::SliceNo;
use crate::planner::RECENT_PERCENT;

/// Slices of a chunk.
pub(crate) const CHUNK: usize = 1024;
/// Slices that a request sweeps in its chunk when a sweep is due.
const SWEEP_STEP: usize = 8;
/// Age of a chunk's landmark at which a request sweeps it at once: codes saturate after about 40 hours.
const OVERDUE: Nanos = Nanos(12 * SWEEP_PERIOD.0);

/// Heat of a volume.
#[derive(Debug, Default)]
pub(crate) struct VolumeHeat {
    chunks: Vec<Option<Box<HeatTable>>>,
}

impl VolumeHeat {
    /// Adds a request to a slice.
    pub fn record(&mut self, slice: SliceNo, now: Nanos, request: &RequestDemand) {
        let (number, index) = (slice.index() / CHUNK, slice.index() % CHUNK);
        if number >= self.chunks.len() {
            self.chunks.resize_with(number + 1, || None);
        }
        let table = self.chunks[number].get_or_insert_with(|| Box::new(HeatTable::new(CHUNK, now, number as u64)));
        let step = if table.landmark_age(now) >= OVERDUE { CHUNK } else { SWEEP_STEP };
        table.tick(now, step);
        table.record(index, now, request);
    }

    /// The demand that the planner expects of a slice.
    pub fn expected(&self, slice: SliceNo, now: Nanos) -> Demand {
        let (number, index) = (slice.index() / CHUNK, slice.index() % CHUNK);
        let Some(Some(table)) = self.chunks.get(number) else { return Demand::default() };
        Demand::blend(table.recent(index, now), table.daily(index, now), RECENT_PERCENT)
    }

    /// Makes a slice cold: it was freed.
    pub fn clear(&mut self, slice: SliceNo) {
        if let Some(Some(table)) = self.chunks.get_mut(slice.index() / CHUNK) {
            table.clear(slice.index() % CHUNK);
        }
    }

    /// Numbers of the chunks that had demand.
    pub fn chunk_numbers(&self) -> Vec<u32> {
        (0..).zip(&self.chunks).filter(|(_, chunk)| chunk.is_some()).map(|(number, _)| number).collect()
    }

    /// The load of a chunk by the half-life of one day, to rank chunks; 0 for an idle one.
    pub fn chunk_load(&self, number: u32, now: Nanos) -> u64 {
        /// Bytes that count as much as a random access.
        const ACCESS_BYTES: u64 = 1 << 20;
        let Some(Some(table)) = self.chunks.get(number as usize) else { return 0 };
        let load = |slice| {
            let demand = table.daily(slice, now);
            demand.reads.saturating_add(demand.writes).saturating_add(demand.bytes / ACCESS_BYTES * PER_ACCESS)
        };
        (0..CHUNK).map(load).fold(0, u64::saturating_add)
    }

    /// Appends the durable form of a chunk ([`HeatTable::encode`]).
    pub fn encode_chunk(&self, number: u32, now: Nanos, out: &mut Vec<u8>) {
        match self.chunks.get(number as usize) {
            Some(Some(table)) => table.encode(0..CHUNK, now, out),
            _ => out.resize(out.len() + CHUNK * ENCODED_BYTES, 0),
        }
    }

    /// Takes over the durable form of a chunk that is `age` old, unless the chunk has had demand already. Slices for
    /// which `is_allocated` does not hold stay cold.
    pub fn decode_chunk(
        &mut self,
        number: u32,
        words: &[u8],
        now: Nanos,
        age: Nanos,
        is_allocated: impl Fn(usize) -> bool,
    ) {
        let number = number as usize;
        if number >= self.chunks.len() {
            self.chunks.resize_with(number + 1, || None);
        }
        if self.chunks[number].is_some() {
            return;
        }
        let mut table = HeatTable::new(CHUNK, now, number as u64);
        table.decode(0..CHUNK, words, now, age).expect("a chunk of an image has the length of a chunk");
        (0..CHUNK).filter(|slice| !is_allocated(*slice)).for_each(|slice| table.clear(slice));
        self.chunks[number] = Some(Box::new(table));
    }

    /// Drops the chunks past the volume's last slice. Freed slices in the last chunk are cleared one by one.
    pub fn truncate(&mut self, end: SliceNo) {
        self.chunks.truncate(end.index().div_ceil(CHUNK));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = SWEEP_PERIOD.0;

    #[test]
    fn only_chunks_with_demand_take_memory() {
        let mut heat = VolumeHeat::default();
        heat.record(SliceNo(5_000_000), Nanos::ZERO, &RequestDemand::random(false, 4096));
        assert_eq!(heat.chunks.iter().flatten().count(), 1);
        assert!(!heat.expected(SliceNo(5_000_000), Nanos::ZERO).is_idle());
        assert!(heat.expected(SliceNo(5_000_001), Nanos::ZERO).is_idle());
        assert!(heat.expected(SliceNo(9_000_000), Nanos::ZERO).is_idle());
        heat.truncate(SliceNo(1024));
        assert!(heat.chunks.len() <= 1);
    }

    #[test]
    fn idle_weeks_do_not_saturate_the_next_request() {
        let request = RequestDemand::random(false, 4096);
        let (mut old, mut new) = (VolumeHeat::default(), VolumeHeat::default());
        old.record(SliceNo(900), Nanos::ZERO, &request);
        let start = 500 * HOUR;
        for minute in 0..600 {
            let now = Nanos(start + minute * HOUR / 60);
            (0..20).for_each(|_| old.record(SliceNo(900), now, &request));
            (0..20).for_each(|_| new.record(SliceNo(900), now, &request));
        }
        let now = Nanos(start + 10 * HOUR);
        let (old, new) = (old.expected(SliceNo(900), now).reads, new.expected(SliceNo(900), now).reads);
        assert!(old.abs_diff(new) * 20 < new, "{old} and {new}");
    }
}
