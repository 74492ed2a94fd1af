//! Quality of service on real I/O: fio on the real daemon, whose volumes lie on the same modelled disks or on one
//! rate-limited file of this machine.
//!
//! The tests assert ratios between clients of one run and the rate of modelled disks, never the speed of this machine.
//! The exact forms are tested in virtual time.

mod cache;
mod limits;
mod neighbours;
mod shares;

use e2e::daemon::Daemon;
use e2e::fixture::Fixture;
use e2e::load::Log;
use e2e::sizes::size;
use serde_json::Value;

/// Size of a volume on the modelled array: far more than the memory, and so large that disks have to seek.
const VOLUME_GIB: u64 = 200;
/// Keys of the datastore: disks with a longer latency than this are congested.
const POOL: Option<&str> = Some("congestion_threshold = \"15ms\"");
/// Small reads that miss memory.
const RANDOM: &str = "rw=randread bs=4k iodepth=32";
/// Settling time before windows count: congestion has to be detected, and memory filled.
const SETTLED_MS: u64 = 4_000;

/// Seconds of each measurement: `HOTSET_QOS_SECONDS`, or `default`.
fn seconds(default: u64) -> u64 {
    size("HOTSET_QOS_SECONDS", default)
}

/// Volumes (name, further keys) that share five disks, and one datastore where `datastore` has its keys.
fn fixture_on_array(memory: &str, datastore: Option<&str>, volumes: &[(&str, &str)]) -> Fixture {
    let mut fixture = Fixture::new();
    fixture.memory = memory.to_owned();
    fixture.tables = "[[array]]\nname = \"shelf\"\nraid = 5\ndisks = 5\ndisk = \"sas15k\"\n".to_owned();
    if let Some(keys) = datastore {
        fixture.tables += &format!("[[datastore]]\nname = \"pool\"\n{keys}\n");
    }
    for (name, keys) in volumes {
        let pool = if datastore.is_some() { "datastore = \"pool\"\n" } else { "" };
        fixture.add_volume_on(name, "sim://shelf", &format!("size = \"{VOLUME_GIB} GiB\"\n{pool}{keys}"));
    }
    fixture
}

/// Windows of `width_ms`, one each half second.
fn windows(from_ms: u64, to_ms: u64, width_ms: u64) -> impl Iterator<Item = (u64, u64)> {
    assert!(from_ms + width_ms <= to_ms, "no window of {width_ms} ms lies between {from_ms} and {to_ms}");
    (from_ms..=to_ms - width_ms).step_by(500).map(move |from| (from, from + width_ms))
}

/// Compares the rates of several clients with their shares in every window of ten seconds.
fn assert_shares(logs: &[&Log], shares: &[f64], from_ms: u64, to_ms: u64) {
    for (from, to) in windows(from_ms, to_ms, 10_000) {
        let rates: Vec<f64> = logs.iter().map(|log| log.rate(from, to)).collect();
        let (total_rate, total_shares): (f64, f64) = (rates.iter().sum(), shares.iter().sum());
        let formatted: Vec<String> = rates.iter().map(|rate| format!("{rate:.0}")).collect();
        println!("{from} to {to} ms: {} a second for shares of {shares:?}", formatted.join(", "));
        for (rate, share) in rates.iter().zip(shares) {
            let ratio = rate / total_rate / (share / total_shares);
            assert!((0.95..=1.05).contains(&ratio), "{rates:?} for {shares:?} between {from} and {to} ms");
        }
    }
}

/// A figure of `hotset volume show`.
fn figure(daemon: &Daemon, volume: &str, name: &str) -> u64 {
    let shown: Value =
        serde_json::from_str(&daemon.command(&["volume", "show", volume, "--json"])).expect("valid JSON");
    shown[name].as_u64().unwrap_or_else(|| panic!("no {name} in {shown}"))
}
