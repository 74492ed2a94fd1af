//! Limits of a load in memory and in flash by the settings of its volume.

use super::Kind;

/// Maximum of a load in one kind of cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Limit {
    /// No limit.
    #[default]
    None,
    /// At most this many bytes.
    Bytes(u64),
    /// At most these thousandths of the whole cache.
    PerMille(u32),
}

impl Limit {
    /// Bytes that a cache of `whole_bytes` may hold of the load.
    pub fn bytes_of(self, whole_bytes: u64) -> u64 {
        match self {
            Limit::None => u64::MAX,
            Limit::Bytes(bytes) => bytes,
            Limit::PerMille(per_mille) => (u128::from(whole_bytes) * u128::from(per_mille) / 1_000) as u64,
        }
    }
}

/// Setting of a volume that limits its part of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitSetting {
    /// `memory_max`.
    MemoryMax,
    /// `flash_max`.
    FlashMax,
    /// `flash = false`.
    FlashDisabled,
}

/// Limits of a load in memory and in flash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Quota of memory.
    pub memory_max: Limit,
    /// Quota of flash.
    pub flash_max: Limit,
    /// True if flash holds no pages of the load, whatever its quota.
    pub is_flash_disabled: bool,
}

impl Limits {
    /// The limits in memory and in flash.
    pub fn in_force(self) -> [Limit; 2] {
        [self.memory_max, if self.is_flash_disabled { Limit::Bytes(0) } else { self.flash_max }]
    }

    /// The setting that limits the load in a cache; `None` without a limit.
    pub fn setting(self, kind: Kind) -> Option<LimitSetting> {
        match kind {
            Kind::Memory => (self.memory_max != Limit::None).then_some(LimitSetting::MemoryMax),
            Kind::Flash if self.is_flash_disabled => Some(LimitSetting::FlashDisabled),
            Kind::Flash => (self.flash_max != Limit::None).then_some(LimitSetting::FlashMax),
        }
    }

    /// The limits without the one of [`Limits::setting`]; the quota of a load stays when its flash is enabled.
    pub fn without(self, kind: Kind) -> Option<Limits> {
        Some(match self.setting(kind)? {
            LimitSetting::MemoryMax => Limits { memory_max: Limit::None, ..self },
            LimitSetting::FlashMax => Limits { flash_max: Limit::None, ..self },
            LimitSetting::FlashDisabled => Limits { is_flash_disabled: false, ..self },
        })
    }
}
