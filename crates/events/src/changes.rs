//! Differences between two status samples, whatever caused them, and the effect of requested changes.
//!
//! A requested change is reported once, with its actor, when it has ended. While the change is in progress, and in the
//! sample in which it ends, the comparison of samples skips its volume.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use messages::report::EventKind;
use messages::{StatusReport, VolumeReport};

use super::log::NewEvent;

/// A property of a volume that is compared: name, kind of event, how it is read.
type Property = (&'static str, EventKind, fn(&VolumeReport) -> Cow<'_, str>);

const PROPERTIES: [Property; 13] = [
    ("state", EventKind::State, |volume| volume.state.name().into()),
    ("policy", EventKind::Policy, |volume| volume.policy.as_str().into()),
    ("size", EventKind::Limit, |volume| format!("{} bytes", volume.size_bytes).into()),
    ("memory_min", EventKind::Limit, |volume| volume.memory.min.as_str().into()),
    ("memory_max", EventKind::Limit, |volume| volume.memory.max.as_str().into()),
    ("flash_min", EventKind::Limit, |volume| volume.flash.min.as_str().into()),
    ("flash_max", EventKind::Limit, |volume| volume.flash.max.as_str().into()),
    ("shares", EventKind::Limit, |volume| volume.qos.shares.to_string().into()),
    ("limit_iops", EventKind::Limit, |volume| volume.qos.limit_iops.to_string().into()),
    ("limit_bytes", EventKind::Limit, |volume| volume.qos.limit_bytes.to_string().into()),
    ("burst_iops", EventKind::Limit, |volume| volume.qos.burst_iops.to_string().into()),
    ("burst_bytes", EventKind::Limit, |volume| volume.qos.burst_bytes.to_string().into()),
    ("reservation_iops", EventKind::Limit, |volume| volume.qos.reservation_iops.to_string().into()),
];

/// The scope of a requested change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangeScope {
    /// One volume.
    Volume(String),
    /// All volumes.
    All,
}

type Properties = [String; PROPERTIES.len()];

fn properties(volume: &VolumeReport) -> Properties {
    PROPERTIES.map(|(_, _, read)| read(volume).into_owned())
}

/// The differing properties: kind, and a text such as `policy changed from write-back to write-through`.
fn differences(before: &Properties, now: &VolumeReport) -> Vec<(EventKind, String)> {
    let pairs = PROPERTIES.iter().zip(before);
    let differing = pairs.filter_map(|((name, kind, read), before)| {
        let now = read(now);
        (now != before.as_str()).then(|| (*kind, format!("{name} changed from {before} to {now}")))
    });
    differing.collect()
}

/// Compares each status sample with the one before.
#[derive(Default)]
pub struct Tracker {
    /// The sample before; `None` before the first.
    snapshot: Option<Snapshot>,
    /// Scopes of requested changes in progress.
    in_progress: Vec<ChangeScope>,
    /// Scopes of all requested changes that were in progress at any time since the last [`Tracker::begin_sample`].
    touched: BTreeSet<ChangeScope>,
}

#[derive(Default)]
struct Snapshot {
    volumes: BTreeMap<String, Properties>,
    /// Name and state by device number.
    devices: BTreeMap<u32, (String, String)>,
    job: Option<String>,
}

impl Tracker {
    /// Starts a comparison. Volumes under change between this call and [`Tracker::compare_sample`] are skipped.
    pub fn begin_sample(&mut self) {
        self.touched = self.in_progress.iter().cloned().collect();
    }

    /// Compares `status` with the sample before and returns the differences. The first sample has none.
    pub fn compare_sample(&mut self, status: &StatusReport) -> Vec<NewEvent> {
        // The status of a core that does not answer lacks its volumes and devices.
        let (cores, cores_answer) = (&status.cores, !status.cores.is_empty());
        let answers = |volume: &VolumeReport| cores.iter().any(|core| core.core == volume.core);
        let Some(snapshot) = &mut self.snapshot else {
            if cores_answer {
                let volumes = status.volumes.iter().filter(|volume| answers(volume));
                let volumes = volumes.map(|volume| (volume.name.clone(), properties(volume))).collect();
                self.snapshot =
                    Some(Snapshot { volumes, devices: devices(status).unwrap_or_default(), job: job(status) });
            }
            return Vec::new();
        };
        let mut events = Vec::new();
        if !self.touched.contains(&ChangeScope::All) {
            let is_touched = |name: &String| self.touched.contains(&ChangeScope::Volume(name.clone()));
            let is_compared = |volume: &&VolumeReport| answers(volume) && !is_touched(&volume.name);
            for volume in status.volumes.iter().filter(is_compared) {
                let mut record = |kind, text| events.push(NewEvent::new(kind, Some(&volume.name), text));
                match snapshot.volumes.get_mut(&volume.name) {
                    None => {
                        record(EventKind::State, format!("added: {}, {}", volume.state.name(), volume.policy));
                        snapshot.volumes.insert(volume.name.clone(), properties(volume));
                    }
                    Some(before) => {
                        let differing = differences(before, volume);
                        if !differing.is_empty() {
                            *before = properties(volume);
                            differing.into_iter().for_each(|(kind, text)| record(kind, text));
                        }
                    }
                }
            }
            let present: BTreeSet<&String> = status.volumes.iter().map(|volume| &volume.name).collect();
            snapshot.volumes.retain(|name, _| {
                let is_kept = present.contains(name) || is_touched(name);
                if !is_kept {
                    events.push(NewEvent::new(EventKind::State, Some(name), "removed"));
                }
                is_kept
            });
        }
        if let Some(devices) = devices(status).filter(|_| cores_answer) {
            let reasons = reasons(status);
            for (number, (name, state)) in &devices {
                let reason = reasons.get(number).map_or(String::new(), |reason| format!(": {reason}"));
                let text = match snapshot.devices.get(number) {
                    None => format!("added: {state}{reason}"),
                    Some((_, before)) if before != state => format!("changed from {before} to {state}{reason}"),
                    Some(_) => continue,
                };
                events.push(NewEvent::new(EventKind::Device, Some(name), text));
            }
            for (number, (name, _)) in snapshot.devices.iter().filter(|(number, _)| !devices.contains_key(number)) {
                let text = format!("device {number} removed");
                events.push(NewEvent::new(EventKind::Device, Some(name), text));
            }
            snapshot.devices = devices;
            let job = job(status);
            if snapshot.job != job {
                let event = |job: &String, state| NewEvent::new(EventKind::Device, None, format!("{job} has {state}"));
                events.extend(snapshot.job.iter().map(|job| event(job, "ended")));
                events.extend(job.iter().map(|job| event(job, "begun")));
                snapshot.job = job;
            }
        }
        events
    }

    /// Marks the scope of a requested change that begins.
    pub fn begin_change(&mut self, scope: ChangeScope) {
        self.touched.insert(scope.clone());
        self.in_progress.push(scope);
    }

    /// Unmarks the scope of a requested change that has ended.
    pub fn end_change(&mut self, scope: &ChangeScope) {
        if let Some(index) = self.in_progress.iter().position(|in_progress| in_progress == scope) {
            self.in_progress.swap_remove(index);
        }
    }

    /// The differences of a volume after a requested change, in words; stores its present state.
    pub fn take_differences(&mut self, now: &VolumeReport) -> Vec<String> {
        let Some(snapshot) = &mut self.snapshot else { return Vec::new() };
        let before = snapshot.volumes.insert(now.name.clone(), properties(now));
        before.map_or(Vec::new(), |before| differences(&before, now).into_iter().map(|(_, text)| text).collect())
    }

    /// Forgets a volume that was removed on request.
    pub fn remove_volume(&mut self, name: &str) {
        self.snapshot.iter_mut().for_each(|snapshot| drop(snapshot.volumes.remove(name)));
    }

    /// Stores the volumes as they are after a change that may concern any of them.
    pub fn set_volumes(&mut self, volumes: &[VolumeReport]) {
        let properties_by_name = volumes.iter().map(|volume| (volume.name.clone(), properties(volume)));
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.volumes = properties_by_name.collect();
        }
    }
}

/// The flash devices; `None` if the status has none of them.
fn devices(status: &StatusReport) -> Option<BTreeMap<u32, (String, String)>> {
    let flash = status.flash.as_ref().filter(|flash| flash.in_use && !flash.devices.is_empty())?;
    Some(flash.devices.iter().map(|device| (device.number, (device.name(), device.state.clone()))).collect())
}

fn reasons(status: &StatusReport) -> BTreeMap<u32, &str> {
    let devices = status.flash.iter().flat_map(|flash| &flash.devices);
    let reasons = devices.filter(|device| !device.reason.is_empty());
    reasons.map(|device| (device.number, device.reason.as_str())).collect()
}

fn job(status: &StatusReport) -> Option<String> {
    let job = status.flash.as_ref()?.job.as_ref()?;
    Some(format!("{} of flash device {}", job.kind, job.device))
}

#[cfg(test)]
mod tests {
    use messages::VolumeState::{Active, Paused};
    use messages::report::{CoreReport, FlashDeviceReport, FlashJobReport, JobKind};
    use messages::{FlashReport, VolumeState};

    use super::*;

    fn status(volumes: &[(&str, VolumeState, &str)], devices: &[(u32, &str)], job: Option<JobKind>) -> StatusReport {
        let volume = |(name, state, policy): &(&str, VolumeState, &str)| VolumeReport::idle(name, *state, policy, "/x");
        let device = |(number, state): &(u32, &str)| FlashDeviceReport {
            number: *number,
            device: format!("/dev/f{number}"),
            state: (*state).to_owned(),
            reason: if *state == "lost" { "it failed".to_owned() } else { String::new() },
            ..FlashDeviceReport::default()
        };
        let job = job.map(|kind| FlashJobReport { kind, ..FlashJobReport::default() });
        let devices = devices.iter().map(device).collect();
        let flash = FlashReport { in_use: true, devices, job, ..FlashReport::default() };
        let (volumes, cores) = (volumes.iter().map(volume).collect(), vec![CoreReport::default()]);
        StatusReport { volumes, cores, flash: Some(flash), ..StatusReport::default() }
    }

    fn sample(tracker: &mut Tracker, status: &StatusReport) -> Vec<String> {
        tracker.begin_sample();
        lines(tracker.compare_sample(status))
    }

    fn lines(events: Vec<NewEvent>) -> Vec<String> {
        let line =
            |event: NewEvent| format!("{} {}: {}", event.kind, event.subject.as_deref().unwrap_or("-"), event.text);
        events.into_iter().map(line).collect()
    }

    #[test]
    fn each_difference_is_reported_once_and_equal_properties_are_not() {
        let mut before = status(
            &[("a", Active, "write-back"), ("b", Active, "none"), ("c", Active, "none")],
            &[(0, "in-service"), (1, "in-service")],
            None,
        );
        let mut now = status(
            &[("a", Active, "write-through"), ("b", Paused, "none"), ("d", Active, "none")],
            &[(0, "lost"), (2, "in-service")],
            Some(JobKind::FlashAdd),
        );
        before.volumes[1].flash.max = "none".to_owned();
        now.volumes[1].flash.max = "1 GiB".to_owned();
        now.volumes[1].qos.limit_iops = 500;
        let mut tracker = Tracker::default();
        assert_eq!(sample(&mut tracker, &before), [""; 0]);
        assert_eq!(
            sample(&mut tracker, &now),
            [
                "policy a: policy changed from write-back to write-through",
                "state b: state changed from active to paused",
                "limit b: flash_max changed from none to 1 GiB",
                "limit b: limit_iops changed from 0 to 500",
                "state d: added: active, none",
                "state c: removed",
                "device /dev/f0: changed from in-service to lost: it failed",
                "device /dev/f2: added: in-service",
                "device /dev/f1: device 1 removed",
                "device -: add of flash device  has begun",
            ]
        );
        assert_eq!(sample(&mut tracker, &now), [""; 0]);
    }

    #[test]
    fn requested_change_is_not_reported_as_spontaneous() {
        let old = status(&[("a", Active, "write-back"), ("b", Active, "none")], &[], None);
        let new = status(&[("a", Active, "none"), ("b", Paused, "none")], &[], None);
        let a = ChangeScope::Volume("a".to_owned());
        let mut tracker = Tracker::default();
        sample(&mut tracker, &old);
        tracker.begin_change(a.clone());
        // The sample shows the change while the request is still under way.
        assert_eq!(sample(&mut tracker, &new), ["state b: state changed from active to paused"]);
        // The request ends while a sample is taken that still has the old value.
        tracker.begin_sample();
        assert_eq!(tracker.take_differences(&new.volumes[0]), ["policy changed from write-back to none"]);
        tracker.end_change(&a);
        let stale = status(&[("a", Active, "write-back"), ("b", Paused, "none")], &[], None);
        assert_eq!(tracker.compare_sample(&stale), []);
        assert_eq!(sample(&mut tracker, &new), [""; 0]);
        // The next difference has no request behind it.
        assert_eq!(sample(&mut tracker, &stale), ["policy a: policy changed from none to write-back"]);
    }

    #[test]
    fn removed_and_reloaded_volumes_are_not_reported_as_removed() {
        let both = status(&[("a", Active, "none"), ("b", Active, "none")], &[], None);
        let only_b = status(&[("b", Paused, "none")], &[], None);
        let mut tracker = Tracker::default();
        sample(&mut tracker, &both);
        tracker.begin_change(ChangeScope::Volume("a".to_owned()));
        assert_eq!(sample(&mut tracker, &status(&[("b", Active, "none")], &[], None)), [""; 0]);
        tracker.remove_volume("a");
        tracker.end_change(&ChangeScope::Volume("a".to_owned()));
        tracker.begin_change(ChangeScope::All);
        assert_eq!(sample(&mut tracker, &only_b), [""; 0]);
        tracker.set_volumes(&only_b.volumes);
        tracker.end_change(&ChangeScope::All);
        assert_eq!(sample(&mut tracker, &only_b), [""; 0]);
    }

    #[test]
    fn unresponsive_core_causes_no_events() {
        let complete = status(&[("a", Active, "write-back")], &[(0, "in-service")], None);
        let mut silent = status(&[("a", Active, "none")], &[], None);
        silent.cores.clear();
        let mut tracker = Tracker::default();
        sample(&mut tracker, &silent);
        assert_eq!(sample(&mut tracker, &complete), [""; 0]);
        assert_eq!(sample(&mut tracker, &silent), [""; 0]);
        assert_eq!(sample(&mut tracker, &complete), [""; 0]);
    }
}
