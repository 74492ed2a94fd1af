//! Opening flash devices within time limits.
//!
//! At a start nothing is written before each device has answered the reads of its superblocks, or counts as absent. All
//! devices are read concurrently.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::slice;
use std::time::Duration;

use flash::{DeviceContent, MemberDisk, OpenOptions};
use futures_util::future::join_all;
use nbd_client::{NbdDisk, NbdOptions};
use rbd::{Claim, ImageSpec, TakeOver};
use seam::real::{PATH_TIMEOUT, PathCall, PathHung, RealDisk, RealSeam};
use seam::{DiskError, DiskOpen, Nanos, Seam};

use super::super::cores::{CoreLocal, connect_image, image_options, unless_hung};
use super::super::overlap::OwnVolumes;
use super::super::rbd_helper::{HelperPlan, RbdHelper};
use super::open::Search;
use config::FlashConfig;
use state::DeviceOfStore;

/// Time in milliseconds for which a start waits for a lock that a killed predecessor's last I/O still holds.
const LOCK_WAIT_MS: u64 = 10_000;
/// Time for which a start waits for the lock of an image: a cluster takes 30 s to notice that a client is dead.
const IMAGE_LOCK_WAIT: Nanos = Nanos::from_secs(60);
/// Pause between two attempts.
const IMAGE_LOCK_PAUSE: Nanos = Nanos::from_secs(1);

/// A configured device that is not part of the store.
#[derive(Clone, Debug)]
pub struct AbsentDevice {
    /// Its path.
    pub path: String,
    /// Why it is not part of the store, without a remedy; names the path itself.
    pub fault: String,
    /// The fault, with a remedy if there is one.
    pub reason: String,
    /// It did not answer.
    pub is_hung: bool,
    /// Its file is missing, and a store may have used it.
    pub is_lost_file: bool,
    /// It could not be read, so it may have data of volumes.
    pub is_unread: bool,
    /// It answers, and is not a member of the store that the others show.
    pub lacks_store: bool,
}

impl AbsentDevice {
    /// A device that cannot be opened.
    pub fn new(path: &str, reason: String) -> AbsentDevice {
        AbsentDevice {
            path: path.to_owned(),
            fault: reason.clone(),
            reason,
            is_hung: false,
            is_lost_file: false,
            is_unread: true,
            lacks_store: false,
        }
    }

    /// A device with a fault that has a remedy.
    fn with_remedy(path: &Path, (fault, remedy): (String, String)) -> AbsentDevice {
        let reason = format!("{fault}; {remedy}");
        AbsentDevice { fault, ..AbsentDevice::new(&path.display().to_string(), reason) }
    }

    /// A device that does not answer.
    pub fn hung(path: &str) -> AbsentDevice {
        let reason = PathHung { path: PathBuf::from(path) }.to_string();
        AbsentDevice { is_hung: true, ..AbsentDevice::new(path, reason) }
    }
}

/// Configured devices that stores have, or may have, used.
pub type KnownDevices = BTreeMap<PathBuf, DeviceOfStore>;

/// Result of looking up a configured device.
struct LookUp {
    /// The device, or a file with content, exists.
    exists: bool,
    /// Size of the file to create if it does not exist.
    create_bytes: Option<u64>,
}

/// Opens the devices of a search; a device that exists must answer within its limit. Files are created and allocated
/// only after all devices have answered or count as absent. No file is created while a device does not answer, because
/// that device may be a member of a store. The same applies to the missing files among the known devices, which stores
/// have used. An allocation has no limit, because zeroes may have to be written. Unless `creates`, files that would be
/// created are left out, and none is allocated.
pub async fn open_all(
    local: &CoreLocal,
    search: &Search,
    creates: bool,
) -> (Vec<(PathBuf, MemberDisk<RealSeam>)>, Vec<AbsentDevice>) {
    let Search { config, own_volumes, .. } = search;
    let answers = join_all(config.devices.iter().map(|path| open_existing(local, search, path))).await;
    let hung = answers.iter().find_map(|answer| answer.as_ref().err().filter(|absent| absent.is_hung)).cloned();
    let (mut disks, mut absent) = (Vec::new(), Vec::new());
    for (path, answer) in config.devices.iter().zip(answers) {
        let opened = match (answer, &hung) {
            (Ok(Some(disk)), _) if !creates => Ok(disk),
            (Ok(None), _) if !creates => continue,
            (Ok(Some(MemberDisk::Local(disk))), _) => {
                reserve(local, config, path, disk, true).await.map(MemberDisk::Local)
            }
            (Ok(Some(image)), _) => Ok(image),
            (Ok(None), None) => open_device(local, config, path, own_volumes).await.map(MemberDisk::Local),
            (Ok(None), Some(hung)) => {
                let shown = path.display().to_string();
                let reason = format!("{shown} does not exist, and is not created while {} does not answer", hung.path);
                Err(AbsentDevice::new(&shown, reason))
            }
            (Err(absent), _) => Err(absent),
        };
        match opened {
            Ok(disk) => disks.push((path.clone(), disk)),
            Err(device) => absent.push(device),
        }
    }
    (disks, absent)
}

/// Opens a device and reads its superblocks; `None` if it does not exist and is to be created. Writes nothing.
async fn open_existing(
    local: &CoreLocal,
    search: &Search,
    path: &Path,
) -> Result<Option<MemberDisk<RealSeam>>, AbsentDevice> {
    let Search { config, known, own_volumes, limit, .. } = search;
    let disk = match FlashConfig::image_at(path) {
        Some(image) => MemberDisk::Image(open_log_image(local, image, search).await?),
        None if !look_up(local, config, path, known.get(path), *limit).await?.exists => return Ok(None),
        None => MemberDisk::Local(open(local, config, path, None, own_volumes, *limit).await?),
    };
    let options = OpenOptions { accept_missing: true, ..OpenOptions::default() };
    let devices = slice::from_ref(&disk);
    // The store is identified from all devices together later.
    let read = unless_hung(local, devices, *limit, flash::identify(&local.seam, devices, options)).await;
    match read {
        Ok(_) => Ok(Some(disk)),
        Err(_) => Err(AbsentDevice::hung(&path.display().to_string())),
    }
}

/// Opens an image that carries the log. Until the cluster has noticed that a killed predecessor is dead, its lock is
/// waited for.
async fn open_log_image(
    local: &CoreLocal,
    image: ImageSpec,
    search: &Search,
) -> Result<NbdDisk<RealSeam>, AbsentDevice> {
    // The image of another store is not claimed before its content is known.
    let is_known = search.known.contains_key(Path::new(&image.to_string()));
    let plan = HelperPlan {
        image: image.clone(),
        folder: search.helpers.clone(),
        host: search.host.clone(),
        claim: if is_known { Claim::Log } else { Claim::Record },
        take_over: TakeOver::Command,
        gives_up: None,
        reads_log: false,
        by_watch: false,
        log: None,
        fails_after: None,
    };
    let began = local.seam.now();
    let helper = loop {
        match RbdHelper::start(&plan, search.limit).await {
            Ok(helper) => break Ok(helper),
            Err(error) if is_held_by_dead(&error, is_known) && local.seam.now().since(began) < IMAGE_LOCK_WAIT => {
                local.seam.sleep(IMAGE_LOCK_PAUSE).await;
            }
            Err(error) => break Err(error),
        }
    };
    let options = NbdOptions { reconnect_timeout: Nanos::MAX, ..image_options() };
    let opened = match helper {
        Ok(helper) => connect_image(&local.seam, &image, helper, options).await,
        Err(error) => Err(error),
    };
    opened.map_err(|error| match error {
        DiskError::Hung(_) => AbsentDevice::hung(&image.to_string()),
        error => AbsentDevice::new(&image.to_string(), format!("{image}: {error}")),
    })
}

/// True if the lock of an image may be that of a dead process. That of an image `is_known` may be the predecessor's of
/// a moved state directory.
fn is_held_by_dead(error: &DiskError, is_known: bool) -> bool {
    match error {
        DiskError::Busy(_) => true,
        DiskError::Standby { .. } => is_known,
        _ => false,
    }
}

/// Opens a device, which is created if it does not exist, and allocates a file's blocks.
pub async fn open_device(
    local: &CoreLocal,
    config: &FlashConfig,
    path: &Path,
    own_volumes: &OwnVolumes,
) -> Result<RealDisk, AbsentDevice> {
    let LookUp { exists, create_bytes } = look_up(local, config, path, None, PATH_TIMEOUT).await?;
    let disk = open(local, config, path, create_bytes, own_volumes, PATH_TIMEOUT).await?;
    reserve(local, config, path, disk, exists).await
}

/// Checks whether a device exists, and whether it may be created otherwise. A missing file that is `known` may not.
async fn look_up(
    local: &CoreLocal,
    config: &FlashConfig,
    path: &Path,
    known: Option<&DeviceOfStore>,
    limit: Duration,
) -> Result<LookUp, AbsentDevice> {
    let call = PathCall::start(path, {
        let (config, path, known) = (config.clone(), path.to_owned(), known.cloned());
        move |_| {
            if let Some(fault) = known.and_then(|of_store| FlashConfig::lost_file_fault(&path, &of_store)) {
                return Err(AbsentDevice { is_lost_file: true, ..AbsentDevice::with_remedy(&path, fault) });
            }
            let meta = std::fs::metadata(&path);
            let is_empty_file = meta.as_ref().is_ok_and(|meta| meta.is_file() && meta.len() == 0);
            let exists = meta.is_ok() && !is_empty_file;
            match config.missing_device_fault(&path) {
                Some(fault) => {
                    Err(AbsentDevice { is_unread: !is_empty_file, ..AbsentDevice::with_remedy(&path, fault) })
                }
                None => Ok(LookUp { exists, create_bytes: config.create_bytes(&path) }),
            }
        }
    });
    wait_for_answer(local, path, call, limit).await?
}

/// Opens a device and refuses an export of this daemon.
async fn open(
    local: &CoreLocal,
    config: &FlashConfig,
    path: &Path,
    create_bytes: Option<u64>,
    own_volumes: &OwnVolumes,
    limit: Duration,
) -> Result<RealDisk, AbsentDevice> {
    let shown = path.display().to_string();
    let spec = DiskOpen { path: path.to_owned(), create_bytes, read_only: false, lock_wait_ms: LOCK_WAIT_MS };
    let disk = RealDisk::open_within(&local.seam, &spec, limit).await.map_err(|error| match error {
        DiskError::Hung(_) => AbsentDevice::hung(&shown),
        error => AbsentDevice::new(&shown, error.to_string()),
    })?;
    own_volumes.check(&shown, disk.nbd_devices_below()).map_err(|reason| AbsentDevice::new(&shown, reason))?;
    Ok(match config.ssd {
        Some(ssd) => disk.with_ssd_latency(ssd),
        None => disk,
    })
}

/// Allocates all blocks of a file.
async fn reserve(
    local: &CoreLocal,
    config: &FlashConfig,
    path: &Path,
    disk: RealDisk,
    existed: bool,
) -> Result<RealDisk, AbsentDevice> {
    // A modelled device needs no reservation: it only serves demonstrations.
    if config.ssd.is_some() {
        return Ok(disk);
    }
    let Err(error) = disk.reserve(path).await else { return Ok(disk) };
    if !existed {
        // The file was created just now and is empty. If it cannot be removed, the next start refuses it as well.
        let file = path.to_owned();
        let removal = PathCall::start(path, move |_| std::fs::remove_file(file));
        let _ = wait_for_answer(local, path, removal, PATH_TIMEOUT).await;
    }
    let is_unread = existed && read_content(local, &MemberDisk::Local(disk)).await != DeviceContent::NoStore;
    Err(AbsentDevice { is_unread, ..AbsentDevice::new(&path.display().to_string(), error.to_string()) })
}

/// The superblocks of one device. One that stopped answering does not hide the content of another one.
pub async fn read_content(local: &CoreLocal, disk: &MemberDisk<RealSeam>) -> DeviceContent {
    let read = flash::read_device_content(&local.seam, disk);
    let content = unless_hung(local, slice::from_ref(disk), PATH_TIMEOUT, read).await;
    content.unwrap_or_else(|_| DeviceContent::Unknown("it does not answer".to_owned()))
}

/// Waits for a call on a device's path.
async fn wait_for_answer<T: Send + 'static>(
    local: &CoreLocal,
    path: &Path,
    call: PathCall<T>,
    limit: Duration,
) -> Result<T, AbsentDevice> {
    let sleep = async |time: Duration| local.seam.sleep(Nanos(time.as_nanos() as u64)).await;
    call.answer(limit, sleep).await.map_err(|_| AbsentDevice::hung(&path.display().to_string()))
}
