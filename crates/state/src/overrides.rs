//! Changes made by command: they hold over a restart until their key changes in the file.

use std::str::FromStr;

use engine::{CacheMode, VolumeId, WritePolicy};

use super::record::{Override, State, VolumeRecord};

/// Key of a policy's override.
pub const POLICY: &str = "policy";
/// Key of the least that a volume has of the memory.
pub const MEMORY_MIN: &str = "memory_min";
/// Key of the most that a volume has of the memory.
pub const MEMORY_MAX: &str = "memory_max";
/// Key of the least that a volume has of the flash.
pub const FLASH_MIN: &str = "flash_min";
/// Key of the most that a volume has of the flash.
pub const FLASH_MAX: &str = "flash_max";
/// Key of whether a backing was declared lost.
pub const DECLARED_LOST: &str = "declared_lost";
/// Key of the ranges that are pinned to flash; the file has no such key.
pub const PINNED: &str = "pinned";
/// Key of a mode's override; the file has no such key, so that it holds until the volume is resumed.
pub const MODE: &str = "mode";

impl State {
    /// Notes a change of `key` of a volume to `value` where the file says `file`; no change left forgets it.
    pub fn set_override(&mut self, incarnation: VolumeId, key: &str, value: &str, file: &str) {
        let Some(record) = self.by_incarnation_mut(incarnation) else { return };
        if value == file {
            record.overrides.remove(key);
        } else {
            record.overrides.insert(key.to_owned(), Override { value: value.to_owned(), file: file.to_owned() });
        }
    }

    /// Forgets the change of `key` if the file says something else than when it was made.
    pub fn expire_override(&mut self, incarnation: VolumeId, key: &str, file: &str) {
        let Some(record) = self.by_incarnation_mut(incarnation) else { return };
        if record.overrides.get(key).is_some_and(|held| held.file != file) {
            record.overrides.remove(key);
        }
    }
}

/// What holds for `key` where the file says `file`.
pub fn effective<T: FromStr + ToString>(record: Option<&VolumeRecord>, key: &str, file: T) -> T {
    let held = record.and_then(|record| record.overrides.get(key));
    let held = held.filter(|held| held.file == file.to_string());
    held.and_then(|held| held.value.parse().ok()).unwrap_or(file)
}

/// The policy that holds where the file says `file`.
pub fn effective_policy(record: Option<&VolumeRecord>, file: WritePolicy) -> WritePolicy {
    effective(record, POLICY, file)
}

/// The mode that holds.
pub fn effective_mode(record: Option<&VolumeRecord>) -> CacheMode {
    let held = record.and_then(|record| record.overrides.get(MODE)).map(|held| held.value.as_str());
    let modes = [CacheMode::Paused, CacheMode::Frozen];
    modes.into_iter().find(|mode| held == Some(mode.to_string().as_str())).unwrap_or_default()
}
