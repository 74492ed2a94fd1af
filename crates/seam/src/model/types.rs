//! Disk types of the configuration, and their figures.
//!
//! The times are those of data sheets, rounded. The full-stroke seek is set so that single 8 KiB random reads over the
//! whole disk run at 150 (10k), 180 (15k) and 90 (NL-SAS) per second, the figures used to size arrays.

use std::fmt;
use std::str::FromStr;

use super::spindle::SpindleSpec;
use super::ssd::SsdSpec;
use crate::Nanos;

/// A kind of disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiskType {
    /// SAS, 10,000 revolutions per minute, 600 GB.
    Sas10k,
    /// SAS, 15,000 revolutions per minute, 300 GB.
    Sas15k,
    /// Near-line SAS, 7,200 revolutions per minute, 4 TB.
    NlSas,
    /// A flash device on SAS, 400 GB.
    Ssd,
}

impl DiskType {
    /// All types with their names in the configuration.
    pub const ALL: [(&'static str, DiskType); 4] = [
        ("sas10k", DiskType::Sas10k),
        ("sas15k", DiskType::Sas15k),
        ("nlsas", DiskType::NlSas),
        ("ssd", DiskType::Ssd),
    ];

    /// Capacity of one disk in bytes.
    pub fn capacity_bytes(self) -> u64 {
        match self {
            DiskType::Sas10k => 600_000_000_000,
            DiskType::Sas15k => 300_000_000_000,
            DiskType::NlSas => 4_000_000_000_000,
            DiskType::Ssd => 400_000_000_000,
        }
    }

    /// Figures of a rotating disk; `None` for flash.
    pub fn spindle(self) -> Option<SpindleSpec> {
        let common = SpindleSpec {
            capacity_bytes: self.capacity_bytes(),
            revolution: Nanos::from_micros(4_000),
            track_bytes: 800_000,
            seek_min: Nanos::from_micros(400),
            seek_max: Nanos::from_micros(6_120),
            write_settle: Nanos::from_micros(200),
            overhead: Nanos::from_micros(40),
            reorder_depth: 10,
            starvation_limit: Nanos::from_millis(400),
            read_ahead_bytes: 1 << 20,
            segments: 8,
            interface_bytes_per_second: 600_000_000,
        };
        match self {
            DiskType::Sas15k => Some(common),
            DiskType::Sas10k => Some(SpindleSpec {
                revolution: Nanos::from_micros(6_000),
                track_bytes: 1_200_000,
                seek_min: Nanos::from_micros(500),
                seek_max: Nanos::from_micros(6_200),
                ..common
            }),
            DiskType::NlSas => Some(SpindleSpec {
                revolution: Nanos(8_333_333),
                track_bytes: 1_500_000,
                seek_min: Nanos::from_micros(800),
                seek_max: Nanos::from_micros(11_900),
                write_settle: Nanos::from_micros(400),
                starvation_limit: Nanos::from_millis(800),
                ..common
            }),
            DiskType::Ssd => None,
        }
    }

    /// Figures of a flash device; `None` for a rotating disk.
    pub fn ssd(self) -> Option<SsdSpec> {
        (self == DiskType::Ssd).then_some(SsdSpec {
            capacity_bytes: self.capacity_bytes(),
            channels: 16,
            page_bytes: 4096,
            read: Nanos::from_micros(90),
            program: Nanos::from_micros(400),
            buffered_write: Nanos::from_micros(60),
            buffer_pages: 64,
            read_iops_max: 90_000,
            write_iops_max: 40_000,
            link_bytes_per_second: 550_000_000,
        })
    }
}

impl fmt::Display for DiskType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = DiskType::ALL.iter().find(|(_, kind)| kind == self).map(|(name, _)| *name);
        f.write_str(name.expect("every type has a name"))
    }
}

impl FromStr for DiskType {
    type Err = String;

    fn from_str(text: &str) -> Result<DiskType, String> {
        let disk_type = DiskType::ALL.iter().find(|(name, _)| *name == text).map(|(_, kind)| *kind);
        disk_type.ok_or_else(|| {
            let names: Vec<_> = DiskType::ALL.iter().map(|(name, _)| *name).collect();
            format!("unknown disk type \"{text}\"; one of {}", names.join(", "))
        })
    }
}
