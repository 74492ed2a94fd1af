//! The machine as `hotset init` examines it. This module reads all its properties and writes nothing.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::fs::OFlags;
use serde::Deserialize;

/// Columns requested from lsblk.
const COLUMNS: &str = "NAME,PATH,TYPE,SIZE,ROTA,RO,RM,FSTYPE,PTTYPE,MOUNTPOINTS,MODEL,TRAN";
/// Bytes to read per sample of a device without a known signature.
const SAMPLE_BYTES: usize = 1 << 20;
/// Number of samples, including the first and the last MiB.
const SAMPLE_COUNT: u64 = 16;
/// udev's folder of persistent names.
const BY_ID_FOLDER: &str = "/dev/disk/by-id";

/// Content of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Zeroes in every sample.
    Blank,
    /// These signatures, by `wipefs`'s names.
    Signatures(Vec<String>),
    /// Data without a known signature.
    Unrecognised,
    /// The kernel uses it exclusively.
    InUse,
    /// It cannot be read, for this reason.
    Unreadable(String),
}

/// A disk, a partition, or something built on them.
#[derive(Clone, Debug)]
pub struct Device {
    /// Its node.
    pub path: PathBuf,
    /// The best persistent name, if there is one.
    pub persistent_name: Option<PathBuf>,
    /// Device type of lsblk: `disk`, `part`, `lvm`, `raid1`, `loop`, …
    pub kind: String,
    /// Size.
    pub bytes: u64,
    /// The kernel reports it as rotational.
    pub is_rotational: bool,
    /// It is read-only.
    pub read_only: bool,
    /// It is removable.
    pub removable: bool,
    /// Its model; may be empty.
    pub model: String,
    /// How it is connected: `nvme`, `sata`, `usb`, …; may be empty.
    pub transport: String,
    /// The file system or similar content; may be empty.
    pub file_system: String,
    /// The kind of its partition table; may be empty.
    pub partition_table: String,
    /// Its mount points.
    pub mounts: Vec<String>,
    /// Its content, determined without lsblk.
    pub contents: Contents,
    /// Partitions, and devices built on it.
    pub children: Vec<Device>,
}

/// A machine.
#[derive(Debug)]
pub struct Machine {
    /// Its disks.
    pub disks: Vec<Device>,
    /// Total memory.
    pub memory_bytes: u64,
    /// Available memory.
    pub available_bytes: u64,
    /// Sign of virtual machines on this machine, if any.
    pub hypervisor_sign: Option<&'static str>,
}

/// Input for [`Machine::of`], from this machine or from a test.
pub struct Sources<'a> {
    /// lsblk's JSON.
    pub lsblk: &'a str,
    /// `/proc/meminfo`.
    pub meminfo: &'a str,
    /// Persistent names, each with its node.
    pub links: &'a [(PathBuf, PathBuf)],
    /// Determines the content of a device.
    pub probe: &'a dyn Fn(&Path) -> Contents,
    /// Sign of virtual machines on this machine, if any.
    pub hypervisor_sign: Option<&'static str>,
}

#[derive(Deserialize)]
struct LsblkOutput {
    blockdevices: Vec<LsblkDevice>,
}

#[derive(Deserialize)]
struct LsblkDevice {
    name: String,
    path: PathBuf,
    #[serde(rename = "type")]
    kind: String,
    size: Option<u64>,
    rota: bool,
    ro: bool,
    rm: bool,
    fstype: Option<String>,
    pttype: Option<String>,
    #[serde(default)]
    mountpoints: Vec<Option<String>>,
    model: Option<String>,
    tran: Option<String>,
    #[serde(default)]
    children: Vec<LsblkDevice>,
}

impl Machine {
    /// Examines this machine; only the devices in `only` if there are any.
    pub fn examine(only: &[PathBuf]) -> Result<Machine, String> {
        let lsblk = run(Command::new("lsblk").args(["--json", "--bytes", "--output", COLUMNS]).args(only))?;
        let meminfo = fs::read_to_string("/proc/meminfo").map_err(|error| format!("/proc/meminfo: {error}"))?;
        let links = links(Path::new(BY_ID_FOLDER));
        let sources = Sources {
            lsblk: &lsblk,
            meminfo: &meminfo,
            links: &links,
            probe: &probe_contents,
            hypervisor_sign: detect_hypervisor(Path::new("/")),
        };
        Machine::of(&sources)
    }

    /// Builds a machine from `sources`.
    pub fn of(sources: &Sources<'_>) -> Result<Machine, String> {
        let listing: LsblkOutput =
            serde_json::from_str(sources.lsblk).map_err(|error| format!("the output of lsblk is invalid: {error}"))?;
        let memory = |name| meminfo(sources.meminfo, name).ok_or_else(|| format!("/proc/meminfo has no {name}"));
        let disks = listing.blockdevices.into_iter().filter(|listed| is_disk(&listed.name));
        Ok(Machine {
            memory_bytes: memory("MemTotal")?,
            available_bytes: memory("MemAvailable")?,
            hypervisor_sign: sources.hypervisor_sign,
            disks: disks.map(|listed| Device::of(listed, sources)).collect(),
        })
    }

    /// Finds a device by its node or by another name of it.
    pub fn find(&self, path: &Path) -> Option<&Device> {
        let canonical = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        self.disks.iter().find_map(|disk| disk.find(path, &canonical))
    }
}

impl Device {
    fn of(listed: LsblkDevice, sources: &Sources<'_>) -> Device {
        Device {
            persistent_name: persistent_name(&listed.path, sources.links),
            bytes: listed.size.unwrap_or(0),
            is_rotational: listed.rota,
            read_only: listed.ro,
            removable: listed.rm || listed.tran.as_deref() == Some("usb"),
            model: listed.model.unwrap_or_default().trim().to_owned(),
            transport: listed.tran.unwrap_or_default(),
            file_system: listed.fstype.unwrap_or_default(),
            partition_table: listed.pttype.unwrap_or_default(),
            mounts: listed.mountpoints.into_iter().flatten().collect(),
            contents: (sources.probe)(&listed.path),
            children: listed.children.into_iter().map(|child| Device::of(child, sources)).collect(),
            kind: listed.kind,
            path: listed.path,
        }
    }

    fn find(&self, path: &Path, canonical: &Path) -> Option<&Device> {
        if self.path == path || self.path == canonical || self.persistent_name.as_deref() == Some(path) {
            return Some(self);
        }
        self.children.iter().find_map(|child| child.find(path, canonical))
    }

    /// The name to write into a configuration.
    pub fn name(&self) -> &Path {
        self.persistent_name.as_deref().unwrap_or(&self.path)
    }

    /// The device and all devices on it.
    pub fn with_descendants(&self) -> Vec<&Device> {
        std::iter::once(self).chain(self.children.iter().flat_map(|child| child.with_descendants())).collect()
    }

    /// Describes its known content; `None` if it is blank or cannot be read.
    pub fn content_description(&self) -> Option<String> {
        let mut descriptions: Vec<String> = Vec::new();
        if !self.partition_table.is_empty() {
            descriptions.push(format!("a partition table ({})", self.partition_table));
        }
        for device in self.with_descendants() {
            let name = device.path.display();
            let on = if device.path == self.path { String::new() } else { format!(" on {name}") };
            match device.file_system.as_str() {
                "" if device.mounts.is_empty() => (),
                "" => descriptions.push(format!("a file system{on}")),
                name => descriptions.push(format!("{name}{on}")),
            }
            descriptions.extend(device.mounts.iter().map(|mount| match mount.as_str() {
                "[SWAP]" => format!("swap in use{on}"),
                mount => format!("mounted at {mount}{on}"),
            }));
        }
        if descriptions.is_empty() {
            match &self.contents {
                Contents::Blank | Contents::Unreadable(_) => (),
                Contents::Signatures(names) => descriptions.extend(names.iter().cloned()),
                Contents::Unrecognised => descriptions.push("unrecognised data".to_owned()),
                Contents::InUse => descriptions.push("data in exclusive use by the kernel".to_owned()),
            }
            let children = self.children.iter().map(|child| format!("{} ({})", child.path.display(), child.kind));
            descriptions.extend(children);
        }
        (!descriptions.is_empty()).then(|| descriptions.join(", "))
    }

    /// Describes its current exclusive user.
    pub fn used_by(&self) -> Option<String> {
        for device in self.with_descendants() {
            let path = device.path.display();
            if let Some(mount) = device.mounts.first() {
                return Some(if mount == "[SWAP]" {
                    format!("{path} is swap in use")
                } else {
                    format!("{path} is mounted at {mount}")
                });
            }
            if let Some(built) = device.children.iter().find(|child| child.kind != "part") {
                return Some(format!("{} ({}) is built on {path}", built.path.display(), built.kind));
            }
        }
        let in_use = self.with_descendants().into_iter().find(|device| device.contents == Contents::InUse)?;
        Some(format!("the kernel uses {}: a file system, RAID, LVM, ZFS, or the like", in_use.path.display()))
    }
}

/// False for RAM disks, drives for removable media, and network disks (NBD).
fn is_disk(name: &str) -> bool {
    !["ram", "zram", "fd", "sr", "nbd"].iter().any(|prefix| {
        let rest = name.strip_prefix(prefix);
        rest.is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
    })
}

/// A number of `/proc/meminfo` in bytes.
fn meminfo(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The most readable persistent name of a device: one with model and serial number is preferred to one with numbers
/// only.
fn persistent_name(path: &Path, links: &[(PathBuf, PathBuf)]) -> Option<PathBuf> {
    let rank = |link: &Path| {
        let name = link.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let number_prefixes = ["wwn-", "nvme-eui.", "nvme-nvme.", "scsi-3", "dm-uuid-", "lvm-pv-uuid-", "md-uuid-"];
        (number_prefixes.iter().any(|prefix| name.starts_with(prefix)), name.len(), name)
    };
    let names = links.iter().filter(|(_, node)| node == path).map(|(link, _)| link);
    names.min_by_key(|link| rank(link)).cloned()
}

fn links(folder: &Path) -> Vec<(PathBuf, PathBuf)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some((entry.path(), entry.path().canonicalize().ok()?))).collect()
}

/// Searches for a sign of virtual machines on the machine whose root is `root`.
fn detect_hypervisor(root: &Path) -> Option<&'static str> {
    let signs = [
        ("etc/pve", "Proxmox VE is here"),
        ("run/libvirt", "libvirt runs here"),
        ("etc/libvirt/qemu", "libvirt is here"),
    ];
    let sign = signs.iter().find(|(path, _)| root.join(path).exists()).map(|(_, sign)| *sign);
    sign.or_else(|| has_running_guests(&root.join("proc")).then_some("running virtual machines found"))
}

fn has_running_guests(proc: &Path) -> bool {
    let processes = fs::read_dir(proc).into_iter().flatten().flatten();
    let mut names = processes.filter_map(|process| fs::read_to_string(process.path().join("comm")).ok());
    names.any(|name| name.starts_with("qemu-system") || name.trim_end() == "kvm" || name.starts_with("cloud-hyper"))
}

/// Determines the content of a device: signatures first, and without any, whether it contains only zeroes. It does not
/// write.
fn probe_contents(path: &Path) -> Contents {
    let exclusive = OFlags::EXCL.bits() as i32;
    // The exclusive open is brief, so that it does not block other programs.
    let result = OpenOptions::new().read(true).custom_flags(exclusive).open(path).and_then(|_| File::open(path));
    let mut file = match result {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::ResourceBusy => return Contents::InUse,
        Err(error) => return Contents::Unreadable(error.to_string()),
    };
    let wipefs = run(Command::new("wipefs").args(["--no-act", "--json"]).arg(path));
    let names = match wipefs.and_then(|output| signatures(&output)) {
        Ok(names) => names,
        Err(error) => return Contents::Unreadable(error),
    };
    if !names.is_empty() {
        return Contents::Signatures(names);
    }
    let bytes = match file.seek(SeekFrom::End(0)) {
        Ok(bytes) => bytes,
        Err(error) => return Contents::Unreadable(error.to_string()),
    };
    let last = bytes.saturating_sub(SAMPLE_BYTES as u64);
    let mut buffer = vec![0; SAMPLE_BYTES];
    for sample in 0..SAMPLE_COUNT {
        // The samples are evenly spaced, the last one at the end.
        let offset = (u128::from(last) * u128::from(sample) / u128::from(SAMPLE_COUNT - 1)) as u64;
        match file.read_at(&mut buffer, offset / 4096 * 4096) {
            Ok(read) if buffer[..read].iter().all(|byte| *byte == 0) => (),
            Ok(_) => return Contents::Unrecognised,
            Err(error) => return Contents::Unreadable(error.to_string()),
        }
    }
    Contents::Blank
}

/// Names of the signatures in the output of `wipefs --json`, which is empty if it finds none.
fn signatures(output: &str) -> Result<Vec<String>, String> {
    #[derive(Deserialize)]
    struct WipefsOutput {
        signatures: Vec<Signature>,
    }
    #[derive(Deserialize)]
    struct Signature {
        #[serde(rename = "type")]
        kind: String,
    }
    if output.trim().is_empty() {
        return Ok(Vec::new());
    }
    let output: WipefsOutput =
        serde_json::from_str(output).map_err(|error| format!("the output of wipefs is invalid: {error}"))?;
    let mut names: Vec<String> = output.signatures.into_iter().map(|signature| signature.kind).collect();
    names.dedup();
    Ok(names)
}

/// Runs a program of util-linux and returns its output.
fn run(command: &mut Command) -> Result<String, String> {
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin")).env("LC_ALL", "C");
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{name} cannot be run: {error}; install util-linux"))?;
    let Output { status, stdout, stderr } = output;
    if !status.success() {
        return Err(format!("{name}: {}", String::from_utf8_lossy(&stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn persistent_name_prefers_model_and_serial_and_fits_the_partition() {
        let link = |name: &str, node: &str| (Path::new(BY_ID_FOLDER).join(name), PathBuf::from(node));
        let links = [
            link("wwn-0x5000c500a1b2c3d4", "/dev/sdb"),
            link("ata-ST8000NM000A-2KE101_WSD0A1B2", "/dev/sdb"),
            link("ata-ST8000NM000A-2KE101_WSD0A1B2-part1", "/dev/sdb1"),
            link("scsi-35000c500a1b2c3d4", "/dev/sdb"),
        ];
        let name = |node: &str| persistent_name(Path::new(node), &links);
        assert_eq!(name("/dev/sdb"), Some(Path::new(BY_ID_FOLDER).join("ata-ST8000NM000A-2KE101_WSD0A1B2")));
        assert_eq!(name("/dev/sdb1"), Some(Path::new(BY_ID_FOLDER).join("ata-ST8000NM000A-2KE101_WSD0A1B2-part1")));
        assert_eq!(name("/dev/sdc"), None);
    }

    #[test]
    fn signatures_are_read_from_the_output_of_wipefs() {
        let output = r#"{"signatures": [{"device":"sdb","offset":"0x438","type":"ext4","uuid":"1","label":null}]}"#;
        assert_eq!(signatures(output), Ok(vec!["ext4".to_owned()]));
        assert_eq!(signatures("\n"), Ok(Vec::new()));
        assert!(signatures("usage: wipefs").is_err());
    }

    #[test]
    fn ram_disks_and_removable_media_are_no_disks() {
        assert!(["sda", "nvme0n1", "vda", "loop0", "dm-0", "srv0disk", "fdisk"].iter().all(|name| is_disk(name)));
        assert!(["ram0", "zram0", "sr0", "fd0", "nbd12"].iter().all(|name| !is_disk(name)));
    }

    #[test]
    fn hypervisor_is_recognised_by_folders_or_guests() {
        let root = tempfile::tempdir().expect("a folder can be made");
        assert_eq!(detect_hypervisor(root.path()), None);
        fs::create_dir_all(root.path().join("proc/77")).expect("the folder can be written");
        fs::write(root.path().join("proc/77/comm"), "kvm\n").expect("the folder can be written");
        assert_eq!(detect_hypervisor(root.path()), Some("running virtual machines found"));
        fs::create_dir_all(root.path().join("etc/pve")).expect("the folder can be written");
        assert_eq!(detect_hypervisor(root.path()), Some("Proxmox VE is here"));
    }
}
