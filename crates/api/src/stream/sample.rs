//! One sample, serialised for clients.

use std::collections::{BTreeMap, BTreeSet};

use axum::body::Bytes;
use messages::report::{BackingRequests, EventReport};
use messages::{Counts, Sampled};
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
    /// Serialises the daemon's state, the events after number `told`, and the volumes in `wanted` in full.
    pub fn new(sampled: &Sampled, told: u64, wanted: &BTreeSet<&str>) -> Sample {
        let volumes = &sampled.status.volumes;
        let status = sampled.status.without_volumes();
        let mut whole = serde_json::to_value(&status).expect("reports have only text keys");
        // Volumes have a field of their own, with the followed ones only.
        whole.as_object_mut().map(|fields| fields.remove("volumes"));
        let events = &sampled.events[sampled.events.partition_point(|event| event.number <= told)..];
        let mut totals = Totals::of(volumes);
        leave_out_latencies(&mut totals.backing_requests);
        let head = Head { at_unix_ms: sampled.at_unix_ms, status: whole, totals, events };
        let mut head = text(&head);
        head.truncate(head.len() - 1);
        head.push_str(",\"volumes\":{");
        let wanted = volumes.iter().filter(|volume| wanted.contains(volume.name.as_str()));
        let volumes = wanted.map(|volume| {
            let mut told = volume.clone();
            leave_out_latencies(&mut told.backing_requests);
            (told.name.clone(), format!("{}:{}", text(&told.name), text(&told)))
        });
        Sample { head, volumes: volumes.collect() }
    }

    /// The event for a client that follows `volumes`. JSON has no line feeds, so its data is one line.
    pub fn event(&self, id: &str, volumes: &BTreeSet<String>) -> Bytes {
        let told: Vec<&str> = volumes.iter().filter_map(|name| self.volumes.get(name).map(String::as_str)).collect();
        Bytes::from(format!("id: {id}\ndata: {}{}}}}}\n\n", self.head, told.join(",")))
    }
}

/// Drops the latency histograms of backings. They are a third of a volume's report, and no client of the stream reads
/// them: the volume's own route, metrics and history have them.
fn leave_out_latencies(asked: &mut [BackingRequests]) {
    asked.iter_mut().for_each(|asked| asked.latency = Counts::default());
}

fn text(value: &impl Serialize) -> String {
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
        let happened = |number| EventReport { number, ..EventReport::default() };
        let events = vec![happened(4), happened(5), happened(7)];
        let sample = Sample::new(&Sampled { at_unix_ms: 1, status, events }, 4, &BTreeSet::from(["a", "c\n\""]));
        let event = |volumes: &[&str]| {
            let volumes = volumes.iter().map(|name| (*name).to_owned()).collect();
            let text = String::from_utf8(sample.event("7-1", &volumes).to_vec()).expect("text");
            let data =
                text.strip_prefix("id: 7-1\ndata: ").and_then(|rest| rest.strip_suffix("\n\n")).expect("an event");
            assert!(!data.contains('\n'));
            serde_json::from_str::<Value>(data).expect("JSON")
        };
        assert_eq!(event(&[])["volumes"], serde_json::json!({}));
        let told = event(&["a", "b", "c\n\"", "d"]);
        assert_eq!(told["totals"]["reads"], 12);
        let numbers: Vec<_> = told["events"].as_array().expect("a list").iter().map(|event| &event["number"]).collect();
        assert_eq!(numbers, [5, 7]);
        assert_eq!((&told["volumes"]["a"]["reads"], &told["volumes"]["c\n\""]["reads"]), (&3.into(), &5.into()));
        assert_eq!(told["volumes"].as_object().map(|volumes| volumes.len()), Some(2));
        assert!(told["status"]["volumes"].is_null());
    }

    #[test]
    fn event_holds_backing_requests_without_latencies() {
        let latency = Counts { below: vec![CountsBelow { us: 16.0, count: 2 }], all: 3, sum_us: 60.0 };
        let asked = BackingRequests { op: "read".to_owned(), requests: 3, latency, ..BackingRequests::default() };
        assert!(text(&asked).contains("latency"), "a report itself has latencies");
        let volume = VolumeReport {
            backing_requests: vec![asked],
            ..VolumeReport::idle("a", VolumeState::Active, "none", "/x")
        };
        let status = StatusReport { volumes: vec![volume], ..StatusReport::default() };
        let sample = Sample::new(&Sampled { at_unix_ms: 1, status, events: Vec::new() }, 0, &BTreeSet::from(["a"]));
        for told in [&format!("{}}}}}", sample.head), &format!("{{{}}}", sample.volumes["a"])] {
            let told: Value = serde_json::from_str(told).expect("JSON");
            let of = if told["a"].is_object() { &told["a"] } else { &told["totals"] };
            let asked = &of["backing_requests"][0];
            assert_eq!((&asked["requests"], &asked["latency"]), (&3.into(), &Value::Null), "{told}");
        }
    }
}
