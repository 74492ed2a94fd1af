//! Metric families of volumes: at most 100 series each.

use messages::report::FlashUse;
use messages::{StatusReport, VolumeReport};

use super::lines::{CLIENT_BOUNDS_US, Labels, Lines};

/// Maximum number of pairs of operation and cause with a series. It is the engine's number of pairs today; if the
/// engine adds pairs, a volume stays within 100 series.
const OP_CAUSE_PAIRS_MAX: usize = 7;

/// Writes a volume's samples of one family.
type WriteSamples = fn(&mut Lines, &Labels, &VolumeReport);

struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    write_samples: WriteSamples,
}

const fn counter(name: &'static str, help: &'static str, write_samples: WriteSamples) -> Family {
    Family { name, kind: "counter", help, write_samples }
}

const fn gauge(name: &'static str, help: &'static str, write_samples: WriteSamples) -> Family {
    Family { name, kind: "gauge", help, write_samples }
}

/// All families.
const FAMILIES: &[Family] = &[
    counter("hotset_volume_requests_total", "Client requests by operation.", |lines, labels, volume| {
        let ops =
            [("read", volume.reads), ("write", volume.writes), ("flush", volume.flushes), ("zero", volume.zeroes)];
        ops.iter().for_each(|(op, count)| lines.sample(labels, &[("op", op)], *count as f64));
    }),
    counter("hotset_volume_bytes_total", "Bytes read and written by clients.", |lines, labels, volume| {
        let ops = [("read", volume.read_bytes), ("write", volume.write_bytes)];
        ops.iter().for_each(|(op, bytes)| lines.sample(labels, &[("op", op)], *bytes as f64));
    }),
    counter(
        "hotset_volume_reads_by_source_total",
        "Client reads by source: memory, prefetched (read ahead from the backing), flash (possibly with memory), \
         backing, or mixed for partial hits.",
        |lines, labels, volume| {
            let sources = [
                ("memory", volume.memory_hits),
                ("prefetched", volume.prefetched_hits),
                ("flash", volume.flash_hits),
                ("backing", volume.misses),
                ("mixed", volume.partial_hits),
            ];
            sources.iter().for_each(|(source, count)| lines.sample(labels, &[("source", source)], *count as f64));
        },
    ),
    counter(
        "hotset_volume_read_bytes_by_source_total",
        "Bytes that clients read, by source.",
        |lines, labels, volume| {
            let bytes = &volume.source_bytes;
            let sources = [
                ("memory", bytes.memory),
                ("prefetched", bytes.prefetched),
                ("flash", bytes.flash),
                ("backing", bytes.backing),
            ];
            sources.iter().for_each(|(source, count)| lines.sample(labels, &[("source", source)], *count as f64));
        },
    ),
    counter(
        "hotset_volume_sibling_read_bytes_total",
        "Bytes that clients read from the cache of another volume with the same stored content; part of the bytes from \
         memory and flash.",
        |lines, labels, volume| lines.sample(labels, &[], volume.sibling_read_bytes as f64),
    ),
    counter(
        "hotset_volume_transferred_bytes_total",
        "Bytes taken over from the memory of the host that owned the volume before.",
        |lines, labels, volume| lines.sample(labels, &[], volume.transferred_bytes as f64),
    ),
    Family {
        name: "hotset_volume_latency_seconds",
        kind: "histogram",
        help: "Latency of client requests, the wait for limits and shares included; a full memory hit counts as one \
               microsecond.",
        write_samples: |lines, labels, volume| {
            lines.histogram(labels, &[("op", "read")], &volume.latency_counts.read, &CLIENT_BOUNDS_US);
            lines.histogram(labels, &[("op", "write")], &volume.latency_counts.write, &CLIENT_BOUNDS_US);
        },
    },
    gauge(
        "hotset_volume_latency_percentile_seconds",
        "Percentiles of the latency of client requests since the start, as `hotset status` shows them: within 12.5 % \
         of the exact value. Values up to 16.384 microseconds are upper bounds.",
        |lines, labels, volume| {
            let ops = [("read", &volume.latency_counts.read), ("write", &volume.latency_counts.write)];
            for (op, counts) in ops {
                for (percentile, fraction) in [("50", 0.5), ("99", 0.99)] {
                    if let Some(us) = counts.percentile_us(fraction) {
                        lines.sample(labels, &[("op", op), ("percentile", percentile)], us / 1e6);
                    }
                }
            }
        },
    ),
    counter(
        "hotset_volume_held_seconds_total",
        "The part of the latency of client requests in which limits or shares held them.",
        |lines, labels, volume| {
            let counts = &volume.latency_counts;
            lines.sample(labels, &[("op", "read")], counts.read_held.sum_us / 1e6);
            lines.sample(labels, &[("op", "write")], counts.write_held.sum_us / 1e6);
        },
    ),
    counter("hotset_volume_errors_total", "Failed client requests.", |lines, labels, volume| {
        lines.sample(labels, &[], volume.errors as f64);
    }),
    gauge(
        "hotset_volume_dirty_bytes",
        "Dirty data: written by clients, not on the backing.",
        |lines, labels, volume| {
            lines.sample(labels, &[], volume.dirty_bytes as f64);
        },
    ),
    gauge("hotset_volume_dirty_age_seconds", "Age of the oldest dirty block.", |lines, labels, volume| {
        lines.sample(labels, &[], volume.dirty_age_ms as f64 / 1e3);
    }),
    gauge("hotset_volume_state", "State of the volume; 1 for the current state.", |lines, labels, volume| {
        lines.sample(labels, &[("state", volume.state.name())], 1.0);
    }),
    gauge("hotset_volume_memory_bytes", "Memory cache used by the volume.", |lines, labels, volume| {
        lines.sample(labels, &[], volume.memory_bytes as f64);
    }),
    gauge("hotset_volume_flash_bytes", "Flash cache used by the volume's clean pages.", |lines, labels, volume| {
        lines.sample(labels, &[], volume.flash.cached_bytes as f64);
    }),
    counter(
        "hotset_volume_limit_waits_total",
        "Client requests delayed by the volume's limits.",
        |lines, labels, volume| lines.sample(labels, &[], volume.qos.limit_waits as f64),
    ),
    counter(
        "hotset_volume_limit_wait_seconds_total",
        "Time that client requests were delayed by the volume's limits.",
        |lines, labels, volume| lines.sample(labels, &[], volume.qos.limit_waited_us as f64 / 1e6),
    ),
    counter(
        "hotset_volume_share_waits_total",
        "Requests to the datastore or to flash that waited for requests of other volumes.",
        |lines, labels, volume| lines.sample(labels, &[], volume.qos.share_waits as f64),
    ),
    counter(
        "hotset_volume_share_wait_seconds_total",
        "Time that requests to the datastore or to flash waited for requests of other volumes.",
        |lines, labels, volume| lines.sample(labels, &[], volume.qos.share_waited_us as f64 / 1e6),
    ),
    counter("hotset_volume_promotions_total", "Pages promoted to flash.", |lines, labels, volume| {
        lines.sample(labels, &[], volume.promotions as f64);
    }),
    counter(
        "hotset_volume_flash_written_bytes_total",
        "Bytes written to flash: promoted pages, and one copy of log writes.",
        |lines, labels, volume| lines.sample(labels, &[], volume.flash_written_bytes as f64),
    ),
    counter(
        "hotset_volume_flash_read_bytes_total",
        "Bytes read from flash: from clean pages, or from log records of destaged data.",
        |lines, labels, volume| {
            let FlashUse { read_bytes, kept_read_bytes, .. } = volume.flash;
            lines.sample(labels, &[("from", "pages")], read_bytes.saturating_sub(kept_read_bytes) as f64);
            lines.sample(labels, &[("from", "log")], kept_read_bytes as f64);
        },
    ),
    gauge("hotset_volume_log_index_bytes", "Memory of the index of log records.", |lines, labels, volume| {
        lines.sample(labels, &[], volume.flash.log_index_bytes as f64);
    }),
    counter(
        "hotset_backing_requests_total",
        "Requests to the volume's backing, by operation and cause.",
        |lines, labels, volume| {
            for requests in volume.backing_requests.iter().take(OP_CAUSE_PAIRS_MAX) {
                lines.sample(labels, &[("op", &requests.op), ("cause", &requests.cause)], requests.requests as f64);
            }
        },
    ),
    counter(
        "hotset_backing_bytes_total",
        "Bytes read from the volume's backing and written to it.",
        |lines, labels, volume| {
            let ops = [("read", volume.backing_read_bytes), ("write", volume.backing_write_bytes)];
            ops.iter().for_each(|(op, bytes)| lines.sample(labels, &[("op", op)], *bytes as f64));
        },
    ),
    counter(
        "hotset_backing_errors_total",
        "Failed requests to the volume's backing, without their repetitions.",
        |lines, labels, volume| {
            lines.sample(labels, &[], volume.backing_errors as f64);
        },
    ),
    gauge(
        "hotset_backing_unanswered_seconds",
        "Age of the oldest outstanding request to the volume's backing.",
        |lines, labels, volume| lines.sample(labels, &[], volume.backing_unanswered_ms as f64 / 1e3),
    ),
];

/// Writes all families of all volumes.
pub fn write(lines: &mut Lines, status: &StatusReport) {
    let volumes: Vec<_> = status.volumes.iter().map(|volume| (labels(volume), volume)).collect();
    for Family { name, kind, help, write_samples } in FAMILIES {
        lines.family(name, kind, help);
        volumes.iter().for_each(|(labels, volume)| write_samples(lines, labels, volume));
    }
}

fn labels(volume: &VolumeReport) -> Labels {
    let labels = Labels::default().with("volume", &volume.name).with("datastore", &volume.datastore);
    labels.with_volume_labels(&volume.labels)
}
