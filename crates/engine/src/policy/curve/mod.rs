//! The miss-ratio curve of an LRU, estimated while it happens, in bounded memory (fixed-size SHARDS: Waldspurger, Park, Garthwaite,
//! Ahmad, FAST 2015, with its adjustment of the first bucket).
//!
//! Pages whose hash lies below a threshold are followed, all others cost a compare. When too many are followed the threshold sinks by an
//! eighth, and those above it are let go. A distance between two uses among the followed stands for as much longer a distance, and for
//! as many more uses, as the threshold leaves out.
//!
//! It ages, or a load of last month would outweigh today's: once a *window* of uses has been counted all counts are halved, so that a use counts
//! half after half a window, a quarter after a whole one. Whatever was not used for half a window is let go, and where few are left that are
//! followed the threshold rises again, so that one scan of everything does not blunt the curve for ever. The window is counted in uses and grows
//! with the working set, for a set that is larger takes longer to come round.
//!
//! To follow a page costs some ten times as much as to pass it over. So of a load that stays within few pages one in eight is followed until
//! the curve is good, and then fewer, until it is one use in [`PACE`].

mod line;
mod pair;
mod uses;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use line::Line;
pub use pair::{CurvePoint, CurveStats, Curves, VolumeCurves};
use uses::{FRACTION, Uses};

/// Pages that are followed, at most: half of what the table has room for, so that it never grows past that.
const FOLLOWED: usize = 7_168;
/// So many are enough for a curve within a hundredth or two. With more, and more than one use in so many among them, the threshold sinks;
const ENOUGH: usize = 1_024;
const PACE: u64 = 64;
/// with so few it rises.
const FEW: usize = ENOUGH / 2;
/// At most one page in so many is followed, so that a small working set costs little, too.
const RATE_MAX_PART: u64 = 8;
/// A window is as many uses of each page of the working set,
const WINDOW_USES: u64 = 32;
/// at least so many uses in all (of blocks: an hour and more at 4,000 a second),
const WINDOW_MIN: u64 = 16 << 20;
/// and at most so many; what comes back later than that comes back too late for any cache.
const WINDOW_MAX: u64 = 1 << 30;

/// A page that is followed.
struct Followed {
    key: u64,
    /// Of its last use.
    position: u32,
}

/// One curve, of uses of pages of one size.
pub struct Curve {
    /// Pages with a hash below it are followed.
    threshold: u64,
    /// Uses that one followed use stands for.
    weight: u64,
    followed: HashTable<Followed>,
    /// Their last uses.
    line: Line,
    /// Those of the last windows.
    uses: Uses,
    /// Those of late: of the same sample, but it forgets when its owner says so.
    recent: Uses,
    /// As many uses make it age.
    window: u64,
    /// What was not used since this position goes when it ages the next time.
    aged: u32,
    /// Accesses and position since which the pace is taken.
    paced: (u64, u32),
}

impl Default for Curve {
    fn default() -> Self {
        let mut curve = Curve {
            threshold: 0,
            weight: 0,
            followed: HashTable::new(),
            line: Line::default(),
            uses: Uses::default(),
            recent: Uses::default(),
            window: WINDOW_MIN,
            aged: 0,
            paced: (0, 0),
        };
        curve.set_threshold(THRESHOLD_MAX);
        curve
    }
}

const THRESHOLD_MAX: u64 = u64::MAX / RATE_MAX_PART;

/// Below the threshold the highest bits are all alike, and a table wants them different.
fn table_hash(key: u64) -> u64 {
    key.rotate_left(32)
}

impl Curve {
    /// A page whose address hashes to `key` (all 64 bits well mixed) is used.
    #[inline]
    pub fn used(&mut self, key: u64) {
        self.uses.all += 1;
        self.recent.all += 1;
        if key < self.threshold {
            self.follow(key);
        }
    }

    /// Uses that were seen; older ones count less.
    pub fn accesses(&self) -> u64 {
        self.uses.all
    }

    /// Uses of late.
    pub fn recent(&self) -> &Uses {
        &self.recent
    }

    /// Of what was used of late so much is remembered.
    pub fn fade(&mut self, part: f64) {
        self.recent.fade(part);
    }

    /// Pages that were used within the last window.
    pub fn working_set(&self) -> u64 {
        (self.followed.len() as u64 * self.weight) >> FRACTION
    }

    /// Misses a use of an LRU of `pages` pages; 1 before anything was used.
    pub fn miss_ratio(&self, pages: u64) -> f64 {
        self.miss_ratios(std::iter::once(pages)).next().unwrap_or(1.0)
    }

    /// The same of many sizes, which grow.
    pub fn miss_ratios(&self, sizes: impl IntoIterator<Item = u64>) -> impl Iterator<Item = f64> {
        self.uses.miss_ratios(sizes)
    }

    /// Bytes that it takes at most.
    pub const fn bytes_max() -> usize {
        // A table of twice as many places and a power of two, a control byte each; while it grows the smaller one is there, too.
        let places = (2 * FOLLOWED).next_power_of_two() * (size_of::<Followed>() + 1);
        places + places / 2 + Line::BYTES + 2 * Uses::BYTES
    }

    fn set_threshold(&mut self, threshold: u64) {
        self.threshold = threshold;
        self.weight = ((1_u128 << (64 + FRACTION)) / u128::from(threshold)) as u64;
    }

    #[cold]
    #[inline(never)]
    fn follow(&mut self, key: u64) {
        if self.uses.all >= self.window {
            self.age();
        }
        if self.line.is_full() {
            self.close_up();
        }
        match self.followed.entry(table_hash(key), |page| page.key == key, |page| table_hash(page.key)) {
            Entry::Occupied(mut page) => {
                let position = page.get().position;
                let others = self.line.behind(position);
                self.line.clear(position);
                page.get_mut().position = self.line.mark();
                // Between so many and one more followed pages there are on average half of what one stands for.
                let distance = others.saturating_mul(self.weight).saturating_add(self.weight / 2);
                self.uses.again(distance, self.weight);
                self.recent.again(distance, self.weight);
            }
            Entry::Vacant(place) => {
                place.insert(Followed { key, position: self.line.mark() });
                self.uses.first += self.weight;
                self.recent.first += self.weight;
                if self.followed.len() >= FOLLOWED {
                    self.sink(self.threshold / 8 * 7);
                }
            }
        }
    }

    fn sink(&mut self, threshold: u64) {
        self.set_threshold(threshold);
        self.let_go(|page, threshold, _| page.key >= threshold);
    }

    fn let_go(&mut self, goes: impl Fn(&Followed, u64, u32) -> bool) {
        let (line, threshold, aged) = (&mut self.line, self.threshold, self.aged);
        self.followed.retain(|page| {
            let goes = goes(page, threshold, aged);
            if goes {
                line.clear(page.position);
            }
            !goes
        });
    }

    fn age(&mut self) {
        self.uses.fade(0.5);
        self.let_go(|page, _, aged| page.position < aged);
        self.aged = self.line.now();
        self.window = self.working_set().saturating_mul(WINDOW_USES).clamp(WINDOW_MIN, WINDOW_MAX);
        self.paced = (self.uses.all, self.line.now());
        if self.followed.len() < FEW {
            // What is followed from now on looks new at its first use. That is one use of a page in a window of many.
            self.set_threshold(self.threshold.saturating_mul(2).min(THRESHOLD_MAX));
        }
    }

    fn close_up(&mut self) {
        let (accesses, position) = self.paced;
        let (accesses, follows) = (self.uses.all - accesses, self.line.now() - position);
        if self.followed.len() > ENOUGH && accesses < PACE * u64::from(follows) {
            self.sink(self.threshold / 2);
        }
        let moved = self.line.close_up();
        self.followed.iter_mut().for_each(|page| page.position = moved(page.position));
        self.aged = moved(self.aged);
        self.paced = (self.uses.all, self.line.now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(page: u64) -> u64 {
        crate::memory::hash(0, crate::memory::PageNo(page))
    }

    #[test]
    fn a_loop_misses_until_it_fits() {
        for pages in [20_000_u64, 100_000] {
            let mut curve = Curve::default();
            for _ in 0..10 {
                (0..pages).for_each(|page| curve.used(key(page)));
            }
            assert!(curve.miss_ratio(pages * 9 / 10) > 0.97, "{pages}: {}", curve.miss_ratio(pages * 9 / 10));
            assert!((curve.miss_ratio(pages * 11 / 10) - 0.1).abs() < 0.03, "the first round of ten misses");
            assert_eq!(curve.accesses(), 10 * pages);
        }
    }

    #[test]
    fn its_memory_is_bounded() {
        let mut curve = Curve::default();
        for page in 0..2_000_000 {
            curve.used(key(page));
        }
        assert!(curve.followed.len() <= FOLLOWED && curve.followed.capacity() <= 2 * FOLLOWED);
        assert!(Curve::bytes_max() <= 512 << 10, "two of them stay below 1 MiB");
        assert!(curve.miss_ratio(1_000_000) > 0.99, "nothing ever came back");
    }

    #[test]
    fn a_new_load_takes_the_place_of_an_old_one() {
        let mut curve = Curve::default();
        // One pass over so much that hardly anything is followed,
        (0..1_000_000).for_each(|page| curve.used(key(page)));
        let coarse = curve.threshold;
        assert!(curve.miss_ratio(1 << 30) > 0.9, "nothing came back");
        // then a loop over what is small beside it: in the end more of it is followed.
        let mut rounds = 0;
        while curve.miss_ratio(26_000) > 0.05 || curve.threshold <= coarse || curve.followed.len() < FEW {
            (0..20_000).for_each(|page| curve.used(key(1 << 40 | page)));
            rounds += 1;
            assert!(rounds * 20_000 < 16 * WINDOW_MIN, "it never comes to know the new load");
        }
        let too_small = curve.miss_ratio(14_000);
        assert!(too_small > 0.85, "a loop misses until it fits: {too_small}");
    }
}
