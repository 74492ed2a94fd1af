//! `hotset flash check` and `rescue`: the content of flash devices, without a daemon and without its state directory.
//! Nothing is written to the devices.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use engine::VolumeId;
use flash::{DeviceFindings, Inspection, MemberDisk, MemberState, RecoveredContent, Role, StoreError};
use seam::real::{RealCoreSpec, RealSeam, run_core};
use seam::{BLOCK_BYTES, Block, DiskOpen, Seam};
use serde::Serialize;

use terminal::{Failure, print_json};
use units::{show_bytes, show_counted};

/// Memory for reading the devices.
const POOL_BYTES: usize = 16 << 20;

/// Explanation of the dirty data, which a stop or `volume show` counts otherwise.
const DESTAGED_NOTE: &str = "dirty: all blocks that the next start recovers, also those that were destaged lately and \
                             whose space the log has not reused; `hotset stop` and `volume show` do not count these";

/// One device.
#[derive(Clone, Debug, Serialize)]
struct DeviceReport {
    /// Path of the device.
    path: PathBuf,
    /// Identity of its store, 32 hexadecimal digits; absent if it holds none.
    store: Option<String>,
    /// Number of the device in the store.
    number: Option<u32>,
    /// `in-service`, `lost`, `removed` or `resyncing`, from its superblock.
    state: Option<&'static str>,
    /// `log` or `pages`.
    role: Option<&'static str>,
    /// The generation of the membership in its superblock.
    generation: Option<u64>,
    /// The error of this device.
    problem: Option<String>,
}

/// A run of blocks: the first, and their number.
type Run = (u64, u64);

/// The dirty data of one volume.
#[derive(Clone, Debug, Default, Serialize)]
struct VolumeReport {
    /// The volume ID, 16 hexadecimal digits.
    #[serde(rename = "incarnation")]
    volume_id: String,
    /// File to which its data was written; absent for a check.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<PathBuf>,
    /// Bytes of data.
    dirty_bytes: u64,
    /// Runs of blocks with content.
    present: Vec<Run>,
    /// Runs of blocks that read as zeroes.
    zeroes: Vec<Run>,
    /// Runs of blocks without an intact copy.
    lost: Vec<Run>,
}

/// The content of the devices.
#[derive(Clone, Debug, Serialize)]
struct Report {
    /// True if nothing is missing or damaged and all copies exist.
    whole: bool,
    /// Identity of the store.
    store: Option<String>,
    /// Bytes of a block.
    block_bytes: usize,
    /// The devices.
    devices: Vec<DeviceReport>,
    /// Numbers of log devices that were in service and are not among the given ones.
    missing: Vec<u32>,
    /// The error that prevents opening the store in this state.
    problem: Option<String>,
    /// Batches whose header is on no device, from and to, by sequence. Their records are unknown.
    lost_batches: Vec<(u64, u64)>,
    /// The dirty data by volume.
    volumes: Vec<VolumeReport>,
}

/// `flash check`: shows the content of the devices; fails if anything is missing or damaged.
pub fn check(paths: &[PathBuf], json: bool) -> Result<(), Failure> {
    let report = inspect(paths.to_vec(), None)?;
    print_report(&report, json)?;
    match report.whole {
        true => Ok(()),
        false => Err(Failure::failed("the store is damaged or incomplete")),
    }
}

/// `flash rescue`: writes each volume's dirty data to `to.VOLUME_ID`, and the list of its ranges to `to.json`.
pub fn rescue(paths: &[PathBuf], to: &Path, json: bool) -> Result<(), Failure> {
    let report = inspect(paths.to_vec(), Some(to.to_owned()))?;
    let list = with_suffix(to, "json");
    let text = serde_json::to_vec_pretty(&report).map_err(|error| Failure::failed(error.to_string()))?;
    let written = create_file(&list).and_then(|file| file.write_all_at(&text, 0).and_then(|()| file.sync_all()));
    written.map_err(|error| Failure::failed(format!("{}: {error}", list.display())))?;
    print_report(&report, json)?;
    if !json {
        println!("list of ranges: {}", list.display());
    }
    let has_lost_data = report.volumes.iter().any(|volume| !volume.lost.is_empty()) || !report.lost_batches.is_empty();
    match has_lost_data {
        true => Err(Failure::failed("some data could not be rescued; the lost ranges are listed")),
        false => Ok(()),
    }
}

fn with_suffix(to: &Path, suffix: &str) -> PathBuf {
    let mut name = to.as_os_str().to_owned();
    name.push(format!(".{suffix}"));
    name.into()
}

/// Creates a file. A rescue never overwrites a file.
fn create_file(path: &Path) -> std::io::Result<File> {
    File::options().write(true).create_new(true).open(path)
}

fn inspect(paths: Vec<PathBuf>, to: Option<PathBuf>) -> Result<Report, Failure> {
    let result = run_core(RealCoreSpec::new(POOL_BYTES), |seam| inspect_on_core(seam, paths, to));
    result.map_err(|error| Failure::failed(error.to_string()))?.map_err(Failure::failed)
}

async fn inspect_on_core(seam: RealSeam, paths: Vec<PathBuf>, to: Option<PathBuf>) -> Result<Report, String> {
    let (mut disks, mut opened, mut unopened) = (Vec::new(), Vec::new(), Vec::new());
    for path in paths {
        let open = DiskOpen { path: path.clone(), create_bytes: None, read_only: true, lock_wait_ms: 1_000 };
        match seam.open_disk(&open).await {
            Ok(disk) => {
                disks.push(MemberDisk::Local(disk));
                opened.push(path);
            }
            Err(error) => unopened.push(DeviceReport { problem: Some(error.to_string()), ..empty_report(path) }),
        }
    }
    let (devices, inspection) = flash::inspect(&seam, &disks).await;
    let mut reports: Vec<_> = devices.iter().zip(&opened).map(|(device, path)| device_report(device, path)).collect();
    let has_bad_device = !unopened.is_empty() || reports.iter().any(|report| report.problem.is_some());
    reports.extend(unopened);
    let mut report = Report {
        whole: false,
        store: None,
        block_bytes: BLOCK_BYTES,
        devices: reports,
        missing: Vec::new(),
        problem: None,
        lost_batches: Vec::new(),
        volumes: Vec::new(),
    };
    match inspection {
        Ok(inspection) => {
            report.store = Some(hex(&inspection.store));
            report.missing = inspection.missing_members.iter().map(|member| member.0).collect();
            report.problem = inspection.problem.as_ref().map(|error| with_paths(error.to_string(), &devices, &opened));
            report.lost_batches = inspection.lost_batches.iter().map(|range| (range.start.0, range.end.0)).collect();
            report.volumes = read_dirty_data(&inspection, to.as_deref()).await?;
            let lost = report.volumes.iter().any(|volume| !volume.lost.is_empty());
            report.whole = !has_bad_device && !lost && report.problem.is_none() && report.lost_batches.is_empty();
        }
        Err(StoreError::DeviceCount(0)) => report.problem = Some("no device can be read".to_owned()),
        Err(error) => report.problem = Some(with_paths(error.to_string(), &devices, &opened)),
    }
    Ok(report)
}

/// `text` with the path of each device in place of its identity.
pub fn with_paths(text: String, devices: &[DeviceFindings], paths: &[PathBuf]) -> String {
    let named = devices.iter().zip(paths);
    named.fold(text, |text, (device, path)| text.replace(&device.device, &path.display().to_string()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn empty_report(path: PathBuf) -> DeviceReport {
    DeviceReport { path, store: None, number: None, state: None, role: None, generation: None, problem: None }
}

fn device_report(device: &DeviceFindings, path: &Path) -> DeviceReport {
    match &device.superblock {
        Err(reason) => DeviceReport { problem: Some(reason.clone()), ..empty_report(path.to_owned()) },
        Ok(superblock) => DeviceReport {
            store: Some(hex(&superblock.store)),
            number: Some(superblock.member.0),
            state: Some(match superblock.state {
                MemberState::InService => "in-service",
                MemberState::Lost => "lost",
                MemberState::Vacant => "removed",
                MemberState::Resyncing => "resyncing",
            }),
            role: Some(match superblock.role {
                Role::Log => "log",
                Role::Pages => "pages",
            }),
            generation: Some(superblock.generation.0),
            ..empty_report(path.to_owned())
        },
    }
}

/// Reads all dirty data, and writes it to files if `to` is given.
async fn read_dirty_data(inspection: &Inspection<RealSeam>, to: Option<&Path>) -> Result<Vec<VolumeReport>, String> {
    let mut volumes: BTreeMap<VolumeId, (VolumeReport, Option<File>)> = BTreeMap::new();
    let mut dirty: Vec<_> = inspection.dirty_blocks.iter().collect();
    dirty.sort_by_key(|record| record.address);
    let mut bytes = vec![0; BLOCK_BYTES];
    for record in dirty {
        let volume_id = record.address.volume_id;
        if let std::collections::btree_map::Entry::Vacant(entry) = volumes.entry(volume_id) {
            let name = format!("{volume_id:016x}");
            let path = to.map(|to| with_suffix(to, &name));
            let file =
                path.as_deref().map(|path| create_file(path).map_err(|error| format!("{}: {error}", path.display())));
            let report = VolumeReport { volume_id: name, file: path, ..VolumeReport::default() };
            entry.insert((report, file.transpose()?));
        }
        let (report, file) = volumes.get_mut(&volume_id).expect("the entry was just inserted");
        let block = record.address.block;
        match record.content {
            RecoveredContent::Zero { blocks, .. } => {
                extend_runs(&mut report.zeroes, block.0, u64::from(blocks));
                grow(file.as_ref(), block.0 + u64::from(blocks)).map_err(|error| error.to_string())?;
            }
            RecoveredContent::Data => match inspection.read(record).await {
                Some(content) => {
                    content.read_bytes(0, &mut bytes);
                    let written = file.as_ref().map(|file| file.write_all_at(&bytes, block.offset()));
                    written.transpose().map_err(|error| format!("volume {volume_id:016x}: {error}"))?;
                    report.dirty_bytes += BLOCK_BYTES as u64;
                    extend_runs(&mut report.present, block.0, 1);
                }
                None => extend_runs(&mut report.lost, block.0, 1),
            },
        }
    }
    for (report, file) in volumes.values() {
        let synced = file.as_ref().map(File::sync_all).transpose();
        synced.map_err(|error| format!("volume {}: {error}", report.volume_id))?;
    }
    Ok(volumes.into_values().map(|(report, _)| report).collect())
}

/// Extends the file to at least `blocks` blocks. Unwritten blocks read as zeroes.
fn grow(file: Option<&File>, blocks: u64) -> std::io::Result<()> {
    let Some(file) = file else { return Ok(()) };
    let bytes = blocks * BLOCK_BYTES as u64;
    match file.metadata()?.len() < bytes {
        true => file.set_len(bytes),
        false => Ok(()),
    }
}

/// Appends `blocks` blocks from `block` on to the runs, which are in order.
fn extend_runs(runs: &mut Vec<Run>, block: u64, blocks: u64) {
    match runs.last_mut() {
        Some((first, count)) if *first + *count == block => *count += blocks,
        _ => runs.push((block, blocks)),
    }
}

fn print_report(report: &Report, json: bool) -> Result<(), Failure> {
    if json {
        return print_json(report);
    }
    for device in &report.devices {
        let path = device.path.display();
        match (&device.problem, device.number) {
            (Some(problem), _) => println!("{path}: {problem}"),
            (None, number) => println!(
                "{path}: device {} of store {}, {} ({}), generation {}",
                number.unwrap_or_default(),
                device.store.as_deref().unwrap_or_default(),
                device.state.unwrap_or_default(),
                device.role.unwrap_or_default(),
                device.generation.unwrap_or_default(),
            ),
        }
    }
    report.problem.iter().for_each(|problem| println!("problem: {problem}"));
    for (from, to) in &report.lost_batches {
        println!("lost: batches {from} to {}: their content is unknown", to - 1);
    }
    for volume in &report.volumes {
        let sum = |runs: &[Run]| runs.iter().map(|(_, count)| count).sum::<u64>();
        let to = volume.file.as_ref().map(|file| format!(", in {}", file.display())).unwrap_or_default();
        println!(
            "volume {}: {} dirty, {} of zeroes, {} lost{to}",
            volume.volume_id,
            show_bytes(volume.dirty_bytes),
            show_counted(sum(&volume.zeroes), "block"),
            show_counted(sum(&volume.lost), "block"),
        );
        volume.lost.iter().for_each(|(first, count)| {
            println!("  lost: {} of 4 KiB from block {first} on", show_counted(*count, "block"));
        });
    }
    if report.volumes.iter().any(|volume| volume.dirty_bytes > 0) {
        println!("{DESTAGED_NOTE}");
    }
    if report.whole {
        println!("the store is complete and intact");
    }
    Ok(())
}
