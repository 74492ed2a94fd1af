//! A modelled array, as an `[[array]]` table or a `sim://` URI describes it.

use std::fmt;
use std::str::FromStr;

/// What each disk of a modelled array is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskKind {
    /// A spindle at 10,000 turns a minute.
    Sas10k,
    /// A spindle at 15,000 turns a minute.
    Sas15k,
    /// A large slow spindle at 7,200 turns a minute.
    NlSas,
    /// A solid-state disk.
    Ssd,
}

impl DiskKind {
    /// All of them, by their names in the configuration.
    pub const ALL: [(&'static str, DiskKind); 4] = [
        ("sas10k", DiskKind::Sas10k),
        ("sas15k", DiskKind::Sas15k),
        ("nlsas", DiskKind::NlSas),
        ("ssd", DiskKind::Ssd),
    ];

    /// Its name in the configuration.
    pub fn name(self) -> &'static str {
        let found = DiskKind::ALL.iter().find(|(_, kind)| *kind == self);
        found.expect("every kind has a name").0
    }
}

impl FromStr for DiskKind {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = DiskKind::ALL.iter().find(|(name, _)| *name == text);
        found.map(|(_, kind)| *kind).ok_or_else(|| {
            let names: Vec<_> = DiskKind::ALL.iter().map(|(name, _)| *name).collect();
            format!("unknown disk \"{text}\"; one of {}", names.join(", "))
        })
    }
}

/// Level, disks and stripe of a modelled array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArraySpec {
    /// RAID level: 0, 1, 5, 6 or 10.
    pub raid: u32,
    /// Disks in it.
    pub disks: u32,
    /// What each is.
    pub disk: DiskKind,
    /// Bytes of a stripe on one disk.
    pub stripe_bytes: u64,
}

impl Default for ArraySpec {
    fn default() -> Self {
        ArraySpec { raid: 5, disks: 5, disk: DiskKind::Sas15k, stripe_bytes: 64 << 10 }
    }
}

/// RAID levels and the fewest disks that make one.
const LEVELS: [(u32, u32); 5] = [(0, 1), (1, 2), (5, 3), (6, 4), (10, 4)];

impl ArraySpec {
    /// The default array of the level that `name` (`raid5`) names.
    pub fn of_level(name: &str) -> Option<Self> {
        let raid = name.strip_prefix("raid")?.parse().ok()?;
        let (_, fewest) = LEVELS.iter().find(|(level, _)| *level == raid)?;
        let defaults = ArraySpec::default();
        Some(ArraySpec {
            raid,
            disks: defaults.disks.max(*fewest).next_multiple_of(if raid == 10 { 2 } else { 1 }),
            ..defaults
        })
    }

    /// Refuses an array that cannot be built. The error says what, and after `; ` what to do.
    pub fn check(&self) -> Result<(), String> {
        let Some((_, fewest)) = LEVELS.iter().find(|(level, _)| *level == self.raid) else {
            return Err(format!("RAID {} is not modelled; use 0, 1, 5, 6 or 10", self.raid));
        };
        if self.disks < *fewest || self.disks > 64 {
            return Err(format!("RAID {} with {} disks; use {fewest} to 64", self.raid, self.disks));
        }
        if self.raid == 10 && !self.disks.is_multiple_of(2) {
            return Err(format!("RAID 10 with {} disks; use an even number", self.disks));
        }
        let stripe_fits = self.stripe_bytes.is_power_of_two() && (4 << 10..=1 << 20).contains(&self.stripe_bytes);
        if !stripe_fits {
            return Err("a stripe of that size is not modelled; use a power of two from 4 KiB to 1 MiB".to_owned());
        }
        Ok(())
    }
}

impl fmt::Display for ArraySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "raid{}?disks={}&type={}&stripe={}", self.raid, self.disks, self.disk.name(), self.stripe_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_that_cannot_be_built_are_refused() {
        let array = ArraySpec::default();
        assert_eq!(array.check(), Ok(()));
        for wrong in [
            ArraySpec { raid: 4, ..array },
            ArraySpec { raid: 6, disks: 3, ..array },
            ArraySpec { raid: 10, disks: 5, ..array },
            ArraySpec { stripe_bytes: 5000, ..array },
            ArraySpec { disks: 65, ..array },
        ] {
            assert!(wrong.check().is_err(), "{wrong}");
        }
        for level in ["raid0", "raid1", "raid5", "raid6", "raid10"] {
            assert_eq!(ArraySpec::of_level(level).expect(level).check(), Ok(()), "{level}");
        }
    }
}
