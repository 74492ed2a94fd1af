//! What the console costs clients: many busy volumes, followers of the stream, and a scrape every few seconds.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::load::{Load, Seen};
use crate::process::Process;
use crate::report::Section;
use crate::run::{Effort, median};
use crate::servers::{Programs, control_socket, daemon};

/// Volumes, all of which are asked.
const VOLUMES: usize = 1_000;
/// Bytes of each: together they fit in memory.
const VOLUME_BYTES: u64 = 1 << 20;
/// Memory of the daemon.
const MEMORY_BYTES: u64 = 3 << 30;
/// Clients that ask, one request at a time each.
const CLIENTS: usize = 16;
/// Part of the saturated rate that clients ask at.
const PART: f64 = 0.7;
/// Followers of the stream, and volumes that each wants to see.
const FOLLOWERS: usize = 20;
const FOLLOWED: usize = 12;
/// Pause between two scrapes.
const SCRAPE_PAUSE: Duration = Duration::from_secs(5);
/// Least seconds of a run: two scrapes and a dozen samples.
const SECONDS_MIN: u32 = 12;
/// The daemon's control thread, and those of its files beside it.
const CONTROL: [&str; 3] = ["control", "history", "events"];

/// One pair of runs, without and with an audience.
struct Pair {
    alone: Seen,
    watched: Seen,
    /// Of a core: what the control's threads used, without and with.
    control: [f64; 2],
    resident_bytes: [u64; 2],
}

/// What an audience has seen.
#[derive(Default)]
struct Audience {
    scrapes_ms: Vec<f64>,
    scraped_bytes: usize,
    streamed_bytes: usize,
}

/// Measures a daemon whose volumes lie on files in `folder`.
pub fn section(folder: &Path, programs: &Programs, effort: Effort) -> io::Result<Section> {
    let socket = folder.join("many.sock");
    let names: Vec<String> = (0..VOLUMES).map(|number| format!("v{number:04}")).collect();
    let mut volumes = Vec::new();
    for name in &names {
        let path = folder.join(format!("{name}.img"));
        File::create(&path)?.set_len(VOLUME_BYTES)?;
        volumes.push((name.as_str(), path.display().to_string()));
    }
    let tables = "\n[api]\nlisten = \"127.0.0.1:0\"\n";
    let began = Instant::now();
    let command = daemon(folder, &socket, MEMORY_BYTES, &volumes, tables, &programs.hotset)?;
    let process = Process::start(command, &socket)?;
    let start_seconds = began.elapsed().as_secs_f64();
    let address = address(folder, programs)?;
    let mut load = Load::connect(&socket, &names, CLIENTS, VOLUME_BYTES)?;
    let time = Duration::from_secs(effort.seconds.max(SECONDS_MIN).into());
    // Everything is in memory from then on, and every curve has its memory.
    load.run(time, None)?;
    let saturated = load.run(time, None)?;
    let rate = saturated.iops * PART;
    let (mut audience, mut pairs) = (Audience::default(), Vec::new());
    for _ in 0..effort.rounds {
        let (alone, quiet, before) = measured(&process, || load.run(time, Some(rate)))?;
        let watched = || watch(&address, &names, &mut audience, || load.run(time, Some(rate)));
        let (watched, busy, after) = measured(&process, watched)?;
        pairs.push(Pair { alone, watched, control: [quiet, busy], resident_bytes: [before, after] });
    }
    if audience.streamed_bytes == 0 {
        return Err(io::Error::other("nothing came over the stream"));
    }
    let text = describe(start_seconds, saturated, &pairs, &audience, time);
    Ok(Section { title: "1,000 volumes with an audience".into(), text, ratios: Vec::new(), measured: Vec::new() })
}

/// Where the daemon's HTTP interface is.
fn address(folder: &Path, programs: &Programs) -> io::Result<String> {
    let mut command = Command::new(&programs.hotset);
    let output = command.args(["status", "--json", "--socket"]).arg(control_socket(folder)).output()?;
    let status: Value = serde_json::from_slice(&output.stdout)?;
    status["api"].as_str().filter(|api| !api.is_empty()).map(str::to_owned).ok_or(io::ErrorKind::NotFound.into())
}

/// Does `run`; what part of a core the control used meanwhile, and the daemon's resident memory at its end.
fn measured<T>(process: &Process, run: impl FnOnce() -> io::Result<T>) -> io::Result<(T, f64, u64)> {
    let used = || -> io::Result<f64> {
        let threads = process.threads_cpu_us()?;
        Ok(CONTROL.iter().filter_map(|name| threads.get(*name)).sum())
    };
    let (before, began) = (used()?, Instant::now());
    let done = run()?;
    let took_us = began.elapsed().as_secs_f64() * 1e6;
    Ok((done, (used()? - before) / took_us, process.resident_bytes()))
}

/// Asks for something over HTTP, and leaves the answer to be read.
fn ask(address: &str, path: &str) -> io::Result<BufReader<TcpStream>> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line)?;
    if line.contains(" 200 ") { Ok(stream) } else { Err(io::Error::other(format!("{path}: {line}"))) }
}

/// Does `run` while followers follow and a scraper scrapes.
fn watch<T>(
    address: &str,
    names: &[String],
    audience: &mut Audience,
    run: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let follow = |number: usize| {
            let names = &names[number * FOLLOWED..(number + 1) * FOLLOWED];
            let path = format!("/api/v1/stream?volumes={}", names.join(","));
            let done = &done;
            scope.spawn(move || -> io::Result<usize> {
                let (mut stream, mut read) = (ask(address, &path)?, 0);
                let mut room = vec![0; 1 << 16];
                while !done.load(Ordering::Relaxed) {
                    match stream.read(&mut room)? {
                        0 => return Err(io::Error::other("a follower was sent away")),
                        bytes => read += bytes,
                    }
                }
                Ok(read)
            })
        };
        let followers: Vec<_> = (0..FOLLOWERS).map(follow).collect();
        let scraper = scope.spawn(|| -> io::Result<(Vec<f64>, usize)> {
            let (mut scrapes_ms, mut bytes) = (Vec::new(), 0);
            while !done.load(Ordering::Relaxed) {
                let began = Instant::now();
                bytes = ask(address, "/metrics")?.read_to_end(&mut Vec::new())?;
                scrapes_ms.push(began.elapsed().as_secs_f64() * 1e3);
                while began.elapsed() < SCRAPE_PAUSE && !done.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(50));
                }
            }
            Ok((scrapes_ms, bytes))
        });
        let ran = run();
        done.store(true, Ordering::Relaxed);
        let panicked = |_| io::Error::other("the audience panicked");
        for follower in followers {
            audience.streamed_bytes += follower.join().map_err(panicked)??;
        }
        let (scrapes_ms, bytes) = scraper.join().map_err(panicked)??;
        audience.scrapes_ms.extend(scrapes_ms);
        audience.scraped_bytes = bytes;
        ran
    })
}

fn describe(start_seconds: f64, saturated: Seen, pairs: &[Pair], audience: &Audience, time: Duration) -> String {
    let of = |figure: fn(&Pair) -> f64| median(&pairs.iter().map(figure).collect::<Vec<_>>());
    let (iops, p99) = (of(|p| p.watched.iops / p.alone.iops), of(|p| p.watched.p99_us / p.alone.p99_us));
    let each: Vec<String> = pairs.iter().map(|p| format!("{:.2}", p.watched.p99_us / p.alone.p99_us)).collect();
    let grown = of(|p| p.resident_bytes[1] as f64 - p.resident_bytes[0] as f64) / f64::from(1 << 20);
    let most = audience.scrapes_ms.iter().copied().fold(0.0, f64::max);
    eprintln!("1,000 volumes with an audience: {iops:.3} of the requests, p99 {p99:.2} times");
    let mut text = format!(
        "{VOLUMES} volumes in memory, {CLIENTS} clients that ask 4 KiB at a time of all of them in turn, one in four a write, at {:.0} % of the {:.0} \
         requests a second that they get when they ask as fast as they can; without and with {FOLLOWERS} followers of the stream who read and do not \
         draw ({FOLLOWED} volumes each) and a scrape of `/metrics` every {} s; pairs of {} s, interleaved. Clients, followers and the daemon share \
         the processors. The daemon was ready {start_seconds:.1} s after its start with volumes that it did not know.\n\n\
         | | alone | with an audience | ratio | wanted |\n| --- | ---: | ---: | ---: | ---: |\n",
        PART * 100.0,
        saturated.iops,
        SCRAPE_PAUSE.as_secs(),
        time.as_secs()
    );
    let (alone, watched) = (of(|p| p.alone.iops), of(|p| p.watched.iops));
    // Writing to a string cannot fail.
    let _ = writeln!(text, "| requests a second | {alone:.0} | {watched:.0} | **{iops:.3}** | unchanged |");
    let (alone, watched) = (of(|p| p.alone.p99_us), of(|p| p.watched.p99_us));
    let _ =
        writeln!(text, "| p99 | {alone:.0} µs | {watched:.0} µs | **{p99:.2}** ({}) | 1.10 at most |", each.join(", "));
    let (alone, watched) = (of(|p| p.control[0] * 100.0), of(|p| p.control[1] * 100.0));
    let _ = writeln!(text, "| control, history, events: of a core | {alone:.1} % | {watched:.1} % | | under 10 % |");
    let _ = writeln!(text, "| resident memory that the audience adds | | {grown:.1} MiB | | under 128 MiB |");
    let _ = write!(
        text,
        "| a scrape of {:.1} MB | | {:.0} ms, {most:.0} ms at most | | under 100 ms |",
        audience.scraped_bytes as f64 / 1e6,
        median(&audience.scrapes_ms)
    );
    text
}
