//! Reports of plans: what would move, why, and what it brings.

use messages::report::{PoolHeatReport, PoolLoadReport, PoolMoveReason, PoolMoveReport, PoolPlanReport};
use pool::planner::{HeatHistogram, Reason};
use pool::{PlannedMove, PoolError, RelocationPlan, RelocationSettings};
use seam::Nanos;

use super::OpenPool;

/// Moves in a report.
const MOVES_MAX: usize = 1_000;
/// Least disk time of a slice for each hour in each class of the histogram, in milliseconds.
const HEAT_MS: [u64; 6] = [0, 1, 10, 100, 1_000, 10_000];

impl OpenPool {
    /// The moves that the pool would make now.
    pub async fn plan(&self, settings: &RelocationSettings) -> Result<PoolPlanReport, PoolError> {
        let plan = self.pool.plan(settings).await?;
        let histogram = self.pool.heat_histogram(&settings.classes).await?;
        let RelocationPlan { moves, totals, groups: loads, outdated_at: _ } = plan;
        let (groups, volumes) = (self.pool.groups(), self.pool.volume_names());
        let move_report = |planned: &PlannedMove| {
            let volume = volumes.get(&planned.slice.volume).cloned().unwrap_or_default();
            move_report(planned, volume, self.pool.slice_bytes())
        };
        let load_report = |load: &pool::GroupLoad| PoolLoadReport {
            number: load.group.0,
            device: groups
                .iter()
                .find(|group| group.group == load.group)
                .map(|group| self.device(group))
                .unwrap_or_default(),
            measured_ppm: load.measured_ppm,
            expected_ppm: load.expected_ppm,
        };
        Ok(PoolPlanReport {
            pool: self.name.clone(),
            tiers: self.pool.tiers(),
            heat: heat_reports(&histogram, self.pool.tiers().len(), self.pool.slice_bytes()),
            loads: loads.iter().map(load_report).collect(),
            total_moves: moves.len() as u64,
            moves: moves.iter().take(MOVES_MAX).map(move_report).collect(),
            bytes: totals.bytes,
            seconds: totals.duration.as_millis().div_ceil(1_000),
            saved_ms_per_hour: totals.saved_per_hour / 1_000_000,
            copy_ms: totals.copy_time.as_millis(),
        })
    }
}

fn move_report(planned: &PlannedMove, volume: String, slice_bytes: u64) -> PoolMoveReport {
    let details = &planned.details;
    let seconds = |payback: Nanos| Some(payback.as_millis().div_ceil(1_000));
    let (reason, payback_seconds) = match details.reason {
        Reason::Promote { payback, .. } => (PoolMoveReason::Promote, seconds(payback)),
        Reason::MakeRoom { .. } => (PoolMoveReason::MakeRoom, None),
        Reason::Policy => (PoolMoveReason::Policy, None),
        Reason::Reserve { .. } => (PoolMoveReason::Reserve, None),
        Reason::Balance { payback, .. } => (PoolMoveReason::Balance, seconds(payback)),
    };
    PoolMoveReport {
        volume,
        offset_bytes: u64::from(planned.slice.slice.0) * slice_bytes,
        from: planned.from.0,
        to: planned.to.0,
        reason,
        saved_ms_per_hour: details.saved_per_hour / 1_000_000,
        copy_ms: details.copy_time.as_millis(),
        payback_seconds,
    }
}

/// The histogram in a few classes; those without slices are left out.
fn heat_reports(histogram: &HeatHistogram, tiers: usize, slice_bytes: u64) -> Vec<PoolHeatReport> {
    let empty = |from_ms_per_hour| PoolHeatReport { from_ms_per_hour, tier_bytes: vec![0; tiers], ms_per_hour: 0 };
    let mut reports = HEAT_MS.map(empty);
    for bucket in histogram.buckets() {
        let class = HEAT_MS.partition_point(|from_ms| *from_ms <= bucket.from.as_millis()) - 1;
        let report = &mut reports[class];
        report.ms_per_hour += bucket.disk_time.as_millis();
        let tiers = report.tier_bytes.iter_mut().zip(&bucket.slices);
        tiers.for_each(|(bytes, slices)| *bytes += slices * slice_bytes);
    }
    reports.into_iter().filter(|report| report.tier_bytes.iter().any(|bytes| *bytes > 0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_classed_by_their_disk_time() {
        let mut histogram = HeatHistogram::empty(2);
        histogram.add(0, Nanos::from_millis(150));
        histogram.add(1, Nanos::from_millis(700));
        (0..3).for_each(|_| histogram.add(1, Nanos::ZERO));
        let report = |from_ms_per_hour, tier_bytes: [u64; 2], ms_per_hour| PoolHeatReport {
            from_ms_per_hour,
            tier_bytes: tier_bytes.to_vec(),
            ms_per_hour,
        };
        assert_eq!(heat_reports(&histogram, 2, 10), [report(0, [0, 30], 0), report(100, [10, 10], 850)]);
    }
}
