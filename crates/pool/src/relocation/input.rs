//! The planner's view of an open pool. Its slices are the slots of the groups that take part, one after the other: a
//! thin volume of any size adds nothing to the pass.

use std::cell::RefCell;
use std::ops::Add;

use seam::{Disk, Nanos, Seam};

use crate::heat::Demand;
use crate::number::{GroupNo, SliceAddress, SlotAddress, SlotNo, TierNo};
use crate::planner::{ClassCost, Group, Place, Policy, Slice, Slices, Tier};
use crate::policy::TierPolicy;
use crate::state::{Inner, RESERVE_PERCENT, State};

/// A group that takes part in a plan.
struct PlannedGroup {
    group: GroupNo,
    place: Place,
    class: ClassCost,
    /// Index of its first slot in the pass.
    first: u64,
    slots: u32,
    /// Disk time per hour that the slices read so far cost.
    expected: Nanos,
}

/// The slices of an open pool.
pub(super) struct PoolSlices<'a, S: Seam, D: Disk<S>> {
    inner: &'a Inner<S, D>,
    /// The groups in the order of their first slots.
    groups: RefCell<Vec<PlannedGroup>>,
    /// The tiers that have a group in the plan; the planner knows them by their index here.
    tiers: Vec<TierNo>,
    now: Nanos,
}

impl<'a, S: Seam, D: Disk<S>> PoolSlices<'a, S, D> {
    /// The groups that take slices now. `classes` has the costs of each tier of the pool.
    pub fn new(inner: &'a Inner<S, D>, classes: &[ClassCost]) -> Self {
        let mut rooms = inner.state.borrow().rooms();
        rooms.sort_by_key(|room| (room.tier, room.group));
        let (mut tiers, mut groups, mut first) = (Vec::<TierNo>::new(), Vec::<PlannedGroup>::new(), 0);
        for room in rooms {
            let index = if tiers.last() == Some(&room.tier) {
                groups.last().map_or(0, |last| last.place.group + 1)
            } else {
                tiers.push(room.tier);
                0
            };
            groups.push(PlannedGroup {
                group: room.group,
                place: Place { tier: tiers.len() as u16 - 1, group: index },
                class: classes[usize::from(room.tier.0)],
                first,
                slots: room.slots,
                expected: Nanos::ZERO,
            });
            first += u64::from(room.slots);
        }
        PoolSlices { inner, groups: RefCell::new(groups), tiers, now: inner.seam.now() }
    }

    /// The tiers with the present free slots. A group that no longer takes slices has none.
    ///
    /// The pool sees no load but that of its slices, so the planner gets no utilisation beside their expected demand:
    /// measured utilisation above it would count as load from elsewhere, and a load that has just begun is above it for
    /// hours.
    pub fn tiers(&self) -> Vec<Tier> {
        let rooms = self.inner.state.borrow().rooms();
        let mut tiers: Vec<Tier> =
            self.tiers.iter().map(|_| Tier { groups: Vec::new(), reserve_percent: RESERVE_PERCENT }).collect();
        for planned in self.groups.borrow().iter() {
            let free = rooms.iter().find(|room| room.group == planned.group).map_or(0, |room| room.free);
            tiers[usize::from(planned.place.tier)].groups.push(Group {
                class: planned.class,
                slots: planned.slots.into(),
                free: free.into(),
                utilisation_ppm: 0,
            });
        }
        tiers
    }

    /// The group at a place.
    pub fn group_at(&self, place: Place) -> GroupNo {
        let groups = self.groups.borrow();
        groups.iter().find(|planned| planned.place == place).expect("a plan has the groups of its input").group
    }

    /// The tier of a place.
    pub fn tier_at(&self, place: Place) -> TierNo {
        self.tiers[usize::from(place.tier)]
    }

    /// The slice at an index of the pass.
    pub fn address(&self, index: u64) -> Option<SliceAddress> {
        let (number, slot) = self.locate(index)?;
        let group = self.groups.borrow()[number].group;
        slice_in(&self.inner.state.borrow(), group, slot)
    }

    /// Utilisation of each group in millionths: expected by the slices read so far.
    pub fn expected_utilisation(&self) -> Vec<(GroupNo, ClassCost, u64)> {
        let groups = self.groups.borrow();
        let utilisation =
            |planned: &PlannedGroup| (planned.group, planned.class, planned.class.utilisation_ppm(planned.expected));
        groups.iter().map(utilisation).collect()
    }

    fn locate(&self, index: u64) -> Option<(usize, SlotNo)> {
        let groups = self.groups.borrow();
        let number = groups.partition_point(|planned| planned.first <= index).checked_sub(1)?;
        let slot = index - groups[number].first;
        (slot < u64::from(groups[number].slots)).then_some((number, SlotNo(slot as u32)))
    }

    fn policy(&self, policy: TierPolicy, present: u16) -> Policy {
        match policy {
            TierPolicy::Auto | TierPolicy::StartHigh => Policy::Auto,
            TierPolicy::Highest => Policy::Highest,
            TierPolicy::Lowest => Policy::Lowest,
            // A slice whose tier has no group in the plan stays where it is.
            TierPolicy::Tier(tier) => {
                let found = self.tiers.iter().position(|present| *present == tier);
                Policy::Pinned(found.map_or(present, |found| found as u16))
            }
        }
    }
}

/// The slice in a slot, if it can move: its group is in service and present, and no other work on it is in progress.
fn slice_in<S: Seam, D: Disk<S>>(state: &State<S, D>, group: GroupNo, slot: SlotNo) -> Option<SliceAddress> {
    if !state.takes_slices(group) {
        return None;
    }
    let slot = SlotAddress { group, slot };
    // Volumes come before snapshots.
    let slice = *state.references(slot).first()?;
    (!state.moving.contains_key(&slot) && !state.allocating.contains_key(&slice)).then_some(slice)
}

impl<S: Seam, D: Disk<S>> Slices for PoolSlices<'_, S, D> {
    fn count(&self) -> u64 {
        self.groups.borrow().last().map_or(0, |last| last.first + u64::from(last.slots))
    }

    fn slice(&self, index: u64) -> Option<Slice> {
        let (number, slot) = self.locate(index)?;
        let state = self.inner.state.borrow();
        let planned = &mut self.groups.borrow_mut()[number];
        let slice = slice_in(&state, planned.group, slot)?;
        let volume = state.volumes.get(&slice.volume)?;
        // A slot counts once, with the demand of all volumes that share it.
        let place = SlotAddress { group: planned.group, slot };
        let of_volume =
            |slice: SliceAddress| Some(state.volumes.get(&slice.volume)?.heat.expected(slice.slice, self.now));
        let demand = state.references(place).into_iter().filter_map(of_volume).fold(Demand::default(), Add::add);
        planned.expected += planned.class.price(demand);
        Some(Slice { demand, place: planned.place, policy: self.policy(volume.spec.policy, planned.place.tier) })
    }
}
