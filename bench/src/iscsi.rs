//! The iSCSI target beside tgt, on files in memory, with the initiators of libiscsi and QEMU.

use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::process::Process;
use crate::report::Section;
use crate::run::{Effort, median};
use crate::servers::{Programs, daemon};

const TARGET: &str = "iqn.2026-11.io.hotset:bench";

/// Client of a cell, and its requests.
enum Client {
    /// `iscsi-perf`, which only reads: queue depth, blocks of 512 bytes per request, and whether reads are random.
    Reads { depth: u32, blocks: u32, random: bool },
    /// `qemu-img bench`, which writes a fixed count of 4 KiB requests: the expected requests per second times the
    /// seconds of the effort.
    Writes { depth: u32, expected_iops: u32 },
}

/// The cells, and the lowest acceptable ratio to tgt.
const CELLS: [(&str, Client, Option<f64>); 5] = [
    ("4 KiB random read, depth 1", Client::Reads { depth: 1, blocks: 8, random: true }, Some(1.2)),
    ("4 KiB random read, depth 32", Client::Reads { depth: 32, blocks: 8, random: true }, Some(1.5)),
    ("64 KiB sequential read, depth 8", Client::Reads { depth: 8, blocks: 128, random: false }, None),
    ("4 KiB write, depth 1", Client::Writes { depth: 1, expected_iops: 12_000 }, Some(1.2)),
    ("4 KiB write, depth 32", Client::Writes { depth: 32, expected_iops: 50_000 }, Some(1.2)),
];

/// A running server and the URI of its LUN.
struct Served {
    process: Process,
    uri: String,
}

/// One run: requests per second, and CPU microseconds per request of server and client.
#[derive(Clone, Copy)]
struct Sample {
    iops: f64,
    server_us: f64,
    client_us: f64,
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Creates a sparse file.
fn create_image(path: PathBuf, bytes: u64) -> io::Result<PathBuf> {
    File::create(&path)?.set_len(bytes)?;
    Ok(path)
}

/// Starts the daemon with a volume that fits in memory.
fn start_hotset(folder: &Path, bytes: u64, program: &Path) -> io::Result<Served> {
    let (socket, port) = (folder.join("hotset.sock"), free_port()?);
    let backing = create_image(folder.join("hotset.img"), bytes)?.display().to_string();
    let extra_toml = format!("[iscsi]\nlisten = [\"127.0.0.1:{port}\"]\ntarget = \"{TARGET}\"\n");
    let command = daemon(folder, &socket, bytes * 8, &[("bench", backing)], &extra_toml, program)?;
    Ok(Served { process: Process::start(command, &socket)?, uri: format!("iscsi://127.0.0.1:{port}/{TARGET}/0") })
}

/// Starts tgt on a file in the page cache, its fastest backing.
fn start_tgt(folder: &Path, bytes: u64) -> io::Result<Served> {
    let (port, control) = (free_port()?, std::process::id().to_string());
    let mut command = Command::new("tgtd");
    command.args(["-f", "-C", &control, "--iscsi", &format!("portal=127.0.0.1:{port}")]);
    let manage = |arguments: &[&str]| -> io::Result<bool> {
        let mut command = Command::new("tgtadm");
        command.args(["-C", &control, "--lld", "iscsi"]).args(arguments);
        Ok(command.stdout(Stdio::null()).stderr(Stdio::null()).status()?.success())
    };
    let listens = || manage(&["--op", "show", "--mode", "target"]).unwrap_or(false);
    let process = Process::start_until(command, listens)?;
    let backing = create_image(folder.join("tgt.img"), bytes)?.display().to_string();
    for arguments in [
        vec!["--op", "new", "--mode", "target", "--tid", "1", "-T", TARGET],
        // LUN 0 is a controller.
        vec!["--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "-b", &backing],
        vec!["--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL"],
    ] {
        if !manage(&arguments)? {
            return Err(io::Error::other(format!("tgtadm {arguments:?} failed")));
        }
    }
    Ok(Served { process, uri: format!("iscsi://127.0.0.1:{port}/{TARGET}/1") })
}

/// Runs a client; returns its output and its CPU time in microseconds.
fn run_client(arguments: &[String]) -> io::Result<(String, f64)> {
    // The shell prints user and system time of its children on the last line.
    let output = Command::new("sh").args(["-c", "\"$@\"; times", "sh"]).args(arguments).output()?;
    let output_text = String::from_utf8_lossy(&output.stdout).replace('\r', "\n");
    let last_line = output_text.lines().last().unwrap_or_default();
    let seconds = |text: &str| {
        let (minutes, seconds) = text.strip_suffix('s')?.split_once('m')?;
        Some(minutes.parse::<f64>().ok()? * 60.0 + seconds.parse::<f64>().ok()?)
    };
    let cpu_seconds: Option<f64> = last_line.split_whitespace().map(seconds).sum();
    let failed =
        || io::Error::other(format!("{arguments:?}: {output_text}{}", String::from_utf8_lossy(&output.stderr)));
    Ok((output_text.clone(), cpu_seconds.ok_or_else(failed)? * 1e6))
}

/// Parses the number between `before` and `after` in `text`.
fn number_between(text: &str, before: &str, after: &str) -> Option<f64> {
    let (_, after_label) = text.rsplit_once(before)?;
    after_label.trim_start().split_once(after)?.0.trim().parse().ok()
}

/// Runs a cell once.
fn run(client: &Client, served: &Served, seconds: u32) -> io::Result<Sample> {
    let before = served.process.cpu_us();
    let (arguments, writes) = match client {
        Client::Reads { depth, blocks, random } => {
            let order = if *random { " -r" } else { "" };
            (format!("iscsi-perf -m {depth} -b {blocks} -t {seconds}{order} {}", served.uri), None)
        }
        Client::Writes { depth, expected_iops } => {
            let count = expected_iops * seconds;
            (
                format!("qemu-img bench -w --pattern=165 -f raw -d {depth} -s 4096 -c {count} -t none {}", served.uri),
                Some(count),
            )
        }
    };
    let arguments: Vec<_> = arguments.split(' ').map(str::to_owned).collect();
    let (output, client_us) = run_client(&arguments)?;
    let failed = || io::Error::other(format!("{arguments:?}: {output}"));
    let (iops, requests) = match writes {
        None => {
            let iops = number_between(&output, "iops average", "(").ok_or_else(failed)?;
            (iops, iops * f64::from(seconds))
        }
        Some(count) => {
            let seconds = number_between(&output, "completed in", "seconds").ok_or_else(failed)?;
            (f64::from(count) / seconds, f64::from(count))
        }
    };
    let server_us = (served.process.cpu_us() - before) / requests;
    Ok(Sample { iops, server_us, client_us: client_us / requests })
}

/// Measures both servers, interleaved, on files of `effort.size_bytes` in `folder`, which lies in memory.
pub fn section(folder: &Path, programs: &Programs, effort: Effort) -> io::Result<Section> {
    let hotset_server = start_hotset(folder, effort.size_bytes, &programs.hotset)?;
    let tgt_server = start_tgt(folder, effort.size_bytes)?;
    for served in [&hotset_server, &tgt_server] {
        let count = (effort.size_bytes >> 16).to_string();
        let fill = format!("qemu-img bench -w --pattern=165 -f raw -d 8 -s 65536 -c {count} -t none {}", served.uri);
        run_client(&fill.split(' ').map(str::to_owned).collect::<Vec<_>>())?;
    }
    let mut text = "A LUN that is entirely in memory, over TCP on the loopback, beside tgt on a file in memory. A \
                    cell shows: requests a \
                    second · the server's CPU time per request · the client's.\n\n\
                    | | hotset | tgt | ratio | target | per round |\n| --- | ---: | ---: | ---: | ---: | ---: |\n"
        .to_owned();
    for (name, client, target) in &CELLS {
        let mut rounds = Vec::new();
        for round in 0..effort.rounds {
            // The order alternates, because the second server finds the machine in the state that the first one left.
            let ordered = if round % 2 == 0 { (&hotset_server, &tgt_server) } else { (&tgt_server, &hotset_server) };
            let pair = (run(client, ordered.0, effort.seconds)?, run(client, ordered.1, effort.seconds)?);
            rounds.push(if round % 2 == 0 { pair } else { (pair.1, pair.0) });
        }
        let median_of =
            |figure: &dyn Fn(&(Sample, Sample)) -> f64| median(&rounds.iter().map(figure).collect::<Vec<_>>());
        let format_figures = |server_of: fn(&(Sample, Sample)) -> Sample| {
            let median_of = |figure: fn(&Sample) -> f64| median_of(&|pair| figure(&server_of(pair)));
            let (iops, server, client) =
                (median_of(|s| s.iops), median_of(|s| s.server_us), median_of(|s| s.client_us));
            format!("{iops:.0} · {server:.1} µs · {client:.1} µs")
        };
        let ratio = median_of(&|(hotset, tgt)| hotset.iops / tgt.iops);
        let ratios: Vec<_> = rounds.iter().map(|(hotset, tgt)| format!("{:.2}", hotset.iops / tgt.iops)).collect();
        let target = target.map_or_else(String::new, |target| format!("{target:.1}"));
        eprintln!("iSCSI, {name}: {ratio:.2} of tgt");
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {name} | {} | {} | **{ratio:.2}** | {target} | {} |",
            format_figures(|pair| pair.0),
            format_figures(|pair| pair.1),
            ratios.join(", ")
        );
    }
    let text = text.trim_end().to_owned();
    Ok(Section { title: "iSCSI".into(), text, ratios: Vec::new(), measured: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_output_is_parsed() {
        let perf = "00:01 - iops average 1 (0 MB/s)\niops average 50411 (196 MB/s)    \n\nfinished.\n0m0.1s 0m0.2s\n";
        assert_eq!(number_between(perf, "iops average", "("), Some(50411.0));
        assert_eq!(number_between("Run completed in 0.526 seconds.", "completed in", "seconds"), Some(0.526));
        assert_eq!(number_between("nothing of the kind", "completed in", "seconds"), None);
        let (output, cpu_us) = run_client(&["echo".into(), "text".into()]).expect("sh is installed");
        assert!(output.starts_with("text\n") && cpu_us < 1e6);
    }
}
