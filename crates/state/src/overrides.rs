//! Changes made by command; they survive restarts until their key changes in the configuration file.

use std::str::FromStr;

use engine::{CacheMode, VolumeId, WritePolicy};

use super::record::{Override, State, VolumeRecord};

/// Key of the write policy.
pub const POLICY: &str = "policy";
/// Key of the minimum memory quota.
pub const MEMORY_MIN: &str = "memory_min";
/// Key of the maximum memory quota.
pub const MEMORY_MAX: &str = "memory_max";
/// Key of the minimum flash quota.
pub const FLASH_MIN: &str = "flash_min";
/// Key of the maximum flash quota.
pub const FLASH_MAX: &str = "flash_max";
/// Key of the mark that a backing was declared lost.
pub const DECLARED_LOST: &str = "declared_lost";
/// Key of the ranges pinned to flash. The configuration file has no such key.
pub const PINNED: &str = "pinned";
/// Key of the cache mode. The configuration file has no such key, so the override is valid until the volume is resumed.
pub const MODE: &str = "mode";

impl State {
    /// Records a change of a volume's `key` to `value`, with `file` as the value in the configuration file. Equal
    /// values remove the change.
    pub fn set_override(&mut self, volume_id: VolumeId, key: &str, value: &str, file: &str) {
        let Some(record) = self.by_id_mut(volume_id) else { return };
        if value == file {
            record.overrides.remove(key);
        } else {
            record.overrides.insert(key.to_owned(), Override { value: value.to_owned(), file: file.to_owned() });
        }
    }

    /// Removes the change of `key` if the value in the configuration file differs from the one at the change.
    pub fn expire_override(&mut self, volume_id: VolumeId, key: &str, file: &str) {
        let Some(record) = self.by_id_mut(volume_id) else { return };
        if record.overrides.get(key).is_some_and(|change| change.file != file) {
            record.overrides.remove(key);
        }
    }
}

/// The value of `key` in effect, with `file` as the value in the configuration file.
pub fn effective<T: FromStr + ToString>(record: Option<&VolumeRecord>, key: &str, file: T) -> T {
    let change = record.and_then(|record| record.overrides.get(key));
    let change = change.filter(|change| change.file == file.to_string());
    change.and_then(|change| change.value.parse().ok()).unwrap_or(file)
}

/// The write policy in effect, with `file` as the policy in the configuration file.
pub fn effective_policy(record: Option<&VolumeRecord>, file: WritePolicy) -> WritePolicy {
    effective(record, POLICY, file)
}

/// The cache mode in effect.
pub fn effective_mode(record: Option<&VolumeRecord>) -> CacheMode {
    let value = record.and_then(|record| record.overrides.get(MODE)).map(|change| change.value.as_str());
    let modes = [CacheMode::Paused, CacheMode::Frozen];
    modes.into_iter().find(|mode| value == Some(mode.to_string().as_str())).unwrap_or_default()
}
