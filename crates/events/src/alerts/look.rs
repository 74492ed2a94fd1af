//! What kinds are found in: a sample, the limits, and what is remembered of samples before.

use std::collections::{BTreeMap, BTreeSet};

use control::{FlashReport, StatusReport, VolumeReport, VolumeState};

use super::Limits;
use super::kinds::Cause;

/// Failed requests are told for so long after the last one.
const TOLD_MS: u64 = 300_000;
/// Reads are judged by the minute.
const WINDOW_MS: u64 = 60_000;
/// Fewer slow reads in a minute are chance.
const SLOW_MIN: u64 = 3;

/// What kinds are found in.
pub struct Look<'a> {
    /// When the sample was taken.
    pub at_unix_ms: u64,
    /// The sample.
    pub status: &'a StatusReport,
    /// From when on something is wrong.
    pub limits: &'a Limits,
    /// What is remembered.
    pub memory: &'a Memory,
    /// Whether the kind is active for a subject: it may need less to stay than to come up.
    pub is_active: &'a dyn Fn(Option<&str>) -> bool,
}

impl<'a> Look<'a> {
    /// The flash cache, where it is in use.
    pub fn flash(&self) -> Option<&'a FlashReport> {
        // One whose data core does not answer tells nothing.
        self.status.flash.as_ref().filter(|flash| flash.in_use && flash.segments > 0)
    }

    /// Volumes that are served.
    pub fn served(&self) -> impl Iterator<Item = &'a VolumeReport> {
        self.status.volumes.iter().filter(|volume| volume.state != VolumeState::Refused)
    }

    /// Volumes with figures that did not please, lately.
    pub fn troubled(&self) -> impl Iterator<Item = (&'a str, &'a Trouble)> + use<'a> {
        self.memory.volumes.iter().map(|(name, trouble)| (name.as_str(), trouble))
    }
}

/// Of each of `volumes` the sentence of its own that has `part` in it: the volume as the subject, the sentence as the cause.
pub fn sentences<'a>(volumes: impl Iterator<Item = &'a VolumeReport>, part: &str) -> impl Iterator<Item = Cause> {
    volumes.filter_map(move |volume| {
        let sentence = volume.alerts.iter().find(|alert| alert.contains(part))?;
        Some((Some(volume.name.clone()), sentence.clone()))
    })
}

/// What is remembered of each volume.
#[derive(Default)]
pub struct Memory {
    volumes: BTreeMap<String, Trouble>,
}

/// A volume's counters of what should not be.
#[derive(Clone, Debug, Default)]
pub struct Trouble {
    /// Requests that the backing failed.
    pub errors: u64,
    /// Until when that is told.
    pub told_until_ms: u64,
    /// Slow reads of the last whole minute, and all reads, where those are too many.
    pub slow: Option<(u64, u64)>,
    /// Where this minute began: when, slow reads, all reads.
    window: (u64, u64, u64),
}

impl Memory {
    /// Takes a sample in.
    pub fn see(&mut self, at_ms: u64, status: &StatusReport) {
        let known: BTreeSet<&str> = status.volumes.iter().map(|volume| volume.name.as_str()).collect();
        self.volumes.retain(|name, _| known.contains(name.as_str()));
        for volume in &status.volumes {
            let first = Trouble { window: (at_ms, 0, 0), ..Trouble::default() };
            self.volumes.entry(volume.name.clone()).or_insert(first).see(at_ms, volume);
        }
    }
}

impl Trouble {
    fn see(&mut self, at_ms: u64, volume: &VolumeReport) {
        if volume.backing_errors > self.errors {
            self.told_until_ms = at_ms + TOLD_MS;
        }
        // A volume that was served anew counts from 0.
        self.errors = volume.backing_errors;
        let (began, slow_before, all_before) = self.window;
        if at_ms < began.saturating_add(WINDOW_MS) && at_ms >= began {
            return;
        }
        let counts = &volume.latency_counts.read;
        // Past the last bound of the histogram, which is a second.
        let slow = counts.below.last().map_or(0, |last| counts.all.saturating_sub(last.count));
        let (slow_now, all_now) = (slow.saturating_sub(slow_before), counts.all.saturating_sub(all_before));
        // One in a hundred, and to be over it, one in two hundred.
        let share = if self.slow.is_some() { 200 } else { 100 };
        let is_slow = slow_now >= SLOW_MIN && slow_now * share > all_now;
        self.slow = is_slow.then_some((slow_now, all_now));
        self.window = (at_ms, slow, counts.all);
    }
}
