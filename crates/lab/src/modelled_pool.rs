//! Pools on modelled hardware: RAID groups and flash devices with their timing, in a simulated world.

use engine::GroupDisk;
use pool::{CreateOptions, OpenOptions, Pool, PoolError, TierSpec};
use seam::model::{ArraySpec, ModelledDisk, SharedArray, SsdSpec};
use seam::sim::{SimDiskSpec, SimSeam, Timing, WriteCache};

use crate::fixture::Fixture;

/// A pool of modelled groups.
pub type ModelledPool = Pool<SimSeam, GroupDisk<SimSeam>>;

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

/// A new pool of modelled groups.
pub struct CreatedPool {
    /// The open pool.
    pub pool: ModelledPool,
    /// The arrays of its RAID groups, in the order of the groups.
    pub arrays: Vec<SharedArray<SimSeam>>,
    /// The disks of its groups.
    pub disks: Vec<GroupDisk<SimSeam>>,
}

/// Creates and opens a pool on modelled groups; each tier is a name and its groups, the fastest tier first.
pub fn create_pool(
    fixture: &Fixture,
    slice_bytes: u64,
    tiers: &[(&str, &[GroupPlan])],
) -> Result<CreatedPool, PoolError> {
    let (mut arrays, mut disks, mut specs) = (Vec::new(), Vec::new(), Vec::new());
    for (name, groups) in tiers {
        let first = disks.len();
        for group in *groups {
            disks.push(add_disk(fixture, &mut arrays, group, disks.len()));
        }
        specs.push(TierSpec { name: (*name).to_owned(), disks: disks[first..].to_vec() });
    }
    // A world without content reads anything but zeroes from a new disk.
    let options = CreateOptions { slice_bytes, force: true, ..CreateOptions::default() };
    let pool = fixture.world.block_on(async {
        Pool::create(&fixture.seam, &specs, options).await?;
        Pool::open(&fixture.seam, &disks, OpenOptions::default()).await
    })?;
    Ok(CreatedPool { pool, arrays, disks })
}

/// Adds the disk of a group to the world. `number` is that of the group; a new array is appended to `arrays`.
pub fn add_disk(
    fixture: &Fixture,
    arrays: &mut Vec<SharedArray<SimSeam>>,
    group: &GroupPlan,
    number: usize,
) -> GroupDisk<SimSeam> {
    let name = format!("group{number}");
    match group {
        GroupPlan::Raid(spec, bytes) => {
            let array = SharedArray::new(fixture.seam.clone(), *spec).expect("a scenario's array can be built");
            fixture.add_disk(&name, SimDiskSpec { timing: Timing::INSTANT, ..SimDiskSpec::new(*bytes) });
            let disk = ModelledDisk::new(&array, fixture.open(&name)).expect("the array has room for the group");
            arrays.push(array);
            GroupDisk::Modelled(disk)
        }
        GroupPlan::Ssd(spec) => {
            let timing = Timing::of_ssd(*spec);
            let disk = SimDiskSpec { timing, cache: WriteCache::Through, ..SimDiskSpec::new(spec.capacity_bytes) };
            fixture.add_disk(&name, disk);
            GroupDisk::Plain(fixture.open(&name))
        }
        GroupPlan::Instant(bytes) => {
            let disk = SimDiskSpec { timing: Timing::INSTANT, cache: WriteCache::Through, ..SimDiskSpec::new(*bytes) };
            fixture.add_disk(&name, disk);
            GroupDisk::Plain(fixture.open(&name))
        }
    }
}
