//! Encoding of points in a row. All numbers are varints (seven bits a byte, lowest first).
//!
//! ```text
//! row    = version (1)  point*
//! point  = head  body           head = seconds since the previous point (or the row's start) * 4 + type
//! type   = 0  point of one sample: seconds, mask, a sum for each bit of the mask, latencies
//!          1  point of several: samples, seconds, mask, (sum, minimum, maximum - minimum) for each bit, latencies
//!          2  repetition of the previous point: the head has their number, each one step later
//! latencies = for reads, for writes: number of occupied buckets; unless it is 0, the sum in microseconds, and for each
//!          occupied bucket the buckets since the previous one (since the first, for the first one), and its count
//! ```
//!
//! A figure that is always 0 has no bit. An idle volume is one point and its number of repetitions.
//!
//! In a row of version 1 latencies are a mask of 12 bits, and unless it is 0 the sum, and a count for each bit. Its
//! buckets end at 2 to the power of [`OCTAVES_V1`] nanoseconds.

use engine::LATENCY_BUCKETS;
use messages::report::Bucket;

use super::latencies::Latencies;
use super::point::{Point, Value};
use super::series::{COUNT, SERIES};

/// Version of the encoding.
const VERSION: u8 = 2;
/// Bounds of the buckets in rows of version 1.
const OCTAVES_V1: [u32; 11] = [14, 16, 18, 20, 21, 22, 23, 24, 25, 27, 30];

const SINGLE: u64 = 0;
const MERGED: u64 = 1;
const REPEAT: u64 = 2;

/// A growing row.
#[derive(Clone, Debug)]
pub struct Row {
    /// First second of its first point.
    pub start: u64,
    step: u64,
    bytes: Vec<u8>,
    last: Option<Point>,
    /// Repetitions of the last point.
    repeats: u64,
}

/// Error of decoding a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// Unknown version.
    #[error("the row has version {0}")]
    Version(u8),
    /// Invalid bytes.
    #[error("the row is damaged")]
    Damaged,
}

impl Row {
    /// An empty row from `start` on, of a tier with this step.
    pub fn new(start: u64, step: u64) -> Row {
        Row { start, step, bytes: vec![VERSION], last: None, repeats: 0 }
    }

    /// Appends a point, which is not older than the last one.
    pub fn push(&mut self, point: Point) {
        if let Some(last) = &mut self.last {
            assert!(point.start >= last.start, "points of a row are in order");
            let start = point.start;
            if start == last.start + self.step {
                last.start = start;
                if *last == point {
                    self.repeats += 1;
                    return;
                }
                last.start = start - self.step;
            }
        }
        self.flush_repeats();
        let before = self.last.as_ref().map_or(self.start, |last| last.start);
        write_point(&mut self.bytes, point.start - before, &point);
        self.last = Some(point);
    }

    fn flush_repeats(&mut self) {
        if self.repeats > 0 {
            put(&mut self.bytes, self.repeats * 4 + REPEAT);
            self.repeats = 0;
        }
    }

    /// The encoded row.
    pub fn bytes(&self) -> Vec<u8> {
        let mut whole = self.clone();
        whole.flush_repeats();
        whole.bytes
    }
}

fn write_point(bytes: &mut Vec<u8>, later: u64, point: &Point) {
    let single = point.samples == 1;
    put(bytes, later * 4 + if single { SINGLE } else { MERGED });
    if !single {
        put(bytes, point.samples);
    }
    put(bytes, point.seconds);
    let is_there = |value: &Value| value.sum > 0 || value.max > 0;
    put(bytes, mask(point.values.iter().map(is_there)));
    for value in point.values.iter().filter(|value| is_there(value)) {
        put(bytes, value.sum);
        if !single {
            put(bytes, value.min);
            put(bytes, value.max - value.min);
        }
    }
    for latencies in &point.latencies {
        put(bytes, latencies.counts.len() as u64);
        if !latencies.counts.is_empty() {
            put(bytes, latencies.sum_us);
        }
        let mut before = 0;
        for (bucket, count) in &latencies.counts {
            put(bytes, (bucket - before) as u64);
            put(bytes, *count);
            before = *bucket;
        }
    }
}

fn mask(bits: impl Iterator<Item = bool>) -> u64 {
    bits.enumerate().fold(0, |mask, (at, bit)| mask | u64::from(bit) << at)
}

fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Decodes the points of a row from `start` on, of a tier with this step.
pub fn points(start: u64, step: u64, bytes: &[u8]) -> Result<Vec<Point>, RowError> {
    let (version, remaining) = bytes.split_first().ok_or(RowError::Damaged)?;
    if !(1..=VERSION).contains(version) {
        return Err(RowError::Version(*version));
    }
    let mut reader = Reader { remaining, version: *version };
    let mut points: Vec<Point> = Vec::new();
    while !reader.remaining.is_empty() {
        let head = reader.number()?;
        let before = points.last();
        if head % 4 == REPEAT {
            let last = before.ok_or(RowError::Damaged)?.clone();
            // A row covers at most a day.
            if head / 4 > 86_400 {
                return Err(RowError::Damaged);
            }
            points.extend((1..=head / 4).map(|times| Point { start: last.start + times * step, ..last.clone() }));
            continue;
        }
        let at = before.map_or(start, |last| last.start).checked_add(head / 4).ok_or(RowError::Damaged)?;
        points.push(reader.point(at, head % 4 == MERGED)?);
    }
    Ok(points)
}

struct Reader<'a> {
    remaining: &'a [u8],
    version: u8,
}

impl Reader<'_> {
    fn number(&mut self) -> Result<u64, RowError> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (byte, remaining) = self.remaining.split_first().ok_or(RowError::Damaged)?;
            self.remaining = remaining;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(RowError::Damaged)
    }

    fn point(&mut self, start: u64, merged: bool) -> Result<Point, RowError> {
        let samples = if merged { self.number()? } else { 1 };
        let seconds = self.number()?;
        let mask = self.number()?;
        if mask >> COUNT != 0 {
            return Err(RowError::Damaged);
        }
        let mut values = [Value::default(); COUNT];
        for (at, value) in values.iter_mut().enumerate().filter(|(at, _)| mask >> at & 1 == 1) {
            let sum = self.number()?;
            *value = if merged {
                let min = self.number()?;
                Value { sum, min, max: min.checked_add(self.number()?).ok_or(RowError::Damaged)? }
            } else {
                Value::of_sample(SERIES[at].kind, sum, seconds)
            };
        }
        let latencies = [self.latencies()?, self.latencies()?];
        Ok(Point { start, samples, seconds, values, latencies })
    }

    fn latencies(&mut self) -> Result<Latencies, RowError> {
        if self.version == 1 {
            return self.latencies_v1();
        }
        let occupied = self.number()? as usize;
        if occupied > LATENCY_BUCKETS {
            return Err(RowError::Damaged);
        }
        let sum_us = if occupied > 0 { self.number()? } else { 0 };
        let mut latencies = Latencies { sum_us, counts: Vec::with_capacity(occupied) };
        let mut bucket = 0;
        for at in 0..occupied {
            let step = self.number()?;
            bucket = step.saturating_add(bucket);
            if bucket >= LATENCY_BUCKETS as u64 || (at > 0 && step == 0) {
                return Err(RowError::Damaged);
            }
            latencies.counts.push((bucket as usize, self.number()?));
        }
        Ok(latencies)
    }

    fn latencies_v1(&mut self) -> Result<Latencies, RowError> {
        let mask = self.number()?;
        if mask >> (OCTAVES_V1.len() + 1) != 0 {
            return Err(RowError::Damaged);
        }
        let sum_us = if mask > 0 { self.number()? } else { 0 };
        let end_us = |at: usize| OCTAVES_V1.get(at).map_or(f64::INFINITY, |octave| (1u64 << octave) as f64 / 1e3);
        let mut buckets = Vec::new();
        for at in (0..=OCTAVES_V1.len()).filter(|at| mask >> at & 1 == 1) {
            let from_us = at.checked_sub(1).map_or(0.0, end_us);
            buckets.push(Bucket { from_us, to_us: end_us(at), count: self.number()? });
        }
        Ok(Latencies::of_buckets(buckets.into_iter(), sum_us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(start: u64, seed: u64) -> Point {
        let mut figures = [0; COUNT];
        (0..COUNT).filter(|at| !(seed + *at as u64).is_multiple_of(3)).for_each(|at| figures[at] = seed << at);
        let write = Latencies { sum_us: seed * 100, counts: vec![(seed as usize % 160, seed), (168, 1), (169, 300)] };
        let latencies = [Latencies::default(), write];
        Point::of_sample(start, 1, &figures, latencies)
    }

    fn merged(start: u64, seed: u64) -> Point {
        let mut whole = point(start, seed);
        whole.merge(&point(start + 1, seed + 1));
        whole
    }

    #[test]
    fn row_round_trips() {
        for step in [1, 10] {
            let mut row = Row::new(1_000, step);
            let pushed: Vec<Point> = vec![
                point(1_000, 1),
                point(1_000, 1),
                point(1_010, 2),
                merged(1_020, 3),
                merged(1_030, 3),
                merged(1_040, 3),
                point(1_100, 4),
            ];
            pushed.iter().cloned().for_each(|point| row.push(point));
            assert_eq!(points(1_000, step, &row.bytes()), Ok(pushed));
        }
    }

    #[test]
    fn idle_volume_takes_few_bytes() {
        let mut row = Row::new(0, 1);
        (0..3600).for_each(|second| row.push(point(second, 7)));
        let constant_row = {
            let mut row = Row::new(0, 1);
            row.push(point(0, 7));
            row.bytes().len()
        };
        assert_eq!(row.bytes().len(), constant_row + 2);
        assert_eq!(points(0, 1, &row.bytes()).map(|points| points.len()), Ok(3600));
    }

    #[test]
    fn truncated_or_invalid_row_is_refused() {
        let mut row = Row::new(0, 1);
        row.push(merged(0, 9));
        row.push(point(5, 1));
        let whole = row.bytes();
        for length in 0..whole.len() {
            // A row that is cut between two points is valid and shorter.
            assert!(
                points(0, 1, &whole[..length]).is_ok_and(|points| points.len() < 2)
                    || points(0, 1, &whole[..length]) == Err(RowError::Damaged)
            );
        }
        assert_eq!(points(0, 1, &[9, 9, 9]), Err(RowError::Version(9)));
        assert_eq!(points(0, 1, &[0, 9, 9]), Err(RowError::Version(0)));
        // A bucket past the last one, a bucket that does not rise, and more buckets than there are.
        for latencies in [&[1, 5, 170, 1, 1][..], &[2, 5, 3, 1, 0, 1], &[171, 1]] {
            let row = [&[VERSION, 0, 1, 0], latencies].concat();
            assert_eq!(points(0, 1, &row), Err(RowError::Damaged), "{latencies:?}");
        }
        assert_eq!(
            points(0, 1, &[VERSION, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]),
            Err(RowError::Damaged)
        );
    }

    #[test]
    fn bytes_of_a_row_never_change() {
        let mut figures = [0; COUNT];
        (figures[0], figures[21]) = (300, 7);
        let read = Latencies { sum_us: 5_000, counts: vec![(0, 298), (17, 1), (169, 1)] };
        let mut row = Row::new(1_000, 1);
        row.push(Point::of_sample(1_003, 1, &figures, [read, Latencies::default()]));
        row.push(Point { start: 1_004, ..points(1_000, 1, &row.bytes()).expect("a valid row").remove(0) });
        let expected = [2, 12, 1, 0x81, 0x80, 0x80, 1, 0xac, 2, 7, 3, 0x88, 0x27, 0, 0xaa, 2, 17, 1, 0x98, 1, 1, 0, 6];
        assert_eq!(row.bytes(), expected);
    }

    #[test]
    fn row_of_version_1_is_read_with_its_latencies_spread() {
        // One second with 8 reads from 16 to 65 us and 2 past 1.07 s, and a write below 16 us.
        let row = [1, 0, 1, 0, 0x82, 0x10, 0xe8, 7, 8, 2, 1, 4, 1];
        let point = points(0, 1, &row).expect("a valid row").remove(0);
        let [read, write] = &point.latencies;
        assert_eq!((read.count(), read.sum_us, write.count(), write.sum_us), (10, 1_000, 1, 4));
        assert_eq!(write.percentile_us(0.5), Some(16.384));
        let median = read.percentile_us(0.5).expect("reads");
        assert!((45.0..50.0).contains(&median), "{median} us, about 5/8 of the way from 16 to 65 us");
        assert_eq!(read.percentile_us(1.0).map(f64::round), Some(1_207_960.0));
    }
}
