//! Estimates of the benefit of more memory or flash per volume, for the command and the HTTP interface.

use std::collections::BTreeSet;

use engine::{PageAmount, pool_bytes_for};
use messages::report::{AdvicePage, Assumptions, CoreReport};
use messages::{Answer, ErrorKind, Failure, VolumeReport, VolumeState};

use super::super::volume_settings::flash_quota_of;
use super::Daemon;
use config::VolumeConfig;
use config::quota::{PAGE_BYTES, SizeOrPercent};
use lab::advice::{Limit, Limits};
use lab::report::advice;
use state::{MEMORY_MAX, VolumeRecord, effective};

/// Maximum volumes per page: the curves of each are computed for the page.
const VOLUMES_MAX: usize = 100;

impl Daemon {
    /// `advise`: sorted by name, either `volume` alone or the first `limit` volumes after `after`.
    pub(super) async fn advise(
        &self,
        limit: usize,
        after: Option<&str>,
        volume: Option<&str>,
        assumptions: &Assumptions,
    ) -> Result<Answer, Failure> {
        if !(1..=VOLUMES_MAX).contains(&limit) {
            let text = format!("limit is {limit}; use 1 to {VOLUMES_MAX}");
            return Err(Failure::new(ErrorKind::Invalid, text));
        }
        if assumptions.spindle_iops == 0 {
            let text = "spindle_iops is 0; assume at least 1 request per second";
            return Err(Failure::new(ErrorKind::Invalid, text));
        }
        let (cores, reports, _) = self.reports().await;
        let capacity = self.cache_capacity(&cores).await;
        if let Some(name) = volume.filter(|name| !reports.iter().any(|report| report.name == **name)) {
            return Err(Failure::no_volume(name));
        }
        let (reports, next) = page_of(reports, limit, after, volume);
        let mut volumes = Vec::with_capacity(reports.len());
        // Once a core does not answer, its other volumes are skipped: each would take a full time-out.
        let mut unresponsive = BTreeSet::new();
        for report in &reports {
            if matches!(report.state, VolumeState::Refused | VolumeState::Standby) {
                volumes.push(advice::without_curves(report));
                continue;
            }
            // The volume may have been removed meanwhile.
            let Ok(placement) = self.volumes.placement(&report.name) else { continue };
            let curve = if unresponsive.contains(&placement.core) { None } else { self.curve(&report.name).await };
            match curve {
                Some(curve) => {
                    let Ok(config) = self.volumes.config_of(&report.name) else { continue };
                    let limits = limits_of(self.records.view().by_name(&report.name), &config);
                    volumes.push(advice::of_volume(report, &curve, &capacity, limits, assumptions));
                }
                None if self.volumes.placement(&report.name).is_err() => {}
                None => {
                    unresponsive.insert(placement.core);
                    volumes.push(advice::without_curves(report));
                }
            }
        }
        let assumptions = (*assumptions).into();
        Ok(Answer::Advice(Box::new(AdvicePage { assumptions, volumes, next })))
    }

    /// Memory and flash that all volumes share.
    async fn cache_capacity(&self, cores: &[CoreReport]) -> advice::Capacity {
        let unused = cores.iter().map(|core| core.pool_bytes.saturating_sub(core.pool_used_bytes)).sum();
        let flash = self.flash.report(&self.volumes).await;
        let (pages, devices) = flash.map(|flash| (flash.pages, flash.devices)).unwrap_or_default();
        let free_slots = pages.slots.saturating_sub(pages.pages);
        advice::Capacity {
            free_bytes: [unused, free_slots * PAGE_BYTES],
            memory_bytes: cores.iter().map(|core| core.pool_bytes).sum(),
            flash_bytes: devices.iter().map(|device| device.size_bytes).sum(),
            flash_page_bytes: pages.slots * PAGE_BYTES,
        }
    }
}

/// Limits of a volume in memory and in flash, as the file gives them or as commands have changed them.
fn limits_of(record: Option<&VolumeRecord>, config: &VolumeConfig) -> Limits {
    let memory_max = match effective(record, MEMORY_MAX, config.memory_max).0 {
        None => Limit::None,
        // A part of the quota is index.
        Some(SizeOrPercent::Bytes(bytes)) => Limit::Bytes(pool_bytes_for(bytes)),
        Some(SizeOrPercent::PerMille(per_mille)) => Limit::PerMille(per_mille),
    };
    let flash = flash_quota_of(record, config);
    let flash_max = match flash.max {
        None => Limit::None,
        Some(PageAmount::Pages(pages)) => Limit::Bytes(pages.saturating_mul(PAGE_BYTES)),
        Some(PageAmount::PerMille(per_mille)) => Limit::PerMille(per_mille),
    };
    Limits { memory_max, flash_max, is_flash_disabled: !flash.is_enabled }
}

/// The volumes of a page, and the name after which the next page begins.
fn page_of(
    mut reports: Vec<VolumeReport>,
    limit: usize,
    after: Option<&str>,
    only: Option<&str>,
) -> (Vec<VolumeReport>, Option<String>) {
    reports.retain(|report| {
        only.is_none_or(|only| report.name == only) && after.is_none_or(|after| *report.name > *after)
    });
    reports.sort_by(|first, second| first.name.cmp(&second.name));
    let is_last = reports.len() <= limit;
    reports.truncate(limit);
    let next = reports.last().filter(|_| !is_last).map(|report| report.name.clone());
    (reports, next)
}

#[cfg(test)]
mod tests {
    use config::BackingSpec;
    use state::{FLASH_MAX, Override};

    use super::*;

    #[test]
    fn limits_of_a_volume_are_those_in_force() {
        let mut config = VolumeConfig::new("v", BackingSpec::Path("/x".into()));
        assert_eq!(limits_of(None, &config), Limits::default());
        config.memory_max = "8 GiB".parse().expect("a size");
        config.flash_max = "12.5%".parse().expect("a percentage");
        let limits = limits_of(None, &config);
        // The index of 8 GiB of memory takes less than a tenth.
        let is_reduced = |bytes| (7 << 30..8 << 30).contains(&bytes);
        assert!(matches!(limits.memory_max, Limit::Bytes(bytes) if is_reduced(bytes)), "{limits:?}");
        assert_eq!((limits.flash_max, limits.is_flash_disabled), (Limit::PerMille(125), false));
        // Changes by command take precedence over the file.
        let mut record = VolumeRecord::default();
        for (key, value) in [(MEMORY_MAX, "50%"), (FLASH_MAX, "1 GiB")] {
            record.overrides.insert(key.to_owned(), Override { value: value.to_owned(), file: config.setting(key) });
        }
        config.flash = false;
        let changed =
            Limits { memory_max: Limit::PerMille(500), flash_max: Limit::Bytes(1 << 30), is_flash_disabled: true };
        assert_eq!(limits_of(Some(&record), &config), changed);
    }

    #[test]
    fn pages_hold_each_volume_once_and_one_volume_can_be_selected() {
        let reports =
            || ["b", "d", "a", "c"].map(|name| VolumeReport::idle(name, VolumeState::Active, "none", "/x")).to_vec();
        for limit in 1..6 {
            let (mut seen, mut after) = (Vec::new(), None);
            loop {
                let (page, next) = page_of(reports(), limit, after.as_deref(), None);
                assert!(page.len() <= limit);
                seen.extend(page.into_iter().map(|report| report.name));
                after = next;
                if after.is_none() {
                    break;
                }
            }
            assert_eq!(seen, ["a", "b", "c", "d"], "{limit} a page");
        }
        let (page, next) = page_of(reports(), 1, None, Some("c"));
        assert_eq!((page.len(), page[0].name.as_str(), next), (1, "c", None));
    }
}
