//! Converts growing counters to increases since the previous sample.
//!
//! A volume's counters start at 0 when it is attached, so the counts of a new volume are all increases.

use std::collections::{BTreeMap, BTreeSet};

use messages::report::PoolReport;
use messages::{StatusReport, VolumeReport};

use super::latencies::Latencies;
use super::point::Point;
use super::series::{Kind, SERIES, SERIES_COUNT, Source};

/// Maximum number of datastores that are recorded, the first by name.
const DATASTORES_MAX: usize = 64;

/// Counters at a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Counters {
    volume_id: String,
    figures: [u64; SERIES_COUNT],
    latencies: [Latencies; 2],
}

/// Counters of the previous sample.
pub struct Tracker {
    volumes: BTreeMap<String, Counters>,
    pools: BTreeMap<String, [u64; SERIES_COUNT]>,
    whole: [u64; SERIES_COUNT],
}

/// Points of one sample.
pub struct SamplePoints {
    /// The whole daemon.
    pub whole: Point,
    /// Each attached volume.
    pub volumes: Vec<(String, Point)>,
    /// Each datastore with volumes; an empty name stands for volumes without one.
    pub datastores: Vec<(String, Point)>,
    /// Each open pool.
    pub pools: Vec<(String, Point)>,
}

/// Sum over several volumes.
#[derive(Clone)]
struct Sum {
    figures: [u64; SERIES_COUNT],
    latencies: [Latencies; 2],
}

impl Default for Tracker {
    fn default() -> Self {
        Tracker { volumes: BTreeMap::new(), pools: BTreeMap::new(), whole: [0; SERIES_COUNT] }
    }
}

impl Tracker {
    /// Points of the `seconds` that end with `second`.
    pub fn add_sample(&mut self, second: u64, seconds: u64, status: &StatusReport) -> SamplePoints {
        let mut total = Sum::default();
        let mut datastores: BTreeMap<&str, Sum> = BTreeMap::new();
        let mut volumes = Vec::with_capacity(status.volumes.len());
        for report in &status.volumes {
            let Some((figures, latencies)) = self.add_volume(report) else { continue };
            total.add(&figures, &latencies);
            datastores.entry(&report.datastore).or_default().add(&figures, &latencies);
            volumes.push((report.name.clone(), Point::of_sample(second, seconds, &figures, latencies)));
        }
        let known: BTreeSet<&str> = status.volumes.iter().map(|report| report.name.as_str()).collect();
        self.volumes.retain(|name, _| known.contains(name.as_str()));
        for (index, series) in SERIES.iter().enumerate() {
            if let Source::Whole(read) = series.source {
                let now = read(status);
                // The counter decreases when a flash device is removed.
                total.figures[index] =
                    if series.kind == Kind::Counter { now.saturating_sub(self.whole[index]) } else { now };
                self.whole[index] = now;
            }
        }
        let point = |sum: &Sum| Point::of_sample(second, seconds, &sum.figures, sum.latencies.clone());
        let named_point = |(name, sum): (&&str, &Sum)| ((*name).to_owned(), point(sum));
        let datastores = datastores.iter().take(DATASTORES_MAX).map(named_point).collect();
        let pools = status.pools.iter().map(|pool| {
            let figures = self.add_pool(pool);
            (pool.name.clone(), Point::of_sample(second, seconds, &figures, Default::default()))
        });
        SamplePoints { pools: pools.collect(), whole: point(&total), volumes, datastores }
    }

    /// Levels of a pool, and increases of its counters, which begin at 0 with the daemon.
    fn add_pool(&mut self, pool: &PoolReport) -> [u64; SERIES_COUNT] {
        let now = std::array::from_fn(|index| match SERIES[index].source {
            Source::Pool(read) => read(pool),
            Source::Volume(_) | Source::Whole(_) => 0,
        });
        let before = self.pools.insert(pool.name.clone(), now).unwrap_or([0; SERIES_COUNT]);
        std::array::from_fn(|index| match SERIES[index].kind {
            Kind::Counter => now[index].saturating_sub(before[index]),
            Kind::Level | Kind::Peak => now[index],
        })
    }

    /// Increases of a volume; `None` without counters, because the volume is refused or its core does not answer.
    fn add_volume(&mut self, report: &VolumeReport) -> Option<([u64; SERIES_COUNT], [Latencies; 2])> {
        let counts = &report.latency_counts;
        let latencies = [Latencies::of_report(&counts.read)?, Latencies::of_report(&counts.write)?];
        let read = |index: usize| match SERIES[index].source {
            Source::Volume(read) => read(report),
            Source::Whole(_) | Source::Pool(_) => 0,
        };
        let now = Counters { volume_id: report.volume_id.clone(), figures: std::array::from_fn(read), latencies };
        let increase = match self.volumes.get(&report.name) {
            Some(before) => now.since(before),
            None => now.clone(),
        };
        self.volumes.insert(report.name.clone(), now);
        Some((increase.figures, increase.latencies))
    }
}

impl Default for Sum {
    fn default() -> Self {
        Sum { figures: [0; SERIES_COUNT], latencies: Default::default() }
    }
}

impl Sum {
    fn add(&mut self, figures: &[u64; SERIES_COUNT], latencies: &[Latencies; 2]) {
        for (index, sum) in self.figures.iter_mut().enumerate() {
            *sum = if SERIES[index].kind == Kind::Peak { (*sum).max(figures[index]) } else { *sum + figures[index] };
        }
        self.latencies.iter_mut().zip(latencies).for_each(|(sum, latencies)| sum.merge(latencies));
    }
}

impl Counters {
    /// Increases since `before`. After a restart of counters, which shows in a decrease, the full counts are returned.
    fn since(&self, before: &Counters) -> Counters {
        let counters = || (0..SERIES_COUNT).filter(|index| SERIES[*index].kind == Kind::Counter);
        let latencies = self.latencies.iter().zip(&before.latencies).map(|(now, before)| now.since(before));
        let latencies: Option<Vec<Latencies>> = latencies.collect();
        let was_reset = self.volume_id != before.volume_id
            || counters().any(|index| self.figures[index] < before.figures[index])
            || latencies.is_none();
        let mut increase = self.clone();
        if let Some(latencies) = latencies.filter(|_| !was_reset) {
            counters().for_each(|index| increase.figures[index] -= before.figures[index]);
            increase.latencies.iter_mut().zip(latencies).for_each(|(full, increase)| *full = increase);
        }
        increase
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use messages::report::{CountsBelow, PoolGroupReport, PoolRelocationReport, PoolTierReport};
    use messages::{Counts, VolumeState};

    use super::*;

    /// A volume that has served `reads` reads of 4 KiB, each in 100 us.
    pub fn volume(name: &str, reads: u64) -> VolumeReport {
        let below = [(16.384, 0), (98.304, 0), (106.496, reads)].map(|(us, count)| CountsBelow { us, count });
        let counts = Counts { below: below.into(), all: reads, sum_us: reads as f64 * 100.0 };
        let mut report = VolumeReport::idle(name, VolumeState::Active, "write-back", "/x");
        report.latency_counts.write = Counts {
            below: counts.below.iter().map(|below| CountsBelow { count: 0, ..*below }).collect(),
            ..Counts::default()
        };
        report.latency_counts.read = counts;
        VolumeReport {
            reads,
            read_bytes: reads * 4096,
            memory_hits: reads,
            dirty_bytes: 7,
            dirty_age_ms: reads,
            ..report
        }
    }

    pub fn status(volumes: Vec<VolumeReport>) -> StatusReport {
        StatusReport { volumes, ..StatusReport::default() }
    }

    fn reads(point: &Point) -> u64 {
        assert_eq!(point.latencies[0].count(), point.values[0].sum);
        point.values[0].sum
    }

    #[test]
    fn increases_are_reported_and_restarted_counters_in_full() {
        let mut tracker = Tracker::default();
        let mut add_sample = |volumes| tracker.add_sample(1, 1, &status(volumes));
        assert_eq!(reads(&add_sample(vec![volume("a", 5), volume("b", 1)]).whole), 6);
        let points = add_sample(vec![volume("a", 8), volume("b", 1)]);
        assert_eq!((reads(&points.whole), reads(&points.volumes[0].1), reads(&points.volumes[1].1)), (3, 3, 0));
        // Without counters of a core for a while, its volume is not counted twice afterwards.
        let silent = VolumeReport::idle("a", VolumeState::Active, "write-back", "/x");
        assert_eq!(add_sample(vec![silent, volume("b", 2)]).volumes.len(), 1);
        assert_eq!(reads(&add_sample(vec![volume("a", 9), volume("b", 2)]).whole), 1);
        assert_eq!(reads(&add_sample(vec![volume("a", 4)]).whole), 4);
        assert_eq!(reads(&add_sample(Vec::new()).whole), 0);
        assert_eq!(reads(&add_sample(vec![volume("a", 4)]).whole), 4);
    }

    #[test]
    fn levels_add_and_peaks_take_the_maximum() {
        let points = Tracker::default().add_sample(1, 1, &status(vec![volume("a", 5), volume("b", 9)]));
        let value_of = |name: &str| {
            points.whole.values[SERIES.iter().position(|series| series.name == name).expect("a series")].sum
        };
        assert_eq!((value_of("dirty_bytes"), value_of("dirty_age_ms"), value_of("volumes")), (14, 9, 2));
    }

    #[test]
    fn datastore_sums_its_volumes_within_the_limit() {
        let volume_in = |name: &str, datastore: &str, reads: u64| VolumeReport {
            datastore: datastore.to_owned(),
            ..volume(name, reads)
        };
        let mut tracker = Tracker::default();
        let mut add_sample = |volumes| {
            let points = tracker.add_sample(1, 1, &status(volumes)).datastores.into_iter();
            points.map(|(name, point)| (name, reads(&point))).collect::<Vec<_>>()
        };
        let named = |name: &str, reads| (name.to_owned(), reads);
        assert_eq!(
            add_sample(vec![volume_in("a", "shelf", 5), volume_in("b", "", 1), volume_in("c", "shelf", 2)]),
            [named("", 1), named("shelf", 7)]
        );
        // A removed volume subtracts nothing, and a moved volume adds only its increase.
        assert_eq!(add_sample(vec![volume_in("a", "shelf", 6), volume_in("b", "shelf", 3)]), [named("shelf", 3)]);
        let many = (0..DATASTORES_MAX + 9)
            .map(|number| volume_in(&format!("v{number}"), &format!("d{number:03}"), 1))
            .collect();
        let sums = add_sample(many);
        assert_eq!((sums.len(), sums.last()), (DATASTORES_MAX, Some(&named("d063", 1))));
    }

    #[test]
    fn pool_has_its_fill_and_the_increase_of_its_moves() {
        let index = |name: &str| SERIES.iter().position(|series| series.name == name).expect("a series");
        let pool = |free_bytes, moved_bytes| {
            let group = PoolGroupReport {
                state: "in-service".to_owned(),
                size_bytes: 100,
                free_bytes,
                ..PoolGroupReport::default()
            };
            let relocation = PoolRelocationReport { moved_bytes, ..PoolRelocationReport::default() };
            let tiers = vec![PoolTierReport { groups: vec![group], ..PoolTierReport::default() }];
            let pool = PoolReport { name: "tank".to_owned(), tiers, relocation, ..PoolReport::default() };
            StatusReport { pools: vec![pool], ..StatusReport::default() }
        };
        let mut tracker = Tracker::default();
        let figures = |points: SamplePoints| {
            let (name, point) = &points.pools[0];
            assert_eq!((name.as_str(), points.whole.values[index("allocated_bytes")].sum), ("tank", 0));
            ["allocated_bytes", "capacity_bytes", "moved_bytes"].map(|name| point.values[index(name)].sum)
        };
        assert_eq!(figures(tracker.add_sample(10, 1, &pool(70, 5))), [30, 100, 5]);
        assert_eq!(figures(tracker.add_sample(11, 1, &pool(60, 12))), [40, 100, 7]);
    }
}
