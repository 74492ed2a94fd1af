//! The pass over all slices: load of each group, and a bounded number of candidates for each kind of move.

use std::collections::{BTreeSet, VecDeque};

use seam::Nanos;

use super::top::Top;
use super::{ClassCost, Policy, Settings, Slice, Slices, Tier};

/// Most slices of a group that balancing considers.
const BALANCE_CANDIDATES: usize = 2_048;

/// Candidates by falling suitability, and the slices that the plan already moves.
pub(super) struct Candidates {
    /// Disk time per hour by tier and group.
    pub(super) loads: Vec<Vec<Nanos>>,
    /// By target tier: slices of slower tiers that save most there.
    pub(super) hot: Vec<VecDeque<u64>>,
    /// By tier: slices that lose least in the next slower tier.
    pub(super) cold: Vec<VecDeque<u64>>,
    /// By tier: slices pinned to it that lie elsewhere, hottest first.
    pub(super) away: Vec<Vec<u64>>,
    /// Slices with policy `highest` outside of the fastest tier, hottest first.
    pub(super) too_low: Vec<u64>,
    /// Slices with policy `lowest` outside of the slowest tier, coldest first.
    pub(super) too_high: Vec<u64>,
    /// By tier and group: hottest and coldest slices; empty in a tier of one group.
    pub(super) groups: Vec<Vec<GroupCandidates>>,
    moved: BTreeSet<u64>,
}

/// Candidates for balancing.
#[derive(Default)]
pub(super) struct GroupCandidates {
    /// Hottest first.
    pub(super) hot: VecDeque<u64>,
    /// Coldest first.
    pub(super) cold: VecDeque<u64>,
}

impl Candidates {
    /// Drops candidates that were freed, moved or given another policy since they were offered.
    pub(super) fn retain_present(&mut self, slices: &impl Slices) {
        let is = |index: &u64, condition: &dyn Fn(Policy, usize, usize) -> bool| {
            slices
                .slice(*index)
                .is_some_and(|slice| condition(slice.policy, slice.place.tier.into(), slice.place.group.into()))
        };
        let last = self.loads.len() - 1;
        for target in 0..=last {
            let is_auto = |policy| policy == Policy::Auto;
            let is_pinned = |policy| policy == Policy::Pinned(target as u16);
            self.hot[target].retain(|index| is(index, &|policy, tier, _| is_auto(policy) && tier > target));
            self.cold[target].retain(|index| is(index, &|policy, tier, _| is_auto(policy) && tier == target));
            self.away[target].retain(|index| is(index, &|policy, tier, _| is_pinned(policy) && tier != target));
            for (number, lists) in self.groups[target].iter_mut().enumerate() {
                lists.hot.retain(|index| is(index, &|_, tier, group| (tier, group) == (target, number)));
                lists.cold.retain(|index| is(index, &|_, tier, group| (tier, group) == (target, number)));
            }
        }
        self.too_low.retain(|index| is(index, &|policy, tier, _| policy == Policy::Highest && tier > 0));
        self.too_high.retain(|index| is(index, &|policy, tier, _| policy == Policy::Lowest && tier < last));
    }

    /// True if the plan already moves the slice.
    pub(super) fn is_moved(&self, slice: u64) -> bool {
        self.moved.contains(&slice)
    }

    /// Marks a slice as moved by the plan.
    pub(super) fn mark_moved(&mut self, slice: u64) {
        assert!(self.moved.insert(slice), "slice {slice} moves once in a plan");
        for cold in &mut self.cold {
            while cold.front().is_some_and(|slice| self.moved.contains(slice)) {
                cold.pop_front();
            }
        }
    }

    /// The coldest slice of `tier` that the plan does not move yet, apart from `excluded`.
    pub(super) fn coldest(&self, tier: usize, excluded: u64) -> Option<u64> {
        self.cold[tier].iter().copied().find(|slice| *slice != excluded && !self.moved.contains(slice))
    }
}

/// Mean costs of a tier's groups, for prices in a tier whose group is not chosen yet.
pub(super) fn mean_class(tier: &Tier) -> ClassCost {
    let count = tier.groups.len() as u64;
    assert!(count > 0, "a tier has groups");
    let mean = |cost: fn(&ClassCost) -> u64| tier.groups.iter().map(|group| cost(&group.class)).sum::<u64>() / count;
    ClassCost {
        read_access: Nanos(mean(|class| class.read_access.0)),
        write_access: Nanos(mean(|class| class.write_access.0)),
        byte_ps: mean(|class| class.byte_ps),
        parallel: tier.groups.iter().map(|group| group.class.parallel).sum(),
    }
}

/// `a - b` with a sign, saturating.
pub(super) fn difference(a: Nanos, b: Nanos) -> i64 {
    i64::try_from(i128::from(a.0) - i128::from(b.0)).unwrap_or(i64::MAX)
}

/// Candidates of the slices offered so far.
#[derive(Clone, Debug)]
pub(super) struct Collector {
    tiers: Vec<Tier>,
    settings: Settings,
    classes: Vec<ClassCost>,
    loads: Vec<Vec<Nanos>>,
    hot: Vec<Top>,
    cold: Vec<Top>,
    away: Vec<Top>,
    too_low: Top,
    too_high: Top,
    group_hot: Vec<Vec<Top>>,
    group_cold: Vec<Vec<Top>>,
}

impl Collector {
    /// Keeps at most `budget` candidates of each kind.
    pub(super) fn new(tiers: &[Tier], settings: &Settings, budget: usize) -> Collector {
        let lists = |limit| vec![Top::new(limit); tiers.len()];
        let by_group = |tier: &Tier| {
            let limit = if tier.groups.len() > 1 { budget.min(BALANCE_CANDIDATES) } else { 0 };
            vec![Top::new(limit); tier.groups.len()]
        };
        Collector {
            tiers: tiers.to_vec(),
            settings: *settings,
            classes: tiers.iter().map(mean_class).collect(),
            loads: tiers.iter().map(|tier| vec![Nanos::ZERO; tier.groups.len()]).collect(),
            hot: lists(budget),
            cold: lists(budget),
            away: lists(budget),
            too_low: Top::new(budget),
            too_high: Top::new(budget),
            group_hot: tiers.iter().map(by_group).collect(),
            group_cold: tiers.iter().map(by_group).collect(),
        }
    }

    /// Offers a slice.
    pub(super) fn offer(&mut self, index: u64, slice: &Slice) {
        let (tier, group) = (usize::from(slice.place.tier), usize::from(slice.place.group));
        let last = self.tiers.len() - 1;
        let price = self.tiers[tier].groups[group].class.price(slice.demand);
        self.loads[tier][group] += price;
        let heat = difference(price, Nanos::ZERO);
        self.group_hot[tier][group].push(heat, index);
        self.group_cold[tier][group].push(-heat, index);
        match slice.policy {
            Policy::Auto => self.offer_auto(index, slice, price),
            Policy::Highest if tier > 0 => self.too_low.push(heat, index),
            Policy::Lowest if tier < last => self.too_high.push(-heat, index),
            Policy::Pinned(home) if usize::from(home) != tier => {
                assert!(usize::from(home) <= last, "slice {index} is pinned to tier {home} of {}", last + 1);
                self.away[usize::from(home)].push(heat, index);
            }
            Policy::Highest | Policy::Lowest | Policy::Pinned(_) => {}
        }
    }

    fn offer_auto(&mut self, index: u64, slice: &Slice, price: Nanos) {
        let tier = usize::from(slice.place.tier);
        let bytes = self.settings.slice_bytes;
        let read_time = self.classes[tier].copy_time(bytes);
        for target in 0..tier {
            let gain = difference(price, self.classes[target].price(slice.demand));
            if self.settings.pays(gain, read_time + self.classes[target].copy_time(bytes)) {
                self.hot[target].push(gain, index);
            }
        }
        if let Some(slower) = self.classes.get(tier + 1) {
            self.cold[tier].push(difference(price, slower.price(slice.demand)), index);
        }
    }

    /// The candidates of all slices.
    pub(super) fn finish(self) -> Candidates {
        let queues = |lists: Vec<Top>| lists.into_iter().map(|list| list.into_sorted().into()).collect();
        let pair = |(hot, cold): (Top, Top)| GroupCandidates {
            hot: hot.into_sorted().into(),
            cold: cold.into_sorted().into(),
        };
        let by_tier = self.group_hot.into_iter().zip(self.group_cold);
        Candidates {
            loads: self.loads,
            hot: queues(self.hot),
            cold: queues(self.cold),
            away: self.away.into_iter().map(Top::into_sorted).collect(),
            too_low: self.too_low.into_sorted(),
            too_high: self.too_high.into_sorted(),
            groups: by_tier.map(|(hot, cold)| hot.into_iter().zip(cold).map(pair).collect()).collect(),
            moved: BTreeSet::new(),
        }
    }
}
