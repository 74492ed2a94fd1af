//! Opening the flash log on the data core: finding the devices and the store, and the messages if that fails.

use std::path::{Path, PathBuf};
use std::time::Duration;

use flash::{
    DeviceContent, DeviceFindings, FormatOptions, MemberDisk, MemberNo, MemberReport, MemberState,
    MembershipGeneration, OpenOptions, Ownership, Role, Sequence, Store, StoreError, StoreIdentity,
};
use seam::Disk;
use seam::real::{PATH_TIMEOUT, RealSeam};
use tokio::sync::{mpsc, oneshot};

use super::super::cores::{CoreLocal, unless_hung};
use super::super::overlap::OwnVolumes;
use super::devices::{AbsentDevice, KnownDevices, open_all, read_content};
use super::{UnusedFlash, WholeLog};
use config::FlashConfig;
use state::{Refusal, absolute_device, devices_in_copy, show_uuid};

/// A generation that is to be saved in the state directory, and the channel for the result.
pub type GenerationToRecord = (MembershipGeneration, oneshot::Sender<Result<(), String>>);

/// A flash log that was opened.
#[derive(Clone, Debug)]
pub struct OpenedStore {
    /// The store's identity, 32 hexadecimal digits.
    pub store: String,
    /// Its membership generation.
    pub generation: MembershipGeneration,
    /// The devices' identities and paths.
    pub names: DeviceNames,
    /// Device identities of earlier versions, and the present ones.
    pub renamed: Vec<(String, String)>,
    /// The store was created now, on empty devices.
    pub formatted: bool,
    /// Configured devices that are not part of the store, and the reasons.
    pub absent: Vec<AbsentDevice>,
    /// The member without a device, and its path; `None` if the path is not known.
    pub missing_member: Option<(MemberNo, String)>,
    /// Paths of absent devices that the store has used. Superblocks name no paths, so each may be that of any member
    /// without a device.
    pub missing_paths: Vec<String>,
    /// Number of volumes with data in the log.
    pub unclaimed_volumes: usize,
}

impl OpenedStore {
    /// The path of a member, with a device or without; `None` if it is not known.
    pub fn path_of(&self, member: &MemberReport) -> Option<String> {
        let missing = self.missing_member.as_ref().filter(|(number, _)| *number == member.member);
        let device = member.device.as_deref().map(|device| self.names.show(device));
        device.or_else(|| missing.map(|(_, path)| path.clone()))
    }

    /// The reason why a member is not in service, with the paths that it may have if its path is not known.
    pub fn reason_of(&self, member: &MemberReport, reason: &str) -> String {
        match self.path_of(member) {
            None if !self.missing_paths.is_empty() => {
                format!("{reason}; its path may be {}", self.missing_paths.join(" or "))
            }
            _ => reason.to_owned(),
        }
    }

    /// Applies that the device at `path` is in service now.
    pub fn admit(&mut self, identity: String, path: &Path) {
        let shown = path.display().to_string();
        self.names.add(identity, path);
        self.absent.retain(|absent| absent.path != shown);
        self.missing_member.take_if(|(_, path)| *path == shown);
        self.missing_paths.retain(|path| *path != shown);
    }
}

/// Paths of the absent devices that a store has used.
fn paths_of_store(absent: &[AbsentDevice], known: &KnownDevices, store: &str) -> Vec<String> {
    let is_of_store =
        |path: &str| known.get(Path::new(path)).is_some_and(|of_store| of_store.is_recorded && of_store.store == store);
    absent.iter().map(|absent| absent.path.clone()).filter(|path| is_of_store(path)).collect()
}

/// The member without a device and its path, if only one member has none and only one of `paths` is absent: superblocks
/// do not name paths.
fn find_missing_member(members: &[MemberReport], paths: &[String]) -> Option<(MemberNo, String)> {
    let mut missing = members.iter().filter(|member| member.device.is_none());
    match (missing.next(), missing.next(), paths) {
        (Some(member), None, [path]) => Some((member.member, path.clone())),
        _ => None,
    }
}

/// Identities of devices, with their paths.
#[derive(Clone, Debug, Default)]
pub struct DeviceNames(Vec<(String, String)>);

impl DeviceNames {
    /// Adds a device.
    pub fn add(&mut self, identity: String, path: &Path) {
        self.0.retain(|(known, _)| *known != identity);
        self.0.push((identity, path.display().to_string()));
    }

    /// `text` with device identities replaced by paths.
    pub fn show(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (identity, path)| text.replace(identity, path))
    }
}

/// The reason why flash is not used if the configuration names one device.
const ONE_DEVICE: &str = "[flash] names one device, and allow_single_copy is not set; name a second device, or set it";

/// The texts of several devices in one: first the devices that cannot be used, then present ones without a store.
fn join_texts(absent: &[AbsentDevice], text: fn(&AbsentDevice) -> &str) -> String {
    let (without_store, unusable): (Vec<_>, Vec<_>) = absent.iter().partition(|absent| absent.lacks_store);
    unusable.into_iter().chain(without_store).map(text).collect::<Vec<_>>().join("; ")
}

/// The reasons of several devices in one text.
fn reasons(absent: &[AbsentDevice]) -> String {
    join_texts(absent, |absent| &absent.reason)
}

/// The absent devices, without remedies that give one of them up: another one may need its data.
fn faults(absent: &[AbsentDevice]) -> String {
    let faults = join_texts(absent, |absent| &absent.fault);
    format!("{faults}; attach what is absent (in a new installation, `hotset check-config` says how to create it)")
}

/// True if a device cannot be used: others may be members of a store that only this device shows.
fn has_unusable(absent: &[AbsentDevice]) -> bool {
    absent.iter().any(|absent| !absent.lacks_store)
}

/// A store that was found and is not open; nothing was written to it yet.
#[derive(Clone, Debug)]
pub struct FoundStore {
    /// Its identity.
    pub identity: StoreIdentity,
    /// The manifest: the copy of the records on its devices.
    pub manifest: Option<Vec<u8>>,
    /// The devices' identities and paths.
    names: DeviceNames,
    /// Device identities of earlier versions, and the present ones.
    renamed: Vec<(String, String)>,
    /// The store was created now, on empty devices.
    formatted: bool,
    /// Configured devices that are not part of the store, and the reasons.
    absent: Vec<AbsentDevice>,
    /// Devices that stores have used.
    known: KnownDevices,
    device_bytes: u128,
    /// The configuration names one device of a store of two, by which the administrator declares that the other device
    /// will not return.
    accept_missing: bool,
}

impl FoundStore {
    /// The owner that the superblock of each device in service names, by the device's path.
    pub fn owners(&self) -> Vec<(String, Ownership)> {
        let devices = self.identity.devices.iter();
        devices.map(|(device, ownership)| (self.names.show(device), *ownership)).collect()
    }

    /// Names the absent devices before a refusal of the store on the present ones, whose choices may erase devices.
    pub fn name_absent(&self, refused: UnusedFlash) -> UnusedFlash {
        if !has_unusable(&self.absent) {
            return refused;
        }
        let reason = format!(
            "{}, before any device is erased. What the present devices show: {}",
            faults(&self.absent),
            refused.reason
        );
        UnusedFlash { reason, ..refused }
    }
}

/// Parameters for opening a store that was found.
#[derive(Clone, Debug)]
pub struct OpenParameters {
    /// The owner to write into its superblocks.
    pub ownership: Ownership,
    /// The membership generation that was last saved.
    pub generation: MembershipGeneration,
    /// The sequence of its log when it was closed.
    pub sequence_min: Sequence,
    /// Its map of clean pages is unusable.
    pub map_unusable: bool,
}

/// The devices on which a store is searched for.
pub struct Search {
    /// The configuration, with the devices in force.
    pub config: FlashConfig,
    /// The file has no `[flash]`. One device then is the first of two, which caches clean pages: it is no declaration
    /// that a second device is lost.
    pub by_command: bool,
    /// Devices that stores have used.
    pub known: KnownDevices,
    /// The volumes' own backings, which are no flash devices.
    pub own_volumes: OwnVolumes,
    /// A device that does not answer within this time counts as absent.
    pub limit: Duration,
    /// Folder of the helper processes of images.
    pub helpers: PathBuf,
    /// Name of this host among those that reach images.
    pub host: String,
}

/// Identifies the store on the configured devices, or creates one if all devices are present and empty. The error gives
/// the reason why there is no usable store. The devices stay open for [`open`].
pub async fn find(local: &CoreLocal, search: &Search) -> Result<FoundStore, UnusedFlash> {
    let (mut disks, mut names) = (Vec::new(), DeviceNames::default());
    match find_among(local, &mut disks, &mut names, search).await {
        Ok(found_store) => Ok(found_store),
        Err(mut unused) => {
            for disk in &disks {
                match read_content(local, disk).await {
                    DeviceContent::NoStore => {}
                    DeviceContent::Store(store, owner) => unused.owners.push((show_uuid(&store), owner)),
                    DeviceContent::Unknown(reason) => {
                        unused.unread.push(format!("{}: {reason}", names.show(&disk.identity())));
                    }
                }
            }
            Err(unused)
        }
    }
}

/// As [`find`]; on an error `disks` has the devices that answer, and `names` their paths.
async fn find_among(
    local: &CoreLocal,
    disks: &mut Vec<MemberDisk<RealSeam>>,
    names: &mut DeviceNames,
    search: &Search,
) -> Result<FoundStore, UnusedFlash> {
    let Search { config, by_command, known, .. } = search;
    let is_refused = config.devices.len() < 2 && !config.allow_single_copy && !by_command;
    // A device that is not used may still have data of volumes.
    let (opened, mut absent) = open_all(local, search, !is_refused).await;
    let mut renamed = Vec::new();
    for (path, disk) in &opened {
        names.add(disk.identity(), path);
        renamed.extend(disk.former_identities().into_iter().map(|former| (former, disk.identity())));
    }
    let device_bytes = opened.iter().map(|(_, disk)| u128::from(disk.geometry().size_bytes)).sum();
    *disks = opened.into_iter().map(|(_, disk)| disk).collect();
    if is_refused {
        let remedy = |device: &str| {
            format!("{ONE_DEVICE}. {device} has the whole log: set allow_single_copy = true, or name the other device")
        };
        let whole_log = find_whole_log(local, disks, names, remedy).await.map(Box::new);
        return Err(UnusedFlash { whole_log, ..with_absent(&absent, ONE_DEVICE.to_owned().into()) });
    }
    if disks.is_empty() {
        return Err(all_absent(&absent));
    }
    let accept_missing = config.devices.len() == 1 && config.log_image().is_none() && !by_command;
    let mut formatted = false;
    let (identity, manifest) = loop {
        let (identity, is_new) = identify_store(local, disks, config, accept_missing, names, &mut absent).await?;
        formatted |= is_new;
        let read = flash::read_manifest(&local.seam, disks, identity.store);
        match unless_hung(local, disks, PATH_TIMEOUT, read).await {
            Ok(manifest) => break (identity, manifest),
            Err(index) => remove_hung(disks, index, names, &mut absent)?,
        }
    };
    let manifest = manifest.map_err(|error| unused(&error, names, &absent))?.map(|manifest| manifest.payload);
    // The single copy of a log on an image is allowed by the cluster's copies: no other log must run with one.
    if let Some(image) = absent.iter().find(|absent| FlashConfig::image_at(Path::new(&absent.path)).is_some()) {
        let reason = format!(
            "{}. A log on local devices does not move to an image: remove the image from [flash], or start a new store \
             with it (`hotset stop --destage`, then erase the devices)",
            image.fault
        );
        return Err(with_absent(&absent, reason.into()));
    }
    *local.flash_devices.borrow_mut() = std::mem::take(disks);
    let (known, names) = (known.clone(), names.clone());
    Ok(FoundStore { identity, manifest, names, renamed, formatted, absent, known, device_bytes, accept_missing })
}

/// True when the log of the found store holds data, or cannot be read.
pub async fn holds_data(local: &CoreLocal) -> bool {
    let disks = local.flash_devices.borrow().clone();
    match unless_hung(local, &disks, PATH_TIMEOUT, flash::inspect(&local.seam, &disks)).await {
        Ok((_, Ok(found))) => !found.dirty_blocks.is_empty() || !found.lost_batches.is_empty(),
        Ok((_, Err(_))) | Err(_) => true,
    }
}

/// Opens the store that was found. The error gives the reason why it is not in use.
pub async fn open(
    local: &CoreLocal,
    config: FlashConfig,
    found_store: FoundStore,
    parameters: OpenParameters,
    generations: mpsc::UnboundedSender<GenerationToRecord>,
) -> Result<OpenedStore, UnusedFlash> {
    let disks = std::mem::take(&mut *local.flash_devices.borrow_mut());
    let FoundStore { identity, manifest: _, names, renamed, formatted, absent, known, device_bytes, accept_missing } =
        found_store;
    let options = OpenOptions {
        accept_missing,
        known_generation: Some((identity.store, parameters.generation)),
        ownership: Some(parameters.ownership),
        sequence_min: parameters.sequence_min,
        #[cfg(feature = "sabotage")]
        sabotage: super::super::sabotage::flash_fault(),
        #[cfg(not(feature = "sabotage"))]
        sabotage: flash::Sabotage::None,
    };
    let opened = unless_hung(local, &disks, PATH_TIMEOUT, Store::open(&local.seam, &disks, options)).await;
    let opened = opened.map_err(|index| hung(&disks[index], &names))?;
    let (store, recovered) = opened.map_err(|error| unused(&error, &names, &absent))?;
    let (generation, uuid) = (store.generation(), show_uuid(&store.uuid()));
    let missing_paths = paths_of_store(&absent, &known, &uuid);
    let missing_member = find_missing_member(&store.members(), &missing_paths);
    let opened = OpenedStore {
        generation,
        store: uuid,
        names,
        renamed,
        formatted,
        absent,
        missing_member,
        missing_paths,
        unclaimed_volumes: 0,
    };
    if parameters.map_unusable {
        store.pages().ignore_persisted_map();
    }
    store.set_scrub(config.scrub);
    store.set_generation_recorder(move |generation| {
        let generations = generations.clone();
        Box::pin(async move {
            let (sender, receiver) = oneshot::channel();
            let stopping = || "the daemon is stopping".to_owned();
            generations.send((generation, sender)).map_err(|_| stopping())?;
            receiver.await.unwrap_or_else(|_| Err(stopping()))
        })
    });
    local.engine.open_log(store, recovered);
    local.engine.limit_promotion((device_bytes * u128::from(config.endurance_milli_dwpd) / 1000) as u64);
    Ok(OpenedStore { unclaimed_volumes: local.engine.unclaimed().len(), ..opened })
}

/// Identifies the store, or creates it on empty devices; the flag is true if it was created. Devices that are not part
/// of it, or do not answer, are removed from `disks` and named in `absent`.
async fn identify_store(
    local: &CoreLocal,
    disks: &mut Vec<MemberDisk<RealSeam>>,
    config: &FlashConfig,
    accept_missing: bool,
    names: &DeviceNames,
    absent: &mut Vec<AbsentDevice>,
) -> Result<(StoreIdentity, bool), UnusedFlash> {
    let (seam, options) = (&local.seam, OpenOptions { accept_missing, ..OpenOptions::default() });
    let (mut formatted, mut not_empty) = (false, None);
    // A device that is not a member counts as missing. The other devices' superblocks decide whether the store may be
    // opened without it.
    loop {
        let identified = unless_hung(local, disks, PATH_TIMEOUT, flash::identify(seam, disks, options)).await;
        let error = match identified {
            Ok(Ok(identity)) => return Ok((identity, formatted)),
            Ok(Err(error)) => error,
            Err(index) => {
                remove_hung(disks, index, names, absent)?;
                continue;
            }
        };
        match error {
            // `format` accepts only devices whose metadata areas are empty from end to end.
            StoreError::NoStore { .. } if absent.is_empty() && not_empty.is_none() && !formatted => {
                let format = Store::format(seam, disks, FormatOptions::default());
                match unless_hung(local, disks, PATH_TIMEOUT, format).await {
                    Ok(Ok(())) => formatted = true,
                    Ok(Err(error)) => not_empty = Some(error),
                    Err(index) => return Err(hung(&disks[index], names)),
                }
            }
            StoreError::NoStore { device, reason } if disks.len() > 1 && !formatted => {
                let path = names.show(&device);
                let mut is_unread = false;
                for disk in disks.extract_if(.., |disk| disk.identity() == device) {
                    is_unread |= read_content(local, &disk).await != DeviceContent::NoStore;
                }
                let fault = format!("{path} is not a member of a flash store ({reason})");
                absent.push(AbsentDevice { is_unread, lacks_store: true, ..AbsentDevice::new(&path, fault) });
                // Two devices may report one identity.
                if disks.is_empty() {
                    return Err(unused(&StoreError::NoStore { device, reason }, names, absent));
                }
            }
            error @ StoreError::NoStore { .. } => {
                return Err(unused(not_empty.as_ref().unwrap_or(&error), names, absent));
            }
            StoreError::MemberMissing { member } => {
                let missing = missing_member(member, absent, &unlisted_devices(local, disks, config).await);
                let remedy = |device: &str| {
                    format!(
                        "{missing}. If it is lost for good, name only {device}, which has the whole log, in [flash] \
                         and set allow_single_copy = true; `hotset flash add` adds another device then"
                    )
                };
                let whole_log = find_whole_log(local, disks, names, remedy).await.map(Box::new);
                let reason = format!("{missing}. {LOSE_MEMBER}");
                return Err(UnusedFlash { whole_log, ..with_absent(absent, reason.into()) });
            }
            error => return Err(unused(&error, names, absent)),
        }
    }
}

/// Paths of the store's devices that the copy of the records on the present ones names and `config` does not. Writes
/// nothing.
async fn unlisted_devices(local: &CoreLocal, disks: &[MemberDisk<RealSeam>], config: &FlashConfig) -> Vec<PathBuf> {
    let read = async {
        let options = OpenOptions { accept_missing: true, ..OpenOptions::default() };
        let identity = flash::identify(&local.seam, disks, options).await.ok()?;
        let manifest = flash::read_manifest(&local.seam, disks, identity.store).await.ok()??;
        Some(devices_in_copy(&manifest.payload, &show_uuid(&identity.store)))
    };
    let recorded = unless_hung(local, disks, PATH_TIMEOUT, read).await.ok().flatten().unwrap_or_default();
    let listed: Vec<PathBuf> = config.devices.iter().map(|path| absolute_device(path)).collect();
    recorded.into_iter().filter(|path| !listed.contains(path)).collect()
}

/// The whole log on the present devices, if they have one; `describe` gives the reason why it is not in use, with the
/// remedy, for the device that has it. Writes nothing. The records decide whether that log is the newest.
async fn find_whole_log(
    local: &CoreLocal,
    disks: &[MemberDisk<RealSeam>],
    names: &DeviceNames,
    describe: impl Fn(&str) -> String,
) -> Option<WholeLog> {
    let read = async {
        let options = OpenOptions { accept_missing: true, ..OpenOptions::default() };
        let identity = flash::identify(&local.seam, disks, options).await.ok()?;
        let (_, inspection) = flash::inspect(&local.seam, disks).await;
        let inspection = inspection.ok().filter(|inspection| inspection.lost_batches.is_empty())?;
        let carries_log = |found: &&DeviceFindings| {
            // A stale device counts itself as in service, too.
            let serves = identity.devices.iter().any(|(device, _)| *device == found.device);
            let superblock = found.superblock.as_ref();
            serves && superblock.is_ok_and(|own| own.state == MemberState::InService && own.role == Role::Log)
        };
        let device = inspection.devices.iter().find(carries_log).filter(|_| inspection.copies() > 0)?;
        let generation = device.superblock.as_ref().ok()?.generation;
        let holds_data = !inspection.dirty_blocks.is_empty() || generation != identity.generation;
        Some((identity, generation, holds_data, names.show(&device.device)))
    };
    let (identity, generation, holds_data, device) =
        unless_hung(local, disks, PATH_TIMEOUT, read).await.ok().flatten()?;
    let reason = describe(&device);
    let devices = identity.devices.iter().map(|(device, ownership)| (names.show(device), *ownership)).collect();
    Some(WholeLog { identity, generation, holds_data, devices, reason })
}

/// Moves a device that does not answer to the absent devices; an error if no device is left.
fn remove_hung(
    disks: &mut Vec<MemberDisk<RealSeam>>,
    index: usize,
    names: &DeviceNames,
    absent: &mut Vec<AbsentDevice>,
) -> Result<(), UnusedFlash> {
    absent.push(AbsentDevice::hung(&names.show(&disks.remove(index).identity())));
    if disks.is_empty() { Err(all_absent(absent)) } else { Ok(()) }
}

/// The reason why a store is not used if a device stopped answering after the store was written to.
fn hung(disk: &MemberDisk<RealSeam>, names: &DeviceNames) -> UnusedFlash {
    all_absent(&[AbsentDevice::hung(&names.show(&disk.identity()))])
}

/// The reason why flash is not used if no device can be used.
fn all_absent(absent: &[AbsentDevice]) -> UnusedFlash {
    let mut reason = reasons(absent);
    if !absent.is_empty() && absent.iter().all(|absent| absent.is_lost_file) {
        let faults: Vec<&str> = absent.iter().map(|absent| absent.fault.as_str()).collect();
        reason = format!(
            "{}; restore the files, or mount their file system. If all are lost for good, create a new file in place \
             of each (`touch PATH` with [flash] size, `fallocate -l 16G PATH` without): a new store begins, and \
             volumes with dirty data in the lost one stay refused until that is given up",
            faults.join("; ")
        );
    }
    with_absent(absent, reason.into())
}

/// `unused` with the absent devices.
fn with_absent(absent: &[AbsentDevice], unused: UnusedFlash) -> UnusedFlash {
    let unread = absent.iter().filter(|absent| absent.is_unread).map(|absent| absent.fault.clone()).collect();
    UnusedFlash { hung: hung_devices(absent), unread, ..unused }
}

/// Paths of the devices that do not answer.
pub fn hung_devices(absent: &[AbsentDevice]) -> Vec<String> {
    absent.iter().filter(|absent| absent.is_hung).map(|absent| absent.path.clone()).collect()
}

/// The reason why a store cannot be used, with a refusal code if there is one.
fn unused(error: &StoreError, names: &DeviceNames, absent: &[AbsentDevice]) -> UnusedFlash {
    let unused = match error {
        StoreError::Newer { device, newer } => {
            UnusedFlash::from(&Refusal::StoreNewer { device: names.show(device), newer: *newer })
        }
        error => describe(error, names, absent).into(),
    };
    with_absent(absent, unused)
}

/// The remedy if the missing member is lost, and the present devices may lack data.
const LOSE_MEMBER: &str = "If it is lost for good, name only the other device in [flash] and set allow_single_copy = \
                           true: if the missing device was the last one in service, data that only it held is then \
                           lost";

/// The text about a missing member, with the remedy if it is not lost. `unlisted` are devices of the store that only
/// the records on the present devices name: a command has put them in the place of others. The remedies of absent
/// devices are left out: a new file would not be the member.
fn missing_member(member: MemberNo, absent: &[AbsentDevice], unlisted: &[PathBuf]) -> String {
    let faults = join_texts(absent, |absent| &absent.fault);
    let faults = if faults.is_empty() { String::new() } else { format!(" ({faults})") };
    let others = absent.iter().filter(|absent| absent.lacks_store).map(|absent| absent.path.as_str());
    let others = others.collect::<Vec<_>>().join(" and ");
    let unlisted = unlisted.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" and ");
    let remedy = match (unlisted.as_str(), others.as_str()) {
        ("", "") => "reconnect or restore it".to_owned(),
        ("", others) => format!(
            "reconnect or restore it. If `hotset flash replace` has put another device in the place of {others}, name \
             that one in [flash]"
        ),
        (unlisted, others) => {
            let place = if others.is_empty() { String::new() } else { format!(" in place of {others}") };
            format!(
                "by the records on the present devices the store also uses {unlisted}, which [flash] does not name: \
                 name it there{place}, and restart"
            )
        }
    };
    format!(
        "device number {member} of the flash store was in service when the store was last used, and is \
         missing{faults}; {remedy}"
    )
}

/// The text about an error of the store, with the remedy where there is one. While a device cannot be used, it comes
/// first, and no remedy erases or formats another one: its data may be needed beside that of the first.
fn describe(error: &StoreError, names: &DeviceNames, absent: &[AbsentDevice]) -> String {
    let is_incomplete = has_unusable(absent);
    match error {
        StoreError::MemberMissing { member } => format!("{}. {LOSE_MEMBER}", missing_member(*member, absent, &[])),
        StoreError::NoStore { device, reason } if is_incomplete => format!(
            "{}; {} is not a member of a flash store ({reason}) and stays unchanged",
            faults(absent),
            names.show(device)
        ),
        StoreError::NotEmpty { device, content } if is_incomplete => {
            format!("{}; {} holds {content} and stays unchanged", faults(absent), names.show(device))
        }
        StoreError::Diverged if is_incomplete => {
            format!("{}; the other devices have diverged (each was written without the other)", faults(absent))
        }
        StoreError::NotEmpty { device, content } => format!(
            "{} holds {content}; name another device, or erase it (blkdiscard -z for a device, rm and touch for a \
             file)",
            names.show(device)
        ),
        error if is_incomplete => format!("{}; {}", faults(absent), names.show(&error.to_string())),
        error if absent.is_empty() => names.show(&error.to_string()),
        error => format!("{} ({})", names.show(&error.to_string()), reasons(absent)),
    }
}

#[cfg(test)]
mod tests {
    use flash::MemberStatus;
    use state::DeviceOfStore;

    use super::*;

    fn member(number: u32, device: Option<&str>) -> MemberReport {
        MemberReport {
            member: MemberNo(number),
            role: Role::Log,
            device: device.map(str::to_owned),
            size_bytes: device.map(|_| 1 << 30),
            status: MemberStatus::InService,
        }
    }

    #[test]
    fn path_of_the_only_missing_member_is_that_of_the_only_absent_device() {
        let known = |path: &str, store: &str| {
            (PathBuf::from(path), DeviceOfStore { store: store.to_owned(), is_recorded: true })
        };
        let known = KnownDevices::from([known("/f0", "s"), known("/f1", "s"), known("/f2", "s"), known("/g", "other")]);
        let absent = |path: &str| AbsentDevice::new(path, format!("{path} does not exist"));
        let find = |members: &[MemberReport], paths: &[&str]| {
            let absent: Vec<AbsentDevice> = paths.iter().map(|path| absent(path)).collect();
            find_missing_member(members, &paths_of_store(&absent, &known, "s"))
        };
        let one_missing = [member(0, Some("wwn-0")), member(1, None)];
        assert_eq!(find(&one_missing, &["/f1"]), Some((MemberNo(1), "/f1".to_owned())));
        assert_eq!(find(&one_missing, &["/new", "/g", "/f1"]), Some((MemberNo(1), "/f1".to_owned())));
        assert_eq!(find(&one_missing, &["/f1", "/f2"]), None, "either device may be the member");
        assert_eq!(find(&[member(1, None), member(2, None)], &["/f1"]), None, "the device may be either member");
        assert_eq!(find(&one_missing, &["/g"]), None, "another store has used the device");
        assert_eq!(find(&[member(0, Some("wwn-0"))], &["/f1"]), None, "every member has a device");
    }

    #[test]
    fn several_missing_members_show_the_paths_that_they_may_have() {
        let paths = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect();
        let mut opened = OpenedStore {
            store: "s".to_owned(),
            generation: MembershipGeneration(1),
            names: DeviceNames::default(),
            renamed: Vec::new(),
            formatted: false,
            absent: vec![AbsentDevice::new("/f2", "/f2 does not exist".to_owned())],
            missing_member: None,
            missing_paths: paths(&["/f2", "/f3"]),
            unclaimed_volumes: 0,
        };
        let missing = member(2, None);
        assert_eq!(opened.reason_of(&missing, "missing"), "missing; its path may be /f2 or /f3");
        opened.admit("wwn-2".to_owned(), Path::new("/f2"));
        assert!(opened.absent.is_empty());
        assert_eq!(opened.reason_of(&member(3, None), "missing"), "missing; its path may be /f3");
        assert_eq!(opened.reason_of(&member(2, Some("wwn-2")), "failed"), "failed");
        opened.missing_member = Some((MemberNo(3), "/f3".to_owned()));
        assert_eq!(opened.reason_of(&member(3, None), "missing"), "missing");
    }

    #[test]
    fn missing_member_is_the_device_that_only_the_records_name() {
        let stranger = AbsentDevice {
            lacks_store: true,
            ..AbsentDevice::new("/f0", "/f0 is not a member of a flash store (no superblock)".to_owned())
        };
        let (number, unlisted) = (MemberNo(2), [PathBuf::from("/f2")]);
        let text = missing_member(number, std::slice::from_ref(&stranger), &unlisted);
        assert!(text.contains("device number 2 of the flash store"), "{text}");
        assert!(text.contains("also uses /f2, which [flash] does not name: name it there in place of /f0,"), "{text}");
        let text = missing_member(number, &[], &unlisted);
        assert!(text.contains("name it there, and restart") && !text.contains("reconnect"), "{text}");
        let text = missing_member(number, &[stranger], &[]);
        assert!(text.contains("another device in the place of /f0, name that one in [flash]"), "{text}");
        let text = missing_member(number, &[], &[]);
        assert!(text.ends_with("reconnect or restore it"), "{text}");
    }

    #[test]
    fn absent_device_comes_first_and_no_other_is_to_be_formatted() {
        let mut names = DeviceNames::default();
        names.add("wwn-0".to_owned(), Path::new("/f0"));
        let absent_device = AbsentDevice {
            reason: "/f1 does not exist; remove it from [flash]".to_owned(),
            ..AbsentDevice::new("/f1", "/f1 does not exist".to_owned())
        };
        let without_store = AbsentDevice {
            lacks_store: true,
            ..AbsentDevice::new("/f2", "/f2 is not a member of a flash store (it is empty)".to_owned())
        };
        let absent = [without_store.clone(), absent_device];
        let no_store = StoreError::NoStore { device: "wwn-0".to_owned(), reason: "it is empty".to_owned() };
        assert_eq!(
            describe(&no_store, &names, &absent),
            "/f1 does not exist; /f2 is not a member of a flash store (it is empty); attach what is absent (in a new \
             installation, `hotset check-config` says how to create it); /f0 is not a member of a flash store (it is \
             empty) and stays unchanged"
        );
        let not_empty = StoreError::NotEmpty { device: "wwn-0".to_owned(), content: "a file system".to_owned() };
        for error in [&not_empty, &StoreError::Diverged, &StoreError::NoLog] {
            let text = describe(error, &names, &absent);
            assert!(text.starts_with("/f1 does not exist; "), "{text}");
            assert!(!text.contains("erase") && !text.contains("format ") && !text.contains("remove it"), "{text}");
        }
        // With all devices present, the remedy is offered.
        let text = describe(&not_empty, &names, &[without_store]);
        assert!(text.starts_with("/f0 holds a file system; name another device, or erase it"), "{text}");
    }
}
