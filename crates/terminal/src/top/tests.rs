//! Checks the screen's figures against known counts.

use std::time::{Duration, Instant};

use insta::assert_snapshot;
use messages::report::CountsBelow;
use messages::report::{CoreReport, PagesReport, SourceBytes};
use messages::{Counts, FlashReport, StatusReport, VolumeReport, VolumeState};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::interval::Interval;
use super::model::Model;
use super::poller::PollResult;
use super::view::{self, Palette};

/// `fast` requests under 100 us, the others under 10 ms.
fn counts(fast: u64, total: u64) -> Counts {
    let below = [(10.0, 0), (100.0, fast), (1_000.0, fast), (10_000.0, total)];
    let below = below.into_iter().map(|(us, count)| CountsBelow { us, count }).collect();
    Counts { below, all: total, sum_us: total as f64 * 50.0 }
}

/// A volume with `times` the counts of one unit.
fn volume(name: &str, times: u64) -> VolumeReport {
    let mut volume = VolumeReport::idle(name, VolumeState::Active, "write-back", "/dev/sdb");
    volume.volume_id = format!("{name}-1");
    volume.datastore = "sas-pool".to_owned();
    (volume.reads, volume.writes) = (1_000 * times, 200 * times);
    (volume.memory_hits, volume.flash_hits, volume.partial_hits, volume.misses) =
        (700 * times, 200 * times, 40 * times, 60 * times);
    (volume.read_bytes, volume.write_bytes) = ((4 << 20) * times, (1 << 20) * times);
    volume.source_bytes = SourceBytes {
        memory: (3 << 20) * times,
        prefetched: (1 << 20) * times / 3,
        flash: (2 << 20) * times / 3,
        backing: 0,
    };
    (volume.backing_reads, volume.backing_writes) = (100 * times, 50 * times);
    volume.latency_counts.read = counts(900 * times, 1_000 * times);
    volume.latency_counts.write = counts(200 * times, 200 * times);
    (volume.dirty_bytes, volume.memory_bytes, volume.dirty_age_ms) = (3 << 20, 64 << 20, 2_500);
    volume
}

fn status(uptime_ms: u64, volumes: Vec<VolumeReport>) -> StatusReport {
    let pages = PagesReport { pages: 250, slots: 1_000, ..PagesReport::default() };
    let flash =
        FlashReport { in_use: true, segments: 64, free_segments: 60, copies: 2, pages, ..FlashReport::default() };
    let core =
        CoreReport { connections: 3, pool_bytes: 256 << 20, pool_used_bytes: 128 << 20, ..CoreReport::default() };
    StatusReport {
        version: "1.2.3".to_owned(),
        pid: 4711,
        uptime_seconds: uptime_ms / 1_000,
        uptime_ms,
        flash: Some(flash),
        cores: vec![core],
        volumes,
        ..StatusReport::default()
    }
}

fn apply(model: &mut Model, status: StatusReport, now: Instant) {
    model.apply(PollResult::Status(Box::new(status)), now);
}

/// A model after two samples two seconds apart: `web01` did a thousand reads, `db` five thousand.
fn sampled_model(now: Instant) -> Model {
    let mut model = Model::new(now);
    apply(&mut model, status(10_000, vec![volume("db", 7), volume("web01", 3)]), now);
    apply(&mut model, status(12_000, vec![volume("db", 12), volume("web01", 4)]), now);
    model
}

fn screen(model: &mut Model, width: u16, height: u16, now: Instant) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("the screen can be created");
    terminal.draw(|frame| view::draw(frame, model, Palette::PLAIN, now)).expect("the screen can be drawn");
    let buffer = terminal.backend().buffer();
    let lines = (0..height).map(|y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>());
    lines.map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

fn press(model: &mut Model, keys: &str) {
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            '\u{1b}' => KeyCode::Esc,
            letter => KeyCode::Char(letter),
        };
        assert!(!model.press(KeyEvent::new(code, KeyModifiers::NONE)), "{key:?} quits");
    }
}

fn names(model: &Model) -> Vec<&str> {
    model.rows().iter().map(|row| row.volume.name.as_str()).collect()
}

#[test]
fn rates_are_counts_divided_by_the_interval() {
    let before = status(10_000, vec![volume("db", 7), volume("web01", 3)]);
    let now = status(12_500, vec![volume("db", 12), volume("web01", 4)]);
    let interval = Interval::between(&before, &now).expect("both samples are of one process");
    assert_eq!((interval.totals.reads, interval.totals.writes), (6_000, 1_200));
    assert_eq!(interval.rate(interval.totals.reads), 2_400.0);
    assert_eq!(interval.volumes.iter().map(|volume| volume.reads).collect::<Vec<_>>(), [5_000, 1_000]);
    // Nine of ten reads took between 10 and 100 us, the others between 1 and 10 ms.
    let read = &interval.totals.latency_counts.read;
    assert_eq!(read.percentile_us(0.5).map(f64::round), Some(60.0));
    assert_eq!(read.percentile_us(0.99).map(f64::round), Some(9_100.0));
    let bytes = &interval.totals.source_bytes;
    assert_eq!((bytes.memory, bytes.flash, bytes.prefetched, bytes.backing), (18 << 20, 4 << 20, 2 << 20, 0));
}

#[test]
fn top_and_status_show_the_same_latency() {
    use messages::report::LatencyReport;

    let below = [(16.384, 900), (90.112, 900), (98.304, 995), (1_048.576, 995), (1_179.648, 1_000)];
    let below = below.map(|(us, count)| CountsBelow { us, count }).into();
    let mut measured = VolumeReport { reads: 1_000, ..volume("v", 0) };
    measured.latency_counts.read = Counts { below, all: 1_000, sum_us: 10_000.0 };
    measured.latency_us = LatencyReport::of(&measured.latency_counts);
    let status_text = crate::render::screen::volumes(&[measured.clone()], None, crate::render::style::Style::PLAIN);
    let now = Instant::now();
    let mut model = Model::new(now);
    apply(&mut model, status(10_000, vec![volume("v", 0)]), now);
    apply(&mut model, status(12_000, vec![measured.clone()]), now);
    let screen = screen(&mut model, 160, 30, now);
    for text in ["< 16 us", "98 us"] {
        assert!(status_text.contains(text) && screen.contains(text), "{text}: {status_text}\n{screen}");
    }
}

#[test]
fn limited_volume_has_a_badge_and_held_time_apart() {
    let below =
        |ms: f64| [(16.384, 0), (ms * 900.0, 0), (ms * 1_000.0, 100)].map(|(us, count)| CountsBelow { us, count });
    let counts = |ms: f64| Counts { below: below(ms).into(), all: 100, sum_us: ms * 1e5 };
    let mut limited = VolumeReport { reads: 100, ..volume("v", 0) };
    limited.qos.limit_iops = 500;
    limited.latency_counts.read = counts(16.0);
    limited.latency_counts.read_service = counts(0.25);
    limited.latency_counts.read_held = counts(15.75);
    let now = Instant::now();
    let mut model = Model::new(now);
    apply(&mut model, status(10_000, vec![volume("v", 0)]), now);
    apply(&mut model, status(12_000, vec![limited]), now);
    let screen = screen(&mut model, 160, 30, now);
    assert!(screen.contains("v [limited]") && screen.contains("p99 16.0 ms"), "{screen}");
    assert!(screen.contains("p99 reads 250 us + 15.7 ms held by limits"), "{screen}");
}

#[test]
fn added_removed_and_restarted_volumes_distort_no_rate() {
    let before = status(10_000, vec![volume("gone", 9), volume("stays", 3), volume("anew", 9)]);
    let anew = VolumeReport { volume_id: "anew-2".to_owned(), ..volume("anew", 10) };
    let now = status(11_000, vec![volume("stays", 4), anew, volume("new", 2)]);
    let interval = Interval::between(&before, &now).expect("both samples are of one process");
    assert_eq!(interval.volumes.iter().map(|volume| volume.reads).collect::<Vec<_>>(), [1_000, 10_000, 2_000]);
    assert_eq!(interval.totals.reads, 13_000);
    // Decreased counters count from zero.
    let interval = Interval::between(&status(0, vec![volume("v", 9)]), &status(1_000, vec![volume("v", 2)]));
    assert_eq!(interval.expect("both samples are of one process").totals.reads, 2_000);
    // Counts of another process are not compared.
    let other = StatusReport { pid: 1, ..now.clone() };
    assert!(Interval::between(&before, &other).is_none());
    assert!(Interval::between(&now, &before).is_none());
}

#[test]
fn screen_shows_the_counts_of_the_last_interval() {
    let now = Instant::now();
    let mut model = sampled_model(now);
    assert_snapshot!("wide", screen(&mut model, 150, 20, now));
    assert_snapshot!("usual", screen(&mut model, 80, 24, now));
    assert_snapshot!("narrow", screen(&mut model, 40, 20, now));
    // Every size can be drawn on.
    for (width, height) in [(1, 1), (10, 3), (39, 5), (80, 2), (400, 100)] {
        screen(&mut model, width, height, now);
        press(&mut model, "?");
        screen(&mut model, width, height, now);
        press(&mut model, "?");
    }
}

#[test]
fn keys_sort_and_filter() {
    let now = Instant::now();
    let mut model = Model::new(now);
    let asleep = VolumeReport { state: VolumeState::Paused, ..volume("asleep", 3) };
    apply(&mut model, status(10_000, vec![asleep.clone(), volume("db", 7), volume("web01", 3)]), now);
    apply(&mut model, status(12_000, vec![asleep, volume("db", 12), volume("web01", 4)]), now);
    assert_eq!(names(&model), ["db", "web01", "asleep"]);
    press(&mut model, "r");
    assert_eq!(names(&model), ["asleep", "web01", "db"]);
    press(&mut model, "n");
    assert_eq!(names(&model), ["asleep", "db", "web01"]);
    // A volume without reads has no quantile, and comes last in either direction.
    press(&mut model, "l");
    assert_eq!(names(&model).last(), Some(&"asleep"));
    press(&mut model, "l");
    assert_eq!(names(&model).last(), Some(&"asleep"));
    press(&mut model, "/WEB\n");
    assert_eq!(names(&model), ["web01"]);
    assert!(screen(&mut model, 80, 24, now).contains("1 of 3 match \"WEB\""));
    press(&mut model, "\u{1b}");
    assert_eq!(names(&model).len(), 3);
    press(&mut model, "/paused\n");
    assert_eq!(names(&model), ["asleep"]);
    assert!(screen(&mut model, 80, 24, now).contains("asleep [paused]"));
    press(&mut model, "/x\n");
    assert!(screen(&mut model, 80, 24, now).contains("no volume matches the filter"));
    // While the filter is edited, a letter is a letter.
    press(&mut model, "\u{1b}/q\u{1b}");
    assert!(model.press(KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE)));
    assert!(model.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
}

#[test]
fn chosen_row_stays_visible_among_many() {
    let now = Instant::now();
    let mut model = Model::new(now);
    let many = |times| (0..1_000).map(|number| volume(&format!("v{number:03}"), times)).collect();
    apply(&mut model, status(10_000, many(1)), now);
    apply(&mut model, status(11_000, many(2)), now);
    press(&mut model, "n");
    for (key, name) in [(KeyCode::End, "v999"), (KeyCode::Home, "v000"), (KeyCode::PageDown, "v010")] {
        model.press(KeyEvent::new(key, KeyModifiers::NONE));
        assert!(screen(&mut model, 80, 24, now).contains(name), "{key:?}");
    }
    // The selection follows the volume, not the row.
    press(&mut model, "n");
    assert!(screen(&mut model, 80, 24, now).contains("v010"));
}

#[test]
fn absent_daemon_is_reported_and_old_figures_stay() {
    let now = Instant::now();
    let mut model = Model::new(now);
    assert!(screen(&mut model, 80, 24, now).contains("connecting"));
    let mut model = sampled_model(now);
    let later = now + Duration::from_secs(7);
    assert!(screen(&mut model, 80, 24, later).contains("no answer for 7 s"));
    model.apply(PollResult::NoReply("no daemon answers at /x".to_owned()), later);
    let text = screen(&mut model, 80, 24, later);
    assert!(text.contains("no answer from the daemon, retrying: no daemon answers at /x"), "{text}");
    assert!(text.contains("data is 7 s old") && text.contains("web01"), "{text}");
    // The next daemon counts from zero: its first sample gives no rates, its second one does.
    let next = |uptime_ms, times| StatusReport { pid: 4712, ..status(uptime_ms, vec![volume("web01", times)]) };
    apply(&mut model, next(500, 0), later);
    let text = screen(&mut model, 80, 24, later);
    assert!(text.contains("live") && text.contains("waiting for a second sample"), "{text}");
    apply(&mut model, next(1_500, 1), later);
    let text = screen(&mut model, 80, 24, later);
    assert!(text.contains("IOPS        1,200"), "{text}");
}

#[test]
fn alerts_are_shown_and_the_rest_counted() {
    let now = Instant::now();
    let mut model = Model::new(now);
    let alerts = (1..=6).map(|number| format!("alert {number}")).collect();
    apply(&mut model, StatusReport { alerts, ..status(10_000, vec![volume("v", 1)]) }, now);
    let text = screen(&mut model, 80, 24, now);
    assert!(text.contains("! alert 3") && text.contains("and 3 more") && !text.contains("! alert 4"), "{text}");
}
