//! The newest events in memory, which answer all queries. Each event also goes to the writer thread of `file.rs`.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use messages::report::{DaemonPhase, EventKind, EventReport, EventsHealth, EventsPage};
use messages::unix_time;
use work_timer::WorkTimer;

use super::file::{self, Message, QUEUE_MAX};

/// Events kept in memory.
const EVENTS_MAX: usize = 10_000;
/// Maximum size of an event's text: the effect and the remedy of any alert, and a cause.
pub(crate) const TEXT_BYTES_MAX: usize = 1_000;
/// Maximum size of an event's subject and of its actor.
const NAME_BYTES_MAX: usize = 160;
/// Events in one status sample. A client that reads one sample per second misses none as long as fewer occur.
pub const SAMPLE_EVENTS_MAX: usize = 64;
/// Time limit of [`Events::flush`].
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// An event before it gets its number and its time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewEvent {
    /// Its kind.
    pub kind: EventKind,
    /// The volume or device that the event concerns.
    pub subject: Option<String>,
    /// The user or client that caused the event.
    pub actor: Option<String>,
    /// Description of the event.
    pub text: String,
    /// Of an event of the daemon: whether the daemon continues or ends.
    pub phase: Option<DaemonPhase>,
}

impl NewEvent {
    /// An event without an actor.
    pub fn new(kind: EventKind, subject: Option<&str>, text: impl Into<String>) -> NewEvent {
        NewEvent { kind, subject: subject.map(str::to_owned), text: text.into(), ..NewEvent::default() }
    }
}

/// Selection of events.
#[derive(Clone, Debug, Default)]
pub struct EventFilter {
    /// Maximum number of events.
    pub limit: usize,
    /// Only events with smaller numbers.
    pub before: Option<u64>,
    /// Only events with larger numbers.
    pub after: Option<u64>,
    /// Only events from this second since 1970 on.
    pub since_unix_seconds: Option<u64>,
    /// Only events before this second since 1970.
    pub until_unix_seconds: Option<u64>,
    /// Only events of this volume or device.
    pub subject: Option<String>,
    /// Only events of this kind.
    pub kind: Option<EventKind>,
}

impl EventFilter {
    fn matches(&self, event: &EventReport) -> bool {
        let at = event.at_unix_ms;
        self.before.is_none_or(|before| event.number < before)
            && self.after.is_none_or(|after| event.number > after)
            && self.since_unix_seconds.is_none_or(|since| at >= since.saturating_mul(1000))
            && self.until_unix_seconds.is_none_or(|until| at < until.saturating_mul(1000))
            && self.subject.as_ref().is_none_or(|subject| event.subject.as_ref() == Some(subject))
            && self.kind.is_none_or(|kind| event.kind == kind)
    }
}

/// The event log.
pub struct Events {
    state: Mutex<LogState>,
    writer: SyncSender<Message>,
    health: Arc<Mutex<EventsHealth>>,
    folder: PathBuf,
    work: WorkTimer,
}

struct LogState {
    events: VecDeque<EventReport>,
    next: u64,
}

impl Events {
    /// Opens the log and reads the events of earlier runs. Without a thread or a file, events are kept in memory only;
    /// [`Events::health`] then reports the failure.
    pub fn open(folder: &Path) -> Events {
        let events = file::read(folder, EVENTS_MAX);
        let next = events.back().map_or(1, |last| last.number + 1);
        let health = Arc::new(Mutex::new(EventsHealth::default()));
        let (writer, messages) = sync_channel(QUEUE_MAX);
        let (folder, work) = (folder.to_owned(), WorkTimer::default());
        let (writer_folder, writer_health, timer) = (folder.clone(), health.clone(), work.clone());
        let body = move || file::run_writer(&messages, &writer_folder, &writer_health, &timer);
        if let Err(error) = std::thread::Builder::new().name("events".to_owned()).spawn(body) {
            let failed = Some(format!("its thread cannot be started: {error}"));
            health.lock().unwrap_or_else(PoisonError::into_inner).failed = failed;
        }
        Events { state: Mutex::new(LogState { events, next }), writer, health, folder, work }
    }

    fn state(&self) -> MutexGuard<'_, LogState> {
        // No panic can leave the state half-changed, so a poisoned lock is safe to use.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn health_mut(&self) -> MutexGuard<'_, EventsHealth> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event with the next number and the current time.
    pub fn append(&self, event: NewEvent) {
        let NewEvent { kind, subject, actor, text, phase } = event;
        let name = |name: Option<String>| name.map(|name| single_line(&name, NAME_BYTES_MAX));
        let (subject, actor, text) = (name(subject), name(actor), single_line(&text, TEXT_BYTES_MAX));
        let at_unix_ms = unix_time::now().as_millis() as u64;
        let mut state = self.state();
        let event = EventReport { number: state.next, at_unix_ms, kind, subject, actor, text, phase };
        state.next += 1;
        let line = serde_json::to_string(&event).expect("an event has only text keys");
        if state.events.len() == EVENTS_MAX {
            state.events.pop_front();
        }
        state.events.push_back(event);
        // Sent under the lock, so that lines are in the order of their numbers. `try_send` never waits: a disk that
        // hangs costs only the lines of the file.
        if self.writer.try_send(Message::Line(line)).is_err() {
            self.health_mut().lost += 1;
        }
    }

    /// The newest events that match `filter`, and the number before which the next page starts.
    pub fn page(&self, filter: &EventFilter) -> EventsPage {
        let state = self.state();
        let mut matching = state.events.iter().rev().filter(|event| filter.matches(event));
        let events: Vec<EventReport> = matching.by_ref().take(filter.limit).cloned().collect();
        let next = matching.next().and(events.last()).map(|last| last.number);
        EventsPage { events, next }
    }

    /// The newest [`SAMPLE_EVENTS_MAX`] events, oldest first.
    pub fn newest(&self) -> Vec<EventReport> {
        let state = self.state();
        state.events.range(state.events.len().saturating_sub(SAMPLE_EVENTS_MAX)..).cloned().collect()
    }

    /// The last event of a kind.
    pub fn last(&self, kind: EventKind) -> Option<EventReport> {
        self.state().events.iter().rev().find(|event| event.kind == kind).cloned()
    }

    /// Health of the log, for the status report; a write that hangs counts as a failure.
    pub fn health(&self) -> EventsHealth {
        let newest = self.state().events.back().map_or(0, |event| event.number);
        let health = EventsHealth { newest, ..self.health_mut().clone() };
        match self.work.hung(Instant::now()) {
            Some(hung) => EventsHealth { failed: Some(format!("{}: {hung}", self.folder.display())), ..health },
            None => health,
        }
    }

    /// Waits until the lines sent so far are in the file, [`FLUSH_TIMEOUT`] at most.
    pub fn flush(&self) {
        let (sender, receiver) = sync_channel(1);
        if self.writer.try_send(Message::Flush(sender)).is_ok() {
            // A time-out is ignored: the daemon stops anyway.
            let _ = receiver.recv_timeout(FLUSH_TIMEOUT);
        }
    }
}

/// `text` without control characters, which would move a terminal's cursor, cut to `bytes_max`.
fn single_line(text: &str, bytes_max: usize) -> String {
    let mut line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.len() > bytes_max {
        let mark = "…";
        let mut end = bytes_max - mark.len();
        while !line.is_char_boundary(end) {
            end -= 1;
        }
        line.truncate(end);
        line.push_str(mark);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::super::file::{FILE_BYTES, NEW_FILE, OLD_FILE};
    use super::*;

    fn append(events: &Events, kind: EventKind, subject: &str, text: &str) {
        events.append(NewEvent::new(kind, Some(subject), text));
    }

    fn all(limit: usize) -> EventFilter {
        EventFilter { limit, ..EventFilter::default() }
    }

    fn texts(page: &EventsPage) -> Vec<&str> {
        page.events.iter().map(|event| event.text.as_str()).collect()
    }

    #[test]
    fn events_survive_a_crash_and_numbers_continue_after_a_broken_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path().join("events");
        let events = Events::open(&folder);
        append(&events, EventKind::State, "v", "one");
        events
            .append(NewEvent { actor: Some("user root".to_owned()), ..NewEvent::new(EventKind::Change, None, "two") });
        events.flush();
        drop(events);
        let path = folder.join(NEW_FILE);
        let mut text = std::fs::read(&path).expect("the file was written");
        // A batch written twice, and a line that a crash cut short.
        let again = text.clone();
        text.extend(again);
        text.extend(b"{\"number\":3,\"at_un\0\0\0");
        std::fs::write(&path, text).expect("the file can be written");
        let events = Events::open(&folder);
        assert_eq!(events.last(EventKind::Change).and_then(|event| event.actor).as_deref(), Some("user root"));
        append(&events, EventKind::State, "v", "three");
        events.flush();
        drop(events);
        let page = Events::open(&folder).page(&all(10));
        assert_eq!((texts(&page), page.next), (vec!["three", "two", "one"], None));
        assert_eq!(page.events.iter().map(|event| event.number).collect::<Vec<_>>(), [3, 2, 1]);
    }

    /// Events of several kinds as they are written.
    fn write_golden() -> Vec<u8> {
        let folder = tempfile::tempdir().expect("a folder");
        let events = Events::open(folder.path());
        append(&events, EventKind::State, "v", "one");
        events.append(NewEvent {
            actor: Some("user root".to_owned()),
            ..NewEvent::new(EventKind::Change, None, "two “2”")
        });
        append(&events, EventKind::Alert, "w", "three");
        events.flush();
        std::fs::read(folder.path().join(NEW_FILE)).expect("the file was written")
    }

    #[test]
    fn golden_events_are_read_and_an_unknown_kind_stays_in_the_file() {
        for golden in golden::files("events.jsonl", write_golden) {
            let folder = tempfile::tempdir().expect("a folder");
            let mut bytes = golden.bytes;
            bytes.extend(b"{\"number\":4,\"at_unix_ms\":1,\"kind\":\"of a newer version\",\"text\":\"four\"}\n");
            std::fs::write(folder.path().join(NEW_FILE), &bytes).expect("written");
            let events = Events::open(folder.path());
            append(&events, EventKind::State, "v", "five");
            events.flush();
            let page = events.page(&all(10));
            let shown: Vec<_> = page.events.iter().rev().map(|event| (event.number, event.text.as_str())).collect();
            assert_eq!(shown[..3], [(1, "one"), (2, "two “2”"), (3, "three")], "written by {}", golden.release);
            let changed = events.last(EventKind::Change).expect("the second");
            assert_eq!((changed.actor.as_deref(), changed.subject), (Some("user root"), None));
            assert_eq!(events.last(EventKind::Alert).and_then(|event| event.subject).as_deref(), Some("w"));
            assert!(std::fs::read(folder.path().join(NEW_FILE)).expect("the file exists").starts_with(&bytes));
        }
    }

    #[test]
    fn pages_contain_each_event_once_and_filters_select_matching_ones() {
        let folder = tempfile::tempdir().expect("a folder");
        let events = Events::open(folder.path());
        for number in 0..25 {
            let kind = if number % 5 == 0 { EventKind::Alert } else { EventKind::State };
            append(&events, kind, if number % 2 == 0 { "a" } else { "b" }, &number.to_string());
        }
        let (mut seen, mut before) = (Vec::new(), None);
        loop {
            let page = events.page(&EventFilter { before, subject: Some("a".to_owned()), ..all(7) });
            seen.extend(page.events.iter().map(|event| event.text.clone()));
            before = page.next;
            if before.is_none() {
                break;
            }
        }
        assert_eq!(
            seen,
            (0..25).rev().filter(|number| number % 2 == 0).map(|number| number.to_string()).collect::<Vec<_>>()
        );
        let of_kind = events.page(&EventFilter { kind: Some(EventKind::Alert), ..all(100) });
        assert_eq!(texts(&of_kind), ["20", "15", "10", "5", "0"]);
        assert_eq!(texts(&events.page(&EventFilter { after: Some(23), ..all(100) })), ["24", "23"]);
        let now = unix_time::now().as_secs();
        assert_eq!(events.page(&EventFilter { since_unix_seconds: Some(now + 60), ..all(9) }), EventsPage::default());
        assert_eq!(events.page(&EventFilter { until_unix_seconds: Some(now - 60), ..all(9) }), EventsPage::default());
        let lately = EventFilter { since_unix_seconds: Some(now - 60), until_unix_seconds: Some(now + 60), ..all(100) };
        assert_eq!(events.page(&lately).events.len(), 25);
        assert_eq!(events.newest().last().map(|event| event.text.clone()).as_deref(), Some("24"));
    }

    #[test]
    fn memory_and_files_stay_within_their_limits() {
        let folder = tempfile::tempdir().expect("a folder");
        let events = Events::open(folder.path());
        for number in 0..24_000 {
            append(&events, EventKind::State, &"s".repeat(999), &format!("{number}\n\x1b[2J{}", "ä".repeat(1000)));
            if number % 400 == 0 {
                events.flush();
            }
        }
        events.flush();
        assert_eq!(events.state().events.len(), EVENTS_MAX);
        assert_eq!(events.newest().len(), SAMPLE_EVENTS_MAX);
        let last = events.newest().pop().expect("an event exists");
        assert!(last.text.len() <= TEXT_BYTES_MAX && last.text.starts_with("23999  [2Jää"), "{}", last.text);
        assert_eq!(last.subject.map(|subject| subject.len()), Some(NAME_BYTES_MAX));
        for name in [NEW_FILE, OLD_FILE] {
            let bytes = std::fs::metadata(folder.path().join(name)).expect("the file exists").len();
            assert!(bytes <= FILE_BYTES + (QUEUE_MAX * 2 * TEXT_BYTES_MAX) as u64, "{name}: {bytes}");
        }
        assert_eq!(events.health().newest, 24_000);
    }

    #[test]
    fn failing_disk_is_reported_and_loses_only_lines_of_the_files() {
        let folder = tempfile::tempdir().expect("a folder");
        // A regular file blocks the place of the folder.
        let blocked = folder.path().join("events");
        std::fs::write(&blocked, "").expect("the file can be written");
        let events = Events::open(&blocked);
        for number in 0..QUEUE_MAX + 10 {
            append(&events, EventKind::State, "v", &number.to_string());
            if number % 100 == 0 {
                events.flush();
            }
        }
        events.flush();
        let health = events.health();
        assert!(health.failed.is_some_and(|reason| reason.contains("events")));
        assert_eq!((health.lost, events.page(&all(1)).events[0].text.as_str()), (10, "1009"));
        std::fs::remove_file(&blocked).expect("the file existed");
        let end = std::time::Instant::now() + Duration::from_secs(30);
        while events.health().failed.is_some() {
            assert!(std::time::Instant::now() < end, "the write is retried");
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(events);
        assert_eq!(Events::open(&blocked).page(&all(5_000)).events.len(), QUEUE_MAX);
    }
}
