//! The pools of a data core. A pool is opened with the first of its volumes and stays open until the daemon ends.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use config::{PoolConfig, TierChoice, name_devices};
use messages::report::{PoolGroupReport, PoolReport, PoolTierReport, PoolVolumeReport};
use pool::{
    GroupReport, MemberState, OpenOptions, Pool, PoolDisk, PoolError, Provisioning, TierNo, VolumeReport, VolumeSpec,
};
use seam::real::{RealDisk, RealSeam};
use seam::{Disk, DiskError, DiskOpen};

use super::data_core::CoreLocal;
use super::open::LOCK_WAIT_MS;
use super::{CORE_TIMEOUT, Cores};

/// A pool of this machine's disks.
type RealPool = Pool<RealSeam, RealDisk>;

/// A volume of a pool, to be opened.
#[derive(Clone, Debug)]
pub struct PoolVolume {
    /// The pool.
    pub pool: PoolConfig,
    /// Name of the volume in the pool.
    pub volume: String,
    /// Placement of the slices of a new volume.
    pub tier_policy: TierChoice,
    /// Allocation of a new volume.
    pub provisioning: Provisioning,
}

/// An open pool.
pub struct OpenPool {
    pool: RealPool,
    /// Paths of its devices, by their identities.
    paths: BTreeMap<String, PathBuf>,
}

/// Opens a volume, and its pool if it is not open. If the pool has no volume of that name and a size is given, the
/// volume is created.
pub async fn open_pool_volume(
    local: &CoreLocal,
    target: &PoolVolume,
    (size_bytes, limit): (Option<u64>, Duration),
) -> Result<PoolDisk<RealSeam, RealDisk>, DiskError> {
    let name = &target.pool.name;
    let known = local.pools.borrow().get(name).map(|open| open.pool.clone());
    let pool = match known {
        Some(pool) => pool,
        None => {
            let open = open_pool(&local.seam, &target.pool, limit).await?;
            let pool = open.pool.clone();
            local.pools.borrow_mut().insert(name.clone(), open);
            pool
        }
    };
    let failed = |error: PoolError| DiskError::Open(format!("pool {name}: {error}"));
    let volume = match (pool.volume_named(&target.volume), size_bytes) {
        (Some(volume), _) => volume,
        (None, Some(size_bytes)) => {
            let tiers = pool.tiers();
            let policy = target.tier_policy.policy(tiers.iter().map(String::as_str));
            let unknown_tier = || DiskError::Open(format!("pool {name} has no tier \"{}\"", target.tier_policy));
            let (policy, provisioning) = (policy.ok_or_else(unknown_tier)?, target.provisioning);
            let spec = VolumeSpec { name: target.volume.clone(), size_bytes, policy, provisioning };
            pool.create_volume(spec).await.map_err(failed)?
        }
        (None, None) => {
            return Err(DiskError::Open(format!("pool {name} has no volume \"{}\"", target.volume)));
        }
    };
    let disk = pool.volume(volume).map_err(failed)?;
    let report = pool.volumes().into_iter().find(|report| report.volume == volume).expect("the volume exists");
    if report.spec.provisioning == Provisioning::Thick {
        // Its creation or its growth may have been interrupted.
        disk.reserve(0, report.spec.size_bytes).await?;
    }
    if size_bytes.is_some_and(|bytes| bytes != report.spec.size_bytes) {
        let (volume, bytes) = (&target.volume, report.spec.size_bytes);
        logging::warn!("pool {name}: volume {volume} has {bytes} bytes; the size in the configuration is ignored");
    }
    Ok(disk)
}

/// Opens a pool on those of its devices that are present.
async fn open_pool(seam: &RealSeam, config: &PoolConfig, limit: Duration) -> Result<OpenPool, DiskError> {
    let (mut disks, mut absent, mut paths) = (Vec::new(), Vec::new(), BTreeMap::new());
    for path in config.devices() {
        let open = DiskOpen { path: path.clone(), create_bytes: None, read_only: false, lock_wait_ms: LOCK_WAIT_MS };
        match RealDisk::open_within(seam, &open, limit).await {
            Ok(disk) => {
                paths.insert(disk.identity(), path.clone());
                disks.push(disk);
            }
            // Another user of a device might write to it.
            Err(error @ (DiskError::Busy(_) | DiskError::Shared { .. })) => return Err(error),
            Err(error) => absent.push(error.to_string()),
        }
    }
    let pool = match Pool::open(seam, &disks, OpenOptions::default()).await {
        Ok(pool) => pool,
        Err(error) => {
            let absent: Vec<_> = absent.into_iter().map(|text| format!("; {text}")).collect();
            let create = match error {
                PoolError::NoPool { .. } => {
                    format!("; a new pool is created with `hotset pool create {}`", config.name)
                }
                _ => String::new(),
            };
            let text = format!("pool {}: {error}{}{create}", config.name, absent.concat());
            return Err(DiskError::Open(name_devices(&text, &paths)));
        }
    };
    for text in absent.into_iter().chain(pool.take_notices()) {
        logging::warn!("pool {}: {}", config.name, name_devices(&text, &paths));
    }
    if !pool.tiers().iter().map(String::as_str).eq(config.tier_names()) {
        let (name, tiers) = (&config.name, pool.tiers().join(", "));
        logging::warn!("pool {name} was created with the tiers {tiers}; the configuration names others");
    }
    Ok(OpenPool { pool, paths })
}

impl OpenPool {
    fn report(&self, name: &str) -> PoolReport {
        let slice_bytes = self.pool.slice_bytes();
        let bytes = |slices: u32| u64::from(slices) * slice_bytes;
        let groups = self.pool.groups();
        let tiers: Vec<_> = (0..).map(TierNo).zip(self.pool.tiers()).collect();
        let group_report = |group: &GroupReport| {
            let state = match group.state {
                _ if !group.is_present => "absent",
                MemberState::InService => "in-service",
                MemberState::Draining => "draining",
                MemberState::Removed => "removed",
            };
            let path = self.paths.get(&group.device).map(|path| path.display().to_string());
            PoolGroupReport {
                number: group.group.0,
                device: path.unwrap_or_else(|| group.device.clone()),
                state: state.to_owned(),
                carries_metadata: group.carries_metadata,
                size_bytes: bytes(group.slots),
                free_bytes: bytes(group.free),
            }
        };
        let lost = self.pool.lost();
        let tier_of = |number| groups.iter().find(|group| group.group == number).map(|group| group.tier);
        let volume_report = |volume: &VolumeReport| PoolVolumeReport {
            name: volume.spec.name.clone(),
            size_bytes: volume.spec.size_bytes,
            tier_bytes: tiers
                .iter()
                .map(|(tier, _)| {
                    let on_tier = volume.slices.iter().filter(|(group, _)| tier_of(*group) == Some(*tier));
                    on_tier.map(|(_, slices)| bytes(*slices)).sum()
                })
                .collect(),
            lost_bytes: lost.iter().filter(|range| range.volume == volume.volume).map(|range| range.len).sum(),
        };
        PoolReport {
            name: name.to_owned(),
            slice_bytes,
            size_bytes: groups.iter().map(|group| bytes(group.slots)).sum(),
            free_bytes: groups.iter().map(|group| bytes(group.free)).sum(),
            tiers: tiers
                .iter()
                .map(|(tier, name)| PoolTierReport {
                    name: name.clone(),
                    groups: groups.iter().filter(|group| group.tier == *tier).map(group_report).collect(),
                })
                .collect(),
            volumes: self.pool.volumes().iter().map(volume_report).collect(),
        }
    }
}

impl Cores {
    /// The open pools of all cores, by name. A core that does not answer is left out.
    pub async fn pools(&self) -> Vec<PoolReport> {
        let mut reports = Vec::new();
        for core in self.iter() {
            let report = async move |local: Rc<CoreLocal>| {
                let pools = local.pools.borrow();
                pools.iter().map(|(name, open)| open.report(name)).collect::<Vec<_>>()
            };
            if let Ok(Ok(of_core)) = tokio::time::timeout(CORE_TIMEOUT, core.call(report)).await {
                reports.extend(of_core);
            }
        }
        reports.sort_by(|left, right| left.name.cmp(&right.name));
        reports
    }
}
