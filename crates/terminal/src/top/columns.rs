//! The table's columns, the most important first: a narrow terminal shows as many as fit.

use std::cmp::Ordering;

use messages::{VolumeReport, VolumeState};

use super::interval::Sources;
use super::model::Row;
use units::{show_bytes, show_count, show_latency};

/// Text for an unknown value.
pub const UNKNOWN: &str = "-";

/// Value of a cell.
#[derive(Debug)]
pub enum Value {
    /// A name.
    Text(String),
    /// A figure, `None` if it is unknown, and its formatting function.
    Figure(Option<f64>, fn(f64) -> String),
}

impl Value {
    /// The value as text.
    pub fn show(&self) -> String {
        match self {
            Value::Text(text) => text.clone(),
            Value::Figure(figure, show) => figure.map_or(UNKNOWN.to_owned(), show),
        }
    }

    /// Order in the table. Unknown values come last in either direction.
    pub fn compare(left: &Value, right: &Value, is_descending: bool) -> Ordering {
        let order = match (left, right) {
            (Value::Figure(None, _), Value::Figure(None, _)) => return Ordering::Equal,
            (Value::Figure(None, _), _) => return Ordering::Greater,
            (_, Value::Figure(None, _)) => return Ordering::Less,
            (Value::Figure(Some(left), _), Value::Figure(Some(right), _)) => left.total_cmp(right),
            (left, right) => left.show().cmp(&right.show()),
        };
        if is_descending { order.reverse() } else { order }
    }
}

/// One column.
pub struct Column {
    /// Its title.
    pub title: &'static str,
    /// The key that sorts by it.
    pub key: char,
    /// Width in characters.
    pub width: u16,
    /// True for names, false for figures.
    pub is_text: bool,
    /// The value in a row.
    pub value: fn(&Row<'_>) -> Value,
}

const fn figure(title: &'static str, key: char, width: u16, value: fn(&Row<'_>) -> Value) -> Column {
    Column { title, key, width, is_text: false, value }
}

/// All columns.
pub const COLUMNS: &[Column] = &[
    Column { title: "volume", key: 'n', width: 18, is_text: true, value: |row| Value::Text(row.volume.name.clone()) },
    figure("reads/s", 'r', 9, |row| rate(row, |volume| volume.reads, count)),
    figure("writes/s", 'w', 9, |row| rate(row, |volume| volume.writes, count)),
    figure("bytes/s", 't', 10, |row| rate(row, |volume| volume.read_bytes + volume.write_bytes, bytes)),
    figure("hits", 'h', 8, |row| over_interval(row, |volume| Sources::of(volume).hit_ratio(), percent)),
    figure("read p99", 'l', 9, |row| {
        over_interval(row, |volume| volume.latency_counts.read.percentile_us(0.99), show_latency)
    }),
    figure("dirty", 'd', 9, |row| current_bytes(row.volume.dirty_bytes)),
    figure("write p99", 'p', 10, |row| {
        over_interval(row, |volume| volume.latency_counts.write.percentile_us(0.99), show_latency)
    }),
    figure("array IO/s", 'a', 11, |row| rate(row, |volume| volume.backing_reads + volume.backing_writes, count)),
    figure("memory", 'm', 9, |row| current_bytes(row.volume.memory_bytes)),
    figure("flash", 'f', 9, |row| current_bytes(row.volume.flash.cached_bytes)),
    Column { title: "policy", key: 'o', width: 14, is_text: true, value: |row| Value::Text(row.volume.policy.clone()) },
    Column {
        title: "datastore",
        key: 's',
        width: 12,
        is_text: true,
        value: |row| Value::Text(row.volume.datastore.clone()),
    },
];

/// A volume's name, with its state unless it is active without a limit.
pub fn name(volume: &VolumeReport) -> String {
    match (volume.state, volume.is_limited()) {
        (VolumeState::Active, false) => volume.name.clone(),
        (VolumeState::Active, true) => format!("{} [limited]", volume.name),
        (state, _) => format!("{} [{}]", volume.name, state.name()),
    }
}

/// A count as text.
pub fn count(value: f64) -> String {
    show_count(value.round() as u64)
}

/// Bytes as text.
pub fn bytes(value: f64) -> String {
    show_bytes(value.round() as u64)
}

/// A ratio as text.
pub fn percent(ratio: f64) -> String {
    format!("{:.1} %", ratio * 100.0)
}

fn current_bytes(value: u64) -> Value {
    Value::Figure(Some(value as f64), bytes)
}

fn over_interval(row: &Row<'_>, value: fn(&VolumeReport) -> Option<f64>, show: fn(f64) -> String) -> Value {
    Value::Figure(row.last_interval.and_then(|(volume, _)| value(volume)), show)
}

fn rate(row: &Row<'_>, counter: fn(&VolumeReport) -> u64, show: fn(f64) -> String) -> Value {
    Value::Figure(row.last_interval.map(|(volume, interval)| interval.rate(counter(volume))), show)
}
