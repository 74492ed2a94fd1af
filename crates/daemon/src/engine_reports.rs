//! Statistics of the engine, converted to reports.
//!
//! The conversions live here because the messages depend on no crate of the data path.

use engine::backing::{BackingOp, Cause};
use engine::policy::curve::{CurveStats, VolumeCurveStats};
use engine::telemetry::LatencyStats;
use engine::{
    BACKING_BOUNDS_LOG2, BackingCount, BucketCounts, DatastoreStats, DatastoreVolumeStats, Episode, FlashStats,
    LATENCY_BUCKET_COUNT, LatencyCounts, Limits, Qos, QosStats, VolumeProblem, VolumeStats, latency_bucket_end_ns,
};
use messages::report::{
    AlertKind, BackingRequests, Bucket, Counts, CountsBelow, Curve, DatastoreReport, EpisodeReport, FlashUse,
    LatencyCountsReport, LatencyReport, MemberReport, MissRatioCurve, Point, QosUse, SourceBytes, StatusProblem,
    VolumeReport,
};
use seam::Nanos;

/// Copies the counters of a volume into its report.
pub fn add_volume_stats(report: &mut VolumeReport, stats: VolumeStats) {
    report.reads = stats.reads;
    report.writes = stats.writes;
    report.flushes = stats.flushes;
    report.zeroes = stats.zeroes;
    report.read_bytes = stats.read_bytes;
    report.write_bytes = stats.write_bytes;
    report.memory_hits = stats.memory_hits;
    report.prefetched_hits = stats.prefetched_hits;
    report.source_bytes = source_bytes(stats.source_bytes);
    report.sibling_read_bytes = stats.sibling_read_bytes;
    report.transferred_bytes = stats.transferred_bytes;
    report.flash_hits = stats.flash_hits;
    report.promotions = stats.flash.promotions;
    report.flash_written_bytes = stats.flash.promoted_bytes + stats.flash.logged_bytes;
    report.flash = flash_use(stats.flash, stats.spilled_index_bytes + stats.kept_index_bytes);
    add_qos_stats(&mut report.qos, &stats.qos);
    report.partial_hits = stats.partial_hits;
    report.misses = stats.misses;
    report.errors = stats.errors;
    report.memory_bytes = stats.memory_bytes;
    report.memory.target_bytes = stats.memory_target_bytes;
    report.dirty_bytes = stats.dirty_bytes;
    report.written_bytes = stats.written_bytes;
    report.dirty_age_ms = stats.dirty_age_ms;
    report.backing_reads = stats.backing_reads;
    report.backing_writes = stats.backing_writes;
    report.backing_flushes = stats.backing_flushes;
    report.backing_read_bytes = stats.backing_read_bytes;
    report.backing_write_bytes = stats.backing_write_bytes;
    report.backing_errors = stats.backing_errors;
    report.backing_unanswered_ms = stats.backing_unanswered_ms;
    report.readahead_bytes = stats.readahead_bytes;
    report.throttled_us = stats.throttled_us;
    report.latency_counts = latency_counts(&stats.read_latency, &stats.write_latency);
    report.latency_us = LatencyReport::of(&report.latency_counts);
    report.backing_requests = stats.backing.into_iter().map(backing_requests).collect();
    report.problems.extend(stats.problems.iter().map(status_problem));
}

fn source_bytes(bytes: engine::SourceBytes) -> SourceBytes {
    let engine::SourceBytes { memory, prefetched, flash, backing } = bytes;
    SourceBytes { memory, prefetched, flash, backing }
}

fn flash_use(stats: FlashStats, log_index_bytes: u64) -> FlashUse {
    let named = |counts: Vec<(&'static str, u64)>| {
        counts.into_iter().filter(|(_, count)| *count > 0).map(|(name, count)| (name.to_owned(), count)).collect()
    };
    FlashUse {
        checked: stats.is_checked,
        pages: stats.page_count,
        cached_bytes: stats.cached_bytes,
        pinned_pages: stats.pinned_pages,
        pinned_whole_pages: stats.complete_pinned_pages,
        pin_waits: stats.pin_wait_reason.unwrap_or_default().to_owned(),
        min: String::new(),
        max: String::new(),
        read_bytes: stats.read_bytes,
        kept_read_bytes: stats.kept_read_bytes,
        log_index_bytes,
        bad_blocks: stats.bad_blocks,
        promoted_bytes: stats.promoted_bytes,
        logged_bytes: stats.logged_bytes,
        not_hit: named(stats.miss_reasons),
        not_promoted: named(stats.rejection_reasons),
    }
}

fn latency_counts(read: &LatencyStats, write: &LatencyStats) -> LatencyCountsReport {
    let optional_counts = |counts: Option<&BucketCounts>| counts.map_or_else(Counts::default, bucket_counts);
    LatencyCountsReport {
        read: bucket_counts(&read.total),
        write: bucket_counts(&write.total),
        read_service: optional_counts(read.parts.as_ref().map(|parts| &parts.service)),
        read_held: optional_counts(read.parts.as_ref().map(|parts| &parts.held)),
        write_service: optional_counts(write.parts.as_ref().map(|parts| &parts.service)),
        write_held: optional_counts(write.parts.as_ref().map(|parts| &parts.held)),
    }
}

/// Counts in the engine's layout. The first bucket is listed even if it is empty.
fn bucket_counts(counts: &BucketCounts) -> Counts {
    let end_us = |bucket| latency_bucket_end_ns(bucket).map_or(f64::INFINITY, |end_ns| end_ns as f64 / 1e3);
    let mut occupied = counts.buckets.iter().copied().peekable();
    let buckets = (0..LATENCY_BUCKET_COUNT).map(|bucket| Bucket {
        from_us: bucket.checked_sub(1).map_or(0.0, end_us),
        to_us: end_us(bucket),
        count: occupied.next_if(|(occupied, _)| *occupied == bucket).map_or(0, |(_, count)| count),
    });
    Counts::of_buckets(buckets, counts.sum_ns as f64 / 1e3)
}

fn counts(counts: LatencyCounts) -> Counts {
    let below = BACKING_BOUNDS_LOG2.iter().zip(counts.below);
    let below = below.map(|(octave, count)| CountsBelow { us: (1u64 << octave) as f64 / 1e3, count }).collect();
    Counts { below, all: counts.all, sum_us: counts.sum_ns as f64 / 1e3 }
}

fn backing_requests(count: BackingCount) -> BackingRequests {
    let op = BackingOp::ALL.iter().find(|(_, op)| *op == count.op).map_or("", |(name, _)| name);
    let cause = Cause::ALL.iter().find(|(_, cause)| *cause == count.cause).map_or("", |(name, _)| name);
    BackingRequests {
        op: op.to_owned(),
        cause: cause.to_owned(),
        requests: count.requests,
        bytes: count.bytes,
        latency: counts(count.latency),
    }
}

fn status_problem(problem: &VolumeProblem) -> StatusProblem {
    let kind = match problem {
        VolumeProblem::PagesDropped(_) => AlertKind::PagesDropped,
        VolumeProblem::BackingLost(_) => AlertKind::BackingLost,
        VolumeProblem::DestageFailing { .. } => AlertKind::DestageFailing,
    };
    StatusProblem::new(kind, problem.to_string())
}

/// Copies the settings in force into the report.
pub fn add_qos(report: &mut QosUse, qos: Qos) {
    let Qos { shares, reservation_iops, limits: Limits { iops, burst_iops, bytes, burst_bytes } } = qos;
    (report.shares, report.reservation_iops) = (shares, reservation_iops);
    (report.limit_iops, report.burst_iops) = (iops, burst_iops);
    (report.limit_bytes, report.burst_bytes) = (bytes, burst_bytes);
}

fn add_qos_stats(report: &mut QosUse, stats: &QosStats) {
    (report.limit_waits, report.limit_waited_us) = (stats.limit_waits, stats.limit_waited_us);
    (report.share_waits, report.share_waited_us) = (stats.share_waits, stats.share_waited_us);
}

/// The report of a datastore. The clock of `stats` began `epoch_ms` milliseconds after 1970.
pub fn datastore(stats: DatastoreStats, is_flash: bool, epoch_ms: u64) -> DatastoreReport {
    let ms = |time: Nanos| time.0 as f64 / 1e6;
    DatastoreReport {
        name: stats.name,
        is_flash,
        congested: stats.is_congested,
        congested_seconds_total: ms(stats.congested_time) / 1e3,
        congestion_episodes: stats.episode_count,
        threshold_ms: ms(stats.threshold),
        threshold_is_automatic: stats.is_threshold_automatic,
        latency_ms: ms(stats.latency),
        accesses_per_second: stats.accesses_per_second,
        peak_accesses_per_second: stats.measured_accesses_per_second,
        window: stats.window_accesses,
        outstanding: stats.outstanding_accesses,
        members: stats.volumes.into_iter().map(member).collect(),
        episodes: stats.recent_episodes.into_iter().map(|recent| episode(recent, epoch_ms)).collect(),
    }
}

fn member(stats: DatastoreVolumeStats) -> MemberReport {
    MemberReport {
        volume: stats.volume,
        shares: stats.shares,
        reservation_iops: stats.reservation_iops,
        entitled_ratio: stats.entitled_ratio,
        used_ratio: stats.used_ratio,
        accesses: stats.accesses,
        waits: stats.waited_requests,
        waited_us: stats.total_wait.as_micros(),
        waiting: stats.waiting_requests as u64,
    }
}

fn episode(episode: Episode, epoch_ms: u64) -> EpisodeReport {
    let unix_seconds = |time: Nanos| (epoch_ms + time.as_millis()) / 1000;
    EpisodeReport {
        began_unix_seconds: unix_seconds(episode.began_at),
        ended_unix_seconds: episode.ended_at.map(unix_seconds),
        caused_by: episode.caused_by,
        contenders: episode.contenders,
    }
}

/// The report of a volume's miss-ratio curves.
pub fn miss_ratio_curve(curves: &VolumeCurveStats, observed_ms: u64) -> MissRatioCurve {
    MissRatioCurve { observed_ms, memory: curve(&curves.memory), flash: curve(&curves.flash) }
}

fn curve(stats: &CurveStats) -> Curve {
    let CurveStats { unit_bytes, uses, working_set_bytes, ref points } = *stats;
    let points = points.iter().map(|point| Point { size_bytes: point.size_bytes, miss_ratio: point.miss_ratio });
    Curve { unit_bytes, accesses: uses, working_set_bytes, points: points.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_of_the_engine_are_reported_by_occupied_bucket() {
        let latency = engine::telemetry::RequestLatency::default();
        latency.add_unmeasured();
        let write = latency.stats();
        latency.add(Nanos::from_micros(16_100), Nanos::from_millis(16));
        let counts = latency_counts(&latency.stats(), &write);
        let bounds: Vec<f64> = counts.read.below.iter().map(|below| below.us).collect();
        assert_eq!(bounds, [16.384, 15_728.64, 16_777.216]);
        assert_eq!((counts.read.all, counts.read.sum_us, counts.read_held.sum_us), (2, 16_101.0, 16_000.0));
        assert_eq!(bounds[0], units::LATENCY_US_MIN);
        assert_eq!(
            latency_bucket_end_ns(LATENCY_BUCKET_COUNT - 2).map(|ns| ns as f64 / 1e3),
            Some(units::LATENCY_US_MAX)
        );
        let quantiles = LatencyReport::of(&counts);
        assert_eq!((quantiles.read.p50, quantiles.read.p99), (16.384, 16_777.216));
        assert_eq!(quantiles.read_service.map(|service| service.p99), Some(106.496));
        assert_eq!(quantiles.read_held.map(|held| (held.p50, held.p99)), Some((16.384, 16_777.216)));
        assert_eq!((quantiles.write_held, counts.write_held), (None, Counts::default()));
    }

    #[test]
    fn episode_of_congestion_has_dates() {
        let seconds = Nanos::from_secs;
        let congestion = Episode {
            began_at: seconds(5),
            ended_at: Some(seconds(7)),
            caused_by: "a".to_owned(),
            contenders: Vec::new(),
        };
        let report = episode(congestion, 1_000_000);
        assert_eq!((report.began_unix_seconds, report.ended_unix_seconds), (1_005, Some(1_007)));
    }
}
