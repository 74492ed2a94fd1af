//! Reports of scenarios: text, CSV, and one HTML page with charts.

use std::fmt::Write;

use super::Scenario;
use super::series::{Check, Outcome, Point, Series};
use crate::markup::escaped;

type Column = (&'static str, &'static str, fn(&Point) -> f64);

/// The columns of a series: name in JSON and CSV, title of the chart, value.
pub const COLUMNS: [Column; 11] = [
    ("iops", "Requests per second", |point| point.iops),
    ("latency_ms", "Mean latency, ms", |point| point.latency_ms),
    ("read_p99_ms", "Read latency p99, ms", |point| point.read_p99_ms),
    ("read_p999_ms", "Read latency p99.9, ms", |point| point.read_p999_ms),
    ("read_hit_ratio", "Reads from the cache", |point| point.read_hit_ratio),
    ("write_hit_ratio", "Writes acknowledged within 1 ms", |point| point.fast_write_ratio),
    ("flash_fill_ratio", "Flash filled", |point| point.flash_fill_ratio),
    ("dirty_ratio", "Dirty", |point| point.dirty_ratio),
    ("backing_read_mb_s", "Read from the array, MB/s", |point| point.backing_read_mb_s),
    ("backing_write_mb_s", "Written to the array, MB/s", |point| point.backing_write_mb_s),
    ("backing_utilization", "Disks busy", |point| point.backing_utilization),
];

/// Formats checks and notes for a terminal.
pub fn text(scenario: &Scenario, outcome: &Outcome) -> String {
    let verdict = if outcome.passed() { "passed" } else { "FAILED" };
    let mut text = format!("{}: {} ({verdict})\n", scenario.name, scenario.title);
    for check in &outcome.checks {
        let bounds = bounds(check);
        let mark = if check.passed() { "ok  " } else { "MISS" };
        _ = writeln!(text, "  {mark} {}: {} ({bounds})", check.name, figure(check.value));
    }
    for note in &outcome.notes {
        _ = writeln!(text, "       {note}");
    }
    for series in &outcome.series {
        if let Some([p99, p999]) = series.median_read_percentiles() {
            let (p99, p999) = (figure(p99), figure(p999));
            _ = writeln!(text, "       {}: reads p99 {p99} ms, p99.9 {p999} ms in the median point", series.name);
        }
        let costs = series.write_costs();
        if costs.client_writes > 0 {
            let ratio = |count: u64, total: u64| figure(count as f64 / total.max(1) as f64);
            let (writes, bytes) = (costs.client_writes, costs.client_bytes);
            _ = writeln!(
                text,
                "       {}: per client write {} array writes and {} requests to all flash devices; per byte {} to the \
                 array and {} to all flash devices",
                series.name,
                ratio(costs.backing_writes, writes),
                ratio(costs.flash_requests, writes),
                ratio(costs.backing_bytes, bytes),
                ratio(costs.flash_bytes, bytes)
            );
        }
    }
    text
}

/// Formats the bounds of a check.
pub fn bounds(check: &Check) -> String {
    match (check.low, check.high) {
        (Some(low), Some(high)) => format!("{} to {}", figure(low), figure(high)),
        (Some(low), None) => format!("at least {}", figure(low)),
        (None, Some(high)) => format!("at most {}", figure(high)),
        (None, None) => "reported".to_owned(),
    }
}

/// Formats a figure with fewer decimals the larger it is.
pub fn figure(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

/// Formats all series of an outcome as CSV, one line per point.
pub fn csv(outcome: &Outcome) -> String {
    let names: Vec<_> = COLUMNS.iter().map(|(name, _, _)| *name).collect();
    let mut text = format!("run,minute,{}\n", names.join(","));
    for series in &outcome.series {
        for point in &series.points {
            _ = write!(text, "\"{}\",{:.2}", series.name, point.minute);
            for (_, _, value) in COLUMNS {
                _ = write!(text, ",{:.4}", value(point));
            }
            text.push('\n');
        }
    }
    text
}

const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 170.0;
const MARGIN_LEFT: f64 = 52.0;
const MARGIN_BOTTOM: f64 = 24.0;
const MARGIN_TOP: f64 = 10.0;

/// Renders one page with a section per scenario.
pub fn html(runs: &[(&Scenario, &Outcome)]) -> String {
    let mut page = String::from(HEAD);
    overview(&mut page, runs);
    for (scenario, outcome) in runs {
        let verdict = verdict(outcome);
        _ = write!(
            page,
            "<section id=\"{}\"><h2>{} <span class={verdict}>{verdict}</span></h2><p>{}</p><p class=small>{} &middot; \
             {}</p><table>",
            scenario.name,
            scenario.name,
            escaped(scenario.title),
            escaped(scenario.source),
            escaped(scenario.setting)
        );
        page.push_str("<tr><th>check</th><th>value</th><th>bound</th><th>source</th></tr>");
        for check in &outcome.checks {
            let bound = bounds(check);
            let class = if check.passed() { "passed" } else { "missed" };
            _ = write!(
                page,
                "<tr><td>{}</td><td class={class}>{}</td><td>{bound}</td><td class=small>{}</td></tr>",
                escaped(&check.name),
                figure(check.value),
                escaped(check.source)
            );
        }
        page.push_str("</table>");
        for note in &outcome.notes {
            _ = write!(page, "<p class=small>{}</p>", escaped(note));
        }
        charts(&mut page, &outcome.series);
        page.push_str("</section>");
    }
    page.push_str("</main></body></html>\n");
    page
}

fn verdict(outcome: &Outcome) -> &'static str {
    if outcome.passed() { "passed" } else { "missed" }
}

/// Writes one row per scenario, so that a missed check is visible at the top and linked.
fn overview(page: &mut String, runs: &[(&Scenario, &Outcome)]) {
    page.push_str("<table><tr><th>scenario</th><th>result</th><th>checks</th><th></th></tr>");
    for (scenario, outcome) in runs {
        let (verdict, passed) = (verdict(outcome), outcome.checks.iter().filter(|check| check.passed()).count());
        let (name, checks, title) = (scenario.name, outcome.checks.len(), escaped(scenario.title));
        _ = write!(
            page,
            "<tr><td><a href=\"#{name}\">{name}</a></td><td class={verdict}>{verdict}</td><td>{passed} of \
             {checks}</td><td>{title}</td></tr>"
        );
    }
    page.push_str("</table>");
}

fn charts(page: &mut String, series: &[Series]) {
    let charted: Vec<_> = series.iter().filter(|series| series.points.len() > 1).collect();
    if charted.is_empty() {
        return;
    }
    page.push_str("<p class=legend>");
    for (number, series) in charted.iter().enumerate() {
        _ = write!(page, "<span class=\"key k{number}\"></span>{} ", escaped(&series.name));
    }
    page.push_str("</p><div class=charts>");
    for (_, title, value) in COLUMNS {
        let values = charted.iter().flat_map(|series| series.points.iter().map(value));
        let max = values.fold(0.0_f64, f64::max);
        if max <= 0.0 {
            continue;
        }
        chart(page, title, &charted, value, round_up(max));
    }
    page.push_str("</div>");
}

/// Rounds up to the next round figure for the end of an axis.
fn round_up(max: f64) -> f64 {
    let power = 10_f64.powf(max.log10().floor());
    let steps = [1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0];
    power * steps.into_iter().find(|step| step * power >= max * 0.999).unwrap_or(10.0)
}

fn chart(page: &mut String, title: &str, series: &[&Series], value: fn(&Point) -> f64, axis_max: f64) {
    let end = series.iter().filter_map(|series| series.points.last()).map(|point| point.minute).fold(1.0, f64::max);
    let x = |minute: f64| MARGIN_LEFT + minute / end * (WIDTH - MARGIN_LEFT - 8.0);
    let y = |value: f64| MARGIN_TOP + (1.0 - value / axis_max) * (HEIGHT - MARGIN_TOP - MARGIN_BOTTOM);
    _ = write!(
        page,
        "<figure><figcaption>{}</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=img>",
        escaped(title)
    );
    for quarter in 0..=4 {
        let level = axis_max * f64::from(quarter) / 4.0;
        _ = write!(
            page,
            "<line class=grid x1={MARGIN_LEFT} x2={} y1={:.1} y2={:.1} />",
            WIDTH - 8.0,
            y(level),
            y(level)
        );
        _ = write!(
            page,
            "<text x={} y={:.1} text-anchor=end>{}</text>",
            MARGIN_LEFT - 5.0,
            y(level) + 3.5,
            axis_label(level, axis_max)
        );
        let minute = end * f64::from(quarter) / 4.0;
        // The last label ends at the edge of the picture.
        let anchor = if quarter == 4 { "end" } else { "middle" };
        _ = write!(
            page,
            "<text x={:.1} y={} text-anchor={anchor}>{}</text>",
            x(minute),
            HEIGHT - 8.0,
            axis_label(minute, end)
        );
    }
    for (number, series) in series.iter().enumerate() {
        let line: Vec<_> =
            series.points.iter().map(|point| format!("{:.1},{:.1}", x(point.minute), y(value(point)))).collect();
        // Runs without the cache are dashed.
        let dashed = if series.name.ends_with("without") { " dashed" } else { "" };
        _ = write!(page, "<polyline class=\"line k{number}{dashed}\" points=\"{}\" />", line.join(" "));
    }
    page.push_str("</svg></figure>");
}

fn axis_label(value: f64, axis_max: f64) -> String {
    match axis_max {
        max if max >= 10_000.0 => format!("{:.0}k", value / 1000.0),
        max if max >= 20.0 => format!("{value:.0}"),
        max if max >= 2.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

const HEAD: &str = r#"<!doctype html><html lang=en><head><meta charset=utf-8>
<meta name=viewport content="width=device-width">
<title>Hotset: scenarios</title><style>
:root { color-scheme: light dark; --ink: #1b1f24; --dim: #667; --paper: #fff; --grid: #e3e6ea; --good: #117a3a; --bad: #b3261e;
  --k0: #1668c7; --k1: #c2570c; --k2: #5d3fb0; --k3: #4a7d1b }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7eb; --dim: #9aa3ad; --paper: #14171a; --grid: #2a2f35; --good: #5ecf86;
  --bad: #ff8f85; --k0: #6db1ff; --k1: #ffa55c; --k2: #b79cff; --k3: #a5d66f } }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif }
main { max-width: 1340px; margin: 0 auto; padding: 1.5rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin: 2.2rem 0 .2rem } p { margin: .2rem 0 }
.small { color: var(--dim); font-size: .85rem } table { border-collapse: collapse; margin: .6rem 0 }
td, th { text-align: left; padding: .15rem .9rem .15rem 0; vertical-align: top } th { font-weight: 600 }
.passed { color: var(--good) } .missed { color: var(--bad); font-weight: 600 } h2 span { font-size: .85rem }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(380px, 1fr)); gap: .6rem 1.2rem }
figure { margin: 0 } figcaption { font-size: .9rem; font-weight: 600 } svg { width: 100%; height: auto }
svg text { fill: var(--dim); font-size: 10.5px } .grid { stroke: var(--grid) } .line { fill: none; stroke-width: 1.8 }
.line.dashed { stroke-dasharray: 5 3 } a { color: inherit }
.key { display: inline-block; width: 1.2em; height: .25em; margin: 0 .4em .2em 1em } .legend { font-size: .9rem }
.line.k0 { stroke: var(--k0) } .line.k1 { stroke: var(--k1) } .line.k2 { stroke: var(--k2) } .line.k3 { stroke: var(--k3) }
.key.k0 { background: var(--k0) } .key.k1 { background: var(--k1) } .key.k2 { background: var(--k2) } .key.k3 { background: var(--k3) }
</style></head><body><main><h1>Hotset: published tests, reproduced</h1>
<p class=small>Virtual time on modelled disks. The time axes are in minutes.</p>
"#;
