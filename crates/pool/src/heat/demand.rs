//! Demand of a slice, independent of the class of the device that serves it.

use std::ops::{Add, AddAssign};

/// Thousandths of an access: one random access counts as this many.
pub const PER_ACCESS: u64 = 1_000;

/// Load of a slice per hour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Random reads per hour, in thousandths.
    pub reads: u64,
    /// Random writes per hour, in thousandths, without the write penalty of a RAID group.
    pub writes: u64,
    /// Bytes read and written per hour, by random and sequential requests.
    pub bytes: u64,
}

impl Demand {
    /// True if the slice has no load.
    pub fn is_idle(self) -> bool {
        self == Demand::default()
    }

    /// `recent_percent` of `recent` and the rest of `daily`.
    pub fn blend(recent: Demand, daily: Demand, recent_percent: u32) -> Demand {
        assert!(recent_percent <= 100, "a part of a whole: {recent_percent} %");
        let mix = |recent: u64, daily: u64| {
            let sum =
                u128::from(recent) * u128::from(recent_percent) + u128::from(daily) * u128::from(100 - recent_percent);
            (sum / 100) as u64
        };
        Demand {
            reads: mix(recent.reads, daily.reads),
            writes: mix(recent.writes, daily.writes),
            bytes: mix(recent.bytes, daily.bytes),
        }
    }
}

impl Add for Demand {
    type Output = Demand;
    fn add(self, other: Demand) -> Demand {
        Demand {
            reads: self.reads.saturating_add(other.reads),
            writes: self.writes.saturating_add(other.writes),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }
}

impl AddAssign for Demand {
    fn add_assign(&mut self, other: Demand) {
        *self = *self + other;
    }
}

impl From<RequestDemand> for Demand {
    /// The demand of a single request, as if it were all of an hour's.
    fn from(request: RequestDemand) -> Demand {
        match request.is_write {
            true => Demand { reads: 0, writes: request.accesses, bytes: request.bytes },
            false => Demand { reads: request.accesses, writes: 0, bytes: request.bytes },
        }
    }
}

/// Demand of one request on one slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestDemand {
    /// True for a write.
    pub is_write: bool,
    /// Random accesses in thousandths, without the write penalty; 0 for the continuation of a stream.
    pub accesses: u64,
    /// Bytes in this slice.
    pub bytes: u64,
}

impl RequestDemand {
    /// A request that continues a stream: the device transfers without positioning.
    pub fn sequential(is_write: bool, bytes: u64) -> RequestDemand {
        RequestDemand { is_write, accesses: 0, bytes }
    }

    /// A request at a new place, of one access.
    pub fn random(is_write: bool, bytes: u64) -> RequestDemand {
        RequestDemand { is_write, accesses: PER_ACCESS, bytes }
    }

    /// A request at a new place for which the group performs `disk_accesses` accesses (`Disk::accesses`). A small
    /// write costs the group `accesses_per_write`, so the quotient is the number of small writes that cost the same.
    pub fn random_with_accesses(
        is_write: bool,
        bytes: u64,
        disk_accesses: u64,
        accesses_per_write: u64,
    ) -> RequestDemand {
        let penalty = if is_write { accesses_per_write.max(1) } else { 1 };
        RequestDemand { is_write, accesses: disk_accesses.max(1).saturating_mul(PER_ACCESS) / penalty, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_write_counts_once_on_every_raid_level() {
        for penalty in [1, 2, 4, 6] {
            let request = RequestDemand::random_with_accesses(true, 8192, penalty, penalty);
            assert_eq!(request, RequestDemand::random(true, 8192));
        }
    }

    #[test]
    fn full_stripe_write_counts_its_accesses_by_the_penalty() {
        let request = RequestDemand::random_with_accesses(true, 256 << 10, 5, 4);
        assert_eq!(request.accesses, 1_250);
        assert_eq!(RequestDemand::random_with_accesses(false, 256 << 10, 5, 4).accesses, 5_000);
    }

    #[test]
    fn blend_keeps_the_shares_of_both_parts() {
        let recent = Demand { reads: 1_000, writes: 0, bytes: u64::MAX };
        let daily = Demand { reads: 0, writes: 1_000, bytes: u64::MAX };
        let blend = Demand::blend(recent, daily, 75);
        assert_eq!(blend, Demand { reads: 750, writes: 250, bytes: u64::MAX });
    }
}
