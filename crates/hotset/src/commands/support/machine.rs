//! Data from the kernel about the machine, the daemon's process and its limits, and the devices under volumes and
//! flash.

use std::fs::{self, File};
use std::io::Read;
use std::os::linux::fs::MetadataExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::archive::Archive;

/// Maximum number of bytes that are read from one file.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Maximum number of devices and files that are examined.
const DEVICES_MAX: usize = 64;
/// Time-out for examining all devices together.
const DEVICES_TIMEOUT: Duration = Duration::from_secs(15);

/// Files about the machine.
const MACHINE_FILES: [&str; 9] = [
    "/proc/version",
    "/etc/os-release",
    "/proc/uptime",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/diskstats",
    "/proc/pressure/io",
    "/proc/sys/kernel/io_uring_disabled",
    "/proc/sys/fs/aio-max-nr",
];
/// Files about the daemon's process.
const PROCESS_FILES: [&str; 5] = ["limits", "status", "io", "cgroup", "schedstat"];
/// Attributes of a block device in sysfs. For a partition, attributes in a subdirectory come from its disk.
const DEVICE_ATTRIBUTES: [&str; 18] = [
    "size",
    "ro",
    "stat",
    "queue/rotational",
    "queue/scheduler",
    "queue/logical_block_size",
    "queue/physical_block_size",
    "queue/write_cache",
    "queue/nr_requests",
    "device/vendor",
    "device/model",
    "device/rev",
    "device/firmware_rev",
    "device/state",
    "device/ioerr_cnt",
    "device/iotmo_cnt",
    "device/numa_node",
    "dm/name",
];

/// Reads the start of a file as text.
fn read_text(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).trim().to_owned())
}

/// Adds the data about the machine and the daemon's process.
pub fn add(daemon_pid: Option<u32>, archive: &mut Archive) {
    let mut files: Vec<PathBuf> = MACHINE_FILES.iter().map(PathBuf::from).collect();
    match daemon_pid {
        Some(pid) => files.extend(PROCESS_FILES.iter().map(|name| PathBuf::from(format!("/proc/{pid}/{name}")))),
        None => archive.add_missing("limits of the daemon's process", "no daemon answers"),
    }
    let mut text = String::new();
    for file in files {
        match read_text(&file) {
            Some(value) => text += &format!("==> {}\n{value}\n\n", file.display()),
            None => archive.add_missing(&file.display().to_string(), "cannot be read"),
        }
    }
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    let models = read_text(Path::new("/proc/cpuinfo")).unwrap_or_default();
    let model = models.lines().find(|line| line.starts_with("model name")).unwrap_or("model name: unknown");
    text += &format!("==> processors\n{processors} available\n{model}\n");
    archive.add("system.txt", text);
}

/// Adds the data about these devices, and about the devices under these files. A hung file system blocks only a thread
/// of its own.
pub fn add_devices(paths: &[PathBuf], archive: &mut Archive) {
    if paths.len() > DEVICES_MAX {
        archive.add_missing(
            "devices.json",
            format!("{} devices and files beyond the limit of {DEVICES_MAX}", paths.len() - DEVICES_MAX),
        );
    }
    let (sender, receiver) = mpsc::channel();
    let examined: Vec<PathBuf> = paths.iter().take(DEVICES_MAX).cloned().collect();
    let names: Vec<String> = examined.iter().map(|path| path.display().to_string()).collect();
    // Sending fails if the receiver has timed out, which ends the thread.
    std::thread::spawn(move || examined.iter().try_for_each(|path| sender.send(examine_device(path))));
    let deadline = Instant::now() + DEVICES_TIMEOUT;
    let mut shown = Map::new();
    for name in names {
        match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(device) => shown.insert(name, device),
            Err(_) => {
                archive
                    .add_missing("devices.json", format!("{name} does not answer; it and later devices were skipped"));
                break;
            }
        };
    }
    archive.add_json("devices.json", &shown);
}

/// The attributes of the device at `path`, or of the device under the file at `path`.
fn examine_device(path: &Path) -> Value {
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) => return json!({ "error": error.to_string() }),
    };
    let is_device = metadata.file_type().is_block_device();
    let device_number = if is_device { metadata.st_rdev() } else { metadata.st_dev() };
    let (major, minor) = (rustix::fs::major(device_number), rustix::fs::minor(device_number));
    let sysfs = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let mut shown = Map::new();
    for name in DEVICE_ATTRIBUTES {
        // For a partition, attributes in a subdirectory are in the directory of its disk.
        let value = read_text(&sysfs.join(name))
            .or_else(|| read_text(&sysfs.join("..").join(name)).filter(|_| name.contains('/')));
        shown.extend(value.map(|value| (name.to_owned(), Value::String(value))));
    }
    json!({
        "is_device": is_device, "size_bytes": metadata.len(), "number": format!("{major}:{minor}"), "kernel": shown
    })
}
