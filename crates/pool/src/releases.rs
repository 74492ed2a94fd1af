//! Zero-ranges that may free whole slices and have not ended. A write that is acknowledged meanwhile cannot count on
//! the space of these slices.

use std::ops::Range;

use crate::number::{SliceNo, VolumeId};
use task_sync::{Reply, Waiters};

/// The ranges in progress; as many as zero requests of all volumes.
#[derive(Default)]
pub(crate) struct Releases {
    ranges: Vec<(u64, VolumeId, Range<SliceNo>)>,
    next_number: u64,
    ended: Waiters,
}

impl Releases {
    /// Adds the range of a request, and returns its number.
    pub fn begin(&mut self, volume: VolumeId, slices: Range<SliceNo>) -> u64 {
        self.next_number += 1;
        self.ranges.push((self.next_number, volume, slices));
        self.next_number
    }

    /// Removes a range.
    pub fn end(&mut self, number: u64) {
        self.ranges.retain(|(other, ..)| *other != number);
        self.ended.wake();
    }

    /// True if a slice of these may be freed.
    pub fn overlaps(&self, volume: VolumeId, slices: &Range<SliceNo>) -> bool {
        let overlaps = |range: &Range<SliceNo>| range.start < slices.end && slices.start < range.end;
        self.ranges.iter().any(|(_, other, range)| *other == volume && overlaps(range))
    }

    /// A reply at the end of the next request.
    pub fn wait_for_end(&mut self) -> Reply<()> {
        self.ended.add()
    }
}
