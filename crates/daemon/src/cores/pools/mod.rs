//! The pools of a data core. A pool is opened at the start, or with the first volume or command that needs it, and
//! stays open until the daemon ends.

mod classes;
mod commands;
mod devices;
mod heat;
mod lost;
mod plan;
mod relocation;
mod replace;
mod report;
mod snapshots;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use config::{PoolConfig, TierChoice, name_devices};
use pool::format::uuid_text;
use pool::{
    GroupNo, GroupReport, OpenOptions, Pool, PoolDisk, PoolError, Provisioning, VolumeSpec, read_pool_identity,
};
use seam::real::{RealDisk, RealSeam};
use seam::{Disk, DiskError, DiskOpen};

use self::classes::tier_classes;
use self::devices::Drain;
pub use self::devices::NewDevice;
pub use self::heat::heat_path;
use self::relocation::Relocation;
use super::data_core::CoreLocal;
use super::open::LOCK_WAIT_MS;

/// A pool of this machine's disks.
type RealPool = Pool<RealSeam, RealDisk>;

/// A pool, to be opened.
#[derive(Clone, Debug)]
pub struct PoolTarget {
    /// Its configuration.
    pub config: PoolConfig,
    /// Moves of its slices are paused by command.
    pub is_paused: bool,
    /// Devices that a command has added.
    pub added_devices: BTreeSet<PathBuf>,
    /// Identity of the pool to which the pause and the devices belong; `None` if it was not noted.
    pub recorded_identity: Option<String>,
    /// File with the heat of its slices.
    pub heat_path: PathBuf,
}

/// A volume of a pool, to be opened.
#[derive(Clone, Debug)]
pub struct PoolVolume {
    /// The pool.
    pub pool: PoolTarget,
    /// Name of the volume in the pool.
    pub volume: String,
    /// Placement of the slices of a new volume.
    pub tier_policy: TierChoice,
    /// Allocation of a new volume.
    pub provisioning: Provisioning,
}

/// An open pool.
pub struct OpenPool {
    name: String,
    seam: RealSeam,
    pool: RealPool,
    /// Paths of its devices, by their identities.
    paths: RefCell<BTreeMap<String, PathBuf>>,
    /// Moves of its slices.
    relocation: Relocation,
    /// Drains of its devices.
    drains: RefCell<BTreeMap<GroupNo, Drain>>,
}

/// Opens a volume, and its pool if it is not open. If the pool has no volume of that name and a size is given, the
/// volume is created.
pub async fn open_pool_volume(
    local: &CoreLocal,
    target: &PoolVolume,
    (size_bytes, limit): (Option<u64>, Duration),
) -> Result<PoolDisk<RealSeam, RealDisk>, DiskError> {
    let name = &target.pool.config.name;
    let pool = pool_of_core(local, &target.pool, limit).await?.pool.clone();
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
        disk.fill_holes().await?;
    }
    if size_bytes.is_some_and(|bytes| bytes != report.spec.size_bytes) {
        let (volume, bytes) = (&target.volume, report.spec.size_bytes);
        logging::warn!("pool {name}: volume {volume} has {bytes} bytes; the size in the configuration is ignored");
    }
    Ok(disk)
}

/// The open pool of a core. Opens it first if it is not open.
pub(super) async fn pool_of_core(
    local: &CoreLocal,
    target: &PoolTarget,
    limit: Duration,
) -> Result<Rc<OpenPool>, DiskError> {
    let opening = Rc::clone(local.pool_openings.borrow_mut().entry(target.config.name.clone()).or_default());
    let _guard = opening.lock().await;
    let known = local.pools.borrow().get(&target.config.name).cloned();
    if let Some(open) = known {
        return Ok(open);
    }
    let open = Rc::new(open_pool(&local.seam, target, limit).await?);
    local.pools.borrow_mut().insert(target.config.name.clone(), Rc::clone(&open));
    open.relocation.start(&open.pool);
    open.continue_drains();
    Ok(open)
}

/// The devices of a pool that its opening has found.
#[derive(Default)]
struct FoundDevices {
    disks: Vec<RealDisk>,
    /// Reasons why others are absent.
    absent: Vec<String>,
    /// Paths by identity.
    paths: BTreeMap<String, PathBuf>,
}

impl FoundDevices {
    /// Opens a device. A failure counts as absence, except for a listed device that another user might write to.
    async fn open(&mut self, seam: &RealSeam, path: &Path, is_listed: bool, limit: Duration) -> Result<(), DiskError> {
        let open = DiskOpen { path: path.into(), create_bytes: None, read_only: false, lock_wait_ms: LOCK_WAIT_MS };
        match RealDisk::open_within(seam, &open, limit).await {
            Ok(disk) => {
                self.paths.insert(disk.identity(), path.into());
                self.disks.push(disk);
            }
            // A device that a command has added is named in the configuration by another path.
            Err(DiskError::Shared { other, .. }) if !is_listed && self.paths.values().any(|own| *own == other) => {}
            // Another user of a device might write to it. A former device of the pool may serve another purpose by now.
            Err(error @ (DiskError::Busy(_) | DiskError::Shared { .. })) if is_listed => return Err(error),
            Err(error) => self.absent.push(error.to_string()),
        }
        Ok(())
    }
}

/// True if the records under the pool's name belong to a pool of which no listed device is a member, while one is a
/// member of another pool.
async fn belongs_to_former_pool(seam: &RealSeam, listed: &[RealDisk], target: &PoolTarget) -> bool {
    let Some(recorded) = &target.recorded_identity else { return false };
    let mut is_other = false;
    for disk in listed {
        match read_pool_identity(seam, disk).await {
            Some(pool) if uuid_text(&pool) == *recorded => return false,
            pool => is_other |= pool.is_some(),
        }
    }
    is_other
}

/// Opens a pool on those of its devices that are present.
async fn open_pool(seam: &RealSeam, target: &PoolTarget, limit: Duration) -> Result<OpenPool, DiskError> {
    let config = &target.config;
    let mut found = FoundDevices::default();
    for path in config.devices() {
        found.open(seam, path, true, limit).await?;
    }
    let has_former_records = belongs_to_former_pool(seam, &found.disks, target).await;
    if has_former_records && (target.is_paused || !target.added_devices.is_empty()) {
        logging::warn!(
            "pool {}: the recorded pause and added devices belong to a former pool of this name and are ignored",
            config.name
        );
    }
    let is_listed = |path: &&PathBuf| config.devices().any(|listed| listed == *path);
    let added = target.added_devices.iter().filter(|_| !has_former_records);
    let unlisted: Vec<_> = added.filter(|path| !is_listed(path)).collect();
    for path in &unlisted {
        found.open(seam, path, false, limit).await?;
    }
    let FoundDevices { mut disks, mut absent, paths } = found;
    let mut opened = Pool::open(seam, &disks, OpenOptions::default()).await;
    if let Err(PoolError::OtherPool { .. }) = opened {
        // An addition that a crash has interrupted leaves a device that still belongs to another pool.
        let is_unlisted = |disk: &RealDisk| paths.get(&disk.identity()).is_some_and(|path| unlisted.contains(&path));
        for left_out in disks.clone().iter().filter(|disk| is_unlisted(disk)) {
            let identity = left_out.identity();
            let others: Vec<_> = disks.iter().filter(|disk| disk.identity() != identity).cloned().collect();
            if let Ok(pool) = Pool::open(seam, &others, OpenOptions::default()).await {
                absent.push(format!("{identity} was to be added by command, and belongs to another pool"));
                (opened, disks) = (Ok(pool), others);
                break;
            }
        }
    }
    let pool = match opened {
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
    log_unlisted(config, &pool, &paths, &unlisted);
    if !pool.tiers().iter().map(String::as_str).eq(config.tier_names()) {
        let (name, tiers) = (&config.name, pool.tiers().join(", "));
        logging::warn!("pool {name} was created with the tiers {tiers}; the configuration names others");
    }
    heat::load(seam, &config.name, &pool, &target.heat_path).await;
    let classes = tier_classes(seam, config, &pool, &disks).await;
    for class in &classes {
        logging::info!("pool {}: {}", config.name, class.describe(|device| name_devices(device, &paths)));
    }
    Ok(OpenPool {
        name: config.name.clone(),
        seam: seam.clone(),
        pool,
        paths: RefCell::new(paths),
        relocation: Relocation::new(classes, config, target.is_paused && !has_former_records),
        drains: RefCell::default(),
    })
}

/// Logs devices of a pool that its configuration does not name, and removed ones that it names.
fn log_unlisted(config: &PoolConfig, pool: &RealPool, paths: &BTreeMap<String, PathBuf>, unlisted: &[&PathBuf]) {
    let (name, tiers) = (&config.name, pool.tiers());
    for group in pool.groups() {
        let (tier, path) = (&tiers[usize::from(group.tier.0)], paths.get(&group.device));
        let is_member = group.state.is_member();
        match path {
            Some(path) if is_member && unlisted.contains(&path) => logging::warn!(
                "pool {name}: {} was added by command; name it in devices of the [[pool.tier]] \"{tier}\"",
                path.display()
            ),
            Some(path) if !is_member => logging::warn!(
                "pool {name}: {} was removed from the pool; take it out of devices of the [[pool.tier]] \"{tier}\"",
                path.display()
            ),
            None if is_member => logging::warn!(
                "pool {name}: no present device of the configuration is group {} of tier {tier} (last known as {}), \
                 and its slices fail; attach the device, or name it in devices of the [[pool.tier]] \"{tier}\"",
                group.group,
                group.device
            ),
            _ => {}
        }
    }
}

impl OpenPool {
    /// True if a volume of this name takes space at its first writes.
    pub fn is_thin(&self, volume: &str) -> bool {
        self.pool.provisioning_of(volume) == Some(Provisioning::Thin)
    }

    /// The path of a group's device, or its last known name.
    fn device(&self, group: &GroupReport) -> String {
        let path = self.paths.borrow().get(&group.device).map(|path| path.display().to_string());
        path.unwrap_or_else(|| group.device.clone())
    }

    /// Logs what has happened to the pool since the last call.
    fn log_notices(&self) {
        for text in self.pool.take_notices() {
            logging::warn!("pool {}: {}", self.name, name_devices(&text, &self.paths.borrow()));
        }
    }
}
