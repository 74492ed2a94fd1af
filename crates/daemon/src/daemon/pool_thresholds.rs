//! Soft thresholds of pools: the alerts of a pool's fill also reach the initiators of its thin volumes.

use std::cell::RefCell;
use std::collections::BTreeMap;

use messages::report::PoolReport;
use scsi::{PoolSpace, SoftThreshold};

use super::super::iscsi_units::PoolSpaceUpdate;
use super::Daemon;

const _: () = assert!(PoolReport::FILL_THRESHOLDS_PERCENT.len() == SoftThreshold::COUNT);

/// Number of thresholds that each pool had reached in the last sample.
#[derive(Default)]
pub struct PoolThresholds(RefCell<BTreeMap<String, usize>>);

impl PoolThresholds {
    /// The thresholds that a pool has reached since the last sample. `level`: number of those reached now.
    fn newly_reached(&self, pool: &str, level: usize) -> &'static [SoftThreshold] {
        const ALL: &[SoftThreshold] = &SoftThreshold::ALL;
        let before = self.0.borrow_mut().insert(pool.to_owned(), level).unwrap_or(0);
        ALL.get(before..level).unwrap_or_default()
    }
}

impl Daemon {
    /// Passes the space of the pools to the iSCSI target, and reports thresholds whose alerts this sample has raised.
    pub(super) async fn report_pool_spaces(&self, pools: &[PoolReport]) {
        if pools.is_empty() || !self.settings.has_target() {
            return;
        }
        let updates = pools.iter().map(|pool| {
            let level = self.journal.pool_fill_level(pool);
            PoolSpaceUpdate {
                pool: pool.name.clone(),
                space: space(pool.fill()),
                newly_reached: self.pool_thresholds.newly_reached(&pool.name, level),
            }
        });
        self.units.update_pool_spaces(updates.collect()).await;
    }
}

/// Space of a pool by its fill: used bytes and size.
fn space((used_bytes, size_bytes): (u64, u64)) -> PoolSpace {
    let used_at = |percent: u64| (u128::from(size_bytes) * u128::from(percent)).div_ceil(100) as u64;
    PoolSpace {
        used_bytes,
        available_bytes: size_bytes - used_bytes,
        soft_thresholds: PoolReport::FILL_THRESHOLDS_PERCENT.map(used_at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threshold_is_reached_again_only_after_the_level_fell() {
        let thresholds = PoolThresholds::default();
        let [first, second, third] = SoftThreshold::ALL;
        for (level, expected) in [
            (0, vec![]),
            (1, vec![first]),
            (1, vec![]),
            (3, vec![second, third]),
            (2, vec![]),
            (3, vec![third]),
            (0, vec![]),
            (2, vec![first, second]),
        ] {
            assert_eq!(thresholds.newly_reached("tank", level), expected);
        }
        assert_eq!(thresholds.newly_reached("other", 1), [first]);
    }

    #[test]
    fn thresholds_are_the_first_bytes_of_their_percentage() {
        let space = space((40, 101));
        assert_eq!(space.available_bytes, 61);
        assert_eq!(space.soft_thresholds, [71, 86, 96]);
    }
}
