//! A pool in memory, to which plans are applied.

use seam::Nanos;

use crate::heat::{Demand, PER_ACCESS};
use crate::planner::{ClassCost, Group, Place, Plan, Policy, Settings, Slice, Slices, Tier};

/// Bytes of a slice.
pub const SLICE_BYTES: u64 = 4 << 20;

/// Flash in RAID 1.
pub fn ssd() -> ClassCost {
    ClassCost {
        read_access: Nanos::from_micros(90),
        write_access: Nanos::from_micros(120),
        byte_ps: 1_818,
        parallel: 12,
    }
}

/// RAID 5 of five 10k disks.
pub fn sas_10k() -> ClassCost {
    ClassCost::rotating(Nanos::from_micros(6_650), 4, 184_000_000, 5)
}

/// RAID 6 of eight NL-SAS disks.
pub fn nl_sas() -> ClassCost {
    ClassCost::rotating(Nanos::from_micros(11_100), 6, 164_000_000, 8)
}

/// A demand of random reads of 8 KiB per hour.
pub fn reads(per_hour: u64) -> Demand {
    Demand { reads: per_hour * PER_ACCESS, writes: 0, bytes: per_hour * 8192 }
}

/// Settings without a limit of the rate.
pub fn settings() -> Settings {
    Settings { rate_bytes_per_second: 1 << 30, ..Settings::new(SLICE_BYTES, 1 << 30) }
}

/// Tiers and slices.
#[derive(Clone)]
pub struct TestPool {
    pub tiers: Vec<Tier>,
    pub slices: Vec<Option<Slice>>,
    /// Load from elsewhere in millionths, by tier and group.
    pub other_ppm: Vec<Vec<u64>>,
}

impl Slices for TestPool {
    fn count(&self) -> u64 {
        self.slices.len() as u64
    }

    fn slice(&self, index: u64) -> Option<Slice> {
        self.slices[index as usize]
    }
}

impl TestPool {
    /// Empty groups with their slots, by tier, with a reserve of 10 %.
    pub fn new(tiers: Vec<Vec<(ClassCost, u64)>>) -> TestPool {
        let group = |(class, slots)| Group { class, slots, free: slots, utilisation_ppm: 0 };
        let tier = |groups: Vec<_>| Tier { groups: groups.into_iter().map(group).collect(), reserve_percent: 10 };
        let tiers: Vec<Tier> = tiers.into_iter().map(tier).collect();
        let other_ppm = tiers.iter().map(|tier| vec![0; tier.groups.len()]).collect();
        TestPool { tiers, slices: Vec::new(), other_ppm }
    }

    /// Adds a slice with policy `auto`.
    pub fn add(&mut self, demand: Demand, tier: u16, group: u16) -> u64 {
        self.add_with_policy(demand, tier, group, Policy::Auto)
    }

    /// Adds a slice and returns its index.
    pub fn add_with_policy(&mut self, demand: Demand, tier: u16, group: u16, policy: Policy) -> u64 {
        let free = &mut self.tiers[usize::from(tier)].groups[usize::from(group)].free;
        *free = free.checked_sub(1).expect("a test's group has room");
        self.slices.push(Some(Slice { demand, place: Place { tier, group }, policy }));
        self.slices.len() as u64 - 1
    }

    /// Adds `count` slices with policy `auto`.
    pub fn add_many(&mut self, count: u64, demand: Demand, tier: u16, group: u16) {
        for _ in 0..count {
            self.add(demand, tier, group);
        }
    }

    /// Plans with the utilisation that the demands and the other load cause.
    pub fn plan(&mut self, settings: &Settings) -> Plan {
        let utilisations = self.utilisations_ppm();
        for (tier, groups) in self.tiers.iter_mut().zip(utilisations) {
            tier.groups.iter_mut().zip(groups).for_each(|(group, value)| group.utilisation_ppm = value);
        }
        super::plan(&self.tiers, self, settings)
    }

    /// Applies a plan, and checks capacity after every move and the reserves at the end.
    pub fn apply(&mut self, plan: &Plan) {
        let free = |pool: &TestPool| -> Vec<u64> {
            pool.tiers.iter().map(|tier| tier.groups.iter().map(|group| group.free).sum()).collect()
        };
        let before = free(self);
        for step in &plan.moves {
            let slice = self.slices[step.slice as usize].as_mut().expect("a move of a slice");
            assert_eq!(slice.place, step.from);
            assert_ne!(step.from, step.to);
            slice.place = step.to;
            let target = &mut self.tiers[usize::from(step.to.tier)].groups[usize::from(step.to.group)];
            target.free = target.free.checked_sub(1).expect("a plan never exceeds the capacity");
            self.tiers[usize::from(step.from.tier)].groups[usize::from(step.from.group)].free += 1;
        }
        for (tier, (before, after)) in before.into_iter().zip(free(self)).enumerate() {
            assert!(after >= self.tiers[tier].reserve().min(before), "tier {tier}: {after} slots left");
        }
    }

    /// Disk time per hour of all slices.
    pub fn disk_time(&self) -> u64 {
        let price = |slice: &Slice| self.group(slice.place).class.price(slice.demand).0;
        self.slices.iter().flatten().map(price).sum()
    }

    /// Utilisation of each group in millionths.
    pub fn utilisations_ppm(&self) -> Vec<Vec<u64>> {
        let mut loads: Vec<Vec<Nanos>> = self.tiers.iter().map(|tier| vec![Nanos::ZERO; tier.groups.len()]).collect();
        for slice in self.slices.iter().flatten() {
            loads[usize::from(slice.place.tier)][usize::from(slice.place.group)] +=
                self.group(slice.place).class.price(slice.demand);
        }
        let utilisation = |tier: usize, group: usize| {
            let class = self.tiers[tier].groups[group].class;
            class.utilisation_ppm(loads[tier][group]) + self.other_ppm[tier][group]
        };
        let groups = |tier: usize| (0..self.tiers[tier].groups.len()).map(|group| utilisation(tier, group)).collect();
        (0..self.tiers.len()).map(groups).collect()
    }

    /// Tier of a slice.
    pub fn tier_of(&self, slice: u64) -> u16 {
        self.slices[slice as usize].expect("a slice of the test").place.tier
    }

    fn group(&self, place: Place) -> &Group {
        &self.tiers[usize::from(place.tier)].groups[usize::from(place.group)]
    }
}
