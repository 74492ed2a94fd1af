//! `status` and `top`: the daemon on one screen.

use std::time::Duration;

use messages::report::{LatencyReport, Quantiles, Severity};
use messages::{FlashReport, StatusReport, VolumeReport, VolumeState};

use super::alerts::annotations;
use super::iscsi;
use super::style::Style;
use super::table::{Side, Table};
use units::{show_bytes, show_count, show_counted, show_latency, show_percent};

/// The whole screen. With `before`, an earlier status, requests are shown as rates.
pub fn status(now: &StatusReport, before: Option<&StatusReport>, style: Style) -> String {
    let mut text = head(now, style);
    text += &memory(now, style);
    text += &now.flash.as_ref().map_or(String::new(), |report| flash(report, style));
    text += &now.iscsi.as_ref().map_or(String::new(), |report| iscsi::target(report, style));
    text += "\n";
    text += &match now.volumes.is_empty() {
        true => "no volumes; add [[volume]] to the configuration, or `hotset volume add`\n".to_owned(),
        false => {
            volumes(&now.volumes, baseline(now, before), style) + &sources(&now.volumes, baseline(now, before), style)
        }
    };
    text += &now.iscsi.as_ref().map_or(String::new(), |report| iscsi::sessions(report, style));
    if !now.overrides.is_empty() {
        text +=
            &format!("\n{}\n", style.bold("settings changed by command (dropped when the key changes in the file)"));
        for setting in &now.overrides {
            text += &format!("  {}: {} = {} (file: {})\n", setting.volume, setting.key, setting.value, setting.file);
        }
    }
    if let Some(devices) = &now.flash_devices_by_command {
        let label = style.bold("flash devices changed by command (in force until `devices` changes in the file)");
        text += &format!("\n{label}: {}\n", devices.join(", "));
    }
    text += &alerts(now, style);
    text
}

/// Columns of wrapped text.
const TEXT_COLUMNS: usize = 110;

/// `text` wrapped to lines that begin at column `indent`; the first line has that indent already.
fn wrap_text(text: &str, indent: usize) -> String {
    let (mut lines, mut column) = (String::new(), indent);
    for word in text.split_whitespace() {
        let width = word.chars().count();
        if column > indent && column + 1 + width > TEXT_COLUMNS {
            lines += &format!("\n{:indent$}", "");
            column = indent;
        } else if column > indent {
            lines.push(' ');
            column += 1;
        }
        lines += word;
        column += width;
    }
    lines
}

/// Active alerts with their effects and remedies, and problems without an alert.
fn alerts(now: &StatusReport, style: Style) -> String {
    let mut text = String::new();
    for alert in &now.active_alerts {
        let subject = alert.subject.as_ref().map_or(String::new(), |subject| format!("{subject}: "));
        let cause = format!("{subject}{}", alert.cause);
        let cause = match alert.severity {
            Severity::Critical => style.bad(&cause),
            Severity::Warning => style.warn(&cause),
            Severity::Info => cause,
        };
        text += &format!("  {:<8}  {cause}\n", alert.severity.name());
        for (label, sentence) in [("effect:", &alert.effect), ("remedy:", &alert.remedy)] {
            text += &format!("            {} {}\n", style.dim(label), wrap_text(sentence, 20));
        }
        for annotation in annotations(alert) {
            text += &format!("            {}\n", wrap_text(&annotation, 12));
        }
    }
    // A daemon of an earlier version reports the problems alone.
    let problems = if now.active_alerts.is_empty() { &now.alerts } else { &now.problems_without_alert };
    for problem in problems {
        text += &format!("  {}\n", style.warn(problem));
    }
    if text.is_empty() { text } else { format!("\n{}\n{text}", style.bold("alerts")) }
}

fn head(now: &StatusReport, style: Style) -> String {
    let phase = match (now.stopping, now.starting) {
        (true, _) => style.warn(", stopping"),
        (false, true) => style.warn(", starting"),
        (false, false) => String::new(),
    };
    let uptime = show_uptime(Duration::from_secs(now.uptime_seconds));
    let is_encrypted = now.certificates.iter().any(|certificate| certificate.table == "api");
    let scheme = if is_encrypted { "https" } else { "http" };
    let console = match now.api.as_str() {
        "" => String::new(),
        address => style.dim(&format!("web console: {scheme}://{address}/\n")),
    };
    format!(
        "{}, process {}, up {uptime}{phase}\n{}\n{console}",
        style.bold(&format!("hotset {}", now.version)),
        now.pid,
        style.dim(&format!("{} on {}", now.configuration, now.listen.join(", ")))
    )
}

fn memory(now: &StatusReport, style: Style) -> String {
    let cached: u64 = now.volumes.iter().map(|volume| volume.memory_bytes).sum();
    let dirty: u64 = now.volumes.iter().map(|volume| volume.dirty_bytes).sum();
    let written: u64 = now.volumes.iter().map(|volume| volume.written_bytes).sum();
    let pool: u64 = now.cores.iter().map(|core| core.pool_bytes).sum();
    let connections: u64 = now.cores.iter().map(|core| core.connections).sum();
    format!(
        "\n{}  {} configured; buffer pool: {} of {} in use\n         \
         {} cached, {} dirty, {} destaged but not yet flushed by the backings\n\
         {}  {} data core{}, {} connection{}\n",
        style.bold("memory "),
        show_bytes(now.memory_bytes),
        show_bytes(now.cores.iter().map(|core| core.pool_used_bytes).sum()),
        show_bytes(pool),
        show_bytes(cached),
        show_bytes(dirty),
        show_bytes(written),
        style.bold("serving"),
        now.cores.len(),
        plural(now.cores.len() as u64),
        connections,
        plural(connections),
    )
}

/// The flash log, clean pages, each device and the job, a line each.
pub fn flash(now: &FlashReport, style: Style) -> String {
    let label = style.bold("flash  ");
    if !now.in_use {
        return format!("{label}  {}\n", style.warn("not in use"));
    }
    let copies = match now.copies {
        1 if now.is_log_on_image => "log on an image".to_owned(),
        1 => "1 copy in service".to_owned(),
        copies => format!("{copies} copies in service"),
    };
    let mut text = format!(
        "{label}  {copies}, {} of {} log segments free, {} dirty\n",
        now.free_segments,
        now.segments,
        show_bytes(now.dirty_bytes),
    );
    let pages = &now.pages;
    if pages.slots > 0 {
        let state = match (pages.loaded, pages.suspect) {
            (false, _) => ", page map loading".to_owned(),
            (true, 0) => String::new(),
            (true, suspect) => format!(", {suspect} to be compared with the backing before use"),
        };
        text += &format!(
            "         {} clean, {} of {} cache slots used{state}\n",
            show_bytes(pages.valid_bytes),
            show_count(pages.pages),
            show_count(pages.slots),
        );
    }
    for device in &now.devices {
        let path = if device.device.is_empty() { String::new() } else { format!(": {}", device.device) };
        let name = format!("device {}{path}", device.number);
        let role = if device.role == "pages" { ", clean pages only" } else { "" };
        text += &match device.state.as_str() {
            "in-service" => format!(
                "         {name}, {}, in service{role}, {}\n",
                show_bytes(device.size_bytes),
                show_counted(device.pages, "clean page"),
            ),
            state => format!("         {name}, {}\n", style.warn(&format!("{state}: {}", device.reason))),
        };
    }
    if let Some(job) = &now.job {
        let time_left = match (job.paused, job.left_seconds) {
            (true, _) => ", paused: `hotset flash resume` continues it".to_owned(),
            (false, Some(seconds)) => format!(", {seconds} s left"),
            (false, None) => String::new(),
        };
        let (done, total) = (show_bytes(job.done_bytes), show_bytes(job.total_bytes));
        text += &format!("         {} of {}: {done} of {total}{time_left}\n", job.kind, job.device);
    }
    text
}

/// The plural suffix for a count.
pub fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// The earlier counters of each volume, and the seconds since then.
type Baseline<'a> = Option<(&'a [VolumeReport], f64)>;

fn baseline<'a>(now: &StatusReport, before: Option<&'a StatusReport>) -> Baseline<'a> {
    let before = before?;
    let elapsed_ms = now.uptime_ms.saturating_sub(before.uptime_ms).max(1);
    Some((&before.volumes, elapsed_ms as f64 / 1e3))
}

/// A table of volumes.
pub fn volumes(volumes: &[VolumeReport], baseline: Baseline<'_>, style: Style) -> String {
    let (reads, writes) = if baseline.is_some() { ("reads/s", "writes/s") } else { ("reads", "writes") };
    let mut table = Table::new(&[
        ("volume", Side::Left),
        ("state", Side::Left),
        ("policy", Side::Left),
        ("size", Side::Right),
        (reads, Side::Right),
        ("hits", Side::Right),
        ("read p50", Side::Right),
        ("p99", Side::Right),
        (writes, Side::Right),
        ("write p50", Side::Right),
        ("p99", Side::Right),
        ("cached", Side::Right),
        ("dirty", Side::Right),
    ]);
    for now in volumes {
        let before =
            baseline.and_then(|(before, seconds)| Some((before.iter().find(|old| old.name == now.name)?, seconds)));
        let increase =
            |field: fn(&VolumeReport) -> u64| field(now).saturating_sub(before.map_or(0, |(old, _)| field(old)));
        let count_or_rate = |field: fn(&VolumeReport) -> u64| match before {
            Some((_, seconds)) => show_count((increase(field) as f64 / seconds).round() as u64),
            None => show_count(field(now)),
        };
        // Rates come with the latencies of the same interval.
        let latencies = match before {
            Some((old, _)) if !now.latency_counts.read.is_omitted() => {
                LatencyReport::of(&now.latency_counts.since(&old.latency_counts))
            }
            _ => now.latency_us,
        };
        let (read_count, write_count) = (increase(|volume| volume.reads), increase(|volume| volume.writes));
        table.row(vec![
            now.name.clone(),
            state_of(now),
            now.policy.clone(),
            show_bytes(now.size_bytes),
            count_or_rate(|volume| volume.reads),
            show_percent(increase(|volume| volume.memory_hits + volume.flash_hits), increase(|volume| volume.reads)),
            quantile(read_count, &latencies.read, |read| read.p50),
            quantile(read_count, &latencies.read, |read| read.p99),
            count_or_rate(|volume| volume.writes),
            quantile(write_count, &latencies.write, |write| write.p50),
            quantile(write_count, &latencies.write, |write| write.p99),
            show_bytes(now.memory_bytes),
            show_bytes(now.dirty_bytes),
        ]);
    }
    table.render(style)
}

/// Reads of all volumes by source, in requests and in bytes; empty without reads.
fn sources(volumes: &[VolumeReport], baseline: Baseline<'_>, style: Style) -> String {
    let sum = |field: fn(&VolumeReport) -> u64| -> u64 {
        let increase = |now: &VolumeReport| {
            let before = baseline.and_then(|(before, _)| before.iter().find(|old| old.name == now.name));
            field(now).saturating_sub(before.map_or(0, field))
        };
        volumes.iter().map(increase).sum()
    };
    let sources = [
        ("memory", sum(|volume| volume.memory_hits), sum(|volume| volume.source_bytes.memory)),
        ("flash", sum(|volume| volume.flash_hits), sum(|volume| volume.source_bytes.flash)),
        ("prefetched", sum(|volume| volume.prefetched_hits), sum(|volume| volume.source_bytes.prefetched)),
        ("array", sum(|volume| volume.misses + volume.partial_hits), sum(|volume| volume.source_bytes.backing)),
    ];
    let (requests, bytes) = sources.iter().fold((0, 0), |sums, source| (sums.0 + source.1, sums.1 + source.2));
    if requests == 0 {
        return String::new();
    }
    let mut table = Table::new(&[
        ("reads by source", Side::Left),
        ("requests", Side::Right),
        ("part", Side::Right),
        ("bytes", Side::Right),
        ("part", Side::Right),
    ]);
    let seconds = baseline.map(|(_, seconds)| seconds);
    let rate = |count: u64| seconds.map_or(count, |seconds| (count as f64 / seconds).round() as u64);
    let per_second = if seconds.is_some() { "/s" } else { "" };
    for (source, source_requests, source_bytes) in sources {
        table.row(vec![
            source.to_owned(),
            format!("{}{per_second}", show_count(rate(source_requests))),
            show_percent(source_requests, requests),
            format!("{}{per_second}", show_bytes(rate(source_bytes))),
            show_percent(source_bytes, bytes),
        ]);
    }
    format!("\n{}", table.render(style))
}

/// A quantile; `-` without requests.
pub(super) fn quantile(requests: u64, quantiles: &Quantiles, select: fn(&Quantiles) -> f64) -> String {
    if requests == 0 { "-".to_owned() } else { show_latency(select(quantiles)) }
}

/// A daemon's uptime as text.
pub fn show_uptime(time: Duration) -> String {
    let minutes = time.as_secs() / 60;
    match (minutes / 1440, minutes / 60 % 24, minutes % 60) {
        (0, 0, 0) => format!("{} s", time.as_secs()),
        (0, 0, minutes) => format!("{minutes} min"),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}
/// The state of a volume, with the owner of one on standby.
fn state_of(volume: &VolumeReport) -> String {
    let name = volume.state.name();
    match &volume.fleet {
        Some(fleet) if volume.state == VolumeState::Standby => format!("{name}: {}", super::fleet::owner(fleet)),
        _ if volume.is_limited() => format!("{name}, limited"),
        _ => name.to_owned(),
    }
}
