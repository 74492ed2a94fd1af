//! Metric families of datastores: congestion, and sums over their volumes. The sums remain when there are too many
//! volumes for series of their own.

use messages::StatusReport;
use messages::report::DatastoreReport;

use super::lines::{BACKING_BOUNDS_US, CLIENT_BOUNDS_US, Labels, Lines};
use crate::totals::{Totals, by_datastore};

/// Writes all families of all datastores.
pub fn write(lines: &mut Lines, status: &StatusReport) {
    let sums: Vec<_> = by_datastore(&status.volumes)
        .into_iter()
        .map(|(name, sum)| (Labels::default().with("datastore", name), sum))
        .collect();
    let mut each = |name, kind, help, label: &str, values: fn(&Totals) -> Vec<(&'static str, u64)>| {
        lines.family(name, kind, help);
        for (labels, sum) in &sums {
            for (value, count) in values(sum) {
                let more = [(label, value)];
                lines.sample(labels, if label.is_empty() { &[] } else { &more }, count as f64);
            }
        }
    };
    each("hotset_datastore_volumes", "gauge", "Volumes on the datastore.", "", |sum| vec![("", sum.volumes)]);
    each("hotset_datastore_requests_total", "counter", "Client requests by operation.", "op", |sum| {
        vec![("read", sum.reads), ("write", sum.writes), ("flush", sum.flushes), ("zero", sum.zeroes)]
    });
    each("hotset_datastore_bytes_total", "counter", "Bytes read and written by clients.", "op", |sum| {
        vec![("read", sum.read_bytes), ("write", sum.write_bytes)]
    });
    each(
        "hotset_datastore_reads_by_source_total",
        "counter",
        "Client reads by source: memory, prefetched (read ahead from the backing), flash (possibly with memory), \
         backing, or mixed for partial hits.",
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
    each(
        "hotset_datastore_read_bytes_by_source_total",
        "counter",
        "Bytes that clients read, by source.",
        "source",
        |sum| {
            let bytes = &sum.source_bytes;
            vec![
                ("memory", bytes.memory),
                ("prefetched", bytes.prefetched),
                ("flash", bytes.flash),
                ("backing", bytes.backing),
            ]
        },
    );
    each("hotset_datastore_errors_total", "counter", "Failed client requests.", "", |sum| vec![("", sum.errors)]);
    each("hotset_datastore_dirty_bytes", "gauge", "Dirty data: written by clients, not on the backings.", "", |sum| {
        vec![("", sum.dirty_bytes)]
    });
    each("hotset_datastore_backing_requests_total", "counter", "Requests to backings by operation.", "op", |sum| {
        vec![("read", sum.backing_reads), ("write", sum.backing_writes)]
    });
    each(
        "hotset_datastore_backing_errors_total",
        "counter",
        "Failed requests to backings, without their repetitions.",
        "",
        |sum| vec![("", sum.backing_errors)],
    );
    write_congestion(lines, status);
    let help = "Latency of requests to backings, by operation and cause.";
    lines.family("hotset_backing_latency_seconds", "histogram", help);
    for (labels, sum) in &sums {
        for requests in &sum.backing_requests {
            let more = [("op", requests.op.as_str()), ("cause", &requests.cause)];
            lines.histogram(labels, &more, &requests.latency, &BACKING_BOUNDS_US);
        }
    }
    let help = "Latency of client requests, the wait for limits and shares included.";
    lines.family("hotset_datastore_latency_seconds", "histogram", help);
    for (labels, sum) in &sums {
        lines.histogram(labels, &[("op", "read")], &sum.latency_counts.read, &CLIENT_BOUNDS_US);
        lines.histogram(labels, &[("op", "write")], &sum.latency_counts.write, &CLIENT_BOUNDS_US);
    }
}

/// Writes the families of congestion. Flash appears as a datastore named `flash`.
fn write_congestion(lines: &mut Lines, status: &StatusReport) {
    let label = |report: &DatastoreReport| Labels::default().with("datastore", &report.name);
    let labels: Vec<_> = status.datastores.iter().map(label).collect();
    let mut each = |name, kind, help, value: fn(&DatastoreReport) -> Option<f64>| {
        lines.family(name, kind, help);
        for (labels, report) in labels.iter().zip(&status.datastores) {
            if let Some(value) = value(report) {
                lines.sample(labels, &[], value);
            }
        }
    };
    each(
        "hotset_datastore_congested",
        "gauge",
        "1 while the datastore is congested: latency exceeds the threshold, and shares are in force.",
        |report| Some(f64::from(u8::from(report.congested))),
    );
    let help = "Time that the datastore was congested.";
    each("hotset_datastore_congested_seconds_total", "counter", help, |report| Some(report.congested_seconds_total));
    let help = "Congestion episodes of the datastore.";
    each("hotset_datastore_congestion_episodes_total", "counter", help, |report| {
        Some(report.congestion_episodes as f64)
    });
    let help = "Congestion threshold, configured or determined automatically.";
    each("hotset_datastore_congestion_threshold_seconds", "gauge", help, |report| Some(report.threshold_ms / 1e3));
    let help = "Recent mean latency of requests to the datastore.";
    each("hotset_datastore_request_latency_seconds", "gauge", help, |report| Some(report.latency_ms / 1e3));
    let help = "Recent rate of small accesses to the datastore's disks.";
    each("hotset_datastore_accesses_per_second", "gauge", help, |report| Some(report.accesses_per_second));
    let help = "Highest rate of small accesses while congested; absent before the first congestion.";
    each("hotset_datastore_shown_accesses_per_second", "gauge", help, |report| report.peak_accesses_per_second);
}
