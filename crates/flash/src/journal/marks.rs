//! The write-intent log: dirty regions (R8). While a region is durably marked, further writes to it need no other
//! record. A mark is removed when all writes of its region have ended and a flush of the backing covers them. It is
//! removed lazily, because writes tend to return to the same region.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::format::journal::Record;
use crate::number::{BlockNo, CompletionNo};
use crate::pages::REGION_BLOCKS;

/// The most regions that may be dirty at once.
pub const MARKS_MAX: usize = 256;
/// From this number of marks on, settled ones are removed without waiting for idleness.
pub const MARKS_MANY: usize = 192;

/// A volume's number and a region of it.
pub type Region = (u16, u64);

/// The blocks of a region.
pub fn blocks_of(region: Region) -> Range<BlockNo> {
    BlockNo(region.1 * REGION_BLOCKS).run(REGION_BLOCKS)
}

/// The mark of one dirty region.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    /// Tells it apart from earlier and later marks of its region.
    number: u64,
    durable: bool,
    /// Writes in flight.
    active: u32,
    /// The last completion that is not covered by a flush of the backing.
    unflushed: Option<CompletionNo>,
    used: u64,
}

impl Mark {
    fn is_settled(&self) -> bool {
        self.durable && self.active == 0 && self.unflushed.is_none()
    }
}

/// All dirty regions.
#[derive(Default)]
pub struct Marks {
    regions: BTreeMap<Region, Mark>,
    clock: u64,
}

impl Marks {
    /// The clock of writes: it advances with every write that begins.
    pub fn writes(&self) -> u64 {
        self.clock
    }

    /// The number of marked regions.
    pub fn len(&self) -> usize {
        self.regions.len()
    }

    /// True when the region is durably marked.
    pub fn is_durable(&self, region: Region) -> bool {
        self.regions.get(&region).is_some_and(|mark| mark.durable)
    }

    /// Begins a write to a region. Returns the mark's number, and for a new mark the record that it needs.
    pub fn begin(&mut self, region: Region) -> (u64, Option<Record>) {
        self.clock += 1;
        let new = !self.regions.contains_key(&region);
        let mark = self.regions.entry(region).or_insert(Mark { number: self.clock, ..Mark::default() });
        mark.active += 1;
        mark.used = self.clock;
        let record = Record::Flux { volume: region.0, region: region.1, on: true };
        (mark.number, new.then_some(record))
    }

    /// Ends a write to a region.
    pub fn end(&mut self, region: Region, number: u64, sequence: CompletionNo) {
        if let Some(mark) = self.regions.get_mut(&region).filter(|mark| mark.number == number) {
            mark.active = mark.active.checked_sub(1).expect("a write ends once");
            mark.unflushed = mark.unflushed.max(Some(sequence));
        }
    }

    /// Notes that a flush of a volume's backing has covered completions below `covered`.
    pub fn flushed(&mut self, volume: u16, covered: CompletionNo) {
        for mark in self.regions.range_mut((volume, 0)..=(volume, u64::MAX)).map(|(_, mark)| mark) {
            mark.unflushed = mark.unflushed.filter(|sequence| *sequence >= covered);
        }
    }

    /// Notes that the commit that marks this region is durable.
    pub fn set_durable(&mut self, region: Region) {
        if let Some(mark) = self.regions.get_mut(&region) {
            mark.durable = true;
        }
    }

    /// Restores a mark that recovery has found.
    pub fn recovered(&mut self, region: Region) {
        self.clock += 1;
        self.regions.insert(region, Mark { number: self.clock, durable: true, ..Mark::default() });
    }

    /// True when at least one region is settled.
    pub fn any_settled(&self) -> bool {
        self.regions.values().any(Mark::is_settled)
    }

    /// Settled regions, least recently used first.
    pub fn settled(&self) -> Vec<Region> {
        let mut settled: Vec<_> = self
            .regions
            .iter()
            .filter(|(_, mark)| mark.is_settled())
            .map(|(region, mark)| (mark.used, *region))
            .collect();
        settled.sort_unstable();
        settled.into_iter().map(|(_, region)| region).collect()
    }

    /// True when writes of the volume have ended and wait for a flush of the backing.
    pub fn wait_for_flush(&self, volume: u16) -> bool {
        let of_volume = self.regions.range((volume, 0)..=(volume, u64::MAX));
        of_volume.into_iter().any(|(_, mark)| mark.unflushed.is_some())
    }

    /// Removes a region's mark. Returns the record of the removal.
    pub fn take_off(&mut self, region: Region) -> Record {
        self.regions.remove(&region);
        Record::Flux { volume: region.0, region: region.1, on: false }
    }

    /// Drops the marks of a volume that is gone.
    pub fn forget(&mut self, volume: u16) {
        self.regions.retain(|region, _| region.0 != volume);
    }

    /// Drops all marks.
    pub fn clear(&mut self) {
        self.regions.clear();
    }

    /// All marked regions.
    pub fn regions(&self) -> impl Iterator<Item = Region> + '_ {
        self.regions.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mark_is_settled_by_the_flush_that_covers_its_last_write() {
        let mut marks = Marks::default();
        let (number, record) = marks.begin((1, 7));
        assert!(record.is_some() && marks.begin((1, 7)) == (number, None));
        marks.set_durable((1, 7));
        marks.end((1, 7), number, CompletionNo(4));
        marks.flushed(1, CompletionNo(100));
        assert!(marks.settled().is_empty(), "one write is in flight");
        marks.end((1, 7), number, CompletionNo(101));
        marks.flushed(1, CompletionNo(101));
        assert!(marks.settled().is_empty(), "the flush covers lower numbers alone");
        marks.flushed(2, CompletionNo(200));
        assert!(marks.settled().is_empty(), "another volume's flush");
        marks.flushed(1, CompletionNo(102));
        assert_eq!(marks.settled(), [(1, 7)]);
    }
}
