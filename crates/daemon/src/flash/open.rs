//! Opening the flash log on the data core: what is there, what of it may be taken, and the words when it may not.

use std::path::{Path, PathBuf};

use flash::{FormatOptions, OpenOptions, Ownership, Store, StoreError, StoreIdentity};
use seam::real::{RealDisk, RealSeam};
use seam::{Disk, DiskOpen, Seam};
use tokio::sync::{mpsc, oneshot};

use super::super::data_core::Local;
use super::super::overlap::OwnVolumes;
use super::super::sabotage;
use super::Unused;
use config::FlashConfig;
use state::{Refusal, show_uuid};

/// How long a start waits for a killed predecessor's last I/O, in milliseconds.
const LOCK_WAIT_MS: u64 = 10_000;

/// A generation that is to be noted in the state directory, and where it is told how that went.
pub type NoteThis = (u64, oneshot::Sender<Result<(), String>>);

/// A flash log that was opened.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The store's identity, 32 hexadecimal digits.
    pub store: String,
    /// The generation of its members.
    pub generation: u64,
    /// What each device calls itself, and the path that people know it by.
    pub names: Names,
    /// What earlier versions called devices, and what they call themselves now.
    pub renamed: Vec<(String, String)>,
    /// The devices were empty, and hold a store now.
    pub formatted: bool,
    /// Configured devices that are no part of it, and why.
    pub absent: Vec<String>,
    /// Volumes of which it holds something.
    pub owners: usize,
}

/// What devices call themselves, with their paths.
#[derive(Clone, Debug, Default)]
pub struct Names(Vec<(String, String)>);

impl Names {
    /// Notes a device.
    pub fn add(&mut self, identity: String, path: &Path) {
        self.0.retain(|(known, _)| *known != identity);
        self.0.push((identity, path.display().to_string()));
    }

    /// `text` with paths in place of what only the kernel knows.
    pub fn show(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (identity, path)| text.replace(identity, path))
    }
}

/// A store that was found on the devices and is not opened: nothing of it was written yet.
#[derive(Clone, Debug)]
pub struct FoundStore {
    /// Which it is.
    pub identity: StoreIdentity,
    /// The copy of the records that its devices carry.
    pub manifest: Option<Vec<u8>>,
    /// What each device calls itself, and the path that people know it by.
    names: Names,
    /// What earlier versions called devices, and what they call themselves now.
    renamed: Vec<(String, String)>,
    /// The devices were empty, and hold a store now.
    formatted: bool,
    /// Configured devices that are no part of it, and why.
    absent: Vec<String>,
    device_bytes: u128,
    /// Naming one device of a store of two is how an administrator says that the other one will not come back.
    accept_missing: bool,
}

impl FoundStore {
    /// The owner that each device in service names, by the device's path.
    pub fn owners(&self) -> Vec<(String, Ownership)> {
        let devices = self.identity.devices.iter();
        devices.map(|(device, ownership)| (self.names.show(device), *ownership)).collect()
    }
}

/// What a store that was found may be opened with.
#[derive(Clone, Debug)]
pub struct Grant {
    /// The owner that its superblocks name from then on.
    pub ownership: Ownership,
    /// The generation of its members that was last seen.
    pub generation: u64,
    /// The sequence that its log had reached when it was closed.
    pub sequence_min: u64,
    /// Its map of clean pages is not believed.
    pub map_void: bool,
}

/// Finds out which store lies on `config`'s devices, or makes one where all of them are there and empty. The error says why there is none to
/// be used. The devices stay open for [`open`].
pub async fn find(local: &Local, config: FlashConfig, own: &OwnVolumes) -> Result<FoundStore, Unused> {
    if config.devices.len() < 2 && !config.allow_single_copy {
        return Err("[flash] names one device, and allow_single_copy is not set; name a second one, or set it"
            .to_owned()
            .into());
    }
    let (mut disks, mut names, mut absent, mut device_bytes) = (Vec::new(), Names::default(), Vec::new(), 0u128);
    let mut renamed = Vec::new();
    for path in &config.devices {
        match open_device(local, &config, path.clone(), own).await {
            Ok(disk) => {
                names.add(disk.identity(), path);
                renamed.extend(disk.former_identities().into_iter().map(|former| (former, disk.identity())));
                device_bytes += u128::from(disk.geometry().size_bytes);
                disks.push(disk);
            }
            Err(text) => absent.push(text),
        }
    }
    if disks.is_empty() {
        return Err(absent.join("; ").into());
    }
    let accept_missing = config.devices.len() == 1;
    let (identity, formatted) = identify_store(&local.seam, &mut disks, accept_missing, &names, &mut absent).await?;
    let manifest = flash::read_manifest(&local.seam, &disks, identity.store).await;
    let manifest = manifest.map_err(|error| unused(&error, &names, &absent))?.map(|found| found.payload);
    *local.flash_devices.borrow_mut() = disks;
    Ok(FoundStore { identity, manifest, names, renamed, formatted, absent, device_bytes, accept_missing })
}

/// True when the log of the store that was found holds data, or cannot be read to say so.
pub async fn holds_data(local: &Local) -> bool {
    let disks = local.flash_devices.borrow().clone();
    match flash::inspect(&local.seam, &disks).await.1 {
        Ok(found) => !found.dirty.is_empty() || !found.lost_batches.is_empty(),
        Err(_) => true,
    }
}

/// Opens the store that was found. The error says why it is not in use.
pub async fn open(
    local: &Local,
    config: FlashConfig,
    found: FoundStore,
    grant: Grant,
    noter: mpsc::UnboundedSender<NoteThis>,
) -> Result<Opened, Unused> {
    let disks = std::mem::take(&mut *local.flash_devices.borrow_mut());
    let FoundStore { identity, manifest: _, names, renamed, formatted, absent, device_bytes, accept_missing } = found;
    let options = OpenOptions {
        accept_missing,
        seen: Some((identity.store, grant.generation)),
        ownership: Some(grant.ownership),
        sequence_min: grant.sequence_min,
        sabotage: sabotage::of_flash(),
    };
    let opened = Store::open(&local.seam, &disks, options).await;
    let (store, found) = opened.map_err(|error| unused(&error, &names, &absent))?;
    let (generation, uuid) = (store.generation(), show_uuid(&store.uuid()));
    let opened = Opened { generation, store: uuid, names, renamed, formatted, absent, owners: 0 };
    if grant.map_void {
        store.pages().distrust();
    }
    store.set_scrub(config.scrub);
    store.note_generations(move |generation| {
        let noter = noter.clone();
        Box::pin(async move {
            let (done, is_done) = oneshot::channel();
            let gone = || "the daemon is going down".to_owned();
            noter.send((generation, done)).map_err(|_| gone())?;
            is_done.await.unwrap_or_else(|_| Err(gone()))
        })
    });
    local.engine.open_log(store, found);
    local.engine.limit_promotion((device_bytes * u128::from(config.endurance_milli_dwpd) / 1000) as u64);
    Ok(Opened { owners: local.engine.unclaimed().len(), ..opened })
}

pub async fn open_device(
    local: &Local,
    config: &FlashConfig,
    path: PathBuf,
    own: &OwnVolumes,
) -> Result<RealDisk, String> {
    let shown = path.display().to_string();
    if let Some((what, remedy)) = config.missing(&path) {
        return Err(format!("{what}; {remedy}"));
    }
    let create_bytes = config.create_bytes(&path);
    let existed = std::fs::metadata(&path).is_ok_and(|meta| !meta.is_file() || meta.len() > 0);
    let opened =
        local.seam.open_disk(&DiskOpen { path, create_bytes, read_only: false, lock_wait_ms: LOCK_WAIT_MS }).await;
    let disk = opened.map_err(|error| error.to_string())?;
    own.check(&shown, disk.nbd_under())?;
    // A modelled device is one for show.
    if config.ssd.is_none()
        && let Err(error) = disk.reserve(Path::new(&shown)).await
    {
        if !existed {
            // It was made just now, and holds nothing. One that cannot be removed is refused at the next start as well.
            let _ = std::fs::remove_file(&shown);
        }
        return Err(error.to_string());
    }
    Ok(match config.ssd {
        Some(ssd) => disk.with_time_of(ssd),
        None => disk,
    })
}

/// Which store it is, and whether it was made now. Devices that are no part of it are dropped from `disks` and named in `absent`.
async fn identify_store(
    seam: &RealSeam,
    disks: &mut Vec<RealDisk>,
    accept_missing: bool,
    names: &Names,
    absent: &mut Vec<String>,
) -> Result<(StoreIdentity, bool), Unused> {
    let options = OpenOptions { accept_missing, ..OpenOptions::default() };
    let mut not_empty = None;
    if absent.is_empty() {
        match flash::identify(seam, disks, options).await {
            Ok(identity) => return Ok((identity, false)),
            // Only what is empty from end to end of its metadata is taken.
            Err(StoreError::NoStore { .. }) => match Store::format(seam, disks, FormatOptions::default()).await {
                Ok(()) => {
                    let identity = flash::identify(seam, disks, options).await;
                    return identity.map(|identity| (identity, true)).map_err(|error| unused(&error, names, absent));
                }
                Err(error) => not_empty = Some(error),
            },
            Err(error) => return Err(unused(&error, names, absent)),
        }
    }
    // A device that is no member is as good as missing; whether the others may go on without it, they know themselves.
    loop {
        match flash::identify(seam, disks, options).await {
            Ok(identity) => return Ok((identity, false)),
            Err(StoreError::NoStore { device, why }) if disks.len() > 1 => {
                absent.push(format!("{} is no part of a flash store ({why})", names.show(&device)));
                disks.retain(|disk| disk.identity() != device);
            }
            Err(error @ StoreError::NoStore { .. }) => {
                return Err(unused(not_empty.as_ref().unwrap_or(&error), names, absent));
            }
            Err(error) => return Err(unused(&error, names, absent)),
        }
    }
}

/// Why a store cannot be used, for people and for programs.
fn unused(error: &StoreError, names: &Names, absent: &[String]) -> Unused {
    match error {
        StoreError::Newer { device, newer } => {
            Unused::from(&Refusal::StoreNewer { device: names.show(device), newer: *newer })
        }
        error => say(error, names, absent).into(),
    }
}

fn say(error: &StoreError, names: &Names, absent: &[String]) -> String {
    let absent = if absent.is_empty() { String::new() } else { format!(" ({})", absent.join("; ")) };
    match error {
        StoreError::MemberMissing { member } => format!(
            "device number {member} of the flash store was in service when it was last used and is not there{absent}; bring it back, or, \
             when it is lost for good, name the other one alone in [flash] and set allow_single_copy = true: if the one that is gone \
             was the last in service, what only it held is lost then"
        ),
        StoreError::NotEmpty { device, what } => format!(
            "{} holds {what}; name another device, or make it empty yourself (blkdiscard -z for a device, rm for a file)",
            names.show(device)
        ),
        error => format!("{}{absent}", names.show(&error.to_string())),
    }
}
