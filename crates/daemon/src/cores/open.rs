//! Opening a configured backing on a data core.

use std::fmt;
use std::path::PathBuf;
use std::slice;
use std::time::Duration;

use engine::Backing;
use nbd_client::{NbdDisk, NbdOptions, NbdTarget};
use pool::{GroupContent, read_group_content};
use rbd::ImageSpec;
use seam::model::{ArraySpec, ModelledDisk, SharedArray};
use seam::real::{KernelNbdDevice, RealDisk, RealSeam};
use seam::{Address, Disk, DiskError, DiskOpen, Geometry};

use super::super::rbd_helper::{HelperPlan, RbdHelper};
use super::data_core::CoreLocal;
use super::hang::unless_hung;
use super::pools::{PoolVolume, open_pool_volume};

/// Time in milliseconds for which a start waits for a lock that a killed predecessor's last I/O still holds.
pub(super) const LOCK_WAIT_MS: u64 = 10_000;

/// Plan for opening a backing.
#[derive(Clone, Debug)]
pub struct OpenPlan {
    /// The storage to open.
    pub backing: BackingTarget,
    /// Size in bytes for creating it if it is missing.
    pub size_bytes: Option<u64>,
    /// Open read-only.
    pub read_only: bool,
    /// Time without an answer after which the storage counts as hung.
    pub limit: Duration,
}

/// The storage to open.
#[derive(Clone, Debug)]
pub enum BackingTarget {
    /// A file or a block device.
    Path(PathBuf),
    /// Another server's export.
    Nbd(NbdTarget),
    /// An image of Ceph's RBD, which a helper process serves.
    Rbd(HelperPlan),
    /// A modelled array for this volume alone, as large as the volume.
    OwnArray {
        /// Its specification.
        array: ArraySpec,
        /// The sparse file that holds the bytes.
        content: PathBuf,
    },
    /// A part of an array that several volumes lie on.
    SharedArray {
        /// Its name.
        name: String,
        /// Its specification.
        array: ArraySpec,
        /// The sparse file that holds the bytes.
        content: PathBuf,
    },
    /// A volume of a pool.
    Pool(PoolVolume),
}

/// Names the storage: plans for storage of the same name are opened one after the other.
impl BackingTarget {
    /// Names the storage: backings with different keys are opened concurrently. Backings with the same key may be the
    /// same storage, which the first one gets.
    pub fn storage_key(&self) -> String {
        match self {
            BackingTarget::Rbd(plan) => format!("rbd:{}", plan.image.place()),
            other => other.to_string(),
        }
    }
}

impl fmt::Display for BackingTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BackingTarget::Path(path) | BackingTarget::OwnArray { content: path, .. } => path.display().fmt(f),
            BackingTarget::Nbd(target) => target.fmt(f),
            BackingTarget::Rbd(plan) => plan.image.fmt(f),
            BackingTarget::SharedArray { name, .. } => write!(f, "array {name}"),
            BackingTarget::Pool(target) => write!(f, "pool {}", target.pool.config.name),
        }
    }
}

/// Facts about an open backing.
#[derive(Clone, Debug)]
pub struct OpenFacts {
    /// Identity of the storage.
    pub identity: String,
    /// Its identities in earlier versions.
    pub former_identities: Vec<String>,
    /// Its geometry.
    pub geometry: Geometry,
    /// The kernel's NBD devices underneath it.
    pub nbd_devices_below: Vec<KernelNbdDevice>,
    /// The name of data of another host that the opening has given up.
    pub given_up: Option<String>,
    /// Another host has destaged all data that this one had in its flash log.
    pub is_destaged: bool,
    /// Number of the ownership of an image that several hosts reach.
    pub ownership: Option<u64>,
    /// Version of its header when its release was found ([`RbdHelper::released_version`]).
    pub released_version: Option<u64>,
    /// The superblocks of a pool on a file or block device.
    pub group_content: GroupContent,
}

/// Opens the storage that `plan` describes on this core.
pub async fn open_backing(local: &CoreLocal, plan: &OpenPlan) -> Result<(Backing<RealSeam>, OpenFacts), DiskError> {
    let (mut nbd_devices_below, mut group_content) = (Vec::new(), GroupContent::NoGroup);
    let (mut given_up, mut ownership, mut released_version, mut is_destaged) = (None, None, None, false);
    let backing = match &plan.backing {
        BackingTarget::Path(path) => {
            let disk = open_path(&local.seam, plan, path.clone()).await?;
            nbd_devices_below = disk.nbd_devices_below().to_vec();
            let read = read_group_content(&local.seam, &disk);
            let read = unless_hung(local, slice::from_ref(&disk), plan.limit, read).await;
            group_content = read.map_err(|_| DiskError::Hung(format!("{} does not answer", path.display())))?;
            Backing::plain(disk)
        }
        BackingTarget::Nbd(target) => {
            let options = NbdOptions { read_only: plan.read_only, ..NbdOptions::default() };
            Backing::nbd(NbdDisk::open(&local.seam, target.clone(), options).await?)
        }
        BackingTarget::Rbd(helper_plan) => {
            let helper = RbdHelper::start(helper_plan, plan.limit).await?;
            (given_up, ownership, is_destaged) = (helper.given_up(), helper.epoch(), helper.is_destaged());
            released_version = helper.released_version();
            let options = NbdOptions { read_only: plan.read_only, ..image_options() };
            Backing::nbd(connect_image(&local.seam, &helper_plan.image, helper, options).await?)
        }
        BackingTarget::OwnArray { array, content } => {
            let content = open_path(&local.seam, plan, content.clone()).await?;
            let array = array.fitted(content.geometry().size_bytes);
            let array =
                SharedArray::new(local.seam.clone(), array).map_err(|error| DiskError::Open(error.to_string()))?;
            backing_on_array(&array, content)?
        }
        BackingTarget::SharedArray { name, array, content } => {
            let content = open_path(&local.seam, plan, content.clone()).await?;
            let known = local.arrays.borrow().get(name).cloned();
            let array = match known {
                Some(known) => known,
                None => {
                    let created = SharedArray::new(local.seam.clone(), *array);
                    let created = created.map_err(|error| DiskError::Open(error.to_string()))?;
                    local.arrays.borrow_mut().insert(name.clone(), created.clone());
                    created
                }
            };
            backing_on_array(&array, content)?
        }
        BackingTarget::Pool(target) => {
            Backing::pool(open_pool_volume(local, target, (plan.size_bytes, plan.limit)).await?)
        }
    };
    let former_identities = backing.disk.former_identities();
    let facts = OpenFacts {
        identity: backing.disk.identity(),
        former_identities,
        geometry: backing.disk.geometry(),
        nbd_devices_below,
        given_up,
        is_destaged,
        ownership,
        released_version,
        group_content,
    };
    Ok((backing, facts))
}

/// Options of the connection to a helper process. A silent one hangs, as a disk does: the connection to it cannot be
/// lost while it lives.
pub fn image_options() -> NbdOptions {
    NbdOptions { refuses_own_exports: false, silence_max: None, ..NbdOptions::default() }
}

/// Connects to the helper process of an image.
pub async fn connect_image(
    seam: &RealSeam,
    image: &ImageSpec,
    helper: RbdHelper,
    options: NbdOptions,
) -> Result<NbdDisk<RealSeam>, DiskError> {
    let target = NbdTarget { address: Address::Unix(helper.socket().to_owned()), export: image.to_string() };
    NbdDisk::open_dedicated(seam, target, options, Box::new(helper)).await
}

async fn open_path(seam: &RealSeam, plan: &OpenPlan, path: PathBuf) -> Result<RealDisk, DiskError> {
    let (create_bytes, read_only) = (plan.size_bytes, plan.read_only);
    RealDisk::open_within(seam, &DiskOpen { path, create_bytes, read_only, lock_wait_ms: LOCK_WAIT_MS }, plan.limit)
        .await
}

/// A backing whose bytes are in the file `content` and whose latency is the modelled array's.
fn backing_on_array(array: &SharedArray<RealSeam>, content: RealDisk) -> Result<Backing<RealSeam>, DiskError> {
    let disk = ModelledDisk::new(array, content).map_err(|error| DiskError::Open(error.to_string()))?;
    Ok(Backing::modelled(disk))
}
