//! The date on which each pool will be full: a line through the hourly fill of the last week.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use history::{Query, Subject};
use messages::report::{HistoryReport, PoolReport};
use messages::{Answer, unix_time};

use super::Daemon;

/// Time between two looks at the history.
const INTERVAL: Duration = Duration::from_secs(600);
/// Length of the history that counts.
const WINDOW_SECONDS: u64 = 7 * 86_400;
/// Length of a step of it.
const STEP_SECONDS: u64 = 3_600;
/// Shortest time between its first and its last step.
const SPAN_MIN_SECONDS: u64 = 86_400;
/// Fewest steps with data.
const STEPS_MIN: usize = 12;
/// A date that lies further ahead says nothing.
const AHEAD_MAX_SECONDS: f64 = 5.0 * 365.0 * 86_400.0;
/// A pool that has grown by less than this part of its size in that time counts as steady.
const GROWTH_MIN: f64 = 0.001;

/// Growth of the fill of pools.
#[derive(Default)]
pub struct PoolTrends(RefCell<BTreeMap<String, f64>>);

impl PoolTrends {
    /// Adds the dates to reports of pools as they are now.
    pub fn add_to(&self, mut pools: Vec<PoolReport>) -> Vec<PoolReport> {
        let (trends, now) = (self.0.borrow(), unix_time::now().as_secs());
        for pool in &mut pools {
            let growth = trends.get(&pool.name);
            pool.full_at_unix_seconds = growth.and_then(|growth| full_at(now, pool.fill(), *growth));
        }
        pools
    }
}

impl Daemon {
    /// Computes the trends again and again until a stop is requested.
    pub async fn follow_pool_trends(self: Rc<Self>) {
        while !self.stop.is_stopping() {
            let pools = self.cores.pools(false).await;
            let mut trends = BTreeMap::new();
            for pool in pools {
                let query = Query {
                    subject: Subject::Pool(pool.name.clone()),
                    is_known: true,
                    from: Some(unix_time::now().as_secs().saturating_sub(WINDOW_SECONDS)),
                    step: Some(STEP_SECONDS),
                    series: vec!["allocated_bytes".to_owned()],
                    ..Query::default()
                };
                // Without an answer of the history the pool has no date.
                if let Ok(Answer::History(report)) = self.telemetry.query_history(query).await
                    && let Some(growth) = growth(&report, pool.fill().1)
                {
                    trends.insert(pool.name, growth);
                }
            }
            self.pool_trends.0.replace(trends);
            tokio::time::sleep(INTERVAL).await;
        }
    }
}

/// Growth of the fill in bytes a second, by the least squares of its hourly means; `None` unless it grows.
fn growth(report: &HistoryReport, size_bytes: u64) -> Option<f64> {
    let at = &report.at_unix_seconds;
    let (first, last) = (*at.first()?, *at.last()?);
    if last - first < SPAN_MIN_SECONDS || at.len() < STEPS_MIN {
        return None;
    }
    let values = &report.series.get("allocated_bytes")?.mean;
    let points = || at.iter().zip(values).map(|(at, bytes)| ((at - first) as f64, *bytes));
    let count = at.len() as f64;
    let (time_mean, bytes_mean) =
        (points().map(|(time, _)| time).sum::<f64>() / count, points().map(|(_, bytes)| bytes).sum::<f64>() / count);
    let covariance: f64 = points().map(|(time, bytes)| (time - time_mean) * (bytes - bytes_mean)).sum();
    let variance: f64 = points().map(|(time, _)| (time - time_mean).powi(2)).sum();
    let growth = covariance / variance;
    (growth * (last - first) as f64 >= GROWTH_MIN * size_bytes as f64).then_some(growth).filter(|growth| *growth > 0.0)
}

/// The time at which a pool with this fill is full; `None` if that is far ahead.
fn full_at(now: u64, (used_bytes, size_bytes): (u64, u64), growth: f64) -> Option<u64> {
    let seconds = size_bytes.saturating_sub(used_bytes) as f64 / growth;
    (seconds <= AHEAD_MAX_SECONDS).then(|| now + seconds as u64)
}

#[cfg(test)]
mod tests {
    use messages::report::FigureReport;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn history(hours: u64, bytes: impl Fn(u64) -> f64) -> HistoryReport {
        let figure = FigureReport { mean: (0..hours).map(bytes).collect(), ..FigureReport::default() };
        HistoryReport {
            at_unix_seconds: (0..hours).map(|hour| 1_000_000 + hour * STEP_SECONDS).collect(),
            series: [("allocated_bytes".to_owned(), figure)].into(),
            ..HistoryReport::default()
        }
    }

    #[test]
    fn steady_growth_gives_the_date_on_which_the_pool_is_full() {
        // 2 GiB a day on a pool of 100 GiB with a daily wave of 1 GiB.
        let wave = |hour: u64| (hour as f64 / 24.0 * std::f64::consts::TAU).sin() * GIB as f64;
        let report = history(96, |hour| 50.0 * GIB as f64 + hour as f64 * 2.0 * GIB as f64 / 24.0 + wave(hour));
        let growth = growth(&report, 100 * GIB).expect("it grows");
        let days = (full_at(0, (58 * GIB, 100 * GIB), growth).expect("a date") as f64) / 86_400.0;
        assert!((19.0..25.0).contains(&days), "{days} days");
    }

    #[test]
    fn short_steady_and_falling_histories_give_no_date() {
        assert_eq!(growth(&history(20, |hour| hour as f64 * GIB as f64), 100 * GIB), None);
        assert_eq!(growth(&history(96, |_| GIB as f64), 100 * GIB), None);
        assert_eq!(growth(&history(96, |hour| (100 - hour) as f64 * GIB as f64), 100 * GIB), None);
        assert_eq!(growth(&history(0, |_| 0.0), 0), None);
        assert_eq!(full_at(0, (0, 1_000 * GIB), 1.0), None);
    }
}
