//! Input of the alert rules: a status sample, the limits, and state kept from earlier samples.

use std::collections::{BTreeMap, BTreeSet};

use messages::report::AlertKind;
use messages::{FlashReport, StatusReport, VolumeReport, VolumeState};

use super::limits::Limits;

/// A problem for which an alert is raised: its subject, `None` for the daemon as a whole, and its cause.
pub type Problem = (Option<String>, String);

/// Time for which failed requests are reported after the last one.
const ERRORS_REPORTED_MS: u64 = 300_000;
/// Length of the window in which slow reads are counted.
const WINDOW_MS: u64 = 60_000;
/// Slow reads in a window below which no alert is raised.
const SLOW_READS_MIN: u64 = 3;

/// Input of an alert rule.
pub struct AlertContext<'a> {
    /// When the sample was taken.
    pub at_unix_ms: u64,
    /// The sample.
    pub status: &'a StatusReport,
    /// The thresholds.
    pub limits: &'a Limits,
    /// Failed and slow requests in earlier samples.
    pub error_windows: &'a ErrorWindows,
    /// Whether the kind is active for a subject. The threshold to stay active may be lower than the one to be raised.
    pub is_active: &'a dyn Fn(Option<&str>) -> bool,
}

impl<'a> AlertContext<'a> {
    /// The flash cache, if it is in use.
    pub fn flash(&self) -> Option<&'a FlashReport> {
        // Zero segments: its data core has not answered since the log was opened. Later the last figures stay.
        self.status.flash.as_ref().filter(|flash| flash.in_use && flash.segments > 0)
    }

    /// Volumes that are served.
    pub fn served(&self) -> impl Iterator<Item = &'a VolumeReport> {
        self.status.volumes.iter().filter(|volume| !matches!(volume.state, VolumeState::Refused | VolumeState::Standby))
    }

    /// The error window of each volume.
    pub fn error_windows(&self) -> impl Iterator<Item = (&'a str, &'a ErrorWindow)> + use<'a> {
        self.error_windows.volumes.iter().map(|(name, window)| (name.as_str(), window))
    }
}

/// For each of `volumes` its first problem of that kind, with the volume as the subject.
pub fn problems_of_kind<'a>(
    volumes: impl Iterator<Item = &'a VolumeReport>,
    kind: AlertKind,
) -> impl Iterator<Item = Problem> {
    volumes.filter_map(move |volume| {
        let problem = volume.problems.iter().find(|problem| problem.kind == kind)?;
        Some((Some(volume.name.clone()), problem.text.clone()))
    })
}

/// The error window of each volume.
#[derive(Default)]
pub struct ErrorWindows {
    volumes: BTreeMap<String, ErrorWindow>,
}

/// Failed and slow requests of a volume.
#[derive(Clone, Debug, Default)]
pub struct ErrorWindow {
    /// Requests that the backing failed, without their repetitions.
    pub errors: u64,
    /// Time until which the failures are reported.
    pub reported_until_ms: u64,
    /// Reads of the last whole window, if the slow ones are too many.
    pub slow_reads: Option<ReadCounts>,
    window_start_ms: u64,
    /// Reads before the present window.
    before_window: ReadCounts,
}

/// Numbers of reads.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadCounts {
    /// Reads of more than a second.
    pub slow: u64,
    /// All reads.
    pub all: u64,
}

impl ErrorWindows {
    /// Adds a sample.
    pub fn add_sample(&mut self, at_ms: u64, status: &StatusReport) {
        let known: BTreeSet<&str> = status.volumes.iter().map(|volume| volume.name.as_str()).collect();
        self.volumes.retain(|name, _| known.contains(name.as_str()));
        for volume in &status.volumes {
            let new_window = ErrorWindow { window_start_ms: at_ms, ..ErrorWindow::default() };
            self.volumes.entry(volume.name.clone()).or_insert(new_window).add_sample(at_ms, volume);
        }
    }
}

impl ErrorWindow {
    fn add_sample(&mut self, at_ms: u64, volume: &VolumeReport) {
        // A request that is repeated counts as one error, so the counter stands still while destage fails.
        let is_retried = at_ms < self.reported_until_ms
            && volume.problems.iter().any(|problem| problem.kind == AlertKind::DestageFailing);
        if volume.backing_errors > self.errors || is_retried {
            self.reported_until_ms = at_ms + ERRORS_REPORTED_MS;
        }
        // The counter restarts at 0 when a volume is served anew.
        self.errors = volume.backing_errors;
        if at_ms < self.window_start_ms.saturating_add(WINDOW_MS) && at_ms >= self.window_start_ms {
            return;
        }
        let counts = &volume.latency_counts.read;
        // Reads past the last bound of the histogram, which is one second.
        let slow = counts.below.last().map_or(0, |last| counts.all.saturating_sub(last.count));
        let now = ReadCounts { slow, all: counts.all };
        let in_window = ReadCounts {
            slow: now.slow.saturating_sub(self.before_window.slow),
            all: now.all.saturating_sub(self.before_window.all),
        };
        // More than one read in a hundred raises the alert; at one in two hundred or fewer it ends.
        let divisor = if self.slow_reads.is_some() { 200 } else { 100 };
        let are_too_many = in_window.slow >= SLOW_READS_MIN && in_window.slow * divisor > in_window.all;
        self.slow_reads = are_too_many.then_some(in_window);
        (self.window_start_ms, self.before_window) = (at_ms, now);
    }
}
