//! Properties of a volume, and the tiers on which its new slices are placed.

use crate::number::{GroupNo, TierNo};

/// The tiers on which a volume's new slices are placed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TierPolicy {
    /// The tier with the largest part of its slots free; keeps the reserve of each tier.
    #[default]
    Auto,
    /// The fastest tier; later the planner moves the slices as with `Auto`.
    StartHigh,
    /// The fastest tier.
    Highest,
    /// The slowest tier.
    Lowest,
    /// This tier.
    Tier(TierNo),
}

/// Time at which a volume's slices are allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Provisioning {
    /// At the first write.
    #[default]
    Thin,
    /// At the creation; zeroes free nothing.
    Thick,
}

/// Properties of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSpec {
    /// Name, unique in the pool, at most 64 bytes.
    pub name: String,
    /// Size in bytes; a multiple of the pool's logical block.
    pub size_bytes: u64,
    /// Placement of new slices.
    pub policy: TierPolicy,
    /// Time of allocation.
    pub provisioning: Provisioning,
}

impl VolumeSpec {
    /// A thin volume of the policy `auto`.
    pub fn thin(name: &str, size_bytes: u64) -> VolumeSpec {
        let (policy, provisioning) = (TierPolicy::Auto, Provisioning::Thin);
        VolumeSpec { name: name.to_owned(), size_bytes, policy, provisioning }
    }
}

/// Free slots of a group, for placement.
#[derive(Clone, Copy, Debug)]
pub struct GroupRoom {
    /// The group; it takes new slices.
    pub group: GroupNo,
    /// Its tier.
    pub tier: TierNo,
    /// Its slots.
    pub slots: u32,
    /// Its free slots.
    pub free: u32,
}

/// Chooses the group for a new slice; `None` if no slot is free. `reserve_percent` of each tier is kept from `Auto`
/// while another tier has more free.
pub fn place(policy: TierPolicy, tiers: u8, rooms: &[GroupRoom], reserve_percent: u32) -> Option<GroupNo> {
    assert!(tiers > 0, "a pool has a tier");
    let lowest = tiers - 1;
    let order = |preferred: u8| -> Vec<u8> { (preferred..tiers).chain((0..preferred).rev()).collect() };
    let order = match policy {
        TierPolicy::Auto => return place_auto(tiers, rooms, reserve_percent),
        TierPolicy::StartHigh | TierPolicy::Highest => order(0),
        TierPolicy::Lowest => order(lowest),
        TierPolicy::Tier(tier) => order(tier.0.min(lowest)),
    };
    order.into_iter().find_map(|tier| emptiest_group(rooms, tier))
}

fn place_auto(tiers: u8, rooms: &[GroupRoom], reserve_percent: u32) -> Option<GroupNo> {
    // (Free above the reserve, tier): permille of the tier's slots. Below zero only the reserve is left.
    let above_reserve = |tier: u8| {
        let of_tier = || rooms.iter().filter(move |room| room.tier.0 == tier);
        let free: u64 = of_tier().map(|room| u64::from(room.free)).sum();
        let slots: u64 = of_tier().map(|room| u64::from(room.slots)).sum();
        (free > 0).then(|| (free * 1000 / slots) as i64 - i64::from(reserve_percent) * 10)
    };
    let candidates = (0..tiers).filter_map(|tier| Some((above_reserve(tier)?, std::cmp::Reverse(tier))));
    let (_, std::cmp::Reverse(tier)) = candidates.max()?;
    emptiest_group(rooms, tier)
}

/// The group of the tier with the most free slots, if any is free.
fn emptiest_group(rooms: &[GroupRoom], tier: u8) -> Option<GroupNo> {
    let candidates = rooms.iter().filter(|room| room.tier.0 == tier && room.free > 0);
    candidates.max_by_key(|room| (room.free, std::cmp::Reverse(room.group))).map(|room| room.group)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rooms(free: &[(u8, u32)]) -> Vec<GroupRoom> {
        let room = |(group, (tier, free)): (u16, &(u8, u32))| GroupRoom {
            group: GroupNo(group),
            tier: TierNo(*tier),
            slots: 100,
            free: *free,
        };
        (0..).zip(free).map(room).collect()
    }

    fn place_in(policy: TierPolicy, free: &[(u8, u32)]) -> Option<u16> {
        place(policy, 3, &rooms(free), 10).map(|group| group.0)
    }

    #[test]
    fn policy_chooses_its_tier_and_the_emptiest_group_of_it() {
        let free = [(0, 5), (0, 7), (1, 50), (2, 90)];
        assert_eq!(place_in(TierPolicy::Highest, &free), Some(1));
        assert_eq!(place_in(TierPolicy::StartHigh, &free), Some(1));
        assert_eq!(place_in(TierPolicy::Lowest, &free), Some(3));
        assert_eq!(place_in(TierPolicy::Tier(TierNo(1)), &free), Some(2));
        assert_eq!(place_in(TierPolicy::Auto, &free), Some(3));
    }

    #[test]
    fn full_tier_gives_way_to_the_next_lower_then_the_higher_one() {
        assert_eq!(place_in(TierPolicy::Tier(TierNo(1)), &[(0, 5), (1, 0), (2, 5)]), Some(2));
        assert_eq!(place_in(TierPolicy::Tier(TierNo(1)), &[(0, 5), (1, 0), (2, 0)]), Some(0));
        assert_eq!(place_in(TierPolicy::Lowest, &[(0, 5), (1, 4), (2, 0)]), Some(1));
        assert_eq!(place_in(TierPolicy::Lowest, &[(0, 0), (1, 0), (2, 0)]), None);
    }

    #[test]
    fn auto_takes_the_reserve_only_when_nothing_else_is_free() {
        assert_eq!(place_in(TierPolicy::Auto, &[(0, 9), (1, 12), (2, 0)]), Some(1));
        assert_eq!(place_in(TierPolicy::Auto, &[(0, 9), (1, 0), (2, 0)]), Some(0));
        assert_eq!(place_in(TierPolicy::Auto, &[(0, 50), (1, 50), (2, 10)]), Some(0));
        assert_eq!(place_in(TierPolicy::Auto, &[(0, 0), (1, 0), (2, 0)]), None);
    }
}
