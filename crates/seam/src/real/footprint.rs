//! Storage footprint of a disk: the files and devices that hold its bytes. Loop devices, partitions, device mapper, md
//! and file systems are resolved to ranges of files and devices, so that two paths to one disk are detected before both
//! are written.
//!
//! 1. An *exact* part contains the disk's own bytes at a known offset. Any other part states only that the disk lies
//!    somewhere inside it.
//! 2. Two disks overlap if two of their parts overlap and at least one of these is exact. Two logical volumes of one
//!    group, or two files of one file system, share only inexact parts and are two disks.

use std::fs::{self, File, OpenOptions};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::path_call::unescaped;

/// Maximum number of layers below a disk; more indicate a cycle.
const DEPTH_MAX: u32 = 16;
/// Maximum number of parts of one disk.
const PARTS_MAX: usize = 256;
/// The unit of sizes in sysfs.
const SYSFS_SECTOR_BYTES: u64 = 512;

/// A file or device that holds bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// A file, by the device number of its file system and its inode.
    File { device: (u32, u32), inode: u64 },
    /// A block device, by device number.
    Device((u32, u32)),
    /// A disk by its hardware identifier, independent of the path.
    Wwid(String),
}

/// A byte range of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    node: Node,
    span: Range<u64>,
    exact: bool,
    /// The node's name in messages.
    name: String,
}

/// A kernel NBD device below a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelNbdDevice {
    /// The kernel's name of the device.
    pub name: String,
    /// Backend identifier that the NBD client set (sysfs `backend`).
    pub backend: Option<String>,
    /// The process that connected the device.
    pub pid: Option<u32>,
}

/// The storage below a disk: all its parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StorageFootprint {
    parts: Vec<Part>,
    pub(super) nbd: Vec<KernelNbdDevice>,
}

impl StorageFootprint {
    /// The footprint of an open file or device. Unresolvable layers are omitted.
    pub(super) fn of(file: &File) -> StorageFootprint {
        file.metadata().map(|meta| KernelPaths::of_this_machine().footprint(&meta, mount_of(file))).unwrap_or_default()
    }

    /// The footprint of a block device that need not be open.
    pub(super) fn of_device(meta: &fs::Metadata) -> StorageFootprint {
        KernelPaths::of_this_machine().footprint(meta, None)
    }

    /// The mount point of a file system on this storage.
    pub(super) fn mount_point(&self) -> Option<PathBuf> {
        KernelPaths::of_this_machine().mount_point_on(self)
    }

    /// The name of a storage part that both share, if they overlap.
    pub(super) fn overlap<'a>(&'a self, other: &StorageFootprint) -> Option<&'a str> {
        let overlaps = |a: &Part, b: &Part| {
            let is_comparable = a.node == b.node && (a.exact || b.exact);
            is_comparable && a.span.start < b.span.end && b.span.start < a.span.end
        };
        let shared_part =
            self.parts.iter().find(|part| other.parts.iter().any(|other_part| overlaps(part, other_part)));
        shared_part.map(|part| part.name.as_str())
    }
}

/// Paths of sysfs, the device nodes and the mount table; tests substitute their own.
struct KernelPaths {
    sys: PathBuf,
    dev: PathBuf,
    mounts: PathBuf,
}

/// Location of a file: its file system, inode and mount.
#[derive(Clone, Copy)]
struct FileLocation {
    device: (u32, u32),
    inode: u64,
    /// The mount through which the file was opened.
    mount: Option<u64>,
}

/// Storage below a loop device.
struct LoopStatus {
    file: FileLocation,
    /// The block device, if the loop device is over a device instead of a file.
    block: Option<(u32, u32)>,
    offset: u64,
    /// Length in bytes; 0 means no limit.
    size_limit: u64,
}

impl KernelPaths {
    fn of_this_machine() -> KernelPaths {
        KernelPaths { sys: "/sys".into(), dev: "/dev".into(), mounts: "/proc/self/mountinfo".into() }
    }

    fn footprint(&self, meta: &fs::Metadata, mount: Option<u64>) -> StorageFootprint {
        let mut footprint = StorageFootprint::default();
        if meta.is_file() {
            let location = FileLocation { device: split_device_number(meta.dev()), inode: meta.ino(), mount };
            self.add_file(location, 0..meta.len().max(1), true, &mut footprint, 0);
        } else {
            self.add_device(split_device_number(meta.rdev()), 0..u64::MAX, true, &mut footprint, 0);
        }
        footprint
    }

    fn add_file(
        &self,
        location: FileLocation,
        span: Range<u64>,
        exact: bool,
        footprint: &mut StorageFootprint,
        depth: u32,
    ) {
        let FileLocation { device, inode, mount } = location;
        let name = format!("inode {inode} of the file system {}:{}", device.0, device.1);
        if !add_part(footprint, Part { node: Node::File { device, inode }, span, exact, name }, depth) {
            return;
        }
        // A file system without a device number of its own is resolved through its mount.
        let below = if device.0 != 0 { Some(device) } else { self.mount_source(device, mount) };
        if let Some(below) = below {
            self.add_device(below, 0..u64::MAX, false, footprint, depth + 1);
        }
    }

    fn add_device(
        &self,
        number: (u32, u32),
        span: Range<u64>,
        exact: bool,
        footprint: &mut StorageFootprint,
        depth: u32,
    ) {
        let folder = self.sys.join(format!("dev/block/{}:{}", number.0, number.1));
        let folder = folder.canonicalize().unwrap_or(folder);
        let bytes =
            read_number(&folder.join("size")).map_or(u64::MAX, |sectors| sectors.saturating_mul(SYSFS_SECTOR_BYTES));
        let span = span.start..span.end.min(bytes);
        let kernel_name = folder.file_name().map(|name| name.to_string_lossy().replace('!', "/"));
        let kernel_name = kernel_name.unwrap_or_else(|| format!("{}:{}", number.0, number.1));
        let name = format!("/dev/{kernel_name}");
        if !add_part(
            footprint,
            Part { node: Node::Device(number), span: span.clone(), exact, name: name.clone() },
            depth,
        ) {
            return;
        }
        if kernel_name.starts_with("nbd") && folder.join("pid").exists() {
            let backend = read_text(&folder.join("backend"));
            let pid = read_number(&folder.join("pid")).and_then(|pid| u32::try_from(pid).ok());
            footprint.nbd.push(KernelNbdDevice { name: kernel_name.clone(), backend, pid });
        }
        if folder.join("partition").exists() {
            let start = read_number(&folder.join("start")).unwrap_or(0).saturating_mul(SYSFS_SECTOR_BYTES);
            let disk = folder.parent().and_then(|disk| parse_device_number(&read_text(&disk.join("dev"))?));
            if let Some(disk) = disk {
                self.add_device(disk, shift_range(&span, start, 0), exact, footprint, depth + 1);
            }
            return;
        }
        if let Some(status) = self.loop_status(&kernel_name, &folder) {
            let below = shift_range(&span, status.offset, status.size_limit);
            match status.block {
                Some(block) => self.add_device(block, below, exact, footprint, depth + 1),
                None => self.add_file(status.file, below, exact, footprint, depth + 1),
            }
            return;
        }
        let slaves = fs::read_dir(folder.join("slaves")).into_iter().flatten().flatten();
        let slaves: Vec<_> =
            slaves.filter_map(|slave| parse_device_number(&read_text(&slave.path().join("dev"))?)).collect();
        for slave in &slaves {
            self.add_device(*slave, 0..u64::MAX, false, footprint, depth + 1);
        }
        let wwid = read_text(&folder.join("wwid")).or_else(|| read_text(&folder.join("device/wwid")));
        if let Some(wwid) = wwid.filter(|_| slaves.is_empty()) {
            add_part(footprint, Part { node: Node::Wwid(wwid), span, exact, name }, depth);
        }
    }

    /// Queries the loop device, which has the inode, or else sysfs, which has only a path.
    fn loop_status(&self, name: &str, folder: &Path) -> Option<LoopStatus> {
        let path = read_text(&folder.join("loop/backing_file"))?;
        if let Some(status) = read_loop_status(&self.dev.join(name)) {
            return Some(status);
        }
        let meta = fs::metadata(path).ok()?;
        Some(LoopStatus {
            file: FileLocation { device: split_device_number(meta.dev()), inode: meta.ino(), mount: None },
            block: (!meta.is_file()).then(|| split_device_number(meta.rdev())),
            offset: read_number(&folder.join("loop/offset")).unwrap_or(0),
            size_limit: read_number(&folder.join("loop/sizelimit")).unwrap_or(0),
        })
    }

    /// The mount point of a file system that overlaps the exact parts of `storage`. A loop device over a file lies
    /// inside a mounted file system, but not under it.
    fn mount_point_on(&self, storage: &StorageFootprint) -> Option<PathBuf> {
        let mounts = fs::read_to_string(&self.mounts).ok()?;
        let exact_parts = storage.parts.iter().filter(|part| part.exact).cloned().collect();
        let exact = StorageFootprint { parts: exact_parts, nbd: Vec::new() };
        mounts.lines().find_map(|line| {
            let mut fields = line.split(' ');
            let (mount, device, mount_point) = (fields.next()?, fields.nth(1)?, fields.nth(1)?);
            let device = parse_device_number(device)?;
            // As for a file: a file system without a device number of its own is resolved through its mount.
            let number = if device.0 != 0 { device } else { self.mount_source(device, mount.parse().ok())? };
            let mut below = StorageFootprint::default();
            self.add_device(number, 0..u64::MAX, true, &mut below, 0);
            exact.overlap(&below).map(|_| unescaped(mount_point.as_bytes()))
        })
    }

    /// The block device below a mounted file system, found by mount ID or by device number.
    fn mount_source(&self, device: (u32, u32), mount: Option<u64>) -> Option<(u32, u32)> {
        let mounts = fs::read_to_string(&self.mounts).ok()?;
        let (device, mount) = (format!("{}:{}", device.0, device.1), mount.map(|mount| mount.to_string()));
        let is_mount = |line: &&str| {
            let mut fields = line.split(' ');
            fields.next() == mount.as_deref() || fields.nth(1) == Some(&device)
        };
        let source = mounts.lines().find(is_mount)?.split_once(" - ")?.1.split(' ').nth(1)?;
        let meta = fs::metadata(source).ok().filter(|_| source.starts_with('/'))?;
        (meta.rdev() != 0).then(|| split_device_number(meta.rdev()))
    }
}

/// The mount through which a file was opened.
fn mount_of(file: &File) -> Option<u64> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).ok()?;
    info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()
}

/// Adds a part; false if it is present already or a limit is reached.
fn add_part(footprint: &mut StorageFootprint, part: Part, depth: u32) -> bool {
    let is_new = depth < DEPTH_MAX && footprint.parts.len() < PARTS_MAX && !footprint.parts.contains(&part);
    if is_new {
        footprint.parts.push(part);
    }
    is_new
}

/// Range `span` of an object that begins at `start` of the storage below it and has `limit` bytes there; 0 means no
/// limit.
fn shift_range(span: &Range<u64>, start: u64, limit: u64) -> Range<u64> {
    let end = if limit == 0 { span.end } else { span.end.min(limit) };
    span.start.saturating_add(start)..end.saturating_add(start)
}

fn split_device_number(device: u64) -> (u32, u32) {
    (libc::major(device), libc::minor(device))
}

fn parse_device_number(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn read_text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn read_number(path: &Path) -> Option<u64> {
    read_text(path)?.parse().ok()
}

/// Runs LOOP_GET_STATUS64 on the loop device at `device_path`.
fn read_loop_status(device_path: &Path) -> Option<LoopStatus> {
    const LOOP_GET_STATUS64: libc::Ioctl = 0x4c05;
    let device = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(device_path).ok()?;
    // `loop_info64`: device, inode, rdevice, offset, size limit, then unused fields.
    let mut info = [0u64; 29];
    // SAFETY: the request writes a `loop_info64`, which has 232 bytes and the alignment of a u64.
    let status = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, info.as_mut_ptr()) };
    (status == 0).then(|| LoopStatus {
        file: FileLocation { device: split_device_number(info[0]), inode: info[1], mount: None },
        block: (info[2] != 0).then(|| split_device_number(info[2])),
        offset: info[3],
        size_limit: info[4],
    })
}

#[cfg(test)]
mod tests;
