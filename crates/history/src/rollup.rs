//! Points of every tier, and rows that are not written yet.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::point::Point;
use super::row::Row;
use super::subject::Subject;
use super::tiers::TIERS;
use super::track::SamplePoints;

/// Maximum size of waiting rows in bytes; beyond it the finest and oldest rows are dropped.
const WAITING_BYTES_MAX: usize = 16 << 20;

/// Key of a row: tier, first second, subject.
pub type Key = (usize, u64, Rc<str>);

/// Growing points and rows of all subjects.
#[derive(Default)]
pub struct RollUp {
    subjects: BTreeMap<Rc<str>, SubjectState>,
    /// Second of the last sample; `None` before the first.
    last: Option<u64>,
    /// Second up to which each tier's points are in rows.
    until: [u64; TIERS.len()],
    /// Full rows that are not written.
    waiting: BTreeMap<Key, Vec<u8>>,
    waiting_bytes: usize,
    /// Number of dropped rows.
    pub lost_rows: u64,
}

/// State of one subject.
#[derive(Default)]
struct SubjectState {
    tier_states: [TierState; TIERS.len()],
}

#[derive(Default)]
struct TierState {
    /// The growing point.
    open: Option<Point>,
    /// The growing row.
    row: Option<Row>,
    /// True if the row has points that are not in the file.
    unwritten: bool,
}

impl RollUp {
    /// A roll-up that continues a file which is complete up to `from`.
    pub fn new(from: u64) -> RollUp {
        RollUp { last: Some(from).filter(|from| *from > 0), until: [from; TIERS.len()], ..RollUp::default() }
    }

    /// Second up to which the finest points are in rows; 0 without points.
    pub fn until(&self) -> u64 {
        self.until[0]
    }

    /// The second under which a sample of `second` is recorded: a small step back of the clock is ignored. `None` after
    /// a large step back: [`RollUp::close`] must come first.
    pub fn second(&self, second: u64) -> Option<u64> {
        match self.last {
            Some(last) if second + TIERS[1].step < last => None,
            Some(last) => Some(second.max(last)),
            None => Some(second),
        }
    }

    /// Adds the points of a sample.
    pub fn add_sample(&mut self, second: u64, points: SamplePoints) {
        assert!(self.last.is_none_or(|last| last <= second), "seconds do not decrease");
        for (index, tier) in TIERS.iter().enumerate() {
            if self.last.is_some_and(|last| tier.point_start(last) != tier.point_start(second)) {
                self.close_points(index);
                self.until[index] = tier.point_start(second);
            }
        }
        self.end_idle_subjects();
        if self.last.replace(second).is_none() {
            self.until = [second; TIERS.len()];
        }
        // The finest tier's points are the samples, so its rows include this second.
        self.until[0] = second + 1;
        let SamplePoints { whole, volumes, datastores, pools } = points;
        let datastore_points = datastores.into_iter().map(|(name, point)| (Subject::Datastore(name).row_name(), point));
        let pool_points = pools.into_iter().map(|(name, point)| (Subject::Pool(name).row_name(), point));
        let whole = std::iter::once((Subject::Whole.row_name(), whole));
        for (name, point) in whole.chain(volumes).chain(datastore_points).chain(pool_points) {
            let (key, subject) = match self.subjects.get_key_value(name.as_str()) {
                Some((key, _)) => (key.clone(), self.subjects.get_mut(name.as_str()).expect("the key was found")),
                None => {
                    let key: Rc<str> = name.into();
                    (key.clone(), self.subjects.entry(key).or_default())
                }
            };
            for tier_state in &mut subject.tier_states[1..] {
                match &mut tier_state.open {
                    Some(open) => open.merge(&point),
                    None => tier_state.open = Some(point.clone()),
                }
            }
            let full = subject.tier_states[0].push(0, point);
            self.queue_row(0, &key, full);
        }
    }

    /// Closes the growing points of a tier.
    fn close_points(&mut self, tier: usize) {
        let mut full = Vec::new();
        for (name, subject) in &mut self.subjects {
            let tier_state = &mut subject.tier_states[tier];
            if let Some(open) = tier_state.open.take() {
                full.push((name.clone(), tier_state.push(tier, open)));
            }
        }
        full.into_iter().for_each(|(name, row)| self.queue_row(tier, &name, row));
    }

    /// Ends subjects that no longer exist, once their longest points are closed, so that `until` holds for them as
    /// well.
    fn end_idle_subjects(&mut self) {
        let idle = self
            .subjects
            .iter()
            .filter(|(_, subject)| subject.tier_states.iter().all(|tier_state| tier_state.open.is_none()));
        let idle: Vec<Rc<str>> = idle.map(|(name, _)| name.clone()).collect();
        idle.iter().for_each(|name| self.end_subject(name));
    }

    fn end_subject(&mut self, name: &str) {
        let Some((key, mut subject)) = self.subjects.remove_entry(name) else { return };
        for (tier, tier_state) in subject.tier_states.iter_mut().enumerate() {
            let full = tier_state.open.take().and_then(|open| tier_state.push(tier, open));
            self.queue_row(tier, &key, full);
            let row = tier_state.row.take().filter(|_| tier_state.unwritten);
            self.queue_row(tier, &key, row);
        }
    }

    /// Closes all growing points and rows.
    pub fn close(&mut self) {
        let names: Vec<Rc<str>> = self.subjects.keys().cloned().collect();
        names.iter().for_each(|name| self.end_subject(name));
        if let Some(last) = self.last.take() {
            self.until = [last + 1; TIERS.len()];
        }
    }

    fn queue_row(&mut self, tier: usize, name: &Rc<str>, row: Option<Row>) {
        let Some(row) = row else { return };
        let bytes = row.bytes();
        self.waiting_bytes += bytes.len();
        if let Some(replaced) = self.waiting.insert((tier, row.start, name.clone()), bytes) {
            self.waiting_bytes -= replaced.len();
        }
        while self.waiting_bytes > WAITING_BYTES_MAX {
            let Some((_, bytes)) = self.waiting.pop_first() else { break };
            self.waiting_bytes -= bytes.len();
            self.lost_rows += 1;
        }
    }

    /// All rows that the file lacks or has in a shorter version, and the seconds of completeness after writing them.
    pub fn unwritten(&self) -> (Vec<(Key, Vec<u8>)>, [u64; TIERS.len()]) {
        let mut rows: Vec<(Key, Vec<u8>)> =
            self.waiting.iter().map(|(key, bytes)| (key.clone(), bytes.clone())).collect();
        for (name, subject) in &self.subjects {
            for (tier, tier_state) in subject.tier_states.iter().enumerate() {
                if let Some(row) = tier_state.row.as_ref().filter(|_| tier_state.unwritten) {
                    rows.push(((tier, row.start, name.clone()), row.bytes()));
                }
            }
        }
        (rows, self.until)
    }

    /// Records that these rows are in the file.
    pub fn mark_written(&mut self) {
        self.waiting.clear();
        self.waiting_bytes = 0;
        self.subjects
            .values_mut()
            .flat_map(|subject| &mut subject.tier_states)
            .for_each(|tier_state| tier_state.unwritten = false);
    }

    /// Rows of a subject that the file may lack, by first second, and the growing point.
    pub fn unwritten_of(&self, tier: usize, name: &str) -> (BTreeMap<u64, Vec<u8>>, Option<Point>) {
        let waiting = self.waiting.iter().filter(|((row_tier, _, subject), _)| *row_tier == tier && **subject == *name);
        let mut rows: BTreeMap<u64, Vec<u8>> = waiting.map(|((_, start, _), bytes)| (*start, bytes.clone())).collect();
        let tier_state = self.subjects.get(name).map(|subject| &subject.tier_states[tier]);
        rows.extend(tier_state.and_then(|tier_state| tier_state.row.as_ref()).map(|row| (row.start, row.bytes())));
        (rows, tier_state.and_then(|tier_state| tier_state.open.clone()))
    }
}

impl TierState {
    /// Appends a point to the row; returns the previous row if it is full and not completely in the file.
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
    use super::super::latencies::Latencies;
    use super::super::row::decode_points;
    use super::super::series::SERIES_COUNT;
    use super::*;

    fn sample(second: u64) -> Point {
        let requests = second % 7;
        let counts = if requests == 0 { Vec::new() } else { vec![(second as usize % 170, requests)] };
        let latencies = [Latencies { sum_us: requests * 101, counts }, Latencies::default()];
        let figures = std::array::from_fn(|index| second.wrapping_mul(0x9e37_79b9).rotate_left(index as u32) % 1_000);
        assert_eq!(figures.len(), SERIES_COUNT);
        Point::of_sample(second, 1, &figures, latencies)
    }

    /// The points of one sample.
    fn sample_points(second: u64, volumes: Vec<(String, Point)>) -> SamplePoints {
        SamplePoints { whole: sample(second), volumes, datastores: Vec::new(), pools: Vec::new() }
    }

    /// All points of a tier, from rows and the growing point.
    fn points_of(rollup: &RollUp, tier: usize) -> Vec<Point> {
        let (rows, open) = rollup.unwritten_of(tier, "v");
        let step = TIERS[tier].step;
        let rows = rows.iter().flat_map(|(start, bytes)| decode_points(*start, step, bytes).expect("a valid row"));
        rows.chain(open).collect()
    }

    #[test]
    fn points_of_every_tier_equal_the_merged_samples() {
        let mut rollup = RollUp::default();
        let seconds: Vec<u64> = (1_000_003..1_000_003 + 8_000).filter(|second| second % 97 != 5).collect();
        for second in &seconds {
            rollup.add_sample(*second, sample_points(*second, vec![("v".to_owned(), sample(*second))]));
        }
        for (index, tier) in TIERS.iter().enumerate() {
            let mut expected: Vec<Point> = Vec::new();
            for second in &seconds {
                match expected.last_mut().filter(|last| tier.point_start(last.start) == tier.point_start(*second)) {
                    Some(last) => last.merge(&sample(*second)),
                    None => expected.push(sample(*second)),
                }
            }
            assert_eq!(points_of(&rollup, index), expected, "tier {index}");
            let points = points_of(&rollup, index);
            for (series, _) in super::super::series::SERIES.iter().enumerate() {
                let sum: u64 = points.iter().map(|point| point.values[series].sum).sum();
                assert_eq!(sum, seconds.iter().map(|second| sample(*second).values[series].sum).sum::<u64>());
                let max = points.iter().map(|point| point.values[series].max).max();
                assert_eq!(max, seconds.iter().map(|second| sample(*second).values[series].max).max());
            }
        }
    }

    #[test]
    fn unwritable_rows_are_dropped_the_finest_first() {
        let mut rollup = RollUp::default();
        let volumes = || (0..200).map(|number| (format!("volume {number}"), ()));
        let mut second = 0;
        while rollup.lost_rows == 0 {
            let volumes = volumes().map(|(name, ())| (name, sample(second))).collect();
            rollup.add_sample(second, sample_points(second, volumes));
            second += 1;
            assert!(second < 10_000, "the limit is not kept");
        }
        assert!(rollup.waiting_bytes <= WAITING_BYTES_MAX);
        assert!(rollup.waiting.keys().any(|(tier, ..)| *tier == 1));
        rollup.mark_written();
        assert!(rollup.unwritten().0.is_empty());
    }

    #[test]
    fn removed_volume_leaves_only_its_rows() {
        let mut rollup = RollUp::default();
        rollup.add_sample(5, sample_points(5, vec![("v".to_owned(), sample(5))]));
        rollup.add_sample(6, sample_points(6, Vec::new()));
        assert_eq!(rollup.subjects.len(), 2);
        rollup.add_sample(3_600, sample_points(3_600, Vec::new()));
        rollup.add_sample(7_200, sample_points(7_200, Vec::new()));
        assert_eq!(rollup.subjects.len(), 1);
        let (rows, until) = rollup.unwritten();
        assert_eq!(rows.iter().filter(|((_, _, name), _)| **name == *"v").count(), TIERS.len());
        assert_eq!(until, [7_201, 7_200, 7_200, 7_200]);
    }

    #[test]
    fn small_clock_step_back_is_ignored_and_large_one_needs_a_close() {
        let mut rollup = RollUp::new(1_000);
        assert_eq!((rollup.second(995), rollup.second(1_001), rollup.second(100)), (Some(1_000), Some(1_001), None));
        rollup.close();
        assert_eq!(rollup.second(100), Some(100));
    }
}
