//! The proposal for a machine: memory, flash, volumes, and the reasons for skipping other disks.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::machine::{Contents, Device, Machine};
use config::MEMORY_MIN_BYTES;
use terminal::Failure;
use units::show_bytes;

const GIB: u64 = 1 << 30;
/// Smaller disks are usually boot media.
const DISK_BYTES_MIN: u64 = 4 * GIB;
/// Transports of local disks: a local disk that does not rotate is flash. A LUN or a virtual disk that does not rotate
/// may be anything.
const LOCAL_TRANSPORTS: [&str; 5] = ["nvme", "sata", "ata", "sas", "spi"];
/// Prefixes of virtual block devices of other storage systems, mostly for virtual machines: `zd16`, `rbd0`, `drbd1`.
const VIRTUAL_DISK_PREFIXES: [&str; 3] = ["zd", "rbd", "drbd"];

/// First word of the reason for skipping a disk with data.
const CARRIES: &str = "carries";

/// Devices named by the user.
#[derive(Default)]
pub struct UserChoices {
    /// Disks to serve, whatever they carry.
    pub volumes: Vec<PathBuf>,
    /// Devices for the cache, whatever they carry.
    pub flash: Vec<PathBuf>,
    /// Devices for a pool, whatever they carry.
    pub pool: Vec<PathBuf>,
    /// The disks to examine were named, so small disks and loop devices are admitted.
    pub examined_by_name: bool,
}

/// A proposal.
#[derive(Debug, Serialize)]
pub struct Plan {
    /// Values for `[memory]`.
    pub memory: Memory,
    /// Devices for `[flash]`.
    pub flash: Vec<ProposedDevice>,
    /// A single free flash device, which cannot form a mirror; it is shown as a comment.
    pub single_flash: Option<ProposedDevice>,
    /// The volumes, each a `[[volume]]`.
    pub volumes: Vec<Volume>,
    /// Tiers of the pool, the fastest first; empty without a pool.
    pub tiers: Vec<Tier>,
    /// Skipped disks.
    #[serde(rename = "left")]
    pub skipped: Vec<SkippedDevice>,
    /// Sign of virtual machines on this machine, if any.
    pub hypervisor: Option<&'static str>,
}

/// The proposed memory and its reason.
#[derive(Debug, Serialize)]
pub struct Memory {
    /// Proposed size.
    pub size_bytes: u64,
    /// Total memory.
    pub total_bytes: u64,
    /// Available memory.
    pub available_bytes: u64,
    /// The reason, in a sentence.
    #[serde(rename = "why")]
    pub reason: String,
}

/// A device in the proposal.
#[derive(Clone, Debug, Serialize)]
pub struct ProposedDevice {
    /// The name for the configuration.
    pub device: PathBuf,
    /// Its node.
    pub node: PathBuf,
    /// Size.
    pub size_bytes: u64,
    /// Description for the user.
    #[serde(rename = "what")]
    pub description: String,
    /// Its content; absent if it is blank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub carries: Option<String>,
}

/// A proposed volume.
#[derive(Debug, Serialize)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// Its backing.
    #[serde(flatten)]
    pub backing: ProposedDevice,
}

/// A tier of the proposed pool.
#[derive(Debug, Serialize)]
pub struct Tier {
    /// Its name.
    pub name: &'static str,
    /// Its devices.
    pub devices: Vec<ProposedDevice>,
}

/// A skipped device.
#[derive(Debug, Serialize)]
pub struct SkippedDevice {
    /// Its node.
    pub device: PathBuf,
    /// Size.
    pub size_bytes: u64,
    /// Description for the user.
    #[serde(rename = "what")]
    pub description: String,
    /// The reason.
    #[serde(rename = "why")]
    pub reason: String,
    /// How to use it nevertheless; absent if that is impossible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

enum Classification {
    Flash,
    Volume,
    /// Skipped, with the reason and a remedy.
    Skipped(String, Option<String>),
}

/// Makes the proposal. Fails if a named device cannot be used.
pub fn plan(machine: &Machine, choices: &UserChoices) -> Result<Plan, Failure> {
    let named_volumes = named(machine, "--volume", &choices.volumes)?;
    let named_flash = named(machine, "--flash", &choices.flash)?;
    let named_pool = named(machine, "--pool", &choices.pool)?;
    let mut all_named = BTreeSet::new();
    for device in named_volumes.iter().chain(&named_flash).chain(&named_pool) {
        if !all_named.insert(&device.path) {
            let path = device.path.display();
            return Err(Failure::usage(format!(
                "{path} is named more than once; name it with one of --volume, --flash and --pool"
            )));
        }
    }
    let is_named = |device: &Device| {
        let mut named = named_volumes.iter().chain(&named_flash).chain(&named_pool);
        named.any(|named| device.with_descendants().iter().any(|child| child.path == named.path))
    };
    let (mut free_flash, mut free_disks, mut skipped) = (Vec::new(), Vec::new(), Vec::new());
    for device in candidates(machine).into_iter().filter(|device| !is_named(device)) {
        match classify(device, choices.examined_by_name) {
            Classification::Flash => free_flash.push(device),
            Classification::Volume => free_disks.push(device),
            Classification::Skipped(reason, remedy) => skipped.push(skip(device, reason, remedy)),
        }
    }
    free_flash.sort_by_key(|device| (device.transport != "nvme", std::cmp::Reverse(device.bytes), device.path.clone()));
    let (flash, single_flash) = choose_flash(&named_flash, &free_flash, &mut skipped);
    let volumes = volumes(&named_volumes, &free_disks);
    let sum = |devices: &mut dyn Iterator<Item = u64>| devices.fold(0, u64::saturating_add);
    let tiers = tiers(&named_pool);
    let volume_sizes = volumes.iter().map(|volume| volume.backing.size_bytes);
    let pool_sizes = named_pool.iter().map(|device| device.bytes);
    let cached_bytes = sum(&mut volume_sizes.chain(pool_sizes));
    let flash_bytes = sum(&mut flash.iter().map(|device| device.size_bytes));
    let memory = memory(machine, cached_bytes, flash_bytes);
    Ok(Plan { memory, flash, single_flash, volumes, tiers, skipped, hypervisor: machine.hypervisor_sign })
}

/// The devices of these names. Fails if one does not exist or is in use.
fn named<'a>(machine: &'a Machine, option: &str, paths: &[PathBuf]) -> Result<Vec<&'a Device>, Failure> {
    let mut devices: Vec<&Device> = Vec::new();
    for path in paths {
        let device_name = path.display();
        let device = machine.find(path).ok_or_else(|| {
            Failure::usage(format!(
                "{option} {device_name}: it is not among the examined block devices; `lsblk --paths` lists all"
            ))
        })?;
        if devices.iter().any(|other| other.path == device.path) {
            return Err(Failure::usage(format!("{option} {device_name}: it is specified twice")));
        }
        if let Some(user) = device.used_by() {
            return Err(Failure::failed(format!("{option} {device_name}: {user}; end this use first")));
        }
        if let Contents::Unreadable(reason) = &device.contents {
            return Err(Failure::failed(format!(
                "{option} {device_name}: it cannot be read ({reason}); run this as root"
            )));
        }
        if device.read_only && option != "--volume" {
            return Err(Failure::failed(format!("{option} {device_name}: it is read-only")));
        }
        devices.push(device);
    }
    Ok(devices)
}

/// Disks, and RAID and multipath devices built on them; each once.
fn candidates(machine: &Machine) -> Vec<&Device> {
    let is_built = |device: &Device| device.kind.starts_with("raid") || device.kind == "mpath";
    let mut seen = BTreeSet::new();
    let mut candidates = Vec::new();
    for disk in machine.disks.iter().filter(|disk| disk.kind != "rom") {
        let nested = disk.with_descendants().into_iter().skip(1).filter(|device| is_built(device));
        let unseen = std::iter::once(disk).chain(nested).filter(|device| device.bytes > 0 && seen.insert(&device.path));
        candidates.extend(unseen);
    }
    candidates
}

fn classify(device: &Device, by_name: bool) -> Classification {
    let path = device.path.display();
    let skipped = |reason: &str| Classification::Skipped(reason.to_owned(), None);
    let name = device.path.file_name().unwrap_or_default().to_string_lossy();
    if let Some(content) = device.content_description() {
        let remedy = match device.used_by() {
            Some(_) => None,
            None => Some(format!("`hotset init --volume {path}` serves it as it is")),
        };
        return Classification::Skipped(format!("{CARRIES} {content}"), remedy);
    }
    if device.kind == "loop" && !by_name {
        return Classification::Skipped("is a loop device".to_owned(), Some(format!("`hotset init --look-at {path}`")));
    }
    if device.read_only {
        return skipped("is read-only");
    }
    if device.removable {
        return Classification::Skipped("can be pulled out".to_owned(), Some(format!("`hotset init --volume {path}`")));
    }
    if VIRTUAL_DISK_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
        let reason = "is made by ZFS, Ceph or DRBD, perhaps for a virtual machine";
        return Classification::Skipped(reason.to_owned(), Some(format!("`hotset init --volume {path}`")));
    }
    if let Contents::Unreadable(reason) = &device.contents {
        return Classification::Skipped(format!("cannot be read ({reason})"), Some("run this as root".to_owned()));
    }
    if device.bytes < DISK_BYTES_MIN && !by_name {
        return Classification::Skipped("is small".to_owned(), Some(format!("`hotset init --volume {path}`")));
    }
    if !device.is_rotational && LOCAL_TRANSPORTS.contains(&device.transport.as_str()) {
        Classification::Flash
    } else {
        Classification::Volume
    }
}

/// Chooses the two devices of the mirrored log: the named ones, else the two best free ones. A single free device is
/// not used without a request.
fn choose_flash(
    named: &[&Device],
    free: &[&Device],
    skipped: &mut Vec<SkippedDevice>,
) -> (Vec<ProposedDevice>, Option<ProposedDevice>) {
    let (chosen, single, rest) = match (named, free) {
        ([], [first, second, rest @ ..]) => (vec![proposed(first), proposed(second)], None, rest),
        ([], [only]) => (Vec::new(), Some(proposed(only)), &[][..]),
        ([], []) => (Vec::new(), None, &[][..]),
        (named, free) => (named.iter().map(|device| proposed(device)).collect(), None, free),
    };
    skipped.extend(rest.iter().map(|device| {
        let remedy = format!("`hotset flash add {}`, once the daemon runs", device.name().display());
        skip(device, "is free flash beyond the two that carry the log".to_owned(), Some(remedy))
    }));
    (chosen, single)
}

fn volumes(named: &[&Device], free_disks: &[&Device]) -> Vec<Volume> {
    let volume = |(index, device): (usize, &&Device)| {
        let kind = if device.kind == "disk" && device.is_rotational { "hdd" } else { "disk" };
        Volume { name: format!("{kind}{}", index + 1), backing: proposed(device) }
    };
    named.iter().chain(free_disks).enumerate().map(volume).collect()
}

/// Tiers of a pool by the kinds of its devices, the fastest first.
fn tiers(devices: &[&Device]) -> Vec<Tier> {
    let is_local_flash =
        |device: &Device| !device.is_rotational && LOCAL_TRANSPORTS.contains(&device.transport.as_str());
    let name_of = |device: &Device| match is_local_flash(device) {
        true if device.transport == "nvme" => "nvme",
        true => "ssd",
        false if device.is_rotational => "hdd",
        // A LUN or a virtual disk. It is measured when the pool is opened.
        false => "disk",
    };
    let of_name = |name| {
        let devices: Vec<_> =
            devices.iter().filter(|device| name_of(device) == name).map(|device| proposed(device)).collect();
        (!devices.is_empty()).then_some(Tier { name, devices })
    };
    ["nvme", "ssd", "disk", "hdd"].into_iter().filter_map(of_name).collect()
}

fn proposed(device: &Device) -> ProposedDevice {
    let (device_name, node, size_bytes) = (device.name().to_owned(), device.path.clone(), device.bytes);
    ProposedDevice {
        device: device_name,
        node,
        size_bytes,
        description: describe(device),
        carries: device.content_description(),
    }
}

fn skip(device: &Device, reason: String, remedy: Option<String>) -> SkippedDevice {
    SkippedDevice {
        device: device.path.clone(),
        size_bytes: device.bytes,
        description: describe(device),
        reason,
        remedy,
    }
}

fn describe(device: &Device) -> String {
    let kind = match (device.kind.as_str(), device.is_rotational, device.transport.as_str()) {
        ("disk", true, _) => "rotates".to_owned(),
        ("disk", false, transport) if LOCAL_TRANSPORTS.contains(&transport) => format!("{transport} flash"),
        ("disk", false, _) => "does not rotate".to_owned(),
        (kind, ..) => kind.to_owned(),
    };
    let properties = [device.model.clone(), show_bytes(device.bytes), kind];
    properties.into_iter().filter(|property| !property.is_empty()).collect::<Vec<_>>().join(", ")
}

/// Fraction of the cached data for which memory is proposed, as a divisor: the hot set is rarely larger.
const CACHED_DIVISOR: u64 = 4;
/// Fraction of the flash devices' size that their index takes in memory, as a divisor, rounded up.
const FLASH_INDEX_DIVISOR: u64 = 1_024;
/// Minimum of the proposed memory, on a machine that has it.
const PROPOSED_MIN: u64 = 256 << 20;

/// The proposed memory of the cache: in proportion to the `cached_bytes` of the volumes, limited by the other uses of
/// the machine.
fn memory(machine: &Machine, cached_bytes: u64, flash_bytes: u64) -> Memory {
    let (total, available) = (machine.memory_bytes, machine.available_bytes);
    let (proportion, maximum, limit_reason) = match (machine.hypervisor_sign, cached_bytes) {
        (_, 0) => (
            GIB.min(total / 4),
            available / 2,
            "no disk is free, so nothing is cached yet: the default, at most a quarter of the memory. Increase it with \
             the first volumes"
                .to_owned(),
        ),
        (Some(sign), _) => (
            total / 5,
            available / 2,
            format!(
                "{sign}: a fifth of {}, at most half of the {} that are free now, to leave memory for guests",
                show_bytes(total),
                show_bytes(available)
            ),
        ),
        (None, _) => (
            total / 4 * 3,
            available / 5 * 4,
            format!("three quarters of {}: this machine serves disks; the rest is for the system", show_bytes(total)),
        ),
    };
    let useful_bytes = (cached_bytes / CACHED_DIVISOR + flash_bytes / FLASH_INDEX_DIVISOR).max(PROPOSED_MIN);
    let machine_limit = proportion.min(maximum);
    let (bytes, reason) = if cached_bytes > 0 && useful_bytes < machine_limit {
        (
            useful_bytes,
            format!("a quarter of the {} that are cached; more would rarely be used", show_bytes(cached_bytes)),
        )
    } else {
        (machine_limit, limit_reason)
    };
    // Rounded to a convenient number.
    let unit = if bytes >= 4 * GIB { GIB } else { 64 << 20 };
    let size_bytes = (bytes / unit * unit).max(MEMORY_MIN_BYTES);
    Memory { size_bytes, total_bytes: total, available_bytes: available, reason }
}

impl Plan {
    /// The first disk that carries data and could be served as it is.
    pub fn first_servable(&self) -> Option<&SkippedDevice> {
        self.skipped.iter().find(|skipped| skipped.reason.starts_with(CARRIES) && skipped.remedy.is_some())
    }
}

impl SkippedDevice {
    /// Its node.
    pub fn path(&self) -> &Path {
        &self.device
    }
}
