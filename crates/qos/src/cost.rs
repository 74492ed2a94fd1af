//! The cost of a request to the disks that serve it.

use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};

/// Bytes whose transfer takes a disk as long as one access (seek and rotation).
const BYTES_OF_AN_ACCESS: u64 = 1 << 20;

/// Work of disks, in thousandths of one small access to one disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost(pub u64);

impl Cost {
    /// One small access.
    pub const ONE: Cost = Cost(1_000);

    /// Cost of a request of `bytes` that makes the disks perform `accesses` accesses.
    pub fn of(accesses: u64, bytes: u64) -> Cost {
        let transfer = bytes.saturating_mul(Cost::ONE.0) / BYTES_OF_AN_ACCESS;
        Cost(accesses.max(1).saturating_mul(Cost::ONE.0).saturating_add(transfer))
    }

    /// The cost as a number of small accesses.
    pub fn as_accesses(self) -> f64 {
        self.0 as f64 / Cost::ONE.0 as f64
    }
}

impl Add for Cost {
    type Output = Cost;
    fn add(self, other: Cost) -> Cost {
        Cost(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        *self = *self + other;
    }
}

impl Sub for Cost {
    type Output = Cost;
    fn sub(self, other: Cost) -> Cost {
        Cost(self.0.saturating_sub(other.0))
    }
}

impl Sum for Cost {
    fn sum<I: Iterator<Item = Cost>>(iter: I) -> Cost {
        iter.fold(Cost::default(), Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_is_accesses_plus_transfer_time() {
        assert_eq!(Cost::of(1, 4096), Cost(1_003));
        assert_eq!(Cost::of(4, 4096), Cost(4_003), "a small write to RAID 5");
        assert_eq!(Cost::of(1, 1 << 20), Cost(2_000));
        assert_eq!(Cost::of(0, 0), Cost::ONE);
        assert_eq!(Cost::of(u64::MAX, u64::MAX), Cost(u64::MAX));
    }
}
