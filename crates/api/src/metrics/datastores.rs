//! Families of datastores: congestion, and sums over their volumes. The sums remain when there are too many volumes for
//! series of their own.

use messages::StatusReport;
use messages::report::DatastoreReport;

use super::lines::{Labels, Lines};
use crate::totals::{Totals, by_datastore};

/// Writes all families of all datastores.
pub fn write(lines: &mut Lines, status: &StatusReport) {
    let sums: Vec<_> = by_datastore(&status.volumes)
        .into_iter()
        .map(|(name, sum)| (Labels::default().with("datastore", name), sum))
        .collect();
    let mut of_each = |name, kind, help, label: &str, values: fn(&Totals) -> Vec<(&'static str, u64)>| {
        lines.family(name, kind, help);
        for (labels, sum) in &sums {
            for (value, count) in values(sum) {
                let more = [(label, value)];
                lines.sample(labels, if label.is_empty() { &[] } else { &more }, count as f64);
            }
        }
    };
    of_each("hotset_datastore_volumes", "gauge", "Volumes of the datastore.", "", |sum| vec![("", sum.volumes)]);
    of_each("hotset_datastore_requests_total", "counter", "Requests of clients.", "op", |sum| {
        vec![("read", sum.reads), ("write", sum.writes), ("flush", sum.flushes), ("zero", sum.zeroes)]
    });
    of_each("hotset_datastore_bytes_total", "counter", "Bytes that clients read and wrote.", "op", |sum| {
        vec![("read", sum.read_bytes), ("write", sum.write_bytes)]
    });
    of_each(
        "hotset_datastore_reads_by_source_total",
        "counter",
        "Reads by what they were served from.",
        "source",
        |sum| {
            vec![
                ("memory", sum.memory_hits),
                ("prefetched", sum.prefetched_hits),
                ("flash", sum.flash_hits),
                ("backing", sum.misses),
                ("mixed", sum.partial_hits),
            ]
        },
    );
    of_each("hotset_datastore_errors_total", "counter", "Requests of clients that failed.", "", |sum| {
        vec![("", sum.errors)]
    });
    of_each("hotset_datastore_dirty_bytes", "gauge", "Written by clients and not yet on backings.", "", |sum| {
        vec![("", sum.dirty_bytes)]
    });
    of_each("hotset_datastore_backing_requests_total", "counter", "Requests to backings.", "op", |sum| {
        vec![("read", sum.backing_reads), ("write", sum.backing_writes)]
    });
    of_each("hotset_datastore_backing_errors_total", "counter", "Requests that backings failed.", "", |sum| {
        vec![("", sum.backing_errors)]
    });
    write_congestion(lines, status);
    let help = "How long requests to backings took there, by what was asked and why.";
    lines.family("hotset_backing_latency_seconds", "histogram", help);
    for (labels, sum) in &sums {
        for asked in &sum.backing_requests {
            lines.histogram(labels, &[("op", &asked.op), ("cause", &asked.cause)], &asked.latency);
        }
    }
    lines.family("hotset_datastore_latency_seconds", "histogram", "How long requests of clients took.");
    for (labels, sum) in &sums {
        lines.histogram(labels, &[("op", "read")], &sum.latency_counts.read);
        lines.histogram(labels, &[("op", "write")], &sum.latency_counts.write);
    }
}

/// Writes the families of congestion. Flash appears as a datastore named `flash`.
fn write_congestion(lines: &mut Lines, status: &StatusReport) {
    let label = |report: &DatastoreReport| Labels::default().with("datastore", &report.name);
    let labels: Vec<_> = status.datastores.iter().map(label).collect();
    let mut of_each = |name, kind, help, value: fn(&DatastoreReport) -> Option<f64>| {
        lines.family(name, kind, help);
        for (labels, report) in labels.iter().zip(&status.datastores) {
            if let Some(value) = value(report) {
                lines.sample(labels, &[], value);
            }
        }
    };
    of_each(
        "hotset_datastore_congested",
        "gauge",
        "1 while shares count, for latency is past the threshold.",
        |report| Some(f64::from(u8::from(report.congested))),
    );
    let help = "How long it was congested.";
    of_each("hotset_datastore_congested_seconds_total", "counter", help, |report| Some(report.congested_seconds_total));
    let help = "How often it became congested.";
    of_each("hotset_datastore_congestion_episodes_total", "counter", help, |report| {
        Some(report.congestion_episodes as f64)
    });
    let help = "Latency past which it is congested, given or found.";
    of_each("hotset_datastore_congestion_threshold_seconds", "gauge", help, |report| Some(report.threshold_ms / 1e3));
    let help = "Mean latency of the requests to it that ended lately.";
    of_each("hotset_datastore_request_latency_seconds", "gauge", help, |report| Some(report.latency_ms / 1e3));
    let help = "Small accesses to its disks a second, lately.";
    of_each("hotset_datastore_accesses_per_second", "gauge", help, |report| Some(report.accesses_per_second));
    let help = "Small accesses a second that it did when it was congested; nothing of one that has not been.";
    of_each("hotset_datastore_shown_accesses_per_second", "gauge", help, |report| report.shown_accesses_per_second);
}
