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

use super::found::Found;

/// Bytes that are read from one file at most.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Devices and files that are examined at most.
const DEVICES_MAX: usize = 64;
/// Time-out for all of them together.
const DEVICES_PATIENCE: Duration = Duration::from_secs(15);

/// Files about the machine.
const MACHINE: [&str; 9] = [
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
const PROCESS: [&str; 5] = ["limits", "status", "io", "cgroup", "schedstat"];
/// Attributes of a block device in sysfs. For a partition, names with a folder come from its disk.
const DEVICE: [&str; 18] = [
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

fn read(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).trim().to_owned())
}

/// Adds the data about the machine and the process `daemon`.
pub fn add(daemon: Option<u32>, found: &mut Found) {
    let mut files: Vec<PathBuf> = MACHINE.iter().map(PathBuf::from).collect();
    match daemon {
        Some(pid) => files.extend(PROCESS.iter().map(|name| PathBuf::from(format!("/proc/{pid}/{name}")))),
        None => found.miss("the daemon's limits", "no daemon answers"),
    }
    let mut text = String::new();
    for file in files {
        match read(&file) {
            Some(told) => text += &format!("==> {}\n{told}\n\n", file.display()),
            None => found.miss(&file.display().to_string(), "it cannot be read"),
        }
    }
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    let models = read(Path::new("/proc/cpuinfo")).unwrap_or_default();
    let model = models.lines().find(|line| line.starts_with("model name")).unwrap_or("model name: unknown");
    text += &format!("==> processors\n{processors} may be used\n{model}\n");
    found.add("system.txt", text);
}

/// Adds the data about these devices, and about the devices under these files. A hung file system blocks only a thread
/// of its own.
pub fn add_devices(paths: &[PathBuf], found: &mut Found) {
    if paths.len() > DEVICES_MAX {
        found.miss("devices.json", format!("{} more devices and files than are looked at", paths.len() - DEVICES_MAX));
    }
    let (sender, told) = mpsc::channel();
    let looked_at: Vec<PathBuf> = paths.iter().take(DEVICES_MAX).cloned().collect();
    let names: Vec<String> = looked_at.iter().map(|path| path.display().to_string()).collect();
    // Sending fails if the receiver has timed out, which ends the thread.
    std::thread::spawn(move || looked_at.iter().try_for_each(|path| sender.send(device(path))));
    let until = Instant::now() + DEVICES_PATIENCE;
    let mut shown = Map::new();
    for name in names {
        match told.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(device) => shown.insert(name, device),
            Err(_) => {
                found
                    .miss("devices.json", format!("{name} does not answer, and what comes after it was not looked at"));
                break;
            }
        };
    }
    found.add_json("devices.json", &shown);
}

fn device(path: &Path) -> Value {
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) => return json!({ "error": error.to_string() }),
    };
    let is_device = metadata.file_type().is_block_device();
    let number = if is_device { metadata.st_rdev() } else { metadata.st_dev() };
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let kernels = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let mut shown = Map::new();
    for name in DEVICE {
        // A partition has the other attributes in its disk's folder.
        let told =
            read(&kernels.join(name)).or_else(|| read(&kernels.join("..").join(name)).filter(|_| name.contains('/')));
        shown.extend(told.map(|told| (name.to_owned(), Value::String(told))));
    }
    json!({
        "is_device": is_device, "size_bytes": metadata.len(), "number": format!("{major}:{minor}"), "kernel": shown
    })
}
