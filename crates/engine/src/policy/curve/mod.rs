//! The miss-ratio curve of an LRU, estimated online in bounded memory (fixed-size SHARDS: Waldspurger, Park,
//! Garthwaite, Ahmad, FAST 2015, with its adjustment of the first bucket).
//!
//! Pages whose hash lies below a threshold are sampled; all others cost one comparison. When too many are sampled, the
//! threshold falls by an eighth, and the pages above it are dropped. Distances and counts of the sample are scaled up
//! by the inverse of the sampling rate.
//!
//! Counts age, so that last month's load does not outweigh today's. They are halved when their aged total reaches a
//! *window*, so in steady state every half window. Pages without a use for half a window are dropped. If few sampled
//! pages are left, the threshold rises again, so that one scan of everything does not leave the sampling rate low. The
//! window is counted in uses. It grows with the working set, because a larger set takes longer to reuse its pages.
//!
//! Sampling a use costs some ten times as much as skipping it. So a load on few pages is sampled at one in eight until
//! the curve is good, and then at lower rates, down to one use in [`SAMPLE_INTERVAL_MIN`].

mod last_use_bitmap;
mod reuse_histogram;
mod volume_curves;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use last_use_bitmap::LastUseBitmap;
use reuse_histogram::{FRACTION_BITS, ReuseHistogram};
pub use volume_curves::{CurvePoint, CurveStats, VolumeCurveStats, VolumeCurves};

/// Maximum number of sampled pages: half of the table's buckets, so that the table never grows past that.
const SAMPLED_PAGES_MAX: usize = 7_168;
/// Enough samples for an error of a hundredth or two. The threshold falls if there are more and if more than one use in
/// [`SAMPLE_INTERVAL_MIN`] is sampled.
const SAMPLES_TARGET: usize = 1_024;
/// A larger sample than [`SAMPLES_TARGET`] samples at most one use in this many.
const SAMPLE_INTERVAL_MIN: u64 = 64;
/// Number of samples below which the threshold rises.
const SAMPLES_MIN: usize = SAMPLES_TARGET / 2;
/// At most one page in this many is sampled, so that a small working set costs little.
const RATE_MAX_DIVISOR: u64 = 8;
/// Length of a window, in uses of each page of the working set.
const WINDOW_USES_PER_PAGE: u64 = 32;
/// Shortest window in uses (of blocks: an hour and more at 4,000 a second).
const WINDOW_USES_MIN: u64 = 16 << 20;
/// Longest window in uses; a page that returns later than that is of no use to any cache.
const WINDOW_USES_MAX: u64 = 1 << 30;

/// A sampled page.
struct SampledPage {
    /// Hash of the page's number.
    key: u64,
    /// Position of its last use in the bitmap of last uses.
    position: u32,
}

/// A miss-ratio curve of uses of pages of one size.
pub struct Curve {
    /// Pages with a hash below it are sampled.
    hash_threshold: u64,
    /// Uses that one sampled use stands for, with [`FRACTION_BITS`] fraction bits.
    uses_per_sample: u64,
    sampled_pages: HashTable<SampledPage>,
    /// Last uses of the sampled pages.
    last_uses: LastUseBitmap,
    /// Reuse distances of the uses in recent windows.
    window_histogram: ReuseHistogram,
    /// Reuse distances of recent uses of the same sample; they decay only when the caller of the curve calls
    /// [`Curve::decay`].
    recent_histogram: ReuseHistogram,
    /// Aged total of uses at which the counts are halved.
    window_uses: u64,
    /// Pages last used before this position are dropped at the next aging.
    drop_before_position: u32,
    /// Uses and position at the last reset of the sampling-rate measurement.
    rate_start: (u64, u32),
}

impl Default for Curve {
    fn default() -> Self {
        let mut curve = Curve {
            hash_threshold: 0,
            uses_per_sample: 0,
            sampled_pages: HashTable::new(),
            last_uses: LastUseBitmap::default(),
            window_histogram: ReuseHistogram::default(),
            recent_histogram: ReuseHistogram::default(),
            window_uses: WINDOW_USES_MIN,
            drop_before_position: 0,
            rate_start: (0, 0),
        };
        curve.set_threshold(THRESHOLD_MAX);
        curve
    }
}

/// Greatest threshold, at which one page in [`RATE_MAX_DIVISOR`] is sampled.
const THRESHOLD_MAX: u64 = u64::MAX / RATE_MAX_DIVISOR;

/// Hash for the table: below the threshold the highest bits of all keys are equal, but the table needs them different.
fn table_hash(key: u64) -> u64 {
    key.rotate_left(32)
}

impl Curve {
    /// Records a use of the page whose address hashes to `key` (all 64 bits well mixed).
    #[inline]
    pub fn record_use(&mut self, key: u64) {
        self.window_histogram.total_uses += 1;
        self.recent_histogram.total_uses += 1;
        if key < self.hash_threshold {
            self.sample(key);
        }
    }

    /// Uses, with older ones counting less.
    pub fn uses(&self) -> u64 {
        self.window_histogram.total_uses
    }

    /// The reuse distances of recent uses.
    pub fn recent_histogram(&self) -> &ReuseHistogram {
        &self.recent_histogram
    }

    /// Multiplies the recent uses by `factor`.
    pub fn decay(&mut self, factor: f64) {
        self.recent_histogram.decay(factor);
    }

    /// Estimated number of pages used within the last window.
    pub fn working_set(&self) -> u64 {
        (self.sampled_pages.len() as u64 * self.uses_per_sample) >> FRACTION_BITS
    }

    /// Misses for each use of an LRU of `pages` pages; 1 before the first use.
    pub fn miss_ratio(&self, pages: u64) -> f64 {
        self.miss_ratios(std::iter::once(pages)).next().unwrap_or(1.0)
    }

    /// The miss ratios of several sizes, in growing order.
    pub fn miss_ratios(&self, sizes: impl IntoIterator<Item = u64>) -> impl Iterator<Item = f64> {
        self.window_histogram.miss_ratios(sizes)
    }

    /// Upper bound of the memory in bytes.
    pub const fn bytes_max() -> usize {
        // The table has twice as many buckets, rounded up to a power of two, with a control byte each. While it grows,
        // the smaller table exists too.
        let table_bytes = (2 * SAMPLED_PAGES_MAX).next_power_of_two() * (size_of::<SampledPage>() + 1);
        table_bytes + table_bytes / 2 + LastUseBitmap::BYTES + 2 * ReuseHistogram::BYTES
    }

    /// Sets the threshold, and the number of uses that a sampled use then stands for.
    fn set_threshold(&mut self, threshold: u64) {
        self.hash_threshold = threshold;
        self.uses_per_sample = ((1_u128 << (64 + FRACTION_BITS)) / u128::from(threshold)) as u64;
    }

    /// Records a use of a sampled page: a reuse at its distance, or a first use.
    #[cold]
    #[inline(never)]
    fn sample(&mut self, key: u64) {
        if self.window_histogram.total_uses >= self.window_uses {
            self.age();
        }
        if self.last_uses.is_full() {
            self.compact();
        }
        match self.sampled_pages.entry(table_hash(key), |page| page.key == key, |page| table_hash(page.key)) {
            Entry::Occupied(mut page) => {
                let position = page.get().position;
                let others = self.last_uses.marks_after(position);
                self.last_uses.clear(position);
                page.get_mut().position = self.last_uses.mark();
                // The number of pages between is known only to within one weight, so half a weight is added.
                let distance = others.saturating_mul(self.uses_per_sample).saturating_add(self.uses_per_sample / 2);
                self.window_histogram.record_reuse(distance, self.uses_per_sample);
                self.recent_histogram.record_reuse(distance, self.uses_per_sample);
            }
            Entry::Vacant(entry) => {
                entry.insert(SampledPage { key, position: self.last_uses.mark() });
                self.window_histogram.first_uses += self.uses_per_sample;
                self.recent_histogram.first_uses += self.uses_per_sample;
                if self.sampled_pages.len() >= SAMPLED_PAGES_MAX {
                    self.lower_threshold(self.hash_threshold / 8 * 7);
                }
            }
        }
    }

    /// Lowers the threshold and drops the pages above it.
    fn lower_threshold(&mut self, threshold: u64) {
        self.set_threshold(threshold);
        self.drop_samples(|page, threshold, _| page.key >= threshold);
    }

    /// Drops the sampled pages that `is_dropped` selects. It gets the page, the threshold and `drop_before_position`.
    fn drop_samples(&mut self, is_dropped: impl Fn(&SampledPage, u64, u32) -> bool) {
        let (last_uses, threshold, drop_before) = (&mut self.last_uses, self.hash_threshold, self.drop_before_position);
        self.sampled_pages.retain(|page| {
            let drops = is_dropped(page, threshold, drop_before);
            if drops {
                last_uses.clear(page.position);
            }
            !drops
        });
    }

    /// Begins a new window: halves the counts, drops pages without a recent use, and adapts the length of the window
    /// and, if the sample is small, the threshold.
    fn age(&mut self) {
        self.window_histogram.decay(0.5);
        self.drop_samples(|page, _, drop_before| page.position < drop_before);
        self.drop_before_position = self.last_uses.next_position();
        self.window_uses =
            self.working_set().saturating_mul(WINDOW_USES_PER_PAGE).clamp(WINDOW_USES_MIN, WINDOW_USES_MAX);
        self.rate_start = (self.window_histogram.total_uses, self.last_uses.next_position());
        if self.sampled_pages.len() < SAMPLES_MIN {
            // Pages that enter the sample are counted as first uses; the error is one use per page and window.
            self.set_threshold(self.hash_threshold.saturating_mul(2).min(THRESHOLD_MAX));
        }
    }

    /// Makes room in the full bitmap. Lowers the threshold if the sample is large and sampled too often.
    fn compact(&mut self) {
        let (uses_before, position) = self.rate_start;
        let (uses, samples) =
            (self.window_histogram.total_uses - uses_before, self.last_uses.next_position() - position);
        if self.sampled_pages.len() > SAMPLES_TARGET && uses < SAMPLE_INTERVAL_MIN * u64::from(samples) {
            self.lower_threshold(self.hash_threshold / 2);
        }
        let moved = self.last_uses.compact();
        self.sampled_pages.iter_mut().for_each(|page| page.position = moved(page.position));
        self.drop_before_position = moved(self.drop_before_position);
        self.rate_start = (self.window_histogram.total_uses, self.last_uses.next_position());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(page: u64) -> u64 {
        crate::page_hash::page_hash(0, flash::PageNo(page))
    }

    #[test]
    fn loop_misses_until_it_fits() {
        for pages in [20_000_u64, 100_000] {
            let mut curve = Curve::default();
            for _ in 0..10 {
                (0..pages).for_each(|page| curve.record_use(key(page)));
            }
            assert!(curve.miss_ratio(pages * 9 / 10) > 0.97, "{pages}: {}", curve.miss_ratio(pages * 9 / 10));
            assert!((curve.miss_ratio(pages * 11 / 10) - 0.1).abs() < 0.03, "the first round of ten misses");
            assert_eq!(curve.uses(), 10 * pages);
        }
    }

    #[test]
    fn memory_of_a_curve_is_bounded() {
        let mut curve = Curve::default();
        for page in 0..2_000_000 {
            curve.record_use(key(page));
        }
        assert!(
            curve.sampled_pages.len() <= SAMPLED_PAGES_MAX && curve.sampled_pages.capacity() <= 2 * SAMPLED_PAGES_MAX
        );
        assert!(Curve::bytes_max() <= 512 << 10, "two of them stay below 1 MiB");
        assert!(curve.miss_ratio(1_000_000) > 0.99, "no page returned");
    }

    #[test]
    fn new_load_replaces_old_one() {
        let mut curve = Curve::default();
        // One pass over so many pages that hardly any is sampled.
        (0..1_000_000).for_each(|page| curve.record_use(key(page)));
        let coarse_threshold = curve.hash_threshold;
        assert!(curve.miss_ratio(1 << 30) > 0.9, "no page returned");
        // A loop over a small part of that: in the end more of it is sampled.
        let mut rounds = 0;
        while curve.miss_ratio(26_000) > 0.05
            || curve.hash_threshold <= coarse_threshold
            || curve.sampled_pages.len() < SAMPLES_MIN
        {
            (0..20_000).for_each(|page| curve.record_use(key(1 << 40 | page)));
            rounds += 1;
            assert!(rounds * 20_000 < 16 * WINDOW_USES_MIN, "the curve does not adapt to the new load");
        }
        let too_small = curve.miss_ratio(14_000);
        assert!(too_small > 0.85, "a loop misses until it fits: {too_small}");
    }
}
