//! `volume show`: everything about one volume.

use std::collections::BTreeMap;

use messages::report::{FlashUse, QosUse, Quantiles, SlowReport};
use messages::{VolumeReport, VolumeState};

use super::reasons::{cache_reason, latency_step};
use super::screen::{plural, quantile};
use super::style::Style;
use super::table::{Side, Table};
use units::{show_bytes, show_count, show_micros, show_percent};

/// The page of one volume.
pub fn page(volume: &VolumeReport, style: Style) -> String {
    let state = match volume.state {
        VolumeState::Active => style.good(volume.state.name()),
        VolumeState::Refused => style.bad(volume.state.name()),
        VolumeState::Standby => volume.state.name().to_owned(),
        VolumeState::Paused | VolumeState::Frozen | VolumeState::Removing => style.warn(volume.state.name()),
    };
    let limited = if volume.is_limited() { format!(", {}", style.warn("limited")) } else { String::new() };
    let mut text = format!("{}  {state}{limited}, {}\n\n", style.bold(&volume.name), volume.policy);
    let problems: Vec<String> =
        volume.problems.iter().map(|problem| format!("  {}\n", style.warn(&problem.text))).collect();
    // The counters of a refused volume are all 0: the reason comes first.
    let is_refused = matches!(volume.state, VolumeState::Refused | VolumeState::Standby);
    if is_refused {
        problems.iter().for_each(|problem| text += &format!("{problem}\n"));
    }
    for (name, value) in properties(volume).into_iter().chain(counters(volume)) {
        text += &match name {
            "" => "\n".to_owned(),
            name => format!("  {}  {value}\n", style.dim(&format!("{name:<18}"))),
        };
    }
    if !volume.lost.is_empty() {
        let line = format!("lost data           {}", lost(volume));
        text += &format!("\n  {}\n", style.bad(&line));
    }
    if !is_refused {
        problems.iter().for_each(|problem| text += &format!("\n{problem}"));
    }
    text
}

/// Minimum and maximum as text, if set.
fn bounds(min: &str, max: &str) -> String {
    let minimum = if matches!(min, "" | "0") { String::new() } else { format!(", minimum {min}") };
    let maximum = if matches!(max, "" | "none") { String::new() } else { format!(", maximum {max}") };
    minimum + &maximum
}

/// A number of flash pages, and their content in bytes.
fn pages(count: u64, bytes: u64) -> String {
    format!("{} page{}, {}", show_count(count), plural(count), show_bytes(bytes))
}

/// Memory of the volume, with target and limits.
fn memory_cache(volume: &VolumeReport) -> String {
    let memory = &volume.memory;
    let target = memory.target_bytes.map_or(String::new(), |bytes| format!(", target {}", show_bytes(bytes)));
    show_bytes(volume.memory_bytes) + &target + &bounds(&memory.min, &memory.max)
}

/// Clean pages of the volume on flash, with limits and pins.
fn flash_cache(volume: &VolumeReport) -> String {
    let flash = &volume.flash;
    let mut text = pages(flash.pages, flash.cached_bytes);
    text += &bounds(&flash.min, &flash.max);
    if flash.pinned_pages > 0 {
        let waits = match flash.pin_waits.as_str() {
            "" => String::new(),
            code => format!(" (waiting: {})", cache_reason(code)),
        };
        text += &format!(
            "; {} of {} pinned page{} cached{waits}",
            show_count(flash.pinned_whole_pages),
            show_count(flash.pinned_pages),
            plural(flash.pinned_pages)
        );
    }
    text
}

/// Bytes read from flash, and the part of them that log records of destaged data served.
fn flash_reads(volume: &VolumeReport) -> String {
    let FlashUse { read_bytes, kept_read_bytes, .. } = volume.flash;
    format!("{}, {} of it from the log", show_bytes(read_bytes), show_bytes(kept_read_bytes))
}

/// The working set: the size of a cache that would hold all blocks in use.
fn working_set(volume: &VolumeReport) -> String {
    volume.miss_ratio_curve.as_ref().map_or("-".to_owned(), |curve| {
        let (blocks, pages) = (curve.memory.working_set_bytes, curve.flash.working_set_bytes);
        format!("{} in blocks, {} in flash pages; see `hotset advise`", show_bytes(blocks), show_bytes(pages))
    })
}

/// Maximum number of lost ranges shown.
const LOST_SHOWN: usize = 8;

/// Dirty blocks without an intact copy.
fn lost(volume: &VolumeReport) -> String {
    let shown = volume.lost.iter().take(LOST_SHOWN);
    let ranges = shown.map(|range| format!("{}..{}", range.at_bytes, range.at_bytes + range.length_bytes));
    let ranges: Vec<_> = ranges.collect();
    let more = if volume.lost.len() > LOST_SHOWN { ", and more; --json lists all" } else { "" };
    format!("{}: bytes {}{more}", show_bytes(volume.lost_bytes), ranges.join(", "))
}

type Line = (&'static str, String);

fn properties(volume: &VolumeReport) -> Vec<Line> {
    let mut lines = vec![
        ("size", format!("{} ({} bytes)", show_bytes(volume.size_bytes), show_count(volume.size_bytes))),
        ("backing", volume.backing.clone()),
    ];
    if !volume.volume_id.is_empty() {
        lines.push(("backing identity", volume.backing_identity.clone()));
        let blocks = format!(
            "{} logical, {} physical",
            show_bytes(volume.logical_block_bytes.into()),
            show_bytes(volume.physical_block_bytes.into())
        );
        lines.push(("backing blocks", blocks));
        lines.push(("volume ID", volume.volume_id.clone()));
        lines.push(("data core", volume.core.to_string()));
    }
    if let Some(fleet) = &volume.fleet {
        lines.push(("owner", super::fleet::owner(fleet)));
    }
    if let Some(unit) = &volume.unit {
        lines.push(("iSCSI LUN", format!("{}, naa.{}", unit.lun, unit.naa)));
    }
    if !volume.datastore.is_empty() {
        lines.push(("datastore", volume.datastore.clone()));
    }
    let qos = &volume.qos;
    let reserved = if qos.reservation_iops == 0 {
        String::new()
    } else {
        format!(", {} IOPS reserved", show_count(qos.reservation_iops))
    };
    lines.push(("shares", format!("{}{reserved}", show_count(qos.shares.into()))));
    if let Some(limits) = limits(qos) {
        lines.push(("limits", limits));
    }
    if !volume.labels.is_empty() {
        let labels: Vec<_> = volume.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        lines.push(("labels", labels.join(" ")));
    }
    if volume.read_only {
        lines.push(("read only", "yes".to_owned()));
    }
    lines
}

/// Limits of the volume, if any.
fn limits(qos: &QosUse) -> Option<String> {
    let burst = |burst: String| if burst.starts_with("0 ") { String::new() } else { format!(", bursts of {burst}") };
    let requests = (qos.limit_iops > 0).then(|| {
        let burst = burst(format!("{} requests", show_count(qos.burst_iops)));
        format!("{} IOPS{burst}", show_count(qos.limit_iops))
    });
    let bytes = (qos.limit_bytes > 0)
        .then(|| format!("{}/s{}", show_bytes(qos.limit_bytes), burst(show_bytes(qos.burst_bytes))));
    let limits: Vec<String> = requests.into_iter().chain(bytes).collect();
    (!limits.is_empty()).then(|| limits.join(", "))
}

/// Number of requests that waited, and the sum of their waits.
fn waited(requests: u64, us: u64) -> String {
    format!("{} request{}, {} in total", show_count(requests), plural(requests), show_micros(us as f64))
}

/// The most frequent reasons.
fn reasons(counts: &BTreeMap<String, u64>) -> String {
    let mut counts: Vec<_> = counts.iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let shown: Vec<_> =
        counts.iter().take(4).map(|(name, count)| format!("{} {}", cache_reason(name), show_count(**count))).collect();
    if shown.is_empty() { "-".to_owned() } else { shown.join(", ") }
}

/// The slowest requests of one volume.
pub fn slow(requests: &[SlowReport], style: Style) -> String {
    let mut table = Table::new(&[
        ("ago", Side::Right),
        ("operation", Side::Left),
        ("offset", Side::Right),
        ("bytes", Side::Right),
        ("latency", Side::Right),
        ("waited in", Side::Left),
        ("wait", Side::Right),
    ]);
    let ms = |us: u64| format!("{:.1} ms", us as f64 / 1000.0);
    for request in requests {
        table.row(vec![
            format!("{:.1} s", request.ago_ms as f64 / 1000.0),
            request.operation.clone(),
            show_count(request.offset_bytes),
            show_count(request.length_bytes),
            ms(request.took_us),
            latency_step(&request.step),
            ms(request.waited_us),
        ]);
    }
    table.render(style)
}

fn counters(volume: &VolumeReport) -> Vec<Line> {
    let reads_text = |reads| format!("{} ({})", show_count(reads), show_percent(reads, volume.reads));
    let latency = |requests, quantiles: &Quantiles| {
        let quantiles = [
            ("p50", quantile(requests, quantiles, |q| q.p50)),
            ("p99", quantile(requests, quantiles, |q| q.p99)),
            ("p99.9", quantile(requests, quantiles, |q| q.p999)),
        ];
        quantiles.map(|(name, value)| format!("{name} {value}")).join(", ")
    };
    let requests = |count: u64, bytes: u64| format!("{}, {}", show_count(count), show_bytes(bytes));
    let bytes = &volume.source_bytes;
    let all_bytes = bytes.memory + bytes.flash + bytes.prefetched + bytes.backing;
    let source_bytes = |bytes| format!("{} ({})", show_bytes(bytes), show_percent(bytes, all_bytes));
    let sources =
        [("memory", bytes.memory), ("flash", bytes.flash), ("prefetched", bytes.prefetched), ("array", bytes.backing)];
    let sources = sources.map(|(source, bytes)| format!("{source} {}", source_bytes(bytes))).join(", ");
    let from_siblings = match volume.sibling_read_bytes {
        0 => String::new(),
        bytes => format!("; {} of them from the caches of other volumes", show_bytes(bytes)),
    };
    // Service and held time, if the volume's limit or other volumes held requests.
    let service_and_held = |requests, service: &Option<Quantiles>, held: &Option<Quantiles>| {
        let (Some(service), Some(held)) = (service, held) else { return Vec::new() };
        vec![("    service", latency(requests, service)), ("    held by limits", latency(requests, held))]
    };
    let us = &volume.latency_us;
    let mut lines = vec![
        ("", String::new()),
        ("reads", requests(volume.reads, volume.read_bytes)),
        ("  memory hits", reads_text(volume.memory_hits)),
        ("  prefetched", reads_text(volume.prefetched_hits)),
        ("  flash hits", reads_text(volume.flash_hits)),
        ("  partial hits", reads_text(volume.partial_hits)),
        ("  misses", reads_text(volume.misses)),
        ("  bytes", sources + &from_siblings),
        ("  latency", latency(volume.reads, &us.read)),
    ];
    lines.extend(service_and_held(volume.reads, &us.read_service, &us.read_held));
    if volume.transferred_bytes > 0 {
        let text = format!("{} from the host that owned it before", show_bytes(volume.transferred_bytes));
        lines.push(("cache taken over", text));
    }
    lines.extend([
        ("writes", requests(volume.writes, volume.write_bytes)),
        ("  latency", latency(volume.writes, &us.write)),
    ]);
    lines.extend(service_and_held(volume.writes, &us.write_service, &us.write_held));
    lines.extend([
        ("  throttled", format!("{} ms in total", show_count(volume.throttled_us / 1000))),
        ("limit waits", waited(volume.qos.limit_waits, volume.qos.limit_waited_us)),
        ("share waits", waited(volume.qos.share_waits, volume.qos.share_waited_us)),
        ("flushes", show_count(volume.flushes)),
        ("zeroes, discards", show_count(volume.zeroes)),
        ("failed requests", show_count(volume.errors)),
        ("", String::new()),
        ("memory cache", memory_cache(volume)),
        ("dirty data", format!("{}, oldest {} ms", show_bytes(volume.dirty_bytes), show_count(volume.dirty_age_ms))),
        ("  in flash log", show_bytes(volume.flash_dirty_bytes)),
        ("destaged", format!("{} not yet flushed by the backing", show_bytes(volume.written_bytes))),
        ("flash cache", flash_cache(volume)),
        ("  read", flash_reads(volume)),
        ("promotions", pages(volume.promotions, volume.flash.promoted_bytes)),
        ("  miss reasons", reasons(&volume.flash.not_hit)),
        ("  not promoted", reasons(&volume.flash.not_promoted)),
        ("working set", working_set(volume)),
        ("", String::new()),
        ("backing reads", requests(volume.backing_reads, volume.backing_read_bytes)),
        ("  readahead", show_bytes(volume.readahead_bytes)),
        ("backing writes", requests(volume.backing_writes, volume.backing_write_bytes)),
        ("backing flushes", show_count(volume.backing_flushes)),
        ("backing errors", show_count(volume.backing_errors)),
    ]);
    lines
}
