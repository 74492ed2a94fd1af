//! Draws the model: a head line, the overview, alerts, the table, a line of keys.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use messages::StatusReport;
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Clear, Paragraph, Row as TableRow, Table};

use super::columns::{COLUMNS, Column, UNKNOWN, bytes, count, name, percent};
use super::interval::{Interval, Sources};
use super::model::{Model, Row};
use crate::render::bars::bars;
use crate::render::screen::{plural, show_uptime};
use units::{show_bytes, show_latency, show_micros};

/// Lines of a panel of the overview, including its title.
const PANEL_LINES: u16 = 6;
/// Minimum width of a panel of the overview.
const PANEL_WIDTH: u16 = 40;
/// Alerts shown; further ones are only counted.
const ALERTS_SHOWN: usize = 3;
/// Width of a volume's sparkline: its IOPS in the last intervals.
const SPARKLINE_WIDTH: u16 = 12;
/// Width of the bars of the overview.
const BAR_WIDTH: usize = 12;
/// Width of the bars of the sources: narrower, so that label, percentage and rate fit 40 columns.
const SOURCE_BAR_WIDTH: usize = 8;
/// Width from which the reads by source have their bytes beside them.
const SOURCE_BYTES_WIDTH: usize = 56;
/// Age from which a reply counts as late.
const STALE_AFTER: Duration = Duration::from_secs(5);

/// Colours of the sources of reads: the nearest ones to the web console's (`ui/src/style.css`) among 256.
const MEMORY: Color = Color::Indexed(36);
const FLASH: Color = Color::Indexed(75);
const PREFETCHED: Color = Color::Indexed(178);
const ARRAY: Color = Color::Indexed(208);

/// The colours; none with `NO_COLOR`. Shapes and words convey the same.
#[derive(Clone, Copy)]
pub struct Palette {
    colours: bool,
}

impl Palette {
    /// Without colours.
    #[cfg(test)]
    pub const PLAIN: Palette = Palette { colours: false };

    /// The palette for the environment.
    pub fn from_environment() -> Palette {
        Palette { colours: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) }
    }

    fn of(self, colour: Color) -> Style {
        if self.colours { Style::new().fg(colour) } else { Style::new() }
    }
}

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);

/// Draws the screen.
pub fn draw(frame: &mut Frame<'_>, model: &mut Model, palette: Palette, now: Instant) {
    let area = frame.area();
    let alert_lines = model.status().map_or(0, |status| status.alerts.len().min(ALERTS_SHOWN + 1)) as u16;
    let panels_per_row = (area.width / PANEL_WIDTH).clamp(1, 3);
    let overview_lines = (3u16.div_ceil(panels_per_row) * PANEL_LINES).min(area.height / 2);
    let [header, error_line, overview, alerts, table, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(u16::from(model.no_reply_reason().is_some())),
        Constraint::Length(overview_lines),
        Constraint::Length(alert_lines),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .areas(area);
    draw_header(frame, header, model, palette, now);
    if let Some(reason) = model.no_reply_reason() {
        let text = format!(" no answer from the daemon, retrying: {reason}");
        frame.render_widget(Line::styled(text, palette.of(Color::Red).patch(BOLD)), error_line);
    }
    if let Some(status) = model.status() {
        draw_overview(frame, overview, panels_per_row, model, status, palette);
        draw_alerts(frame, alerts, status, palette);
    }
    draw_table(frame, table, model, palette);
    draw_keys(frame, keys, model);
    // Old figures are dimmed and stay until new ones arrive.
    if model.no_reply_reason().is_some() {
        let old_figures = overview.union(table);
        frame.buffer_mut().set_style(old_figures, DIM);
    }
    if model.is_help_shown {
        draw_help(frame, area);
    }
}

fn draw_header(frame: &mut Frame<'_>, area: Rect, model: &Model, palette: Palette, now: Instant) {
    let age = model.age(now);
    let seconds = age.as_secs();
    let (badge, colour) = match (model.no_reply_reason(), model.status()) {
        (Some(_), Some(_)) => (format!("disconnected, data is {seconds} s old "), Color::Red),
        (Some(_), None) => ("disconnected ".to_owned(), Color::Red),
        (None, None) => ("connecting ".to_owned(), Color::Yellow),
        (None, Some(_)) if age > STALE_AFTER => (format!("no answer for {seconds} s "), Color::Yellow),
        (None, Some(status)) if status.stopping => ("stopping ".to_owned(), Color::Yellow),
        (None, Some(_)) => ("live ".to_owned(), Color::Green),
    };
    let text = model.status().map_or(" hotset".to_owned(), |status| {
        let connections: u64 = status.cores.iter().map(|core| core.connections).sum();
        let volumes = status.volumes.len() as u64;
        let up = show_uptime(Duration::from_secs(status.uptime_seconds));
        let counts = format!("{volumes} volume{}, {connections} connection{}", plural(volumes), plural(connections));
        format!(" hotset {}, up {up}, {counts}", status.version)
    });
    frame.render_widget(Line::styled(text, BOLD), area);
    let [_, right] = Layout::horizontal([Constraint::Min(0), Constraint::Length(badge.len() as u16)]).areas(area);
    frame.render_widget(Line::styled(badge, palette.of(colour).patch(BOLD)), right);
}

fn draw_overview(
    frame: &mut Frame<'_>,
    area: Rect,
    panels_per_row: u16,
    model: &Model,
    status: &StatusReport,
    palette: Palette,
) {
    let width = usize::from(area.width / panels_per_row);
    let panels = [
        ("reads by source", sources(model.interval(), width, palette)),
        ("load", load(model, width)),
        ("cache", cache_usage(status, model.interval())),
    ];
    for (index, (title, lines)) in panels.into_iter().enumerate() {
        let (row, column) = (index as u16 / panels_per_row, index as u16 % panels_per_row);
        let panel = Rect {
            x: area.x + column * (area.width / panels_per_row),
            y: area.y + row * PANEL_LINES,
            width: area.width / panels_per_row,
            height: PANEL_LINES,
        };
        let block = Block::new().borders(Borders::TOP).title(Line::styled(format!(" {title} "), BOLD));
        frame.render_widget(Paragraph::new(lines).block(block), panel.intersection(area));
    }
}

/// A bar that is full at 1.
fn bar(fraction: f64, width: usize, style: Style) -> Span<'static> {
    let filled = (fraction.clamp(0.0, 1.0) * width as f64).round() as usize;
    Span::styled(format!("{}{}", "█".repeat(filled), "·".repeat(width - filled)), style)
}

fn sources(interval: Option<&Interval>, width: usize, palette: Palette) -> Vec<Line<'static>> {
    let Some(interval) = interval else { return vec![Line::raw(" waiting for a second sample")] };
    let sources = Sources::of_all(&interval.totals);
    let total = (sources.memory + sources.prefetched + sources.flash + sources.array).max(1) as f64;
    let read = &interval.totals.source_bytes;
    let line = |label: &str, reads: u64, read_bytes: u64, colour| {
        let ratio = reads as f64 / total;
        let rate = count(interval.rate(reads));
        let rate_bytes = match width >= SOURCE_BYTES_WIDTH {
            true => format!(" {:>10}/s", bytes(interval.rate(read_bytes))),
            false => String::new(),
        };
        Line::from(vec![
            Span::raw(format!(" {label:<11}")),
            bar(ratio, SOURCE_BAR_WIDTH, palette.of(colour)),
            Span::raw(format!(" {:>7} {rate:>9}/s{rate_bytes}", percent(ratio))),
        ])
    };
    let hit_ratio = match sources.hit_ratio() {
        None => " no reads".to_owned(),
        Some(ratio) => format!(" hit ratio {}", percent(ratio)),
    };
    vec![
        line("memory", sources.memory, read.memory, MEMORY),
        line("flash", sources.flash, read.flash, FLASH),
        line("prefetched", sources.prefetched, read.prefetched, PREFETCHED),
        line("array", sources.array, read.backing, ARRAY),
        Line::raw(hit_ratio),
    ]
}

fn load(model: &Model, width: usize) -> Vec<Line<'static>> {
    let Some(interval) = model.interval() else { return Vec::new() };
    let totals = &interval.totals;
    let rate = |value: u64| count(interval.rate(value));
    let line = |text: String, rates: &VecDeque<f64>| {
        let bar_count = width.saturating_sub(text.chars().count() + 2).min(rates.len());
        Line::raw(format!("{text} {}", bars(rates.range(rates.len() - bar_count..).copied(), highest(rates))))
    };
    let show = |latency: Option<f64>| latency.map_or(UNKNOWN.to_owned(), show_latency);
    let quantiles = |label: &str, requests: u64, counts: &messages::Counts| {
        let (median, p99) = (show(counts.percentile_us(0.5)), show(counts.percentile_us(0.99)));
        Line::raw(format!(" {label:<6}{:>7}/s p50 {median} p99 {p99}", rate(requests)))
    };
    let bytes_rate = bytes(interval.rate(totals.read_bytes + totals.write_bytes));
    let latencies = &totals.latency_counts;
    let held = |label: &str, service: &messages::Counts, held: Option<&messages::Counts>| {
        let (service, held) = (service.percentile_us(0.99), held?.percentile_us(0.99));
        Some(format!("{label} {} + {}", show(service), show(held)))
    };
    let held_texts = [
        held("reads", latencies.service_of_reads(), latencies.held_reads()),
        held("writes", latencies.service_of_writes(), latencies.held_writes()),
    ];
    let held_texts: Vec<_> = held_texts.into_iter().flatten().collect();
    let mut lines = vec![
        line(format!(" IOPS {:>12}", rate(totals.reads + totals.writes)), model.requests()),
        line(format!(" bytes/s {bytes_rate:>9}"), model.bytes()),
        quantiles("reads", totals.reads, &latencies.read),
        quantiles("writes", totals.writes, &latencies.write),
    ];
    if !held_texts.is_empty() {
        lines.push(Line::raw(format!(" p99 {} held by limits", held_texts.join(", "))));
    }
    lines
}

fn cache_usage(status: &StatusReport, interval: Option<&Interval>) -> Vec<Line<'static>> {
    let sum = |field: fn(&messages::VolumeReport) -> u64| status.volumes.iter().map(field).sum::<u64>();
    let oldest = status.volumes.iter().map(|volume| volume.dirty_age_ms).max().unwrap_or(0);
    let core_sum = |field: fn(&messages::report::CoreReport) -> u64| status.cores.iter().map(field).sum::<u64>();
    let usage = |label: &str, used: u64, all: u64, text: String| {
        Line::from(vec![
            Span::raw(format!(" {label:<7}")),
            bar(used as f64 / all.max(1) as f64, BAR_WIDTH, Style::new()),
            Span::raw(format!(" {text}")),
        ])
    };
    let (used, pool) = (core_sum(|core| core.pool_used_bytes), core_sum(|core| core.pool_bytes));
    let memory = usage("memory", used, pool, format!("{} of {}", show_bytes(used), show_bytes(pool)));
    let dirty = format!(
        " dirty  {}, oldest {}",
        show_bytes(sum(|volume| volume.dirty_bytes)),
        show_micros(oldest as f64 * 1e3)
    );
    let array = interval.map_or(UNKNOWN.to_owned(), |interval| {
        let totals = &interval.totals;
        format!(
            "{} reads/s, {} writes/s",
            count(interval.rate(totals.backing_reads)),
            count(interval.rate(totals.backing_writes))
        )
    });
    let flash = match &status.flash {
        None => Line::raw(" flash  not configured"),
        Some(flash) if !flash.in_use => Line::raw(" flash  not in use"),
        Some(flash) => {
            let (pages, slots) = (flash.pages.pages, flash.pages.slots);
            let usage_percent = percent(pages as f64 / slots.max(1) as f64);
            let log = flash.segments - flash.free_segments.min(flash.segments);
            usage("flash", pages, slots, format!("{usage_percent}, log {log} of {} segments", flash.segments))
        }
    };
    vec![memory, flash, Line::raw(dirty), Line::raw(format!(" array  {array}"))]
}

fn highest(rates: &VecDeque<f64>) -> f64 {
    rates.iter().copied().fold(0.0, f64::max)
}

fn draw_alerts(frame: &mut Frame<'_>, area: Rect, status: &StatusReport, palette: Palette) {
    let shown = status.alerts.iter().take(ALERTS_SHOWN).map(|alert| format!(" ! {alert}"));
    let more = status.alerts.len().saturating_sub(ALERTS_SHOWN);
    let remaining = (more > 0).then(|| format!(" ! and {more} more: `hotset status` shows them"));
    let lines: Vec<_> = shown.chain(remaining).map(|text| Line::styled(text, palette.of(Color::Yellow))).collect();
    frame.render_widget(Paragraph::new(lines), area);
}

/// The columns that fit, and whether the sparkline fits.
fn fitting_columns(width: u16) -> (Vec<&'static Column>, bool) {
    let mut free_width = width;
    let mut fits = |wanted: u16| {
        let fits = wanted < free_width;
        free_width = free_width.saturating_sub(wanted + 1);
        fits
    };
    // The sparkline comes after the important columns and before the others.
    const COLUMNS_BEFORE_SPARKLINE: usize = 6;
    let mut columns: Vec<_> =
        COLUMNS[..COLUMNS_BEFORE_SPARKLINE].iter().take_while(|column| fits(column.width)).collect();
    let has_sparkline = columns.len() == COLUMNS_BEFORE_SPARKLINE && fits(SPARKLINE_WIDTH);
    if has_sparkline {
        columns.extend(COLUMNS[COLUMNS_BEFORE_SPARKLINE..].iter().take_while(|column| fits(column.width)));
    }
    (columns, has_sparkline)
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, model: &mut Model, palette: Palette) {
    let rows = model.rows();
    let volumes = model.status().map_or(0, |status| status.volumes.len());
    if rows.is_empty() {
        let text = match (model.status().is_some(), volumes) {
            (false, _) => "",
            (true, 0) => " no volumes; add [[volume]] to the configuration, or `hotset volume add`",
            (true, _) => " no volume matches the filter; Esc clears it",
        };
        frame.render_widget(Line::raw(text), area);
        return;
    }
    let (columns, has_sparkline) = fitting_columns(area.width);
    let rows_max = usize::from(area.height.saturating_sub(1)).max(1);
    let selected = model.selected(&rows);
    let mut first = model.first_row.min(rows.len().saturating_sub(rows_max));
    if let Some(selected) = selected {
        first = first.clamp((selected + 1).saturating_sub(rows_max), selected);
    }
    let (sorted, is_descending) = model.sort_order();
    let title = |column: &&Column| {
        let mark = if column.key == sorted.key { if is_descending { "▾" } else { "▴" } } else { "" };
        aligned(column, format!("{}{mark}", column.title))
    };
    let sparkline_title = has_sparkline.then(|| Cell::from("IOPS"));
    let titles: Vec<_> = columns.iter().map(title).chain(sparkline_title).collect();
    let shown = rows.iter().enumerate().skip(first).take(rows_max).map(|(index, row)| {
        let sparkline = has_sparkline.then(|| Cell::from(sparkline(row)));
        let cells = columns.iter().map(|column| aligned(column, cell(column, row))).chain(sparkline);
        let style = match (selected == Some(index), row.volume.problems.is_empty()) {
            (true, _) => Style::new().add_modifier(Modifier::REVERSED),
            (false, false) => palette.of(Color::Yellow),
            (false, true) => Style::new(),
        };
        TableRow::new(cells.collect::<Vec<_>>()).style(style)
    });
    let widths = columns.iter().map(|column| Constraint::Length(column.width));
    let widths: Vec<_> = widths.chain(has_sparkline.then_some(Constraint::Length(SPARKLINE_WIDTH))).collect();
    let header = TableRow::new(titles).style(Style::new().add_modifier(Modifier::UNDERLINED));
    let table = Table::new(shown.collect::<Vec<_>>(), widths).header(header);
    frame.render_widget(table, area);
    model.first_row = first;
}

fn cell(column: &Column, row: &Row<'_>) -> String {
    if std::ptr::eq(column, &COLUMNS[0]) { name(row.volume) } else { (column.value)(row).show() }
}

fn sparkline(row: &Row<'_>) -> String {
    let bar_count = row.recent_iops.len().min(usize::from(SPARKLINE_WIDTH));
    bars(row.recent_iops.range(row.recent_iops.len() - bar_count..).copied(), highest(row.recent_iops))
}

fn aligned(column: &Column, text: String) -> Cell<'static> {
    let side = if column.is_text { Alignment::Left } else { Alignment::Right };
    Cell::from(Line::raw(text).alignment(side))
}

fn draw_keys(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let text = match (model.is_typing, model.filter.as_str()) {
        (true, filter) => format!(" filter: {filter}▏  Enter applies it, Esc clears it"),
        (false, "") => " q quit  ? help  / filter  ←→ sort".to_owned(),
        (false, filter) => {
            let volumes = model.status().map_or(0, |status| status.volumes.len());
            format!(" {} of {volumes} match \"{filter}\", Esc shows all  q quit  ? help", model.rows().len())
        }
    };
    frame.render_widget(Line::styled(text, DIM), area);
}

fn draw_help(frame: &mut Frame<'_>, area: Rect) {
    let sorts = COLUMNS.iter().map(|column| format!("  {}  sort by {}", column.key, column.title));
    let others = [
        "  /  filter by name, state, policy, datastore, label",
        "  ← →  sort by the next column; the same key reverses the order",
        "  ↑ ↓ PgUp PgDn Home End  move",
        "  Esc  clear the filter",
        "  q, Ctrl+C  quit",
    ];
    let lines: Vec<_> = others.into_iter().map(str::to_owned).chain(sorts).map(Line::raw).collect();
    let (width, height) = (62.min(area.width), (lines.len() as u16 + 2).min(area.height));
    let centred = Rect { x: (area.width - width) / 2, y: (area.height - height) / 2, width, height };
    frame.render_widget(Clear, centred);
    let block = Block::bordered().title(Line::styled(" keys; press any key to close ", BOLD));
    frame.render_widget(Paragraph::new(lines).block(block), centred);
}
