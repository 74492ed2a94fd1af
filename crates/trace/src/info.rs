//! Statistics of a trace: counts, footprint, sizes, reuse intervals. Memory is below 128 MiB for any trace.

use rustc_hash::FxHashMap;

use crate::request::{Op, Request};

/// Bytes of the smaller page, for footprint and reuse interval.
pub const SMALL_PAGE_BYTES: u64 = 4 << 10;
/// Bytes of the larger page, for footprint.
pub const LARGE_PAGE_BYTES: u64 = 64 << 10;
/// Maximum number of pages remembered of each size. Beyond it, one of 2, 4, 8 … pages is sampled (Waldspurger et al.,
/// FAST 2015). Seven eighths of a power of two is the capacity of a hash table of that size.
const PAGES_MAX: usize = 7 << 18;
/// Number of streams tracked for the detection of sequential requests.
const STREAMS: usize = 32;

/// Histogram by powers of two: `counts[n]` counts values from 2^n to below 2^(n+1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; 64],
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: [0; 64] }
    }
}

impl Histogram {
    fn add(&mut self, value: u64, count: u64) {
        self.counts[value.max(1).ilog2() as usize] += count;
    }

    /// Lowest value and count of each non-empty bucket.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let buckets = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        buckets.map(|(bits, count)| (1u64 << bits, *count))
    }
}

/// A sample of pages, selected by hash, with the time of their last access.
struct PageSample {
    /// Last access by device and page number.
    last_access: FxHashMap<(u32, u64), u64>,
    /// One of 2^`shift` pages is in the sample.
    shift: u32,
    pages_max: usize,
}

impl PageSample {
    fn new(pages_max: usize) -> Self {
        PageSample { last_access: FxHashMap::default(), shift: 0, pages_max }
    }

    fn is_sampled(page: (u32, u64), shift: u32) -> bool {
        shift == 0 || hash_page(page) >> (u64::BITS - shift) == 0
    }

    /// Records an access; returns the previous access of the page, if it is in the sample.
    fn record_access(&mut self, page: (u32, u64), now: u64) -> PageLookup {
        if !PageSample::is_sampled(page, self.shift) {
            return PageLookup::NotSampled;
        }
        if let Some(last) = self.last_access.insert(page, now) {
            return PageLookup::Last(last);
        }
        if self.last_access.len() > self.pages_max {
            self.shift += 1;
            let shift = self.shift;
            self.last_access.retain(|page, _| PageSample::is_sampled(*page, shift));
        }
        PageLookup::First
    }

    fn distinct(&self) -> u64 {
        (self.last_access.len() as u64) << self.shift
    }
}

enum PageLookup {
    NotSampled,
    First,
    Last(u64),
}

/// The finalizer of splitmix64: every input bit affects every bit of the hash.
fn hash_page((device, page): (u32, u64)) -> u64 {
    let mut hash = page ^ u64::from(device).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

/// Statistics of a trace, complete once all requests are added.
pub struct Info {
    /// Requests by operation, in the order of [`Op`].
    pub requests: [u64; 4],
    /// Bytes by operation.
    pub bytes: [u64; 4],
    /// Page accesses of reads and writes: one for each page of 4 KiB of each request.
    pub accesses: u64,
    /// Reads and writes that begin at the end of one of 32 streams on their device.
    pub sequential: u64,
    /// Nanoseconds from the first request to the latest; `None` without times.
    pub duration_ns: Option<u64>,
    /// Sizes of reads and writes in bytes.
    pub sizes: Histogram,
    /// Reuse intervals: page accesses since the previous access of the same page.
    pub reuse_intervals: Histogram,
    /// End of the highest request in bytes.
    pub end_bytes: u64,
    /// Highest device number.
    pub device_max: u32,
    small: PageSample,
    large: PageSample,
    /// Device and end offset of each tracked stream.
    stream_ends: [(u32, u64); STREAMS],
    /// Index of the stream to be replaced next.
    next_stream: usize,
}

impl Default for Info {
    fn default() -> Self {
        Info::with_pages_max(PAGES_MAX)
    }
}

impl Info {
    fn with_pages_max(pages_max: usize) -> Self {
        Info {
            requests: [0; 4],
            bytes: [0; 4],
            accesses: 0,
            sequential: 0,
            duration_ns: None,
            sizes: Histogram::default(),
            reuse_intervals: Histogram::default(),
            end_bytes: 0,
            device_max: 0,
            small: PageSample::new(pages_max),
            large: PageSample::new(pages_max),
            stream_ends: [(0, u64::MAX); STREAMS],
            next_stream: 0,
        }
    }

    /// Adds a request.
    pub fn add(&mut self, request: &Request) {
        let &Request { time_ns, op, at, len, device } = request;
        self.requests[op as usize] += 1;
        self.bytes[op as usize] = self.bytes[op as usize].saturating_add(len);
        self.duration_ns = self.duration_ns.max(time_ns);
        self.device_max = self.device_max.max(device);
        self.end_bytes = self.end_bytes.max(at + len);
        if !matches!(op, Op::Read | Op::Write) {
            return;
        }
        self.sizes.add(len, 1);
        match self.stream_ends.iter_mut().find(|end| **end == (device, at)) {
            Some(end) => {
                self.sequential += 1;
                end.1 = at + len;
            }
            None => {
                self.stream_ends[self.next_stream] = (device, at + len);
                self.next_stream = (self.next_stream + 1) % STREAMS;
            }
        }
        for page in at / SMALL_PAGE_BYTES..=(at + len - 1) / SMALL_PAGE_BYTES {
            self.accesses += 1;
            if let PageLookup::Last(last) = self.small.record_access((device, page), self.accesses) {
                self.reuse_intervals.add(self.accesses - last, 1 << self.small.shift);
            }
        }
        for page in at / LARGE_PAGE_BYTES..=(at + len - 1) / LARGE_PAGE_BYTES {
            self.large.record_access((device, page), 0);
        }
    }

    /// Bytes of the distinct pages of 4 KiB read or written.
    pub fn footprint_small_bytes(&self) -> u64 {
        self.small.distinct().saturating_mul(SMALL_PAGE_BYTES)
    }

    /// Bytes of the distinct pages of 64 KiB read or written.
    pub fn footprint_large_bytes(&self) -> u64 {
        self.large.distinct().saturating_mul(LARGE_PAGE_BYTES)
    }

    /// One in this many pages of 4 KiB is sampled. With 1, footprint and reuse intervals are exact. A sampled
    /// footprint has an error below half a percent.
    pub fn sampled_one_in(&self) -> u64 {
        1 << self.small.shift
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::request;

    #[test]
    fn small_trace_has_hand_computed_statistics() {
        let mut info = Info::default();
        info.add(&request(Some(0), Op::Read, 0, 8_192, 0));
        info.add(&request(Some(10), Op::Write, 8_192, 4_096, 0));
        info.add(&request(Some(30), Op::Read, 4_096, 512, 0));
        info.add(&request(Some(20), Op::Read, 4_096, 512, 1));
        info.add(&request(None, Op::Discard, 1 << 30, 1 << 20, 0));
        info.add(&request(None, Op::Flush, 0, 0, 0));
        assert_eq!((info.requests, info.bytes), ([3, 1, 1, 1], [9_216, 4_096, 1 << 20, 0]));
        assert_eq!((info.accesses, info.sequential, info.duration_ns), (5, 1, Some(30)));
        assert_eq!((info.footprint_small_bytes(), info.footprint_large_bytes()), (4 * 4_096, 2 * 65_536));
        assert_eq!(info.sizes.buckets().collect::<Vec<_>>(), [(512, 2), (4_096, 1), (8_192, 1)]);
        // Page 1 is the second and the fourth access: an interval of two.
        assert_eq!(info.reuse_intervals.buckets().collect::<Vec<_>>(), [(2, 1)]);
        assert_eq!((info.end_bytes, info.device_max, info.sampled_one_in()), ((1 << 30) + (1 << 20), 1, 1));
    }

    #[test]
    fn interleaved_streams_are_sequential() {
        let mut info = Info::default();
        for step in 0..100u64 {
            (0..20).for_each(|stream| info.add(&request(None, Op::Read, (stream << 40) + step * 65_536, 65_536, 0)));
        }
        assert_eq!(info.sequential, 20 * 99);
    }

    #[test]
    fn sampled_footprint_is_close_to_the_exact_one() {
        let mut info = Info::with_pages_max(10_000);
        for round in 0..2u64 {
            (0..200_000u64).for_each(|page| info.add(&request(None, Op::Read, page * 4_096 + round, 512, 0)));
        }
        assert_eq!(info.sampled_one_in(), 32);
        let pages = info.footprint_small_bytes() / 4_096;
        assert!((190_000..210_000).contains(&pages), "{pages}");
        let reused: u64 = info.reuse_intervals.buckets().map(|(_, count)| count).sum();
        assert!((190_000..210_000).contains(&reused), "{reused}");
        assert!(info.reuse_intervals.buckets().all(|(interval, _)| interval == 1 << 17));
    }
}
