//! Flushed writes over vhost-user, where no socket lies between client and server, beside fio directly on a file of the
//! same disk and beside the daemon's own NBD.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use driver::{Queue, Request};

use crate::awake::AwakeProcessors;
use crate::cells::{Cell, FLUSHED};
use crate::fio::{self, Target};
use crate::flash::{create_filled, erase_store, flash_table, logged_bytes_above};
use crate::machine;
use crate::process::{Bound, Process};
use crate::report::Section;
use crate::run::{Effort, median};
use crate::servers::{HOTSET_EXPORT, Programs, daemon};
use crate::vhost_user::{READY_TIMEOUT, connect_guest};

const DEVICE_BYTES: u64 = 2 << 30;
const VOLUME_BYTES: u64 = 1 << 30;
const MEMORY_BYTES: u64 = 256 << 20;
const REQUEST_BYTES: u64 = 4096;
/// Processor of the daemons, and of the clients.
const SERVER_PROCESSOR: usize = 0;
const CLIENT_PROCESSOR: usize = 1;
/// The paths that are compared.
const PATHS: [&str; 4] = ["mirrored", "one copy", "mirrored over NBD", "fio direct"];
const DIRECT: usize = 3;
/// Targets for mirrored and for one copy, relative to fio, of the cells of [`FLUSHED`].
const TARGETS: [[Option<f64>; 2]; 3] = [[Some(1.0), Some(1.5)], [Some(1.5), None], [Some(0.9), None]];

/// Writes per second, and the server's CPU time per write in microseconds.
#[derive(Clone, Copy, Default)]
struct Sample {
    iops: f64,
    server_us: f64,
}

/// A daemon with its own flash devices.
struct Daemon<'a> {
    process: Process,
    folder: PathBuf,
    programs: &'a Programs,
    /// Bytes that the flash log has taken.
    logged_bytes: std::cell::Cell<u64>,
    nbd_socket: PathBuf,
    vhost_socket: PathBuf,
}

impl<'a> Daemon<'a> {
    /// Starts a daemon whose volume lies in `slow`, a folder in memory, so that destage does not use the disk.
    fn start(slow: &Path, devices: &[PathBuf], programs: &'a Programs) -> io::Result<Daemon<'a>> {
        std::fs::create_dir_all(slow)?;
        let (backing, vhost, nbd_socket) = (slow.join("backing"), slow.join("vhost"), slow.join("hotset.sock"));
        std::fs::File::create(&backing)?.set_len(VOLUME_BYTES)?;
        let extra_toml = format!("{}[vhost_user]\ndirectory = \"{}\"\n", flash_table(devices), vhost.display());
        let volume = (HOTSET_EXPORT, backing.display().to_string());
        let command = daemon(slow, &nbd_socket, MEMORY_BYTES, &[volume], &extra_toml, &programs.hotset)?;
        let process = Process::start(command, &nbd_socket)?;
        if machine::processors() > 1 {
            process.bind(SERVER_PROCESSOR)?;
        }
        let folder = slow.to_owned();
        Ok(Daemon {
            process,
            folder,
            programs,
            logged_bytes: Default::default(),
            nbd_socket,
            vhost_socket: vhost.join(format!("{HOTSET_EXPORT}.sock")),
        })
    }

    /// Runs `load`, which returns the number of its writes and the seconds they took. An error if the flash log has not
    /// answered its flushes.
    fn sample(&self, load: impl FnOnce() -> io::Result<(f64, f64)>) -> io::Result<Sample> {
        let before = self.process.cpu_us();
        let (writes, seconds) = load()?;
        let logged = logged_bytes_above(self.logged_bytes.get(), &self.folder, self.programs)?;
        self.logged_bytes.set(logged);
        Ok(Sample { iops: writes / seconds, server_us: (self.process.cpu_us() - before) / writes })
    }
}

/// State of one of the clients that share the queue.
enum Step {
    Write,
    Flush,
}

/// Runs the clients of a cell over vhost-user for `seconds`. With a flush after each write, each client has one request
/// in flight. Otherwise one client keeps the cell's depth in flight, flushes included.
fn run_guest(queue: &mut Queue, cell: &Cell, seconds: u32) -> io::Result<(f64, f64)> {
    let (began, time) = (Instant::now(), Duration::from_secs(seconds.into()));
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut write = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let offset = (random >> 33) % (VOLUME_BYTES / REQUEST_BYTES) * REQUEST_BYTES;
        Request::Write(offset, vec![0xa5; REQUEST_BYTES as usize])
    };
    let mut step_of: Vec<Option<Step>> = (0..queue.size()).map(|_| None).collect();
    let (mut writes, mut in_flight, mut since_flush) = (0_u32, 0, 0);
    let in_flight_max = cell.depth * cell.connections;
    // Clients whose write has completed and whose flush is due.
    let mut flushes_due = 0;
    loop {
        while began.elapsed() < time && in_flight < in_flight_max {
            let (request, step) = if flushes_due > 0 {
                flushes_due -= 1;
                (Request::Flush, Step::Flush)
            } else {
                (write(), Step::Write)
            };
            let head = queue.submit(&request).ok_or_else(|| io::Error::other("the queue is full"))?;
            step_of[usize::from(head)] = Some(step);
            in_flight += 1;
        }
        if in_flight == 0 {
            return Ok((writes.into(), began.elapsed().as_secs_f64()));
        }
        for completion in queue.wait(READY_TIMEOUT)? {
            if completion.status != 0 {
                return Err(io::Error::other(format!("a request failed with status {}", completion.status)));
            }
            in_flight -= 1;
            if let Some(Step::Write) = step_of[usize::from(completion.head)].take() {
                (writes, since_flush) = (writes + 1, since_flush + 1);
                if since_flush >= cell.flush_every {
                    (since_flush, flushes_due) = (0, flushes_due + 1);
                }
            }
        }
    }
}

/// Measures all paths, interleaved. The flash devices and the file of fio lie in `folder`.
pub fn section(folder: &Path, programs: &Programs, effort: Effort) -> io::Result<Section> {
    let direct = Target::File(create_filled(folder.join("direct.img"), VOLUME_BYTES)?.display().to_string());
    let devices = ["f0", "f1", "f2"].map(|name| create_filled(folder.join(name), DEVICE_BYTES));
    let devices = devices.into_iter().collect::<io::Result<Vec<_>>>()?;
    devices.iter().try_for_each(|device| erase_store(device))?;
    let slow = tempfile::tempdir_in("/dev/shm")?;
    let mirrored = Daemon::start(&slow.path().join("mirrored"), &devices[..2], programs)?;
    let single = Daemon::start(&slow.path().join("single"), &devices[2..], programs)?;
    let (_mirrored_front_end, mut mirrored_queue) = connect_guest(&mirrored.vhost_socket)?;
    let (_single_front_end, mut single_queue) = connect_guest(&single.vhost_socket)?;
    let nbd = Target::Nbd(format!("nbd+unix:///{HOTSET_EXPORT}?socket={}", mirrored.nbd_socket.display()));
    let _awake = AwakeProcessors::start()?;
    let processor = (machine::processors() > 1).then_some(CLIENT_PROCESSOR);
    let _bound = processor.map(Bound::to).transpose()?;
    let mut text =
        "Writes of 4 KiB with flushes, through a driver in shared memory, answered by the flash log: on two \
                    devices and on one, each a file beside the one that fio writes directly; and over NBD. The daemons \
                    have one processor, the clients the other; idle processes keep both awake. A cell shows: writes \
                    per second · the server's CPU time per write. The last columns are ratios to fio, with their \
                    targets.\n\n"
            .to_owned();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "| | {} | mirrored | one copy | NBD |", PATHS.join(" | "));
    let _ = writeln!(text, "| --- | {} |", ["---:"; 7].join(" | "));
    for (cell, targets) in FLUSHED.iter().zip(TARGETS) {
        let mut rounds = Vec::new();
        for round in 0..effort.rounds {
            let mut samples = [Sample::default(); PATHS.len()];
            for turn in 0..PATHS.len() {
                let path = (turn + round) % PATHS.len();
                let run_fio = |target: &Target| {
                    let outcome = fio::run(cell, target, VOLUME_BYTES, effort.seconds, processor)?;
                    Ok((outcome.requests, outcome.requests / outcome.iops))
                };
                samples[path] = match path {
                    0 => mirrored.sample(|| run_guest(&mut mirrored_queue, cell, effort.seconds))?,
                    1 => single.sample(|| run_guest(&mut single_queue, cell, effort.seconds))?,
                    2 => mirrored.sample(|| run_fio(&nbd))?,
                    _ => Sample {
                        iops: fio::run(cell, &direct, VOLUME_BYTES, effort.seconds, processor)?.iops,
                        ..Sample::default()
                    },
                };
            }
            rounds.push(samples);
        }
        let median_of =
            |figure: &dyn Fn(&[Sample; PATHS.len()]) -> f64| median(&rounds.iter().map(figure).collect::<Vec<_>>());
        let _ = write!(text, "| {} |", cell.name);
        for path in 0..PATHS.len() {
            let (iops, server_us) = (median_of(&|s| s[path].iops), median_of(&|s| s[path].server_us));
            let _ = match path {
                DIRECT => write!(text, " {iops:.0} |"),
                _ => write!(text, " {iops:.0} · {server_us:.0} µs |"),
            };
        }
        for path in 0..DIRECT {
            let ratios: Vec<_> = rounds.iter().map(|s| format!("{:.2}", s[path].iops / s[DIRECT].iops)).collect();
            let ratio = format!("**{:.2}** ({})", median_of(&|s| s[path].iops / s[DIRECT].iops), ratios.join(", "));
            eprintln!("{}, {}: {ratio} of fio", cell.name, PATHS[path]);
            let target =
                targets.get(path).copied().flatten().map_or_else(String::new, |target| format!(" ≥ {target:.1}"));
            let _ = write!(text, " {ratio}{target} |");
        }
        text.push('\n');
    }
    let text = text.trim_end().to_owned();
    Ok(Section { title: "Flushed writes over vhost-user".into(), text, ratios: Vec::new(), measured: Vec::new() })
}
