//! Points of every tier as samples come, and the rows that are not written yet.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::point::Point;
use super::row::Row;
use super::subject::Subject;
use super::tiers::TIERS;
use super::track::Seen;

/// Bytes of rows that wait to be written; past that the finest and oldest are given up.
const WAITING_BYTES_MAX: usize = 16 << 20;

/// Where a row lies: tier, first second, whose line.
pub type Key = (usize, u64, Rc<str>);

/// What is under way.
#[derive(Default)]
pub struct RollUp {
    lines: BTreeMap<Rc<str>, Line>,
    /// The second that was sampled last; none before the first.
    last: Option<u64>,
    /// Up to which second each tier's points are in rows.
    until: [u64; TIERS.len()],
    /// Rows that are full and not written.
    waiting: BTreeMap<Key, Vec<u8>>,
    waiting_bytes: usize,
    /// Rows that were given up.
    pub lost_rows: u64,
}

/// Of one volume, or of all together.
#[derive(Default)]
struct Line {
    lanes: [Lane; TIERS.len()],
}

#[derive(Default)]
struct Lane {
    /// The point that grows.
    open: Option<Point>,
    /// The row that grows.
    row: Option<Row>,
    /// The row has points that the file has not.
    unwritten: bool,
}

impl RollUp {
    /// One that goes on where a file left off: nothing is noted for seconds before `from`.
    pub fn new(from: u64) -> RollUp {
        RollUp { last: Some(from).filter(|from| *from > 0), until: [from; TIERS.len()], ..RollUp::default() }
    }

    /// Up to which second the finest points are in rows; 0 where there are none.
    pub fn until(&self) -> u64 {
        self.until[0]
    }

    /// The second that a sample of `second` is noted for: the clock may go a little back. None where it went back far: what is under
    /// way has to end first.
    pub fn second(&self, second: u64) -> Option<u64> {
        match self.last {
            Some(last) if second + TIERS[1].step < last => None,
            Some(last) => Some(second.max(last)),
            None => Some(second),
        }
    }

    /// Takes a sample's points.
    pub fn see(&mut self, second: u64, seen: Seen) {
        assert!(self.last.is_none_or(|last| last <= second), "seconds go forward");
        for (at, tier) in TIERS.iter().enumerate() {
            if self.last.is_some_and(|last| tier.bucket(last) != tier.bucket(second)) {
                self.close_points(at);
                self.until[at] = tier.bucket(second);
            }
        }
        self.end_idle_lines();
        if self.last.replace(second).is_none() {
            self.until = [second; TIERS.len()];
        }
        // The finest tier's points are the samples: its rows have this second.
        self.until[0] = second + 1;
        let Seen { whole, volumes, datastores } = seen;
        let of_datastores = datastores.into_iter().map(|(name, point)| (Subject::Datastore(name).line(), point));
        for (name, point) in std::iter::once((Subject::Whole.line(), whole)).chain(volumes).chain(of_datastores) {
            let (key, line) = match self.lines.get_key_value(name.as_str()) {
                Some((key, _)) => (key.clone(), self.lines.get_mut(name.as_str()).expect("it was just there")),
                None => {
                    let key: Rc<str> = name.into();
                    (key.clone(), self.lines.entry(key).or_default())
                }
            };
            for lane in &mut line.lanes[1..] {
                match &mut lane.open {
                    Some(open) => open.merge(&point),
                    None => lane.open = Some(point.clone()),
                }
            }
            let full = line.lanes[0].push(0, point);
            self.wait(0, &key, full);
        }
    }

    /// Ends the points of a tier that are under way.
    fn close_points(&mut self, tier: usize) {
        let mut full = Vec::new();
        for (name, line) in &mut self.lines {
            let lane = &mut line.lanes[tier];
            if let Some(open) = lane.open.take() {
                full.push((name.clone(), lane.push(tier, open)));
            }
        }
        full.into_iter().for_each(|(name, row)| self.wait(tier, &name, row));
    }

    /// Volumes that have gone: not before the longest of their points has ended, so that `until` is true of them as well.
    fn end_idle_lines(&mut self) {
        let idle = self.lines.iter().filter(|(_, line)| line.lanes.iter().all(|lane| lane.open.is_none()));
        let idle: Vec<Rc<str>> = idle.map(|(name, _)| name.clone()).collect();
        idle.iter().for_each(|name| self.end_line(name));
    }

    fn end_line(&mut self, name: &str) {
        let Some((key, mut line)) = self.lines.remove_entry(name) else { return };
        for (tier, lane) in line.lanes.iter_mut().enumerate() {
            let full = lane.open.take().and_then(|open| lane.push(tier, open));
            self.wait(tier, &key, full);
            let rest = lane.row.take().filter(|_| lane.unwritten);
            self.wait(tier, &key, rest);
        }
    }

    /// Ends everything that is under way, so that all of it is in rows.
    pub fn close(&mut self) {
        let names: Vec<Rc<str>> = self.lines.keys().cloned().collect();
        names.iter().for_each(|name| self.end_line(name));
        if let Some(last) = self.last.take() {
            self.until = [last + 1; TIERS.len()];
        }
    }

    fn wait(&mut self, tier: usize, name: &Rc<str>, row: Option<Row>) {
        let Some(row) = row else { return };
        let bytes = row.bytes();
        self.waiting_bytes += bytes.len();
        if let Some(other) = self.waiting.insert((tier, row.start, name.clone()), bytes) {
            self.waiting_bytes -= other.len();
        }
        while self.waiting_bytes > WAITING_BYTES_MAX {
            let Some((_, bytes)) = self.waiting.pop_first() else { break };
            self.waiting_bytes -= bytes.len();
            self.lost_rows += 1;
        }
    }

    /// All rows that the file lacks, or has shorter, with what it may say once it has them: up to which second it has everything.
    pub fn unwritten(&self) -> (Vec<(Key, Vec<u8>)>, [u64; TIERS.len()]) {
        let mut rows: Vec<(Key, Vec<u8>)> =
            self.waiting.iter().map(|(key, bytes)| (key.clone(), bytes.clone())).collect();
        for (name, line) in &self.lines {
            for (tier, lane) in line.lanes.iter().enumerate() {
                if let Some(row) = lane.row.as_ref().filter(|_| lane.unwritten) {
                    rows.push(((tier, row.start, name.clone()), row.bytes()));
                }
            }
        }
        (rows, self.until)
    }

    /// The file has all of them.
    pub fn written(&mut self) {
        self.waiting.clear();
        self.waiting_bytes = 0;
        self.lines.values_mut().flat_map(|line| &mut line.lanes).for_each(|lane| lane.unwritten = false);
    }

    /// What of a line the file may lack: rows by their first second, and the point that grows.
    pub fn fresh(&self, tier: usize, name: &str) -> (BTreeMap<u64, Vec<u8>>, Option<Point>) {
        let waiting = self.waiting.iter().filter(|((of, _, line), _)| *of == tier && **line == *name);
        let mut rows: BTreeMap<u64, Vec<u8>> = waiting.map(|((_, start, _), bytes)| (*start, bytes.clone())).collect();
        let lane = self.lines.get(name).map(|line| &line.lanes[tier]);
        rows.extend(lane.and_then(|lane| lane.row.as_ref()).map(|row| (row.start, row.bytes())));
        (rows, lane.and_then(|lane| lane.open.clone()))
    }
}

impl Lane {
    /// Puts a point into the row; the row before, if it was full and the file lacks some of it.
    fn push(&mut self, tier: usize, point: Point) -> Option<Row> {
        let tier = &TIERS[tier];
        let is_full = |row: &Row| point.start / tier.row != row.start / tier.row;
        let full = self.row.take_if(|row| is_full(row)).filter(|_| self.unwritten);
        self.row.get_or_insert_with(|| Row::new(point.start, tier.step)).push(point);
        self.unwritten = true;
        full
    }
}

#[cfg(test)]
mod tests {
    use super::super::point::Latencies;
    use super::super::row::points;
    use super::super::series::COUNT;
    use super::*;

    fn sample(second: u64) -> Point {
        let mut latencies = [Latencies::default(); 2];
        latencies[0].counts[(second % 12) as usize] = second % 7;
        latencies[0].sum_us = second % 7 * 101;
        let figures = std::array::from_fn(|at| second.wrapping_mul(0x9e37_79b9).rotate_left(at as u32) % 1_000);
        assert_eq!(figures.len(), COUNT);
        Point::of_sample(second, 1, &figures, latencies)
    }

    /// All points of a tier, from rows and from what grows.
    fn seen(second: u64, volumes: Vec<(String, Point)>) -> Seen {
        Seen { whole: sample(second), volumes, datastores: Vec::new() }
    }

    fn told(rollup: &RollUp, tier: usize) -> Vec<Point> {
        let (rows, open) = rollup.fresh(tier, "v");
        let step = TIERS[tier].step;
        let rows = rows.iter().flat_map(|(start, bytes)| points(*start, step, bytes).expect("our own row"));
        rows.chain(open).collect()
    }

    #[test]
    fn the_points_of_every_tier_are_exactly_what_their_samples_make() {
        let mut rollup = RollUp::default();
        let seconds: Vec<u64> = (1_000_003..1_000_003 + 8_000).filter(|second| second % 97 != 5).collect();
        for second in &seconds {
            rollup.see(*second, seen(*second, vec![("v".to_owned(), sample(*second))]));
        }
        for (at, tier) in TIERS.iter().enumerate() {
            let mut wanted: Vec<Point> = Vec::new();
            for second in &seconds {
                match wanted.last_mut().filter(|last| tier.bucket(last.start) == tier.bucket(*second)) {
                    Some(last) => last.merge(&sample(*second)),
                    None => wanted.push(sample(*second)),
                }
            }
            assert_eq!(told(&rollup, at), wanted, "tier {at}");
            let all = told(&rollup, at);
            for (place, _) in super::super::series::SERIES.iter().enumerate() {
                let sum: u64 = all.iter().map(|point| point.values[place].sum).sum();
                assert_eq!(sum, seconds.iter().map(|second| sample(*second).values[place].sum).sum::<u64>());
                let max = all.iter().map(|point| point.values[place].max).max();
                assert_eq!(max, seconds.iter().map(|second| sample(*second).values[place].max).max());
            }
        }
    }

    #[test]
    fn what_cannot_be_written_is_given_up_the_finest_first() {
        let mut rollup = RollUp::default();
        let volumes = || (0..200).map(|at| (format!("volume {at}"), ()));
        let mut second = 0;
        while rollup.lost_rows == 0 {
            let volumes = volumes().map(|(name, ())| (name, sample(second))).collect();
            rollup.see(second, seen(second, volumes));
            second += 1;
            assert!(second < 10_000, "the bound does not hold");
        }
        assert!(rollup.waiting_bytes <= WAITING_BYTES_MAX);
        assert!(rollup.waiting.keys().any(|(tier, ..)| *tier == 1));
        rollup.written();
        assert!(rollup.unwritten().0.is_empty());
    }

    #[test]
    fn a_volume_that_goes_leaves_its_rows_behind_and_nothing_else() {
        let mut rollup = RollUp::default();
        rollup.see(5, seen(5, vec![("v".to_owned(), sample(5))]));
        rollup.see(6, seen(6, Vec::new()));
        assert_eq!(rollup.lines.len(), 2);
        rollup.see(3_600, seen(3_600, Vec::new()));
        rollup.see(7_200, seen(7_200, Vec::new()));
        assert_eq!(rollup.lines.len(), 1);
        let (rows, until) = rollup.unwritten();
        assert_eq!(rows.iter().filter(|((_, _, name), _)| **name == *"v").count(), TIERS.len());
        assert_eq!(until, [7_201, 7_200, 7_200, 7_200]);
    }

    #[test]
    fn a_clock_that_goes_back_a_little_is_held_and_far_ends_what_is_under_way() {
        let mut rollup = RollUp::new(1_000);
        assert_eq!((rollup.second(995), rollup.second(1_001), rollup.second(100)), (Some(1_000), Some(1_001), None));
        rollup.close();
        assert_eq!(rollup.second(100), Some(100));
    }
}
