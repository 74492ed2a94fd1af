//! Ranges of volumes on absent devices of a pool.

use std::rc::Rc;

use messages::Failure;
use messages::report::{PoolLostRangeReport, PoolLostReport, PoolLostVolumeReport};
use pool::{LostRange, LostVolume};

use super::super::Cores;
use super::OpenPool;

/// Ranges in a report.
const RANGES_MAX: usize = 1_000;

impl Cores {
    /// The ranges that volumes of a pool have lost with absent devices.
    pub async fn lost_of_pool(&self, name: &str) -> Result<PoolLostReport, Failure> {
        self.on_pool(name, async |open: Rc<OpenPool>| open.lost().await).await
    }
}

impl OpenPool {
    async fn lost(&self) -> PoolLostReport {
        let lost = self.pool.lost(RANGES_MAX).await;
        let groups = self.pool.groups();
        let range_report = |range: &LostRange| {
            let group = groups.iter().find(|group| group.group == range.group);
            PoolLostRangeReport {
                offset_bytes: range.at,
                length_bytes: range.len,
                number: range.group.0,
                device: group.map(|group| self.device(group)).unwrap_or_default(),
            }
        };
        let volume_report = |volume: &LostVolume| PoolLostVolumeReport {
            name: volume.name.clone(),
            bytes: volume.bytes,
            total_ranges: volume.ranges,
            ranges: volume.first.iter().map(range_report).collect(),
        };
        PoolLostReport {
            pool: self.name.clone(),
            bytes: lost.iter().map(|volume| volume.bytes).sum(),
            volumes: lost.iter().map(volume_report).collect(),
        }
    }
}
