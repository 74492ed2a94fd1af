//! Input of the planner: tiers, groups, slices and settings.

use seam::Nanos;

use super::ClassCost;
use crate::heat::Demand;

/// Millionths of a whole.
pub const PPM: u64 = 1_000_000;

/// A tier: groups of similar devices. Tiers are ordered by speed, the fastest first.
#[derive(Clone, Debug)]
pub struct Tier {
    /// The groups.
    pub groups: Vec<Group>,
    /// Part of the slots that the planner keeps free.
    pub reserve_percent: u32,
}

impl Tier {
    /// Slots that the planner keeps free.
    pub fn reserve(&self) -> u64 {
        assert!(self.reserve_percent <= 100, "a part of a whole: {} %", self.reserve_percent);
        let slots: u64 = self.groups.iter().map(|group| group.slots).sum();
        (u128::from(slots) * u128::from(self.reserve_percent)).div_ceil(100) as u64
    }
}

/// A group of a tier: one device as md, a controller or a SAN presents it.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// Costs of its class.
    pub class: ClassCost,
    /// Slices that it can hold.
    pub slots: u64,
    /// Slots that hold no slice.
    pub free: u64,
    /// Measured utilisation in millionths; it includes load that does not come from the pool.
    pub utilisation_ppm: u64,
}

/// The group that holds a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Index of the tier.
    pub tier: u16,
    /// Index of the group in the tier.
    pub group: u16,
}

/// Tier policy of a slice's volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// By heat. `start-high` is the same after the allocation.
    Auto,
    /// In the fastest tier with room.
    Highest,
    /// In the slowest tier with room.
    Lowest,
    /// In this tier.
    Pinned(u16),
}

/// A slice as the planner sees it.
#[derive(Clone, Copy, Debug)]
pub struct Slice {
    /// Expected demand.
    pub demand: Demand,
    /// Present place.
    pub place: Place,
    /// Policy of its volume.
    pub policy: Policy,
}

/// The slices of a pool. The planner reads all of them once, and candidates again.
pub trait Slices {
    /// Number of slices; their indices are below it.
    fn count(&self) -> u64;

    /// A slice; `None` if it is not allocated or cannot move.
    fn slice(&self, index: u64) -> Option<Slice>;
}

/// Limits of a plan.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Bytes of a slice.
    pub slice_bytes: u64,
    /// Bytes a second that moves may copy.
    pub rate_bytes_per_second: u64,
    /// Time after which the plan is outdated.
    pub valid_for: Nanos,
    /// Time within which a move must save the disk time of its copies.
    pub payback: Nanos,
    /// A promotion that displaces other slices must save this much more than they lose.
    pub margin_percent: u32,
    /// Bytes that moves by heat and balance may copy ([`super::MoveAllowance`]).
    pub allowance_bytes: u64,
    /// The plan before had moves of balance: it goes on to the difference at which it ends.
    pub continues_balance: bool,
}

impl Settings {
    /// Defaults for a slice size and rate: outdated after 15 minutes, pay-back time of one day, margin of 50 %, no
    /// limit by an allowance.
    pub fn new(slice_bytes: u64, rate_bytes_per_second: u64) -> Settings {
        Settings {
            slice_bytes,
            rate_bytes_per_second,
            valid_for: Nanos::from_secs(900),
            payback: Nanos::from_secs(86_400),
            margin_percent: 50,
            allowance_bytes: u64::MAX,
            continues_balance: false,
        }
    }

    /// Moves that the rate finishes before the plan is outdated.
    pub fn moves_max(&self) -> u64 {
        let bytes = u128::from(self.rate_bytes_per_second) * u128::from(self.valid_for.0) / 1_000_000_000;
        u64::try_from(bytes / u128::from(self.slice_bytes)).unwrap_or(u64::MAX)
    }

    /// Moves by heat and balance that the allowance permits.
    pub(super) fn allowed_moves(&self) -> usize {
        usize::try_from(self.allowance_bytes / self.slice_bytes).unwrap_or(usize::MAX)
    }

    pub(super) fn check(&self) {
        assert!(self.slice_bytes > 0, "a slice has bytes");
    }

    /// True if saving `saved_per_hour` earns `cost` within the pay-back time.
    pub(super) fn pays(&self, saved_per_hour: i64, cost: Nanos) -> bool {
        saved_per_hour > 0 && self.payback_time(saved_per_hour, cost) <= self.payback
    }

    /// Time in which saving `saved_per_hour` earns `cost`.
    pub(super) fn payback_time(&self, saved_per_hour: i64, cost: Nanos) -> Nanos {
        match u128::try_from(saved_per_hour) {
            Ok(saved @ 1..) => {
                let time = (u128::from(cost.0) * 3_600_000_000_000).div_ceil(saved);
                Nanos(u64::try_from(time).unwrap_or(u64::MAX))
            }
            _ => Nanos::MAX,
        }
    }
}
