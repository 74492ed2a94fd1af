//! `make bench`: Hotset beside other servers and beside null servers, interleaved on one machine.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bench::cells::{Cell, HITS, MISSES, PLACED};
use bench::fio::{self, Target};
use bench::machine;
use bench::report::{Ratio, Section, page};
use bench::run::{Effort, measure};
use bench::servers::{Content, FILE_SERVERS, HOTSET_EXPORT, Kind, MEMORY_SERVERS, Programs, Server};
use clap::Parser;

/// Measures Hotset beside other servers and writes the report.
#[derive(Parser)]
struct Arguments {
    /// Rounds per cell; the report shows medians
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds per run
    #[arg(long, default_value_t = 3)]
    seconds: u32,
    /// Folder on a real disk for the files of the measurements
    #[arg(long, default_value = "target")]
    directory: PathBuf,
    /// Path of the report [default: docs/develop/benchmarks.md, or the screen when only some sections are measured]
    #[arg(long)]
    out: Option<PathBuf>,
    /// The daemon to measure; skipped if it does not exist
    #[arg(long, default_value = "target/release/hotset")]
    hotset: PathBuf,
    /// Measure only these sections: hits, placed, misses, limited, destage, stalled, flushes, flash, stopped-control,
    /// control, iscsi, vhost_user, vhost_user_flushes, qos, uncongested, pool_moves, pool_overhead
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

/// Size of the volume that fits in memory.
const HIT_BYTES: u64 = 256 << 20;
/// Size of the file that does not fit in memory.
const MISS_BYTES: u64 = 2 << 30;
const NULL_SERVERS: &[Kind] = &[Kind::NullServerThreads, Kind::NullServerSeam];

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Started servers, and the reasons why others did not start.
struct Started {
    servers: Vec<Server>,
    left_out: Vec<String>,
}

fn start(kinds: &[Kind], content: &Content, folder: &Path, programs: &Programs) -> Started {
    let mut started = Started { servers: Vec::new(), left_out: Vec::new() };
    for kind in kinds {
        match kind.start(content, folder, programs) {
            Ok(server) => started.servers.push(server),
            Err(error) => started.left_out.push(format!("{} ({error})", kind.name())),
        }
    }
    started
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let programs = Programs {
        hotset: arguments.hotset.clone(),
        null_server: std::env::current_exe()?.with_file_name("null_server"),
    };
    if !programs.null_server.exists() {
        return Err("the null server is not built: run `cargo build --release --package bench`".into());
    }
    let machine = machine::describe();
    let is_requested = |name: &str| arguments.only.is_empty() || arguments.only.iter().any(|only| only == name);
    let (mut sections, mut left_out) = (Vec::new(), Vec::new());
    let effort = Effort { rounds: arguments.rounds, seconds: arguments.seconds, size_bytes: HIT_BYTES };
    if is_requested("hits") || is_requested("placed") {
        let folder = tempfile::tempdir_in("/dev/shm")?;
        let started = start(&MEMORY_SERVERS, &Content::Memory(HIT_BYTES), folder.path(), &programs);
        left_out.extend(started.left_out);
        fill(&started.servers)?;
        if is_requested("hits") {
            sections.push(hits(&started.servers, effort)?);
        }
        if is_requested("placed") {
            sections.extend(placed(&started.servers, effort)?);
        }
    }
    if is_requested("misses") || is_requested("limited") {
        let folder = tempfile::tempdir_in(&arguments.directory)?;
        let (effort, file) = (Effort { size_bytes: MISS_BYTES, ..effort }, fill_file(folder.path())?);
        if is_requested("misses") {
            sections.push(misses(&file, folder.path(), &programs, effort, &mut left_out)?);
        }
        if is_requested("limited") {
            // A volume of the same name on another backing would be refused, so this section has its own folder and
            // state directory.
            let limited = tempfile::tempdir_in(&arguments.directory)?;
            sections.push(bench::limited::section(&file, limited.path(), &programs, effort)?);
        }
    }
    if is_requested("destage") {
        let folder = tempfile::tempdir_in(&arguments.directory)?;
        sections.push(bench::destage::section(folder.path(), &programs, effort)?);
    }
    if is_requested("flushes") {
        let folder = tempfile::tempdir_in(&arguments.directory)?;
        sections.push(bench::flash::flushes(folder.path(), &programs, effort)?);
    }
    if is_requested("flash") {
        let folder = tempfile::tempdir_in(&arguments.directory)?;
        sections.push(bench::flash::reads(folder.path(), &programs, effort)?);
    }
    if is_requested("stalled") {
        sections.extend(stalled(&programs, effort, &mut left_out)?);
    }
    if is_requested("stopped-control") {
        let folder = tempfile::tempdir_in("/dev/shm")?;
        sections.push(bench::stopped_control::section(folder.path(), &programs, effort)?);
    }
    if is_requested("control") {
        let folder = tempfile::tempdir_in("/dev/shm")?;
        sections.push(bench::control::section(folder.path(), &programs, effort)?);
    }
    if is_requested("iscsi") {
        let folder = tempfile::tempdir_in("/dev/shm")?;
        sections.push(bench::iscsi::section(folder.path(), &programs, effort)?);
    }
    if is_requested("vhost_user") {
        let folder = tempfile::tempdir_in("/dev/shm")?;
        sections.push(bench::vhost_user::section(folder.path(), &programs, effort)?);
    }
    if is_requested("vhost_user_flushes") {
        let folder = tempfile::tempdir_in(&arguments.directory)?;
        sections.push(bench::vhost_user_flushes::section(folder.path(), &programs, effort)?);
    }
    if is_requested("qos") {
        let folder = tempfile::tempdir_in("/dev/shm")?;
        sections.push(bench::qos::section(folder.path(), &programs, effort)?);
    }
    if is_requested("uncongested") {
        let folder = tempfile::tempdir_in(&arguments.directory)?;
        sections.push(bench::uncongested::section(folder.path(), &programs, effort)?);
    }
    if is_requested("pool_moves") {
        let folder = tempfile::tempdir_in(&arguments.directory)?;
        sections.push(bench::pool_moves::section(folder.path(), &programs, effort)?);
    }
    if is_requested("pool_overhead") {
        let folder = tempfile::tempdir_in(&arguments.directory)?;
        sections.push(bench::pool_overhead::section(folder.path(), &programs, effort)?);
    }
    left_out.sort();
    left_out.dedup();
    let method = format!("{} rounds of {} s per cell", arguments.rounds, arguments.seconds);
    let page = page(&machine, &method, &sections, &left_out);
    let default_out = arguments.only.is_empty().then(|| PathBuf::from("docs/develop/benchmarks.md"));
    match arguments.out.clone().or(default_out) {
        Some(path) => {
            std::fs::write(&path, page)?;
            eprintln!("written to {}", path.display());
        }
        None => println!("{page}"),
    }
    Ok(())
}

/// Writes all blocks once, so that every later request is a hit.
fn fill(servers: &[Server]) -> Result<(), Box<dyn Error>> {
    let fill_cell = Cell::new("fill", "write", 1 << 16, 8, 1);
    for server in servers {
        fio::run(&fill_cell, &server.target, HIT_BYTES, 0, None)?;
    }
    Ok(())
}

fn ratios() -> Vec<Ratio> {
    vec![
        Ratio { name: "to the null server", of: Kind::Hotset, to: NULL_SERVERS },
        Ratio { name: "to nbdkit", of: Kind::Hotset, to: &[Kind::Nbdkit] },
        Ratio { name: "to qemu-s-d", of: Kind::Hotset, to: &[Kind::Qemu] },
        Ratio { name: "null server: seam to threads", of: Kind::NullServerSeam, to: &[Kind::NullServerThreads] },
    ]
}

fn hits(servers: &[Server], effort: Effort) -> Result<Section, Box<dyn Error>> {
    let measured = HITS.iter().map(|cell| measure(cell, servers, effort, None)).collect::<Result<_, _>>()?;
    Ok(Section {
        title: "Hits in memory".into(),
        text: "A volume of 256 MiB that is entirely in memory, over a Unix socket. The null server only \
               copies \
               between socket and memory, with blocking threads and on one core of the project's runtime; the better \
               one counts."
            .into(),
        ratios: ratios(),
        measured,
    })
}

/// Measures with server and client on one CPU, and on two.
fn placed(servers: &[Server], effort: Effort) -> Result<Vec<Section>, Box<dyn Error>> {
    let mut sections = Vec::new();
    for (title, server_on, client_on) in [("one processor", 0, 0), ("two processors", 0, 1)] {
        if machine::processors() <= client_on {
            continue;
        }
        for server in servers.iter().filter_map(|server| server.process.as_ref()) {
            server.bind(server_on)?;
        }
        let measured =
            PLACED.iter().map(|cell| measure(cell, servers, effort, Some(client_on))).collect::<Result<_, _>>()?;
        sections.push(Section {
            title: format!("Server and client bound to {title}"),
            text: format!("Server bound to processor {server_on}, client to processor {client_on}."),
            ratios: ratios(),
            measured,
        });
    }
    Ok(sections)
}

/// Creates a file of [`MISS_BYTES`] with content in every block, so that reads access the disk.
fn fill_file(folder: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let path = folder.join("misses.img");
    let fill = Cell::new("fill", "write", 1 << 20, 4, 1);
    std::fs::File::create(&path)?.set_len(MISS_BYTES)?;
    fio::run(&fill, &Target::File(path.display().to_string()), MISS_BYTES, 0, None)?;
    Ok(path)
}

fn misses(
    file: &Path,
    folder: &Path,
    programs: &Programs,
    effort: Effort,
    left_out: &mut Vec<String>,
) -> Result<Section, Box<dyn Error>> {
    let content = Content::File(file.to_owned());
    let mut measured = Vec::new();
    for cell in &MISSES {
        // The servers run one at a time, because they would lock each other out of the file.
        measured.push(measure_in_turn(cell, &content, folder, programs, effort, left_out)?);
    }
    Ok(Section {
        title: "Misses".into(),
        text:
            "Random reads of a file of 2 GiB with direct I/O; Hotset has 32 MiB of memory. The null server reads the \
               file directly."
                .into(),
        ratios: vec![
            Ratio { name: "to qemu-s-d", of: Kind::Hotset, to: &[Kind::Qemu] },
            Ratio { name: "to fio direct", of: Kind::Hotset, to: &[Kind::NoServer] },
            Ratio { name: "null server to qemu-s-d", of: Kind::NullServerSeam, to: &[Kind::Qemu] },
        ],
        measured,
    })
}

/// Measures a healthy client of the daemon alone and beside stalled clients; nothing without a daemon.
fn stalled(programs: &Programs, effort: Effort, left_out: &mut Vec<String>) -> Result<Option<Section>, Box<dyn Error>> {
    let folder = tempfile::tempdir_in("/dev/shm")?;
    let started = start(&[Kind::Hotset], &Content::Memory(HIT_BYTES), folder.path(), programs);
    left_out.extend(started.left_out);
    let Some(server) = started.servers.first() else { return Ok(None) };
    fill(&started.servers)?;
    Ok(Some(bench::stalled::measure(server, &Kind::Hotset.socket(folder.path()), HOTSET_EXPORT, effort)?))
}

/// Like [`measure`], with each server started for its own run only.
fn measure_in_turn(
    cell: &Cell,
    content: &Content,
    folder: &Path,
    programs: &Programs,
    effort: Effort,
    left_out: &mut Vec<String>,
) -> Result<bench::run::Measured, Box<dyn Error>> {
    let mut total: Option<bench::run::Measured> = None;
    for _ in 0..effort.rounds {
        let mut round = bench::run::Measured { cell: *cell, rows: Vec::new() };
        for kind in FILE_SERVERS {
            let started = start(&[kind], content, folder, programs);
            left_out.extend(started.left_out);
            if started.servers.is_empty() {
                continue;
            }
            let round_result = measure(cell, &started.servers, Effort { rounds: 1, ..effort }, None)?;
            round.rows.extend(round_result.rows);
        }
        match &mut total {
            None => total = Some(round),
            Some(total) => {
                for ((_, samples), (_, new)) in total.rows.iter_mut().zip(round.rows) {
                    samples.extend(new);
                }
            }
        }
    }
    total.ok_or_else(|| "at least one round is needed".into())
}
