//! Queries: selection of a tier, and the columns of the answer.

use std::collections::{BTreeMap, BTreeSet};

use engine::LATENCY_BUCKET_COUNT;
use messages::report::{FigureReport, HistoryReport, LatencyFigures};
use messages::{ErrorKind, Failure};

use super::file::{File, FileError};
use super::latencies::{Latencies, end_us};
use super::point::Point;
use super::rollup::RollUp;
use super::row::decode_points;
use super::series::{Kind, SERIES, Series};
use super::subject::Subject;
use super::tiers::TIERS;

/// Maximum number of steps of a report: an hour of the finest tier, and a minute by which a query may be late.
const STEPS_MAX: u64 = 3660;
/// Approximate default number of steps: the width of a chart.
const DEFAULT_STEPS: u64 = 600;
/// Default length of the range, in seconds.
const DEFAULT_RANGE_SECONDS: u64 = 3600;
/// Maximum number of seconds by which a query may be late.
const LATE_SECONDS_MAX: u64 = 60;
/// Names of latency series, and their names in the answer, in the order of a point.
const LATENCIES: [(&str, &str); 2] = [("read_latency", "read"), ("write_latency", "write")];

/// A query.
#[derive(Clone, Debug, Default)]
pub struct Query {
    /// The subject.
    pub subject: Subject,
    /// True if the subject exists, even if it has no samples yet.
    pub is_known: bool,
    /// First second since 1970; by default an hour before the end.
    pub from: Option<u64>,
    /// End second; by default now.
    pub to: Option<u64>,
    /// Seconds of a step.
    pub step: Option<u64>,
    /// Names of series; if empty, all.
    pub series: Vec<String>,
}

/// Tier, step and range of an answer.
struct Plan {
    tier: usize,
    step: u64,
    from: u64,
    to: u64,
}

/// Answers a query.
pub fn answer(query: &Query, now: u64, file: Option<&File>, rollup: &RollUp) -> Result<HistoryReport, Failure> {
    let name = &query.subject.row_name();
    let (series, latencies) = select_series(query)?;
    let plan = plan(query, now, file)?;
    let unreadable = |error: FileError| {
        let text = format!("the history cannot be read: {error}; volumes are not affected");
        Failure::new(ErrorKind::Unavailable, text)
    };
    let (unwritten, open) = rollup.unwritten_of(plan.tier, name);
    let is_recorded = match file {
        Some(file) => file.has_subject(name).map_err(unreadable)?,
        None => false,
    };
    let is_reserved_name = matches!(&query.subject, Subject::Volume(name) if name.starts_with('/'));
    if is_reserved_name || (!query.is_known && !is_recorded && unwritten.is_empty()) {
        query.subject.unknown_error().map_or(Ok(()), Err)?;
    }
    let tier = &TIERS[plan.tier];
    let mut rows = match file {
        Some(file) => {
            file.rows(plan.tier, name, plan.from.saturating_sub(2 * tier.row), plan.to).map_err(unreadable)?
        }
        None => BTreeMap::new(),
    };
    rows.extend(unwritten);
    let mut steps: BTreeMap<u64, Point> = BTreeMap::new();
    let mut add_point = |point: Point| {
        if (plan.from..plan.to).contains(&point.start) {
            let step_start = point.start - point.start % plan.step;
            match steps.get_mut(&step_start) {
                Some(sum) => sum.merge(&point),
                None => drop(steps.insert(step_start, point)),
            }
        }
    };
    for (start, bytes) in &rows {
        // A row that cannot be decoded is a gap.
        decode_points(*start, tier.step, bytes).unwrap_or_default().into_iter().for_each(&mut add_point);
    }
    open.into_iter().for_each(&mut add_point);
    let (volume, datastore, pool) = match query.subject.clone() {
        Subject::Whole => (None, None, None),
        Subject::Volume(name) => (Some(name), None, None),
        Subject::Datastore(name) => (None, Some(name), None),
        Subject::Pool(name) => (None, None, Some(name)),
    };
    let figure = |index: &usize| (SERIES[*index].name.to_owned(), figure_report(*index, &steps));
    Ok(HistoryReport {
        volume,
        datastore,
        pool,
        from_unix_seconds: plan.from,
        to_unix_seconds: plan.to,
        step_seconds: plan.step,
        tier_seconds: tier.step,
        at_unix_seconds: steps.keys().copied().collect(),
        covered_seconds: steps.values().map(|point| point.seconds).collect(),
        series: series.iter().map(figure).collect(),
        latency: latencies
            .iter()
            .map(|index| (LATENCIES[*index].1.to_owned(), latency_figures(*index, &steps)))
            .collect(),
    })
}

/// Indices of the requested series and latencies.
fn select_series(query: &Query) -> Result<(Vec<usize>, Vec<usize>), Failure> {
    let is_available = |series: &Series| series.is_of(&query.subject);
    let has_latencies = !matches!(query.subject, Subject::Pool(_));
    let is_requested = |name: &str| query.series.is_empty() || query.series.iter().any(|requested| requested == name);
    let names = || SERIES.iter().filter(|series| is_available(series)).map(|series| series.name);
    let known: Vec<&str> =
        names().chain(LATENCIES.map(|(name, _)| name).into_iter().filter(|_| has_latencies)).collect();
    if let Some(unknown) = query.series.iter().find(|requested| !known.contains(&requested.as_str())) {
        let text = format!("unknown series \"{unknown}\"; the series are {}", known.join(", "));
        return Err(Failure::new(ErrorKind::Invalid, text));
    }
    let is_selected = |index: &usize| is_available(&SERIES[*index]) && is_requested(SERIES[*index].name);
    let latencies = (0..LATENCIES.len()).filter(|index| has_latencies && is_requested(LATENCIES[*index].0)).collect();
    Ok(((0..SERIES.len()).filter(is_selected).collect(), latencies))
}

/// Selects the coarsest tier that is fine enough, or a coarser one if finer tiers do not reach back far enough.
fn plan(query: &Query, now: u64, file: Option<&File>) -> Result<Plan, Failure> {
    let invalid = |text: String| Failure::new(ErrorKind::Invalid, text);
    // The current second is included.
    let to = query.to.unwrap_or(now + 1).min(now + 1);
    let from = query.from.unwrap_or(to.saturating_sub(DEFAULT_RANGE_SECONDS));
    if from >= to {
        return Err(invalid(format!("from ({from}) must be before to ({to})")));
    }
    let keep_max = TIERS.iter().map(|tier| tier.keep).max().unwrap_or(0);
    let from = from.max(now.saturating_sub(keep_max)).min(to - 1);
    let requested_step = query.step.unwrap_or_else(|| (to - from).div_ceil(DEFAULT_STEPS)).max(1);
    let oldest = |tier: usize| file.map_or(0, |file| file.oldest(tier, now));
    let finest = TIERS.iter().rposition(|tier| tier.step <= requested_step).unwrap_or(0);
    let reaches = |tier: &usize| oldest(*tier) <= from + LATE_SECONDS_MAX || *tier == TIERS.len() - 1;
    let tier = (finest..TIERS.len()).find(reaches).unwrap_or(finest);
    let step = requested_step.div_ceil(TIERS[tier].step) * TIERS[tier].step;
    if (to - from).div_ceil(step) > STEPS_MAX {
        let step_min = (to - from).div_ceil(STEPS_MAX);
        let text = format!(
            "steps of {requested_step} s give more than {STEPS_MAX} steps; use {step_min} s or more, or a shorter range"
        );
        return Err(invalid(text));
    }
    Ok(Plan { tier, step, from: from - from % step, to })
}

/// The figures of the series at `index` in [`SERIES`].
fn figure_report(index: usize, steps: &BTreeMap<u64, Point>) -> FigureReport {
    let Series { unit, kind, .. } = &SERIES[index];
    let is_counter = *kind == Kind::Counter;
    let values = || steps.values().map(|point| (&point.values[index], point));
    let mean = |(value, point): (&super::point::Value, &Point)| {
        value.sum as f64 / if is_counter { point.seconds } else { point.samples }.max(1) as f64
    };
    FigureReport {
        kind: if is_counter { "counter" } else { "level" }.to_owned(),
        unit: (*unit).to_owned(),
        sum: values().filter(|_| is_counter).map(|(value, _)| value.sum).collect(),
        mean: values().map(mean).collect(),
        min: values().map(|(value, _)| value.min).collect(),
        max: values().map(|(value, _)| value.max).collect(),
    }
}

/// The latencies at `index` in [`LATENCIES`].
fn latency_figures(index: usize, steps: &BTreeMap<u64, Point>) -> LatencyFigures {
    let latencies_of_steps = || steps.values().map(|point| &point.latencies[index]);
    let percentiles = |fraction: f64| latencies_of_steps().map(|latencies| latencies.percentile_us(fraction)).collect();
    let mean = |latencies: &Latencies| {
        Some(latencies.count()).filter(|count| *count > 0).map(|count| latencies.sum_us as f64 / count as f64)
    };
    let buckets = reported_buckets(latencies_of_steps());
    let counts = |latencies: &Latencies| {
        let mut counts = vec![0; buckets.len()];
        for (bucket, count) in &latencies.counts {
            let index = buckets.binary_search(bucket).expect("every occupied bucket is reported");
            counts[index] = *count;
        }
        counts
    };
    LatencyFigures {
        count: latencies_of_steps().map(|latencies| latencies.count()).collect(),
        mean_us: latencies_of_steps().map(mean).collect(),
        p50_us: percentiles(0.5),
        p99_us: percentiles(0.99),
        p999_us: percentiles(0.999),
        counts: latencies_of_steps().map(counts).collect(),
        bounds_us: buckets[..buckets.len() - 1].iter().map(|bucket| end_us(*bucket)).collect(),
    }
}

/// Buckets in the answer: those that are occupied in a step, the ones below them, whose ends are their lower ends, and
/// the first and the last one.
fn reported_buckets<'a>(steps: impl Iterator<Item = &'a Latencies>) -> Vec<usize> {
    let mut reported = BTreeSet::from([0, LATENCY_BUCKET_COUNT - 1]);
    for (bucket, _) in steps.flat_map(|latencies| &latencies.counts) {
        reported.extend([bucket.saturating_sub(1), *bucket]);
    }
    reported.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(from: u64, to: u64, step: Option<u64>) -> Result<(u64, u64), ErrorKind> {
        let query = Query { from: Some(from), to: Some(to), step, ..Query::default() };
        plan(&query, 10_000_000, None).map(|plan| (TIERS[plan.tier].step, plan.step)).map_err(|failure| failure.kind)
    }

    #[test]
    fn step_follows_the_range_and_tier_follows_the_step() {
        let now = 10_000_000;
        assert_eq!(planned(now - 600, now, None), Ok((1, 1)));
        assert_eq!(planned(now - 3_600, now, None), Ok((1, 6)));
        assert_eq!(planned(now - 86_400, now, None), Ok((60, 180)));
        assert_eq!(planned(now - 86_400, now, Some(25)), Ok((10, 30)));
        assert_eq!(planned(now - 86_400, now, Some(10)), Err(ErrorKind::Invalid));
        assert_eq!(planned(now, now, None), Err(ErrorKind::Invalid));
        assert_eq!(planned(now + 50, now + 90, None), Err(ErrorKind::Invalid));
        assert_eq!(planned(0, now, None).map(|(tier, _)| tier), Ok(3600));
    }

    #[test]
    fn hour_of_the_finest_tier_includes_the_current_second() {
        let query = Query { from: Some(6_400), step: Some(1), ..Query::default() };
        let plan = plan(&query, 10_000, None);
        assert_eq!(plan.map(|plan| (plan.step, plan.to)).map_err(|failure| failure.message), Ok((1, 10_001)));
    }

    #[test]
    fn coarser_tier_answers_beyond_the_reach_of_the_finest() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = File::open(folder.path(), 1 << 30).expect("the file opens");
        let now = 100_000_000;
        let step_for = |ago: u64| {
            let query = Query { from: Some(now - ago), to: Some(now - ago + 100), step: Some(1), ..Query::default() };
            plan(&query, now, Some(&file)).map(|plan| plan.step).map_err(|failure| failure.kind)
        };
        assert_eq!(
            (step_for(3_600), step_for(80_000), step_for(2_000_000), step_for(60_000_000)),
            (Ok(1), Ok(10), Ok(60), Ok(3_600))
        );
    }

    #[test]
    fn unknown_series_is_refused_by_name() {
        let select = |volume: Option<&str>, name: &str| {
            let series = vec![name.to_owned()];
            let subject = volume.map_or(Subject::Whole, |name| Subject::Volume(name.to_owned()));
            select_series(&Query { subject, series, ..Query::default() })
        };
        assert!(select(None, "volumes").is_ok_and(|(figures, latencies)| figures.len() == 1 && latencies.is_empty()));
        assert!(select(Some("v"), "volumes").is_err_and(|failure| failure.message.contains("reads, writes")));
        assert!(
            select(Some("v"), "write_latency").is_ok_and(|(figures, latencies)| figures.is_empty() && latencies == [1])
        );
    }

    #[test]
    fn answer_lists_occupied_buckets_with_their_lower_ends() {
        let point = |start, counts: &[(usize, u64)]| {
            let read = Latencies { sum_us: 1, counts: counts.to_vec() };
            let latencies = [read, Latencies::default()];
            (start, Point::of_sample(start, 1, &[0; super::super::series::SERIES_COUNT], latencies))
        };
        let steps = BTreeMap::from([point(1, &[(0, 5), (40, 2)]), point(2, &[(41, 1), (169, 3)])]);
        let figures = latency_figures(0, &steps);
        assert_eq!(figures.bounds_us, [0, 39, 40, 41, 168].map(end_us));
        assert_eq!(figures.counts, [[5, 0, 2, 0, 0, 0], [0, 0, 0, 1, 0, 3]]);
        assert_eq!(figures.p50_us, [Some(16.384), Some(end_us(168))]);
        let none = latency_figures(1, &steps);
        assert_eq!((none.bounds_us, none.p99_us), (vec![16.384], vec![None, None]));
    }
}
