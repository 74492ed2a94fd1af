//! Quotas of volumes in memory and flash, as the file gives them or as commands have changed them.

use std::collections::BTreeMap;
use std::rc::Rc;

use engine::{FlashQuota, MemoryQuota, PageNo, QuotaError};
use messages::{ErrorKind, Failure};

use super::super::cores::{CoreLocal, Cores, core_ended};
use super::super::volumes::{Placement, Volumes};
use super::{VolumeSettings, requested_settings};
use config::VolumeConfig;
use config::quota::{Ceiling, PinnedRanges, SizeOrPercent, flash_quota, memory_quota};
use logging::{self as log, QOS};
use state::{FLASH_MAX, FLASH_MIN, MEMORY_MAX, MEMORY_MIN, PINNED, State, VolumeRecord, effective};
use units::show_bytes;

/// The quota keys that `volume set` accepts.
pub const KEYS: [&str; 4] = [MEMORY_MIN, MEMORY_MAX, FLASH_MIN, FLASH_MAX];

/// The memory quota in force, of `memory_bytes` bytes of memory, where `config` is the file's entry.
pub fn memory_quota_of(record: Option<&VolumeRecord>, config: &VolumeConfig, memory_bytes: u64) -> MemoryQuota {
    let min = effective(record, MEMORY_MIN, config.memory_min);
    let max = effective(record, MEMORY_MAX, config.memory_max);
    memory_quota(memory_bytes, min, max)
}

/// The flash quota in force, where `config` is the file's entry.
pub fn flash_quota_of(record: Option<&VolumeRecord>, config: &VolumeConfig) -> FlashQuota {
    let min = effective(record, FLASH_MIN, config.flash_min);
    let max = effective(record, FLASH_MAX, config.flash_max);
    let pinned = effective(record, PINNED, PinnedRanges::default());
    let pinned = pinned.page_ranges().into_iter().map(|range| PageNo(range.start)..PageNo(range.end));
    FlashQuota { pinned: pinned.collect(), ..flash_quota(config.flash, min, max) }
}

impl VolumeSettings {
    /// Changes a volume's quotas and saves them; fails if they cannot be guaranteed.
    pub async fn set_quotas(
        &self,
        name: &str,
        placement: &Placement,
        settings: &BTreeMap<String, String>,
    ) -> Result<(), Failure> {
        let changes = requested_settings(&KEYS, settings);
        if changes.is_empty() {
            return Ok(());
        }
        let config = self.volumes.config_of(name)?;
        let mut state = self.records.view().clone();
        for (key, value) in changes {
            let (value, file) =
                normalize(key, value, &config).map_err(|text| Failure::new(ErrorKind::Invalid, text))?;
            state.set_override(placement.volume_id, key, &value, &file);
        }
        check_memory(&self.volumes, self.settings.memory_bytes(), &config, &state)?;
        apply(&self.cores, self.settings.memory_bytes(), &config, placement, &state).await?;
        let saved = self.records.save_overrides(placement, &state, &KEYS);
        saved.inspect(|()| log::info!(target: QOS, volume = name, "volume {name}: quotas changed by command"))
    }

    /// Pins pages to flash if `pins`, unpins them otherwise: from one byte to another, or to the volume's end.
    pub async fn pin(
        &self,
        name: &str,
        placement: &Placement,
        from_bytes: u64,
        to_bytes: Option<u64>,
        pins: bool,
    ) -> Result<(), Failure> {
        if let Some(to) = to_bytes.filter(|to| *to <= from_bytes) {
            let text =
                format!("the range from byte {from_bytes} to byte {to} is empty; specify an end after the start");
            return Err(Failure::new(ErrorKind::Invalid, text));
        }
        let config = self.volumes.config_of(name)?;
        let conflict = |text: &str| Failure::new(ErrorKind::Conflict, format!("volume {name}: {text}"));
        if pins && self.flash.store().is_none() {
            return Err(conflict("no flash cache is in use; `hotset flash list` shows the reason"));
        }
        if pins && !config.flash {
            return Err(conflict("flash is disabled for it in the configuration; set flash = true and restart"));
        }
        let size = self.cores.size_of(name, placement).await?;
        let end = if pins { to_bytes.unwrap_or(size).min(size) } else { to_bytes.unwrap_or(u64::MAX) };
        if pins && from_bytes >= end {
            let text = format!(
                "byte {from_bytes} is past the end of volume {name}, which has {size} bytes; specify a range inside it"
            );
            return Err(Failure::new(ErrorKind::Invalid, text));
        }
        let mut state = self.records.view().clone();
        let before = effective(state.by_name(name), PINNED, PinnedRanges::default());
        let pinned = if pins { before.with(from_bytes..end) } else { before.without(from_bytes..end) };
        let pinned = pinned.map_err(|text| conflict(&text))?;
        state.set_override(placement.volume_id, PINNED, &pinned.to_string(), &PinnedRanges::default().to_string());
        apply(&self.cores, self.settings.memory_bytes(), &config, placement, &state).await?;
        self.records.save_overrides(placement, &state, &[PINNED])?;
        let change = if pins { "pinned to flash" } else { "no longer pinned" };
        log::info!(
            target: QOS, volume = name,
            "volume {name}: range from byte {from_bytes} {change} by command; pinned now: {pinned}"
        );
        Ok(())
    }

    /// Applies the quotas that the file now gives a volume.
    pub(super) async fn reload_quotas(&self, placement: &Placement, fresh: &VolumeConfig) -> Result<(), Failure> {
        let mut state = self.records.view().clone();
        for key in KEYS {
            state.expire_override(placement.volume_id, key, &fresh.setting(key));
        }
        apply(&self.cores, self.settings.memory_bytes(), fresh, placement, &state).await?;
        self.records.save_overrides(placement, &state, &KEYS)
    }
}

/// Checks that the minimum that `fresh` gives a volume fits into the memory of `memory_bytes` bytes beside the minima
/// of the others.
fn check_memory(volumes: &Volumes, memory_bytes: u64, config: &VolumeConfig, fresh: &State) -> Result<(), Failure> {
    let name = &config.name;
    let min = |config: &VolumeConfig| effective(fresh.by_name(&config.name), MEMORY_MIN, config.memory_min);
    let max = effective(fresh.by_name(name), MEMORY_MAX, config.memory_max);
    let conflict = |text| Err(Failure::new(ErrorKind::Conflict, format!("volume {name} keeps its quotas: {text}")));
    if let Some(max) = max.0
        && min(config).bytes_of(memory_bytes) > max.bytes_of(memory_bytes)
    {
        return conflict(format!("memory_min {} is above memory_max {max}", min(config)));
    }
    let guaranteed =
        volumes.map(|known| min(&known.config).bytes_of(memory_bytes)).into_iter().fold(0, u64::saturating_add);
    if guaranteed > memory_bytes {
        let (guaranteed, memory_bytes) = (show_bytes(guaranteed), show_bytes(memory_bytes));
        return conflict(format!(
            "the sum of all memory_min would be {guaranteed}, more than the memory cache of {memory_bytes}"
        ));
    }
    Ok(())
}

/// Applies the quotas in `state` and the configuration to a volume on its core, where memory has `memory_bytes` bytes.
async fn apply(
    cores: &Cores,
    memory_bytes: u64,
    config: &VolumeConfig,
    placement: &Placement,
    state: &State,
) -> Result<(), Failure> {
    let (name, record) = (&config.name, state.by_name(&config.name));
    let memory = memory_quota_of(record, config, memory_bytes);
    let flash = flash_quota_of(record, config);
    let volume = name.to_owned();
    let call = async move |local: Rc<CoreLocal>| match local.engine.find(&volume) {
        Some(volume) => volume.set_flash_quota(flash).map(|()| volume.set_memory_quota(memory)),
        None => Ok(()),
    };
    let result: Result<(), QuotaError> = cores[placement.core].call(call).await.map_err(core_ended)?;
    result.map_err(|error| Failure::new(ErrorKind::Conflict, format!("volume {name} keeps its flash quota: {error}")))
}

/// A value in its normal form, and the file's value of that key.
fn normalize(key: &str, value: &str, config: &VolumeConfig) -> Result<(String, String), String> {
    let value = match key {
        MEMORY_MIN | FLASH_MIN => value.parse::<SizeOrPercent>()?.to_string(),
        _ => value.parse::<Ceiling>()?.to_string(),
    };
    Ok((value, config.setting(key)))
}
