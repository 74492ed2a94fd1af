//! Reports of plans: what would move, why, and what it brings.

use messages::Failure;
use messages::report::{
    PoolCellsReport, PoolCurveReport, PoolHeatReport, PoolLoadReport, PoolMoveReason, PoolMoveReport, PoolPlanReport,
    PoolQueueReport,
};
use pool::planner::{ClassCost, HeatBucket, HeatHistogram, Reason};
use pool::{PlannedMove, PoolError, RelocationPlan, RelocationSettings};
use seam::Nanos;

use super::OpenPool;
use super::classes::TierClass;
use super::commands::pool_failure;

/// Moves in a report.
const MOVES_MAX: usize = 1_000;
/// Cells of the map of a volume.
const CELLS_MAX: u32 = 2_048;
/// Points of the curve, in millionths of all slices.
const CURVE_PPM: [u64; 20] = [
    1_000, 2_000, 5_000, 10_000, 20_000, 30_000, 50_000, 75_000, 100_000, 150_000, 200_000, 250_000, 300_000, 400_000,
    500_000, 600_000, 700_000, 800_000, 900_000, 1_000_000,
];
/// Least disk time of a slice for each hour in each class of the histogram, in milliseconds.
const HEAT_MS: [u64; 6] = [0, 1, 10, 100, 1_000, 10_000];

impl OpenPool {
    /// The moves that the pool would make now.
    pub async fn plan(&self, settings: &RelocationSettings) -> Result<PoolPlanReport, PoolError> {
        let plan = self.pool.plan(settings).await?;
        let histogram = self.pool.heat_histogram(&settings.classes).await?;
        let RelocationPlan { moves, totals, groups: loads, outdated_at: _ } = plan;
        let groups = self.pool.groups();
        let time_per_move = Nanos(totals.duration.0 / (moves.len() as u64).max(1));
        let total_moves = moves.len() as u64;
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
            curve: curve_reports(&histogram),
            total_moves,
            moves: self.move_reports(&moves[..moves.len().min(MOVES_MAX)], (1, time_per_move)),
            bytes: totals.bytes,
            seconds: totals.duration.as_millis().div_ceil(1_000),
            saved_ms_per_hour: totals.saved_per_hour / 1_000_000,
            copy_ms: totals.copy_time.as_millis(),
        })
    }

    /// The moves that have not ended.
    pub fn queue(&self) -> PoolQueueReport {
        let queue = self.pool.relocation_queue(MOVES_MAX);
        let moving = queue.moving.len() as u64;
        let left = Nanos(queue.time_per_move.0.saturating_mul(moving + queue.waiting_count));
        PoolQueueReport {
            moving: self.move_reports(&queue.moving, (1, queue.time_per_move)),
            waiting: self.move_reports(&queue.waiting, (moving + 1, queue.time_per_move)),
            total_waiting: queue.waiting_count,
            left_seconds: left.as_millis().div_ceil(1_000),
        }
    }

    /// Tiers and load of a volume's slices.
    pub async fn cells(&self, volume: &str) -> Result<PoolCellsReport, Failure> {
        let (number, _) = self.volume_named(volume)?;
        let classes = self.class_costs();
        let map = self.pool.volume_cells(number, &classes, CELLS_MAX).await.map_err(pool_failure)?;
        let slice_bytes = self.pool.slice_bytes();
        let tier_bytes = |slices: &Vec<u32>| slices.iter().map(|slices| u64::from(*slices) * slice_bytes).collect();
        Ok(PoolCellsReport {
            tiers: self.pool.tiers(),
            cell_bytes: u64::from(map.cell_slices) * slice_bytes,
            tier_bytes: map.cells.iter().map(|cell| tier_bytes(&cell.slices)).collect(),
            us_per_hour: map.cells.iter().map(|cell| cell.disk_time.as_micros()).collect(),
        })
    }

    /// Costs of the tiers, the fastest first.
    pub(super) fn class_costs(&self) -> Vec<ClassCost> {
        self.relocation.classes().iter().map(TierClass::cost).collect()
    }

    /// Reports of moves, the first of which is the `position`-th to end.
    fn move_reports(&self, moves: &[PlannedMove], (position, time_per_move): (u64, Nanos)) -> Vec<PoolMoveReport> {
        let (volumes, slice_bytes) = (self.pool.volume_names(), self.pool.slice_bytes());
        let report = |(position, planned): (u64, &PlannedMove)| {
            let volume = volumes.get(&planned.slice.volume).cloned().unwrap_or_default();
            let eta = Nanos(time_per_move.0.saturating_mul(position));
            PoolMoveReport { eta_seconds: eta.as_millis().div_ceil(1_000), ..move_report(planned, volume, slice_bytes) }
        };
        (position..).zip(moves).map(report).collect()
    }
}

fn curve_reports(histogram: &HeatHistogram) -> Vec<PoolCurveReport> {
    let slices: u64 = histogram.buckets().map(HeatBucket::count).sum();
    let point = |slices_ppm: u64| {
        let hottest = (u128::from(slices) * u128::from(slices_ppm)).div_ceil(1_000_000) as u64;
        PoolCurveReport { slices_ppm, load_ppm: histogram.share_of_hottest(hottest) }
    };
    CURVE_PPM.map(point).to_vec()
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
        eta_seconds: 0,
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
