//! Clients of a pool while its slices move from one device to another at the rate `medium`.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::cells::Cell;
use crate::fio::{self, Target};
use crate::load::{Load, LoadFigures};
use crate::process::Process;
use crate::report::Section;
use crate::run::{Effort, median};
use crate::servers::{Programs, control_socket, create_pool, daemon};

const POOL: &str = "bench";
/// Size of a device. Each has room for both volumes.
const DEVICE_BYTES: u64 = 3 << 30;
/// The volume that the clients use, and one whose slices only move.
const BUSY: (&str, u64) = ("busy", 256 << 20);
const IDLE: (&str, u64) = ("idle", 2 << 30);
const MEMORY_BYTES: u64 = 64 << 20;
const CLIENTS: usize = 4;
const FILL: Cell = Cell::new("fill", "write", 1 << 20, 4, 1);
/// Part of the highest rate at which the devices have idle time.
const PARTIAL_LOAD: f64 = 0.5;
/// Targets: 99th percentile of the latency and throughput relative to a run without moves, and the longest request.
const P99_RATIO_MAX: f64 = 1.2;
const IOPS_RATIO_MIN: f64 = 0.95;
const LONGEST_MS_MAX: f64 = 20.0;

/// A run without moves, one beside moves, and the bytes that moved.
struct Pair {
    without: LoadFigures,
    beside: LoadFigures,
    moved_bytes: f64,
}

/// A daemon with a pool of two devices.
struct Pool<'a> {
    folder: &'a Path,
    programs: &'a Programs,
    #[expect(dead_code, reason = "stops the daemon when dropped")]
    process: Process,
    /// Number of the device that is drained next.
    next: usize,
}

/// Measures a daemon with a pool of two files in `folder`, which lies on a real disk.
pub fn section(folder: &Path, programs: &Programs, effort: Effort) -> io::Result<Section> {
    let mut pool = Pool::start(folder, programs)?;
    let socket = socket(folder);
    for (volume, bytes) in [BUSY, IDLE] {
        let target = Target::Nbd(format!("nbd+unix:///{volume}?socket={}", socket.display()));
        fio::run(&FILL, &target, bytes, 0, None)?;
    }
    let mut load = Load::connect(&socket, &[BUSY.0.to_owned()], 1, BUSY.1)?;
    let mut clients = Load::connect(&socket, &vec![BUSY.0.to_owned(); CLIENTS], CLIENTS, BUSY.1)?;
    let time = Duration::from_secs(effort.seconds.into());
    // The first run warms up and shows the highest rate.
    let rate = PARTIAL_LOAD * clients.run(time, None)?.iops;
    let mut text = format!(
        "Clients read and write a volume without a cache, 4 KiB each, one request in four a write, while the slices of \
         another volume move between the two devices of its pool at the rate `medium` (a drain that is cancelled after \
         the run), and without moves, interleaved. Targets: p99 at most {P99_RATIO_MAX} times, throughput at least \
         {IOPS_RATIO_MIN}, no request longer than {LONGEST_MS_MAX} ms unless one is without moves.\n\n| | p99 without \
         · beside moves | ratio | requests/s without · beside moves | ratio | longest without · beside | moved \
         |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n"
    );
    for (name, is_single, rate) in
        [("one client", true, None), ("4 clients", false, None), ("4 clients at half of that rate", false, Some(rate))]
    {
        let load = if is_single { &mut load } else { &mut clients };
        let pairs = (0..effort.rounds).map(|_| pool.measure_pair(load, time, rate)).collect::<io::Result<Vec<_>>>()?;
        let median_of = |figure: fn(&Pair) -> f64| median(&pairs.iter().map(figure).collect::<Vec<_>>());
        let longest = |figure: fn(&Pair) -> f64| pairs.iter().map(figure).fold(0.0, f64::max) / 1e3;
        let p99_ratio = median_of(|pair| pair.beside.p99_us / pair.without.p99_us);
        let iops_ratio = median_of(|pair| pair.beside.iops / pair.without.iops);
        eprintln!("{name} beside moves: p99 {p99_ratio:.2}, throughput {iops_ratio:.2}");
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {name} | {:.0} · {:.0} µs | **{p99_ratio:.2}** | {:.0} · {:.0} | **{iops_ratio:.2}** | {:.1} · {:.1} ms \
             | {:.0} MB/s |",
            median_of(|pair| pair.without.p99_us),
            median_of(|pair| pair.beside.p99_us),
            median_of(|pair| pair.without.iops),
            median_of(|pair| pair.beside.iops),
            longest(|pair| pair.without.max_us),
            longest(|pair| pair.beside.max_us),
            median_of(|pair| pair.moved_bytes) / time.as_secs_f64() / 1e6
        );
    }
    let text = text.trim_end().to_owned();
    Ok(Section { title: "While slices of a pool move".into(), text, ratios: Vec::new(), measured: Vec::new() })
}

fn socket(folder: &Path) -> std::path::PathBuf {
    folder.join("pool.sock")
}

/// Makes a device. Its blocks are written, because the first write to a block of a sparse file is a change of the file
/// system.
fn write_device(path: &Path) -> io::Result<()> {
    let mut device = File::create(path)?;
    let zeroes = vec![0; 1 << 20];
    (0..DEVICE_BYTES / zeroes.len() as u64).try_for_each(|_| device.write_all(&zeroes))?;
    device.sync_all()
}

impl<'a> Pool<'a> {
    fn start(folder: &'a Path, programs: &'a Programs) -> io::Result<Pool<'a>> {
        let devices = [0, 1].map(|number| folder.join(format!("device{number}")));
        devices.iter().try_for_each(|path| write_device(path))?;
        let [first, second] = devices.map(|path| path.display().to_string());
        let mut extra_toml = format!(
            "\n[[pool]]\nname = \"{POOL}\"\nrelocation = \"off\"\nrate = \"medium\"\n[[pool.tier]]\nname = \"t\"\n\
             devices = [\"{first}\", \"{second}\"]\n"
        );
        for (volume, bytes) in [BUSY, IDLE] {
            extra_toml += &format!(
                "[[volume]]\nname = \"{volume}\"\nbacking = \"pool://{POOL}\"\nsize = \"{} MiB\"\npolicy = \"none\"\n",
                bytes >> 20
            );
        }
        let command = daemon(folder, &socket(folder), MEMORY_BYTES, &[], &extra_toml, &programs.hotset)?;
        create_pool(POOL, folder, programs)?;
        Ok(Pool { folder, programs, process: Process::start(command, &socket(folder))?, next: 0 })
    }

    /// Runs a command on the pool and returns its state.
    fn command(&self, action: &str, further: &[&str]) -> io::Result<Value> {
        let mut command = Command::new(&self.programs.hotset);
        command.args(["pool", action, POOL]).args(further).arg("--json").arg("--socket");
        let output = command.arg(control_socket(self.folder)).output()?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            return Err(io::Error::other(format!("hotset pool {action}: {}", text.trim())));
        }
        serde_json::from_slice(&output.stdout).map_err(io::Error::other)
    }

    fn measure_pair(&mut self, load: &mut Load, time: Duration, rate: Option<f64>) -> io::Result<Pair> {
        let moved_bytes = |report: &Value| report["relocation"]["moved_bytes"].as_f64().unwrap_or(0.0);
        let without = load.run(time, rate)?;
        // The other device has the slices after the runs before.
        let device = self.next.to_string();
        let begun = self.command("drain", &[&device])?;
        let beside = load.run(time, rate)?;
        let ended = self.command("show", &[])?;
        let is_draining = ended["tiers"][0]["groups"][self.next]["state"] == "draining";
        if !is_draining {
            return Err(io::Error::other("all slices moved before the end of the run; use fewer seconds"));
        }
        self.command("drain", &[&device, "--cancel"])?;
        self.next = 1 - self.next;
        Ok(Pair { without, beside, moved_bytes: moved_bytes(&ended) - moved_bytes(&begun) })
    }
}
