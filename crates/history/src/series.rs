//! The list of figures: name, unit, kind, and source in a report.

use messages::report::{FlashDeviceReport, PoolReport};
use messages::{StatusReport, VolumeReport};

use super::subject::Subject;

/// Kind of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Growing counter; the increase is recorded.
    Counter,
    /// Level; several volumes add up.
    Level,
    /// Level of which several volumes give the maximum.
    Peak,
}

/// Source of a figure.
#[derive(Clone, Copy)]
pub enum Source {
    /// A figure of each volume, and of the whole daemon as their sum.
    Volume(fn(&VolumeReport) -> u64),
    /// A figure of the whole daemon only.
    Whole(fn(&StatusReport) -> u64),
    /// A figure of each pool only.
    Pool(fn(&PoolReport) -> u64),
}

/// A recorded figure.
pub struct Series {
    /// Name in queries.
    pub name: &'static str,
    /// Unit.
    pub unit: &'static str,
    /// Kind.
    pub kind: Kind,
    /// Source.
    pub source: Source,
}

/// Number of series.
pub const SERIES_COUNT: usize = SERIES.len();

/// All series. Rows refer to their positions: new series are appended, and no series ever moves.
pub const SERIES: [Series; 47] = [
    counter("reads", "requests", |volume| volume.reads),
    counter("writes", "requests", |volume| volume.writes),
    counter("flushes", "requests", |volume| volume.flushes),
    counter("zeroes", "requests", |volume| volume.zeroes),
    counter("read_bytes", "bytes", |volume| volume.read_bytes),
    counter("write_bytes", "bytes", |volume| volume.write_bytes),
    counter("memory_hits", "requests", |volume| volume.memory_hits),
    counter("flash_hits", "requests", |volume| volume.flash_hits),
    counter("partial_hits", "requests", |volume| volume.partial_hits),
    counter("misses", "requests", |volume| volume.misses),
    counter("errors", "requests", |volume| volume.errors),
    counter("promotions", "pages", |volume| volume.promotions),
    counter("flash_written_bytes", "bytes", |volume| volume.flash_written_bytes),
    counter("flash_read_bytes", "bytes", |volume| volume.flash.read_bytes),
    counter("backing_reads", "requests", |volume| volume.backing_reads),
    counter("backing_writes", "requests", |volume| volume.backing_writes),
    counter("backing_read_bytes", "bytes", |volume| volume.backing_read_bytes),
    counter("backing_write_bytes", "bytes", |volume| volume.backing_write_bytes),
    counter("backing_errors", "requests", |volume| volume.backing_errors),
    counter("readahead_bytes", "bytes", |volume| volume.readahead_bytes),
    counter("throttled_us", "microseconds", |volume| volume.throttled_us),
    level("dirty_bytes", "bytes", |volume| volume.dirty_bytes),
    Series {
        name: "dirty_age_ms",
        unit: "milliseconds",
        kind: Kind::Peak,
        source: Source::Volume(|volume| volume.dirty_age_ms),
    },
    level("memory_bytes", "bytes", |volume| volume.memory_bytes),
    level("flash_bytes", "bytes", |volume| volume.flash.cached_bytes),
    level("flash_dirty_bytes", "bytes", |volume| volume.flash_dirty_bytes),
    whole("volumes", "volumes", Kind::Level, |status| status.volumes.len() as u64),
    whole("connections", "connections", Kind::Level, |status| status.cores.iter().map(|core| core.connections).sum()),
    whole("pool_used_bytes", "bytes", Kind::Level, |status| status.cores.iter().map(|core| core.pool_used_bytes).sum()),
    whole("flash_pages", "pages", Kind::Level, |status| status.flash.as_ref().map_or(0, |flash| flash.pages.pages)),
    whole("flash_log_free_segments", "segments", Kind::Level, |status| {
        status.flash.as_ref().map_or(0, |flash| flash.free_segments as u64)
    }),
    whole("flash_devices_in_service", "devices", Kind::Level, |status| {
        status.flash.as_ref().map_or(0, |flash| flash.copies as u64)
    }),
    whole("flash_device_bytes", "bytes", Kind::Counter, |status| {
        written(status, |device| device.promotion_bytes + device.journal_bytes + device.log_bytes)
    }),
    whole("alerts", "alerts", Kind::Level, |status| status.alerts.len() as u64),
    whole("flash_promotion_bytes", "bytes", Kind::Counter, |status| written(status, |device| device.promotion_bytes)),
    whole("flash_log_bytes", "bytes", Kind::Counter, |status| written(status, |device| device.log_bytes)),
    whole("flash_journal_bytes", "bytes", Kind::Counter, |status| written(status, |device| device.journal_bytes)),
    counter("prefetched_hits", "requests", |volume| volume.prefetched_hits),
    counter("memory_source_bytes", "bytes", |volume| volume.source_bytes.memory),
    counter("prefetched_source_bytes", "bytes", |volume| volume.source_bytes.prefetched),
    counter("flash_source_bytes", "bytes", |volume| volume.source_bytes.flash),
    counter("backing_source_bytes", "bytes", |volume| volume.source_bytes.backing),
    counter("read_held_us", "microseconds", |volume| volume.latency_counts.read_held.sum_us as u64),
    counter("write_held_us", "microseconds", |volume| volume.latency_counts.write_held.sum_us as u64),
    pool("allocated_bytes", "bytes", Kind::Level, |pool| pool.fill().0),
    pool("capacity_bytes", "bytes", Kind::Level, |pool| pool.fill().1),
    pool("moved_bytes", "bytes", Kind::Counter, |pool| pool.relocation.moved_bytes),
];

/// Sum over all flash devices of the written bytes that `field` returns.
fn written(status: &StatusReport, field: fn(&FlashDeviceReport) -> u64) -> u64 {
    status.flash.iter().flat_map(|flash| &flash.devices).map(field).sum()
}

const fn counter(name: &'static str, unit: &'static str, read: fn(&VolumeReport) -> u64) -> Series {
    Series { name, unit, kind: Kind::Counter, source: Source::Volume(read) }
}

const fn level(name: &'static str, unit: &'static str, read: fn(&VolumeReport) -> u64) -> Series {
    Series { name, unit, kind: Kind::Level, source: Source::Volume(read) }
}

const fn whole(name: &'static str, unit: &'static str, kind: Kind, read: fn(&StatusReport) -> u64) -> Series {
    Series { name, unit, kind, source: Source::Whole(read) }
}

const fn pool(name: &'static str, unit: &'static str, kind: Kind, read: fn(&PoolReport) -> u64) -> Series {
    Series { name, unit, kind, source: Source::Pool(read) }
}

impl Series {
    /// True if a subject has this figure.
    pub fn is_of(&self, subject: &Subject) -> bool {
        match self.source {
            Source::Volume(_) => !matches!(subject, Subject::Pool(_)),
            Source::Whole(_) => *subject == Subject::Whole,
            Source::Pool(_) => matches!(subject, Subject::Pool(_)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_names_are_unique_and_positions_fit_a_mask() {
        let names: std::collections::BTreeSet<&str> = SERIES.iter().map(|series| series.name).collect();
        assert_eq!(names.len(), SERIES_COUNT);
        const { assert!(SERIES_COUNT <= 64) };
    }
}
