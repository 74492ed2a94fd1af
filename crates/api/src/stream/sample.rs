//! One sample, serialised for clients.

use std::collections::{BTreeMap, BTreeSet};

use axum::body::Bytes;
use messages::report::{BackingRequests, EventReport};
use messages::{Counts, StatusSample};
use serde::Serialize;

use crate::totals::Totals;

/// The state of one second.
#[derive(Default)]
pub struct Sample {
    /// The event's data up to the volumes: `{…,"volumes":{`.
    head: String,
    /// Volumes that a client follows: `"name":{…}`.
    volumes: BTreeMap<String, String>,
}

#[derive(Serialize)]
struct Head<'a> {
    at_unix_ms: u64,
    status: serde_json::Value,
    totals: Totals,
    events: &'a [EventReport],
}

impl Sample {
    /// Serialises the daemon's state, the events after number `after`, and the volumes in `followed` in full.
    pub fn new(sampled: &StatusSample, after: u64, followed: &BTreeSet<&str>) -> Sample {
        let volumes = &sampled.status.volumes;
        let status = sampled.status.without_volumes();
        let mut status_value = serde_json::to_value(&status).expect("reports have only text keys");
        // Volumes have a field of their own, with the followed ones only.
        status_value.as_object_mut().map(|fields| fields.remove("volumes"));
        let events = &sampled.events[sampled.events.partition_point(|event| event.number <= after)..];
        let mut totals = Totals::of(volumes);
        clear_latencies(&mut totals.backing_requests);
        let head = Head { at_unix_ms: sampled.at_unix_ms, status: status_value, totals, events };
        let mut head = json(&head);
        head.truncate(head.len() - 1);
        head.push_str(",\"volumes\":{");
        let followed = volumes.iter().filter(|volume| followed.contains(volume.name.as_str()));
        let volumes = followed.map(|volume| {
            let mut report = volume.clone();
            clear_latencies(&mut report.backing_requests);
            (report.name.clone(), format!("{}:{}", json(&report.name), json(&report)))
        });
        Sample { head, volumes: volumes.collect() }
    }

    /// The event for a client that follows `volumes`. JSON has no line feeds, so its data is one line.
    pub fn event(&self, id: &str, volumes: &BTreeSet<String>) -> Bytes {
        let reports: Vec<&str> = volumes.iter().filter_map(|name| self.volumes.get(name).map(String::as_str)).collect();
        Bytes::from(format!("id: {id}\ndata: {}{}}}}}\n\n", self.head, reports.join(",")))
    }
}

/// Drops the latency histograms of backings. They are a third of a volume's report, and no client of the stream reads
/// them: the volume's own route, metrics and history have them.
fn clear_latencies(entries: &mut [BackingRequests]) {
    entries.iter_mut().for_each(|entry| entry.latency = Counts::default());
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("reports have only text keys")
}

#[cfg(test)]
mod tests {
    use messages::report::CountsBelow;
    use messages::{StatusReport, VolumeReport, VolumeState};
    use serde_json::Value;

    use super::*;

    #[test]
    fn event_holds_sums_of_all_volumes_and_the_followed_volumes() {
        let volume =
            |name: &str, reads| VolumeReport { reads, ..VolumeReport::idle(name, VolumeState::Active, "none", "/x") };
        let status =
            StatusReport { volumes: vec![volume("a", 3), volume("b", 4), volume("c\n\"", 5)], ..Default::default() };
        let numbered = |number| EventReport { number, ..EventReport::default() };
        let events = vec![numbered(4), numbered(5), numbered(7)];
        let sample = Sample::new(&StatusSample { at_unix_ms: 1, status, events }, 4, &BTreeSet::from(["a", "c\n\""]));
        let event = |volumes: &[&str]| {
            let volumes = volumes.iter().map(|name| (*name).to_owned()).collect();
            let text = String::from_utf8(sample.event("7-1", &volumes).to_vec()).expect("text");
            let data =
                text.strip_prefix("id: 7-1\ndata: ").and_then(|rest| rest.strip_suffix("\n\n")).expect("an event");
            assert!(!data.contains('\n'));
            serde_json::from_str::<Value>(data).expect("JSON")
        };
        assert_eq!(event(&[])["volumes"], serde_json::json!({}));
        let data = event(&["a", "b", "c\n\"", "d"]);
        assert_eq!(data["totals"]["reads"], 12);
        let numbers: Vec<_> = data["events"].as_array().expect("a list").iter().map(|event| &event["number"]).collect();
        assert_eq!(numbers, [5, 7]);
        assert_eq!((&data["volumes"]["a"]["reads"], &data["volumes"]["c\n\""]["reads"]), (&3.into(), &5.into()));
        assert_eq!(data["volumes"].as_object().map(|volumes| volumes.len()), Some(2));
        assert!(data["status"]["volumes"].is_null());
    }

    #[test]
    fn event_holds_backing_requests_without_latencies() {
        let latency = Counts { below: vec![CountsBelow { us: 16.0, count: 2 }], all: 3, sum_us: 60.0 };
        let requests = BackingRequests { op: "read".to_owned(), requests: 3, latency, ..BackingRequests::default() };
        assert!(json(&requests).contains("latency"), "a report itself has latencies");
        let volume = VolumeReport {
            backing_requests: vec![requests],
            ..VolumeReport::idle("a", VolumeState::Active, "none", "/x")
        };
        let status = StatusReport { volumes: vec![volume], ..StatusReport::default() };
        let sample =
            Sample::new(&StatusSample { at_unix_ms: 1, status, events: Vec::new() }, 0, &BTreeSet::from(["a"]));
        for text in [&format!("{}}}}}", sample.head), &format!("{{{}}}", sample.volumes["a"])] {
            let value: Value = serde_json::from_str(text).expect("JSON");
            let sums = if value["a"].is_object() { &value["a"] } else { &value["totals"] };
            let requests = &sums["backing_requests"][0];
            assert_eq!((&requests["requests"], &requests["latency"]), (&3.into(), &Value::Null), "{value}");
        }
    }
}
