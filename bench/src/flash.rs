//! The flash cache: flushes served by its log, and reads served by its pages.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::awake::AwakeProcessors;
use crate::cells::{Cell, FLUSHED, MISSES};
use crate::fio::{self, Target};
use crate::process::Process;
use crate::report::{Ratio, Section};
use crate::run::{Effort, Measured, measure, median};
use crate::servers::{Content, HOTSET_EXPORT, Kind, Programs, Server, control_socket, daemon};

/// Size of a flash device in bytes.
const DEVICE_BYTES: u64 = 2 << 30;
/// Size of the volume; it fits on flash, and little of it in memory.
const VOLUME_BYTES: u64 = 1 << 30;
/// Memory size in the measurement of reads from flash.
const MEMORY_BYTES: u64 = 48 << 20;
/// Size of a second volume, which is entirely in memory.
const SMALL_BYTES: u64 = 8 << 20;
/// Backing URI of a slow modelled array.
const RAID5: &str = "sim://raid5?disks=5&type=sas15k&size=1GiB";
/// Percentage of reads served by flash or memory at which the volume counts as warm.
const WARM_PERCENT: u64 = 98;
/// Upper limit of warm-up runs.
const WARM_RUNS: u32 = 60;

const FILL: Cell = Cell::new("fill", "write", 1 << 20, 4, 1);
/// Servers of the measurement of flushes.
const FLUSH_SERVERS: [Kind; 4] = [Kind::Mirrored, Kind::Single, Kind::Raid5, Kind::NoServer];

/// Creates a file with content in every block.
pub(crate) fn create_filled(path: PathBuf, bytes: u64) -> io::Result<PathBuf> {
    std::fs::File::create(&path)?.set_len(bytes)?;
    fio::run(&FILL, &Target::File(path.display().to_string()), bytes, 0, None)?;
    Ok(path)
}

/// Measures flushed writes, interleaved with the same load directly on a file in `folder`, where the flash devices are.
/// Logged data is destaged to memory, so that destage does not compete for the same disk.
pub fn flushes(folder: &Path, programs: &Programs, effort: Effort) -> io::Result<Section> {
    let effort = Effort { size_bytes: VOLUME_BYTES, ..effort };
    let direct = create_filled(folder.join("direct.img"), VOLUME_BYTES)?;
    // First writes cost a file system more, so the files are filled beforehand.
    let devices = ["f0", "f1"].map(|name| create_filled(folder.join(name), DEVICE_BYTES));
    let devices = devices.into_iter().collect::<io::Result<Vec<_>>>()?;
    let slow = tempfile::tempdir_in("/dev/shm")?;
    let _awake = AwakeProcessors::start()?;
    let mut measured = Vec::new();
    for cell in &FLUSHED {
        let mut rows: Vec<_> = FLUSH_SERVERS.iter().map(|kind| (*kind, Vec::new())).collect();
        for _ in 0..effort.rounds {
            for (kind, samples) in &mut rows {
                let server = start_flushing(*kind, &devices, &direct, slow.path(), programs)?;
                let servers = [server];
                let round = measure(cell, &servers, Effort { rounds: 1, ..effort }, None)?;
                if matches!(kind, Kind::Mirrored | Kind::Single) {
                    logged_bytes_above(0, &flushing_folder(*kind, slow.path()), programs)?;
                }
                samples.extend(round.rows.into_iter().flat_map(|(_, samples)| samples));
            }
        }
        measured.push(Measured { cell: *cell, rows });
    }
    Ok(Section {
        title: "Writes with flushes, answered by the flash log".into(),
        text: "The daemon with two flash devices (mirrored) and with one, each a file beside the one that fio writes \
               directly, and the daemon \
               on a modelled RAID 5 of five 15k disks without flash. Targets relative to the direct file: mirrored \
               1.0 at 8 clients, 1.5 at 32, 0.9 at \
               depth 32; one copy 1.5 at 8 clients; relative to the RAID 5 at least 20."
            .into(),
        ratios: vec![
            Ratio { name: "mirrored to direct", of: Kind::Mirrored, to: &[Kind::NoServer] },
            Ratio { name: "one copy to direct", of: Kind::Single, to: &[Kind::NoServer] },
            Ratio { name: "mirrored to RAID 5", of: Kind::Mirrored, to: &[Kind::Raid5] },
        ],
        measured,
    })
}

fn start_flushing(
    kind: Kind,
    devices: &[PathBuf],
    direct: &Path,
    slow: &Path,
    programs: &Programs,
) -> io::Result<Server> {
    let copies = match kind {
        Kind::Mirrored => 2,
        Kind::Single => 1,
        Kind::Raid5 => 0,
        kind => return kind.start(&Content::File(direct.to_owned()), slow, programs),
    };
    let folder = flushing_folder(kind, slow);
    std::fs::create_dir_all(&folder)?;
    let backing = if copies == 0 { RAID5.to_owned() } else { create_sparse(folder.join("backing"), VOLUME_BYTES)? };
    for device in &devices[..copies] {
        // Removes the store of another daemon from the device.
        erase_store(device)?;
    }
    let extra_toml = if copies == 0 { String::new() } else { flash_table(&devices[..copies]) };
    // A state directory records its store, so it is recreated.
    let _ = std::fs::remove_dir_all(folder.join("state"));
    start(&folder, 256 << 20, &[(HOTSET_EXPORT, backing)], &extra_toml, programs, kind)
}

fn flushing_folder(kind: Kind, slow: &Path) -> PathBuf {
    slow.join(format!("{kind:?}"))
}

/// The bytes that the flash log of the daemon in `folder` has taken. An error if they are not more than `before`: its
/// flushes then went to the backing, and their figures say nothing about the log.
pub(crate) fn logged_bytes_above(before: u64, folder: &Path, programs: &Programs) -> io::Result<u64> {
    let bytes = volume_counters(folder, programs, ["flash_written_bytes"])?[0];
    if bytes <= before {
        return Err(io::Error::other(format!("the daemon in {} has not logged its flushes", folder.display())));
    }
    Ok(bytes)
}

fn create_sparse(path: PathBuf, bytes: u64) -> io::Result<String> {
    std::fs::File::create(&path)?.set_len(bytes)?;
    Ok(path.display().to_string())
}

/// Zeroes the device's first megabytes, which would hold a store.
pub(crate) fn erase_store(device: &Path) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options().write(true).open(device)?;
    file.write_all_at(&vec![0; 2 << 20], 0)?;
    file.sync_all()
}

/// The configuration of these flash devices.
pub(crate) fn flash_table(devices: &[PathBuf]) -> String {
    let names: Vec<_> = devices.iter().map(|device| format!("\"{}\"", device.display())).collect();
    format!("[flash]\ndevices = [{}]\nallow_single_copy = {}\n", names.join(", "), devices.len() == 1)
}

fn start(
    folder: &Path,
    memory_bytes: u64,
    volumes: &[(&str, String)],
    extra_toml: &str,
    programs: &Programs,
    kind: Kind,
) -> io::Result<Server> {
    let socket = kind.socket(folder);
    let command = daemon(folder, &socket, memory_bytes, volumes, extra_toml, &programs.hotset)?;
    let target = Target::Nbd(uri(HOTSET_EXPORT, &socket));
    Ok(Server { kind, target, process: Some(Process::start(command, &socket)?) })
}

fn uri(export: &str, socket: &Path) -> String {
    format!("nbd+unix:///{export}?socket={}", socket.display())
}

/// Measures reads of a volume on flash, beside qemu-storage-daemon and fio directly on a file in the same folder.
pub fn reads(folder: &Path, programs: &Programs, effort: Effort) -> io::Result<Section> {
    let effort = Effort { size_bytes: VOLUME_BYTES, ..effort };
    let backing = create_filled(folder.join("backing"), VOLUME_BYTES)?;
    let small = create_filled(folder.join("small"), SMALL_BYTES)?;
    let comparison_file = create_filled(folder.join("peer.img"), VOLUME_BYTES)?;
    let devices = ["f0", "f1"].map(|name| create_filled(folder.join(name), DEVICE_BYTES));
    let devices = devices.into_iter().collect::<io::Result<Vec<_>>>()?;
    devices.iter().try_for_each(|device| erase_store(device))?;
    let volumes = [(HOTSET_EXPORT, backing.display().to_string()), ("small", small.display().to_string())];
    let hotset = start(folder, MEMORY_BYTES, &volumes, &flash_table(&devices), programs, Kind::Hotset)?;
    let warm_percent = warm_up(&hotset, folder, programs, effort)?;
    let in_memory = Target::Nbd(uri("small", &Kind::Hotset.socket(folder)));
    fio::run(&Cell::new("fill", "read", 4096, 8, 1), &in_memory, SMALL_BYTES, 0, None)?;
    let _awake = AwakeProcessors::start()?;
    let round_trip = fio::run(&MISSES[0], &in_memory, SMALL_BYTES, effort.seconds, None)?;
    let content = Content::File(comparison_file);
    let servers =
        [hotset, Kind::Qemu.start(&content, folder, programs)?, Kind::NoServer.start(&content, folder, programs)?];
    let measured: Vec<Measured> =
        MISSES.iter().map(|cell| measure(cell, &servers, effort, None)).collect::<io::Result<_>>()?;
    let median_us = |kind| {
        let samples = measured[0].of(kind).expect("the server was measured");
        median(&samples.iter().map(|sample| sample.median_us).collect::<Vec<_>>())
    };
    let bound_us = median_us(Kind::NoServer) + round_trip.median_us + 10.0;
    let mut text = format!(
        "Random reads of a volume of 1 GiB on two flash devices of 2 GiB ({warm_percent} % of reads from flash or \
         memory before the runs), \
         with {} MiB of memory; beside qemu-storage-daemon with io_uring, and fio, on a file in the same folder. The \
         target at depth 32 is at least 1.1 of \
         qemu-storage-daemon.",
        MEMORY_BYTES >> 20
    );
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        " At depth 1 the median is {:.0} µs; the target is at most {bound_us:.0} µs (fio direct {:.0} + a memory hit \
         {:.0} + 10).",
        median_us(Kind::Hotset),
        median_us(Kind::NoServer),
        round_trip.median_us
    );
    Ok(Section {
        title: "Hits on flash".into(),
        text,
        ratios: vec![
            Ratio { name: "to qemu-s-d", of: Kind::Hotset, to: &[Kind::Qemu] },
            Ratio { name: "to fio direct", of: Kind::Hotset, to: &[Kind::NoServer] },
        ],
        measured,
    })
}

/// Reads until the volume is on flash; returns the percentage of the last run's reads that needed no backing.
fn warm_up(server: &Server, folder: &Path, programs: &Programs, effort: Effort) -> io::Result<u64> {
    let mut percent = 0;
    for _ in 0..WARM_RUNS {
        let before = counters(folder, programs)?;
        fio::run(&MISSES[1], &server.target, effort.size_bytes, 2, None)?;
        let after = counters(folder, programs)?;
        let (reads, missed) = (after.0 - before.0, after.1 - before.1);
        percent = 100 * (reads - missed.min(reads)) / reads.max(1);
        if percent >= WARM_PERCENT {
            return Ok(percent);
        }
    }
    Ok(percent)
}

/// Reads so far, and reads that needed the backing.
fn counters(folder: &Path, programs: &Programs) -> io::Result<(u64, u64)> {
    let [reads, misses, partial_hits] = volume_counters(folder, programs, ["reads", "misses", "partial_hits"])?;
    Ok((reads, misses + partial_hits))
}

/// Figures of the volume of the daemon in `folder`.
fn volume_counters<const N: usize>(folder: &Path, programs: &Programs, names: [&str; N]) -> io::Result<[u64; N]> {
    let mut command = Command::new(&programs.hotset);
    command.args(["volume", "show", HOTSET_EXPORT, "--json", "--socket"]).arg(control_socket(folder));
    let output = command.output()?;
    let figures: Value = serde_json::from_slice(&output.stdout)?;
    let mut values = [0; N];
    for (name, value) in names.iter().zip(&mut values) {
        *value = figures[name].as_u64().ok_or_else(|| io::Error::other(format!("no {name} of the volume")))?;
    }
    Ok(values)
}
