//! The screens as snapshots.

use insta::assert_snapshot;
use messages::report::{
    AlertAcknowledgement, AlertKind, AlertReport, CoreReport, CountsBelow, DatastoreReport, EpisodeReport,
    FigureReport, FlashDeviceReport, HistoryReport, LatencyFigures, LatencyReport, MemberReport, OverrideReport,
    PagesReport, QosUse, Quantiles, SourceBytes,
};
use messages::{Counts, FlashReport, StatusReport, VolumeReport, VolumeState};

use super::style::Style;
use super::{datastore, history, screen, volume};

fn busy() -> VolumeReport {
    let read = Quantiles { p50: 85.0, p99: 1250.0, p999: 9100.0 };
    let write = Quantiles { p50: 16.384, p99: 310.0, p999: 800.0 };
    let read_service = Some(Quantiles { p50: 16.384, p99: 250.0, p999: 900.0 });
    let read_held = Some(Quantiles { p50: 16.384, p99: 1_000.0, p999: 8_200.0 });
    VolumeReport {
        volume_id: "00c0ffee00c0ffee".to_owned(),
        backing_identity: "device:wwn-0x5000c500a1b2c3d4".to_owned(),
        size_bytes: 100 << 30,
        logical_block_bytes: 512,
        physical_block_bytes: 4096,
        datastore: "sas-pool".to_owned(),
        labels: [("vm".to_owned(), "web01".to_owned())].into(),
        reads: 1_234_567,
        writes: 98_765,
        read_bytes: 40 << 30,
        write_bytes: 3 << 30,
        memory_hits: 1_200_000,
        partial_hits: 4_567,
        misses: 30_000,
        source_bytes: SourceBytes { memory: 38 << 30, prefetched: 1 << 30, flash: 0, backing: 1 << 30 },
        memory_bytes: 3 << 30,
        dirty_bytes: 120 << 20,
        written_bytes: 8 << 20,
        dirty_age_ms: 4_321,
        backing_reads: 31_000,
        backing_writes: 7_000,
        backing_read_bytes: 2 << 30,
        backing_write_bytes: 3 << 30,
        latency_us: LatencyReport { read, write, read_service, read_held, ..LatencyReport::default() },
        qos: QosUse {
            shares: 2_000,
            limit_iops: 500,
            burst_iops: 1_000,
            limit_bytes: 20 << 20,
            reservation_iops: 300,
            limit_waits: 42,
            limit_waited_us: 1_500_000,
            ..QosUse::default()
        },
        ..VolumeReport::idle("web01", VolumeState::Active, "write-back", "/dev/sdb")
    }
}

fn refused() -> VolumeReport {
    let problems = vec!["not served: its backing is not the device it had at the last start".to_owned().into()];
    VolumeReport { problems, ..VolumeReport::idle("db", VolumeState::Refused, "write-through", "/srv/db.img") }
}

fn report(volumes: Vec<VolumeReport>) -> StatusReport {
    StatusReport {
        version: "1.2.3".to_owned(),
        pid: 4711,
        uptime_seconds: 11_580,
        configuration: "/etc/hotset/hotset.toml".to_owned(),
        listen: vec!["unix:/run/hotset/nbd.sock".to_owned(), "tcp:127.0.0.1:10809".to_owned()],
        memory_bytes: 4 << 30,
        cores: vec![CoreReport {
            core: 0,
            connections: 3,
            pool_bytes: 3900 << 20,
            pool_used_bytes: 3200 << 20,
            ..Default::default()
        }],
        volumes,
        ..Default::default()
    }
}

#[test]
fn status_is_one_aligned_screen() {
    let mut status = report(vec![busy(), refused()]);
    status.alerts = vec!["db: not served: its backing is not the device it had at the last start".to_owned()];
    let overridden = |volume: &str, key: &str, value: &str, file: &str| OverrideReport {
        volume: volume.to_owned(),
        key: key.to_owned(),
        value: value.to_owned(),
        file: file.to_owned(),
    };
    status.overrides = vec![overridden("web01", "policy", "none", "write-back")];
    assert_snapshot!(screen::status(&status, None, Style::PLAIN));
}

#[test]
fn flash_report_says_what_happens_to_suspect_pages() {
    let pages = PagesReport { loaded: true, slots: 4, pages: 2, suspect: 1, ..PagesReport::default() };
    let text = screen::flash(&FlashReport { in_use: true, pages, ..FlashReport::default() }, Style::PLAIN);
    assert!(text.contains("2 of 4 cache slots used, 1 to be compared with the backing before use"), "{text}");
}

#[test]
fn status_names_flash_devices_changed_by_command() {
    let mut status = StatusReport::default();
    assert!(!screen::status(&status, None, Style::PLAIN).contains("changed by command"));
    status.flash_devices_by_command = Some(vec!["/dev/f0".to_owned(), "/dev/f2".to_owned()]);
    let text = screen::status(&status, None, Style::PLAIN);
    let line = text.lines().find(|line| line.starts_with("flash devices changed by command")).expect("a line");
    assert!(line.ends_with(": /dev/f0, /dev/f2"), "{line}");
}

#[test]
fn status_says_that_the_daemon_is_starting() {
    let status = |starting, stopping| {
        screen::status(&StatusReport { starting, stopping, ..StatusReport::default() }, None, Style::PLAIN)
    };
    assert!(status(true, false).contains(", starting\n"));
    assert!(status(true, true).contains(", stopping\n"));
    assert!(!status(false, false).contains("starting"));
}

#[test]
fn active_alert_shows_its_effect_and_remedy() {
    let cause = "destage to the backing fails (no space left); 4 KiB of dirty data are kept and retried";
    let alert = AlertReport {
        kind: AlertKind::DestageFailing,
        severity: AlertKind::DestageFailing.severity(),
        subject: Some("web01".to_owned()),
        cause: cause.to_owned(),
        effect: "Dirty data stays in the cache.".to_owned(),
        remedy: "Free space on the backing.".to_owned(),
        acknowledged: Some(AlertAcknowledgement { by: "user root".to_owned(), at_unix_ms: 1_795_326_300_000 }),
        ..AlertReport::default()
    };
    let mut status = report(vec![busy()]);
    status.alerts = vec![format!("web01: {cause}"), "db: not served".to_owned()];
    status.active_alerts = vec![alert];
    status.problems_without_alert = vec!["db: not served".to_owned()];
    let text = screen::status(&status, None, Style::PLAIN);
    let (_, alerts) = text.split_once("\nalerts\n").expect("the screen has alerts");
    let expected = format!(
        "  critical  web01: {cause}\n            effect: Dirty data stays in the cache.\n            remedy: Free space on \
         the backing.\n            acknowledged by user root at 2026-11-22T05:45:00Z\n  db: not served\n"
    );
    assert_eq!(alerts, expected);
}

#[test]
fn long_remedy_is_wrapped() {
    let alert = AlertReport { cause: "cause".to_owned(), remedy: "word ".repeat(50), ..AlertReport::default() };
    let status = StatusReport { active_alerts: vec![alert], ..report(Vec::new()) };
    let text = screen::status(&status, None, Style::PLAIN);
    assert!(text.lines().all(|line| line.chars().count() <= 110), "{text}");
    assert_eq!(text.matches("word").count(), 50);
    assert!(text.contains(&format!("\n{:20}word", "")), "{text}");
}

#[test]
fn flash_devices_have_their_numbers() {
    let device = |number, state: &str| FlashDeviceReport {
        number,
        device: format!("/dev/nvme{number}n1"),
        state: state.to_owned(),
        reason: "it failed".to_owned(),
        ..FlashDeviceReport::default()
    };
    let devices = vec![device(1, "in-service"), device(2, "lost")];
    let report = FlashReport { in_use: true, devices, ..FlashReport::default() };
    let text = screen::flash(&report, Style::PLAIN);
    assert!(text.contains(" device 1: /dev/nvme1n1, 0 B, in service, 0 clean pages\n"), "{text}");
    assert!(text.contains(" device 2: /dev/nvme2n1, lost: it failed\n"), "{text}");
    let missing = FlashDeviceReport { number: 3, state: "lost".to_owned(), ..FlashDeviceReport::default() };
    let report = FlashReport { in_use: true, devices: vec![missing], ..FlashReport::default() };
    assert!(screen::flash(&report, Style::PLAIN).contains(" device 3, lost"));
}

#[test]
fn a_daemon_without_volumes_says_how_to_add_one() {
    assert_snapshot!(screen::status(&report(Vec::new()), None, Style::PLAIN));
}

#[test]
fn top_shows_rates_since_the_last_sample() {
    let before = report(vec![busy()]);
    let mut later = busy();
    later.reads += 3_000;
    later.memory_hits += 2_700;
    later.writes += 500;
    let mut now = report(vec![later]);
    now.uptime_ms += 2_000;
    assert_snapshot!(screen::status(&now, Some(&before), Style::PLAIN));
}

#[test]
fn rates_come_with_the_latencies_of_their_interval() {
    let counts = |fast, slow| {
        let below = [(16.384, fast), (3_932.16, fast), (4_194.304, fast + slow)];
        Counts {
            below: below.map(|(us, count)| CountsBelow { us, count }).into(),
            all: fast + slow,
            ..Counts::default()
        }
    };
    let volume = |fast, slow| {
        let mut volume = busy();
        volume.reads = fast + slow;
        volume.latency_counts.read = counts(fast, slow);
        volume.latency_us = LatencyReport::of(&volume.latency_counts);
        volume
    };
    let (before, mut now) = (report(vec![volume(1_000_000, 0)]), report(vec![volume(1_000_000, 100)]));
    now.uptime_ms += 1_000;
    let since_start = screen::volumes(&now.volumes, None, Style::PLAIN);
    assert!(since_start.contains("< 16 us") && !since_start.contains("4.1"), "{since_start}");
    let interval = screen::status(&now, Some(&before), Style::PLAIN);
    assert!(interval.contains("4.06 ms") && interval.contains("4.19 ms"), "{interval}");
}

#[test]
fn a_volume_has_a_page() {
    assert_snapshot!(volume::page(&busy(), Style::PLAIN));
    assert_snapshot!(volume::page(&refused(), Style::PLAIN));
}

#[test]
fn datastores_have_a_table_and_a_page() {
    let member = |volume: &str, shares, entitled_ratio, waiting| MemberReport {
        volume: volume.to_owned(),
        shares,
        entitled_ratio,
        used_ratio: 0.5,
        accesses: 12_345.6,
        waits: 99,
        waited_us: 2_500_000,
        waiting,
        ..MemberReport::default()
    };
    let episode = |began, ended| EpisodeReport {
        began_unix_seconds: began,
        ended_unix_seconds: ended,
        caused_by: "backup".to_owned(),
        contenders: vec!["backup".to_owned(), "sql01".to_owned()],
    };
    let pool = DatastoreReport {
        name: "sas-pool".to_owned(),
        congested: true,
        congested_seconds_total: 75.4,
        congestion_episodes: 2,
        threshold_ms: 30.0,
        threshold_is_automatic: true,
        latency_ms: 41.25,
        accesses_per_second: 812.4,
        peak_accesses_per_second: Some(850.0),
        window: Some(24.0),
        outstanding: 24.5,
        members: vec![member("backup", 500, 0.2, 31), member("sql01", 2_000, 0.8, 0)],
        episodes: vec![episode(1_795_326_300, Some(1_795_326_315)), episode(1_795_326_400, None)],
        ..DatastoreReport::default()
    };
    let calm = DatastoreReport { name: "(flash)".to_owned(), is_flash: true, threshold_ms: 5.0, ..Default::default() };
    assert_snapshot!(datastore::table(&[pool.clone(), calm], Style::PLAIN));
    assert_snapshot!(datastore::page(&pool, Style::PLAIN));
    assert_snapshot!(datastore::table(&[], Style::PLAIN));
}

#[test]
fn history_is_one_line_per_step() {
    let figure = |unit: &str, mean: [f64; 2]| FigureReport {
        unit: unit.to_owned(),
        mean: mean.to_vec(),
        ..FigureReport::default()
    };
    let latency = LatencyFigures { p99_us: vec![Some(1250.0), None], ..LatencyFigures::default() };
    let report = HistoryReport {
        at_unix_seconds: vec![1_795_326_300, 1_795_326_360],
        series: [
            ("reads".to_owned(), figure("requests", [1234.5, 0.0])),
            ("dirty_bytes".to_owned(), figure("bytes", [1536.0, 0.0])),
        ]
        .into(),
        latency: [("read".to_owned(), latency)].into(),
        ..HistoryReport::default()
    };
    assert_snapshot!(history::table(&report, Style::PLAIN));
    assert_snapshot!(history::table(&HistoryReport::default(), Style::PLAIN));
}
