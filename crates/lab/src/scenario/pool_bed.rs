//! A test bed whose volume lies in a pool of modelled groups.

use engine::{AnyDisk, PoolMember};
use pool::planner::ClassCost;
use pool::{
    CreateOptions, GroupNo, MoveRate, OpenOptions, Pool, PoolDisk, RelocationSettings, TierNo, TierPolicy, TierSpec,
    VolumeId, VolumeSpec,
};
use seam::model::{ArraySpec, ModelledDisk, SharedArray, SsdSpec};
use seam::sim::{SimDiskSpec, SimSeam, Timing, WriteCache};

use super::test_bed::{Plan, TestBed};
use crate::fixture::Fixture;

/// A pool of modelled groups.
pub type ModelledPool = Pool<SimSeam, PoolMember<SimSeam>>;

/// Name of the pool's only volume.
const VOLUME: &str = "file";

/// A group of a pool.
#[derive(Clone, Copy, Debug)]
pub enum GroupPlan {
    /// A RAID group of which a window of the given bytes belongs to the pool.
    Raid(ArraySpec, u64),
    /// One flash device.
    Ssd(SsdSpec),
    /// A disk without latency, for tests that price the requests themselves.
    Instant(u64),
}

/// A tier of a pool.
#[derive(Clone, Debug)]
pub struct TierPlan {
    /// Its name.
    pub name: &'static str,
    /// Its groups.
    pub groups: Vec<GroupPlan>,
    /// Costs of each group.
    pub class: ClassCost,
}

/// A pool with one volume.
#[derive(Clone, Debug)]
pub struct PoolPlan {
    /// Bytes of a slice.
    pub slice_bytes: u64,
    /// The tiers, the fastest first.
    pub tiers: Vec<TierPlan>,
    /// Bytes of the volume.
    pub volume_bytes: u64,
    /// Placement of the volume's slices.
    pub policy: TierPolicy,
}

/// A pool in a simulated world, before an engine uses its volume.
pub struct PoolWorld {
    /// The world, and the engine without volumes.
    pub fixture: Fixture,
    /// The open pool.
    pub pool: ModelledPool,
    /// The volume.
    pub volume: VolumeId,
    arrays: Vec<SharedArray<SimSeam>>,
    classes: Vec<ClassCost>,
    /// Number of groups so far.
    groups: usize,
}

impl PoolWorld {
    /// Creates and opens the pool, with an empty volume.
    pub fn new(plan: &Plan, pool: &PoolPlan) -> PoolWorld {
        let fixture = plan.fixture();
        let (mut arrays, mut groups) = (Vec::new(), 0);
        let mut specs = Vec::new();
        for tier in &pool.tiers {
            let mut disks = Vec::new();
            for group in &tier.groups {
                disks.push(add_disk(&fixture, &mut arrays, group, groups));
                groups += 1;
            }
            specs.push(TierSpec { name: tier.name.to_owned(), disks });
        }
        // A world without content reads anything but zeroes from a new disk.
        let options = CreateOptions { slice_bytes: pool.slice_bytes, force: true, ..CreateOptions::default() };
        let spec = VolumeSpec { policy: pool.policy, ..VolumeSpec::thin(VOLUME, pool.volume_bytes) };
        let (opened, volume) = fixture.world.block_on(async {
            Pool::create(&fixture.seam, &specs, options).await.expect("empty disks make a pool");
            let disks: Vec<_> = specs.iter().flat_map(|spec| spec.disks.iter().cloned()).collect();
            let opened = Pool::open(&fixture.seam, &disks, OpenOptions::default()).await.expect("a new pool opens");
            let volume = opened.create_volume(spec).await;
            (opened, volume.expect("an empty pool has room for a volume"))
        });
        let classes = pool.tiers.iter().map(|tier| tier.class).collect();
        PoolWorld { fixture, pool: opened, volume, arrays, classes, groups }
    }

    /// Allocates a range of the volume, by its policy.
    pub fn allocate(&self, at: u64, len: u64) {
        let reserved = self.fixture.world.block_on(self.disk().reserve(at, len));
        reserved.expect("the pool has room for its volume");
    }

    /// Adds a group to a tier.
    pub fn add_group(&mut self, tier: TierNo, group: &GroupPlan) -> GroupNo {
        let disk = add_disk(&self.fixture, &mut self.arrays, group, self.groups);
        self.groups += 1;
        let added = self.fixture.world.block_on(self.pool.add_group(tier, disk, true));
        added.expect("an empty disk joins the pool")
    }

    /// Puts the engine before the volume.
    pub fn into_bed(self, plan: &Plan) -> PoolBed {
        let disk = AnyDisk::ModelledPool(self.disk());
        let PoolWorld { fixture, pool, volume, arrays, classes, .. } = self;
        let bed = TestBed::on_disks(plan, fixture, arrays, vec![disk]);
        PoolBed { bed, pool, volume, classes }
    }

    fn disk(&self) -> PoolDisk<SimSeam, PoolMember<SimSeam>> {
        self.pool.volume(self.volume).expect("the volume exists")
    }
}

/// A test bed with the pool under its volume.
pub struct PoolBed {
    /// The world, the engine and the clients' storage.
    pub bed: TestBed,
    /// The pool.
    pub pool: ModelledPool,
    /// The volume.
    pub volume: VolumeId,
    classes: Vec<ClassCost>,
}

impl PoolBed {
    /// Settings of relocation at a rate.
    pub fn settings(&self, rate: MoveRate) -> RelocationSettings {
        RelocationSettings::new(self.classes.clone(), rate)
    }

    /// Part of the volume's allocated slices on each group.
    pub fn shares(&self) -> Vec<(GroupNo, f64)> {
        let report = self.pool.volumes().into_iter().find(|report| report.volume == self.volume);
        let report = report.expect("the volume exists");
        let share = |(group, slices): &(GroupNo, u32)| (*group, f64::from(*slices) / f64::from(report.allocated));
        report.slices.iter().map(share).collect()
    }
}

fn add_disk(
    fixture: &Fixture,
    arrays: &mut Vec<SharedArray<SimSeam>>,
    group: &GroupPlan,
    number: usize,
) -> PoolMember<SimSeam> {
    let name = format!("group{number}");
    match group {
        GroupPlan::Raid(spec, bytes) => {
            let array = SharedArray::new(fixture.seam.clone(), *spec).expect("a scenario's array can be built");
            fixture.add_disk(&name, SimDiskSpec { timing: Timing::INSTANT, ..SimDiskSpec::new(*bytes) });
            let disk = ModelledDisk::new(&array, fixture.open(&name)).expect("the array has room for the group");
            arrays.push(array);
            PoolMember::Modelled(disk)
        }
        GroupPlan::Ssd(spec) => {
            let timing = Timing::of_ssd(*spec);
            let disk = SimDiskSpec { timing, cache: WriteCache::Through, ..SimDiskSpec::new(spec.capacity_bytes) };
            fixture.add_disk(&name, disk);
            PoolMember::Plain(fixture.open(&name))
        }
        GroupPlan::Instant(bytes) => {
            let disk = SimDiskSpec { timing: Timing::INSTANT, cache: WriteCache::Through, ..SimDiskSpec::new(*bytes) };
            fixture.add_disk(&name, disk);
            PoolMember::Plain(fixture.open(&name))
        }
    }
}
