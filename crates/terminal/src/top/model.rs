//! The daemon's state and the user's choices, independent of the terminal.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use messages::{StatusReport, VolumeReport};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::columns::{COLUMNS, Column, Value};
use super::interval::Interval;
use super::poller::PollResult;

/// Maximum number of intervals in a chart.
const CHART_INTERVALS_MAX: usize = 240;
/// Maximum number of intervals in a volume's small chart.
const SPARKLINE_INTERVALS_MAX: usize = 24;
/// Maximum length of a filter, in characters.
const FILTER_CHARS_MAX: usize = 64;
/// Rows that a page key moves by.
const PAGE_ROWS: isize = 10;

/// A volume in the table, with its counts of the last interval if they are known.
pub struct Row<'a> {
    /// Its last report.
    pub volume: &'a VolumeReport,
    /// Its counts of the interval, and the interval.
    pub last_interval: Option<(&'a VolumeReport, &'a Interval)>,
    /// Its requests per second in each of the last intervals.
    pub recent_iops: &'a VecDeque<f64>,
}

/// The state of the view.
pub struct Model {
    started_at: Instant,
    last_reply: Option<Instant>,
    no_reply_reason: Option<String>,
    status: Option<StatusReport>,
    interval: Option<Interval>,
    requests: VecDeque<f64>,
    bytes: VecDeque<f64>,
    /// Requests per second of each volume in the last intervals, by the volume's name.
    recent_iops: BTreeMap<String, VecDeque<f64>>,
    /// Index of the sort column in [`COLUMNS`].
    sort_column: usize,
    is_descending: bool,
    /// Text that a row must contain.
    pub filter: String,
    /// True while keys edit the filter.
    pub is_typing: bool,
    /// True while the help is shown.
    pub is_help_shown: bool,
    selected: Option<String>,
    /// First visible row; the view keeps the selected one visible.
    pub first_row: usize,
}

impl Model {
    /// A model before the first reply.
    pub fn new(now: Instant) -> Model {
        Model {
            started_at: now,
            last_reply: None,
            no_reply_reason: None,
            status: None,
            interval: None,
            requests: VecDeque::new(),
            bytes: VecDeque::new(),
            recent_iops: BTreeMap::new(),
            // Sorted by reads, the busiest first.
            sort_column: 1,
            is_descending: true,
            filter: String::new(),
            is_typing: false,
            is_help_shown: false,
            selected: None,
            first_row: 0,
        }
    }

    /// Updates the model with the result of a poll.
    pub fn apply(&mut self, result: PollResult, now: Instant) {
        let status = match result {
            PollResult::NoReply(reason) => {
                self.no_reply_reason = Some(reason);
                return;
            }
            PollResult::Status(status) => *status,
        };
        (self.last_reply, self.no_reply_reason) = (Some(now), None);
        let before = self.status.replace(status);
        let status = self.status.as_ref().expect("the status was just stored");
        let Some(before) = before else { return };
        self.interval = Interval::between(&before, status);
        let Some(interval) = &self.interval else {
            // A restarted daemon: its charts begin anew, because the gap has an unknown length.
            self.requests.clear();
            self.bytes.clear();
            self.recent_iops.clear();
            return;
        };
        let totals = &interval.totals;
        push(&mut self.requests, interval.rate(totals.reads + totals.writes), CHART_INTERVALS_MAX);
        push(&mut self.bytes, interval.rate(totals.read_bytes + totals.write_bytes), CHART_INTERVALS_MAX);
        let mut recent_iops = std::mem::take(&mut self.recent_iops);
        self.recent_iops = interval
            .volumes
            .iter()
            .map(|volume| {
                let mut rates = recent_iops.remove(&volume.name).unwrap_or_default();
                push(&mut rates, interval.rate(volume.reads + volume.writes), SPARKLINE_INTERVALS_MAX);
                (volume.name.clone(), rates)
            })
            .collect();
    }

    /// The daemon's last status.
    pub fn status(&self) -> Option<&StatusReport> {
        self.status.as_ref()
    }

    /// The interval between the last two statuses.
    pub fn interval(&self) -> Option<&Interval> {
        self.interval.as_ref()
    }

    /// Reason for which the daemon does not reply.
    pub fn no_reply_reason(&self) -> Option<&str> {
        self.no_reply_reason.as_deref()
    }

    /// Age of the last reply; before the first one, the time since the start.
    pub fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.last_reply.unwrap_or(self.started_at))
    }

    /// Requests per second in each of the last intervals.
    pub fn requests(&self) -> &VecDeque<f64> {
        &self.requests
    }

    /// Bytes per second in each of the last intervals.
    pub fn bytes(&self) -> &VecDeque<f64> {
        &self.bytes
    }

    /// The sort column, and whether the highest come first.
    pub fn sort_order(&self) -> (&'static Column, bool) {
        (&COLUMNS[self.sort_column], self.is_descending)
    }

    /// The filtered volumes in sorted order.
    pub fn rows(&self) -> Vec<Row<'_>> {
        static NONE: VecDeque<f64> = VecDeque::new();
        let Some(status) = &self.status else { return Vec::new() };
        let filter = self.filter.to_lowercase();
        // The interval's volumes have the same order, because they come from the same status.
        let last_interval = |index: usize| self.interval.as_ref().map(|interval| (&interval.volumes[index], interval));
        let mut rows: Vec<_> = status
            .volumes
            .iter()
            .enumerate()
            .filter(|(_, volume)| matches_filter(volume, &filter))
            .map(|(index, volume)| Row {
                volume,
                last_interval: last_interval(index),
                recent_iops: self.recent_iops.get(&volume.name).unwrap_or(&NONE),
            })
            .collect();
        let (column, is_descending) = self.sort_order();
        rows.sort_by(|one, other| {
            let order = Value::compare(&(column.value)(one), &(column.value)(other), is_descending);
            order.then_with(|| one.volume.name.cmp(&other.volume.name))
        });
        rows
    }

    /// Index of the selected row in `rows`.
    pub fn selected(&self, rows: &[Row<'_>]) -> Option<usize> {
        rows.iter().position(|row| self.selected.as_ref() == Some(&row.volume.name))
    }

    /// Handles a key; returns true to quit.
    pub fn press(&mut self, key: KeyEvent) -> bool {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return key.code == KeyCode::Char('c');
        }
        if self.is_typing {
            self.edit_filter(key.code);
            return false;
        }
        if std::mem::take(&mut self.is_help_shown) {
            return key.code == KeyCode::Char('q');
        }
        match key.code {
            KeyCode::Char('q') => return true,
            KeyCode::Char('?') => self.is_help_shown = true,
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Up | KeyCode::Char('k') => self.move_selection(-1),
            KeyCode::Down | KeyCode::Char('j') => self.move_selection(1),
            KeyCode::PageUp => self.move_selection(-PAGE_ROWS),
            KeyCode::PageDown => self.move_selection(PAGE_ROWS),
            KeyCode::Home => self.move_selection(isize::MIN),
            KeyCode::End => self.move_selection(isize::MAX),
            KeyCode::Left => self.sort(self.sort_column.saturating_sub(1)),
            KeyCode::Right => self.sort((self.sort_column + 1).min(COLUMNS.len() - 1)),
            KeyCode::Char(letter) => {
                if let Some(column) = COLUMNS.iter().position(|column| column.key == letter) {
                    self.sort(column);
                }
            }
            _ => {}
        }
        false
    }

    fn edit_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(letter) if self.filter.chars().count() < FILTER_CHARS_MAX => self.filter.push(letter),
            _ => {}
        }
    }

    /// Sorts by a column, or reverses the order if it is the sort column already. Figures begin with the highest, names
    /// with the first.
    fn sort(&mut self, column: usize) {
        self.is_descending = if column == self.sort_column { !self.is_descending } else { !COLUMNS[column].is_text };
        self.sort_column = column;
    }

    fn move_selection(&mut self, by: isize) {
        let rows = self.rows();
        let Some(last) = rows.len().checked_sub(1) else { return };
        let index = match self.selected(&rows) {
            Some(index) => index.saturating_add_signed(by).min(last),
            // The first key only shows a selection.
            None if by > 0 && by != isize::MAX => 0,
            None => {
                if by == isize::MIN {
                    0
                } else {
                    last
                }
            }
        };
        self.selected = Some(rows[index].volume.name.clone());
    }
}

fn push(rates: &mut VecDeque<f64>, rate: f64, len_max: usize) {
    if rates.len() == len_max {
        rates.pop_front();
    }
    rates.push_back(rate);
}

/// True if a volume's name, state, policy, datastore or label contains `filter`.
fn matches_filter(volume: &VolumeReport, filter: &str) -> bool {
    let properties = [&volume.name, volume.state.name(), &volume.policy, &volume.datastore];
    let texts = properties.into_iter().chain(volume.labels.values().map(String::as_str));
    texts.into_iter().any(|text| text.to_lowercase().contains(filter))
}
