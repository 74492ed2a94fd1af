//! Checks the text against the format's grammar, the bound on series, and known values.

use std::collections::{BTreeMap, BTreeSet};

use messages::report::{
    AlertKind, AlertReport, BackingRequests, CertificateReport, Counts, CountsBelow, DatastoreReport, DeliveryHealth,
    FlashDeviceReport, IscsiReport, PoolGroupReport, PoolRelocationReport, PoolRelocationState, PoolReport,
    PoolTierReport, QosUse,
};
use messages::{FlashReport, StatusReport, VolumeReport, VolumeState};

use super::*;

/// Parses a text into values by name and labels. It refuses what Prometheus's own parser and linter refuse.
fn parse(text: &str) -> Result<BTreeMap<String, f64>, String> {
    let mut values = BTreeMap::new();
    let (mut family, mut kind, mut families) = ("", "", BTreeSet::new());
    for line in text.strip_suffix('\n').ok_or("the last line has no line feed")?.split('\n') {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').ok_or("HELP without a text")?;
            if help.is_empty() || !families.insert(name) {
                return Err(format!("{name} has no HELP text, or two HELP lines"));
            }
            (family, kind) = (name, "");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, metric_type) = rest.split_once(' ').ok_or("TYPE without a type")?;
            if name != family || !kind.is_empty() || !["counter", "gauge", "histogram"].contains(&metric_type) {
                return Err(format!("TYPE {rest} within the family {family}"));
            }
            if (metric_type == "counter") != name.ends_with("_total") || !name.starts_with("hotset_") {
                return Err(format!("{name} is not a valid name of a {metric_type}"));
            }
            kind = metric_type;
        } else {
            let (series, value) = split_sample(line)?;
            let name = series.split('{').next().unwrap_or_default();
            let suffixes: &[&str] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            if kind.is_empty() || !suffixes.iter().any(|suffix| name.strip_suffix(suffix) == Some(family)) {
                return Err(format!("{name} is in the family {family} ({kind})"));
            }
            let value = value.parse::<f64>().map_err(|_| format!("{value} is not a number"))?;
            if values.insert(series.clone(), value).is_some() {
                return Err(format!("{series} occurs twice"));
            }
        }
    }
    Ok(values)
}

/// Splits a line into its series, whose labels it checks, and its value.
fn split_sample(line: &str) -> Result<(String, &str), String> {
    let error = |cause: &str| format!("{cause}: {line}");
    let name_end = line.find(['{', ' ']).ok_or_else(|| error("no value"))?;
    if !line.starts_with('{') && line[..name_end].chars().any(|c| !c.is_ascii_alphanumeric() && c != '_') {
        return Err(error("an invalid name"));
    }
    if line[name_end..].starts_with(' ') {
        return Ok((line[..name_end].to_owned(), &line[name_end + 1..]));
    }
    let (mut labels, mut names) = (&line[name_end + 1..], BTreeSet::new());
    loop {
        let (name, after) = labels.split_once("=\"").ok_or_else(|| error("no label"))?;
        let has_valid_start =
            name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && !name.starts_with("__");
        if !has_valid_start || name.chars().any(|c| !c.is_ascii_alphanumeric() && c != '_') || !names.insert(name) {
            return Err(error("an invalid label"));
        }
        let (mut end, mut escaped) = (None, false);
        for (index, c) in after.char_indices() {
            match (c, escaped) {
                ('"', false) => {
                    end = Some(index);
                    break;
                }
                ('\\' | '"' | 'n', true) => escaped = false,
                (_, true) => return Err(error("an invalid escape")),
                (c, false) => escaped = c == '\\',
            }
        }
        labels = &after[end.ok_or_else(|| error("an unterminated label"))? + 1..];
        match labels.strip_prefix(',') {
            Some(more) => labels = more,
            None => break,
        }
    }
    let value = labels.strip_prefix("} ").ok_or_else(|| error("no value"))?;
    Ok((line[..line.len() - value.len() - 1].to_owned(), value))
}

/// A volume with every series that a volume can have.
fn volume(name: &str) -> VolumeReport {
    let mut volume = VolumeReport::idle(name, VolumeState::Active, "write-back", "/x");
    volume.datastore = "sas-pool".to_owned();
    (volume.reads, volume.memory_hits, volume.misses) = (10, 7, 3);
    // Three requests from 20.5 to 22.5 us, six from 1.1 to 1.2 ms, one past the last bound.
    let below = [(16.384, 0), (20.48, 0), (22.528, 3), (1_048.576, 3), (1_179.648, 9)];
    let below = below.map(|(us, count)| CountsBelow { us, count }).into();
    volume.latency_counts.read = Counts { below, all: 10, sum_us: 1_500_000.0 };
    volume.latency_counts.write = volume.latency_counts.read.clone();
    volume.latency_counts.write_service = volume.latency_counts.read.clone();
    volume.latency_counts.write_held = Counts { sum_us: 250_000.0, ..volume.latency_counts.read.clone() };
    for op in ["read", "write", "zero", "flush"] {
        for cause in ["client-read", "destage", "readahead", "promotion"] {
            let (op, cause) = (op.to_owned(), cause.to_owned());
            let latency = volume.latency_counts.read.clone();
            volume.backing_requests.push(BackingRequests { op, cause, requests: 1, bytes: 1, latency });
        }
    }
    volume
}

fn status(volumes: Vec<VolumeReport>) -> StatusReport {
    let device = |number, device: &str| FlashDeviceReport {
        number,
        device: device.to_owned(),
        endurance_used_ratio: Some(0.25),
        ..FlashDeviceReport::default()
    };
    let flash =
        FlashReport { devices: vec![device(0, "/dev/x"), device(1, ""), device(2, "")], ..FlashReport::default() };
    StatusReport { volumes, flash: Some(flash), version: "1.2.3".to_owned(), ..StatusReport::default() }
}

#[test]
fn congestion_and_waits_have_series() {
    let mut waits = volume("a");
    waits.qos = QosUse {
        limit_waits: 3,
        limit_waited_us: 1_500_000,
        share_waits: 4,
        share_waited_us: 250_000,
        ..Default::default()
    };
    let sas = DatastoreReport {
        name: "sas-pool".to_owned(),
        congested: true,
        congested_seconds_total: 2.5,
        congestion_episodes: 3,
        threshold_ms: 30.0,
        accesses_per_second: 700.0,
        ..DatastoreReport::default()
    };
    let status = StatusReport { datastores: vec![sas], ..status(vec![waits]) };
    let values = parse(&text(&status, 1000)).expect("the exposition is valid");
    let datastore = |name: &str| values.get(&format!("hotset_{name}{{datastore=\"sas-pool\"}}")).copied();
    assert_eq!(
        (datastore("datastore_congested"), datastore("datastore_congested_seconds_total")),
        (Some(1.0), Some(2.5))
    );
    assert_eq!(datastore("datastore_congestion_episodes_total"), Some(3.0));
    assert_eq!(datastore("datastore_congestion_threshold_seconds"), Some(0.03));
    assert_eq!(datastore("datastore_accesses_per_second"), Some(700.0));
    assert_eq!(datastore("datastore_shown_accesses_per_second"), None);
    let labels = "volume=\"a\",datastore=\"sas-pool\"";
    let volume = |name: &str| values[&format!("hotset_volume_{name}{{{labels}}}")];
    assert_eq!((volume("limit_waits_total"), volume("limit_wait_seconds_total")), (3.0, 1.5));
    assert_eq!((volume("share_waits_total"), volume("share_wait_seconds_total")), (4.0, 0.25));
}

#[test]
fn text_follows_the_format_and_holds_known_values() {
    let values = parse(&text(&status(vec![volume("a"), volume("b")]), 1000)).expect("the exposition is valid");
    let labels = "volume=\"a\",datastore=\"sas-pool\"";
    assert_eq!(values[&format!("hotset_volume_requests_total{{{labels},op=\"read\"}}")], 10.0);
    assert_eq!(values[&format!("hotset_volume_reads_by_source_total{{{labels},source=\"backing\"}}")], 3.0);
    assert_eq!(values[&format!("hotset_volume_latency_seconds_bucket{{{labels},op=\"read\",le=\"+Inf\"}}")], 10.0);
    let bucket =
        |le: &str| values[&format!("hotset_volume_latency_seconds_bucket{{{labels},op=\"read\",le=\"{le}\"}}")];
    assert_eq!((bucket("0.000016384"), bucket("0.000024576"), bucket("0.000786432")), (0.0, 3.0, 3.0));
    assert_eq!((bucket("0.001048576"), bucket("0.002097152"), bucket("1.073741824")), (3.0, 9.0, 9.0));
    let held = |op: &str| values[&format!("hotset_volume_held_seconds_total{{{labels},op=\"{op}\"}}")];
    assert_eq!((held("read"), held("write")), (0.0, 0.25));
    assert_eq!(values[&format!("hotset_volume_latency_seconds_sum{{{labels},op=\"write\"}}")], 1.5);
    let median = values[&format!("hotset_volume_latency_percentile_seconds{{{labels},op=\"read\",percentile=\"50\"}}")];
    assert!((1_048e-6..1_180e-6).contains(&median), "it is in the bucket of the fifth of ten requests: {median}");
    assert_eq!(values["hotset_datastore_requests_total{datastore=\"sas-pool\",op=\"read\"}"], 20.0);
    let backing = "datastore=\"sas-pool\",op=\"write\",cause=\"destage\"";
    assert_eq!(values[&format!("hotset_backing_latency_seconds_count{{{backing}}}")], 20.0);
    assert_eq!(values[&format!("hotset_backing_latency_seconds_bucket{{{backing},le=\"0.000065536\"}}")], 6.0);
    assert_eq!(values["hotset_flash_endurance_used_ratio{device=\"device 2\"}"], 0.25);
}

#[test]
fn every_family_is_documented() {
    let mut whole = status(vec![volume("a")]);
    whole.webhook = Some(DeliveryHealth::default());
    whole.mail = Some(DeliveryHealth::default());
    whole.iscsi = Some(IscsiReport::default());
    whole.pools = vec![PoolReport::default()];
    let text = text(&whole, 1000);
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/admin/api.md");
    let page = std::fs::read_to_string(page).expect("docs/admin/api.md can be read");
    let documented: BTreeSet<_> = page.split('`').map(|word| word.split('{').next().unwrap_or_default()).collect();
    let families = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let missing: Vec<_> = families.filter(|family| !documented.contains(family)).collect();
    assert_eq!(missing, [""; 0], "docs/admin/api.md, section Metrics, does not describe them");
}

#[test]
fn parser_refuses_malformed_texts() {
    let valid = "# HELP hotset_a_total A.\n# TYPE hotset_a_total counter\nhotset_a_total{x=\"1\"} 1\n";
    parse(valid).expect("the exposition is valid");
    for (from, to) in [
        ("counter\n", "gauge\n"),
        (" A.\n", " \n"),
        ("x=\"1\"", "x=\"1\",x=\"1\""),
        ("x=\"1\"", "0=\"1\""),
        ("x=\"1\"", "x=\"\\1\""),
        ("x=\"1\"", "x=\"1"),
        ("} 1", "} one"),
        ("} 1", "}"),
        ("hotset_a_total{", "hotset_b_total{"),
        ("} 1\n", "} 1\nhotset_a_total{x=\"1\"} 1\n"),
        ("} 1\n", "} 1"),
        ("# TYPE hotset_a_total counter\n", ""),
    ] {
        parse(&valid.replacen(from, to, 1)).expect_err(to);
    }
}

#[test]
fn buckets_keep_their_bounds_and_are_bounds_of_the_engine() {
    let octaves = [14, 16, 18, 20, 21, 22, 23, 24, 25, 27, 30];
    assert_eq!(lines::BACKING_BOUNDS_US, octaves.map(|octave| (1u64 << octave) as f64 / 1e3));
    for bound in lines::BACKING_BOUNDS_US {
        assert!(lines::CLIENT_BOUNDS_US.contains(&bound), "{bound} us was a bound in earlier versions");
    }
    for bound in lines::CLIENT_BOUNDS_US {
        // The engine has eight buckets an octave from 2^14 ns on.
        let ns = (bound * 1e3).round() as u64;
        assert!(ns >= 1 << 14 && ns.is_multiple_of(1 << (ns.ilog2() - 3)), "{bound} us is within a bucket");
    }
}

#[test]
fn volume_has_100_series_at_most() {
    let values = parse(&text(&status(vec![volume("a")]), 1000)).expect("the exposition is valid");
    let own = values.keys().filter(|series| series.contains("volume=\"a\"")).count();
    assert!((70..=100).contains(&own), "{own}");
}

#[test]
fn pools_have_series_by_tier_and_the_state_of_relocation() {
    let group = |free_bytes| PoolGroupReport { size_bytes: 100, free_bytes, ..PoolGroupReport::default() };
    let groups = vec![group(10), group(30)];
    let tier = PoolTierReport { name: "ssd".to_owned(), groups, ..PoolTierReport::default() };
    let relocation = PoolRelocationReport {
        state: PoolRelocationState::Paused,
        moves: 5,
        moved_bytes: 500,
        failed_moves: 2,
        ..PoolRelocationReport::default()
    };
    let pool = PoolReport { name: "tank".to_owned(), tiers: vec![tier], relocation, ..PoolReport::default() };
    let status = StatusReport { pools: vec![pool], ..StatusReport::default() };
    let values = parse(&text(&status, 1000)).expect("the exposition is valid");
    assert_eq!(values["hotset_pool_size_bytes{pool=\"tank\",tier=\"ssd\"}"], 200.0);
    assert_eq!(values["hotset_pool_free_bytes{pool=\"tank\",tier=\"ssd\"}"], 40.0);
    assert_eq!(values["hotset_pool_moved_bytes_total{pool=\"tank\"}"], 500.0);
    assert_eq!(values["hotset_pool_moves_total{pool=\"tank\",result=\"failed\"}"], 2.0);
    assert_eq!(values["hotset_pool_relocation_state{pool=\"tank\",state=\"paused\"}"], 1.0);
    assert_eq!(values["hotset_pool_relocation_state{pool=\"tank\",state=\"moving\"}"], 0.0);
}

#[test]
fn volumes_past_the_limit_are_only_in_sums_and_counted() {
    let many: Vec<_> = (0..11).map(|number| volume(&format!("v{number}"))).collect();
    let within = parse(&text(&status(many[..10].to_vec()), 10)).expect("the exposition is valid");
    assert_eq!(within["hotset_metrics_volumes_left_out"], 0.0);
    let past = parse(&text(&status(many), 10)).expect("the exposition is valid");
    assert_eq!(past["hotset_metrics_volumes_left_out"], 11.0);
    assert_eq!(past["hotset_datastore_requests_total{datastore=\"sas-pool\",op=\"read\"}"], 110.0);
    let all_requests = "hotset_datastore_latency_seconds_bucket{datastore=\"sas-pool\",op=\"read\",le=\"+Inf\"}";
    assert_eq!(past[all_requests], 110.0);
    assert!(past.keys().all(|series| !series.contains("volume=")));
}

#[test]
fn invalid_label_names_give_a_valid_text() {
    let mut labelled = volume("a \"quoted\" \\ name\nof two lines");
    for name in ["vm", "op", "0", "", "a-b", "a.b", "__x", "label_op", "le", "volume", "größe"] {
        labelled.labels.insert(name.to_owned(), "\"\\\n".to_owned());
    }
    let values = parse(&text(&status(vec![labelled]), 1000)).expect("the exposition is valid");
    let series =
        values.keys().find(|series| series.starts_with("hotset_volume_dirty_bytes")).expect("the series exists");
    for name in ["vm=", "label_op=", "a_b=", "label_a_b=", "label_volume=", "label_le="] {
        assert!(series.contains(name), "{name} in {series}");
    }
}

#[test]
fn every_kind_of_alert_has_a_series_and_none_grows_with_volumes() {
    let mut status = status((0..50).map(|number| volume(&format!("v{number}"))).collect());
    let alert = |subject: &VolumeReport| AlertReport {
        kind: AlertKind::CachePaused,
        subject: Some(subject.name.clone()),
        ..AlertReport::default()
    };
    status.active_alerts = status.volumes.iter().map(alert).collect();
    let ends_unix_seconds = Some(2_000_000_000);
    status.certificates = vec![CertificateReport { table: "nbd".to_owned(), ends_unix_seconds, ..Default::default() }];
    status.webhook = Some(DeliveryHealth { failures: 3, ..DeliveryHealth::default() });
    status.mail = Some(DeliveryHealth { failures: 4, ..DeliveryHealth::default() });
    let values = parse(&text(&status, 1000)).expect("the exposition is valid");
    assert_eq!(values["hotset_alerts{kind=\"cache-paused\",severity=\"info\"}"], 50.0);
    assert_eq!(values["hotset_alerts{kind=\"flash-degraded\",severity=\"critical\"}"], 0.0);
    assert_eq!(values.keys().filter(|series| series.starts_with("hotset_alerts{")).count(), AlertKind::ALL.len());
    assert_eq!(values["hotset_certificate_expiry_timestamp_seconds{table=\"nbd\"}"], 2e9);
    assert_eq!((values["hotset_webhook_failures_total"], values["hotset_events_lost_total"]), (3.0, 0.0));
    assert_eq!(values["hotset_mail_failures_total"], 4.0);
}
