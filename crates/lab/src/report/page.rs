//! The report page: a summary, charts and tables. It has no scripts and no external resources, and is readable
//! in light and dark mode and on paper.

use std::fmt::Write;
use std::time::Duration;

use crate::markup::escaped;
use messages::unix_time;

use super::ReportData;
use super::chart::Chart;
use super::gain::Gain;
use units::{show_bytes, show_count, show_latency, show_micros, show_percent, show_time};

const STYLE: &str = "\
:root { color-scheme: light dark; --ink: #1c2430; --ground: #fff; --faint: #5d6776; --grid: #dfe4ea; --memory: \
#0b8a66; --flash: #2563b8; --prefetched: #8a6d00; --array: #c2571a }\n\
@media (prefers-color-scheme: dark) { :root { --ink: #e8ecf1; --ground: #14181e; --faint: #9aa5b4; --grid: #2b323c; \
--memory: #35b78d; --flash: #6aa5f0; --prefetched: #d8b93c; --array: #f08c4b } }\n\
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground); max-width: 60rem; margin: \
2rem auto; padding: 0 1rem }\n\
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2rem } .faint, figcaption { color: var(--faint) } figure \
{ margin: 1rem 0 }\n\
table { border-collapse: collapse; width: 100% } th, td { padding: .25rem .5rem; text-align: right; border-bottom: \
1px solid var(--grid) } th:first-child, td:first-child, td.text { text-align: left }\n\
svg { width: 100% } svg text { fill: var(--faint); font-size: 12px } .end { text-anchor: end } .grid { stroke: \
var(--grid) } polyline { fill: none; stroke-width: 2 }\n\
polygon.memory { fill: var(--memory) } polygon.flash { fill: var(--flash) } polygon.prefetched { fill: \
var(--prefetched) } polygon.array { fill: var(--array) }\n\
polyline.memory { stroke: var(--memory) } polyline.flash { stroke: var(--flash) } polyline.array { stroke: \
var(--array) }\n\
b.memory { color: var(--memory) } b.flash { color: var(--flash) } b.prefetched { color: var(--prefetched) } b.array { \
color: var(--array) }\n";

/// The gain in one sentence.
pub fn summary(gain: &Gain) -> String {
    if gain.reads == 0 {
        return format!("nothing was read in {}", show_time(Duration::from_secs(gain.covered_seconds)));
    }
    format!(
        "{} of {} reads were served by the cache, which avoided {} requests and {} at the array",
        show_percent(gain.memory_hits + gain.flash_hits, gain.reads),
        show_count(gain.reads),
        show_count(gain.avoided_requests()),
        show_bytes(gain.avoided_bytes())
    )
}

/// The complete page.
pub fn write(data: &ReportData) -> String {
    let gain = &data.gain;
    let when = |seconds: u64| unix_time::format(Duration::from_secs(seconds));
    let (from, to) = (when(gain.from_unix_seconds), when(gain.to_unix_seconds));
    let covered = show_time(Duration::from_secs(gain.covered_seconds));
    let on_host = if data.host.is_empty() { String::new() } else { format!(" on {}", escaped(&data.host)) };
    let (first, last) = data.requested;
    // The range of the history is aligned to its steps.
    let step = data.history.step_seconds.max(60);
    let is_clipped = gain.from_unix_seconds > first + step || gain.to_unix_seconds + step < last;
    let requested = match is_clipped {
        true => format!("; the history covers only a part of the requested time, {} to {}", when(first), when(last)),
        false => String::new(),
    };
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\">\n\
         <title>Hotset{on_host}: cache benefit report</title>\n<style>\n{STYLE}</style>\n<h1>Cache \
         benefit{on_host}</h1>\n<p class=\"faint\">{from} to {to}, with data for {covered}{requested}. Hotset \
         {}.</p>\n<p>{}.</p>\n",
        escaped(&data.version),
        capitalized(&summary(gain))
    );
    page.push_str(&totals_table(gain));
    page.push_str(&draw_charts(data));
    page.push_str(&volumes_table(data));
    page.push_str(&alerts_table(data));
    page.push_str("</html>\n");
    page
}

fn totals_table(gain: &Gain) -> String {
    let latency = |us: Option<f64>| us.map_or("-".to_owned(), |us| escaped(&show_latency(us)));
    let bytes = &gain.source_bytes;
    let count_and_percent = |reads| format!("{} ({})", show_count(reads), show_percent(reads, gain.reads));
    let held = match gain.read_held_us {
        0 => String::new(),
        held_us => {
            let mean = held_us as f64 / gain.reads.max(1) as f64;
            format!("including {} per read, on average, for limits and shares", show_micros(mean))
        }
    };
    let rows = [
        ("Reads", show_count(gain.reads), show_bytes(gain.read_bytes)),
        ("Writes", show_count(gain.writes), show_bytes(gain.write_bytes)),
        ("Reads from memory", count_and_percent(gain.memory_hits), show_bytes(bytes.memory)),
        ("Reads from flash", count_and_percent(gain.flash_hits), show_bytes(bytes.flash)),
        ("Reads prefetched from the array", count_and_percent(gain.prefetched_hits), show_bytes(bytes.prefetched)),
        (
            "Reads served by the array, completely or partly",
            count_and_percent(gain.array_reads),
            show_bytes(bytes.backing),
        ),
        ("Array reads", show_count(gain.backing_reads), show_bytes(gain.backing_read_bytes)),
        ("Array writes", show_count(gain.backing_writes), show_bytes(gain.backing_write_bytes)),
        ("Read latency, median", latency(gain.read_p50_us), String::new()),
        ("Read latency, p99", latency(gain.read_p99_us), held),
    ];
    let rows: String =
        rows.iter().map(|(name, value, detail)| format!("<tr><td>{name}<td>{value}<td>{detail}\n")).collect();
    format!("<table>\n{rows}</table>\n")
}

fn draw_charts(data: &ReportData) -> String {
    let history = &data.history;
    let step_starts = &history.at_unix_seconds;
    let mean = |name: &str| {
        let series = history.series.get(name);
        series.map_or_else(|| vec![0.0; step_starts.len()], |series| series.mean.clone())
    };
    let sum = |left: Vec<f64>, right: Vec<f64>| -> Vec<f64> {
        left.into_iter().zip(right).map(|(left, right)| left + right).collect()
    };
    let sources = [
        ("memory", mean("memory_hits")),
        ("flash", mean("flash_hits")),
        ("prefetched", mean("prefetched_hits")),
        ("array", sum(mean("misses"), mean("partial_hits"))),
    ];
    let percentile = |of: Option<&Vec<Option<f64>>>| -> Vec<f64> {
        of.map_or_else(
            || vec![0.0; step_starts.len()],
            |values| values.iter().map(|value| value.unwrap_or(0.0)).collect(),
        )
    };
    let latency = history.latency.get("read");
    let rate: fn(f64) -> String = |value| format!("{}/s", show_count(value.round() as u64));
    let draw = |title, series: &[(&str, Vec<f64>)], stacked, format_value| {
        let span = (history.from_unix_seconds, history.to_unix_seconds);
        Chart { title, step_starts, span, step_seconds: history.step_seconds, series, stacked, format_value }.draw()
    };
    let mut text = String::new();
    let mut figure = |title: &str, picture: String, legend: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "<h2>{title}</h2>\n<figure>\n{picture}<figcaption>{legend}</figcaption></figure>");
    };
    figure(
        "Reads by source",
        draw("Reads per second, by source", &sources, true, rate),
        "Reads per second: <b class=\"memory\">memory</b>, <b class=\"flash\">flash</b>, <b \
         class=\"prefetched\">prefetched</b> from the array, <b class=\"array\">the array</b>, completely or partly.",
    );
    let client_requests = sum(mean("reads"), mean("writes"));
    let array_requests = sum(mean("backing_reads"), mean("backing_writes"));
    figure(
        "Requests avoided at the array",
        draw(
            "Requests per second, of clients and to the array",
            &[("memory", client_requests), ("array", array_requests)],
            false,
            rate,
        ),
        "Requests per second: <b class=\"memory\">of clients</b>, <b class=\"array\">to the array</b>.",
    );
    let p50 = percentile(latency.map(|latency| &latency.p50_us));
    let p99 = percentile(latency.map(|latency| &latency.p99_us));
    figure(
        "Read latency",
        draw("Latency of reads", &[("memory", p50), ("flash", p99)], false, |us| escaped(&show_latency(us))),
        "<b class=\"memory\">Median</b> and <b class=\"flash\">99th percentile</b> of the reads of a step, as clients \
         see them.",
    );
    text
}

fn volumes_table(data: &ReportData) -> String {
    let row = |volume: &super::VolumeGain| {
        let gain = &volume.gain;
        let p99 = gain.read_p99_us.map_or("-".to_owned(), |us| escaped(&show_latency(us)));
        format!(
            "<tr><td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{p99}\n",
            escaped(&volume.volume),
            show_count(gain.reads),
            show_count(gain.writes),
            show_percent(gain.memory_hits, gain.reads),
            show_percent(gain.flash_hits, gain.reads),
            show_percent(gain.prefetched_hits, gain.reads),
            show_percent(gain.array_reads, gain.reads),
            show_count(gain.avoided_requests())
        )
    };
    let rows: String = data.volumes.iter().map(row).collect();
    let unlisted = data.volumes_examined - data.volumes.len();
    let line = |count: usize, predicate: &str| match count {
        0 => String::new(),
        _ => format!("<p class=\"faint\">{count} more volumes {predicate}.</p>\n"),
    };
    let more = line(unlisted, "had fewer reads") + &line(data.volumes_not_examined, "were not examined");
    format!(
        "<h2>Volumes</h2>\n<table>\n<tr><th>volume<th>reads<th>writes<th>memory<th>flash<th>prefetched<th>array\
         <th>requests avoided<th>read p99\n{rows}</table>\n{more}"
    )
}

fn alerts_table(data: &ReportData) -> String {
    let events = &data.alerts.events;
    if events.is_empty() {
        return "<h2>Alerts</h2>\n<p>None was raised.</p>\n".to_owned();
    }
    let row = |event: &messages::report::EventReport| {
        let at = unix_time::format(Duration::from_millis(event.at_unix_ms));
        let subject = event.subject.as_deref().unwrap_or("");
        format!("<tr><td>{at}<td class=\"text\">{}<td class=\"text\">{}\n", escaped(subject), escaped(&event.text))
    };
    let rows: String = events.iter().map(row).collect();
    let older = if data.alerts.next.is_some() { "<p class=\"faint\">Older alerts are not shown.</p>\n" } else { "" };
    format!("<h2>Alerts</h2>\n<table>\n{rows}</table>\n{older}")
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use messages::report::{EventKind, EventReport, EventsPage, HistoryReport, SourceBytes};

    use super::super::VolumeGain;
    use super::*;

    fn sample_data() -> ReportData {
        let gain = Gain {
            covered_seconds: 60,
            reads: 100,
            memory_hits: 60,
            flash_hits: 20,
            prefetched_hits: 15,
            array_reads: 5,
            source_bytes: SourceBytes { memory: 60 << 12, flash: 20 << 12, prefetched: 15 << 12, backing: 5 << 12 },
            read_p50_us: Some(16.384),
            read_p99_us: Some(15_900.0),
            read_held_us: 100 * 2_500,
            ..Gain::default()
        };
        let event = EventReport {
            at_unix_ms: 1_000,
            kind: EventKind::Alert,
            subject: Some("<b>".to_owned()),
            text: "raised & cleared".to_owned(),
            ..EventReport::default()
        };
        ReportData {
            host: "store<1>".to_owned(),
            requested: (0, 600),
            version: "0".to_owned(),
            history: HistoryReport::default(),
            gain: gain.clone(),
            volumes: vec![VolumeGain { volume: "a\"<script>".to_owned(), gain }],
            volumes_examined: 3,
            volumes_not_examined: 4,
            alerts: EventsPage { events: vec![event], next: Some(1) },
        }
    }

    #[test]
    fn page_shows_the_gain_without_external_resources() {
        let page = write(&sample_data());
        for text in [
            "80.0 % of 100 reads were served",
            "60 (60.0 %)<td>240 KiB",
            "20 (20.0 %)<td>80 KiB",
            "15 (15.0 %)<td>60 KiB",
            "5 (5.0 %)<td>20 KiB",
            "median<td>&lt; 16 us",
            "p99<td>15.9 ms<td>including 2.50 ms per read, on average, for limits and shares",
            "2 more volumes had fewer",
            "4 more volumes were not examined",
            "raised &amp; cleared",
            "&lt;b&gt;",
            "Older alerts",
            "benefit on store&lt;1&gt;</h1>",
            "the requested time, 1970-01-01T00:00:00Z to 1970-01-01T00:10:00Z",
        ] {
            assert!(page.contains(text), "{text}: {page}");
        }
        for foreign in ["<script", "src=", "href=", "url(", "http:", "https:", "@import", "NaN"] {
            assert!(!page.contains(foreign), "{foreign}");
        }
    }

    #[test]
    fn report_without_reads_states_it() {
        let gain = Gain { covered_seconds: 60, ..Gain::default() };
        assert!(summary(&gain).starts_with("nothing was read in "));
    }
}
