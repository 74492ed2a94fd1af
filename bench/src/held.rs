//! Latency of clients while the control thread is stopped for a minute.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use held::StoppedThread;

use crate::cells::Cell;
use crate::fio;
use crate::report::Section;
use crate::run::{Effort, median};
use crate::servers::{Content, Kind, Programs};

/// Seconds for which the control thread is stopped, over all cells.
const HELD_SECONDS: u32 = 60;

const CELLS: [Cell; 2] = [
    Cell::new("4 KiB random read, depth 1", "randread", 4096, 1, 1),
    Cell::new("4 KiB random write, depth 1", "randwrite", 4096, 1, 1),
];

/// Measures a daemon with a volume of `effort.size_bytes` that is entirely in memory.
pub fn section(folder: &Path, programs: &Programs, effort: Effort) -> io::Result<Section> {
    let server = Kind::Hotset.start(&Content::Memory(effort.size_bytes), folder, programs)?;
    let process = server.process.as_ref().ok_or(io::ErrorKind::NotFound)?;
    fio::run(&Cell::new("fill", "write", 1 << 16, 8, 1), &server.target, effort.size_bytes, 0, None)?;
    let seconds = HELD_SECONDS / CELLS.len() as u32;
    let run = |cell: &Cell| fio::run(cell, &server.target, effort.size_bytes, seconds, None);
    let mut rounds = vec![Vec::new(); CELLS.len()];
    for _ in 0..effort.rounds {
        let free = CELLS.iter().map(run).collect::<io::Result<Vec<_>>>()?;
        // The first thread of the daemon is its control thread.
        let held = StoppedThread::stop(process.id(), process.id());
        let held = held.map_err(|error| {
            io::Error::other(format!("the control thread cannot be stopped ({error}): run as root"))
        })?;
        let beside = CELLS.iter().map(run).collect::<io::Result<Vec<_>>>()?;
        if !held.is_stopped() {
            return Err(io::Error::other("the control thread ran while it was to be stopped"));
        }
        drop(held);
        rounds.iter_mut().zip(free).zip(beside).for_each(|((rounds, free), held)| rounds.push((free, held)));
    }
    let mut text = format!(
        "Client latency with the control thread running, and with only that thread stopped (`PTRACE_INTERRUPT`) for \
         {HELD_SECONDS} s, interleaved. \
         The target is no difference.\n\n| | running: median · p99 | stopped: median · p99 | ratio of medians | ratio \
         of p99 | per round |\n\
         | --- | ---: | ---: | ---: | ---: | ---: |\n"
    );
    for (cell, rounds) in CELLS.iter().zip(&rounds) {
        let of =
            |figure: fn(&(fio::Outcome, fio::Outcome)) -> f64| median(&rounds.iter().map(figure).collect::<Vec<_>>());
        let ratio = of(|(free, held)| held.median_us / free.median_us);
        let tail = of(|(free, held)| held.p99_us / free.p99_us);
        let each: Vec<String> =
            rounds.iter().map(|(free, held)| format!("{:.2}", held.median_us / free.median_us)).collect();
        eprintln!("{} with the control thread held: {ratio:.2}, p99 {tail:.2}", cell.name);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {} | {:.1} · {:.1} µs | {:.1} · {:.1} µs | **{ratio:.2}** | **{tail:.2}** | {} |",
            cell.name,
            of(|(free, _)| free.median_us),
            of(|(free, _)| free.p99_us),
            of(|(_, held)| held.median_us),
            of(|(_, held)| held.p99_us),
            each.join(", ")
        );
    }
    let text = text.trim_end().to_owned();
    Ok(Section { title: "While the control thread is stopped".into(), text, ratios: Vec::new(), measured: Vec::new() })
}
