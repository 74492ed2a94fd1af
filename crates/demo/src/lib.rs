//! `hotset demo`: two identical modelled arrays, one behind memory and flash, under the same load through real NBD
//! connections. After a while a part of the hot set moves, and the cache has to follow.
//!
//! All figures are measured: requests and latencies by the clients, hits by the daemon. The arrays are models that take
//! their time in real time; their data is in sparse files.

mod client;
mod figures;
mod live;
mod scenario;
mod screen;
mod stage;
mod summary;
mod tally;
mod workload;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use self::figures::{Figures, Reads};
use self::live::Terminal;
pub use self::scenario::run as run_scenario;
use self::screen::Look;
use self::stage::{CACHED, Control, Stage, UNCACHED};
use self::summary::{Load, Summary};
use self::tally::{Meter, Tally};
use self::workload::{HOT_STRETCHES, Orders};
use logging::{Filter, Format, LevelFilter, Log};
use terminal::render::style::Style;
use terminal::{Failure, print_json};

/// Default length of a demo in seconds.
pub const SECONDS: u64 = 30;
/// Names of the two sides.
const NAMES: [&str; 2] = ["without cache", "with hotset"];
/// Sampling interval.
const LOOK_PAUSE: Duration = Duration::from_millis(500);
/// Part of the time, at its end, that counts as warm.
const WARM_PART: f64 = 0.25;
/// Part of the time after which the hot set begins to move, and the part that moving its half takes.
const MOVES_AFTER: f64 = 0.35;
const MOVES_FOR: f64 = 0.1;

/// Output of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// Live progress, and a summary.
    Live,
    /// Only the summary.
    Summary,
    /// The summary as JSON.
    Json,
}

impl Show {
    /// The output for these options of the command line.
    pub fn new(headless: bool, json: bool) -> Show {
        match (headless, json) {
            (_, true) => Show::Json,
            (true, false) => Show::Summary,
            (false, false) => Show::Live,
        }
    }
}

/// Runs the demo for `seconds`.
pub fn run(seconds: u64, show: Show) -> Result<(), Failure> {
    let style = Style::of_stdout();
    let _log = log_problems()?;
    let stage = Stage::set(stage::parse_configuration)?;
    let mut control = stage.control()?;
    if show != Show::Json {
        println!("{}\n{}", screen::page(&control.link()?), screen::intro(style));
    }
    let sides = Sides::start(&stage)?;
    let course = watch(&sides, &mut control, seconds as f64, show, style)?;
    let (dirty_bytes_at_end, drain_seconds) = sides.end(&mut control)?;
    let summary = course.summary(dirty_bytes_at_end, drain_seconds);
    match show {
        Show::Json => print_json(&summary)?,
        Show::Live | Show::Summary => print!("{}", screen::summary(&summary, style)),
    }
    stage.strike()
}

/// The log of the demo's daemons, without what they do as they should.
fn log_problems() -> Result<Log, Failure> {
    logging::start(&Filter::new(LevelFilter::WARN), Format::Text)
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
    orders: Arc<Orders>,
}

impl Sides {
    fn start(stage: &Stage) -> Result<Sides, Failure> {
        let orders = Arc::new(Orders::default());
        let side = |export: &'static str| {
            let (socket, orders, meter) = (stage.socket(), orders.clone(), Meter::default());
            let counting = meter.clone();
            // The same seed for both sides: they get the same requests in the same order.
            let work = move || workload::run(&socket, export, 1, &counting, &orders);
            let thread = std::thread::Builder::new().name(export.to_owned()).spawn(work);
            let thread = thread.map_err(|error| Failure::failed(format!("no thread for a client: {error}")))?;
            Ok(Side { meter, thread })
        };
        Ok(Sides { with: side(CACHED)?, without: side(UNCACHED)?, orders })
    }

    /// Moves the hot set of both sides as far as it should have moved after this part of the time.
    fn drift(&self, part: f64) {
        let moved = (part - MOVES_AFTER) / MOVES_FOR * (HOT_STRETCHES / 2) as f64;
        self.orders.moved.store((moved.ceil().max(0.0) as u64).min(HOT_STRETCHES / 2), Ordering::Relaxed);
    }

    /// True if a client has ended early.
    fn has_failed(&self) -> bool {
        self.with.thread.is_finished() || self.without.thread.is_finished()
    }

    /// Ends both clients and drains the cached volume. Returns the dirty bytes at the end, and the seconds that
    /// draining took.
    fn end(self, control: &mut Control) -> Result<(u64, f64), Failure> {
        self.orders.stop.store(true, Ordering::Relaxed);
        for side in [self.with, self.without] {
            let ended = side.thread.join().map_err(|_| Failure::failed("a client panicked"))?;
            ended.map_err(|error| Failure::failed(format!("a client failed: {error}")))?;
        }
        let dirty_bytes = control.volume(CACHED)?.dirty_bytes;
        let began = Instant::now();
        control.flush(CACHED)?;
        Ok((dirty_bytes, began.elapsed().as_secs_f64()))
    }
}

/// Measurements so far, over the whole time and over its warm part.
#[derive(Default)]
struct Course {
    looks: Vec<Look>,
    without: Tally,
    with: Tally,
    reads: Reads,
    seconds: f64,
    warm: Tally,
    warm_reads: Reads,
    warm_seconds: f64,
}

impl Course {
    fn summary(self, dirty_bytes_at_end: u64, drain_seconds: f64) -> Summary {
        let without = Figures::of(&self.without, Reads::default(), self.seconds);
        let with = Figures::of(&self.with, self.reads, self.seconds);
        let warm = Figures::of(&self.warm, self.warm_reads, self.warm_seconds);
        let iops_gain = if without.iops > 0.0 { warm.iops / without.iops } else { 0.0 };
        Summary { load: Load::of_demo(), without, with, warm, iops_gain, dirty_bytes_at_end, drain_seconds }
    }
}

/// Samples both sides until the time is over.
fn watch(sides: &Sides, control: &mut Control, seconds: f64, show: Show, style: Style) -> Result<Course, Failure> {
    let mut course = Course::default();
    let mut terminal = Terminal::new(show, style);
    let (began, mut last) = (Instant::now(), Instant::now());
    while course.seconds < seconds && !sides.has_failed() {
        let rest = Duration::from_secs_f64(seconds).saturating_sub(began.elapsed());
        std::thread::sleep(LOOK_PAUSE.min(rest));
        let report = control.volume(CACHED)?;
        let (without, with) = (sides.without.meter.take(), sides.with.meter.take());
        let now = Instant::now();
        let passed = (now - last).as_secs_f64();
        last = now;
        course.seconds = (now - began).as_secs_f64();
        sides.drift(course.seconds / seconds);
        let reads = Reads { all: report.reads, memory: report.memory_hits, flash: report.flash_hits };
        let news = reads.since(course.reads);
        course.reads = reads;
        course.without.add(&without);
        course.with.add(&with);
        if course.seconds > seconds * (1.0 - WARM_PART) {
            course.warm.add(&with);
            course.warm_reads.add(news);
            course.warm_seconds += passed;
        }
        course.looks.push(Look {
            at_seconds: course.seconds,
            without: Figures::of(&without, Reads::default(), passed),
            with: Figures::of(&with, news, passed),
            dirty_bytes: report.dirty_bytes,
        });
        let progress = format!("{:.0} of {seconds:.0} s", course.seconds);
        terminal.show(&course.looks, NAMES, &progress)?;
    }
    Ok(course)
}
