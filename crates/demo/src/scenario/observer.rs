//! Measures a running demo: samples both sides and keeps the results of each minute of the publication.

use std::time::Instant;

use lab::scenario::{Phase, Point, Setup};
use messages::StatusReport;

use super::super::SAMPLE_INTERVAL;
use super::super::client_counters::{ClientCounters, Meter};
use super::super::demo_daemon::Control;
use super::super::figures::{Figures, Reads};
use super::super::live::Terminal;
use super::super::screen::{Sample, ratio};
use super::clients::Clients;
use super::scale::Scale;
use terminal::Failure;

/// The last fifth of a phase gives its final figures.
const END_FRACTION: u64 = 5;
const MB: f64 = 1e6;

/// Measurements of one side over a span of time.
#[derive(Default)]
pub struct Measurements {
    counters: ClientCounters,
    reads: Reads,
    backing_read_bytes: u64,
    backing_write_bytes: u64,
    seconds: f64,
}

impl Measurements {
    /// Adds `other`.
    pub fn add(&mut self, other: &Measurements) {
        self.counters.add(&other.counters);
        self.reads.add(other.reads);
        self.backing_read_bytes += other.backing_read_bytes;
        self.backing_write_bytes += other.backing_write_bytes;
        self.seconds += other.seconds;
    }

    /// Its figures.
    pub fn figures(&self) -> Figures {
        Figures::of(&self.counters, self.reads, self.seconds)
    }

    /// Requests that failed.
    pub fn errors(&self) -> u64 {
        self.counters.errors
    }

    /// Mean latency of reads and writes together.
    pub fn latency_ms(&self) -> f64 {
        let (reads, writes) = (self.counters.reads.counts(), self.counters.writes.counts());
        (reads.sum_ns + writes.sum_ns) as f64 / 1e6 / (reads.all + writes.all).max(1) as f64
    }

    /// The data point that the lab would record.
    fn point(&self, minute: u64, state: &SideState, errors: u64) -> Point {
        let figures = self.figures();
        let writes = self.counters.writes.counts().all;
        Point {
            minute: minute as f64,
            iops: figures.iops,
            latency_ms: self.latency_ms(),
            read_hit_ratio: figures.read_hit_ratio,
            fast_write_ratio: self.counters.fast_writes as f64 / writes.max(1) as f64,
            flash_fill_ratio: state.flash_fill_ratio,
            backing_read_mb_s: self.backing_read_bytes as f64 / MB / self.seconds,
            backing_write_mb_s: self.backing_write_bytes as f64 / MB / self.seconds,
            errors,
            ..Point::default()
        }
    }
}

/// State of a side at a sample.
#[derive(Clone, Copy, Default)]
struct SideState {
    dirty_bytes: u64,
    flash_fill_ratio: f64,
}

/// One side with the counters of the last sample.
pub struct Side {
    control: Control,
    meter: Meter,
    reads: Reads,
    backing_read_bytes: u64,
    backing_write_bytes: u64,
    sampled_at: Instant,
}

impl Side {
    /// A side before its first request.
    pub fn new(control: Control, meter: Meter) -> Side {
        let (reads, sampled_at) = (Reads::default(), Instant::now());
        Side { control, meter, reads, backing_read_bytes: 0, backing_write_bytes: 0, sampled_at }
    }

    /// Takes a sample: measurements since the last one, and the state. Fails if the daemon has ended or is stopping.
    fn take_sample(&mut self) -> Result<(Measurements, SideState), Failure> {
        let report = self.control.status()?;
        if report.stopping {
            return Err(Failure::failed("the daemon is stopping"));
        }
        let counters = self.meter.take();
        let now = Instant::now();
        let seconds = (now - std::mem::replace(&mut self.sampled_at, now)).as_secs_f64();
        let sum = |value: fn(&messages::VolumeReport) -> u64| report.volumes.iter().map(value).sum::<u64>();
        let reads = Reads {
            total: sum(|volume| volume.reads),
            memory: sum(|volume| volume.memory_hits),
            flash: sum(|volume| volume.flash_hits),
        };
        let (read, written) = (sum(|volume| volume.backing_read_bytes), sum(|volume| volume.backing_write_bytes));
        let measurements = Measurements {
            counters,
            reads: reads.since(std::mem::replace(&mut self.reads, reads)),
            backing_read_bytes: read.saturating_sub(std::mem::replace(&mut self.backing_read_bytes, read)),
            backing_write_bytes: written.saturating_sub(std::mem::replace(&mut self.backing_write_bytes, written)),
            seconds,
        };
        let dirty_bytes = sum(|volume| volume.dirty_bytes + volume.flash_dirty_bytes);
        Ok((measurements, SideState { dirty_bytes, flash_fill_ratio: flash_fill_ratio(&report) }))
    }

    /// Discards dirty data for a fast stop. A daemon that has ended has none.
    pub fn discard(mut self) {
        let volumes = self.control.status().map(|report| report.volumes).unwrap_or_default();
        for volume in volumes {
            // If it fails, the stop takes longer.
            let _ = self.control.discard(&volume.name);
        }
    }
}

fn flash_fill_ratio(report: &StatusReport) -> f64 {
    let pages = report.flash.as_ref().map(|flash| &flash.pages).filter(|pages| pages.slots > 0);
    pages.map_or(0.0, |pages| pages.pages as f64 / pages.slots as f64)
}

/// Results of a phase, with the cache first, then without.
#[derive(Default)]
pub struct PhaseResults {
    /// Its name.
    pub name: String,
    /// The whole phase.
    pub whole: [Measurements; 2],
    /// Its last fifth.
    pub end: [Measurements; 2],
    /// One point per minute.
    pub points: [Vec<Point>; 2],
}

/// Results of a demo.
#[derive(Default)]
pub struct DemoResults {
    /// The phases that were run.
    pub phases: Vec<PhaseResults>,
    /// Duration.
    pub seconds: f64,
    /// A side ended early.
    pub cut_short: bool,
    /// Dirty data at the end, with the cache.
    pub dirty_bytes: u64,
}

/// The observer of a demo.
pub struct Observer<'a> {
    setup: &'a Setup,
    scale: &'a Scale,
    names: [&'a str; 2],
    sides: &'a mut [Side; 2],
    terminal: Terminal,
    start: Instant,
    /// Minutes of the publication that have begun.
    minutes: u32,
    samples: Vec<Sample>,
    /// Measurements since the last display.
    since_display: [Measurements; 2],
    errors: [u64; 2],
    results: DemoResults,
}

impl<'a> Observer<'a> {
    /// An observer of these sides, the one with the cache first, from now on.
    pub fn new(
        setup: &'a Setup,
        scale: &'a Scale,
        names: [&'a str; 2],
        sides: &'a mut [Side; 2],
        terminal: Terminal,
    ) -> Observer<'a> {
        Observer {
            setup,
            scale,
            names,
            sides,
            terminal,
            start: Instant::now(),
            minutes: 0,
            samples: Vec::new(),
            since_display: Default::default(),
            errors: [0; 2],
            results: DemoResults::default(),
        }
    }

    /// Observes until all phases have run or a side has ended.
    pub fn observe(mut self, clients: &[Clients; 2]) -> Result<DemoResults, Failure> {
        for phase in &self.setup.phases {
            self.results.phases.push(PhaseResults { name: phase.name.clone(), ..PhaseResults::default() });
            for minute in 1..=phase.minutes {
                if clients.iter().any(Clients::have_ended) || !self.observe_minute(phase, minute)? {
                    self.results.cut_short = true;
                    return Ok(self.results);
                }
            }
        }
        Ok(self.results)
    }

    /// Observes a minute of the publication, number `minute` of the phase; false if a side has ended.
    fn observe_minute(&mut self, phase: &Phase, minute: u64) -> Result<bool, Failure> {
        let minute_length = self.scale.minute;
        let sample_count =
            u32::try_from(minute_length.as_nanos().div_ceil(SAMPLE_INTERVAL.as_nanos()).max(1)).unwrap_or(u32::MAX);
        let mut minute_measurements = <[Measurements; 2]>::default();
        let mut states = [SideState::default(); 2];
        self.minutes += 1;
        for sample in 1..=sample_count {
            let due = minute_length * (self.minutes - 1) + minute_length * sample / sample_count;
            std::thread::sleep(due.saturating_sub(self.start.elapsed()));
            for (index, side) in self.sides.iter_mut().enumerate() {
                let Ok((measurements, state)) = side.take_sample() else { return Ok(false) };
                minute_measurements[index].add(&measurements);
                self.since_display[index].add(&measurements);
                states[index] = state;
            }
            self.show(phase, &states[0])?;
        }
        let results = self.results.phases.last_mut().expect("a phase is running");
        for (index, measurements) in minute_measurements.iter().enumerate() {
            self.errors[index] += measurements.counters.errors;
            results.points[index].push(measurements.point(minute, &states[index], self.errors[index]));
            results.whole[index].add(measurements);
            if minute > phase.minutes - phase.minutes.div_ceil(END_FRACTION) {
                results.end[index].add(measurements);
            }
        }
        Ok(true)
    }

    /// Shows the figures since the last display, if enough time has passed.
    fn show(&mut self, phase: &Phase, state: &SideState) -> Result<(), Failure> {
        self.results.seconds = self.start.elapsed().as_secs_f64();
        self.results.dirty_bytes = state.dirty_bytes;
        if self.since_display[0].seconds < SAMPLE_INTERVAL.as_secs_f64() * 0.8 {
            return Ok(());
        }
        let [with, without] = std::mem::take(&mut self.since_display).map(|measurements| measurements.figures());
        let (at_seconds, dirty_bytes) = (self.results.seconds, state.dirty_bytes);
        self.samples.push(Sample { at_seconds, without, with, dirty_bytes });
        let minute = match self.scale.timed {
            true => format!(", minute {} of {}", self.minutes, self.setup.minutes()),
            false => String::new(),
        };
        let flash = match self.setup.with.flash {
            Some(_) => format!(
                "; reads from flash {}, flash {} full",
                ratio(with.flash_hit_ratio),
                ratio(state.flash_fill_ratio)
            ),
            None => String::new(),
        };
        let progress = format!("{:.0} of {} s: {}{minute}{flash}", at_seconds, self.scale.seconds, phase.name);
        self.terminal.show(&self.samples, self.names, &progress)
    }
}
