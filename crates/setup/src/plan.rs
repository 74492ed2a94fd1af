//! The proposal for a machine: memory, flash, volumes, and the reasons for leaving other disks alone.

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
const LOCAL: [&str; 5] = ["nvme", "sata", "ata", "sas", "spi"];
/// Prefixes of virtual block devices of other storage systems, mostly for virtual machines: `zd16`, `rbd0`, `drbd1`.
const MADE_BY_OTHERS: [&str; 3] = ["zd", "rbd", "drbd"];

/// First word of the reason for leaving a disk with data alone.
const CARRIES: &str = "carries";

/// Devices named by the user.
#[derive(Default)]
pub struct Wishes {
    /// Disks to serve, whatever they carry.
    pub volumes: Vec<PathBuf>,
    /// Devices for the cache, whatever they carry.
    pub flash: Vec<PathBuf>,
    /// The disks to examine were named, so small disks and loop devices are admitted.
    pub looked_at_by_name: bool,
}

/// A proposal.
#[derive(Debug, Serialize)]
pub struct Plan {
    /// Values for `[memory]`.
    pub memory: Memory,
    /// Devices for `[flash]`.
    pub flash: Vec<Chosen>,
    /// A single free flash device, which is of no use alone; it is shown as a comment.
    pub single_flash: Option<Chosen>,
    /// The volumes, each a `[[volume]]`.
    pub volumes: Vec<Volume>,
    /// Disks left alone.
    pub left: Vec<Left>,
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
    pub why: String,
}

/// A device in the proposal.
#[derive(Clone, Debug, Serialize)]
pub struct Chosen {
    /// The name for the configuration.
    pub device: PathBuf,
    /// Its node.
    pub node: PathBuf,
    /// Size.
    pub size_bytes: u64,
    /// Description for the user.
    pub what: String,
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
    pub backing: Chosen,
}

/// A device that is left alone.
#[derive(Debug, Serialize)]
pub struct Left {
    /// Its node.
    pub device: PathBuf,
    /// Size.
    pub size_bytes: u64,
    /// Description for the user.
    pub what: String,
    /// The reason.
    pub why: String,
    /// How to use it nevertheless; absent if that is impossible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

enum Verdict {
    Flash,
    Volume,
    Left(String, Option<String>),
}

/// Makes the proposal. Fails if a named device cannot be used.
pub fn plan(machine: &Machine, wishes: &Wishes) -> Result<Plan, Failure> {
    let named_volumes = named(machine, "--volume", &wishes.volumes)?;
    let named_flash = named(machine, "--flash", &wishes.flash)?;
    if let Some(twice) = named_volumes.iter().find(|volume| named_flash.iter().any(|flash| flash.path == volume.path)) {
        let path = twice.path.display();
        return Err(Failure::usage(format!("{path} cannot be a volume and flash; name it for one of them")));
    }
    let is_named = |device: &Device| {
        let mut named = named_volumes.iter().chain(&named_flash);
        named.any(|named| device.all().iter().any(|part| part.path == named.path))
    };
    let (mut free_flash, mut slow, mut left) = (Vec::new(), Vec::new(), Vec::new());
    for device in candidates(machine).into_iter().filter(|device| !is_named(device)) {
        match judge(device, wishes.looked_at_by_name) {
            Verdict::Flash => free_flash.push(device),
            Verdict::Volume => slow.push(device),
            Verdict::Left(why, remedy) => left.push(leave(device, why, remedy)),
        }
    }
    free_flash.sort_by_key(|device| (device.transport != "nvme", std::cmp::Reverse(device.bytes), device.path.clone()));
    let (flash, single_flash) = choose_flash(&named_flash, &free_flash, &mut left);
    let volumes = volumes(&named_volumes, &slow);
    let memory = memory(machine, !volumes.is_empty());
    Ok(Plan { memory, flash, single_flash, volumes, left, hypervisor: machine.hypervisor })
}

/// The devices of these names. Fails if one does not exist or is in use.
fn named<'a>(machine: &'a Machine, option: &str, paths: &[PathBuf]) -> Result<Vec<&'a Device>, Failure> {
    let mut found: Vec<&Device> = Vec::new();
    for path in paths {
        let shown = path.display();
        let device = machine.find(path).ok_or_else(|| {
            Failure::usage(format!("{option} {shown}: no block device that is looked at; `lsblk --paths` lists them"))
        })?;
        if found.iter().any(|other| other.path == device.path) {
            return Err(Failure::usage(format!("{option} {shown}: it is named twice")));
        }
        if let Some(user) = device.used_by() {
            return Err(Failure::failed(format!("{option} {shown}: {user}; end that first")));
        }
        if let Contents::Unseen(why) = &device.contents {
            return Err(Failure::failed(format!("{option} {shown}: it cannot be looked at ({why}); run this as root")));
        }
        if device.read_only && option == "--flash" {
            return Err(Failure::failed(format!("{option} {shown}: it is read-only")));
        }
        found.push(device);
    }
    Ok(found)
}

/// Disks, and RAID and multipath devices built on them; each once.
fn candidates(machine: &Machine) -> Vec<&Device> {
    let is_built = |device: &Device| device.kind.starts_with("raid") || device.kind == "mpath";
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for disk in machine.disks.iter().filter(|disk| disk.kind != "rom") {
        let nested = disk.all().into_iter().skip(1).filter(|device| is_built(device));
        let new = std::iter::once(disk).chain(nested).filter(|device| device.bytes > 0 && seen.insert(&device.path));
        found.extend(new);
    }
    found
}

fn judge(device: &Device, by_name: bool) -> Verdict {
    let path = device.path.display();
    let left = |why: &str| Verdict::Left(why.to_owned(), None);
    let name = device.path.file_name().unwrap_or_default().to_string_lossy();
    if let Some(carries) = device.carries() {
        let remedy = match device.used_by() {
            Some(_) => None,
            None => Some(format!("`hotset init --volume {path}` serves it as it is")),
        };
        return Verdict::Left(format!("{CARRIES} {carries}"), remedy);
    }
    if device.kind == "loop" && !by_name {
        return Verdict::Left("is a loop device".to_owned(), Some(format!("`hotset init --look-at {path}`")));
    }
    if device.read_only {
        return left("is read-only");
    }
    if device.removable {
        return Verdict::Left("can be pulled out".to_owned(), Some(format!("`hotset init --volume {path}`")));
    }
    if MADE_BY_OTHERS.iter().any(|prefix| name.starts_with(prefix)) {
        let why = "is made by ZFS, Ceph or DRBD, perhaps for a virtual machine";
        return Verdict::Left(why.to_owned(), Some(format!("`hotset init --volume {path}`")));
    }
    if let Contents::Unseen(why) = &device.contents {
        return Verdict::Left(format!("cannot be looked at ({why})"), Some("run this as root".to_owned()));
    }
    if device.bytes < DISK_BYTES_MIN && !by_name {
        return Verdict::Left("is small".to_owned(), Some(format!("`hotset init --volume {path}`")));
    }
    if !device.rotates && LOCAL.contains(&device.transport.as_str()) { Verdict::Flash } else { Verdict::Volume }
}

/// Chooses the two devices of the mirrored log: the named ones, else the two best free ones. A single free device is
/// not used unasked.
fn choose_flash(named: &[&Device], free: &[&Device], left: &mut Vec<Left>) -> (Vec<Chosen>, Option<Chosen>) {
    let (taken, single, rest) = match (named, free) {
        ([], [first, second, rest @ ..]) => (vec![chosen(first), chosen(second)], None, rest),
        ([], [only]) => (Vec::new(), Some(chosen(only)), &[][..]),
        ([], []) => (Vec::new(), None, &[][..]),
        (named, free) => (named.iter().map(|device| chosen(device)).collect(), None, free),
    };
    left.extend(rest.iter().map(|device| {
        let remedy = format!("`hotset flash add {}`, once the daemon runs", device.name().display());
        leave(device, "is free flash beyond the two that carry the log".to_owned(), Some(remedy))
    }));
    (taken, single)
}

fn volumes(named: &[&Device], slow: &[&Device]) -> Vec<Volume> {
    let volume = |(index, device): (usize, &&Device)| {
        let kind = if device.kind == "disk" && device.rotates { "hdd" } else { "disk" };
        Volume { name: format!("{kind}{}", index + 1), backing: chosen(device) }
    };
    named.iter().chain(slow).enumerate().map(volume).collect()
}

fn chosen(device: &Device) -> Chosen {
    let (device_name, node, size_bytes) = (device.name().to_owned(), device.path.clone(), device.bytes);
    Chosen { device: device_name, node, size_bytes, what: describe(device), carries: device.carries() }
}

fn leave(device: &Device, why: String, remedy: Option<String>) -> Left {
    Left { device: device.path.clone(), size_bytes: device.bytes, what: describe(device), why, remedy }
}

fn describe(device: &Device) -> String {
    let kind = match (device.kind.as_str(), device.rotates, device.transport.as_str()) {
        ("disk", true, _) => "rotates".to_owned(),
        ("disk", false, transport) if LOCAL.contains(&transport) => format!("{transport} flash"),
        ("disk", false, _) => "does not rotate".to_owned(),
        (kind, ..) => kind.to_owned(),
    };
    let words = [device.model.clone(), show_bytes(device.bytes), kind];
    words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(", ")
}

/// The memory that the cache may take, by the other uses of the machine.
fn memory(machine: &Machine, serves: bool) -> Memory {
    let (total, available) = (machine.memory_bytes, machine.available_bytes);
    let (share, most, why) = match (machine.hypervisor, serves) {
        (Some(sign), _) => (
            total / 5,
            available / 2,
            format!(
                "{sign}: a fifth of {}, at most half of the {} that are free now, to leave memory for guests",
                show_bytes(total),
                show_bytes(available)
            ),
        ),
        (None, true) => (
            total / 4 * 3,
            available / 5 * 4,
            format!("three quarters of {}: this machine serves disks; the rest is for the system", show_bytes(total)),
        ),
        (None, false) => (
            total / 4,
            available / 2,
            format!("a quarter of {}: no disk is free, so this machine has another purpose, too", show_bytes(total)),
        ),
    };
    let bytes = share.min(most);
    // Rounded to a convenient number.
    let unit = if bytes >= 4 * GIB { GIB } else { 64 << 20 };
    let size_bytes = (bytes / unit * unit).max(MEMORY_MIN_BYTES);
    Memory { size_bytes, total_bytes: total, available_bytes: available, why }
}

impl Plan {
    /// The first disk that carries data and could be served as it is.
    pub fn could_serve(&self) -> Option<&Left> {
        self.left.iter().find(|left| left.why.starts_with(CARRIES) && left.remedy.is_some())
    }
}

impl Left {
    /// Its node.
    pub fn path(&self) -> &Path {
        &self.device
    }
}
