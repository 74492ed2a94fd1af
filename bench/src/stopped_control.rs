//! Latency of clients while the control thread is stopped for a minute.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use thread_stop::StoppedThread;

use crate::cells::Cell;
use crate::fio;
use crate::report::Section;
use crate::run::{Effort, median};
use crate::servers::{Content, Kind, Programs};

/// Seconds for which the control thread is stopped, over all cells.
const STOPPED_SECONDS: u32 = 60;

const CELLS: [Cell; 2] = [
    Cell::new("4 KiB random read, depth 1", "randread", 4096, 1, 1),
    Cell::new("4 KiB random write, depth 1", "randwrite", 4096, 1, 1),
];

/// Measures a daemon with a volume of `effort.size_bytes` that is entirely in memory.
pub fn section(folder: &Path, programs: &Programs, effort: Effort) -> io::Result<Section> {
    let server = Kind::Hotset.start(&Content::Memory(effort.size_bytes), folder, programs)?;
    let process = server.process.as_ref().ok_or(io::ErrorKind::NotFound)?;
    fio::run(&Cell::new("fill", "write", 1 << 16, 8, 1), &server.target, effort.size_bytes, 0, None)?;
    let seconds = STOPPED_SECONDS / CELLS.len() as u32;
    let run = |cell: &Cell| fio::run(cell, &server.target, effort.size_bytes, seconds, None);
    let mut rounds = vec![Vec::new(); CELLS.len()];
    for _ in 0..effort.rounds {
        let running = CELLS.iter().map(run).collect::<io::Result<Vec<_>>>()?;
        // The first thread of the daemon is its control thread.
        let stopped_thread = StoppedThread::stop(process.id(), process.id());
        let stopped_thread = stopped_thread
            .map_err(|error| io::Error::other(format!("cannot stop the control thread ({error}): run as root")))?;
        let stopped = CELLS.iter().map(run).collect::<io::Result<Vec<_>>>()?;
        if !stopped_thread.is_stopped() {
            return Err(io::Error::other("the control thread ran while it should have been stopped"));
        }
        drop(stopped_thread);
        for ((rounds, running), stopped) in rounds.iter_mut().zip(running).zip(stopped) {
            rounds.push((running, stopped));
        }
    }
    let mut text = format!(
        "Client latency with the control thread running, and with only that thread stopped (`PTRACE_INTERRUPT`) for \
         {STOPPED_SECONDS} s, interleaved. \
         The target is no difference.\n\n| | running: median · p99 | stopped: median · p99 | ratio of medians | \
         ratio of p99 | per round |\n\
         | --- | ---: | ---: | ---: | ---: | ---: |\n"
    );
    for (cell, rounds) in CELLS.iter().zip(&rounds) {
        let median_of =
            |figure: fn(&(fio::Outcome, fio::Outcome)) -> f64| median(&rounds.iter().map(figure).collect::<Vec<_>>());
        let ratio = median_of(|(running, stopped)| stopped.median_us / running.median_us);
        let p99_ratio = median_of(|(running, stopped)| stopped.p99_us / running.p99_us);
        let ratios: Vec<String> =
            rounds.iter().map(|(running, stopped)| format!("{:.2}", stopped.median_us / running.median_us)).collect();
        eprintln!("{} with the control thread stopped: {ratio:.2}, p99 {p99_ratio:.2}", cell.name);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {} | {:.1} · {:.1} µs | {:.1} · {:.1} µs | **{ratio:.2}** | **{p99_ratio:.2}** | {} |",
            cell.name,
            median_of(|(running, _)| running.median_us),
            median_of(|(running, _)| running.p99_us),
            median_of(|(_, stopped)| stopped.median_us),
            median_of(|(_, stopped)| stopped.p99_us),
            ratios.join(", ")
        );
    }
    let text = text.trim_end().to_owned();
    Ok(Section { title: "While the control thread is stopped".into(), text, ratios: Vec::new(), measured: Vec::new() })
}
