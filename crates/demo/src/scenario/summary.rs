//! The summary of a demo: the gain of each phase, and published figures beside measured ones.

use lab::scenario::report::{bounds, figure};
use lab::scenario::{Check, Point, Scenario};
use messages::StatusReport;
use serde::Serialize;

use super::super::figures::Figures;
use super::super::screen::ratio;
use super::observer::{DemoResults, Measurements, PhaseResults};
use super::scale::Scale;
use terminal::render::style::Style;
use terminal::render::table::{Side, Table};
use units::{show_bytes, show_count, show_micros};

/// The summary, as JSON shows it.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The scenario.
    pub scenario: &'static str,
    /// The publication.
    pub source: &'static str,
    /// The part that stands for the whole, or that is left out.
    pub part: &'static str,
    /// Divisor of all bytes.
    pub byte_divisor: u64,
    /// Duration of a minute of the publication.
    pub minute_seconds: f64,
    /// Duration.
    pub seconds: f64,
    /// The demo ended early.
    pub cut_short: bool,
    /// The demo is too short for the cache to warm up as in the publication, so its checks have no verdict.
    pub shortened: bool,
    /// Set-up of the daemon with the cache, by its own report.
    pub with: DaemonSetup,
    /// Set-up of the other daemon.
    pub without: DaemonSetup,
    /// Phases in order, phases of one name together.
    pub phases: Vec<PhaseSummary>,
    /// Published figures with the measured values; empty if the demo ended early.
    pub checks: Vec<CheckSummary>,
    /// Failed requests of both sides.
    pub errors: u64,
    /// Dirty data at the end, with the cache.
    pub dirty_bytes_at_end: u64,
}

/// Set-up of a daemon.
#[derive(Clone, Debug, Serialize)]
pub struct DaemonSetup {
    /// Memory.
    pub memory_bytes: u64,
    /// Size of each flash device.
    pub flash_bytes: Vec<u64>,
    /// Volumes.
    pub volumes: Vec<VolumeSetup>,
}

/// A volume of a daemon.
#[derive(Clone, Debug, Serialize)]
pub struct VolumeSetup {
    /// Its name.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// Write policy.
    pub policy: String,
}

/// Summary of all phases of one name.
#[derive(Clone, Debug, Serialize)]
pub struct PhaseSummary {
    /// The name.
    pub name: String,
    /// Without the cache.
    pub without: Figures,
    /// With it.
    pub with: Figures,
    /// Mean latency of all requests without the cache.
    pub latency_ms_without: f64,
    /// Mean latency of all requests with the cache.
    pub latency_ms_with: f64,
    /// Requests per second with the cache, divided by those without it.
    pub gain: f64,
    /// The same for the last fifth of the phases.
    pub gain_at_end: f64,
}

/// A published figure.
#[derive(Clone, Debug, Serialize)]
pub struct CheckSummary {
    /// Its name.
    pub name: String,
    /// The measured value.
    pub value: f64,
    /// Published minimum.
    pub low: Option<f64>,
    /// Published maximum.
    pub high: Option<f64>,
    /// The publication.
    pub source: &'static str,
    /// The measured value is within the bounds; `None` in a shortened demo.
    pub reached: Option<bool>,
    #[serde(skip)]
    bounds: String,
}

impl From<StatusReport> for DaemonSetup {
    fn from(report: StatusReport) -> DaemonSetup {
        let volumes = report.volumes.into_iter();
        DaemonSetup {
            memory_bytes: report.memory_bytes,
            flash_bytes: report.flash.iter().flat_map(|flash| &flash.devices).map(|device| device.size_bytes).collect(),
            volumes: volumes
                .map(|volume| VolumeSetup { name: volume.name, size_bytes: volume.size_bytes, policy: volume.policy })
                .collect(),
        }
    }
}

impl CheckSummary {
    fn of(check: Check, has_verdict: bool) -> CheckSummary {
        let (reached, bounds) = (has_verdict.then(|| check.passed()), bounds(&check));
        let Check { name, value, low, high, source } = check;
        CheckSummary { name, value, low, high, source, reached, bounds }
    }
}

impl PhaseSummary {
    fn of(name: &str, phases: &[&PhaseResults]) -> PhaseSummary {
        let sum = |measurements_of: fn(&PhaseResults) -> &[Measurements; 2], side: usize| {
            let mut sum = Measurements::default();
            phases.iter().for_each(|phase| sum.add(&measurements_of(phase)[side]));
            sum
        };
        let [with, without] = [0, 1].map(|side| sum(|phase| &phase.whole, side));
        let [end_with, end_without] = [0, 1].map(|side| sum(|phase| &phase.end, side).figures().iops);
        let gain = |with: f64, without: f64| if without > 0.0 { with / without } else { 0.0 };
        let (latency_ms_without, latency_ms_with) = (without.latency_ms(), with.latency_ms());
        let (with, without) = (with.figures(), without.figures());
        PhaseSummary {
            name: name.to_owned(),
            gain: gain(with.iops, without.iops),
            gain_at_end: gain(end_with, end_without),
            without,
            with,
            latency_ms_without,
            latency_ms_with,
        }
    }
}

impl Summary {
    /// The summary of a demo on daemons with these reports.
    pub fn of(scenario: &Scenario, scale: &Scale, reports: [StatusReport; 2], results: &DemoResults) -> Summary {
        let mut phases: Vec<(&str, Vec<&PhaseResults>)> = Vec::new();
        for phase in results.phases.iter().filter(|phase| !phase.points[0].is_empty()) {
            match phases.iter_mut().find(|(name, _)| *name == phase.name) {
                Some((_, same)) => same.push(phase),
                None => phases.push((&phase.name, vec![phase])),
            }
        }
        let points =
            |side: usize| results.phases.iter().map(|phase| phase.points[side].clone()).collect::<Vec<Vec<Point>>>();
        let checks = if results.cut_short { Vec::new() } else { (scenario.demo().checks)(&points(0), &points(1)) };
        let [with, without] = reports.map(DaemonSetup::from);
        Summary {
            scenario: scenario.name,
            source: scenario.source,
            part: scenario.demo().part,
            byte_divisor: scale.byte_divisor,
            minute_seconds: scale.minute.as_secs_f64(),
            seconds: results.seconds,
            cut_short: results.cut_short,
            shortened: scale.is_short(),
            with,
            without,
            phases: phases.iter().map(|(name, same)| PhaseSummary::of(name, same)).collect(),
            checks: checks.into_iter().map(|check| CheckSummary::of(check, !scale.is_short())).collect(),
            errors: results.phases.iter().flat_map(|phase| &phase.whole).map(Measurements::errors).sum(),
            dirty_bytes_at_end: results.dirty_bytes,
        }
    }

    /// The summary as text.
    pub fn text(&self, names: [&'static str; 2], style: Style) -> String {
        let head = format!(
            "{:.0} seconds; \"at its end\" is the last fifth of each phase; memory and flash are the fractions of reads \
             that they served",
            self.seconds
        );
        let mut text = format!("\n{}\n{}\n", style.bold(&head), self.gain_table(names).render(style).trim_end());
        if !self.checks.is_empty() {
            let head = format!("Published ({}) and measured", self.source);
            text += &format!("\n{}\n{}\n", style.bold(&head), self.published_table().render(style).trim_end());
        }
        if self.shortened && !self.cut_short {
            text += &format!(
                "No verdict: in {:.0} seconds the cache does not warm up as in the publication; `--seconds 180` \
                 compares.\n",
                self.seconds
            );
        }
        text += &format!("\n{} dirty at the end, discarded with the arrays.", show_bytes(self.dirty_bytes_at_end));
        text += match self.cut_short {
            true => " Ended early, so there is no comparison with the published figures.\n",
            false => " ",
        };
        if !self.cut_short {
            text += &format!("`hotset lab run {}` runs it at a larger scale, in virtual time.\n", self.scenario);
        }
        text
    }

    fn gain_table(&self, names: [&'static str; 2]) -> Table {
        let mut table = Table::new(&[
            ("requests/s", Side::Left),
            (names[0], Side::Right),
            (names[1], Side::Right),
            ("gain", Side::Right),
            ("at its end", Side::Right),
            ("latency", Side::Right),
            ("with", Side::Right),
            ("memory", Side::Right),
            ("flash", Side::Right),
        ]);
        for phase in &self.phases {
            let count = |figures: &Figures| show_count(figures.iops.round() as u64);
            let latency = |ms: f64| show_micros(ms * 1e3);
            let Figures { read_hit_ratio, flash_hit_ratio, .. } = phase.with;
            table.row(vec![
                phase.name.clone(),
                count(&phase.without),
                count(&phase.with),
                show_gain(phase.gain),
                show_gain(phase.gain_at_end),
                latency(phase.latency_ms_without),
                latency(phase.latency_ms_with),
                ratio(read_hit_ratio - flash_hit_ratio),
                ratio(flash_hit_ratio),
            ]);
        }
        table
    }

    fn published_table(&self) -> Table {
        let columns = [("", Side::Left), ("published", Side::Left), ("measured", Side::Right), ("", Side::Left)];
        let mut table = Table::new(&columns);
        for check in &self.checks {
            let reached = if check.reached == Some(false) { "not reached" } else { "" };
            table.row(vec![check.name.clone(), check.bounds.clone(), figure(check.value), reached.to_owned()]);
        }
        table
    }
}

fn show_gain(gain: f64) -> String {
    if gain >= 100.0 { format!("{gain:.0} x") } else { format!("{gain:.2} x") }
}
