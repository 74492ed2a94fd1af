//! Each kind is raised in its condition, none in a healthy status, and alerts do not flap.

use std::time::Duration;

use messages::report::{
    CertificateReport, CoreReport, Counts, CountsBelow, DatastoreReport, DeliveryHealth, DriveReport, EpisodeReport,
    FlashDeviceReport, FleetPeerReport, HistoryHealth, IscsiReport, PoolGroupReport, PoolReport, PoolTierReport,
    RefusedLoginReport, StatusProblem,
};
use messages::{FlashReport, VolumeReport, VolumeState};

use super::*;

fn limits() -> Limits {
    Limits {
        dirty_age: Duration::from_secs(60),
        endurance_until: Some(86_400 * 100),
        metrics_volumes: Some(2),
        cores: 1,
    }
}

fn healthy() -> StatusReport {
    let device = |number, days| FlashDeviceReport {
        number,
        device: format!("/dev/f{number}"),
        state: "in-service".to_owned(),
        endurance_left_days: Some(days),
        ..FlashDeviceReport::default()
    };
    let devices = vec![device(0, 5_000), device(1, 5_000)];
    let flash = FlashReport { in_use: true, copies: 2, segments: 9, devices, ..FlashReport::default() };
    let volume = VolumeReport::idle("v", VolumeState::Active, "write-back", "/x");
    let cores = vec![CoreReport::default()];
    StatusReport { volumes: vec![volume], flash: Some(flash), cores, ..StatusReport::default() }
}

/// Evaluates a healthy status, then the changed one for 99 seconds, and returns the active alerts.
fn alerts_after(change: impl FnOnce(&mut StatusReport)) -> (Alerts, Vec<String>) {
    let mut alerts = Alerts::default();
    assert_eq!(alerts.evaluate(1_000, &healthy(), &limits()), []);
    let mut status = healthy();
    change(&mut status);
    for second in 2..=100 {
        alerts.evaluate(second * 1_000, &status, &limits());
    }
    let active = alerts.active();
    assert!(active.iter().all(|alert| {
        let texts = [&alert.cause, &alert.effect, &alert.remedy];
        texts.iter().all(|text| !text.is_empty()) && alert.since_unix_ms >= 2_000
    }));
    let names = active.iter().map(|alert| format!("{} {}", alert.kind, alert.subject.as_deref().unwrap_or("-")));
    let names = names.collect();
    (alerts, names)
}

/// The active alerts after 99 seconds of the changed status, as `KIND SUBJECT`.
fn raised(change: impl FnOnce(&mut StatusReport)) -> Vec<String> {
    alerts_after(change).1
}

fn flash(change: fn(&mut FlashReport)) -> impl FnOnce(&mut StatusReport) {
    move |status| status.flash.iter_mut().for_each(change)
}

fn volume(change: fn(&mut VolumeReport)) -> impl FnOnce(&mut StatusReport) {
    move |status| status.volumes.iter_mut().for_each(change)
}

#[test]
fn each_kind_is_raised_and_a_healthy_daemon_has_none() {
    assert_eq!(raised(|_| ()), [""; 0]);
    assert_eq!(raised(|status| status.cores.clear()), ["core-silent core 0"]);
    let lost: fn(&mut FlashReport) = |flash| flash.devices[1].state = "lost".to_owned();
    assert_eq!(raised(flash(lost)), ["flash-degraded /dev/f1"]);
    let absent: fn(&mut FlashReport) = |flash| {
        flash.absent = vec!["/dev/f2: no such device".to_owned()];
        flash.problems =
            flash.absent.iter().map(|reason| StatusProblem::new(AlertKind::FlashDegraded, reason)).collect();
    };
    assert_eq!(raised(flash(absent)), ["flash-degraded [flash] devices"]);
    assert_eq!(raised(flash(|flash| flash.copies = 1)), ["single-copy -"]);
    assert_eq!(raised(flash(|flash| (flash.copies, flash.is_log_on_image) = (1, true))), [""; 0]);
    assert_eq!(raised(flash(|flash| flash.copies = 0)), ["no-copy -"]);
    assert_eq!(raised(flash(|flash| flash.unclaimed = 3)), ["flash-unclaimed -"]);
    assert_eq!(raised(flash(|flash| flash.scrub.lost = 3)), ["flash-data-lost -"]);
    assert_eq!(raised(flash(|flash| flash.pages.dropped = Some("a crash".to_owned()))), ["pages-dropped -"]);
    assert_eq!(raised(flash(|flash| flash.devices[0].endurance_left_days = Some(98))), ["endurance /dev/f0"]);
    let drive = |warnings: &[&str]| {
        let warnings = warnings.iter().map(|warning| (*warning).to_owned()).collect();
        Some(DriveReport { drive: "/dev/f".to_owned(), warnings, ..DriveReport::default() })
    };
    let worn = drive(&["it takes no more writes"]);
    let with_drive = |drive| {
        move |status: &mut StatusReport| {
            status.flash.iter_mut().for_each(|flash| flash.devices[1].drive = Clone::clone(&drive))
        }
    };
    assert_eq!(raised(with_drive(worn)), ["drive-failing /dev/f1"]);
    assert_eq!(raised(with_drive(drive(&[]))), [""; 0]);
    let unused: fn(&mut FlashReport) = |flash| {
        *flash = FlashReport {
            problems: vec![StatusProblem::new(AlertKind::FlashUnused, "flash is not used: why")],
            ..FlashReport::default()
        };
    };
    assert_eq!(raised(flash(unused)), ["flash-unused -"]);
    let refused: fn(&mut VolumeReport) = |volume| {
        volume.state = VolumeState::Refused;
        volume.problems = vec![StatusProblem::new(AlertKind::VolumeRefused, "not served: no such file")];
    };
    assert_eq!(raised(volume(refused)), ["volume-refused v"]);
    assert_eq!(raised(volume(|volume| volume.lost_bytes = 4096)), ["flash-data-lost v"]);
    assert_eq!(raised(volume(|volume| volume.dirty_age_ms = 60_001)), ["dirty-too-old v"]);
    assert_eq!(raised(volume(|volume| volume.backing_errors = 1)), ["backing-errors v"]);
    assert_eq!(raised(volume(|volume| volume.backing_unanswered_ms = 9_999)), [""; 0]);
    let (alerts, names) = alerts_after(volume(|volume| volume.backing_unanswered_ms = 12_000));
    assert_eq!(names, ["backing-hung v"]);
    assert_eq!(alerts.active()[0].cause, "its backing /x has not answered a request for 12s");
    let hung: fn(&mut VolumeReport) = |volume| {
        volume.state = VolumeState::Refused;
        volume.problems = vec![StatusProblem::new(AlertKind::VolumeRefused, "not served: it does not answer")];
        volume.refusal = Some("backing-hung".to_owned());
    };
    assert_eq!(raised(volume(hung)), ["volume-refused v", "backing-hung v"]);
    assert_eq!(raised(flash(|flash| flash.devices[1].unanswered_ms = 10_000)), ["flash-hung /dev/f1"]);
    let hung_at_start: fn(&mut FlashReport) = |flash| flash.hung = vec!["/dev/f2".to_owned()];
    assert_eq!(raised(flash(hung_at_start)), ["flash-hung /dev/f2"]);
    assert_eq!(raised(volume(|volume| volume.state = VolumeState::Frozen)), ["cache-paused v"]);
    let slow: fn(&mut VolumeReport) = |volume| {
        volume.latency_counts.read = Counts { below: vec![CountsBelow { us: 1e6, count: 96 }], all: 100, sum_us: 9e6 };
    };
    assert_eq!(raised(volume(slow)), ["backing-slow v"]);
    let congested = |seconds| {
        let contenders = vec!["v".to_owned(), "w".to_owned()];
        let episode = EpisodeReport { caused_by: "w".to_owned(), contenders, ..EpisodeReport::default() };
        let sas =
            DatastoreReport { name: "sas".to_owned(), congested: true, episodes: vec![episode], ..Default::default() };
        let mut alerts = Alerts::default();
        let status = StatusReport { datastores: vec![sas], ..healthy() };
        (1..=seconds).for_each(|second| drop(alerts.evaluate(second * 1_000, &status, &limits())));
        alerts.active().iter().map(|alert| format!("{}: {}", alert.kind, alert.cause)).collect::<Vec<_>>()
    };
    assert_eq!(congested(60), [""; 0]);
    assert_eq!(congested(61), ["datastore-congested: it is congested, caused by w: 2 volumes in contention"]);
    let history = HistoryHealth { failed: Some("the disk is full".to_owned()), ..HistoryHealth::default() };
    assert_eq!(raised(|status| status.history = Some(history)), ["history-disk -"]);
    assert_eq!(raised(|status| status.state_failed = Some("no answer for 5 s".to_owned())), ["state-disk -"]);
    assert_eq!(raised(|status| status.memory_not_kept = Some("no room".to_owned())), ["memory-not-kept -"]);
    assert_eq!(raised(|status| status.events.failed = Some("the disk is full".to_owned())), ["events-disk -"]);
    let webhook = DeliveryHealth { failed: Some("it answered 500".to_owned()), ..DeliveryHealth::default() };
    assert_eq!(raised(|status| status.webhook = Some(webhook)), ["webhook-failing -"]);
    let mail = DeliveryHealth { failed: Some("it answered 535 no".to_owned()), ..DeliveryHealth::default() };
    assert_eq!(raised(|status| status.mail = Some(mail)), ["mail-failing -"]);
    // The last sample is in the hundredth second.
    let certificate = |ends: u64| {
        let file = "/etc/hotset/api.crt".to_owned();
        let report = CertificateReport { table: "api".to_owned(), file, ends_unix_seconds: Some(ends) };
        move |status: &mut StatusReport| status.certificates = vec![report]
    };
    const TWO_WEEKS: u64 = 14 * 86_400;
    assert_eq!(raised(certificate(TWO_WEEKS + 101)), [""; 0]);
    assert_eq!(raised(certificate(TWO_WEEKS)), ["certificate-expires [api] tls_certificate"]);
    assert_eq!(raised(certificate(1)), ["certificate-expired [api] tls_certificate"]);
    let (ended, _) = alerts_after(certificate(1));
    assert_eq!(ended.active()[0].cause, "the certificate in /etc/hotset/api.crt expired at 1970-01-01T00:00:01Z");
    let three_volumes = |status: &mut StatusReport| {
        let volume = |name| VolumeReport::idle(name, VolumeState::Active, "none", "/x");
        status.volumes = vec![volume("a"), volume("b"), volume("c")];
    };
    assert_eq!(raised(three_volumes), ["metrics-left-out -"]);
    let pool = |used_percent: u64| {
        let group = |state: &str, size_bytes, free_bytes| PoolGroupReport {
            state: state.to_owned(),
            size_bytes,
            free_bytes,
            ..PoolGroupReport::default()
        };
        // The free bytes of a draining device are none.
        let groups =
            vec![group("in-service", 90 << 20, (100 - used_percent) << 20), group("draining", 50 << 20, 40 << 20)];
        let tier = PoolTierReport { groups, ..PoolTierReport::default() };
        let full_at_unix_seconds = (used_percent == 85).then_some(1_796_083_200);
        let report =
            PoolReport { name: "tank".to_owned(), tiers: vec![tier], full_at_unix_seconds, ..PoolReport::default() };
        move |status: &mut StatusReport| status.pools = vec![report]
    };
    assert_eq!(raised(pool(69)), [""; 0]);
    for (used_percent, kind) in
        [(70, "pool-filling"), (84, "pool-filling"), (85, "pool-nearly-full"), (95, "pool-full")]
    {
        assert_eq!(raised(pool(used_percent)), [format!("{kind} pool tank")], "{used_percent}");
    }
    let report = PoolReport { name: "tank".to_owned(), ..PoolReport::default() };
    for (used_percent, level) in [(69, 0), (70, 1), (85, 2), (94, 2), (95, 3)] {
        let (mut alerts, _) = alerts_after(pool(used_percent));
        assert_eq!(alerts.pool_fill_level(&report), level, "{used_percent}");
        // The alert of a lower threshold is raised while the higher one lasts, which reaches no threshold.
        let mut status = healthy();
        pool(used_percent - 1)(&mut status);
        alerts.evaluate(101_000, &status, &limits());
        assert_eq!(alerts.pool_fill_level(&report), level, "{used_percent}");
    }
    let (filled, _) = alerts_after(pool(95));
    assert_eq!(filled.active()[0].cause, "95 % of its space is used; 5 MiB are free");
    let (filled, _) = alerts_after(pool(85));
    let cause = "85 % of its space is used; 15 MiB are free; full on 2026-12-01 by its trend";
    assert_eq!(filled.active()[0].cause, cause);
}

#[test]
fn status_problems_raise_alerts_of_their_kind_once() {
    for (kind, name) in [
        (AlertKind::BackingLost, "backing-lost v"),
        (AlertKind::DestageFailing, "destage-failing v"),
        (AlertKind::UnflushedWritesLost, "unflushed-writes-lost v"),
        (AlertKind::PolicyReduced, "policy-reduced v"),
        (AlertKind::VolatileWrites, "volatile-writes v"),
        (AlertKind::PagesDropped, "pages-dropped v"),
        (AlertKind::Other, "other v"),
    ] {
        let (alerts, names) =
            alerts_after(|status| status.volumes[0].problems.push(StatusProblem::new(kind, "a sentence")));
        assert_eq!(names, [name]);
        // The status states these itself, so they are not repeated.
        assert_eq!(causes_not_in_status(&alerts.active()).count(), 0, "{name}");
    }
    // Flash devices, copies and the scrub have figures of their own, from which their alerts are found.
    let raised_by = |kind| {
        let problem = StatusProblem::new(kind, "a sentence");
        raised(|status| status.flash.iter_mut().for_each(|f| f.problems.push(problem.clone())))
    };
    let is_found = |kind| matches!(kind, AlertKind::Other | AlertKind::FlashUnlisted);
    for kind in RULES.iter().filter(|rule| rule.is_in_status && !is_found(rule.kind)).map(|rule| rule.kind) {
        assert_eq!(raised_by(kind), [""; 0]);
    }
    assert_eq!(raised_by(AlertKind::FlashUnlisted), ["flash-unlisted -"]);
    let (alerts, _) = alerts_after(volume(|volume| volume.dirty_age_ms = 60_001));
    assert_eq!(causes_not_in_status(&alerts.active()).collect::<Vec<_>>(), ["v: its oldest dirty block is 60s old"]);
}

fn single_copy() -> StatusReport {
    let mut status = healthy();
    flash(|flash| flash.copies = 1)(&mut status);
    status
}

/// The transitions in `span` with their seconds, where `has_cause` is true for seconds with the cause of an alert.
fn transitions(
    alerts: &mut Alerts,
    span: std::ops::Range<u64>,
    has_cause: impl Fn(u64) -> bool,
) -> Vec<(u64, NotificationKind)> {
    span.flat_map(|second| {
        let status = if has_cause(second) { single_copy() } else { healthy() };
        alerts.evaluate(second * 1000, &status, &limits()).into_iter().map(move |change| (second, change.state))
    })
    .collect()
}

#[test]
fn intermittent_cause_raises_one_alert_until_it_stays_away() {
    let mut alerts = Alerts::default();
    assert_eq!(transitions(&mut alerts, 0..60, |second| second % 3 == 0), [(0, NotificationKind::Raised)]);
    assert_eq!(transitions(&mut alerts, 60..80, |_| false), [(62, NotificationKind::Cleared)]);
    assert!(alerts.active().is_empty());
}

#[test]
fn recurring_alert_has_a_longer_clear_delay() {
    let mut alerts = Alerts::default();
    // The cause exists in one second of ten; without longer clear delays there would be 720 transitions.
    let transitions = transitions(&mut alerts, 0..3_600, |second| second % 10 == 0);
    assert_eq!(
        transitions,
        [(0, NotificationKind::Raised), (5, NotificationKind::Cleared), (10, NotificationKind::Raised)]
    );
    // After a quarter of an hour without the cause, the clear delay is short again.
    let cleared = self::transitions(&mut alerts, 3_600..4_600, |_| false);
    assert_eq!(cleared, [(3_600, NotificationKind::Cleared)]);
    let again = self::transitions(&mut alerts, 4_600..4_610, |second| second == 4_600);
    assert_eq!(again, [(4_600, NotificationKind::Raised), (4_605, NotificationKind::Cleared)]);
}

#[test]
fn value_near_its_threshold_does_not_flap() {
    let mut alerts = Alerts::default();
    let mut evaluate = |second: u64, age_ms| {
        let mut status = healthy();
        status.volumes[0].dirty_age_ms = age_ms;
        alerts.evaluate(second * 1000, &status, &limits()).len()
    };
    // Ten seconds below the threshold, ten above it, for ten minutes.
    let transitions: usize =
        (0..600).map(|second| evaluate(second, if second / 10 % 2 == 0 { 59_000 } else { 61_000 })).sum();
    assert_eq!(transitions, 1);
    assert_eq!((600..620).map(|second| evaluate(second, 53_000)).sum::<usize>(), 1);
}

#[test]
fn errors_are_reported_for_five_minutes_after_the_last_one() {
    let mut alerts = Alerts::default();
    let mut failing = healthy();
    failing.volumes[0].backing_errors = 3;
    let active: Vec<usize> = (1..400)
        .map(|second| {
            alerts.evaluate(second * 1000, &failing, &limits());
            alerts.active().len()
        })
        .collect();
    assert_eq!(active.iter().sum::<usize>(), 300 + 4);
}

/// The counter stands still while destage repeats a request.
#[test]
fn errors_are_reported_while_destage_repeats_the_request() {
    let (mut alerts, mut failing) = (Alerts::default(), healthy());
    failing.volumes[0].backing_errors = 1;
    let text = "destage fails".to_owned();
    failing.volumes[0].problems.push(StatusProblem { kind: AlertKind::DestageFailing, text });
    let mut is_active = |second: u64, status: &StatusReport| {
        alerts.evaluate(second * 1000, status, &limits());
        alerts.active().iter().any(|alert| alert.kind == AlertKind::BackingErrors)
    };
    assert!((1..1_000).all(|second| is_active(second, &failing)));
    failing.volumes[0].problems.clear();
    assert_eq!((1_000..2_000).filter(|second| is_active(*second, &failing)).count(), 299 + 4);
    // Destage from flash may fail beside a healthy backing.
    let text = "destage fails".to_owned();
    failing.volumes[0].problems.push(StatusProblem { kind: AlertKind::DestageFailing, text });
    assert!(!is_active(2_000, &failing));
}

#[test]
fn slow_minute_is_reported_for_one_minute_and_few_slow_reads_are_not() {
    let mut alerts = Alerts::default();
    let mut reads = Counts { below: vec![CountsBelow { us: 1e6, count: 0 }], all: 0, sum_us: 0.0 };
    let mut minute = |alerts: &mut Alerts, minute: u64, fast: u64, slow: u64| {
        reads.below[0].count += fast;
        reads.all += fast + slow;
        let mut status = healthy();
        status.volumes[0].latency_counts.read = reads.clone();
        (0..60).for_each(|second| drop(alerts.evaluate((minute * 60 + second) * 1000, &status, &limits())));
        alerts.active().len()
    };
    let minutes = [(100, 0), (0, 2), (1000, 9), (1000, 20), (1000, 0), (1000, 0)];
    let active: Vec<usize> =
        minutes.iter().zip(0..).map(|((fast, slow), number)| minute(&mut alerts, number, *fast, *slow)).collect();
    assert_eq!(active, [0, 0, 0, 1, 0, 0]);
}

#[test]
fn list_contains_each_kind_in_order_of_severity() {
    assert_eq!(RULES.map(|rule| rule.kind), AlertKind::ALL);
    assert!(RULES.iter().all(|rule| !rule.when.is_empty() && rule.when.len() < 200));
}

#[test]
fn number_of_active_alerts_is_limited() {
    let mut many = healthy();
    let volume = |number| VolumeReport {
        dirty_age_ms: 70_000,
        ..VolumeReport::idle(&format!("v{number}"), VolumeState::Paused, "none", "/x")
    };
    many.volumes = (0..2 * ACTIVE_MAX).map(volume).collect();
    let mut alerts = Alerts::default();
    assert_eq!(alerts.evaluate(1_000, &many, &limits()).len(), ACTIVE_MAX);
    assert_eq!(alerts.evaluate(2_000, &many, &limits()).len(), 0);
    alerts.evaluate(9_000, &healthy(), &limits());
    assert_eq!((alerts.active().len(), alerts.cleared.len()), (0, ACTIVE_MAX));
}

#[test]
fn event_and_log_line_of_a_raised_alert_have_effect_and_remedy() {
    let mut alerts = Alerts::default();
    let mut status = healthy();
    status.volumes[0].problems.push(StatusProblem::new(AlertKind::DestageFailing, "destage to the backing fails"));
    let raised = alerts.evaluate(1_000, &status, &limits()).pop().expect("the alert is raised in the first sample");
    let texts = [raised.event().text, raised.log_line()];
    for expected in
        ["destage-failing raised (critical): destage to the backing fails.", "Effect: Dirty", "Remedy: By the error"]
    {
        assert!(texts.iter().all(|text| text.contains(expected)), "{expected}: {texts:?}");
    }
    assert!(texts[1].starts_with("alert: v: "), "{}", texts[1]);
    let cleared = alerts.evaluate(9_000, &healthy(), &limits()).pop().expect("the alert is cleared");
    assert!(!cleared.log_line().contains("Remedy"), "{}", cleared.log_line());
}

#[test]
fn problem_is_listed_without_alert_until_its_alert_is_raised() {
    let mut status = healthy();
    status.volumes[0].problems.push(StatusProblem::new(AlertKind::PolicyReduced, "runs as write-through"));
    status.flash.as_mut().expect("flash").problems.push(StatusProblem::new(AlertKind::SingleCopy, "one copy"));
    assert_eq!(problems_without_alert(&status, &[]), ["v: runs as write-through", "one copy"]);
    let alert = |kind, subject: Option<&str>| AlertReport {
        kind,
        subject: subject.map(str::to_owned),
        ..AlertReport::default()
    };
    let active = [alert(AlertKind::SingleCopy, None), alert(AlertKind::PolicyReduced, Some("w"))];
    assert_eq!(problems_without_alert(&status, &active), ["v: runs as write-through"]);
    let active = [alert(AlertKind::SingleCopy, None), alert(AlertKind::PolicyReduced, Some("v"))];
    assert_eq!(problems_without_alert(&status, &active), [""; 0]);
}

#[test]
fn text_of_every_alert_fits_into_an_event_with_a_cause() {
    for rule in &RULES {
        let bytes = rule.effect.len() + rule.remedy.len();
        assert!(bytes + 300 < crate::log::TEXT_BYTES_MAX, "{}: {bytes}", rule.kind);
    }
}

#[test]
fn silent_host_raises_an_alert_and_versions_do_only_after_an_hour() {
    let peer = |host: &str, version: &str, silent_ms, error: Option<&str>| FleetPeerReport {
        host: host.to_owned(),
        version: version.to_owned(),
        silent_ms,
        error: error.map(str::to_owned),
    };
    let with = |hosts: Vec<FleetPeerReport>| {
        move |status: &mut StatusReport| (status.version, status.fleet_hosts) = ("1.1".to_owned(), hosts)
    };
    let hosts = vec![peer("beta", "1.1", 60_000, Some("it is off")), peer("gamma", "", 59_999, Some("it is off"))];
    let (alerts, names) = alerts_after(with(hosts));
    assert_eq!(names, ["fleet-host-silent beta"]);
    assert_eq!(alerts.active()[0].cause, "it is off");
    let mixed = with(vec![peer("beta", "1.0", 0, None), peer("gamma", "1.1", 0, None)]);
    let (mut alerts, names) = alerts_after(mixed.clone());
    assert_eq!(names, [""; 0]);
    let mut status = healthy();
    mixed(&mut status);
    alerts.evaluate(100_000 + 3_600_000, &status, &limits());
    assert_eq!(alerts.active()[0].cause, "this host: 1.1; host beta: 1.0; host gamma: 1.1");
}

#[test]
fn refused_login_names_initiator_and_reason() {
    let login = |initiator: &str, reason: &str, count| RefusedLoginReport {
        initiator: initiator.to_owned(),
        reason: reason.to_owned(),
        count,
        ago_ms: 0,
    };
    let refused = vec![login("iqn.a:esx1", "wrong CHAP user or secret", 3), login("", "unknown target name", 1)];
    let iscsi = IscsiReport { refused_logins: refused, ..IscsiReport::default() };
    let (alerts, names) = alerts_after(|status| status.iscsi = Some(iscsi));
    assert_eq!(names, ["login-refused -"]);
    let causes: Vec<_> = alerts.active().into_iter().map(|alert| alert.cause).collect();
    let expected = "initiator without a name: unknown target name (1 login refused); iqn.a:esx1: wrong CHAP user or \
                    secret (3 logins refused)";
    assert_eq!(causes, [expected]);
}

/// A status with a paused volume: one alert, without a delay.
fn paused() -> StatusReport {
    let volume = VolumeReport::idle("v", VolumeState::Paused, "write-back", "/x");
    StatusReport { volumes: vec![volume], ..healthy() }
}

/// Evaluates `status` at that second and returns the notifications as `raised ID` or `cleared ID`.
fn notify(alerts: &mut Alerts, second: u64, status: &StatusReport) -> Vec<String> {
    alerts.evaluate(second * 1_000, status, &limits());
    let changes = alerts.notifications(second * 1_000);
    changes
        .iter()
        .map(|Change { state, alert }| match state {
            NotificationKind::Raised => format!("raised {}", alert.id),
            NotificationKind::Cleared => format!("cleared {}", alert.id),
            NotificationKind::Test => "test".to_owned(),
        })
        .collect()
}

fn silence(alerts: &mut Alerts, until_second: u64) {
    let reason = Some("maintenance".to_owned());
    let (id, until_unix_ms) = ("cache-paused:v".to_owned(), until_second * 1_000);
    let silence = SilenceReport { id, by: "user root".to_owned(), until_unix_ms, reason };
    let silences = alerts.with_silence(silence).expect("it is valid");
    alerts.set_silences(silences);
}

#[test]
fn channels_get_begin_and_end_of_an_alert_once() {
    let mut alerts = Alerts::default();
    assert_eq!(notify(&mut alerts, 1, &healthy()), [""; 0]);
    assert_eq!(notify(&mut alerts, 2, &paused()), ["raised cache-paused:v"]);
    assert_eq!(notify(&mut alerts, 3, &paused()), [""; 0]);
    for second in 4..7 {
        assert_eq!(notify(&mut alerts, second, &healthy()), [""; 0]);
    }
    assert_eq!(notify(&mut alerts, 8, &healthy()), ["cleared cache-paused:v"]);
    assert_eq!(notify(&mut alerts, 9, &healthy()), [""; 0]);
}

#[test]
fn silenced_alert_stays_listed_and_is_sent_after_the_silence() {
    let mut alerts = Alerts::default();
    silence(&mut alerts, 10);
    for second in 1..10 {
        assert_eq!(notify(&mut alerts, second, &paused()), [""; 0], "{second}");
    }
    let listed = alerts.active();
    let silenced = listed[0].silenced.as_ref().expect("it is silenced");
    assert_eq!((listed.len(), silenced.by.as_str(), silenced.until_unix_ms), (1, "user root", 10_000));
    assert_eq!(notify(&mut alerts, 10, &paused()), ["raised cache-paused:v"]);
    assert_eq!((alerts.active()[0].silenced.clone(), alerts.silences()), (None, Vec::new()));
}

#[test]
fn end_of_an_alert_during_its_silence_is_sent_afterwards() {
    let mut alerts = Alerts::default();
    assert_eq!(notify(&mut alerts, 1, &paused()), ["raised cache-paused:v"]);
    silence(&mut alerts, 20);
    for second in 2..20 {
        assert_eq!(notify(&mut alerts, second, &healthy()), [""; 0], "{second}");
    }
    assert_eq!(alerts.active(), []);
    assert_eq!(notify(&mut alerts, 20, &healthy()), ["cleared cache-paused:v"]);
}

#[test]
fn alert_that_begins_and_ends_within_a_silence_is_never_sent() {
    let mut alerts = Alerts::default();
    silence(&mut alerts, 30);
    assert_eq!(notify(&mut alerts, 1, &paused()), [""; 0]);
    for second in 2..40 {
        assert_eq!(notify(&mut alerts, second, &healthy()), [""; 0], "{second}");
    }
}

#[test]
fn end_of_a_silence_by_command_sends_the_alert() {
    let mut alerts = Alerts::default();
    silence(&mut alerts, 1_000);
    assert_eq!(notify(&mut alerts, 1, &paused()), [""; 0]);
    let silences = alerts.without_silence("cache-paused:v").expect("it is silenced");
    alerts.set_silences(silences);
    assert_eq!(notify(&mut alerts, 2, &paused()), ["raised cache-paused:v"]);
    assert!(matches!(alerts.without_silence("cache-paused:v"), Err(SilenceError::NotFound(_))));
}

#[test]
fn acknowledgement_is_listed_and_ends_with_the_alert() {
    let mut alerts = Alerts::default();
    let unknown = alerts.acknowledge("cache-paused:v", "user root", 1);
    assert!(matches!(unknown, Err(SilenceError::NotFound(_))));
    silence(&mut alerts, 5);
    assert_eq!(notify(&mut alerts, 2, &paused()), [""; 0]);
    let acknowledged = alerts.acknowledge("cache-paused:v", "user root", 2_500).expect("it is active").acknowledged;
    assert_eq!(acknowledged, Some(AlertAcknowledgement { by: "user root".to_owned(), at_unix_ms: 2_500 }));
    assert_eq!(alerts.active()[0].acknowledged, acknowledged);
    // The silence ends, but the alert is known.
    for second in 5..8 {
        assert_eq!(notify(&mut alerts, second, &paused()), [""; 0], "{second}");
    }
    for second in 8..20 {
        assert_eq!(notify(&mut alerts, second, &healthy()), [""; 0], "{second}");
    }
    assert_eq!(notify(&mut alerts, 20, &paused()), ["raised cache-paused:v"]);
    assert_eq!(alerts.active()[0].acknowledged, None);
}
