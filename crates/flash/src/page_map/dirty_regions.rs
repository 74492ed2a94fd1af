//! The dirty regions of the write-intent log (R8, docs/rules.md). While a region is durably dirty, further writes to it
//! need no record. A durably dirty region is settled when all its writes have ended and a flush of the backing covers
//! them. Settled regions are cleared lazily, because writes tend to return to the same region.

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};

use crate::format::journal::JournalRecord;
use crate::number::{BlockNo, CompletionNo};

/// Blocks of a region, the unit of the write-intent log: 4 MiB.
pub const REGION_BLOCKS: u64 = 1024;

/// Maximum number of dirty regions.
pub const DIRTY_REGIONS_MAX: usize = 256;
/// Number of dirty regions from which on settled ones are cleared without waiting until the store is idle.
pub const DIRTY_REGIONS_HIGH_WATERMARK: usize = 192;

/// A region of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Region {
    /// The volume's number.
    pub volume_number: u16,
    /// The region's index in the volume.
    pub index: u64,
}

impl Region {
    /// The blocks of the region.
    pub fn blocks(self) -> Range<BlockNo> {
        BlockNo(self.index * REGION_BLOCKS).range_of_len(REGION_BLOCKS)
    }

    /// All regions that a volume may have.
    fn all_of(volume_number: u16) -> RangeInclusive<Region> {
        Region { volume_number, index: 0 }..=Region { volume_number, index: u64::MAX }
    }

    /// The journal record that the region is dirty, or no longer dirty.
    pub fn record(self, is_dirty: bool) -> JournalRecord {
        JournalRecord::DirtyRegion { volume_number: self.volume_number, region: self.index, is_dirty }
    }
}

/// The state of one dirty region.
#[derive(Clone, Copy, Debug, Default)]
struct DirtyRegion {
    /// Number of this dirty period: a region that was cleared and marked again gets a new one.
    period: u64,
    /// A durable record marks the region as dirty.
    is_durable: bool,
    /// Writes in flight.
    writes_in_flight: u32,
    /// The last completion that is not covered by a flush of the backing.
    unflushed: Option<CompletionNo>,
    /// The value of [`DirtyRegions::write_count`] at the region's last write.
    last_write_count: u64,
}

impl DirtyRegion {
    /// True when it is durably dirty, all its writes have ended, and a flush of the backing covers them.
    fn is_settled(&self) -> bool {
        self.is_durable && self.writes_in_flight == 0 && self.unflushed.is_none()
    }
}

/// All dirty regions.
#[derive(Default)]
pub struct DirtyRegions {
    regions: BTreeMap<Region, DirtyRegion>,
    /// Counts writes that begin, once for each region, and restored regions.
    write_count: u64,
}

impl DirtyRegions {
    /// A counter that grows with every write that begins.
    pub fn write_count(&self) -> u64 {
        self.write_count
    }

    /// Number of dirty regions.
    pub fn len(&self) -> usize {
        self.regions.len()
    }

    /// True when the region is durably dirty.
    pub fn is_durable(&self, region: Region) -> bool {
        self.regions.get(&region).is_some_and(|dirty| dirty.is_durable)
    }

    /// Begins a write to a region. Returns the number of its dirty period, and a record if the region was clean.
    pub fn begin_write(&mut self, region: Region) -> (u64, Option<JournalRecord>) {
        self.write_count += 1;
        let new = !self.regions.contains_key(&region);
        let dirty =
            self.regions.entry(region).or_insert(DirtyRegion { period: self.write_count, ..DirtyRegion::default() });
        dirty.writes_in_flight += 1;
        dirty.last_write_count = self.write_count;
        (dirty.period, new.then(|| region.record(true)))
    }

    /// Ends a write that began in this dirty period of a region, as this completion.
    pub fn end_write(&mut self, region: Region, period: u64, completion: CompletionNo) {
        if let Some(dirty) = self.regions.get_mut(&region).filter(|dirty| dirty.period == period) {
            dirty.writes_in_flight = dirty.writes_in_flight.checked_sub(1).expect("a write ends once");
            dirty.unflushed = dirty.unflushed.max(Some(completion));
        }
    }

    /// Records that a flush of a volume's backing has covered completions below `covered`.
    pub fn record_flush(&mut self, volume_number: u16, covered: CompletionNo) {
        for dirty in self.regions.range_mut(Region::all_of(volume_number)).map(|(_, dirty)| dirty) {
            dirty.unflushed = dirty.unflushed.filter(|completion| *completion >= covered);
        }
    }

    /// Records that the commit that marks this region dirty is durable.
    pub fn set_durable(&mut self, region: Region) {
        if let Some(dirty) = self.regions.get_mut(&region) {
            dirty.is_durable = true;
        }
    }

    /// Restores a dirty region that recovery has found.
    pub fn restore(&mut self, region: Region) {
        self.write_count += 1;
        self.regions
            .insert(region, DirtyRegion { period: self.write_count, is_durable: true, ..DirtyRegion::default() });
    }

    /// True if the region is dirty and not settled: a crash now would leave it dirty.
    pub fn is_unsettled(&self, region: Region) -> bool {
        self.regions.get(&region).is_some_and(|dirty| !dirty.is_settled())
    }

    /// True when at least one region is settled.
    pub fn has_settled(&self) -> bool {
        self.regions.values().any(DirtyRegion::is_settled)
    }

    /// Settled regions, least recently written first.
    pub fn settled(&self) -> Vec<Region> {
        let mut settled: Vec<_> = self
            .regions
            .iter()
            .filter(|(_, dirty)| dirty.is_settled())
            .map(|(region, dirty)| (dirty.last_write_count, *region))
            .collect();
        settled.sort_unstable();
        settled.into_iter().map(|(_, region)| region).collect()
    }

    /// True when ended writes of the volume are not yet covered by a flush of the backing.
    pub fn awaits_flush(&self, volume_number: u16) -> bool {
        let of_volume = self.regions.range(Region::all_of(volume_number));
        of_volume.into_iter().any(|(_, dirty)| dirty.unflushed.is_some())
    }

    /// Clears a region. Returns the record of the change.
    pub fn clear(&mut self, region: Region) -> JournalRecord {
        self.regions.remove(&region);
        region.record(false)
    }

    /// Drops the regions of a removed volume.
    pub fn remove_volume(&mut self, volume_number: u16) {
        self.regions.retain(|region, _| region.volume_number != volume_number);
    }

    /// Drops all regions.
    pub fn clear_all(&mut self) {
        self.regions.clear();
    }

    /// All dirty regions.
    pub fn regions(&self) -> impl Iterator<Item = Region> + '_ {
        self.regions.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: Region = Region { volume_number: 1, index: 7 };

    #[test]
    fn region_is_settled_by_the_flush_that_covers_its_last_write() {
        let mut regions = DirtyRegions::default();
        let (period, record) = regions.begin_write(REGION);
        assert!(record.is_some() && regions.begin_write(REGION) == (period, None));
        regions.set_durable(REGION);
        regions.end_write(REGION, period, CompletionNo(4));
        regions.record_flush(1, CompletionNo(100));
        assert!(regions.settled().is_empty(), "one write is in flight");
        regions.end_write(REGION, period, CompletionNo(101));
        regions.record_flush(1, CompletionNo(101));
        assert!(regions.settled().is_empty(), "the flush covers only lower numbers");
        regions.record_flush(2, CompletionNo(200));
        assert!(regions.settled().is_empty(), "another volume's flush");
        regions.record_flush(1, CompletionNo(102));
        assert_eq!(regions.settled(), [REGION]);
    }
}
