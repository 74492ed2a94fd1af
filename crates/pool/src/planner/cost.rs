//! The disk time that a demand costs on a class of devices.

use seam::Nanos;

use crate::heat::{Demand, PER_ACCESS};

/// Measured costs of a group's device class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassCost {
    /// Disk time of one random read: seek and rotation.
    pub read_access: Nanos,
    /// Disk time of one small random write with the write penalty of the group: the sum over all its disks.
    pub write_access: Nanos,
    /// Transfer time of a byte in picoseconds.
    pub byte_ps: u64,
    /// Accesses that the group serves at once: its disks, or the channels of flash.
    pub parallel: u32,
}

/// The classes that have a name, the fastest first: costs of one device, from data sheets. A group of several disks
/// serves more accesses at once, and small writes of a RAID level cost more.
pub const NAMED_CLASSES: [(&str, ClassCost); 5] = [
    ("nvme", ClassCost::of_device(90_000, 30_000, 3_000_000_000, 16)),
    ("ssd", ClassCost::of_device(150_000, 80_000, 500_000_000, 8)),
    ("15k", ClassCost::of_device(5_500_000, 5_500_000, 200_000_000, 1)),
    ("10k", ClassCost::of_device(7_000_000, 7_000_000, 180_000_000, 1)),
    ("nl-sas", ClassCost::of_device(12_500_000, 12_500_000, 180_000_000, 1)),
];

impl ClassCost {
    const fn of_device(read_ns: u64, write_ns: u64, bytes_per_second: u64, parallel: u32) -> ClassCost {
        ClassCost {
            read_access: Nanos(read_ns),
            write_access: Nanos(write_ns),
            byte_ps: 1_000_000_000_000 / bytes_per_second,
            parallel,
        }
    }

    /// Costs of a class by its name.
    pub fn named(name: &str) -> Option<ClassCost> {
        NAMED_CLASSES.iter().find(|(known, _)| *known == name).map(|(_, cost)| *cost)
    }

    /// The name of the class whose random read takes most nearly as long, by ratio.
    pub fn nearest_name(&self) -> &'static str {
        let ratio = |cost: &ClassCost| {
            let (own, other) = (u128::from(self.read_access.0.max(1)), u128::from(cost.read_access.0));
            own.max(other) * 1_000 / own.min(other)
        };
        NAMED_CLASSES.iter().min_by_key(|(_, cost)| ratio(cost)).expect("classes have names").0
    }

    /// A group of `disks` rotating disks with the same positioning time for reads and writes, `write_penalty` accesses
    /// per small write, and a transfer rate of `bytes_per_second` per disk.
    pub fn rotating(positioning: Nanos, write_penalty: u64, bytes_per_second: u64, disks: u32) -> ClassCost {
        ClassCost {
            read_access: positioning,
            write_access: Nanos(positioning.0 * write_penalty),
            byte_ps: 1_000_000_000_000 / bytes_per_second,
            parallel: disks,
        }
    }

    /// Disk time per hour that `demand` costs.
    pub fn price(&self, demand: Demand) -> Nanos {
        let accesses = u128::from(demand.reads) * u128::from(self.read_access.0)
            + u128::from(demand.writes) * u128::from(self.write_access.0);
        to_nanos(accesses / u128::from(PER_ACCESS) + u128::from(demand.bytes) * u128::from(self.byte_ps) / 1_000)
    }

    /// Disk time of one copy of a slice from or to the group: one positioning and the transfer.
    pub fn copy_time(&self, slice_bytes: u64) -> Nanos {
        self.read_access + to_nanos(u128::from(slice_bytes) * u128::from(self.byte_ps) / 1_000)
    }

    /// Utilisation in millionths at `load` of disk time per hour.
    pub fn utilisation_ppm(&self, load: Nanos) -> u64 {
        assert!(self.parallel > 0, "a group serves at least one access at once");
        (u128::from(load.0) / (u128::from(self.parallel) * 3_600_000)) as u64
    }
}

fn to_nanos(value: u128) -> Nanos {
    Nanos(u64::try_from(value).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn price_is_accesses_with_write_penalty_plus_transfer() {
        let class = ClassCost::rotating(Nanos::from_millis(6), 4, 200_000_000, 5);
        let demand = Demand { reads: 10 * PER_ACCESS, writes: 5 * PER_ACCESS, bytes: 2_000_000 };
        assert_eq!(class.price(demand), Nanos::from_millis(60 + 120 + 10));
        assert_eq!(class.copy_time(4_000_000), Nanos::from_millis(26));
    }

    #[test]
    fn measured_costs_are_named_after_the_nearest_class() {
        for (name, cost) in NAMED_CLASSES {
            assert_eq!((ClassCost::named(name), cost.nearest_name()), (Some(cost), name));
            let slower = ClassCost { read_access: Nanos(cost.read_access.0 * 11 / 10), ..cost };
            assert_eq!(slower.nearest_name(), name);
        }
        assert_eq!(ClassCost::named("tape"), None);
        let fastest = ClassCost { read_access: Nanos(1_000), ..NAMED_CLASSES[0].1 };
        assert_eq!(fastest.nearest_name(), "nvme");
    }

    #[test]
    fn hour_of_disk_time_on_each_disk_is_full_utilisation() {
        let class = ClassCost::rotating(Nanos::from_millis(6), 4, 200_000_000, 5);
        assert_eq!(class.utilisation_ppm(Nanos::from_secs(5 * 3600)), 1_000_000);
        assert_eq!(class.utilisation_ppm(Nanos::from_secs(1800)), 100_000);
    }

    #[test]
    fn largest_demand_saturates_without_a_panic() {
        let class = ClassCost::rotating(Nanos::from_millis(12), 6, 1, 1);
        let demand = Demand { reads: u64::MAX, writes: u64::MAX, bytes: u64::MAX };
        assert_eq!(class.price(demand), Nanos::MAX);
    }
}
