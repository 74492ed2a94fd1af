//! Cost of monitoring for clients: many busy volumes, followers of the event stream, and a scrape every few seconds.

mod observers;
mod verdicts;

use std::fs::File;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use self::observers::Observers;
use crate::load::{Load, LoadFigures};
use crate::process::Process;
use crate::report::Section;
use crate::run::Effort;
use crate::servers::{Programs, control_socket, daemon};

/// Number of volumes, all in use.
const VOLUMES: usize = 1_000;
/// Size of each volume; together they fit in memory.
const VOLUME_BYTES: u64 = 1 << 20;
/// Memory of the daemon.
const MEMORY_BYTES: u64 = 3 << 30;
/// Clients with one request in flight each.
const CLIENTS: usize = 16;
/// Fraction of the saturated rate at which clients run in the paced series.
const PACED_FRACTION: f64 = 0.7;
/// Time in which all volumes are read into memory and all miss-ratio curves are allocated, and in which the saturated
/// rate is measured.
const FILL_TIME: Duration = Duration::from_secs(12);
/// Warm-up before each cell, in which followers connect and clients reach their pace.
const WARM_UP: Duration = Duration::from_secs(1);
/// Shortest cell: a scrape and five samples.
const SECONDS_MIN: u32 = 5;
/// The daemon's control thread, and its file threads.
const CONTROL_THREADS: [&str; 3] = ["control", "history", "events"];

/// Figures of one cell.
#[derive(Clone, Copy)]
struct CellFigures {
    load: LoadFigures,
    /// CPU time of the control threads, as a fraction of a core.
    control_cpu_fraction: f64,
    /// Resident memory of the daemon at the end of the cell.
    resident_bytes: u64,
}

/// Adjacent cells of a round: without observers, without observers again, and with observers.
struct Round {
    off: CellFigures,
    off_again: CellFigures,
    on: CellFigures,
}

/// All rounds at one load.
struct Series {
    /// Requests per second of the clients; `None` for the saturated rate.
    rate: Option<f64>,
    rounds: Vec<Round>,
    observers: Observers,
}

#[derive(Clone, Copy)]
enum CellKind {
    Off,
    Again,
    On,
}

/// Orders of a round's cells, used in turn. Every second order is the previous one reversed, and together they favour
/// no cell.
const ORDERS: [[CellKind; 3]; 6] = [
    [CellKind::Off, CellKind::Again, CellKind::On],
    [CellKind::On, CellKind::Again, CellKind::Off],
    [CellKind::Again, CellKind::On, CellKind::Off],
    [CellKind::Off, CellKind::On, CellKind::Again],
    [CellKind::On, CellKind::Off, CellKind::Again],
    [CellKind::Again, CellKind::Off, CellKind::On],
];

/// A daemon under load.
struct Bench {
    process: Process,
    load: Load,
    /// Address of its HTTP interface.
    address: String,
    names: Vec<String>,
    /// Duration of a cell.
    cell_time: Duration,
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
    let extra_toml = "\n[api]\nlisten = \"127.0.0.1:0\"\n";
    let started = Instant::now();
    let command = daemon(folder, &socket, MEMORY_BYTES, &volumes, extra_toml, &programs.hotset)?;
    let process = Process::start(command, &socket)?;
    let start_seconds = started.elapsed().as_secs_f64();
    let address = address(folder, programs)?;
    let load = Load::connect(&socket, &names, CLIENTS, VOLUME_BYTES)?;
    let cell_time = Duration::from_secs(effort.seconds.max(SECONDS_MIN).into());
    let mut bench = Bench { process, load, address, names, cell_time };
    bench.load.run(FILL_TIME, None)?;
    let before_observers = bench.measure(FILL_TIME, None)?;
    let series = |rate| Series { rate, rounds: Vec::new(), observers: Observers::default() };
    let mut all_series = [series(Some(before_observers.load.iops * PACED_FRACTION)), series(None)];
    for number in 0..effort.rounds {
        let order = ORDERS[number % ORDERS.len()];
        let [paced, saturated] = &mut all_series;
        let loads = if number.is_multiple_of(2) { [paced, saturated] } else { [saturated, paced] };
        for series in loads {
            let round = bench.round(order, series.rate, &mut series.observers)?;
            eprintln!("round {}, {}", number + 1, round.show(series.rate));
            series.rounds.push(round);
        }
    }
    if all_series.iter().any(|series| series.observers.streamed_bytes == 0) {
        return Err(io::Error::other("the stream delivered no data"));
    }
    let text = verdicts::describe(start_seconds, cell_time, &before_observers, &all_series);
    Ok(Section { title: "1,000 volumes with observers".into(), text, ratios: Vec::new(), measured: Vec::new() })
}

/// Address of the daemon's HTTP interface.
fn address(folder: &Path, programs: &Programs) -> io::Result<String> {
    let mut command = Command::new(&programs.hotset);
    let output = command.args(["status", "--json", "--socket"]).arg(control_socket(folder)).output()?;
    let status: Value = serde_json::from_slice(&output.stdout)?;
    status["api"].as_str().filter(|api| !api.is_empty()).map(str::to_owned).ok_or(io::ErrorKind::NotFound.into())
}

impl Bench {
    /// Runs the three cells of a round in this order.
    fn round(&mut self, order: [CellKind; 3], rate: Option<f64>, observers: &mut Observers) -> io::Result<Round> {
        let mut cells = [None; 3];
        for kind in order {
            cells[kind as usize] = Some(match kind {
                CellKind::Off | CellKind::Again => self.cell(rate)?,
                CellKind::On => {
                    let (address, names) = (self.address.clone(), self.names.clone());
                    observers.observe(&address, &names, || self.cell(rate))?
                }
            });
        }
        let [off, off_again, on] = cells.map(|cell| cell.expect("an order has each kind once"));
        Ok(Round { off, off_again, on })
    }

    /// Runs one cell after a warm-up.
    fn cell(&mut self, rate: Option<f64>) -> io::Result<CellFigures> {
        self.load.run(WARM_UP, rate)?;
        self.measure(self.cell_time, rate)
    }

    fn measure(&mut self, time: Duration, rate: Option<f64>) -> io::Result<CellFigures> {
        let (control_us_before, started) = (self.control_us()?, Instant::now());
        let load = self.load.run(time, rate)?;
        let elapsed_us = started.elapsed().as_secs_f64() * 1e6;
        let control_cpu_fraction = (self.control_us()? - control_us_before) / elapsed_us;
        Ok(CellFigures { load, control_cpu_fraction, resident_bytes: self.process.resident_bytes() })
    }

    /// CPU time of the control threads so far, in microseconds.
    fn control_us(&self) -> io::Result<f64> {
        let threads = self.process.threads_cpu_us()?;
        Ok(CONTROL_THREADS.iter().filter_map(|name| threads.get(*name)).sum())
    }
}
