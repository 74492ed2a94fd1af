//! The two miss-ratio curves of a volume: of blocks for memory, and of pages for flash.

use flash::{PAGE_BLOCKS, PageNo};
use seam::BLOCK_BYTES;

use super::Curve;
use super::reuse_histogram::BUCKETS_PER_OCTAVE;
use crate::ByteOffset;
use crate::page_hash::page_hash;

/// Maximum number of points reported of a curve: from a 4,096th of the working set to slightly more than all of it,
/// each 14 % above the last.
pub const POINTS_MAX: usize = 64;
/// The smallest size is the working set divided by this.
const SMALLEST_DIVISOR: f64 = 4_096.0;

/// Bytes of a block.
const BLOCK: u64 = BLOCK_BYTES as u64;
/// Bytes of a page.
const PAGE: u64 = BLOCK * PAGE_BLOCKS as u64;

/// The live curves of a volume, updated by each request of a client.
#[derive(Default)]
pub struct VolumeCurves {
    memory: Curve,
    flash: Curve,
}

/// A point of a miss-ratio curve.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CurvePoint {
    /// Cache size.
    pub size_bytes: u64,
    /// Miss ratio of an LRU of that size, by blocks or pages.
    pub miss_ratio: f64,
}

/// Points of one curve, and the load that it describes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CurveStats {
    /// Bytes of a block or page.
    pub unit_bytes: u64,
    /// Uses of blocks or pages, with older ones counting less.
    pub uses: u64,
    /// Bytes of the blocks or pages used recently.
    pub working_set_bytes: u64,
    /// Points by growing size; empty before the first use.
    pub points: Vec<CurvePoint>,
}

/// A snapshot of the curves of a volume, for reports.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VolumeCurveStats {
    /// In blocks of 4 KiB.
    pub memory: CurveStats,
    /// In pages of 64 KiB.
    pub flash: CurveStats,
}

impl VolumeCurves {
    /// Records a read or write of `len_bytes` bytes at `at`.
    pub fn record_use(&mut self, at: ByteOffset, len_bytes: u64) {
        let (at, end) = (at.0, at.plus(len_bytes).0);
        (at / BLOCK..end.div_ceil(BLOCK)).for_each(|block| self.memory.record_use(key(block)));
        (at / PAGE..end.div_ceil(PAGE)).for_each(|page| self.flash.record_use(key(page)));
    }

    /// Returns a snapshot of both curves, in a bounded number of points.
    pub fn stats(&self) -> VolumeCurveStats {
        VolumeCurveStats { memory: stats(&self.memory, BLOCK), flash: stats(&self.flash, PAGE) }
    }

    /// The curve of blocks.
    pub fn memory(&mut self) -> &mut Curve {
        &mut self.memory
    }
}

/// Hash of a block or page number. It leaves out the volume's number, so that a volume attached again samples the same
/// pages.
fn key(number: u64) -> u64 {
    page_hash(0, PageNo(number))
}

/// Points of a curve whose blocks or pages have `unit_bytes` bytes.
fn stats(curve: &Curve, unit_bytes: u64) -> CurveStats {
    let working_set = curve.working_set();
    // One bucket of the histogram more, so that the last point lies past the longest distance.
    let units_max = working_set + working_set / BUCKETS_PER_OCTAVE as u64 + 1;
    let size = |index: usize| {
        let fraction = SMALLEST_DIVISOR.powf(index as f64 / (POINTS_MAX - 1) as f64 - 1.0);
        (units_max as f64 * fraction).round() as u64
    };
    let mut sizes: Vec<u64> = (0..POINTS_MAX).map(size).filter(|units| *units > 0 && working_set > 0).collect();
    sizes.dedup();
    let points = sizes.iter().zip(curve.miss_ratios(sizes.iter().copied()));
    let point = |(units, miss_ratio): (&u64, f64)| CurvePoint { size_bytes: units * unit_bytes, miss_ratio };
    CurveStats {
        unit_bytes,
        uses: curve.uses(),
        working_set_bytes: working_set * unit_bytes,
        points: points.map(point).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_uses_its_blocks_and_its_pages() {
        let mut curves = VolumeCurves::default();
        assert_eq!(curves.stats().memory.points, []);
        for round in 0..4 {
            (0..2_000).for_each(|page| curves.record_use(ByteOffset(page * PAGE + 60 * 1024), 8 * 1024));
            assert_eq!(curves.memory.uses(), (round + 1) * 4_000);
            assert_eq!(curves.flash.uses(), (round + 1) * 4_000);
        }
        let VolumeCurveStats { memory, flash } = curves.stats();
        assert!(memory.points.len() <= POINTS_MAX && flash.points.len() <= POINTS_MAX);
        let near = |value: u64, wanted: u64| value.abs_diff(wanted) < wanted / 5;
        assert!(near(memory.working_set_bytes, 4_000 * BLOCK), "{memory:?}");
        assert!(near(flash.working_set_bytes, 2_001 * PAGE), "{flash:?}");
        let last = |stats: &CurveStats| stats.points.last().expect("the curve has points").miss_ratio;
        assert!((last(&memory) - 0.25).abs() < 0.05, "the first of four rounds missed: {memory:?}");
        // Two neighbouring requests share a page.
        assert!((last(&flash) - 0.125).abs() < 0.05, "{flash:?}");
    }
}
