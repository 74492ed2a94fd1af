//! A test bed whose volume lies in a pool of modelled groups.

use engine::{AnyDisk, GroupDisk};
use pool::planner::ClassCost;
use pool::{GroupNo, MoveRate, PoolDisk, RelocationSettings, TierNo, TierPolicy, VolumeId, VolumeSpec};
use seam::model::SharedArray;
use seam::sim::SimSeam;

use super::test_bed::{Plan, TestBed};
use crate::fixture::Fixture;
use crate::modelled_pool::{CreatedPool, GroupPlan, ModelledPool, add_disk, create_pool};

/// Name of the pool's only volume.
const VOLUME: &str = "file";

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
        let tiers: Vec<_> = pool.tiers.iter().map(|tier| (tier.name, tier.groups.as_slice())).collect();
        let created = create_pool(&fixture, pool.slice_bytes, &tiers).expect("empty disks make a pool");
        let CreatedPool { pool: opened, arrays, disks } = created;
        let spec = VolumeSpec { policy: pool.policy, ..VolumeSpec::thin(VOLUME, pool.volume_bytes) };
        let volume = fixture.world.block_on(opened.create_volume(spec));
        let volume = volume.expect("an empty pool has room for a volume");
        let groups = disks.len();
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

    fn disk(&self) -> PoolDisk<SimSeam, GroupDisk<SimSeam>> {
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
