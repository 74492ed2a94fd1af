//! Families of datastores: sums over their volumes, which remain when there are too many volumes for series of their own.

use control::StatusReport;

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
