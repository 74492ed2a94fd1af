//! Encoding of points in a row. All numbers are unsigned LEB128 varints.
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

use engine::LATENCY_BUCKET_COUNT;
use messages::report::Bucket;

use super::latencies::Latencies;
use super::point::{Point, Value};
use super::series::{SERIES, SERIES_COUNT};

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
            write_varint(&mut self.bytes, self.repeats * 4 + REPEAT);
            self.repeats = 0;
        }
    }

    /// The encoded row.
    pub fn bytes(&self) -> Vec<u8> {
        let mut row = self.clone();
        row.flush_repeats();
        row.bytes
    }
}

/// Encodes a point that begins `gap` seconds after the previous one.
fn write_point(bytes: &mut Vec<u8>, gap: u64, point: &Point) {
    let is_single = point.samples == 1;
    write_varint(bytes, gap * 4 + if is_single { SINGLE } else { MERGED });
    if !is_single {
        write_varint(bytes, point.samples);
    }
    write_varint(bytes, point.seconds);
    let is_recorded = |value: &Value| value.sum > 0 || value.max > 0;
    write_varint(bytes, mask(point.values.iter().map(is_recorded)));
    for value in point.values.iter().filter(|value| is_recorded(value)) {
        write_varint(bytes, value.sum);
        if !is_single {
            write_varint(bytes, value.min);
            write_varint(bytes, value.max - value.min);
        }
    }
    for latencies in &point.latencies {
        write_varint(bytes, latencies.counts.len() as u64);
        if !latencies.counts.is_empty() {
            write_varint(bytes, latencies.sum_us);
        }
        let mut before = 0;
        for (bucket, count) in &latencies.counts {
            write_varint(bytes, (bucket - before) as u64);
            write_varint(bytes, *count);
            before = *bucket;
        }
    }
}

fn mask(bits: impl Iterator<Item = bool>) -> u64 {
    bits.enumerate().fold(0, |mask, (index, bit)| mask | u64::from(bit) << index)
}

fn write_varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Decodes the points of a row from `start` on, of a tier with this step.
pub fn decode_points(start: u64, step: u64, bytes: &[u8]) -> Result<Vec<Point>, RowError> {
    let (version, remaining) = bytes.split_first().ok_or(RowError::Damaged)?;
    if !(1..=VERSION).contains(version) {
        return Err(RowError::Version(*version));
    }
    let mut reader = Reader { remaining, version: *version };
    let mut points: Vec<Point> = Vec::new();
    while !reader.remaining.is_empty() {
        let head = reader.varint()?;
        let before = points.last();
        if head % 4 == REPEAT {
            let last = before.ok_or(RowError::Damaged)?.clone();
            // A row covers at most a day.
            if head / 4 > 86_400 {
                return Err(RowError::Damaged);
            }
            points.extend(
                (1..=head / 4).map(|repetition| Point { start: last.start + repetition * step, ..last.clone() }),
            );
            continue;
        }
        let point_start = before.map_or(start, |last| last.start).checked_add(head / 4).ok_or(RowError::Damaged)?;
        points.push(reader.point(point_start, head % 4 == MERGED)?);
    }
    Ok(points)
}

struct Reader<'a> {
    remaining: &'a [u8],
    version: u8,
}

impl Reader<'_> {
    fn varint(&mut self) -> Result<u64, RowError> {
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
        let samples = if merged { self.varint()? } else { 1 };
        let seconds = self.varint()?;
        let mask = self.varint()?;
        if mask >> SERIES_COUNT != 0 {
            return Err(RowError::Damaged);
        }
        let mut values = [Value::default(); SERIES_COUNT];
        for (index, value) in values.iter_mut().enumerate().filter(|(index, _)| mask >> index & 1 == 1) {
            let sum = self.varint()?;
            *value = if merged {
                let min = self.varint()?;
                Value { sum, min, max: min.checked_add(self.varint()?).ok_or(RowError::Damaged)? }
            } else {
                Value::of_sample(SERIES[index].kind, sum, seconds)
            };
        }
        let latencies = [self.latencies()?, self.latencies()?];
        Ok(Point { start, samples, seconds, values, latencies })
    }

    fn latencies(&mut self) -> Result<Latencies, RowError> {
        if self.version == 1 {
            return self.latencies_v1();
        }
        let occupied = self.varint()? as usize;
        if occupied > LATENCY_BUCKET_COUNT {
            return Err(RowError::Damaged);
        }
        let sum_us = if occupied > 0 { self.varint()? } else { 0 };
        let mut latencies = Latencies { sum_us, counts: Vec::with_capacity(occupied) };
        let mut bucket = 0;
        for index in 0..occupied {
            let step = self.varint()?;
            bucket = step.saturating_add(bucket);
            if bucket >= LATENCY_BUCKET_COUNT as u64 || (index > 0 && step == 0) {
                return Err(RowError::Damaged);
            }
            latencies.counts.push((bucket as usize, self.varint()?));
        }
        Ok(latencies)
    }

    fn latencies_v1(&mut self) -> Result<Latencies, RowError> {
        let mask = self.varint()?;
        if mask >> (OCTAVES_V1.len() + 1) != 0 {
            return Err(RowError::Damaged);
        }
        let sum_us = if mask > 0 { self.varint()? } else { 0 };
        let end_us = |index: usize| OCTAVES_V1.get(index).map_or(f64::INFINITY, |octave| (1u64 << octave) as f64 / 1e3);
        let mut buckets = Vec::new();
        for index in (0..=OCTAVES_V1.len()).filter(|index| mask >> index & 1 == 1) {
            let from_us = index.checked_sub(1).map_or(0.0, end_us);
            buckets.push(Bucket { from_us, to_us: end_us(index), count: self.varint()? });
        }
        Ok(Latencies::of_buckets(buckets.into_iter(), sum_us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(start: u64, seed: u64) -> Point {
        let mut figures = [0; SERIES_COUNT];
        (0..SERIES_COUNT)
            .filter(|index| !(seed + *index as u64).is_multiple_of(3))
            .for_each(|index| figures[index] = seed << index);
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
            assert_eq!(decode_points(1_000, step, &row.bytes()), Ok(pushed));
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
        assert_eq!(decode_points(0, 1, &row.bytes()).map(|points| points.len()), Ok(3600));
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
                decode_points(0, 1, &whole[..length]).is_ok_and(|points| points.len() < 2)
                    || decode_points(0, 1, &whole[..length]) == Err(RowError::Damaged)
            );
        }
        assert_eq!(decode_points(0, 1, &[9, 9, 9]), Err(RowError::Version(9)));
        assert_eq!(decode_points(0, 1, &[0, 9, 9]), Err(RowError::Version(0)));
        // A bucket past the last one, a bucket that does not rise, and more buckets than there are.
        for latencies in [&[1, 5, 170, 1, 1][..], &[2, 5, 3, 1, 0, 1], &[171, 1]] {
            let row = [&[VERSION, 0, 1, 0], latencies].concat();
            assert_eq!(decode_points(0, 1, &row), Err(RowError::Damaged), "{latencies:?}");
        }
        assert_eq!(
            decode_points(0, 1, &[VERSION, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]),
            Err(RowError::Damaged)
        );
    }

    #[test]
    fn bytes_of_a_row_never_change() {
        let mut figures = [0; SERIES_COUNT];
        (figures[0], figures[21]) = (300, 7);
        let read = Latencies { sum_us: 5_000, counts: vec![(0, 298), (17, 1), (169, 1)] };
        let mut row = Row::new(1_000, 1);
        row.push(Point::of_sample(1_003, 1, &figures, [read, Latencies::default()]));
        row.push(Point { start: 1_004, ..decode_points(1_000, 1, &row.bytes()).expect("a valid row").remove(0) });
        let expected = [2, 12, 1, 0x81, 0x80, 0x80, 1, 0xac, 2, 7, 3, 0x88, 0x27, 0, 0xaa, 2, 17, 1, 0x98, 1, 1, 0, 6];
        assert_eq!(row.bytes(), expected);
    }

    #[test]
    fn row_of_version_1_is_read_with_its_latencies_spread() {
        // One second with 8 reads from 16 to 65 us and 2 past 1.07 s, and a write below 16 us.
        let row = [1, 0, 1, 0, 0x82, 0x10, 0xe8, 7, 8, 2, 1, 4, 1];
        let point = decode_points(0, 1, &row).expect("a valid row").remove(0);
        let [read, write] = &point.latencies;
        assert_eq!((read.count(), read.sum_us, write.count(), write.sum_us), (10, 1_000, 1, 4));
        assert_eq!(write.percentile_us(0.5), Some(16.384));
        let median = read.percentile_us(0.5).expect("reads");
        assert!((45.0..50.0).contains(&median), "{median} us, about 5/8 of the way from 16 to 65 us");
        assert_eq!(read.percentile_us(1.0).map(f64::round), Some(1_207_960.0));
    }
}
