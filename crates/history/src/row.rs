//! Encoding of points in a row. All numbers are varints (seven bits a byte, lowest first).
//!
//! ```text
//! row    = version (1)  point*
//! point  = head  body           head = seconds since the previous point (or the row's start) * 4 + type
//! type   = 0  point of one sample: seconds, mask, a sum for each bit of the mask, latencies
//!          1  point of several: samples, seconds, mask, (sum, minimum, maximum - minimum) for each bit, latencies
//!          2  repetition of the previous point: the head has their number, each one step later
//! latencies = for reads, for writes: mask of 12 bits; unless it is 0, the sum, and a count for each bit
//! ```
//!
//! A figure that is always 0 has no bit. An idle volume is one point and its number of repetitions.

use super::point::{BUCKETS, Latencies, Point, Value};
use super::series::{COUNT, SERIES};

/// Version of the encoding.
const VERSION: u8 = 1;

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
        let mask = mask(latencies.counts.iter().map(|count| *count > 0));
        put(bytes, mask);
        if mask > 0 {
            put(bytes, latencies.sum_us);
            latencies.counts.iter().filter(|count| **count > 0).for_each(|count| put(bytes, *count));
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
    let (version, rest) = bytes.split_first().ok_or(RowError::Damaged)?;
    if *version != VERSION {
        return Err(RowError::Version(*version));
    }
    let mut reader = Reader(rest);
    let mut points: Vec<Point> = Vec::new();
    while !reader.0.is_empty() {
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

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn number(&mut self) -> Result<u64, RowError> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or(RowError::Damaged)?;
            self.0 = rest;
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
        let mut latencies = Latencies::default();
        let mask = self.number()?;
        if mask >> BUCKETS != 0 {
            return Err(RowError::Damaged);
        }
        if mask > 0 {
            latencies.sum_us = self.number()?;
        }
        for (_, count) in latencies.counts.iter_mut().enumerate().filter(|(at, _)| mask >> at & 1 == 1) {
            *count = self.number()?;
        }
        Ok(latencies)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(start: u64, seed: u64) -> Point {
        let mut figures = [0; COUNT];
        (0..COUNT).filter(|at| !(seed + *at as u64).is_multiple_of(3)).for_each(|at| figures[at] = seed << at);
        let mut latencies = [Latencies::default(); 2];
        latencies[1].counts[(seed % 12) as usize] = seed;
        latencies[1].sum_us = seed * 100;
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
            let all: Vec<Point> = vec![
                point(1_000, 1),
                point(1_000, 1),
                point(1_010, 2),
                merged(1_020, 3),
                merged(1_030, 3),
                merged(1_040, 3),
                point(1_100, 4),
            ];
            all.iter().cloned().for_each(|point| row.push(point));
            assert_eq!(points(1_000, step, &row.bytes()), Ok(all));
        }
    }

    #[test]
    fn idle_volume_takes_few_bytes() {
        let mut row = Row::new(0, 1);
        (0..3600).for_each(|second| row.push(point(second, 7)));
        let one = {
            let mut row = Row::new(0, 1);
            row.push(point(0, 7));
            row.bytes().len()
        };
        assert_eq!(row.bytes().len(), one + 2);
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
        assert_eq!(
            points(0, 1, &[VERSION, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]),
            Err(RowError::Damaged)
        );
    }
}
