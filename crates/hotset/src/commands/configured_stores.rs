//! Flash stores on the configured devices, read without a daemon. Nothing is written, and no file is created.

use std::fs::Metadata;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use engine::VolumeId;
use flash::{DeviceContent, MemberDisk, StoreError};
use seam::DiskOpen;
use seam::real::{PATH_TIMEOUT, PathCall, PathHung, RealCoreSpec, RealDisk, RealSeam, run_core};
use state::{State, show_uuid, show_volume_id};

use terminal::Failure;

/// Memory for reading the devices.
const POOL_BYTES: usize = 16 << 20;
/// Time for reading all devices.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// Time in milliseconds for which a locked device is waited for.
const LOCK_WAIT_MS: u64 = 1_000;

/// A device that carries a flash store, or may carry one: its path with the store, or with the reason why that is
/// unknown, as text.
pub fn find_store(devices: &[PathBuf]) -> Result<Option<String>, Failure> {
    let devices = present(devices);
    if devices.is_empty() {
        return Ok(None);
    }
    on_core(async move |seam| {
        for path in devices {
            let shown = path.display();
            let disk = match open(&seam, &path).await {
                Ok(disk) => disk,
                Err(error) => return Some(format!("flash device {shown} cannot be read ({error})")),
            };
            match flash::read_device_content(&seam, &disk).await {
                DeviceContent::NoStore => {}
                DeviceContent::Store(store, _) => {
                    return Some(format!("flash device {shown} belongs to flash store {}", show_uuid(&store)));
                }
                DeviceContent::Unknown(reason) => return Some(format!("flash device {shown}: {reason}")),
            }
        }
        None
    })
}

/// Data on the devices, in a store that `state` marks as one with data of unknown volumes, that belongs to no recorded
/// volume and was not given up, as text; `None` without such data.
pub fn find_unclaimed_data(devices: &[PathBuf], state: &State) -> Result<Option<String>, Failure> {
    let (devices, state) = (present(devices), state.clone());
    if devices.is_empty() || state.unclaimed.is_empty() {
        return Ok(None);
    }
    on_core(async move |seam| {
        let mut disks = Vec::new();
        for path in devices {
            match open(&seam, &path).await {
                Ok(disk) => disks.push(disk),
                Err(error) => return Some(format!("flash device {} cannot be read ({error})", path.display())),
            }
        }
        let (_, inspection) = flash::inspect(&seam, &disks).await;
        let inspection = match inspection {
            Ok(inspection) => inspection,
            // Devices without a store hold no data.
            Err(StoreError::NoStore { .. }) => return None,
            Err(error) => return Some(format!("the flash devices cannot be read ({error})")),
        };
        let store = show_uuid(&inspection.store);
        let is_given_up = |volume_id: VolumeId| {
            let record = state.store(&store);
            record.is_some_and(|record| record.given_up.contains(&show_volume_id(volume_id)))
        };
        let is_unknown = |volume_id: VolumeId| {
            !state.volumes.iter().any(|volume| volume.volume_id == volume_id) && !is_given_up(volume_id)
        };
        let is_unclaimed = state.unclaimed.contains(&store);
        let has_unknown = inspection.dirty_blocks.iter().any(|record| is_unknown(record.address.volume_id));
        (is_unclaimed && (has_unknown || !inspection.lost_batches.is_empty())).then(|| unclaimed_data(&store))
    })
}

/// The text about a store with data of unknown volumes.
pub fn unclaimed_data(store: &str) -> String {
    format!("flash store {store} holds dirty data of volumes that the state directory does not know")
}

/// The devices that exist, including files with content that cannot be read. An empty file holds nothing.
fn present(devices: &[PathBuf]) -> Vec<PathBuf> {
    let has_content = |meta: io::Result<Metadata>| match meta {
        Ok(meta) => !meta.is_file() || meta.len() > 0,
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    };
    // A path that does not answer may be a device.
    devices.iter().filter(|path| look_up(path, has_content).unwrap_or(true)).cloned().collect()
}

/// The devices that do not exist.
pub fn absent(devices: &[PathBuf]) -> impl Iterator<Item = &PathBuf> {
    let is_absent = |meta: io::Result<Metadata>| meta.is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    devices.iter().filter(move |path| look_up(path, is_absent).unwrap_or(false))
}

/// Applies `decide` to the metadata of a path; an error if the path does not answer.
fn look_up(path: &Path, decide: fn(io::Result<Metadata>) -> bool) -> Result<bool, PathHung> {
    let looked_up = path.to_owned();
    PathCall::start(path, move |_| decide(std::fs::metadata(&looked_up))).wait(PATH_TIMEOUT)
}

async fn open(seam: &RealSeam, path: &Path) -> seam::DiskResult<MemberDisk<RealSeam>> {
    let open = DiskOpen { path: path.to_owned(), create_bytes: None, read_only: true, lock_wait_ms: LOCK_WAIT_MS };
    RealDisk::open_within(seam, &open, PATH_TIMEOUT).await.map(MemberDisk::Local)
}

/// Reads on a thread of its own, because a device may open and then not answer.
fn on_core<F>(read: impl FnOnce(RealSeam) -> F + Send + 'static) -> Result<Option<String>, Failure>
where
    F: Future<Output = Option<String>> + 'static,
{
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        // The receiver is gone after the time-out.
        let _ = sender.send(run_core(RealCoreSpec::new(POOL_BYTES), read));
    });
    match receiver.recv_timeout(READ_TIMEOUT) {
        Ok(read) => read.map_err(|error| Failure::failed(error.to_string())),
        Err(_) => {
            let text = "a configured flash device does not answer: it is unknown which volumes have dirty data there";
            Err(Failure::failed(text))
        }
    }
}
