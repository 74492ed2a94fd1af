//! Output of the planner: moves with their reasons, and totals.

use seam::Nanos;

use super::Place;

/// A move of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Index of the slice.
    pub slice: u64,
    /// Present place.
    pub from: Place,
    /// New place.
    pub to: Place,
    /// Disk time saved per hour by this move alone, in nanoseconds; negative if the slice gets slower.
    pub saved_per_hour: i64,
    /// Disk time of reading the slice and writing the copy.
    pub copy_time: Nanos,
    /// Utilisation of the source group before the move, in millionths.
    pub from_utilisation_ppm: u64,
    /// Utilisation of the target group before the move, in millionths.
    pub to_utilisation_ppm: u64,
    /// Reason.
    pub reason: Reason,
}

/// Reason of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The slice saves disk time in the faster tier.
    Promote {
        /// Disk time saved per hour after the losses of the slices that make room, in nanoseconds.
        net_saved_per_hour: i64,
        /// Time in which it earns the copies of this slice and of those.
        payback: Nanos,
    },
    /// The slice is colder than the one that takes its slot.
    MakeRoom {
        /// The slice that moves into the tier.
        for_slice: u64,
        /// True if that one moves by policy.
        by_policy: bool,
    },
    /// The volume's policy names another tier.
    Policy,
    /// The tier has less free space than its reserve.
    Reserve {
        /// Slots missing before the move.
        missing: u64,
    },
    /// The group is busier than another one of its tier.
    Balance {
        /// Disk time per hour that leaves the busier group, in nanoseconds.
        shifted_per_hour: i64,
        /// Time in which the busier group saves the time of the copies.
        payback: Nanos,
    },
}

impl Reason {
    /// True for a move by heat or balance, which the allowance counts; false for one by policy or for a reserve.
    pub fn is_optional(&self) -> bool {
        match self {
            Reason::Promote { .. } | Reason::Balance { .. } => true,
            Reason::MakeRoom { by_policy, .. } => !by_policy,
            Reason::Policy | Reason::Reserve { .. } => false,
        }
    }
}

/// Sums over a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Bytes to copy.
    pub bytes: u64,
    /// Time to copy them at the configured rate.
    pub duration: Nanos,
    /// Disk time saved per hour, in nanoseconds.
    pub saved_per_hour: i64,
    /// Disk time of all copies.
    pub copy_time: Nanos,
}

/// Moves in the order of their execution.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The moves.
    pub moves: Vec<Move>,
    /// Their sums.
    pub totals: Totals,
}
