//! Figures over time as a table: one line per step, each figure as its mean rate or its mean.

use std::time::Duration;

use messages::report::HistoryReport;
use messages::unix_time;

use super::style::Style;
use super::table::{Side, Table};
use units::{show_bytes, show_latency};

/// The figures shown, with their column titles.
const FIGURES: [(&str, &str); 6] = [
    ("reads", "reads/s"),
    ("writes", "writes/s"),
    ("read_bytes", "bytes read/s"),
    ("write_bytes", "bytes written/s"),
    ("misses", "misses/s"),
    ("dirty_bytes", "dirty"),
];
/// The latencies shown: kind of request and column title.
const LATENCIES: [(&str, &str); 2] = [("read", "read p99"), ("write", "write p99")];

/// The table; figures without data have no column.
pub fn table(report: &HistoryReport, style: Style) -> String {
    if report.at_unix_seconds.is_empty() {
        return "no history for this time range\n".to_owned();
    }
    let figures: Vec<_> = FIGURES.iter().filter_map(|(name, head)| Some((report.series.get(*name)?, *head))).collect();
    let latencies: Vec<_> =
        LATENCIES.iter().filter_map(|(name, head)| Some((report.latency.get(*name)?, *head))).collect();
    let heads = figures.iter().map(|(_, head)| *head).chain(latencies.iter().map(|(_, head)| *head));
    let columns: Vec<_> = [("time", Side::Left)].into_iter().chain(heads.map(|head| (head, Side::Right))).collect();
    let mut table = Table::new(&columns);
    for (step, begin) in report.at_unix_seconds.iter().enumerate() {
        let figure = |unit: &str, mean: f64| match unit {
            "bytes" => show_bytes(mean.round() as u64),
            _ => format!("{mean:.1}"),
        };
        let latency = |us: Option<f64>| us.map_or_else(|| "-".to_owned(), show_latency);
        let mut row = vec![unix_time::format(Duration::from_secs(*begin))];
        row.extend(figures.iter().map(|(figures, _)| figure(&figures.unit, figures.mean[step])));
        row.extend(latencies.iter().map(|(figures, _)| latency(figures.p99_us[step])));
        table.row(row);
    }
    table.render(style)
}
