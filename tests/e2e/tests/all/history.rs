//! The history: it agrees with the requests sent, survives kills, and delays no request when its disk fails.

use std::path::Path;
use std::process::Command;

use e2e::client::Client;
use e2e::daemon::{Daemon, text_of, wait_for};
use e2e::fixture::Fixture;
use e2e::http::Http;
use e2e::sizes::size;
use e2e::tool::tool;
use serde_json::Value;

const MIB: u64 = 1 << 20;
/// Seconds that may be missing after a kill.
const MISSING_MAX: u64 = 10;

fn fixture() -> Fixture {
    let mut fixture = Fixture::with_volume(32 * MIB);
    fixture.tables = "[api]\nlisten = \"127.0.0.1:0\"".to_owned();
    fixture
}

fn sum(report: &Value, series: &str) -> u64 {
    let sums = report["series"][series]["sum"].as_array().unwrap_or_else(|| panic!("{series} in {report}"));
    sums.iter().map(|sum| sum.as_u64().expect("a number")).sum()
}

fn numbers(values: &Value) -> Vec<u64> {
    values.as_array().expect("a column").iter().map(|value| value.as_u64().expect("a number")).collect()
}

/// The history of the volume as soon as it contains all `reads`.
fn history_with(http: &Http, reads: u64) -> Value {
    wait_for("all reads in the history", || {
        let report = http.get("/api/v1/volumes/v/history?from=-10min&step=1").json();
        (report["series"]["reads"].is_object() && sum(&report, "reads") == reads).then_some(report)
    })
}

#[test]
fn history_agrees_with_volume_counters_and_fio() {
    let fixture = fixture();
    let daemon = fixture.start();
    let http = Http::of(&daemon);
    let uri = format!("--uri={}", fixture.uri("v"));
    let common = ["--name=v", "--ioengine=nbd", "--randseed=7", "--bs=4k", "--iodepth=4", &uri, "--output-format=json"];
    let run_fio = |options: &[&str]| -> Value {
        let args = common.iter().chain(options).copied().collect::<Vec<_>>().join(" ");
        let out = tool("fio").args(&args).within(fixture.folder.path()).ok();
        serde_json::from_str(&out[out.find('{').expect("valid JSON")..]).expect("valid JSON")
    };
    let written = run_fio(&["--rw=randwrite", "--size=32m", "--io_size=8m"]);
    let read = run_fio(&["--rw=randread", "--size=32m", "--io_size=12m", "--rate_iops=1500"]);
    let shown: Value = serde_json::from_str(&daemon.command(&["volume", "show", "v", "--json"])).expect("valid JSON");
    let (reads, writes) = (shown["reads"].as_u64().expect("a number"), shown["writes"].as_u64().expect("a number"));
    let fio_count = |run: &Value, kind: &str| run["jobs"][0][kind]["total_ios"].as_u64().expect("a number");
    assert_eq!((reads, writes), (fio_count(&read, "read"), fio_count(&written, "write")));
    let report = history_with(&http, reads);
    for series in
        ["reads", "writes", "read_bytes", "write_bytes", "memory_hits", "flash_hits", "partial_hits", "misses"]
    {
        assert_eq!(sum(&report, series), shown[series].as_u64().expect("a number"), "{series}");
    }
    assert_eq!(numbers(&report["latency"]["read"]["count"]).iter().sum::<u64>(), reads);
    let page = fixture.folder.join("gain.html");
    let gain = daemon.command(&["report", "--from", "-10min", "--out", &page.to_string_lossy(), "--json"]);
    let gain: Value = serde_json::from_str(&gain).expect("valid JSON");
    for figure in ["reads", "writes", "memory_hits", "flash_hits", "backing_reads", "backing_read_bytes"] {
        assert_eq!(gain[figure], shown[figure], "{figure}");
    }
    let page = std::fs::read_to_string(page).expect("the file was written");
    assert!(page.contains("reads were served by the cache") && page.contains("<td>v<td>"), "{page}");
    assert!(!page.contains("http:") && !page.contains("<script") && !page.contains("src="), "{page}");
    for (args, reason) in
        [(["--from", "-1h", "--to", "-2h"], "must be before"), (["--from", "soon", "--to", "now"], "soon")]
    {
        let refused = daemon.try_command(&[&["report", "--out", "x.html"], args.as_slice()].concat());
        assert!(!refused.status.success() && text_of(&refused).contains(reason), "{refused:?}");
    }
    let total = http.get("/api/v1/history?from=-10min&step=1&series=reads,write_latency,volumes").json();
    assert_eq!((sum(&total, "reads"), &total["series"].as_object().map(|series| series.len())), (reads, &Some(2)));
    assert_eq!(numbers(&total["latency"]["write"]["count"]).iter().sum::<u64>(), writes);
    // Coarser steps have the same sums, and a spike stays visible in them.
    let coarse = http.get("/api/v1/volumes/v/history?from=-10min&step=1min").json();
    assert_eq!(sum(&coarse, "reads"), reads);
    let reads_max = |report: &Value| numbers(&report["series"]["reads"]["max"]).into_iter().max();
    assert_eq!(reads_max(&coarse), reads_max(&report));
    // fio read 1,500 blocks per second; the seconds of the history and those of fio begin at different moments.
    assert!(reads_max(&report).is_some_and(|reads| (700..6_000).contains(&reads)), "{:?}", reads_max(&report));
    // CSV and the command show the same figures.
    let csv =
        http.request("GET", "/api/v1/volumes/v/history?from=-10min&step=1&series=reads", &["Accept: text/csv"], "");
    assert_eq!(csv.header("content-type"), "text/csv");
    let lines: Vec<Vec<&str>> = csv.body.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines[0], ["at_unix_seconds", "covered_seconds", "reads", "reads_mean", "reads_min", "reads_max"]);
    assert_eq!(lines[1..].iter().map(|line| line[2].parse::<u64>().expect("a number")).sum::<u64>(), reads);
    let args = ["volume", "history", "v", "--from", "-10min", "--step", "10s", "--series", "reads", "--json"];
    let commanded: Value = serde_json::from_str(&daemon.command(&args)).expect("valid JSON");
    assert_eq!((sum(&commanded, "reads"), &commanded["step_seconds"]), (reads, &10.into()));
    assert!(daemon.command(&["volume", "history", "--csv"]).starts_with("at_unix_seconds,"));
    daemon.stop();
}

#[test]
fn datastore_history_covers_its_volumes_only() {
    let mut fixture = Fixture::new();
    fixture.tables = "[api]\nlisten = \"127.0.0.1:0\"\n[[datastore]]\nname = \"shelf\"".to_owned();
    for (name, lines) in [("a", "datastore = \"shelf\""), ("b", "datastore = \"shelf\""), ("c", "")] {
        fixture.add_volume(name, MIB, lines);
    }
    let daemon = fixture.start();
    let http = Http::of(&daemon);
    for (name, reads) in [("a", 3), ("b", 5), ("c", 9)] {
        let mut client = Client::connect(&fixture.endpoint(), name).expect("the volume is served");
        (0..reads).for_each(|_| drop(client.read(0, 4096).expect("the read succeeds")));
    }
    for (datastore, reads) in [("shelf", 8), ("", 9)] {
        let path = format!("/api/v1/history?datastore={datastore}&from=-10min&step=1&series=reads,read_latency");
        let report = wait_for("all reads in the history", || {
            let report = http.get(&path).json();
            (report["series"]["reads"]["sum"].is_array() && sum(&report, "reads") == reads).then_some(report)
        });
        assert_eq!(report["datastore"], datastore);
        assert_eq!(numbers(&report["latency"]["read"]["count"]).iter().sum::<u64>(), reads);
    }
    let command = ["volume", "history", "--datastore", "shelf", "--from", "-10min", "--series", "reads", "--json"];
    let commanded: Value = serde_json::from_str(&daemon.command(&command)).expect("valid JSON");
    assert_eq!(sum(&commanded, "reads"), 8);
    for (query, status, word) in [
        ("history?datastore=none", 404, "no datastore named"),
        ("history?datastore=shelf&series=volumes", 400, "volumes"),
        ("volumes/a/history?datastore=shelf", 400, "one of volume, datastore and pool"),
        ("history?pool=none", 404, "no pool named"),
        ("history?pool=none&series=reads", 400, "allocated_bytes"),
        ("volumes/%2Fshelf/history", 404, "/shelf"),
    ] {
        let refused = http.get(&format!("/api/v1/{query}"));
        assert_eq!(refused.status, status, "{query}: {refused:?}");
        assert!(refused.json()["detail"].as_str().is_some_and(|text| text.contains(word)), "{refused:?}");
    }
    daemon.stop();
}

#[test]
fn invalid_history_queries_are_refused_with_a_reason() {
    let fixture = fixture();
    let daemon = fixture.start();
    let http = Http::of(&daemon);
    for (query, word) in [
        ("v/history?from=soon", "soon"),
        ("v/history?step=often", "often"),
        ("v/history?series=colour", "colour"),
        ("v/history?from=-3d&step=1min", "more than 3660 steps"),
        ("v/history?from=-1min&to=-2min", "must be before"),
        ("v/history?colour=1", "colour"),
        ("v/history?format=xml", "xml"),
    ] {
        let refused = http.get(&format!("/api/v1/volumes/{query}"));
        assert_eq!(refused.status, 400, "{query}: {refused:?}");
        assert!(refused.json()["detail"].as_str().is_some_and(|text| text.contains(word)), "{refused:?}");
    }
    assert_eq!(http.get("/api/v1/volumes/none/history").status, 404);
    daemon.stop();
    let mut without_history = Fixture::with_volume(MIB);
    without_history.tables = "[api]\nlisten = \"127.0.0.1:0\"\n[history]\nsize = \"0\"".to_owned();
    let daemon = without_history.start();
    let http = Http::of(&daemon);
    assert_eq!(http.get("/api/v1/history").status, 409);
    assert!(!without_history.folder.join("state/history").exists());
    daemon.stop();
}

/// Kill rounds to run: `HOTSET_HISTORY_KILL_ROUNDS`, 3 by default.
fn kill_rounds() -> u64 {
    size("HOTSET_HISTORY_KILL_ROUNDS", 3)
}

/// Seconds that the volume's history covers, in steps of a second and of a minute, and the time of the last step.
fn covered_seconds(http: &Http) -> ([u64; 2], u64) {
    let report_with =
        |step: u64| http.get(&format!("/api/v1/volumes/v/history?from=-50min&step={step}&series=reads")).json();
    let (fine, coarse) = (report_with(1), report_with(60));
    let sum = |report: &Value| numbers(&report["covered_seconds"]).iter().sum();
    ([sum(&fine), sum(&coarse)], numbers(&fine["at_unix_seconds"]).last().copied().unwrap_or(0))
}

#[test]
fn kill_loses_at_most_ten_seconds_of_history() {
    let fixture = fixture();
    let mut daemon = fixture.start();
    let mut random = e2e::random::Random::new(e2e::random::seed("history_kill"));
    for round in 0..kill_rounds() {
        let http = Http::of(&daemon);
        let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
        let before = wait_for("some seconds of history", || {
            client.read(0, 4096).expect("the read succeeds");
            let report = http.get("/api/v1/volumes/v/history?from=-50min&step=1&series=reads");
            let seconds = (report.status == 200).then(|| covered_seconds(&http)).filter(|(_, last)| *last > 0);
            seconds.filter(|(seconds, _)| seconds[0] >= (round + 1) * 6)
        });
        // Batches are written every few seconds: the kill falls between or into them.
        std::thread::sleep(std::time::Duration::from_millis(random.below(5_000)));
        let before_kill = covered_seconds(&http).0;
        daemon.kill();
        daemon = fixture.start();
        let ([fine, coarse], _) = covered_seconds(&Http::of(&daemon));
        println!("round {round}: {before:?} then {before_kill:?} before the kill, {fine} and {coarse} after it");
        for (before, after) in before_kill.iter().zip([fine, coarse]) {
            assert!(after + MISSING_MAX >= *before, "{before} s before the kill, {after} after it");
        }
        // The coarse steps are computed from the fine ones; a second or so may have been added since the start.
        assert!(coarse.abs_diff(fine) <= 2, "{fine} s of seconds, {coarse} s of minutes");
    }
    daemon.stop();
}

/// A small tmpfs mounted on a part of the state directory, unmounted when dropped; `None` where this user may not
/// mount.
pub struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    /// Mounts a disk of 1 MiB.
    pub fn mount(mount_point: &Path) -> Option<SmallDisk> {
        SmallDisk::mount_sized(mount_point, "1m")
    }

    /// Mounts a disk of `size`, in the notation of `mount`.
    pub fn mount_sized(mount_point: &Path, size: &str) -> Option<SmallDisk> {
        std::fs::create_dir_all(mount_point).expect("the folder can be created");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(mount_point)
            .output();
        if mounted.is_ok_and(|mounted| mounted.status.success()) {
            return Some(SmallDisk(mount_point.to_owned()));
        }
        println!("SKIPPED: no disk may be mounted here");
        None
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Fills the disk.
    pub fn fill(&self) {
        let mut file = std::fs::File::create(self.0.join("filler")).expect("the file can be created");
        let chunk = vec![1; 4096];
        while std::io::Write::write_all(&mut file, &chunk).is_ok() {}
    }

    /// Frees the space again.
    pub fn empty(&self) {
        std::fs::remove_file(self.0.join("filler")).expect("the disk was filled before");
    }

    /// Remounts the disk with other options, for example `ro`.
    pub fn remount(&self, options: &str) {
        let status = Command::new("mount").args(["-o", &format!("remount,{options}")]).arg(&self.0).status();
        assert!(status.is_ok_and(|status| status.success()), "{options}");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A lazy unmount, because the daemon may still have files open.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn write(client: &mut Client, number: u8) {
    client.write(0, &[number; 4096]).expect("the write succeeds");
    client.flush().expect("the flush succeeds");
    assert_eq!(client.read(0, 4096).expect("the read succeeds"), [number; 4096]);
}

fn alert(daemon: &Daemon) -> Option<String> {
    let status: Value = serde_json::from_str(&daemon.command(&["status", "--json"])).expect("valid JSON");
    let alerts = status["alerts"].as_array().expect("a list");
    alerts.iter().filter_map(Value::as_str).find(|alert| alert.contains("history")).map(str::to_owned)
}

#[test]
fn full_or_read_only_history_disk_raises_an_alert_only() {
    let fixture = fixture();
    let Some(disk) = SmallDisk::mount(&fixture.folder.join("state/history")) else { return };
    let filler = fixture.folder.join("state/history/filler");
    let daemon = fixture.start();
    let http = Http::of(&daemon);
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    wait_for("the first batch", || (http.get("/api/v1/history").status == 200).then_some(()));
    assert_eq!(alert(&daemon), None);
    // The write fails because the disk is full, as intended.
    assert!(std::fs::write(&filler, vec![1; 2 << 20]).is_err());
    let alert_text = wait_for("the alert", || alert(&daemon));
    assert!(alert_text.contains("full"), "{alert_text}");
    write(&mut client, 1);
    assert_eq!(http.get("/readyz").status, 200);
    assert_eq!(daemon.command(&["volume", "show", "v", "--json"]).matches("\"writes\": 1").count(), 1);
    std::fs::remove_file(&filler).expect("the file exists");
    wait_for("the end of the alert", || alert(&daemon).is_none().then_some(()));
    // The batches that could not be written stayed in memory and were written later.
    let report = http.get("/api/v1/volumes/v/history?from=-10min&step=1").json();
    assert_eq!(sum(&report, "writes"), 1);
    daemon.stop();
    disk.remount("ro");
    let daemon = fixture.start();
    let http = Http::of(&daemon);
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    let alert_text = wait_for("the alert", || alert(&daemon));
    assert!(alert_text.contains("read-only"), "{alert_text}");
    write(&mut client, 2);
    disk.remount("rw");
    wait_for("the end of the alert", || alert(&daemon).is_none().then_some(()));
    let report = http.get("/api/v1/volumes/v/history?from=-10min&step=1").json();
    assert_eq!(sum(&report, "writes"), 2, "{report}");
    daemon.stop();
}
