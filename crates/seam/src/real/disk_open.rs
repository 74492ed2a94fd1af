//! Opening a file or block device: direct I/O, the lock, and its properties as known by the kernel. Every step may
//! hang with the path, so all run as a [`PathCall`](super::path_call::PathCall).

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::claims::{Claim, claim, find_overlapping};
use super::file_identity::file_identities;
use super::footprint::StorageFootprint;
use super::path_call::CallState;
use crate::{DiskError, DiskOpen, DiskResult, Geometry, SECTOR_BYTES};

/// First pause between two attempts to open a disk that another holder has; it doubles with each attempt.
pub(super) const LOCK_PAUSE_MIN: Duration = Duration::from_millis(10);
/// The longest pause between two attempts.
pub(super) const LOCK_PAUSE_MAX: Duration = Duration::from_millis(160);
/// Longest wait for a disk of this process that is being closed.
pub(super) const CLOSING_TIMEOUT: Duration = Duration::from_secs(2);
/// Queue depth of a disk that reports none.
const DEFAULT_QUEUE_DEPTH: u32 = 32;

/// Time after which a wait for a lock is reported: a shorter wait needs no message.
const LOCK_WAIT_REPORT_DELAY: Duration = Duration::from_millis(500);

/// Called with the path, its holder if that is known, and the time limit of the wait.
type LockWaitReport = fn(&Path, Option<u32>, Duration);

static LOCK_WAIT_REPORT: OnceLock<LockWaitReport> = OnceLock::new();

/// Sets the function that is called once for each opening of a disk that waits for another process. The first one stays
/// set.
pub fn report_lock_waits(report: LockWaitReport) {
    let _ = LOCK_WAIT_REPORT.set(report);
}

/// A wait until another holder closes a disk, reported once.
pub(super) struct LockWait {
    started_at: Instant,
    limit: Duration,
    is_reported: bool,
}

impl LockWait {
    pub(super) fn new(limit: Duration) -> LockWait {
        LockWait { started_at: Instant::now(), limit, is_reported: false }
    }

    /// Reports a wait that is no longer short; `holder` is 0 if it is not known.
    pub(super) fn report_if_long(&mut self, path: &Path, holder: u32) {
        let is_long = self.started_at.elapsed() >= LOCK_WAIT_REPORT_DELAY.min(self.limit / 2);
        if is_long
            && !std::mem::replace(&mut self.is_reported, true)
            && let Some(report) = LOCK_WAIT_REPORT.get()
        {
            report(path, (holder != 0).then_some(holder), self.limit);
        }
    }
}

/// Kind of an open disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Device,
}

/// An open, locked disk and its properties.
pub(super) struct OpenedDisk {
    pub(super) file: File,
    pub(super) kind: Kind,
    /// It is a file of tmpfs.
    pub(super) is_in_memory: bool,
    /// Number of the device, or of the device of the file's file system.
    pub(super) device: u64,
    /// Identities of the disk, the current form first.
    pub(super) identities: Vec<String>,
    /// True if the identity lies in the storage itself.
    pub(super) is_unique: bool,
    /// Identifies this attachment of a device among all attachments.
    pub(super) instance: Option<String>,
    pub(super) open_warning: Option<String>,
    pub(super) geometry: Geometry,
    /// Prevents overlapping disks from being opened.
    pub(super) claim: Claim,
}

/// Maps an error of the kernel to an error of a disk.
pub(super) fn disk_error(error: &io::Error) -> DiskError {
    match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => DiskError::NoSpace,
        Some(libc::ENODEV | libc::ENXIO | libc::ESHUTDOWN | libc::ENOTCONN) => DiskError::Gone,
        Some(libc::EROFS | libc::EPERM | libc::EBADF) => DiskError::ReadOnly,
        Some(libc::EOPNOTSUPP) => DiskError::Unsupported,
        _ => DiskError::Io(error.to_string()),
    }
}

/// Opens the disk described by `spec`, or fails if another holder has it, whose process is stored in `holder` if it is
/// known. Changes nothing once `call` is abandoned.
pub(super) fn try_open(spec: &DiskOpen, call: &CallState, holder: &AtomicU32) -> DiskResult<OpenedDisk> {
    let path = &spec.path;
    let open_error = |text: String| DiskError::Open(format!("{}: {text}", path.display()));
    if let Some(bytes) = spec.create_bytes {
        create(path, bytes, call)
            .map_err(|error| open_error(format!("cannot create it with {bytes} bytes ({error})")))?;
    }
    let (file, open_warning) = match open_direct(path, spec.read_only) {
        Ok(opened) => opened,
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => return Err(busy(path)),
        Err(error) => return Err(open_error(open_error_text(&error))),
    };
    let meta = file.metadata().map_err(|error| open_error(error.to_string()))?;
    let kind = match meta.file_type() {
        kind if kind.is_file() => Kind::File,
        kind if kind.is_block_device() => Kind::Device,
        _ => return Err(open_error("is neither a regular file nor a block device".into())),
    };
    let device = match kind {
        Kind::File => meta.dev(),
        Kind::Device => meta.rdev(),
    };
    let claim = claim(path, StorageFootprint::of(&file), spec.read_only)?;
    lock(&file, spec, holder)?;
    let stat = statx(&file).map_err(|error| open_error(error.to_string()))?;
    let size_bytes = size_of_file(&file, kind).map_err(|error| open_error(error.to_string()))?;
    let sysfs = SysfsDevice::of(match kind {
        Kind::File => (stat.stx_dev_major, stat.stx_dev_minor),
        Kind::Device => (stat.stx_rdev_major, stat.stx_rdev_minor),
    });
    let logical_block = match kind {
        Kind::Device => ioctl_u32(&file, libc::BLKSSZGET).map_err(|error| open_error(error.to_string()))?,
        // The file system's alignment of direct I/O; 0 if unknown.
        Kind::File if open_warning.is_none() => stat.stx_dio_offset_align.max(SECTOR_BYTES as u32),
        Kind::File => SECTOR_BYTES as u32,
    };
    if !matches!(logical_block, 512 | 4096) {
        return Err(open_error(format!(
            "has logical blocks of {logical_block} bytes; only 512 and 4096 are supported"
        )));
    }
    if size_bytes == 0 {
        return Err(open_error(match kind {
            Kind::File => "is empty; specify a `size` for the volume to have it created".into(),
            Kind::Device => "is a device of 0 bytes: it has no medium, or nothing is attached to it".into(),
        }));
    }
    if !size_bytes.is_multiple_of(u64::from(logical_block)) {
        let padded = size_bytes.next_multiple_of(u64::from(logical_block));
        return Err(open_error(format!(
            "has {size_bytes} bytes, which is no multiple of {logical_block}; `truncate -s {padded}` would make it one"
        )));
    }
    let physical_block = match kind {
        Kind::Device => ioctl_u32(&file, libc::BLKPBSZGET).ok(),
        Kind::File => sysfs.queue_attribute("physical_block_size"),
    };
    let geometry = Geometry {
        size_bytes,
        logical_block,
        physical_block: physical_block.unwrap_or(logical_block).max(logical_block),
        stripe_bytes: sysfs.queue_attribute("optimal_io_size").unwrap_or(0),
        queue_depth: sysfs.queue_attribute("nr_requests").unwrap_or(DEFAULT_QUEUE_DEPTH).clamp(1, 256),
        fast_zero: match kind {
            Kind::Device => sysfs.queue_attribute("write_zeroes_max_bytes").is_some_and(|max_bytes| max_bytes > 0),
            Kind::File => supports_zero_range(&file),
        },
    };
    let identities = match kind {
        Kind::File => file_identities(&file, &stat),
        Kind::Device => vec![sysfs.identity(stat.stx_rdev_major, stat.stx_rdev_minor)],
    };
    let (is_unique, instance) = match kind {
        // Without a birth time, the inode number may since belong to another file.
        Kind::File => (stat.stx_mask & libc::STATX_BTIME != 0, None),
        Kind::Device => (sysfs.name().is_some(), sysfs.instance()),
    };
    let is_in_memory = kind == Kind::File && statfs(&file).is_some_and(|stat| libc::TMPFS_MAGIC == stat.f_type as _);
    Ok(OpenedDisk { file, kind, is_in_memory, device, identities, is_unique, instance, open_warning, geometry, claim })
}

/// The error for a device that is open exclusively: in this process, which may wait for its last requests, or else
/// mounted or opened by another program.
fn busy(path: &Path) -> DiskError {
    let holder = std::fs::metadata(path).ok().and_then(|meta| find_overlapping(&StorageFootprint::of_device(&meta)));
    match holder {
        Some((other, on)) => DiskError::Shared { path: path.to_owned(), other, on },
        None => DiskError::Busy(format!("{} is mounted or claimed by another program", path.display())),
    }
}

/// Creates a sparse file. An empty file counts as missing: a crash between creation and sizing leaves one.
fn create(path: &Path, bytes: u64, call: &CallState) -> io::Result<()> {
    match std::fs::metadata(path) {
        Ok(meta) if !meta.is_file() || meta.len() > 0 => return Ok(()),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    if call.is_abandoned() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
    // The opening may have taken long: a file may be in its place by now.
    if call.is_abandoned() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    if file.metadata()?.len() > 0 {
        return Ok(());
    }
    file.set_len(bytes)?;
    file.sync_all()?;
    // The directory entry must survive a power cut too.
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

/// Opens with direct I/O, or without it and with a warning if the file system does not support it.
fn open_direct(path: &Path, read_only: bool) -> io::Result<(File, Option<String>)> {
    // O_EXCL without O_CREAT opens a block device exclusively; it has no effect on a file.
    let exclusive = if std::fs::metadata(path)?.file_type().is_block_device() { libc::O_EXCL } else { 0 };
    let open = |flags: i32| OpenOptions::new().read(true).write(!read_only).custom_flags(flags | exclusive).open(path);
    match open(libc::O_DIRECT) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            let open_warning = format!(
                "{}: its filesystem has no direct I/O; it is read and written through the page cache, and flushed \
                 with fdatasync",
                path.display()
            );
            open(0).map(|file| (file, Some(open_warning)))
        }
        other => other.map(|file| (file, None)),
    }
}

fn open_error_text(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOENT) => "does not exist".into(),
        Some(libc::EACCES | libc::EPERM) => {
            format!("cannot be opened ({error}); give the daemon's user the right to read and write it")
        }
        Some(libc::EROFS) => format!("cannot be opened for writing ({error}); set `read_only = true` or remount it"),
        _ => format!("cannot be opened ({error})"),
    }
}

/// Locks the open file description, so that the lock lives as long as its last user, including I/O in flight of a
/// killed process.
fn lock(file: &File, spec: &DiskOpen, holder: &AtomicU32) -> DiskResult<()> {
    let mode = if spec.read_only { libc::LOCK_SH } else { libc::LOCK_EX };
    loop {
        // SAFETY: a system call on an open descriptor.
        if unsafe { libc::flock(file.as_raw_fd(), mode | libc::LOCK_NB) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::Interrupted => {}
            io::ErrorKind::WouldBlock => {
                let lock_holder = holder_of(file);
                holder.store(lock_holder.unwrap_or_default(), Ordering::Relaxed);
                let holder = lock_holder.map_or("its pid is not known".into(), |pid| format!("pid {pid}"));
                return Err(DiskError::Busy(format!("{} is locked, {holder}", spec.path.display())));
            }
            _ => return Err(DiskError::Open(format!("{}: cannot be locked ({error})", spec.path.display()))),
        }
    }
}

fn holder_of(file: &File) -> Option<u32> {
    file.metadata().ok().and_then(|meta| lock_holder(&meta))
}

/// The process that holds a `flock` on the file, if the kernel's list names one.
fn lock_holder(meta: &std::fs::Metadata) -> Option<u32> {
    let (major, minor) = (libc::major(meta.dev()), libc::minor(meta.dev()));
    let file = format!("{major:02x}:{minor:02x}:{}", meta.ino());
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    // "1: FLOCK  ADVISORY  WRITE 712 fd:01:1311 0 EOF"; a waiter has an arrow after the number.
    let fields = locks.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut held = fields.filter(|fields| fields.get(1) == Some(&"FLOCK") && fields.get(5) == Some(&file.as_str()));
    held.find_map(|fields| fields[4].parse().ok().filter(|pid| *pid > 0))
}

/// Size of a file or device in bytes.
pub(super) fn size_of_file(file: &File, kind: Kind) -> io::Result<u64> {
    if kind == Kind::File {
        return file.metadata().map(|meta| meta.len());
    }
    const BLKGETSIZE64: libc::Ioctl = 0x8008_1272_u32 as libc::Ioctl;
    let mut bytes = 0u64;
    // SAFETY: this request writes one u64.
    let status = unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64, &raw mut bytes) };
    if status == 0 { Ok(bytes) } else { Err(io::Error::last_os_error()) }
}

/// Runs an ioctl that writes one 32-bit number.
fn ioctl_u32(file: &File, request: libc::Ioctl) -> io::Result<u32> {
    let mut number = 0u32;
    // SAFETY: both callers' requests (BLKSSZGET, BLKPBSZGET) write one 32-bit number.
    let status = unsafe { libc::ioctl(file.as_raw_fd(), request, &raw mut number) };
    if status == 0 { Ok(number) } else { Err(io::Error::last_os_error()) }
}

fn statx(file: &File) -> io::Result<libc::statx> {
    let mut stat = MaybeUninit::<libc::statx>::zeroed();
    let mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME | libc::STATX_DIOALIGN;
    let empty = CString::default();
    // SAFETY: path and result are valid; an empty path with AT_EMPTY_PATH means the descriptor itself.
    let status = unsafe { libc::statx(file.as_raw_fd(), empty.as_ptr(), libc::AT_EMPTY_PATH, mask, stat.as_mut_ptr()) };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the memory is zeroed, and the kernel has filled it.
    Ok(unsafe { stat.assume_init() })
}

/// Free bytes of the file system for this user.
pub(super) fn free_bytes(file: &File) -> Option<u64> {
    statfs(file).map(|stat| stat.f_bavail.saturating_mul(stat.f_bsize as u64))
}

pub(super) fn statfs(file: &File) -> Option<libc::statfs> {
    let mut stat = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the result is valid for writing; on success the kernel has filled it.
    unsafe { (libc::fstatfs(file.as_raw_fd(), stat.as_mut_ptr()) == 0).then(|| stat.assume_init()) }
}

/// True for file systems that can mark a range as zero without writing it.
fn supports_zero_range(file: &File) -> bool {
    const F2FS: i64 = 0xf2f5_2010;
    // The type is signed in one C library and unsigned in another.
    statfs(file).is_some_and(|stat| {
        [libc::EXT4_SUPER_MAGIC, libc::XFS_SUPER_MAGIC, libc::BTRFS_SUPER_MAGIC, F2FS].contains(&(stat.f_type as _))
    })
}

/// A block device's directory in sysfs.
struct SysfsDevice {
    directory: PathBuf,
}

impl SysfsDevice {
    fn of((major, minor): (u32, u32)) -> SysfsDevice {
        SysfsDevice { directory: PathBuf::from(format!("/sys/dev/block/{major}:{minor}")) }
    }

    /// An attribute of the device, or else of the disk that contains the partition.
    fn attribute(&self, name: &str) -> Option<String> {
        let read = |directory: &Path| std::fs::read_to_string(directory.join(name)).ok();
        let text = read(&self.directory).or_else(|| read(&self.directory.join("..")))?;
        let text = text.trim().to_owned();
        (!text.is_empty()).then_some(text)
    }

    /// A numeric attribute of the request queue.
    fn queue_attribute(&self, name: &str) -> Option<u32> {
        let number: u64 = self.attribute(&format!("queue/{name}"))?.parse().ok()?;
        Some(u32::try_from(number).unwrap_or(u32::MAX))
    }

    /// A persistent name from the hardware or device mapper, or else the device number.
    fn identity(&self, major: u32, minor: u32) -> String {
        let partition = self.attribute("partition").map(|number| format!("-part{number}")).unwrap_or_default();
        match self.name() {
            Some(name) => format!("device:{name}{partition}"),
            None => format!("device:{major}:{minor}"),
        }
    }

    /// The device's persistent name, from the hardware or device mapper.
    fn name(&self) -> Option<String> {
        let names = ["wwid", "device/wwid", "dm/uuid", "md/uuid", "serial", "device/serial"];
        names.iter().find_map(|name| self.attribute(name))
    }

    /// Boot and disk sequence number: the kernel numbers disks as they are attached, starting anew with each boot.
    fn instance(&self) -> Option<String> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let partition = self.attribute("partition").unwrap_or_default();
        Some(format!("{}:{}:{partition}", boot.trim(), self.attribute("diskseq")?))
    }
}
