//! `hotset demo`: two identical modelled arrays, one behind memory and flash, under the same load through real NBD
//! connections. After a while a part of the hot set moves, and the cache has to follow.
//!
//! All figures are measured: requests and latencies by the clients, hits by the daemon. The arrays are models that take
//! their time in real time; their data is in sparse files.

mod client;
mod client_counters;
mod demo_daemon;
mod figures;
mod live;
mod scenario;
mod screen;
mod summary;
mod workload;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use self::client_counters::{ClientCounters, Meter};
use self::demo_daemon::{CACHED, Control, DemoDaemon, UNCACHED};
use self::figures::{Figures, Reads};
use self::live::Terminal;
pub use self::scenario::run as run_scenario;
use self::screen::Sample;
use self::summary::{Load, Summary};
use self::workload::{HOT_EXTENTS, WorkloadControl};
use logging::{Filter, Format, LevelFilter, Log};
use terminal::render::style::Style;
use terminal::{Failure, print_json};

/// Default length of a demo in seconds.
pub const DEFAULT_SECONDS: u64 = 30;
/// Names of the two sides.
const NAMES: [&str; 2] = ["without cache", "with hotset"];
/// Sampling interval.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);
/// Fraction of the time, at its end, that counts as warm.
const WARM_FRACTION: f64 = 0.25;
/// Fraction of the time after which the hot set begins to move, and the fraction that moving half of it takes.
const MOVE_START_FRACTION: f64 = 0.35;
const MOVE_FRACTION: f64 = 0.1;

/// Output of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputMode {
    /// Live progress, and a summary.
    Live,
    /// Only the summary.
    Summary,
    /// The summary as JSON.
    Json,
}

impl OutputMode {
    /// The output for these options of the command line.
    pub fn new(headless: bool, json: bool) -> OutputMode {
        match (headless, json) {
            (_, true) => OutputMode::Json,
            (true, false) => OutputMode::Summary,
            (false, false) => OutputMode::Live,
        }
    }
}

/// Runs the demo for `seconds`.
pub fn run(seconds: u64, show: OutputMode) -> Result<(), Failure> {
    let style = Style::of_stdout();
    let _log = log_warnings()?;
    let daemon = DemoDaemon::start(demo_daemon::parse_configuration)?;
    let mut control = daemon.control()?;
    if show != OutputMode::Json {
        println!("{}\n{}", screen::page(&control.link()?), screen::intro(style));
    }
    let sides = Sides::start(&daemon)?;
    let results = measure(&sides, &mut control, seconds as f64, show, style)?;
    let (dirty_bytes_at_end, drain_seconds) = sides.stop(&mut control)?;
    let summary = results.summary(dirty_bytes_at_end, drain_seconds);
    match show {
        OutputMode::Json => print_json(&summary)?,
        OutputMode::Live | OutputMode::Summary => print!("{}", screen::summary(&summary, style)),
    }
    daemon.stop()
}

/// Logs warnings and errors of the demo's daemons. Of alerts only the critical ones are logged: a scenario with a
/// single flash device always has a warning.
fn log_warnings() -> Result<Log, Failure> {
    let filter = Filter::new(LevelFilter::WARN).with("events=error").expect("a known subsystem and level");
    logging::start(&filter, Format::Text)
        .map_err(|error| Failure::failed(format!("the log cannot be started: {error}")))
}

/// A client's thread.
struct Side {
    meter: Meter,
    thread: JoinHandle<std::io::Result<()>>,
}

/// The clients of both sides.
struct Sides {
    with: Side,
    without: Side,
    load_control: Arc<WorkloadControl>,
}

impl Sides {
    fn start(daemon: &DemoDaemon) -> Result<Sides, Failure> {
        let load_control = Arc::new(WorkloadControl::default());
        let side = |export: &'static str| {
            let (socket, load_control, meter) = (daemon.socket(), load_control.clone(), Meter::default());
            let client_meter = meter.clone();
            // The same seed for both sides: they get the same requests in the same order.
            let work = move || workload::run(&socket, export, 1, &client_meter, &load_control);
            let thread = std::thread::Builder::new().name(export.to_owned()).spawn(work);
            let thread = thread
                .map_err(|error| Failure::failed(format!("the thread of a client cannot be started: {error}")))?;
            Ok(Side { meter, thread })
        };
        Ok(Sides { with: side(CACHED)?, without: side(UNCACHED)?, load_control })
    }

    /// Moves the hot set of both sides as far as it should have moved after this fraction of the time.
    fn move_hot_set(&self, fraction: f64) {
        let moved_extents = (fraction - MOVE_START_FRACTION) / MOVE_FRACTION * (HOT_EXTENTS / 2) as f64;
        self.load_control
            .moved_extents
            .store((moved_extents.ceil().max(0.0) as u64).min(HOT_EXTENTS / 2), Ordering::Relaxed);
    }

    /// True if a client has ended early.
    fn has_failed(&self) -> bool {
        self.with.thread.is_finished() || self.without.thread.is_finished()
    }

    /// Stops both clients and flushes the cached volume. Returns the dirty bytes at the end, and the seconds that
    /// the flush took.
    fn stop(self, control: &mut Control) -> Result<(u64, f64), Failure> {
        self.load_control.stop.store(true, Ordering::Relaxed);
        for side in [self.with, self.without] {
            let ended = side.thread.join().map_err(|_| Failure::failed("a client panicked"))?;
            ended.map_err(|error| Failure::failed(format!("a client failed: {error}")))?;
        }
        let dirty_bytes = control.volume(CACHED)?.dirty_bytes;
        let start = Instant::now();
        control.flush(CACHED)?;
        Ok((dirty_bytes, start.elapsed().as_secs_f64()))
    }
}

/// Measurements so far, over the whole time and over its warm fraction.
#[derive(Default)]
struct Results {
    samples: Vec<Sample>,
    without: ClientCounters,
    with: ClientCounters,
    reads: Reads,
    seconds: f64,
    warm: ClientCounters,
    warm_reads: Reads,
    warm_seconds: f64,
}

impl Results {
    fn summary(self, dirty_bytes_at_end: u64, drain_seconds: f64) -> Summary {
        let without = Figures::of(&self.without, Reads::default(), self.seconds);
        let with = Figures::of(&self.with, self.reads, self.seconds);
        let warm = Figures::of(&self.warm, self.warm_reads, self.warm_seconds);
        let iops_gain = if without.iops > 0.0 { warm.iops / without.iops } else { 0.0 };
        Summary { load: Load::of_demo(), without, with, warm, iops_gain, dirty_bytes_at_end, drain_seconds }
    }
}

/// Samples both sides until the time is over.
fn measure(
    sides: &Sides,
    control: &mut Control,
    seconds: f64,
    show: OutputMode,
    style: Style,
) -> Result<Results, Failure> {
    let mut results = Results::default();
    let mut terminal = Terminal::new(show, style);
    let (start, mut last_sample) = (Instant::now(), Instant::now());
    while results.seconds < seconds && !sides.has_failed() {
        let remaining = Duration::from_secs_f64(seconds).saturating_sub(start.elapsed());
        std::thread::sleep(SAMPLE_INTERVAL.min(remaining));
        let report = control.volume(CACHED)?;
        let (without, with) = (sides.without.meter.take(), sides.with.meter.take());
        let now = Instant::now();
        let elapsed_seconds = (now - last_sample).as_secs_f64();
        last_sample = now;
        results.seconds = (now - start).as_secs_f64();
        sides.move_hot_set(results.seconds / seconds);
        let reads = Reads { total: report.reads, memory: report.memory_hits, flash: report.flash_hits };
        let new_reads = reads.since(results.reads);
        results.reads = reads;
        results.without.add(&without);
        results.with.add(&with);
        if results.seconds > seconds * (1.0 - WARM_FRACTION) {
            results.warm.add(&with);
            results.warm_reads.add(new_reads);
            results.warm_seconds += elapsed_seconds;
        }
        results.samples.push(Sample {
            at_seconds: results.seconds,
            without: Figures::of(&without, Reads::default(), elapsed_seconds),
            with: Figures::of(&with, new_reads, elapsed_seconds),
            dirty_bytes: report.dirty_bytes,
        });
        let progress = format!("{:.0} of {seconds:.0} s", results.seconds);
        terminal.show(&results.samples, NAMES, &progress)?;
    }
    Ok(results)
}
