//! Modelled arrays, as an `[[array]]` table or a `sim://` URI describes them.

use seam::model::{ArraySpec, DiskType, RaidLevel};

/// Default number of disks in an array.
const DISKS: usize = 5;

/// The default array.
pub fn default_array() -> ArraySpec {
    ArraySpec::new(RaidLevel::Raid5, DISKS, DiskType::Sas15k)
}

/// The default array of the RAID level `name` (`raid5`).
pub fn array_of_level(name: &str) -> Option<ArraySpec> {
    let level = RaidLevel::from_number(name.strip_prefix("raid")?.parse().ok()?)?;
    let disks = if level == RaidLevel::Raid10 { DISKS + 1 } else { DISKS };
    Some(ArraySpec::new(level, disks, DiskType::Sas15k))
}

/// The array in the form of a URI, without a size.
pub fn show_array(spec: &ArraySpec) -> String {
    let level = spec.level.to_string().replace("RAID ", "raid");
    format!("{level}?disks={}&type={}&stripe={}", spec.disks, spec.disk, spec.stripe_unit_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_has_a_default_array_that_can_be_built() {
        for (number, _) in RaidLevel::ALL {
            let name = format!("raid{number}");
            let array = array_of_level(&name).expect("a level of the list");
            assert_eq!(array.check(), Ok(()), "{name}");
            assert!(show_array(&array).starts_with(&name));
        }
        assert_eq!(array_of_level("raid7"), None);
        assert_eq!(array_of_level("shelf"), None);
        assert_eq!(default_array().check(), Ok(()));
    }
}
