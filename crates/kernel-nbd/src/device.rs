//! The kernel's device of an attached volume: found by the identifier that `hotset attach` stored in the kernel, and
//! checked for users.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// Prefix of the identifier that the kernel stores for a device.
const PREFIX: &str = "hotset:";
/// Directory in which udev's rule links devices by volume name.
const LINK_DIRECTORY: &str = "/dev/hotset";
/// Interval at which the kernel checks a pending request. A request lost with its connection is sent again; any
/// other request continues to wait.
const RECHECK_INTERVAL_MS: &str = "5000";
/// Unit of a device's size in sysfs, whatever its block size.
const SYSFS_SECTOR_BYTES: u64 = 512;

/// Name and volume ID of a device's volume, so that another volume of the same name is not confused with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeIdentity {
    /// The volume ID, 16 hexadecimal digits.
    pub volume_id: String,
    /// The volume's name.
    pub volume: String,
}

impl VolumeIdentity {
    /// The identifier stored in the kernel. udev's rule uses the part after the slash as the name.
    pub fn to_text(&self) -> String {
        format!("{PREFIX}{}/{}", self.volume_id, self.volume)
    }

    fn parse(text: &str) -> Option<VolumeIdentity> {
        let (volume_id, volume) = text.trim_end().strip_prefix(PREFIX)?.split_once('/')?;
        Some(VolumeIdentity { volume_id: volume_id.to_owned(), volume: volume.to_owned() })
    }
}

/// A kernel device of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The number in the device's name.
    pub index: u32,
    /// The volume that the device belongs to.
    pub identity: VolumeIdentity,
}

/// The device of a volume, if it is attached.
pub fn find(volume: &str) -> io::Result<Option<Device>> {
    find_in(Path::new("/sys/block"), volume)
}

fn find_in(folder: &Path, volume: &str) -> io::Result<Option<Device>> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(index) = name.to_str().and_then(|name| name.strip_prefix("nbd")?.parse().ok()) else { continue };
        // A device without the file has no connection, or one made by another program.
        let Ok(text) = fs::read_to_string(entry.path().join("backend")) else { continue };
        match VolumeIdentity::parse(&text) {
            Some(identity) if identity.volume == volume => return Ok(Some(Device { index, identity })),
            _ => (),
        }
    }
    Ok(None)
}

impl Device {
    /// The kernel's name of the device.
    pub fn name(&self) -> String {
        format!("nbd{}", self.index)
    }

    /// Path of the device node.
    pub fn node(&self) -> PathBuf {
        Path::new("/dev").join(self.name())
    }

    /// Path of the link that udev's rule makes.
    pub fn link(&self) -> PathBuf {
        Path::new(LINK_DIRECTORY).join(&self.identity.volume)
    }

    /// The preferred path: the link by volume name if udev has made it, or else the node.
    pub fn path(&self) -> PathBuf {
        if self.is_linked() { self.link() } else { self.node() }
    }

    /// True if the link leads to this device.
    pub fn is_linked(&self) -> bool {
        fs::canonicalize(self.link()).is_ok_and(|path| path == self.node())
    }

    /// True while the device exists and belongs to the same volume.
    pub fn exists(&self) -> bool {
        let text = fs::read_to_string(self.folder().join("backend")).unwrap_or_default();
        VolumeIdentity::parse(&text).as_ref() == Some(&self.identity)
    }

    /// Size in bytes.
    pub fn size_bytes(&self) -> io::Result<u64> {
        let sectors = fs::read_to_string(self.folder().join("size"))?;
        let sectors: u64 = sectors.trim().parse().map_err(|_| io::ErrorKind::InvalidData)?;
        Ok(sectors * SYSFS_SECTOR_BYTES)
    }

    /// Sets up a newly connected device, and sends the event from which udev names it: the kernel's own event came
    /// before the identifier was stored.
    pub fn configure(&self) -> io::Result<()> {
        fs::write(self.folder().join("queue/io_timeout"), RECHECK_INTERVAL_MS)?;
        fs::write(self.folder().join("uevent"), "change")
    }

    /// Opens the device exclusively, so that it cannot be mounted meanwhile; the error describes its user.
    pub fn claim(&self) -> Result<File, InUse> {
        let exclusive = OFlags::EXCL.bits() as i32;
        match OpenOptions::new().read(true).custom_flags(exclusive).open(self.node()) {
            Ok(file) => Ok(file),
            Err(error) => {
                Err(self.user().unwrap_or_else(|| InUse(format!("it cannot be opened exclusively: {error}"))))
            }
        }
    }

    /// The device's user, if it is visible to this process.
    pub fn user(&self) -> Option<InUse> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
        let nodes = self.nodes();
        mount_user(&mounts, &nodes)
            .or_else(|| swap_user(&swaps, &nodes))
            .or_else(|| stacked_user(&nodes))
            .or_else(|| open_user(&nodes))
    }

    /// The device and its partitions.
    fn nodes(&self) -> Vec<BlockNode> {
        let name = self.name();
        let partitions = fs::read_dir(self.folder()).into_iter().flatten().flatten();
        let partitions = partitions.filter(|entry| entry.file_name().to_string_lossy().starts_with(&name));
        let folders = std::iter::once(self.folder()).chain(partitions.map(|entry| entry.path()));
        folders.filter_map(BlockNode::of).collect()
    }

    fn folder(&self) -> PathBuf {
        Path::new("/sys/block").join(self.name())
    }
}

/// Description of a device's user.
#[derive(Debug, PartialEq, Eq)]
pub struct InUse(pub String);

/// A device or one of its partitions.
struct BlockNode {
    folder: PathBuf,
    node: PathBuf,
    /// Major and minor, as `7:0`.
    device_number: String,
}

impl BlockNode {
    fn of(folder: PathBuf) -> Option<BlockNode> {
        let device_number = fs::read_to_string(folder.join("dev")).ok()?.trim().to_owned();
        let node = Path::new("/dev").join(folder.file_name()?);
        Some(BlockNode { folder, node, device_number })
    }
}

fn mount_user(mounts: &str, nodes: &[BlockNode]) -> Option<InUse> {
    let mount_point = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(2);
        let (device_number, mount_point) = (fields.next()?, fields.nth(1)?);
        nodes.iter().any(|node| node.device_number == device_number).then(|| mount_point.replace("\\040", " "))
    })?;
    Some(InUse(format!("it is mounted on {mount_point}; `umount {mount_point}` first")))
}

fn swap_user(swaps: &str, nodes: &[BlockNode]) -> Option<InUse> {
    let has_node = |path: &str| nodes.iter().any(|node| node.node == Path::new(path));
    let path = swaps.lines().filter_map(|line| line.split_whitespace().next()).find(|path| has_node(path))?;
    Some(InUse(format!("the system swaps to it; `swapoff {path}` first")))
}

fn stacked_user(nodes: &[BlockNode]) -> Option<InUse> {
    let holders =
        nodes.iter().flat_map(|node| fs::read_dir(node.folder.join("holders")).into_iter().flatten().flatten());
    let holder = holders.map(|entry| entry.file_name()).next()?;
    Some(InUse(format!("/dev/{} is built on it; remove that first", holder.to_string_lossy())))
}

fn open_user(nodes: &[BlockNode]) -> Option<InUse> {
    let own_pid = std::process::id();
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // The process may have ended meanwhile, or its descriptors may be unreadable for this user.
        let mut files = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        let has_node = |path: PathBuf| nodes.iter().any(|node| node.node == path);
        if pid != own_pid && files.any(|file| fs::read_link(file.path()).is_ok_and(has_node)) {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            return Some(InUse(format!("process {pid} ({}) has it open; stop that process first", name.trim())));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(volume: &str) -> VolumeIdentity {
        VolumeIdentity { volume_id: "00c0ffee00c0ffee".to_owned(), volume: volume.to_owned() }
    }

    #[test]
    fn identifier_text_names_one_volume_and_rejects_foreign_texts() {
        let web = identity("web01");
        assert_eq!(web.to_text(), "hotset:00c0ffee00c0ffee/web01");
        assert_eq!(VolumeIdentity::parse("hotset:00c0ffee00c0ffee/web01\n"), Some(web));
        for foreign in ["", "hotset:", "hotset:00c0ffee00c0ffee", "ceph-pool/web01", "/srv/hotset:1/web01"] {
            assert_eq!(VolumeIdentity::parse(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn device_of_a_volume_is_found_among_others() {
        let folder = tempfile::tempdir().expect("a temporary directory can be created");
        for (name, text) in [
            ("sda", None),
            ("nbd0", None),
            ("nbd1", Some("another program's web01")),
            ("nbd12", Some("hotset:00c0ffee00c0ffee/web01\n")),
            ("nbd3", Some("hotset:00c0ffee00c0ffee/web01-old\n")),
        ] {
            fs::create_dir(folder.path().join(name)).expect("the directory is writable");
            if let Some(text) = text {
                fs::write(folder.path().join(name).join("backend"), text).expect("the directory is writable");
            }
        }
        let device = find_in(folder.path(), "web01").expect("the directory can be read");
        assert_eq!(device, Some(Device { index: 12, identity: identity("web01") }));
        assert_eq!(find_in(folder.path(), "web").expect("the directory can be read"), None);
    }

    fn nodes() -> Vec<BlockNode> {
        let node = |name: &str, device_number: &str| BlockNode {
            folder: PathBuf::from("/nowhere"),
            node: Path::new("/dev").join(name),
            device_number: device_number.to_owned(),
        };
        vec![node("nbd1", "43:16"), node("nbd1p2", "43:18")]
    }

    #[test]
    fn users_of_a_device_or_its_partitions_are_named() {
        let mounts = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
                      61 22 43:18 / /srv/my\\040files rw,relatime - ext4 /dev/nbd1p2 rw\n";
        let reason = mount_user(mounts, &nodes()).expect("a partition is mounted").0;
        assert!(reason.contains("mounted on /srv/my files"), "{reason}");
        assert_eq!(mount_user("22 1 43:1 / / rw - ext4 /dev/nbd0p1 rw\n", &nodes()), None);
        let swaps = "Filename\tType\tSize\tUsed\tPriority\n/dev/nbd1p2  partition\t1048572\t0\t-2\n";
        assert!(swap_user(swaps, &nodes()).expect("the device is swap space").0.contains("swapoff /dev/nbd1p2"));
        assert_eq!(swap_user(&swaps.replace("nbd1p2", "nbd1p22"), &nodes()), None);
    }
}
